"""A line that shows how far long work is."""

import sys
import time
from collections.abc import Callable
from types import TracebackType


def printer(progress: bool | Callable[[str], None]) -> Callable[[str], None]:
    """What takes lines about the progress: `print`, nothing, or the function that was given."""
    if callable(progress):
        return progress
    return (lambda text: print(text, flush=True)) if progress else (lambda text: None)


class Progress:
    """Shows the share that is done and the speed on standard error, after the first second.

    Only where somebody looks: in a terminal or a notebook.

    Args:
        name: what is done.
        total: how much there is to do.
        unit: of what.
        enabled: whether to show anything.
    """

    def __init__(self, name: str, total: float, unit: str, enabled: bool) -> None:
        self._name, self._total, self._unit = name, max(total, 1e-9), unit
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

    def update(self, done: float) -> None:
        """Says how much is done."""
        now = time.monotonic()
        if not self._enabled or now - self._start < 1.0 or now - self._shown < 0.2:
            return
        self._shown = now
        share = min(done / self._total, 1.0)
        left = (now - self._start) / max(share, 1e-9) * (1 - share)
        text = (
            f"{self._name}: {share:4.0%} of {self._total:.0f} {self._unit}, "
            f"{done / (now - self._start):.3g} {self._unit}/s, {left:.0f} s left"
        )
        print("\r" + text.ljust(self._width), end="", file=sys.stderr, flush=True)
        self._width = max(self._width, len(text))
