"""Switches that hold for the whole process.

On TensorFlow every loss compiles its kernel with XLA, because Keras does not do so by itself on a
CPU. Turn that off where XLA is missing or where a debugger should step through the operations:

>>> import tfrankloss
>>> tfrankloss.config.disable_xla()
>>> tfrankloss.config.xla_enabled()
False
>>> tfrankloss.config.enable_xla()

The environment variable ``TFRANKLOSS_XLA=0`` does the same for a process before it starts. On JAX
the switch decides whether a loss that is called outside ``jax.jit`` compiles its kernel.
"""

import contextlib
import os
from collections.abc import Iterator

__all__ = ["disable_xla", "enable_xla", "without_xla", "xla_enabled"]


def _from_environment(value: str) -> bool:
    allowed = {"0": False, "false": False, "1": True, "true": True}
    if value.lower() not in allowed:
        raise ValueError(
            f"The environment variable TFRANKLOSS_XLA must be 0 or 1. Received: {value!r}"
        )
    return allowed[value.lower()]


_xla = _from_environment(os.environ.get("TFRANKLOSS_XLA", "1"))


def xla_enabled() -> bool:
    """Whether losses compile their kernels with XLA."""
    return _xla


def enable_xla() -> None:
    """Compile the kernels of all losses with XLA (the default)."""
    global _xla
    _xla = True


def disable_xla() -> None:
    """Run the kernels of all losses operation by operation."""
    global _xla
    _xla = False


@contextlib.contextmanager
def without_xla() -> Iterator[None]:
    """Runs what is inside of the `with` operation by operation."""
    global _xla
    before, _xla = _xla, False
    try:
        yield
    finally:
        _xla = before
