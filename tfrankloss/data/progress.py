"""A line that shows how far a long reading is."""

import sys
import time
from types import TracebackType


class Progress:
    """Shows the share that is done and the speed on standard error, after the first second.

    Only where somebody looks: in a terminal or a notebook.

    Args:
        name: what is read.
        total: bytes in all.
        enabled: whether to show anything.
    """

    def __init__(self, name: str, total: int, enabled: bool) -> None:
        self._name, self._total = name, max(total, 1)
        self._enabled = enabled and (sys.stderr.isatty() or "ipykernel" in sys.modules)
        self._start = self._shown = time.monotonic()
        self._width = 0

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._width:
            print("\r" + " " * self._width + "\r", end="", file=sys.stderr, flush=True)

    def update(self, done: int) -> None:
        """Says how many bytes are read."""
        now = time.monotonic()
        if not self._enabled or now - self._start < 1.0 or now - self._shown < 0.2:
            return
        self._shown = now
        share = min(done / self._total, 1.0)
        left = (now - self._start) / max(share, 1e-9) * (1 - share)
        text = (
            f"{self._name}: {share:4.0%} of {self._total / 1e6:.0f} MB, "
            f"{done / (now - self._start) / 1e6:.0f} MB/s, {left:.0f} s left"
        )
        print("\r" + text.ljust(self._width), end="", file=sys.stderr, flush=True)
        self._width = max(self._width, len(text))
