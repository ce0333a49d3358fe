"""The LETOR text format: what a line may be, its errors, and writing it.

    label qid:query index:value index:value ... # docid = document, and anything else

Labels and values are decimal numbers, indices whole numbers from 0 or from 1. Tokens are separated
by spaces or tabs; blank lines are passed over. `parse_line` is the definition: `kernel.py` is a
faster reader of the usual lines, and hands every other line over to it.
"""

import bz2
import gzip
import lzma
import math
import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tfrankloss.files import writing

if TYPE_CHECKING:
    from tfrankloss.data.ranking_data import RankingData

NUMBER = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
SPECIAL = re.compile(rb"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
# Single spaces, a query of plain letters, indices of few digits.
USUAL = re.compile(
    rb"([0-9]+(?:\.[0-9]+)?) qid:([!-\"$-~]+)"
    rb"((?: [0-9]{1,8}:-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?)*)[ ]*"
)
INDEX = re.compile(rb"[0-9]+")
TOKEN = re.compile(rb"[^ \t]+")
DOCUMENT = re.compile(rb"docid[ \t]*=[ \t]*([^ \t]+)")
# A higher index is more likely a broken line than a feature, unless `num_features` allows it.
MAX_INDEX = 100_000
SMALLEST_NORMAL = 1.2e-38  # of float32, and a little above
# Ids are held in arrays of strings, all as long as the longest.
LONGEST_ID = 256
# The largest float32, and where numbers are rounded to infinity.
LARGEST, OVERFLOW = 2.0**128 - 2.0**104, 2.0**128 - 2.0**103


class LetorFormatError(ValueError):
    """A line of a LETOR file that cannot be read.

    Attributes:
        path: the file.
        line: number of the line, from 1; 0 where the whole file is meant.
        column: the place of the token in the line, from 1.
        token: what stands there.
        expected: what should.
    """

    def __init__(self, path: str, line: int, column: int, token: str, expected: str) -> None:
        self.path, self.line, self.column = path, line, column
        self.token, self.expected = token, expected
        place = f"{path}, line {line}, column {column}: " if line else f"{path}: "
        super().__init__(f"{place}{expected}. Received: {token!r}")

    def __reduce__(self) -> tuple[type, tuple[str, int, int, str, str]]:
        return type(self), (self.path, self.line, self.column, self.token, self.expected)


class Row(NamedTuple):
    """What stands in a line."""

    label: float
    query: bytes | None
    indices: list[int]
    values: Sequence[float] | np.ndarray
    document: bytes


class Rules(NamedTuple):
    """What `parse_line` allows."""

    num_features: int | None = None
    allow_nonfinite: bool = False
    first_index: int | None = None

    @property
    def lowest(self) -> int:
        """The lowest index that may occur."""
        return self.first_index or 0

    @property
    def highest(self) -> int:
        """The highest index that may occur."""
        if self.num_features is None:
            return MAX_INDEX
        return self.num_features - 1 if self.first_index == 0 else self.num_features


class TokenError(Exception):
    """A token that may not stand there: its column, itself, and what is expected."""

    def __init__(self, column: int, token: bytes, expected: str) -> None:
        super().__init__(column, token, expected)
        self.column, self.token, self.expected = column, token, expected

    @property
    def shown(self) -> tuple[int, str, str]:
        """Column, token as text, and what is expected."""
        token = self.token if len(self.token) <= 60 else self.token[:57] + b"..."
        return self.column, token.decode("utf-8", "backslashreplace"), self.expected

    def at(self, path: str, line: int) -> LetorFormatError:
        """The error with its place."""
        return LetorFormatError(path, line, *self.shown)


def parse_line(line: bytes, rules: Rules) -> Row | None:
    """Reads one line without its line end; None for a blank one. Raises `TokenError`."""
    text, _, comment = line.partition(b"#")
    usual = USUAL.fullmatch(text)
    if usual:
        row = _usual_row(usual[1], usual[2], usual[3], comment, rules)
        if row is not None:
            return row
    tokens = [(match.start() + 1, match.group()) for match in TOKEN.finditer(text)]
    if not tokens:
        return None
    label = _number(*tokens[0], "a label, such as 2 or 0.5", allow_special=False)
    if label < 0:
        raise TokenError(*tokens[0], "labels must be at least 0 (lists are padded with -1)")
    rest = tokens[1:]
    query = None
    if rest and rest[0][1].startswith(b"qid:"):
        column, token = rest.pop(0)
        query = token[4:]
        if not query:
            raise TokenError(column, token, "a query id must follow qid:")
        if not _printable(query) or len(query) > LONGEST_ID:
            hint = f"a query id must be printable UTF-8 of at most {LONGEST_ID} bytes"
            raise TokenError(column, token, hint)
    indices: list[int] = []
    values: list[float] = []
    for column, token in rest:
        index, colon, value = token.partition(b":")
        if not colon or not INDEX.fullmatch(index):
            hint = "qid: stands behind the label" if index == b"qid" else "a feature, such as 3:0.5"
            raise TokenError(column, token, hint)
        indices.append(_index(column, token, index, rules))
        values.append(
            _number(column + len(index) + 1, value, "a number", rules.allow_nonfinite, token)
        )
    if len(set(indices)) < len(indices):
        seen: set[int] = set()
        for (column, token), number in zip(rest, indices, strict=True):
            if number in seen:
                raise TokenError(column, token, f"feature {number} stands twice in this line")
            seen.add(number)
    document = DOCUMENT.search(comment)
    name = document.group(1) if document else b""
    if document and len(name) > LONGEST_ID:
        column = len(text) + 2 + document.start(1)
        raise TokenError(column, name, f"a document id must have at most {LONGEST_ID} bytes")
    return Row(label, query, indices, values, name)


def _usual_row(
    label: bytes, query: bytes, features: bytes, comment: bytes, rules: Rules
) -> Row | None:
    """A line in which nothing is unusual, all numbers at once; or None."""
    parts = features.replace(b":", b" ").split()
    indices = list(map(int, parts[::2]))
    doubles = np.array([float(label), *map(float, parts[1::2])])
    with np.errstate(over="ignore"):
        values = doubles.astype(np.float32)
    sizes = np.abs(doubles)
    rest = doubles.view(np.int64) & 0x1FFFFFFF
    in_doubt = (rest == 0x10000000) | ((sizes < SMALLEST_NORMAL) & (sizes > 0)) | (sizes > 3.4e38)
    inside = not indices or (min(indices) >= rules.lowest and max(indices) <= rules.highest)
    if in_doubt.any() or not inside or len(set(indices)) < len(indices) or doubles[0] < 0:
        return None
    document = DOCUMENT.search(comment)
    name = document.group(1) if document else b""
    if len(name) > LONGEST_ID or len(query) > LONGEST_ID:
        return None
    return Row(float(values[0]), query, indices, values[1:], name)


def _printable(word: bytes) -> bool:
    try:
        return word.decode().isprintable()
    except UnicodeDecodeError:
        return False


def _index(column: int, token: bytes, digits: bytes, rules: Rules) -> int:
    digits = digits.lstrip(b"0") or b"0"
    index = int(digits) if len(digits) < 10 else 10**9
    if index > rules.highest:
        message = f"the index is beyond num_features={rules.num_features}"
        if rules.num_features is None:
            message = f"an index above {MAX_INDEX} needs num_features to be given"
        raise TokenError(column, token, message)
    if index < rules.lowest:
        raise TokenError(column, token, f"indices begin at first_index={rules.first_index}")
    return index


def _number(
    column: int, text: bytes, expected: str, allow_special: bool, token: bytes | None = None
) -> float:
    if NUMBER.fullmatch(text):
        value = to_float32(text)
        if math.isinf(value):
            raise TokenError(column, token or text, "the number does not fit float32")
        return value
    if SPECIAL.fullmatch(text):
        if allow_special:
            return float(text)
        hint = "" if token is None else " (allow_nonfinite=True takes NaN and infinity)"
        raise TokenError(column, token or text, f"a finite number is needed here{hint}")
    raise TokenError(column, token or text, f"{expected} is needed here")


def to_float32(text: bytes) -> float:
    """The decimal number, rounded once, to the nearest float32; infinite where it does not fit.

    Rounded to float64 first, a number may land in the middle of two float32 numbers and then be
    rounded to the wrong one; only there are all digits compared.
    """
    double = float(text)
    with np.errstate(over="ignore"):
        rounded = np.float32(double)
    nearest = float(rounded)
    if nearest == double or math.isinf(double):
        return nearest
    if math.isinf(nearest):
        other = math.copysign(LARGEST, double)
    else:
        other = float(np.nextafter(rounded, np.float32(math.copysign(np.inf, double - nearest))))
    overflow = math.isinf(nearest) or math.isinf(other)
    middle = math.copysign(OVERFLOW, double) if overflow else (nearest + other) / 2
    if double != middle:
        return nearest
    exact = Fraction(Decimal(text.decode()))
    beyond = exact - Fraction(middle)
    if beyond == 0:
        return nearest
    return max(nearest, other) if beyond > 0 else min(nearest, other)


COMPRESSED: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


def write_letor(data: "RankingData", path: Path, sparse: bool) -> None:
    """Writes ranking data as text: the shortest digits that give the same float32 again."""
    for name in ("query_ids", "document_ids"):
        words = getattr(data, name)
        for word in [] if words is None else words.astype(str).tolist():
            empty = name == "query_ids" and not word
            if empty or re.search(r"[\s#]", word) or len(word.encode()) > LONGEST_ID:
                raise ValueError(
                    f"{name} are written as words without spaces and '#', of at most {LONGEST_ID} "
                    f"bytes. Received: {word!r}"
                )
    if len(set(data.query_ids.tolist())) < len(data):
        raise ValueError(
            "In a file, a query id tells where a list ends: it may stand for one list only. "
            f"Received: {len(data)} lists of {len(set(data.query_ids.tolist()))} queries"
        )
    if data.weights is not None:
        raise ValueError(
            "The format has no place for weights: take save and open. Received: data with weights"
        )
    queries = data.query_ids.astype(str).tolist()
    suffix = path.suffix.lower()
    if suffix == ".zip":
        raise ValueError(f"Files are written as text, .gz, .bz2 or .xz. Received: path={path}")
    with writing(path) as partial, COMPRESSED.get(suffix, open)(partial, "wb") as file:
        for number, query in enumerate(queries):
            rows = slice(data.row_splits[number], data.row_splits[number + 1])
            documents = None if data.document_ids is None else data.document_ids[rows].tolist()
            lines = []
            for place, (label, values) in enumerate(
                zip(shortest(data.labels[rows]), data.features[rows], strict=True)
            ):
                # The last feature is always there: it tells how many there are.
                kept = values.view(np.int32) != 0 if sparse else np.ones(len(values), bool)
                kept[-1:] = True
                digits = shortest(values[kept])
                indices = (np.flatnonzero(kept) + 1).tolist()
                pairs = " ".join(f"{i}:{x}" for i, x in zip(indices, digits, strict=True))
                end = f" # docid = {documents[place]}" if documents and documents[place] else ""
                lines.append(f"{label} qid:{query} {pairs}{end}\n")
            file.write("".join(lines).encode())


def shortest(values: np.ndarray) -> list[str]:
    """The shortest decimal numbers that round to these float32 numbers; whole ones without `.0`."""
    return [x[:-2] if x.endswith(".0") else x for x in values.astype("U32").tolist()]
