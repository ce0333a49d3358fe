"""One file with the features and the other arrays of ranking data, which is mapped into memory.

    magic | features, row by row | other arrays, each at a multiple of 64 | footer | end

The footer (JSON) names arrays, types, places and checksums. It comes last, so that features can be
written while they are parsed and their number need not be known; a file without its end is no file.
"""

import contextlib
import glob
import json
import os
import secrets
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

MAGIC = b"tfrankloss 1\n".ljust(64, b"\0")
END = struct.Struct("<QI4s")  # length of the footer, its checksum, four letters
LETTERS = b"tfrl"
ALIGNMENT = 64


class StorageError(ValueError):
    """A file is damaged, incomplete, or no file of `RankingData.save`."""


def _bytes(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data if array.nbytes else memoryview(b"")


class Writer:
    """Writes beside the target and renames at the end, so that no half is taken for a whole."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._partial = target.with_name(f".{target.name}.{secrets.token_hex(8)}.partial")
        if not target.parent.is_dir():
            raise FileNotFoundError(f"There is no folder to write to. Received: path={target}")
        self._file = open(self._partial, "xb")  # noqa: SIM115 (closed by __exit__)
        self._file.write(MAGIC)
        self._checksum = 0
        self._length = 0

    def __enter__(self) -> "Writer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        self._partial.unlink(missing_ok=True)

    def append(self, features: np.ndarray) -> None:
        """Writes further rows of float32 features."""
        data = _bytes(np.ascontiguousarray(features, np.float32))
        self._file.write(data)
        self._checksum = zlib.crc32(data, self._checksum)
        self._length += len(data)

    def rewrite(
        self, shape: tuple[int, int], pieces: Iterable[Callable[[np.ndarray], np.ndarray]]
    ) -> None:
        """Writes the features again: each piece is a function of all rows so far, of this shape."""
        self._file.flush()
        with open(self._partial, "rb") as before:  # stays readable when its name is gone
            self._file.close()
            self._partial.unlink()
            self._file = open(self._partial, "xb")  # noqa: SIM115
            self._file.write(MAGIC)
            self._checksum = self._length = 0
            rows = np.empty(shape, np.float32)
            if rows.size:
                rows = np.memmap(before, np.float32, "r", len(MAGIC), shape)
            for piece in pieces:
                self.append(piece(rows))

    def finish(self, arrays: Mapping[str, np.ndarray], details: Mapping[str, Any]) -> None:
        """Writes the other arrays and the footer, and gives the file its name."""
        entries = {
            "features": {
                "offset": len(MAGIC),
                "length": self._length,
                "type": "<f4",
                "checksum": self._checksum,
            }
        }
        for name, array in arrays.items():
            array = np.ascontiguousarray(array)
            if array.dtype.kind == "O":
                array = array.astype(str)
            self._file.write(b"\0" * (-self._file.tell() % ALIGNMENT))
            data = _bytes(array)
            entries[name] = {
                "offset": self._file.tell(),
                "length": len(data),
                "type": array.dtype.str,
                "checksum": zlib.crc32(data),
            }
            self._file.write(data)
        footer = json.dumps({"arrays": entries, "details": dict(details)}).encode()
        self._file.write(footer + END.pack(len(footer), zlib.crc32(footer), LETTERS))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._partial, self._target)


@contextlib.contextmanager
def locked(target: Path) -> Iterator[None]:
    """Only one process at a time is inside for a target; the lock of a killed one is gone."""
    try:
        import fcntl
    except ImportError:  # on Windows two processes may do the same work; a rename decides
        yield
        return
    lock = target.with_name(f".{target.name}.lock")
    with open(lock, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def remove_partial(target: Path) -> None:
    """Removes what killed processes left behind. Call it where the target is locked."""
    for path in target.parent.glob(f".{glob.escape(target.name)}.*.partial"):
        path.unlink(missing_ok=True)


def read_details(path: Path) -> dict[str, Any]:
    """The details of a file, without its arrays."""
    return _footer(path)["details"]


def _footer(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        if file.read(len(MAGIC)) != MAGIC:
            raise StorageError(f"{path}: this is not a file of RankingData.save")
        if size < len(MAGIC) + END.size:
            raise StorageError(f"{path}: the file is incomplete")
        file.seek(size - END.size)
        length, checksum, letters = END.unpack(file.read(END.size))
        start = size - END.size - length
        if letters != LETTERS or start < len(MAGIC):
            raise StorageError(f"{path}: the file is incomplete")
        file.seek(start)
        footer = file.read(length)
        if zlib.crc32(footer) != checksum:
            raise StorageError(f"{path}: the file is damaged (footer)")
    return json.loads(footer)


def read(path: Path, verify: bool = True) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays, mapped into memory, and the details of a file.

    Features come as one flat array.
    """
    footer = _footer(path)
    data = np.memmap(path, np.uint8, mode="r")
    arrays = {}
    for name, entry in footer["arrays"].items():
        part = data[entry["offset"] : entry["offset"] + entry["length"]]
        if verify and zlib.crc32(_bytes(part)) != entry["checksum"]:
            raise StorageError(f"{path}: the file is damaged ({name})")
        arrays[name] = part.view(entry["type"])
    return arrays, footer["details"]
