"""Reading LETOR files: blocks of text in, rows of features out, through a cache.

A block is some megabytes that end with a line. Blocks are parsed by as many threads as there are
cores (the compiled kernel runs without Python's lock) and appended in order, to the cache file or
to memory, so that no more than the result and a few blocks are ever held.
"""

import functools
import hashlib
import json
import os
import re
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfrankloss.data import storage
from tfrankloss.data.letor import LetorFormatError, Row, Rules, TokenError, parse_line
from tfrankloss.data.progress import Progress
from tfrankloss.data.ranking_data import RankingData, from_storage, group, splits_of
from tfrankloss.data.sources import PADDING, Source, find_sources
from tfrankloss.options import check_choice, check_integer

# Changes whenever the same file would be read as something else.
VERSION = 1
BLOCK = 1 << 22
# Numbers in the features of one chunk of rows.
CHUNK = 1 << 19
# Below this size compiled code would take longer to load than plain Python takes to read.
COMPILED_FROM = 1 << 22
SHORTEST_LINE = 2
NAMED_LINES = 5
WHOLE_NUMBER = re.compile(rb"0|[1-9][0-9]{0,17}")


class Options(NamedTuple):
    """The arguments of `load_letor` that decide what is read."""

    num_features: int | None
    on_error: str
    missing_value: float
    allow_nonfinite: bool

    @property
    def rules(self) -> Rules:
        """What a line may be."""
        return Rules(self.num_features, self.allow_nonfinite)


def load_letor(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    num_features: int | None = None,
    cache: bool | str | os.PathLike[str] = True,
    progress: bool = True,
    on_error: str = "raise",
    missing_value: float = 0.0,
    allow_nonfinite: bool = False,
) -> Any:
    """Reads LETOR files (SVMlight with query ids), such as MSLR-WEB30K, Yahoo's or Istella's.

    A line is `label qid:query index:value ... # docid = document`. Features may be missing and in
    any order; their indices count from 1, or from 0 if a 0 occurs. Files without `qid:` have the
    sizes of their lists, one per line, in a file of the same name with `.query` added.

    The first read writes a binary copy, which later ones map into memory instead of parsing. With
    the extra `fast` (Numba) parsing is some twenty times as fast.

    Args:
        path: a file, also `.gz`, `.bz2`, `.xz` or `.zip`; several files, which are read as one; or
            a folder (or a folder in a zip file, `data.zip/Fold1`) with `train.txt`, `vali.txt` and
            `test.txt`.
        num_features: number of features, by default the highest index.
        cache: whether to keep a binary copy beside the file; or a folder for the copies.
        progress: whether to show how far it is, if that takes more than a moment.
        on_error: `"raise"` a `LetorFormatError` for a line that cannot be read, or `"skip"` such
            lines with a warning that counts them and names the first.
        missing_value: the value of features that a line does not have.
        allow_nonfinite: whether features may be `nan` or `inf`.

    Returns:
        `RankingData`; for a folder a dictionary of them, by `"train"`, `"vali"` and `"test"`.

    >>> import pathlib, tempfile
    >>> file = pathlib.Path(tempfile.mkdtemp(), "train.txt")
    >>> _ = file.write_text("2 qid:7 1:0.5 3:1e-3 # docid = a\\n0 qid:7 2:4 # docid = b\\n")
    >>> data = load_letor(file)
    >>> data
    RankingData(1 queries, 2 documents, 3 features)
    >>> data.document_ids.tolist()
    ['a', 'b']
    """
    if num_features is not None:
        check_integer("num_features", num_features, minimum=1)
    check_choice("on_error", on_error, ("raise", "skip"))
    if not isinstance(missing_value, int | float) or isinstance(missing_value, bool):
        raise ValueError(f"missing_value must be a number. Received: {missing_value!r}")
    options = Options(num_features, on_error, float(missing_value), allow_nonfinite)

    sources = find_sources(path)
    parts = {
        name: [_load(source, options, cache, progress) for source in files]
        for name, files in sources.items()
    }
    loaded = [part for files in parts.values() for part in files]
    for message in [message for part in loaded for message in part.messages]:
        warnings.warn(message, stacklevel=2)
    first_index = min(part.first_index for part in loaded)
    width = num_features or max(part.last_index for part in loaded) - first_index + 1
    results = {
        name: _joined([part.aligned(first_index, width, options) for part in files])
        for name, files in parts.items()
    }
    return results[""] if list(results) == [""] else results


def _joined(parts: list[RankingData]) -> RankingData:
    if len(parts) == 1:
        return parts[0]
    with_ids = [part.document_ids is not None for part in parts]
    if any(with_ids) and not all(with_ids):
        parts = [_with_document_ids(part) for part in parts]
    data = RankingData.concat(parts)
    if len(set(data.query_ids.tolist())) == len(data):
        return data
    warnings.warn(
        "A query stands in more than one file; its documents were brought together.", stacklevel=2
    )
    return RankingData.from_arrays(
        data.features, data.labels, data.query_of_documents, data.document_ids
    )


def _with_document_ids(data: RankingData) -> RankingData:
    ids = np.full(data.num_documents, "") if data.document_ids is None else data.document_ids
    return RankingData(data.features, data.labels, data.row_splits, data.query_ids, ids)


class Loaded(NamedTuple):
    """One file, the index of its first column, and what a user should hear of it."""

    data: RankingData
    first_index: int
    messages: Sequence[str]

    @property
    def last_index(self) -> int:
        """The index of the last column."""
        return self.first_index + self.data.num_features - 1

    def aligned(self, first_index: int, width: int, options: Options) -> RankingData:
        """The data with the columns of all files that are read together."""
        if self.first_index == first_index and self.data.num_features == width:
            return self.data
        before = self.first_index - first_index
        after = width - before - self.data.num_features
        if after < 0:
            raise ValueError(
                f"One file counts features from 0 and another has the index {self.last_index}, "
                f"which is beyond num_features={options.num_features}"
            )

        def widen(features: np.ndarray) -> np.ndarray:
            return np.pad(
                features, ((0, 0), (before, after)), constant_values=options.missing_value
            )

        return self.data.map_features(widen)


def _load(source: Source, options: Options, cache: Any, progress: bool) -> Loaded:
    """One file, from its cache if that holds."""
    if cache is False:
        return _parse(source, options, _Memory(), progress)
    path = _cache_path(source, options, cache)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with storage.locked(path):
            cached = _open_cache(path, source)
            if cached is None:
                storage.remove_partial(path)
                with storage.Writer(path) as writer:
                    _parse(source, options, _File(writer, source), progress)
                cached = _open_cache(path, source)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not source.path.exists():
            raise
        warnings.warn(f"No cache is written to {path.parent}: {error}", stacklevel=2)
        return _parse(source, options, _Memory(), progress)
    if cached is None:  # the source changes while it is read
        return _parse(source, options, _Memory(), progress)
    return cached


def _cache_path(source: Source, options: Options, cache: Any) -> Path:
    key = json.dumps([VERSION, source.member, *options])
    folder = source.path.parent
    if cache is not True:
        folder = Path(cache)
        key += str(source.path.resolve())
    name = source.path.name + (f".{Path(source.member).name}" if source.member else "")
    return folder / f"{name}.{hashlib.sha1(key.encode()).hexdigest()[:8]}.cache"


def _open_cache(path: Path, source: Source) -> Loaded | None:
    """What the cache holds if it is of this very file and undamaged."""
    try:
        details = storage.read_details(path)
        if not source.matches(details["source"]):
            return None
        data = from_storage(storage.read(path))
    except FileNotFoundError:
        return None
    except (storage.StorageError, ValueError, KeyError, TypeError) as error:
        warnings.warn(f"The cache is made again: {error}", stacklevel=2)
        return None
    return Loaded(data, details["first_index"], details["messages"])


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
    first_line: int = 0  # the number of the first line with data
    mixed: tuple[int, bytes | None] | None = None  # the first line that has a query, or has none
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
        # Columns are indices from 0. What one block sees, the next need not find out again.
        self._width = 1 if options.num_features is None else options.num_features + 1
        self._spare: deque[np.ndarray] = deque()  # new memory costs more than to fill old

    def parse(self, text: bytearray) -> _Block:
        """All rows of a block, or those before the first error."""
        block = _Block()
        padded = np.frombuffer(text, np.uint8)
        at, finished = 0, False
        while not finished:
            rows = max(1, min(len(text) // SHORTEST_LINE, CHUNK // self._width))
            chunk = _Chunk(self._buffer(rows), self._options.missing_value)
            at, finished = self._fill(chunk, block, text, padded, at)
            chunk.add_to(block, text)
            self._width = max(self._width, chunk.width)
        block.width = self._width
        return block

    def _buffer(self, rows: int) -> np.ndarray:
        shape = (rows, self._width)
        while self._spare:
            buffer = self._spare.popleft()
            if buffer.shape == shape:
                return buffer
        return np.empty(shape, np.float32)

    def recycle(self, block: _Block) -> None:
        """Takes back the memory of a block that is not needed any more."""
        self._spare += [part.base for part in block.features if part.base is not None]

    def _fill(
        self, chunk: "_Chunk", block: _Block, text: bytearray, padded: np.ndarray, at: int
    ) -> tuple[int, bool]:
        """Fills the rows of a chunk; returns where it stopped and whether that is the end."""
        while True:
            if self._kernel is not None and chunk.rows < chunk.capacity:
                chunk.rows, at, passed = self._kernel(padded, at, chunk.rows, *chunk.arrays())
                block.lines += passed
            if at >= len(text) - PADDING or chunk.rows == chunk.capacity:
                return at, at >= len(text) - PADDING
            end = text.index(b"\n", at)
            line = bytes(text[at:end]).removesuffix(b"\r")
            chunk.features[chunk.rows] = self._options.missing_value
            try:
                row = parse_line(line, self._options.rules)
                if row is not None:
                    chunk.put(row, at)
            except TokenError as error:
                before = block.rows + chunk.rows + len(block.bad)
                block.bad.append((block.lines + 1, before, error))
                if self._options.on_error == "raise":
                    return at, True
            at = end + 1
            block.lines += 1


class _Chunk:
    """Arrays for some rows, and what the kernel could not read into them."""

    def __init__(self, features: np.ndarray, missing_value: float) -> None:
        features.fill(missing_value)
        self.features = features
        self.capacity, width = features.shape
        self.width = width
        self.rows = 0
        self._missing_value = missing_value
        self._labels = np.empty(self.capacity, np.float32)
        self._lines = np.empty(self.capacity, np.int64)
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
            self._lines,
            self._queries,
            self._documents,
            self._seen,
            self._ends,
        )

    def put(self, row: Row, line: int) -> None:
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
        self._lines[self.rows] = line
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
            if not block.queries:
                block.first_line = line_number(text, self._lines[row])
            elif block.mixed is None and (block.queries[0][1] is None) != (query is None):
                block.mixed = line_number(text, self._lines[row]), query
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


def line_number(text: bytearray, place: int) -> int:
    """The number of the line at a place, from 1."""
    return text.count(b"\n", 0, place) + 1


def compiled_kernel() -> Callable[..., tuple[int, int, int]] | None:
    """The kernel, or None where Numba is not installed."""
    try:
        from tfrankloss.data import kernel
    except ImportError:
        return None
    return kernel.parse


class _Memory:
    """Rows of features in one array that grows."""

    def __init__(self) -> None:
        self._features = np.empty((0, 0), np.float32)
        self._rows = 0

    def append(self, features: np.ndarray, expected_rows: int) -> None:
        """Adds rows; `expected_rows` is a guess of all there will be."""
        needed = self._rows + len(features)
        if not self._rows:
            # What is not written to takes no memory.
            self._features = np.empty((max(needed, expected_rows), features.shape[1]), np.float32)
        elif needed > len(self._features):
            self._features.resize((needed + needed // 8, features.shape[1]), refcheck=False)
        self._features[self._rows : needed] = features
        self._rows = needed

    def rewrite(self, pieces: Iterable[Callable[[np.ndarray], np.ndarray]]) -> None:
        """Makes the rows again: each piece is a function of all rows so far."""
        rows = self._features[: self._rows]
        self._features = np.concatenate([piece(rows) for piece in pieces])

    def finish(self, columns: Mapping[str, np.ndarray], details: Mapping[str, Any]) -> Loaded:
        """The data."""
        self._features.resize((self._rows, details["num_features"]), refcheck=False)
        data = RankingData(self._features, **columns)
        return Loaded(data, details["first_index"], details["messages"])


class _File:
    """Rows of features that go to the cache file."""

    def __init__(self, writer: storage.Writer, source: Source) -> None:
        self._writer = writer
        self._source = source
        self._width = 0

    def append(self, features: np.ndarray, expected_rows: int) -> None:
        """Adds rows."""
        self._writer.append(features)
        self._width = features.shape[1]

    def rewrite(self, pieces: Iterable[Callable[[np.ndarray], np.ndarray]]) -> None:
        """Makes the rows again: each piece is a function of all rows so far."""
        self._writer.rewrite(self._width, pieces)

    def finish(self, columns: Mapping[str, np.ndarray], details: Mapping[str, Any]) -> None:
        """Completes the file."""
        self._writer.finish(columns, {**details, "source": self._source.key()})


def _parse(source: Source, options: Options, sink: Any, progress: bool) -> Any:
    """Reads a file into a sink and returns what that makes of it."""
    size = source.size()
    parser = _Parser(options, compiled=size >= COMPILED_FROM)
    assembly = _Assembly(source, options, sink)
    threads = os.cpu_count() or 1
    waiting: deque[tuple[Future[_Block], int]] = deque()
    with Progress(source.name, size, progress) as bar, ThreadPoolExecutor(threads) as pool:

        def take() -> None:
            future, position = waiting.popleft()
            block = future.result()
            assembly.add(block, position / max(size, 1))
            parser.recycle(block)
            bar.update(position)

        try:
            for text, position in source.blocks(BLOCK, digest=isinstance(sink, _File)):
                if position == size and not waiting:  # no thread for a single block
                    assembly.add(parser.parse(text), 1.0)
                    continue
                waiting.append((pool.submit(parser.parse, text), position))
                if len(waiting) > threads:
                    take()
            while waiting:
                take()
        finally:
            for future, _ in waiting:
                future.cancel()
    return assembly.finish()


class _Assembly:
    """Puts blocks together in their order."""

    def __init__(self, source: Source, options: Options, sink: Any) -> None:
        self._source, self._options, self._sink = source, options, sink
        self._rows = self._lines = 0
        self._zero = self._last = False
        self._width = 1  # with the column of index 0
        self._labels: list[np.ndarray] = []
        self._queries: list[bytes | None] = []
        self._query_rows: list[int] = []
        self._documents: list[bytes] = []
        self._bad: list[tuple[int, int, TokenError]] = []

    def add(self, block: _Block, share: float) -> None:
        """Takes the next block, with which this share of the file is read."""
        self._raise_first_error(block)
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

    def _raise_first_error(self, block: _Block) -> None:
        """Raises for the first line that is bad, or that differs from others in having `qid:`."""
        mixed = block.mixed
        if self._queries and block.queries:
            query = block.queries[0][1]
            if (query is None) != (self._queries[0] is None):
                mixed = block.first_line, query
        errors = []
        if mixed is not None:
            line, query = mixed
            token = b"a line without qid:" if query is None else b"qid:" + query
            errors.append((line, TokenError(1, token, "either all lines have qid: or none has")))
        if self._options.on_error == "raise":
            errors += [(line, bad) for line, _, bad in block.bad]
        if errors:
            line, bad = min(errors, key=lambda error: error[0])
            raise bad.at(self._source.name, self._lines + line)

    def _widen(self, block: _Block) -> None:
        """Adds the columns that this block has and earlier ones do not."""
        zero = self._zero
        before = (zero, self._width)
        self._zero, self._last = self._zero or block.zero, self._last or block.last
        self._width = max(block.width, self._width)
        if self._rows and (self._zero, self._width) != before:
            self._sink.rewrite(self._widened(start, zero) for start in self._starts())

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
        name = self._source.name
        messages = []
        if self._bad:
            first = "; ".join(str(bad.at(name, line)) for line, _, bad in self._bad[:NAMED_LINES])
            messages.append(f"{len(self._bad)} lines of {name} were skipped, the first: {first}")
        if not self._rows:
            raise LetorFormatError(name, 0, 0, "".join(messages), "the file holds no documents")
        given = self._options.num_features
        if self._zero and self._last and given is not None:
            allowed = f"num_features={given} allows the indices 0 to {given - 1} or 1 to {given}"
            raise LetorFormatError(name, 0, 0, f"the indices 0 and {given}", allowed)
        labels = np.concatenate(self._labels)
        documents = None
        if self._documents:
            self._documents += [b""] * (self._rows - len(self._documents))
            documents = np.array([x.decode("utf-8", "backslashreplace") for x in self._documents])
        if self._queries[0] is None:
            splits = splits_of(self._list_sizes())
            ids = np.arange(len(splits) - 1)
        else:
            lengths = np.diff([*self._query_rows, self._rows])
            runs = np.arange(len(lengths))
            numbers = {query: number for number, query in enumerate(dict.fromkeys(self._queries))}
            if len(numbers) < len(runs):
                runs = np.array([numbers[query] for query in self._queries])
                messages.append(
                    f"{name}: the lines of a query do not stand together; they were regrouped"
                )
            order, splits, _ = group(np.repeat(runs, lengths))
            ids = query_names([query for query in numbers if query is not None])
            if order is not None:
                labels = labels[order]
                documents = None if documents is None else documents[order]
                step = self._starts().step
                self._sink.rewrite(
                    functools.partial(np.take, indices=order[start : start + step], axis=0)
                    for start in self._starts()
                )
        columns = {"labels": labels, "row_splits": splits, "query_ids": ids}
        if documents is not None:
            columns["document_ids"] = documents
        first_index = 0 if self._zero else 1
        width = self._options.num_features or self._width - first_index
        details = {"num_features": width, "first_index": first_index, "messages": messages}
        return self._sink.finish(columns, details)

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


def query_names(queries: list[bytes]) -> np.ndarray:
    """Query ids as whole numbers if all of them are, otherwise as strings."""
    if all(WHOLE_NUMBER.fullmatch(query) for query in queries):
        return np.array([int(query) for query in queries], np.int64)
    return np.array([query.decode() for query in queries])
