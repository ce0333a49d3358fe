"""Files that are there or not there, but never half."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def writing(target: str | os.PathLike[str]) -> Iterator[Path]:
    """A path beside the target to write to; it gets the target's name when all went well.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp(), "notes.txt")
    >>> with writing(target) as path:
    ...     _ = path.write_text("all of it")
    >>> target.read_text()
    'all of it'
    """
    target = Path(target)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"There is no folder to write to. Received: path={str(target)!r}")
    partial = target.with_name(f".{target.name}.{secrets.token_hex(8)}.partial")
    try:
        yield partial
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
