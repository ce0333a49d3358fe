"""The lists in record files: where each is, and pieces of the files in memory.

The index of a file says which of its bytes are the features, labels and weights of a list, so that
they are copied into the batch at once: from the file itself, which is mapped into memory, or from
bytes that were read, if it is not a local one. Checksums take as long as everything else together,
so that each record of a local file is compared with its own once, when it is first used.
"""

import functools
import io
import mmap
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from tfrankloss.data.batches import Rows
from tfrankloss.data.record_files import index_name

# About as many bytes are read at once.
CHUNK = 1 << 19
# Chunks of files that are not local which are read at the same time.
READERS = 8
# Files that are mapped at the same time: each needs a file descriptor.
MOST_MAPS = 128
FLOAT = np.dtype("<f4")


class File(NamedTuple):
    """What `Lists` needs of the entry of a record file in the schema."""

    name: str
    checksum: int  # of its index
    relevant: int  # lists with a relevant document, which come first


def open_lists(
    folder: str, files: Sequence[Mapping[str, Any]], num_features: int, only_relevant: bool
) -> "Lists":
    """The lists of record files; of the same files the same, also for the epochs of a training."""
    entries = (File(x["name"], x["checksum"], sum(x["relevant"].values())) for x in files)
    return _opened(folder, tuple(entries), num_features, only_relevant)


@functools.lru_cache(maxsize=4)
def _opened(
    folder: str, files: tuple[File, ...], num_features: int, only_relevant: bool
) -> "Lists":
    return Lists(folder, files, num_features, only_relevant)


class Lists:
    """All lists of record files, in the order of the files.

    Args:
        folder: where they are.
        files: which.
        num_features: number of features.
        only_relevant: whether to pass over lists without a label above 0.

    Attributes:
        index: a row of `record_files.INDEX` for each list.
        stretch: a number that is the same for lists which stand together in a file, all of them
            with a relevant document or all without; it grows with their place.
    """

    def __init__(
        self,
        folder: str,
        files: Sequence[File],
        num_features: int,
        only_relevant: bool,
    ) -> None:
        self._paths = [f"{folder}/{file.name}" for file in files]
        self._local = "://" not in folder
        self._num_features = num_features
        tables, stretches = [], []
        for number, file in enumerate(files):
            table = _read_index(f"{folder}/{index_name(file.name)}", file.checksum)
            table = table[: file.relevant] if only_relevant else table
            tables.append(table)
            stretches.append(2 * number + (np.arange(len(table)) >= file.relevant))
        self.index = np.concatenate(tables)
        self.stretch = np.concatenate(stretches)
        # Bytes that are in use keep their map, also when it is not among the last ones.
        self._map = functools.lru_cache(MOST_MAPS)(_map)
        self._checked = np.zeros(len(self.index), np.bool_)

    def __len__(self) -> int:
        return len(self.index)

    def read(self, first: int, last: int) -> Callable[[], memoryview]:
        """Begins to read what a file has from the first of these lists to the last one."""
        start = self.index["offset"].item(first)
        row = self.index[last]
        path, count = self._path(first), int(row["offset"]) + int(row["bytes"]) - start
        if not self._local:
            return _readers().submit(_read, path, start, count).result
        content = self._mapped(path, start, count)
        return lambda: content

    def _mapped(self, path: str, start: int, count: int) -> memoryview:
        """Bytes of a local file, which the system is asked to have at hand."""
        content = self._map(path)
        _check_end(path, start + count, len(content))
        if hasattr(mmap, "MADV_WILLNEED"):
            page = start - start % mmap.PAGESIZE
            content.madvise(mmap.MADV_WILLNEED, page, start + count - page)
        return memoryview(content)[start : start + count]

    def rows(self, number: int, entry: tuple[int, ...], content: memoryview, start: int) -> Rows:
        """The arrays of a list in what was read from the byte `start` on, without a copy.

        `entry` is its row of the index; taken one by one, these cost more than the rest.
        """
        offset, size, checksum, length, features, labels, weights = entry
        begin = offset - start
        if not self._checked[number]:
            if zlib.crc32(content[begin : begin + size]) != checksum:
                raise ValueError(
                    f"The record file {self._path(number)} is damaged: convert the data again"
                )
            self._checked[number] = self._local
        shape = (length, self._num_features)
        return (
            np.ndarray(shape, FLOAT, content, begin + features),
            np.ndarray(length, FLOAT, content, begin + labels),
            np.ndarray(length, FLOAT, content, begin + weights) if weights >= 0 else None,
        )

    def _path(self, number: int) -> str:
        return self._paths[self.stretch[number] // 2]

    def chunks(self, part: np.ndarray) -> np.ndarray:
        """The number of the chunk of each list: those of one `part` that are read at once."""
        place = self.index["offset"] // CHUNK
        new = (np.diff(part, prepend=-1) != 0) | (np.diff(place, prepend=-1) != 0)
        return np.cumsum(new) - 1


class Chunks:
    """Chunks of record files in memory, each until the last of its lists was taken.

    Args:
        lists: the lists.
        chunk: the chunk of each list, see `Lists.chunks`.
        used: the lists that will be taken.
    """

    def __init__(self, lists: Lists, chunk: np.ndarray, used: np.ndarray) -> None:
        self._lists = lists
        self._chunk = chunk
        self._first = np.flatnonzero(np.diff(chunk, prepend=-1, append=-1))
        self._used = np.bincount(chunk[used])
        self._lock = threading.Lock()
        self.begin()

    def begin(self) -> None:
        """Nothing is in memory, and nothing was taken."""
        with self._lock:
            self._left = self._used.tolist()
            self._held: dict[int, tuple[Callable[[], memoryview], list[tuple[int, ...]]]] = {}

    def load(self, numbers: np.ndarray) -> None:
        """Begins to read what is not there of these lists."""
        for chunk in dict.fromkeys(self._chunk[numbers].tolist()):
            first, end = self._first[chunk : chunk + 2].tolist()
            with self._lock:
                if chunk not in self._held:
                    self._held[chunk] = self._lists.read(first, end - 1), self._entries(first, end)

    def take(self, number: int) -> Rows:
        """The arrays of a list."""
        chunk = self._chunk.item(number)
        first = self._first.item(chunk)
        with self._lock:
            held = self._held.get(chunk)
            self._left[chunk] -= 1
            if self._left[chunk] <= 0:
                self._held.pop(chunk, None)
        if held is None:  # two iterations of one epoch at a time: the other one took it
            first = number
            held = self._lists.read(number, number), self._entries(number, number + 1)
        content, entries = held
        return self._lists.rows(number, entries[number - first], content(), entries[0][0])

    def _entries(self, first: int, end: int) -> list[tuple[int, ...]]:
        return self._lists.index[first:end].tolist()


@functools.cache
def _readers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(READERS, "records")


def _map(path: str) -> mmap.mmap:
    try:
        with open(path, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # of an empty file a ValueError
        raise OSError(f"The record file {path} cannot be read: {error}") from None


def _read(path: str, offset: int, count: int) -> memoryview:
    """Bytes of a file, wherever TensorFlow reads from."""
    import tensorflow as tf

    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            file.seek(offset)
            content = file.read(count)
    except tf.errors.OpError as error:
        raise OSError(f"The record file {path} cannot be read: {error.message}") from None
    _check_end(path, count, len(content))
    return memoryview(content)


def _check_end(path: str, wanted: int, found: int) -> None:
    if found < wanted:
        raise ValueError(f"The record file {path} is damaged: it ends too soon")


def _read_index(path: str, checksum: int) -> np.ndarray:
    import tensorflow as tf

    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            content = file.read()
    except tf.errors.OpError as error:
        raise OSError(f"The index {path} cannot be read: {error.message}") from None
    if zlib.crc32(content) != checksum:
        raise ValueError(f"The index {path} is damaged: convert the data again")
    return np.load(io.BytesIO(content))
