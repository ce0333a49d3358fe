"""The usual lines of a LETOR file, byte by byte, compiled with Numba.

A line with anything unusual in it is left to `letor.parse_line`: errors, `nan`, numbers that
float64 arithmetic cannot tell from the middle of two float32 numbers, indices that do not fit the
array. Compiled code therefore never decides that something is wrong.
"""

import numpy as np
from numba import njit

# Bytes behind the last newline, so that a look ahead stays inside.
PADDING = 8
# What stopped the kernel.
FINISHED, FULL, UNUSUAL = 0, 1, 2

NEWLINE, RETURN, SPACE, TAB, HASH, COLON = 10, 13, 32, 9, 35, 58
PLUS, MINUS, POINT, ZERO = 43, 45, 46, 48

POWERS = np.array([float(f"1e{power}") for power in range(61)])
LARGEST_EXPONENT = 60
EXACT_INTEGER = np.uint64(1 << 53)
DIGITS = 19  # as many fit 64 bits
SMALLEST_NORMAL, LARGEST = 1.2e-38, 3.4e38
# Arithmetic is off by less than two units in the last place of float64.
DOUBT = 4


@njit(nogil=True, cache=True)
def _number(text, at, double, bits):  # type: ignore[no-untyped-def]
    """The number at `at`: its value, where it ends, and whether it is certain."""
    negative = text[at] == MINUS
    if negative or text[at] == PLUS:
        at += 1
    mantissa = np.uint64(0)
    digits = 0
    exponent = 0
    start = at
    while True:
        digit = text[at] - np.uint8(ZERO)
        if digit > 9:
            break
        if digits < DIGITS:
            mantissa = mantissa * np.uint64(10) + np.uint64(digit)
            digits += mantissa > 0
        else:
            exponent += 1
        at += 1
    length = at - start
    if text[at] == POINT:
        at += 1
        start = at
        while True:
            digit = text[at] - np.uint8(ZERO)
            if digit > 9:
                break
            if digits < DIGITS:
                mantissa = mantissa * np.uint64(10) + np.uint64(digit)
                digits += mantissa > 0
                exponent -= 1
            at += 1
        length += at - start
    if length == 0:
        return 0.0, at, False
    if text[at] | np.uint8(32) == 101:  # e, E
        at += 1
        down = text[at] == MINUS
        if down or text[at] == PLUS:
            at += 1
        power = 0
        start = at
        while True:
            digit = text[at] - np.uint8(ZERO)
            if digit > 9:
                break
            power = min(power * 10 + np.int64(digit), 10000)
            at += 1
        if at == start:
            return 0.0, at, False
        exponent += -power if down else power
    if mantissa == 0:
        return (-0.0 if negative else 0.0), at, True
    value = np.float64(mantissa)
    if exponent != 0 or mantissa > EXACT_INTEGER:
        if exponent > LARGEST_EXPONENT or exponent < -LARGEST_EXPONENT:
            return 0.0, at, False
        value = value / POWERS[-exponent] if exponent < 0 else value * POWERS[exponent]
        if not SMALLEST_NORMAL < value < LARGEST:
            return 0.0, at, False
        double[0] = value
        from_middle = np.int64(bits[0] & np.uint64(0x1FFFFFFF)) - 0x10000000
        if -DOUBT <= from_middle <= DOUBT:
            # 25 bits times 10^12 are exact, and so is the middle if it gives back the digits.
            exact = mantissa <= EXACT_INTEGER and digits < DIGITS and -12 <= exponent < 0
            if not exact or value * POWERS[-exponent] != np.float64(mantissa):
                return 0.0, at, False
    return (-value if negative else value), at, True


@njit(nogil=True, cache=True)
def parse(  # type: ignore[no-untyped-def]
    text, at, row, features, labels, lines, queries, documents, seen, ends
):
    """Reads lines into rows until the text ends, the rows are full, or a line is unusual.

    Args:
        text: uint8, ends with a newline and `PADDING` bytes more.
        at: where to begin.
        row: the first row to fill.
        features: float32 `[rows, columns]`, filled with the value of missing features; the column
            is the index.
        labels: float32 `[rows]`.
        lines: int64 `[rows]`, gets the place of each line in the text.
        queries: int64 `[rows, 2]`, gets the places of each query id: of its begin, -1 if there is
            none, -2 if it is that of the row before; and of its end.
        documents: int64 `[rows, 2]`, gets the places of each document id, or -1.
        seen: int64 `[columns]`, 0 at the first call for a text.
        ends: bool `[2]`, whether the first and the last index occur.

    Returns what stopped it, the number of rows, and where the next line begins.
    """
    double = np.zeros(1, np.float64)
    bits = double.view(np.uint64)
    query = query_end = -1  # of the row before
    end = len(text) - PADDING
    while at < end:
        line = at
        while text[at] == SPACE or text[at] == TAB:
            at += 1
        if text[at] == NEWLINE:
            at += 1
            continue
        if text[at] == RETURN and text[at + 1] == NEWLINE:
            at += 2
            continue
        if text[at] == HASH:
            while text[at] != NEWLINE:
                at += 1
            at += 1
            continue
        if row == len(labels):
            return FULL, row, line
        label, at, certain = _number(text, at, double, bits)
        if not certain or label < 0:
            return UNUSUAL, row, line
        lines[row] = line
        start_of_query = end_of_query = -1
        documents[row, 0] = -1
        first = True
        lowest = highest = False
        while True:
            byte = text[at]
            if byte in (SPACE, TAB):
                at += 1
                continue
            if byte == NEWLINE:
                at += 1
                break
            if byte == RETURN and text[at + 1] == NEWLINE:
                at += 2
                break
            if byte == HASH:
                at = _comment(text, at, documents, row)
                break
            if text[at - 1] != SPACE and text[at - 1] != TAB:
                return UNUSUAL, row, line
            if first and byte == 113 and text[at + 1] == 105 and text[at + 2] == 100:
                if text[at + 3] != COLON:
                    return UNUSUAL, row, line
                at += 4
                start_of_query = at
                while text[at] > SPACE and text[at] != HASH and text[at] < 127:
                    at += 1
                end_of_query = at
                if start_of_query == at or text[at] >= 127:
                    return UNUSUAL, row, line
                first = False
                continue
            first = False
            index = 0
            start = at
            while True:
                digit = text[at] - np.uint8(ZERO)
                if digit > 9:
                    break
                index = index * 10 + np.int64(digit)
                at += 1
            if at == start or at - start > 9 or text[at] != COLON:
                return UNUSUAL, row, line
            if index >= len(seen):
                return UNUSUAL, row, line
            value, at, certain = _number(text, at + 1, double, bits)
            if not certain or seen[index] == line + 1:
                return UNUSUAL, row, line
            seen[index] = line + 1
            features[row, index] = value
            lowest = lowest or index == 0
            highest = highest or index == len(seen) - 1
        same = query >= 0 and end_of_query - start_of_query == query_end - query
        place = 0
        while same and place < query_end - query:
            same = text[query + place] == text[start_of_query + place]
            place += 1
        queries[row, 0] = -2 if same else start_of_query
        queries[row, 1] = end_of_query
        query, query_end = start_of_query, end_of_query
        labels[row] = label
        ends[0] = ends[0] or lowest
        ends[1] = ends[1] or highest
        row += 1
    return FINISHED, row, at


@njit(nogil=True, cache=True)
def _comment(text, at, documents, row):  # type: ignore[no-untyped-def]
    """Goes to the next line; notes what follows the first `docid =`."""
    searching = True
    while text[at] != NEWLINE:
        at += 1
        if searching and text[at] == 100 and text[at + 1] == 111 and text[at + 2] == 99:
            if text[at + 3] != 105 or text[at + 4] != 100:
                continue
            place = at + 5
            while text[place] == SPACE or text[place] == TAB:
                place += 1
            if text[place] != 61:  # =
                continue
            place += 1
            while text[place] == SPACE or text[place] == TAB:
                place += 1
            start = place
            while text[place] not in (SPACE, TAB, NEWLINE):
                place += 1
            if text[place] == NEWLINE and text[place - 1] == RETURN:
                place -= 1
            if place > start:
                documents[row, 0] = start
                documents[row, 1] = place
                searching = False
    return at + 1
