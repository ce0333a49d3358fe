"""Where LETOR text comes from: files, compressed files, archives, folders of splits."""

import bz2
import gzip
import hashlib
import lzma
import os
import re
import time
import zipfile
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from tfrankloss.data.letor import COMPRESSED, LetorFormatError

PathLike = str | os.PathLike[str]

SPLIT = re.compile(
    r"(?:.*[._-])?(train|vali|valid|validation|test)\.txt(?:\.gz|\.bz2|\.xz|\.zip)?", re.IGNORECASE
)
# A file that changed less than this before it was read may change again within the same tick.
TICK = 2_000_000_000
# Zero bytes behind a piece of text, so that a kernel may read sixteen bytes from any place in it.
PADDING = 16
# Bytes of the first piece, on which others may have to wait.
FIRST = 1 << 18
DAMAGED = (
    EOFError,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    NotImplementedError,  # a compression of zip that Python does not have
    RuntimeError,  # an encrypted zip file
)


@dataclass
class Source:
    """A file of text, or a member of a zip file.

    After `blocks` has been gone through, `key` tells what was read.
    """

    path: Path
    member: str = ""
    _key: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        """The name for messages."""
        return f"{self.path}/{self.member}" if self.member else str(self.path)

    def size(self) -> int:
        """Bytes to read, as `blocks` counts them."""
        if self.member:
            with zipfile.ZipFile(self.path) as archive:
                return archive.getinfo(self.member).file_size
        return self.path.stat().st_size

    def blocks(
        self, size: int, digest: bool = True, spare: deque[bytearray] | None = None
    ) -> Iterator[tuple[bytearray, int, int]]:
        """Pieces of text of at most `size` bytes: where each is, its end, how far the file is read.

        Each ends with a newline, behind which stand `PADDING` bytes. What the caller puts into
        `spare` is written over: new memory costs as much as the reading.
        """
        self._key = self._state()
        hashed = hashlib.sha1(usedforsecurity=False)
        spare = deque() if spare is None else spare
        try:
            with open(self.path, "rb") as file:
                stream = self._decompressed(file)
                rest = b""
                first = True
                while True:
                    # Read into place, behind what is left over: text is copied once. A line longer
                    # than a block is read in steps that grow.
                    room = max(min(size, FIRST) if first else size, 2 * len(rest))
                    text = _buffer(spare, room + PADDING)
                    text[: len(rest)] = rest
                    with memoryview(text)[len(rest) : room] as free:
                        count = stream.readinto(free)  # type: ignore[attr-defined]
                        if digest:
                            hashed.update(free[:count])
                    end = len(rest) + count
                    if first and text.startswith(b"\xef\xbb\xbf", 0, end):
                        del text[:3]
                        end -= 3
                    first = False
                    if not count:
                        break
                    cut = text.rfind(b"\n", 0, end) + 1
                    rest = bytes(text[cut:end])
                    if cut:
                        text[cut : cut + PADDING] = bytes(PADDING)
                        yield text, cut, stream.tell() if self.member else file.tell()
                if rest:
                    text = bytearray(rest + b"\n" + bytes(PADDING))
                    yield text, len(rest) + 1, self.size()
        except DAMAGED as error:
            raise self._damaged(error) from error
        except OSError as error:
            if error.errno is None:  # how bz2 reports damage
                raise self._damaged(error) from error
            raise
        if digest:
            self._key["digest"] = hashed.hexdigest()

    def _damaged(self, error: BaseException) -> LetorFormatError:
        return LetorFormatError(
            self.name, 0, 0, str(error), "the archive is truncated or damaged, or not of its kind"
        )

    def _decompressed(self, file: IO[bytes]) -> IO[bytes]:
        if self.member:
            return zipfile.ZipFile(file).open(self.member)
        if self.path.suffix.lower() == ".gz":
            return cast(IO[bytes], gzip.GzipFile(fileobj=file))
        if self.path.suffix.lower() == ".bz2":
            return bz2.BZ2File(file)
        if self.path.suffix.lower() == ".xz":
            return lzma.LZMAFile(file)
        return file

    def _state(self) -> dict[str, Any]:
        status = self.path.stat()
        sizes = self._sizes_path()
        text = b"" if sizes is None else sizes.read_bytes()
        return {
            "size": status.st_size,
            "time": status.st_mtime_ns,
            "changed": status.st_ctime_ns,
            "read": time.time_ns(),
            "list_sizes": hashlib.sha1(text, usedforsecurity=False).hexdigest(),
        }

    @property
    def was_hashed(self) -> bool:
        """Whether all of the text was read."""
        return self._key is not None and "digest" in self._key

    def key(self) -> dict[str, Any]:
        """What was read: size, time, digest."""
        assert self._key is not None and self.was_hashed
        return self._key

    def matches(self, key: Mapping[str, Any]) -> bool:
        """Whether the file still is what was read then.

        Its text is read again only where the time does not tell.
        """
        now = self._state()
        if any(now[name] != key[name] for name in ("size", "list_sizes")):
            return False
        same = all(now[name] == key[name] for name in ("time", "changed"))
        if same and max(now["time"], now["changed"]) < key["read"] - TICK:
            return True
        for _ in self.blocks(1 << 22):
            pass
        return self.key()["digest"] == key["digest"]

    def _sizes_path(self) -> Path | None:
        """The file beside this one with the sizes of its lists."""
        if self.member:
            return None
        names = [self.path]
        if self.path.suffix.lower() in COMPRESSED:
            names.append(self.path.with_suffix(""))
        paths = [name.with_name(f"{name.name}.query") for name in names]
        return next((path for path in paths if path.is_file()), None)

    def list_sizes(self) -> np.ndarray:
        """The sizes of the lists, one per line of the file beside this one."""
        path = self._sizes_path()
        if path is None:
            raise LetorFormatError(
                self.name,
                0,
                0,
                f"no file {self.path.name}.query",
                "lines without qid: need the sizes of the lists in a file of that name beside it",
            )
        sizes = []
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            if not line.strip():
                continue
            if not re.fullmatch(rb"[0-9]{1,12}", line.strip()) or int(line) < 1:
                shown = line.decode("utf-8", "backslashreplace")
                raise LetorFormatError(
                    str(path), number, 1, shown, "the size of a list, a whole number above 0"
                )
            sizes.append(int(line))
        return np.array(sizes, np.int64)


def find_sources(path: PathLike | Sequence[PathLike]) -> dict[str, list[Source]]:
    """The files behind a path, by name of the split; the name is empty where there is none."""
    if not isinstance(path, str | os.PathLike):
        paths = list(path)
        if not paths:
            raise ValueError("At least one file is needed. Received: an empty list")
        found = [find_sources(part) for part in paths]
        for part, sources in zip(paths, found, strict=True):
            if list(sources) != [""]:
                raise ValueError(f"In a list, paths must be of files. Received: folder {part}")
        return {"": [source for sources in found for source in sources[""]]}
    path = Path(path)
    if path.is_dir():
        names = sorted(entry.name for entry in path.iterdir() if entry.is_file())
        splits = _splits(str(path), names)
        return {split: find_sources(path / name)[""] for split, name in splits.items()}
    if path.is_file():
        return _in_zip(path, "") if path.suffix.lower() == ".zip" else {"": [Source(path)]}
    for parent in path.parents:
        if parent.suffix.lower() == ".zip" and parent.is_file():
            return _in_zip(parent, path.relative_to(parent).as_posix())
    raise FileNotFoundError(f"There is no such file or folder. Received: path={str(path)!r}")


def _buffer(spare: deque[bytearray], length: int) -> bytearray:
    """Memory of at least this length, of the spare one if that is long enough."""
    while spare:
        text = spare.pop()
        if len(text) >= length:
            return text
    return bytearray(length)


def _in_zip(path: Path, inside: str) -> dict[str, list[Source]]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = [x.filename for x in archive.infolist() if not x.is_dir()]
    except zipfile.BadZipFile as error:
        raise Source(path)._damaged(error) from error
    members = [x for x in members if not x.startswith("__MACOSX/")]
    if inside in members:
        return {"": [Source(path, inside)]}
    if not inside and len(members) == 1:
        return {"": [Source(path, members[0])]}
    prefix = f"{inside}/" if inside else ""
    direct = [x.removeprefix(prefix) for x in members if x.startswith(prefix)]
    direct = [x for x in direct if "/" not in x]
    if not direct:
        folders = sorted({str(Path(x).parent) for x in members})
        raise FileNotFoundError(
            f"The archive has no files at that place; name one of its folders, such as "
            f"{path}/{folders[0] if folders else ''}. Received: path={path}/{inside} of {folders}"
        )
    splits = _splits(f"{path}/{inside}", direct)
    return {split: [Source(path, prefix + name)] for split, name in splits.items()}


def _splits(folder: str, names: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names:
        match = SPLIT.fullmatch(name)
        if not match:
            continue
        split = match.group(1).lower()
        split = "vali" if split.startswith("vali") else split
        if split in found:
            raise ValueError(
                f"{folder} holds two files for {split!r}, {found[split]} and {name}: load the files"
                " themselves"
            )
        found[split] = name
    if not found:
        raise FileNotFoundError(
            "A folder must hold train.txt, vali.txt or test.txt, also compressed. "
            f"Received: {folder} with {list(names)[:10]}"
        )
    return {split: found[split] for split in ("train", "vali", "test") if split in found}
