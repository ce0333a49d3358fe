"""What all workers share: one JSON object per line in, one per line out.

| request | reply |
|---|---|
| (start) | ``{"library", "versions"}`` |
| ``{"loss", "library", "batch", "width", "ragged", "xla", "seed"}`` | ``{"warm_up_seconds"}`` |
| ``{"run": repetitions, "xla"}`` | ``{"seconds": [...], "value"}``, the mean value over the runs |
| ``{"gradient": true, "xla"}`` | ``{"value", "gradient"}``, the gradient in base64, float32 |
| ``{"memory": true, "xla"}`` | ``{"extra_megabytes", "method"}`` of one more step |
| ``{"forget": true}`` | ``{}``; what was prepared is gone |

A worker keeps two steps, one with XLA around it and one without, of which ``xla`` chooses one.
Whatever fails is answered with ``{"error": reason}``. Text that a library prints goes to standard
error, so that it cannot break the protocol.
"""

import base64
import contextlib
import ctypes
import gc
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import numpy as np

from benchmarks.lists import Batch, Shape, make_batch
from benchmarks.registry import LOSSES

# Runs forward and gradient to the end and gives both back.
Step = Callable[[], tuple[Any, Any]]
# Makes a step from an expression of the registry, a batch, and whether XLA is wanted.
StepMaker = Callable[[str, Batch, bool], Step]
# The reply to a request.
Answer = Callable[[dict[str, Any]], dict[str, Any]]

MEMORY_LIMIT_VARIABLE = "BENCHMARK_MEMORY_LIMIT_GIGABYTES"
MEGABYTE = 2.0**20
# The numbers of these settings in glibc's malloc.h.
MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1


def reply_stream() -> TextIO:
    """Keeps the true standard output for replies and sends all other prints to standard error."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return replies


def _limit_memory() -> None:
    """Makes allocations fail instead of letting the machine run out of memory."""
    gigabytes = float(os.environ.get(MEMORY_LIMIT_VARIABLE, "0"))
    if gigabytes:
        limit = int(gigabytes * 2**30)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _status_megabytes(field: str) -> float:
    """One of the sizes in /proc/self/status, such as VmRSS."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(field))
    return int(line.split()[1]) / 1024


@contextlib.contextmanager
def _fresh_memory(step: Step) -> Iterator[None]:
    """Makes every larger array come fresh from the system instead of from what malloc has kept.

    Otherwise a step that is run again would seem to need no memory at all. One step with the new
    thresholds makes malloc give back what its threads have kept. Afterwards the thresholds are set
    to where they settle by themselves in glibc once large arrays were freed.
    """
    gc.collect()
    try:
        library = ctypes.CDLL(None)
        library.mallopt(MMAP_THRESHOLD, 2**16)
        library.mallopt(TRIM_THRESHOLD, 0)
        step()
        time.sleep(0.05)  # JAX frees its buffers a little after the step
        library.malloc_trim(0)
    except (AttributeError, OSError):  # another allocator
        yield
        return
    try:
        yield
    finally:
        library.mallopt(MMAP_THRESHOLD, 2**25)
        library.mallopt(TRIM_THRESHOLD, 2**26)


def measure_memory(step: Step) -> dict[str, Any]:
    """Growth of the peak resident size during one step, over the size just before it."""
    with _fresh_memory(step):
        try:
            return _growth_by_peak(step)
        except OSError:  # a system without /proc
            return _growth_by_maximum(step)


def _growth_by_peak(step: Step) -> dict[str, Any]:
    with open("/proc/self/clear_refs", "w") as peak:
        peak.write("5")  # resets VmHWM, the peak
    before = _status_megabytes("VmRSS")
    step()
    return {
        "extra_megabytes": max(0.0, _status_megabytes("VmHWM") - before),
        "method": "peak resident size of one warm step over the size before it",
    }


def _growth_by_maximum(step: Step) -> dict[str, Any]:
    unit = MEGABYTE if sys.platform == "darwin" else 1024.0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step()
    growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {
        "extra_megabytes": growth / unit,
        "method": "growth of the process's highest resident size, a lower bound",
    }


def _value_and_gradient(step: Step) -> tuple[float, np.ndarray]:
    value, gradient = step()
    return float(np.asarray(value)), np.asarray(gradient, dtype=np.float32)


class Server:
    """The state of one worker: the steps that were prepared, with XLA around them or without."""

    def __init__(self, make_step: StepMaker) -> None:
        self._make_step = make_step
        self._steps: dict[bool, Step] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply to one request."""
        if "loss" in request:
            return self._prepare(request)
        if "forget" in request:
            self._steps.clear()
            return {}
        step = self._steps.get(request.get("xla", True))
        if step is None:
            raise ValueError(f"A loss must be prepared first. Received: {request}")
        if "run" in request:
            return _run(step, int(request["run"]))
        if "gradient" in request:
            value, gradient = _value_and_gradient(step)
            encoded = base64.b64encode(gradient.tobytes()).decode("ascii")
            return {"value": value, "gradient": encoded}
        if "memory" in request:
            return measure_memory(step)
        raise ValueError(f"Unknown request. Received: {request}")

    def _prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        loss = LOSSES[request["loss"]]
        if not loss.has(request["library"]):
            raise ValueError(f"{request['library']} has no {request['loss']}.")
        formula = loss.formula(request["library"])
        shape = Shape(request["batch"], request["width"], request.get("ragged", False))
        batch = make_batch(shape, request.get("seed", 0), loss.labels, loss.outputs)
        xla = bool(request.get("xla", True))
        self._steps.pop(xla, None)  # frees the step before
        start = time.perf_counter()
        step = self._make_step(formula.expression, batch, xla)
        for _ in range(request.get("warm_up_steps", 2)):
            step()
        self._steps[xla] = step
        return {"warm_up_seconds": time.perf_counter() - start}


def _run(step: Step, repetitions: int) -> dict[str, Any]:
    seconds, values = [], []
    for _ in range(repetitions):
        start = time.perf_counter()
        value, _ = step()
        seconds.append(time.perf_counter() - start)
        values.append(float(np.asarray(value)))
    return {"seconds": seconds, "value": float(np.mean(values))}


def serve(library: str, start: Callable[[], tuple[StepMaker, dict[str, str]]]) -> None:
    """Answers requests for steps until standard input ends.

    ``start`` imports the library and gives the maker of steps and the versions in use.
    """

    def start_server() -> tuple[Answer, dict[str, str]]:
        make_step, versions = start()
        return Server(make_step).answer, versions

    serve_answers(library, start_server)


def serve_answers(library: str, start: Callable[[], tuple[Answer, dict[str, str]]]) -> None:
    """Answers requests of any kind until standard input ends.

    ``start`` imports the library and gives what answers a request, and the versions in use; it is
    called here so that an import that fails is reported like any other error.
    """
    replies = reply_stream()

    def reply(message: dict[str, Any]) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    _limit_memory()
    try:
        answer, versions = start()
    except Exception as error:
        traceback.print_exc()
        reply({"error": f"cannot be imported: {describe(error)}"})
        return
    reply({"library": library, "versions": versions})
    for line in sys.stdin:
        try:
            reply(answer(json.loads(line)))
        except Exception as error:
            traceback.print_exc()
            reply({"error": describe(error)})


def describe(error: Exception) -> str:
    """The kind of an error and the telling line of its message, at most 200 characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    # TensorFlow puts the traceback of a traced function in front of the message.
    telling = lines[-1] if lines[0] == "in user code:" else lines[0]
    return f"{type(error).__name__}: {telling}"[:200]
