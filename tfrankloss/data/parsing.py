"""From text to rows: blocks are parsed by several threads and put together in their order.

A block is about a megabyte that ends with a line. The compiled kernel runs without Python's lock,
and rows are appended to the cache file or to memory as they come, so that no more than the result
and a few blocks are ever held.
"""

import functools
import os
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from tfrankloss.data import storage
from tfrankloss.data.letor import LetorFormatError, Row, Rules, TokenError, parse_line
from tfrankloss.data.ranking_data import RankingData, group, splits_of
from tfrankloss.data.sources import PADDING, Source
from tfrankloss.progress import Progress

BLOCK = 1 << 20
# Numbers in the features of one chunk of rows.
CHUNK = 1 << 19
# Below this size compiled code would take longer to load than plain Python takes to read.
COMPILED_FROM = 1 << 19
SLOW_FROM = 1 << 25
MOST_THREADS = 8
SHORTEST_LINE = 2
NAMED_LINES = 5
WHOLE_NUMBER = re.compile(rb"0|-?[1-9][0-9]{0,17}")

Piece = Callable[[np.ndarray], np.ndarray]


class Options(NamedTuple):
    """The arguments of `load_letor` that decide what is read."""

    num_features: int | None = None
    on_error: str = "raise"
    missing_value: float = 0.0
    allow_nonfinite: bool = False
    first_index: int | None = None
    allow_empty: bool = False  # whether a file may be without documents

    @property
    def rules(self) -> Rules:
        """What a line may be."""
        return Rules(self.num_features, self.allow_nonfinite, self.first_index)


class Columns(NamedTuple):
    """Which features a file has."""

    first_index: int  # of the first column
    last_index: int  # of the last column
    last_used: bool  # whether that occurs


class Loaded(NamedTuple):
    """One file as it was read."""

    data: RankingData
    first_index: int  # of the first column
    last_used: bool  # whether the index of the last column occurs
    named: bool  # whether the file names its queries
    messages: Sequence[str]  # what a user should hear of it
    lines: int  # with blank and bad ones
    rejected: Sequence[Sequence[Any]]  # of each bad line: number, column, token, what is expected

    @property
    def columns(self) -> Columns:
        """Which features the file has."""
        last_index = self.first_index + self.data.num_features - 1
        return Columns(self.first_index, last_index, self.last_used)


class Sink(Protocol):
    """Where rows of features go."""

    digest: bool  # whether the source must be hashed

    def append(self, features: np.ndarray, expected_rows: int) -> None:
        """Adds rows; `expected_rows` is a guess of all there will be."""

    def rewrite(self, rows: int, pieces: Iterable[Piece]) -> None:
        """Makes the rows again: each piece is a function of all rows so far."""

    def finish(self, columns: Mapping[str, np.ndarray], details: Mapping[str, Any]) -> Any:
        """Takes the other arrays and ends."""


class Memory:
    """Rows of features in one array that grows."""

    digest = False

    def __init__(self) -> None:
        self._features = np.empty((0, 0), np.float32)
        self._rows = 0

    def append(self, features: np.ndarray, expected_rows: int) -> None:
        """Adds rows."""
        needed = self._rows + len(features)
        if not self._rows:
            # What is not written to takes no memory.
            self._features = np.empty((max(needed, expected_rows), features.shape[1]), np.float32)
        elif needed > len(self._features):
            self._features.resize((needed + needed // 8, features.shape[1]), refcheck=False)
        self._features[self._rows : needed] = features
        self._rows = needed

    def rewrite(self, rows: int, pieces: Iterable[Piece]) -> None:
        """Makes the rows again."""
        before = self._features[:rows]
        self._rows = 0
        for piece in pieces:
            self.append(piece(before), rows)

    def finish(self, columns: Mapping[str, np.ndarray], details: Mapping[str, Any]) -> Loaded:
        """The data."""
        self._features.resize((self._rows, details["num_features"]), refcheck=False)
        return loaded(RankingData(self._features, **columns), details)


class File:
    """Rows of features that go to a file: a cache, where the source is given, that is known by it.

    Without a source it is not hashed.
    """

    def __init__(self, writer: storage.Writer, source: Source | None = None) -> None:
        self._writer = writer
        self._source = source
        self._width = 0
        self.digest = source is not None

    def append(self, features: np.ndarray, expected_rows: int) -> None:
        """Adds rows."""
        self._writer.append(features)
        self._width = features.shape[1]

    def rewrite(self, rows: int, pieces: Iterable[Piece]) -> None:
        """Makes the rows again."""
        self._writer.rewrite((rows, self._width), pieces)

    def finish(self, columns: Mapping[str, np.ndarray], details: Mapping[str, Any]) -> None:
        """Completes the file."""
        known = {} if self._source is None else {"source": self._source.key()}
        self._writer.finish(columns, {**details, **known})


def loaded(data: RankingData, details: Mapping[str, Any]) -> Loaded:
    """A file from its data and the details that were noted when it was read."""
    names = ("first_index", "last_used", "named", "messages", "lines", "rejected")
    return Loaded(data, *(details[name] for name in names))


@dataclass
class _Block:
    """Rows of one block of text.

    A query is named at its first row only. Bad lines come with their number, how many lines with
    data stand before them, and what is wrong.
    """

    lines: int = 0
    rows: int = 0
    width: int = 0
    zero: bool = False  # whether the index 0 occurs
    last: bool = False  # whether the index of the last column occurs
    features: list[np.ndarray] = field(default_factory=list)
    labels: list[np.ndarray] = field(default_factory=list)
    queries: list[tuple[int, bytes | None]] = field(default_factory=list)
    documents: list[bytes] = field(default_factory=list)
    bad: list[tuple[int, int, TokenError]] = field(default_factory=list)


class _Parser:
    """Parses blocks, several at once.

    Args:
        options: what a line may be.
        compiled: whether to use the compiled kernel if it is there.
    """

    def __init__(self, options: Options, compiled: bool) -> None:
        self._options = options
        self._kernel = compiled_kernel() if compiled else None
        self.compiled = self._kernel is not None
        self._rules = options.rules
        # Columns are indices from 0. What one block sees, others need not find out again: a hint.
        self._width = 1 if options.num_features is None else self._rules.highest + 1
        self._named: bool | None = None  # whether lines have qid:, as the first good one decides
        self._spare: deque[np.ndarray] = deque()  # new memory costs more than to fill old
        self.spare_texts: deque[bytearray] = deque()

    def parse(self, text: bytearray, end: int) -> _Block:
        """All rows of a block, or those before the first error."""
        block = _Block()
        padded = np.frombuffer(text, np.uint8, end + PADDING)
        at, finished = 0, False
        while not finished:
            block.width = max(block.width, self._width)
            rows = max(1, min(end // SHORTEST_LINE, CHUNK // block.width))
            chunk = _Chunk(self._buffer(rows, block.width), self._options.missing_value)
            at, finished = self._fill(chunk, block, text, padded, at)
            chunk.add_to(block, text)
            block.width = max(block.width, chunk.width)
        self._width = max(self._width, block.width)
        self.spare_texts.append(text)
        return block

    def _buffer(self, rows: int, width: int) -> np.ndarray:
        try:
            while True:
                buffer = self._spare.pop()
                if buffer.shape == (rows, width):
                    return buffer
        except IndexError:  # there are no more
            return np.empty((rows, width), np.float32)

    def recycle(self, block: _Block) -> None:
        """Takes back the memory of a block that is not needed any more."""
        self._spare += [part.base for part in block.features if part.base is not None]

    def _fill(
        self, chunk: "_Chunk", block: _Block, text: bytearray, padded: np.ndarray, at: int
    ) -> tuple[int, bool]:
        """Fills the rows of a chunk; returns where it stopped and whether that is the end."""
        while True:
            # What the first good line is like, Python finds out.
            if self._kernel and self._named is not None and chunk.rows < chunk.capacity:
                chunk.rows, at, passed = self._kernel(
                    padded,
                    at,
                    chunk.rows,
                    self._rules.lowest,
                    self._named,
                    self._options.missing_value,
                    *chunk.arrays(),
                )
                block.lines += passed
            if at >= len(padded) - PADDING or chunk.rows == chunk.capacity:
                return at, at >= len(padded) - PADDING
            end = text.index(b"\n", at)
            line = bytes(text[at:end]).removesuffix(b"\r")
            chunk.features[chunk.rows] = self._options.missing_value
            try:
                row = parse_line(line, self._rules)
                if row is not None:
                    self._check_named(row)
                    chunk.put(row)
            except TokenError as error:
                before = block.rows + chunk.rows + len(block.bad)
                block.bad.append((block.lines + 1, before, error))
                if self._options.on_error == "raise":
                    return at, True
            at = end + 1
            block.lines += 1

    def _check_named(self, row: Row) -> None:
        named = row.query is not None
        if self._named is None:
            self._named = named
        if named != self._named:
            token = b"a line without qid:" if row.query is None else b"qid:" + row.query
            raise TokenError(1, token, "either all lines have qid: or none has")


class _Chunk:
    """Arrays for some rows, and what the kernel could not read into them."""

    def __init__(self, features: np.ndarray, missing_value: float) -> None:
        self.features = features
        self.capacity, width = features.shape
        self.width = width
        self.rows = 0
        self._missing_value = missing_value
        self._labels = np.empty(self.capacity, np.float32)
        self._queries = np.empty((self.capacity, 2), np.int64)
        self._documents = np.empty((self.capacity, 2), np.int64)
        self._seen = np.zeros(width, np.int64)
        self._ends = np.zeros(2, np.bool_)  # whether the first and the last index occur
        self._put: dict[int, Row] = {}  # rows that came from Python

    def arrays(self) -> tuple[np.ndarray, ...]:
        """What the kernel fills."""
        return (
            self.features,
            self._labels,
            self._queries,
            self._documents,
            self._seen,
            self._ends,
        )

    def put(self, row: Row) -> None:
        """Takes a row that Python has read."""
        width = max(row.indices, default=0) + 1
        if width > self.width:
            # The chunk is full with this row: the next one is made for this width.
            self.capacity = self.rows + 1
            extra = ((0, 0), (0, width - self.width))
            self.features = np.pad(
                self.features[: self.capacity], extra, constant_values=self._missing_value
            )
            self._ends[1] = False
            self.width = width
        self._ends |= [0 in row.indices, self.width - 1 in row.indices]
        self.features[self.rows, row.indices] = row.values
        self._labels[self.rows] = row.label
        self._put[self.rows] = row
        self.rows += 1

    def add_to(self, block: _Block, text: bytearray) -> None:
        """Appends the rows to a block."""
        starts = self._queries[: self.rows, 0]
        starts[list(self._put)] = 0
        for row in np.flatnonzero(starts != -2).tolist():
            if row in self._put:
                query = self._put[row].query
            else:
                start, end = self._queries[row].tolist()
                query = None if start < 0 else bytes(text[start:end])
            if not block.queries or block.queries[-1][1] != query:
                block.queries.append((block.rows + row, query))
        named = {row: x.document for row, x in self._put.items() if x.document}
        self._documents[list(self._put), 0] = -1
        for row in np.flatnonzero(self._documents[: self.rows, 0] >= 0).tolist():
            start, end = self._documents[row].tolist()
            named[row] = bytes(text[start:end])
        if named and not block.documents:
            block.documents = [b""] * block.rows
        if named or block.documents:
            block.documents += [named.get(row, b"") for row in range(self.rows)]
        block.zero, block.last = block.zero or self._ends[0], block.last or self._ends[1]
        block.features.append(self.features[: self.rows])
        block.labels.append(self._labels[: self.rows])
        block.rows += self.rows


def compiled_kernel() -> Callable[..., tuple[int, int, int]] | None:
    """The kernel, or None where Numba is not installed."""
    try:
        from tfrankloss.data import kernel
    except ImportError:
        return None
    return kernel.parse


def parse_source(source: Source, options: Options, sink: Sink, progress: bool) -> Any:
    """Reads a file into a sink and returns what that makes of it."""
    size = source.size()
    parser = _Parser(options, compiled=size >= COMPILED_FROM)
    assembly = _Assembly(source, options, sink)
    if size >= SLOW_FROM and not parser.compiled:
        assembly.messages.append(
            f"Plain Python reads the {size / 1e6:.0f} MB of {source.name}; compiled code takes a "
            'fiftieth of the time: pip install "tfrankloss[fast]"'
        )
    threads = min(_cores(), MOST_THREADS)
    waiting: deque[tuple[Future[_Block], int]] = deque()
    with (
        Progress(source.name, size / 1e6, "MB", progress) as bar,
        ThreadPoolExecutor(threads) as pool,
    ):

        def add(block: _Block, position: int) -> None:
            assembly.add(block, position / max(size, 1))
            parser.recycle(block)
            bar.update(position / 1e6)

        def add_next() -> None:
            future, position = waiting.popleft()
            add(future.result(), position)

        try:
            blocks = source.blocks(BLOCK, sink.digest, parser.spare_texts)
            for number, (text, end, position) in enumerate(blocks):
                if number == 0:  # alone: it tells the others what lines are like
                    add(parser.parse(text, end), position)
                    continue
                waiting.append((pool.submit(parser.parse, text, end), position))
                if len(waiting) > threads:
                    add_next()
            while waiting:
                add_next()
        finally:
            for future, _ in waiting:
                future.cancel()
    return assembly.finish()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Assembly:
    """Puts blocks together in their order."""

    def __init__(self, source: Source, options: Options, sink: Sink) -> None:
        self._source, self._options, self._sink = source, options, sink
        self._rows = self._lines = 0
        self._zero, self._last = options.first_index == 0, False
        self._width = 1  # with the column of index 0
        self._labels: list[np.ndarray] = []
        self._queries: list[bytes | None] = []
        self._query_rows: list[int] = []
        self._documents: list[bytes] = []
        self._bad: list[tuple[int, int, TokenError]] = []
        self.messages: list[str] = []  # what a user should hear

    def add(self, block: _Block, share: float) -> None:
        """Takes the next block, with which this share of the file is read."""
        if block.bad and self._options.on_error == "raise":
            line, _, bad = block.bad[0]
            raise bad.at(self._source.name, self._lines + line)
        before = self._rows + len(self._bad)
        self._bad += [(self._lines + line, before + row, bad) for line, row, bad in block.bad]
        self._lines += block.lines
        if not block.rows:
            return
        self._widen(block)
        expected = int((self._rows + block.rows) / max(share, 1e-9) * 1.02) + 1
        for features in block.features:
            self._sink.append(self._columns(features), expected)
        self._labels += block.labels
        for row, query in block.queries:
            if not self._queries or self._queries[-1] != query:
                self._queries.append(query)
                self._query_rows.append(self._rows + row)
        if block.documents:
            self._documents += [b""] * (self._rows - len(self._documents)) + block.documents
        self._rows += block.rows

    def _widen(self, block: _Block) -> None:
        """Adds the columns that this block has and earlier ones do not."""
        zero = self._zero
        before = (zero, self._width)
        self._zero, self._last = self._zero or block.zero, self._last or block.last
        self._width = max(block.width, self._width)
        if self._rows and (self._zero, self._width) != before:
            pieces = (self._widened(start, zero) for start in self._starts())
            self._sink.rewrite(self._rows, pieces)

    def _starts(self) -> range:
        return range(0, self._rows, max(1, CHUNK // self._width))

    def _widened(self, start: int, zero: bool) -> Callable[[np.ndarray], np.ndarray]:
        def piece(rows: np.ndarray) -> np.ndarray:
            rows = rows[start : start + self._starts().step]
            return self._columns(rows if zero else self._padded(rows, 1, 0))

        return piece

    def _padded(self, features: np.ndarray, before: int, after: int) -> np.ndarray:
        missing = self._options.missing_value
        return np.pad(features, ((0, 0), (before, after)), constant_values=missing)

    def _columns(self, features: np.ndarray) -> np.ndarray:
        """The columns that are kept, of features whose column is their index."""
        missing = self._width - features.shape[1]
        features = self._padded(features, 0, missing) if missing > 0 else features
        first = 0 if self._zero else 1
        return features[:, first : first + (self._options.num_features or self._width)]

    def finish(self) -> Any:
        """What the sink makes of all blocks."""
        name, messages = self._source.name, self.messages
        if self._bad:
            first = "; ".join(str(bad.at(name, line)) for line, _, bad in self._bad[:NAMED_LINES])
            messages.append(f"{len(self._bad)} lines of {name} were skipped, the first: {first}")
        if not self._rows and self._options.allow_empty:
            empty: dict[str, np.ndarray] = {
                "labels": np.empty(0, np.float32),
                "row_splits": np.zeros(1, np.int64),
                "query_ids": np.empty(0, np.int64),
            }
            return self._sink.finish(empty, self._details(0, True))
        if not self._rows:
            raise LetorFormatError(name, 0, 0, "".join(messages), "the file holds no documents")
        given = self._options.num_features
        if self._zero and self._last and given is not None and self._options.first_index is None:
            allowed = f"num_features={given} allows the indices 0 to {given - 1} or 1 to {given}"
            raise LetorFormatError(name, 0, 0, f"the indices 0 and {given}", allowed)
        labels = np.concatenate(self._labels)
        documents = None
        if self._documents:
            self._documents += [b""] * (self._rows - len(self._documents))
            documents = np.array([_document_name(x) for x in self._documents])
        if self._queries[0] is None:
            splits = splits_of(self._list_sizes())
            ids = np.arange(len(splits) - 1)
        else:
            lengths = np.diff([*self._query_rows, self._rows])
            runs = np.arange(len(lengths))
            numbers = {query: number for number, query in enumerate(dict.fromkeys(self._queries))}
            if len(numbers) < len(runs):
                runs = np.array([numbers[query] for query in self._queries])
                counts = Counter(self._queries)
                scattered = [x.decode() for x, count in counts.items() if x and count > 1]
                messages.append(
                    f"{name}: the lines of {len(scattered)} queries do not stand together, such as "
                    f"those of {scattered[0]!r}; they were regrouped"
                )
            order, splits, _ = group(np.repeat(runs, lengths))
            ids = query_names([query for query in numbers if query is not None])
            if order is not None:
                labels = labels[order]
                documents = None if documents is None else documents[order]
                step = self._starts().step
                self._sink.rewrite(
                    self._rows,
                    (
                        functools.partial(np.take, indices=order[start : start + step], axis=0)
                        for start in self._starts()
                    ),
                )
        columns = {"labels": labels, "row_splits": splits, "query_ids": ids}
        if documents is not None:
            columns["document_ids"] = documents
        width = self._options.num_features or self._width - (0 if self._zero else 1)
        return self._sink.finish(columns, self._details(width, self._queries[0] is not None))

    def _details(self, width: int, named: bool) -> dict[str, Any]:
        return {
            "num_features": width,
            "first_index": 0 if self._zero else 1,
            "last_used": bool(self._last),
            "named": named,
            "messages": self.messages,
            "lines": self._lines,
            "rejected": [[line, *bad.shown] for line, _, bad in self._bad],
        }

    def _list_sizes(self) -> np.ndarray:
        """The sizes of the lists from the file beside the source, without lines that were bad."""
        sizes = self._source.list_sizes()
        if sizes.sum() != self._rows + len(self._bad):
            raise LetorFormatError(
                self._source.name,
                0,
                0,
                f"{self._rows + len(self._bad)} documents",
                f"the sizes of the lists in the .query file add up to {sizes.sum()} documents",
            )
        lists = np.searchsorted(np.cumsum(sizes), [row for _, row, _ in self._bad], side="right")
        np.subtract.at(sizes, lists, 1)
        return sizes[sizes > 0]


def _document_name(name: bytes) -> str:
    """As text; what is no text is escaped, and so is the zero that NumPy would cut off."""
    return name.decode("utf-8", "backslashreplace").replace("\0", "\\x00")


def query_names(queries: list[bytes]) -> np.ndarray:
    """Query ids as whole numbers if all of them are, otherwise as strings."""
    if all(WHOLE_NUMBER.fullmatch(query) for query in queries):
        return np.array([int(query) for query in queries], np.int64)
    return np.array([query.decode() for query in queries])
