"""The lists in record files: where each is, and pieces of the files in memory.

The index of a file says which of its bytes are the features, labels and weights of a list, so that
they are copied from the bytes that were read into the batch at once.
"""

import io
import threading
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfrankloss.data.batches import Rows
from tfrankloss.data.record_files import index_name

# About as many bytes are read at once.
CHUNK = 1 << 19


class Lists:
    """All lists of record files, in the order of the files.

    Args:
        folder: where they are.
        files: their entries in the schema.
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
        files: Sequence[Mapping[str, Any]],
        num_features: int,
        only_relevant: bool = False,
    ) -> None:
        self._paths = [f"{folder}/{file['name']}" for file in files]
        self._num_features = num_features
        tables, stretches = [], []
        for number, file in enumerate(files):
            table = _read_index(f"{folder}/{index_name(file['name'])}", file["checksum"])
            relevant = sum(file["relevant"].values())  # they come first
            table = table[:relevant] if only_relevant else table
            tables.append(table)
            stretches.append(2 * number + (np.arange(len(table)) >= relevant))
        self.index = np.concatenate(tables)
        self.stretch = np.concatenate(stretches)

    def __len__(self) -> int:
        return len(self.index)

    def read(self, first: int, last: int) -> bytes:
        """What a file has from the first of these lists to the last one."""
        start = self.index["offset"].item(first)
        row = self.index[last]
        return _read(self._path(first), start, int(row["offset"]) + int(row["bytes"]) - start)

    def record(self, number: int, content: bytes, first: int) -> memoryview:
        """The record of a list in what `read` gave, after a check."""
        begin = self.index["offset"].item(number) - self.index["offset"].item(first)
        record = memoryview(content)[begin : begin + self.index["bytes"].item(number)]
        if zlib.crc32(record) != self.index["checksum"].item(number):
            raise ValueError(
                f"The record file {self._path(number)} is damaged: convert the data again"
            )
        return record

    def rows(self, number: int, record: memoryview) -> Rows:
        """The arrays of a list in its record, without a copy."""
        *_, length, features, labels, weights = self.index[number].item()
        shape = (length, self._num_features)
        return (
            np.ndarray(shape, "<f4", record, features),
            np.ndarray(length, "<f4", record, labels),
            np.ndarray(length, "<f4", record, weights) if weights >= 0 else None,
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
            self._held: dict[int, bytes] = {}

    def load(self, numbers: np.ndarray) -> None:
        """Reads what is not there of these lists."""
        for chunk in dict.fromkeys(self._chunk[numbers].tolist()):
            if chunk not in self._held:
                first, end = self._first[chunk : chunk + 2].tolist()
                self._held[chunk] = self._lists.read(first, end - 1)

    def take(self, number: int) -> Rows:
        """The arrays of a list."""
        chunk = self._chunk.item(number)
        first = self._first.item(chunk)
        with self._lock:
            content = self._held.get(chunk)
            self._left[chunk] -= 1
            if self._left[chunk] <= 0:
                self._held.pop(chunk, None)
        if content is None:  # two iterations of one epoch at a time: the other one took it
            first, content = number, self._lists.read(number, number)
        return self._lists.rows(number, self._lists.record(number, content, first))


def _read(path: str, offset: int, count: int) -> bytes:
    """Bytes of a file, wherever TensorFlow reads from."""
    import tensorflow as tf

    try:
        if "://" in path:
            with tf.io.gfile.GFile(path, "rb") as file:
                file.seek(offset)
                content = file.read(count)
        else:
            with open(path, "rb", buffering=0) as file:
                file.seek(offset)
                content = file.read(count)
    except (OSError, tf.errors.OpError) as error:
        raise OSError(f"The record file {path} cannot be read: {error}") from None
    if len(content) != count:
        raise ValueError(f"The record file {path} is damaged: it ends too soon")
    return content


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
