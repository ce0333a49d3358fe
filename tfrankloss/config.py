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

The kernels come in two plans. ``"cpu"`` keeps a few rows of the pairs at a time in registers;
``"accelerator"`` reduces whole blocks of pairs, which the compilers for GPU and TPU fuse. By
default (``"auto"``) the plan follows the device: on JAX that for which the program is lowered, on
TensorFlow the devices that it sees. The numbers are the same, so either plan runs, and can be
tested, anywhere:

>>> with tfrankloss.config.using_plan("accelerator"):
...     tfrankloss.config.plan()
'accelerator'

The environment variable ``TFRANKLOSS_PLAN`` sets it for a process before it starts.
"""

import contextlib
import os
from collections.abc import Iterator

__all__ = [
    "PLANS",
    "disable_xla",
    "enable_xla",
    "plan",
    "set_plan",
    "using_plan",
    "without_xla",
    "xla_enabled",
]

PLANS = ("auto", "cpu", "accelerator")


def _from_environment(value: str) -> bool:
    allowed = {"0": False, "false": False, "1": True, "true": True}
    if value.lower() not in allowed:
        raise ValueError(
            f"The environment variable TFRANKLOSS_XLA must be 0 or 1. Received: {value!r}"
        )
    return allowed[value.lower()]


def _known_plan(name: str, value: str) -> str:
    if value not in PLANS:
        allowed = ", ".join(map(repr, PLANS))
        raise ValueError(f"{name} must be one of {allowed}. Received: {value!r}")
    return value


_xla = _from_environment(os.environ.get("TFRANKLOSS_XLA", "1"))
_plan = _known_plan(
    "The environment variable TFRANKLOSS_PLAN", os.environ.get("TFRANKLOSS_PLAN", "auto")
)


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


def plan() -> str:
    """The plan of the kernels: `"auto"`, `"cpu"` or `"accelerator"`."""
    return _plan


def set_plan(name: str) -> None:
    """Chooses the plan of the kernels; `"auto"` (the default) follows the device.

    A `fit` that is already traced keeps the plan it was traced with.
    """
    global _plan
    _plan = _known_plan("plan", name)


@contextlib.contextmanager
def using_plan(name: str) -> Iterator[None]:
    """Runs what is inside of the `with` by the given plan."""
    before = _plan
    set_plan(name)
    try:
        yield
    finally:
        set_plan(before)
