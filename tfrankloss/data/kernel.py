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
PLUS, MINUS, POINT, LETTER_E = 43, 45, 46, 101
LOWER = np.uint8(32)  # makes a letter small
# For `_digits`, in uint64 throughout: mixed with signed numbers they would become floats.
ALL_ZERO, UP_TO_NINE = np.uint64(0x3030303030303030), np.uint64(0x7676767676767676)
TOP_BITS, PAIR_BYTES = np.uint64(0x8080808080808080), np.uint64(0x00FF00FF00FF00FF)
FOUR_BYTES = np.uint64(0x0000FFFF0000FFFF)
PAIRS, FOURS = np.uint64(10 << 8 | 1), np.uint64(100 << 16 | 1)
EIGHTS = np.uint64(10_000 << 32 | 1)
FOUR_LETTERS, QUERY = np.uint64(0xFFFFFFFF), np.uint64(int.from_bytes(b"qid:", "little"))
THREE, EIGHT, SIXTEEN, THIRTY_TWO, SIXTY_FOUR = (np.uint64(x) for x in (3, 8, 16, 32, 64))
WHOLE = np.array([10**power for power in range(9)], np.uint64)

LARGEST_EXPONENT = 60
POWERS = np.array([float(f"1e{p}") for p in range(-LARGEST_EXPONENT, LARGEST_EXPONENT + 1)])
EXACT_INTEGER = np.uint64(1 << 53)
DIGITS = 19  # as many always fit 64 bits
SMALLEST_NORMAL, LARGEST = 1.2e-38, 3.4e38
# Digits, power and product are each off by half a unit in the last place of float64 at most.
DOUBT = 4


@intrinsic
def _word(typing, text, at):
    """Eight bytes from `at` on as one number, the first byte lowest."""

    def generate(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.gep(array.data, [arguments[1]])
        return builder.load(builder.bitcast(place, ir.IntType(64).as_pointer()), align=1)

    return types.uint64(text, types.int64), generate


@intrinsic
def _byte(typing, text, at):
    """`text[at]`, without the question whether `at` counts from the end."""

    def generate(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.load(builder.gep(array.data, [arguments[1]]))

    return types.uint8(text, types.int64), generate


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
def _digits(text, at):
    """The digits from `at` on, at most eight of them, as a number, and how many there are.

    All eight bytes at once: a loop over digits would guess its end wrong in every number. Bytes
    become 0 to 9, or something higher for what is no digit; the digits are then moved to the upper
    end, so that zeros stand before them, and neighbours are joined to pairs, fours and eight.
    """
    word = _word(text, at) ^ ALL_ZERO
    others = ((word + UP_TO_NINE) | word) & TOP_BITS
    count = _trailing_zeros(others) >> THREE
    if count == 0:
        return np.uint64(0), 0
    word <<= SIXTY_FOUR - (count << THREE)
    word = (word * PAIRS) >> EIGHT
    word = ((word & PAIR_BYTES) * FOURS) >> SIXTEEN
    word = ((word & FOUR_BYTES) * EIGHTS) >> THIRTY_TWO
    return word, np.int64(count)


@njit(nogil=True, cache=True, inline="always")
def _number(text, at):
    """The number at `at`: its value, where it ends, and whether it is certain."""
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
        from_middle = (_bits(value) & 0x1FFFFFFF) - 0x10000000
        if -DOUBT <= from_middle <= DOUBT:
            return 0.0, at, False
    return (-value if negative else value), at, True


@njit(nogil=True, cache=True)
def parse(text, at, row, lowest, named, features, labels, queries, documents, seen, ends):
    """Reads lines into rows.

    Args:
        text: uint8, ends with a newline and `PADDING` bytes more.
        at: where to begin.
        row: the first row to fill.
        lowest: the lowest index that may occur.
        named: whether lines have `qid:`.
        features: float32 `[rows, columns]`, filled with the value of missing features; the column
            is the index.
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
    end = len(text) - PADDING
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
        start_of_query = end_of_query = -1
        documents[row, 0] = -1
        first = True
        while True:
            while _byte(text, at) == SPACE or _byte(text, at) == TAB:
                found, count = _digits(text, at + 1)
                place = at + 1 + count
                if count == 0 or count == 8 or _byte(text, place) != COLON or found >= width:
                    break
                index = np.int64(found)
                if index < lowest:
                    return row, line, passed
                value, at, certain = _number(text, place + 1)
                if not certain or seen[index] == line + 1:
                    return row, line, passed
                seen[index] = line + 1
                features[row, index] = value
                first = False
            byte = _byte(text, at)
            if byte in (SPACE, TAB):
                at += 1
                continue
            if byte == NEWLINE:
                at += 1
                break
            if byte == RETURN and _byte(text, at + 1) == NEWLINE:
                at += 2
                break
            if byte == HASH:
                at = _comment(text, at, documents, row)
                break
            spaced = _byte(text, at - 1) == SPACE or _byte(text, at - 1) == TAB
            if spaced and first and _word(text, at) & FOUR_LETTERS == QUERY:
                at += 4
                start_of_query = at
                while _byte(text, at) > SPACE and _byte(text, at) != HASH and _byte(text, at) < 127:
                    at += 1
                end_of_query = at
                if start_of_query == at or _byte(text, at) >= 127:
                    return row, line, passed
                first = False
                continue
            return row, line, passed
        query_length = end_of_query - start_of_query
        document_length = documents[row, 1] - documents[row, 0] if documents[row, 0] >= 0 else 0
        if (start_of_query >= 0) != named or max(query_length, document_length) > LONGEST_ID:
            return row, line, passed
        same = query >= 0 and end_of_query - start_of_query == query_end - query
        place = 0
        while same and place < query_end - query:
            same = _byte(text, query + place) == _byte(text, start_of_query + place)
            place += 1
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
