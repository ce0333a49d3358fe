"""The usual lines of a LETOR file, byte by byte, compiled with Numba.

A line with anything unusual in it is left to `letor.parse_line`: errors, `nan`, numbers that
float64 arithmetic cannot tell from the middle of two float32 numbers, indices that do not fit the
array. Compiled code therefore never decides that something is wrong.
"""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from tfrankloss.data.letor import LONGEST_ID
from tfrankloss.data.sources import PADDING

NEWLINE, RETURN, SPACE, TAB, HASH, COLON = 10, 13, 32, 9, 35, 58
PLUS, MINUS, POINT, ZERO, LETTER_E = 43, 45, 46, 48, 101
LOWER = np.uint8(32)  # makes a letter small
# For words of digits, in uint64 throughout: mixed with signed numbers they would become floats.
ALL_ZERO, UP_TO_NINE = np.uint64(0x3030303030303030), np.uint64(0x7676767676767676)
TOP_BITS, PAIR_BYTES = np.uint64(0x8080808080808080), np.uint64(0x00FF00FF00FF00FF)
FOUR_BYTES = np.uint64(0x0000FFFF0000FFFF)
PAIRS, FOURS = np.uint64(10 << 8 | 1), np.uint64(100 << 16 | 1)
EIGHTS = np.uint64(10_000 << 32 | 1)
FOUR_LETTERS, QUERY = np.uint64(0xFFFFFFFF), np.uint64(int.from_bytes(b"qid:", "little"))
ONE, TWO, THREE, EIGHT, NINE, TEN = (np.uint64(x) for x in (1, 2, 3, 8, 9, 10))
SIXTEEN, THIRTY_TWO, SIXTY_FOUR = np.uint64(16), np.uint64(32), np.uint64(64)
BEHIND_SIXTEEN, NO_INDEX = np.uint64(1 << 16), np.uint64(1 << 60)
WHOLE = np.array([10**power for power in range(9)], np.uint64)

LARGEST_EXPONENT = 60
POWERS = np.array([float(f"1e{p}") for p in range(-LARGEST_EXPONENT, LARGEST_EXPONENT + 1)])
# By sign and number of decimals.
DECIMALS = np.array([[float(f"{sign}1e-{p}") for p in range(9)] for sign in "+-"])
EXACT_INTEGER = np.uint64(1 << 53)
DIGITS = 19  # as many always fit 64 bits
SMALLEST_NORMAL, LARGEST = 1.2e-38, 3.4e38
# Digits, power and product are each off by half a unit in the last place of float64 at most.
DOUBT = 4


@intrinsic
def _pointer(typing, text):
    """Where an array begins. Unlike arrays, pointers are handed on without counting references."""

    def generate(context, builder, signature, arguments):
        return context.make_array(signature.args[0])(context, builder, arguments[0]).data

    return types.CPointer(types.uint8)(text), generate


@intrinsic
def _word(typing, text, at):
    """Eight bytes from `at` on as one number, the first byte lowest."""

    def generate(context, builder, signature, arguments):
        place = builder.gep(arguments[0], arguments[1:])
        return builder.load(builder.bitcast(place, ir.IntType(64).as_pointer()), align=1)

    return types.uint64(text, types.int64), generate


@intrinsic
def _byte(typing, text, at):
    """`text[at]`, without the question whether `at` counts from the end."""

    def generate(context, builder, signature, arguments):
        return builder.load(builder.gep(arguments[0], arguments[1:]))

    return types.uint8(text, types.int64), generate


@intrinsic
def _others(typing, text, at):
    """Which of the sixteen bytes from `at` on are no digits, and which are points: a bit for each.

    The bits of the first byte are the lowest.
    """

    def generate(context, builder, signature, arguments):
        place = builder.gep(arguments[0], arguments[1:])
        sixteen = ir.VectorType(ir.IntType(8), 16)
        letters = builder.load(builder.bitcast(place, sixteen.as_pointer()), align=1)
        digits = builder.sub(letters, ir.Constant(sixteen, [ZERO] * 16))
        others = builder.icmp_unsigned(">", digits, ir.Constant(sixteen, [9] * 16))
        points = builder.icmp_unsigned("==", letters, ir.Constant(sixteen, [POINT] * 16))
        masks = [
            builder.zext(builder.bitcast(x, ir.IntType(16)), ir.IntType(64))
            for x in (others, points)
        ]
        return context.make_tuple(builder, signature.return_type, masks)

    return types.UniTuple(types.uint64, 2)(text, types.int64), generate


@intrinsic
def _trailing_zeros(typing, x):
    """The number of zero bits below the lowest bit that is set; 64 for 0."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.IntType(1)(0))

    return types.uint64(types.uint64), generate


@intrinsic
def _bits(typing, x):
    """The bits of a float64 number."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(types.float64), generate


@njit(nogil=True, cache=True, inline="always")
def _joined(word):
    """Eight digits as one number: neighbours are joined to pairs, fours and eight."""
    word = (word * PAIRS) >> EIGHT
    word = ((word & PAIR_BYTES) * FOURS) >> SIXTEEN
    return ((word & FOUR_BYTES) * EIGHTS) >> THIRTY_TWO


@njit(nogil=True, cache=True, inline="always")
def _digits(text, at):
    """The digits from `at` on, at most eight of them, as a number, and how many there are.

    All eight bytes at once: a loop over digits would guess its end wrong in every number. Bytes
    become 0 to 9, or something higher for what is no digit; the digits are then moved to the upper
    end, so that zeros stand before them.
    """
    word = _word(text, at) ^ ALL_ZERO
    others = ((word + UP_TO_NINE) | word) & TOP_BITS
    count = _trailing_zeros(others) >> THREE
    if count == 0:
        return np.uint64(0), 0
    word <<= SIXTY_FOUR - (count << THREE)
    return _joined(word), np.int64(count)


@njit(nogil=True, cache=True, inline="always")
def _is_near_middle(value):
    """Whether a float64 number is too near to the middle of two float32 numbers to be rounded."""
    return (_bits(value) - 0x10000000 + DOUBT) & 0x1FFFFFFF <= 2 * DOUBT


@njit(nogil=True, cache=True, inline="always")
def _number(text, at):
    """The number at `at`: its value, where it ends, and whether it is certain.

    Which numbers have a point, and where, no processor guesses: up to eight digits before it and
    eight behind it are read without a branch. `_long_number` reads the others.
    """
    others, points = _others(text, at)
    negative = np.uint64(_byte(text, at) == MINUS)
    others = (others | BEHIND_SIXTEEN) ^ negative
    point = others & (~others + ONE) & points
    whole = _trailing_zeros(others) - negative
    length = _trailing_zeros(others ^ point)
    decimals = length - whole - negative - np.uint64(point != 0)
    end = at + np.int64(length)
    usual = (whole - ONE < EIGHT) & (decimals <= EIGHT) & (length < SIXTEEN)
    if not usual or _byte(text, end) > SPACE:
        return _long_number(text, at)
    start = at + np.int64(negative)
    before = (_word(text, start) ^ ALL_ZERO) << (SIXTY_FOUR - (whole << THREE))
    # In two steps, as no word can be shifted by all of its 64 bits.
    half = THIRTY_TWO - (decimals << TWO)
    behind = (_word(text, end - np.int64(decimals)) ^ ALL_ZERO) << half << half
    mantissa = _joined(before) * WHOLE[decimals] + _joined(behind)
    value = np.float64(np.int64(mantissa)) * DECIMALS[negative, decimals]
    # What is asked last is guessed wrong most often. Whole numbers are exact.
    if _is_near_middle(value) and decimals != 0:
        return 0.0, end, False
    return value, end, True


@njit(nogil=True, cache=True)
def _long_number(text, at):
    """As `_number`, for numbers of any length, also with an exponent."""
    negative = _byte(text, at) == MINUS
    if negative or _byte(text, at) == PLUS:
        at += 1
    start = at
    mantissa, count = _digits(text, at)
    at += count
    digits = count  # from the first that is not 0 on, and up to seven zeros before it
    while count == 8:
        digits = digits if mantissa != 0 else 0
        more, count = _digits(text, at)
        mantissa = mantissa * WHOLE[count] + more
        at += count
        digits += count
    length = at - start
    exponent = 0
    if _byte(text, at) == POINT:
        at += 1
        count = 8
        while count == 8:
            digits = digits if mantissa != 0 else 0
            more, count = _digits(text, at)
            mantissa = mantissa * WHOLE[count] + more
            at += count
            exponent -= count
            digits += count
        length -= exponent
    if length == 0 or digits > DIGITS:
        return 0.0, at, False
    if _byte(text, at) | LOWER == LETTER_E:
        at += 1
        down = _byte(text, at) == MINUS
        if down or _byte(text, at) == PLUS:
            at += 1
        power, count = _digits(text, at)
        at += count
        if count == 0 or count == 8:
            return 0.0, at, False
        exponent += -np.int64(power) if down else np.int64(power)
    value = np.float64(mantissa)
    if mantissa != 0 and (exponent != 0 or mantissa > EXACT_INTEGER):
        if exponent > LARGEST_EXPONENT or exponent < -LARGEST_EXPONENT:
            return 0.0, at, False
        value *= POWERS[exponent + LARGEST_EXPONENT]
        if not SMALLEST_NORMAL < value < LARGEST:
            return 0.0, at, False
        if _is_near_middle(value):
            return 0.0, at, False
    return (-value if negative else value), at, True


@njit(nogil=True, cache=True, inline="always")
def _digit(text, at):
    """The digit at `at`, or a number above 9."""
    return np.uint64(_byte(text, at)) - np.uint64(ZERO)


@njit(nogil=True, cache=True, inline="always")
def _index(text, at):
    """The index at `at`, `NO_INDEX` if there is none, and the place behind its colon.

    Neighbours mostly have as many digits: the processor guesses how many and goes on to the value
    without waiting for them, which it could not if their number were computed.
    """
    first, second, third = _digit(text, at), _digit(text, at + 1), _digit(text, at + 2)
    if _byte(text, at + 1) == COLON and first <= NINE:
        return first, at + 2
    if _byte(text, at + 2) == COLON and max(first, second) <= NINE:
        return first * TEN + second, at + 3
    if _byte(text, at + 3) == COLON and max(first, second, third) <= NINE:
        return (first * TEN + second) * TEN + third, at + 4
    found, count = _digits(text, at)
    if count == 0 or count == 8 or _byte(text, at + count) != COLON:
        return NO_INDEX, at
    return found, at + count + 1


@njit(nogil=True, cache=True)
def parse(array, at, row, lowest, named, missing, features, labels, queries, documents, seen, ends):
    """Reads lines into rows.

    Args:
        array: uint8, the text; ends with a newline and `PADDING` bytes more.
        at: where to begin.
        row: the first row to fill.
        lowest: the lowest index that may occur.
        named: whether lines have `qid:`.
        missing: the value of missing features.
        features: float32 `[rows, columns]`; the column is the index.
        labels: float32 `[rows]`.
        queries: int64 `[rows, 2]`, gets the places of each query id: of its begin, -1 if there is
            none, -2 if it is that of the row before; and of its end.
        documents: int64 `[rows, 2]`, gets the places of each document id, or -1.
        seen: int64 `[columns]`, 0 at the first call for a text.
        ends: bool `[2]`, whether the first and the last index occur.

    Returns the number of rows, where the next line begins, and how many lines were passed. It
    stops where the text ends, where the rows are full, or at a line that is unusual.
    """
    passed = 0
    query = query_end = -1  # of the row before
    width = len(seen)
    lowest = np.uint64(lowest)
    allowed = np.uint64(width) - lowest
    end = len(array) - PADDING
    text = _pointer(array)
    while at < end:
        line = at
        while _byte(text, at) == SPACE or _byte(text, at) == TAB:
            at += 1
        if _byte(text, at) == NEWLINE:
            at += 1
            passed += 1
            continue
        if _byte(text, at) == RETURN and _byte(text, at + 1) == NEWLINE:
            at += 2
            passed += 1
            continue
        if _byte(text, at) == HASH:
            while _byte(text, at) != NEWLINE:
                at += 1
            at += 1
            passed += 1
            continue
        if row == len(labels):
            return row, line, passed
        label, at, certain = _number(text, at)
        if not certain or label < 0:
            return row, line, passed
        blank = at
        while _byte(text, at) == SPACE or _byte(text, at) == TAB:
            at += 1
        start_of_query = end_of_query = -1
        same = False
        if at > blank and _word(text, at) & FOUR_LETTERS == QUERY:
            at += 4
            start_of_query = at
            # Mostly the query is that of the row before, whose end is known.
            same = query >= 0
            while same and query + at - start_of_query < query_end:
                same = _byte(text, query + at - start_of_query) == _byte(text, at)
                at += 1
            same = same and (_byte(text, at) <= SPACE or _byte(text, at) == HASH)
            if not same:
                at = start_of_query
                while _byte(text, at) > SPACE and _byte(text, at) != HASH and _byte(text, at) < 127:
                    at += 1
            end_of_query = at
            if start_of_query == at or _byte(text, at) >= 127:
                return row, line, passed
        elif at > blank:
            at -= 1
        documents[row, 0] = -1
        for column in range(width):
            features[row, column] = missing
        while True:
            while _byte(text, at) == SPACE or _byte(text, at) == TAB:
                index, place = _index(text, at + 1)
                if index - lowest >= allowed:
                    break
                value, at, certain = _number(text, place)
                if not certain or seen[index] == line + 1:
                    return row, line, passed
                seen[index] = line + 1
                features[row, index] = value
            byte = _byte(text, at)
            if byte == NEWLINE:
                at += 1
                break
            if byte == RETURN and _byte(text, at + 1) == NEWLINE:
                at += 2
                break
            if byte == HASH:
                at = _comment(text, at, documents, row)
                break
            if byte != SPACE and byte != TAB:
                return row, line, passed
            at += 1
        query_length = end_of_query - start_of_query
        document_length = documents[row, 1] - documents[row, 0] if documents[row, 0] >= 0 else 0
        if (start_of_query >= 0) != named or max(query_length, document_length) > LONGEST_ID:
            return row, line, passed
        queries[row, 0] = -2 if same else start_of_query
        queries[row, 1] = end_of_query
        query, query_end = start_of_query, end_of_query
        passed += 1
        labels[row] = label
        ends[0] |= seen[0] == line + 1
        ends[1] |= seen[width - 1] == line + 1
        row += 1
    return row, at, passed


@njit(nogil=True, cache=True)
def _comment(text, at, documents, row):
    """Goes to the next line; notes what follows the first `docid =`."""
    searching = True
    while _byte(text, at) != NEWLINE:
        at += 1
        if (
            searching
            and _byte(text, at) == 100
            and _byte(text, at + 1) == 111
            and _byte(text, at + 2) == 99
        ):
            if _byte(text, at + 3) != 105 or _byte(text, at + 4) != 100:
                continue
            place = at + 5
            while _byte(text, place) == SPACE or _byte(text, place) == TAB:
                place += 1
            if _byte(text, place) != 61:  # =
                continue
            place += 1
            while _byte(text, place) == SPACE or _byte(text, place) == TAB:
                place += 1
            start = place
            while _byte(text, place) not in (SPACE, TAB, NEWLINE):
                place += 1
            if _byte(text, place) == NEWLINE and _byte(text, place - 1) == RETURN:
                place -= 1
            if place > start:
                documents[row, 0] = start
                documents[row, 1] = place
                searching = False
    return at + 1
