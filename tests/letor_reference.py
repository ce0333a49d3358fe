"""A slow reader of the LETOR format, written from its description alone, and a mutator of files."""

import random
import re
from fractions import Fraction
from typing import Any

import numpy as np

LINE = re.compile(rb"(?P<label>[^ \t]+)(?P<rest>.*)", re.DOTALL)
DECIMAL = re.compile(r"([+-]?)(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d+))?", re.ASCII)


class LineError(Exception):
    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


def exact(text: str) -> tuple[bool, Fraction] | None:
    """Sign and size of a decimal number, or None where it is none."""
    match = DECIMAL.fullmatch(text)
    if not match or not (match[2] or match[3]):
        return None
    digits = int((match[2] or "") + (match[3] or ""))
    power = int(match[4] or 0) - len(match[3] or "")
    # Far outside of float32, whatever the digits: keep the numbers small.
    power = max(min(power, 200 + len(text)), -200 - len(text))
    return match[1] == "-", Fraction(digits) * Fraction(10) ** power


def nearest_float32(text: str) -> float | None:
    """Correctly rounded, ties to even; None for no number; infinite where it does not fit."""
    number = exact(text)
    if number is None:
        return None
    negative, size = number
    if size == 0:
        result = 0.0
    elif size >= Fraction(2) ** 128 - Fraction(2) ** 103:
        result = float("inf")
    else:
        bits = size.numerator.bit_length() - size.denominator.bit_length()
        power = max(-149, bits - 26)  # of the last bit
        while size / Fraction(2) ** power >= 2**24:
            power += 1
        result = float(round(size / Fraction(2) ** power) * Fraction(2) ** power)
    return -result if negative else result


def read(text: bytes, num_features: int | None = None, nonfinite: bool = False) -> dict[str, Any]:
    """What a file holds. Raises `LineError` with the number of the line, 0 for the whole file."""
    text = text.removeprefix(b"\xef\xbb\xbf")
    if text and not text.endswith(b"\n"):
        text += b"\n"
    rows = []
    for number, line in enumerate(text.split(b"\n")[:-1], start=1):
        line = line[:-1] if line.endswith(b"\r") else line
        data, _, comment = line.partition(b"#")
        tokens = [token for token in re.split(rb"[ \t]+", data) if token]
        if not tokens:
            continue
        row = _row(tokens, num_features, nonfinite)
        if row is None or (rows and (row[1] is None) != (rows[0][1] is None)):
            raise LineError(number)
        found = re.search(rb"docid[ \t]*=[ \t]*([^ \t]+)", comment)
        name = found[1].decode("utf-8", "backslashreplace") if found else ""
        rows.append((*row, name.replace("\0", "\\x00")))  # NumPy cuts zeros off
    if not rows or rows[0][1] is None:  # there is no file with the sizes of the lists
        raise LineError(0)
    indices = [index for row in rows for index in row[2]]
    first = 0 if 0 in indices else 1
    if num_features is not None and first == 0 and num_features in indices:
        raise LineError(0)
    width = num_features or max(indices, default=0) - first + 1
    queries: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        queries.setdefault(row[1], []).append(place)
    order = [place for places in queries.values() for place in places]
    features = np.zeros((len(rows), width), np.float32)
    for place, at in enumerate(order):
        for index, value in rows[at][2].items():
            features[place, index - first] = value
    documents = [rows[at][3] for at in order]
    return {
        "features": features,
        "labels": np.array([rows[at][0] for at in order], np.float32),
        "row_splits": np.cumsum([0, *map(len, queries.values())]),
        "query_ids": list(queries),
        "document_ids": documents if any(documents) else None,
    }


def _row(tokens: list[bytes], num_features: int | None, nonfinite: bool) -> Any:
    label = nearest_float32(tokens[0].decode("latin-1"))
    if label is None or label < 0 or np.isinf(label):
        return None
    query = None
    rest = tokens[1:]
    if rest and rest[0][:4] == b"qid:":
        try:
            query = rest[0][4:].decode()
        except UnicodeDecodeError:
            return None
        if not query or not query.isprintable():
            return None
        rest = rest[1:]
    values: dict[int, float] = {}
    for token in rest:
        index_text, colon, value_text = token.decode("latin-1").partition(":")
        if not colon or not re.fullmatch("[0-9]+", index_text):
            return None
        index = int(index_text)
        if index in values or index > (100_000 if num_features is None else num_features):
            return None
        value = nearest_float32(value_text)
        if value is None and nonfinite and re.fullmatch("(?i)[+-]?(nan|inf|infinity)", value_text):
            values[index] = float(value_text)
            continue
        if value is None or np.isinf(value):
            return None
        values[index] = value
    return label, query, values


ODD = [
    "nan",
    "inf",
    "-Infinity",
    "1e400",
    "1e39",
    "3.4028235677973366e38",
    "3.4028235677973367e38",
    "1e-46",
    "7.1e-46",
    "-0",
    "16777217",
    "16777219",
    "8388608.5",
    "1.00000005960464477539062500000000001",
    "0.1000000014901161193",
    "12345678901234567890123",
    "0x10",
    "1_0",
    ".5",
    "5.",
    "+3",
    "1e5",
    "1E-3",
    "1e",
    "1e+",
    ".",
    "-",
    "00012",
    "1.17549435e-38",
    "1e-39",
    "qid:",
    "qid:5",
    "qid:a",
    "qid:ü",
    "#",
    "#docid=x",
    ":5",
    "3:",
    "3:4",
    "3:4:5",
    "0:1",
    "200000:1",
    "007:1",
    "\r",
    "\x00",
    "\t",
    "\x0b",
    "1:1#x",
]


def valid_file(generator: random.Random) -> bytes:
    lines = []
    width = generator.randint(1, 6)
    first = generator.randint(0, 1)
    for query in range(generator.randint(1, 3)):
        for _ in range(generator.randint(1, 3)):
            indices = [i for i in range(first, width + first) if generator.random() < 0.8]
            if generator.random() < 0.2:
                generator.shuffle(indices)
            pairs = " ".join(f"{i}:{_value(generator)}" for i in indices)
            comment = generator.choice(["", "", " # docid = d7 inc = 1", "#docid=é", " # x"])
            lines.append(f"{generator.randint(0, 4)} qid:{query} {pairs}{comment}")
    end = generator.choice(["\n", "\n", "\r\n"])
    return (end.join(lines) + generator.choice(["", end])).encode()


def _value(generator: random.Random) -> str:
    number = generator.choice([0, 1, generator.random(), generator.gauss(0, 1e4)])
    return generator.choice(
        [str(number), f"{number:.6f}", f"{number:.3e}", f"{number:.17g}", str(int(number))]
    )


def mutate(text: bytes, generator: random.Random) -> bytes:
    for _ in range(generator.randint(1, 4)):
        place = generator.randint(0, len(text))
        kind = generator.randrange(7)
        if kind == 0:
            text = text[:place] + bytes([generator.randrange(256)]) + text[place:]
        elif kind == 1:
            text = text[:place] + text[place + generator.randint(1, 4) :]
        elif kind == 2:
            text = text[:place] + bytes([generator.randrange(256)]) + text[place + 1 :]
        elif kind == 3:
            text = (
                text[:place]
                + generator.choice(b"0123456789.:eE+-# \t\r\n").to_bytes(1, "big")
                + text[place:]
            )
        elif kind == 4:
            text = text[:place] + text[: generator.randint(0, 20)] + text[place:]
        else:
            spaces = [match.start() for match in re.finditer(rb"[ :]", text)] or [0]
            place = generator.choice(spaces)
            end = re.compile(rb"[ \n]|$").search(text, place + 1)
            odd = generator.choice(ODD).encode()
            text = text[: place + 1] + odd + text[end.start() if end else len(text) :]
    return text
