"""The driver's side of the protocol: starts workers, asks them, and survives their end."""

import base64
import json
import os
import queue
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from benchmarks.environments import InstallationError, python_for, worker_module
from benchmarks.lists import Shape
from benchmarks.workers.protocol import MEMORY_LIMIT_VARIABLE

ROOT = Path(__file__).resolve().parent.parent
IMPORT_SECONDS = 300
# On processors for which TensorFlow turns oneDNN on, oneDNN's allocator keeps what it once had, and
# steps would seem to need no memory. Times are taken with it, because users have it.
SHOWN_MEMORY = {"TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1"}
SIGNS_OF_MEMORY = ("out of memory", "bad_alloc", "allocate memory", "memoryerror")


class WorkerError(RuntimeError):
    """A worker cannot do what it was asked; the message says why."""


class Worker:
    """One library in its own process. A worker that ended is started again by ``start``."""

    def __init__(
        self,
        library: str,
        memory_limit_gigabytes: float,
        time_limit: float,
        command: list[str] | None = None,
        environment: dict[str, str] | None = None,
        checkout: Path = ROOT,
    ) -> None:
        self.library = library
        self._checkout = checkout
        self._environment = environment or {}
        self._command = command or [worker_module(library)]
        self.versions: dict[str, str] = {}
        self._memory_limit = memory_limit_gigabytes
        self._time_limit = time_limit
        self._process: Any = None  # a Popen with pipes, while one runs
        self._lines: queue.Queue[str] = queue.Queue()
        self._errors: deque[str] = deque(maxlen=50)

    def start(self) -> None:
        """Starts the process if none is running, and waits until its library is imported."""
        if self._process is not None and self._process.poll() is None:
            return
        try:
            python = python_for(self.library)
        except InstallationError as error:
            raise WorkerError(str(error)) from error
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(self._checkout), os.environ.get("PYTHONPATH", "")]),
            "TF_CPP_MIN_LOG_LEVEL": "2",
            # Waiting threads of PyTorch sleep, so that they do not take the cores from others.
            "OMP_WAIT_POLICY": "PASSIVE",
            "CUDA_VISIBLE_DEVICES": "",
            "JAX_PLATFORMS": "cpu",
            MEMORY_LIMIT_VARIABLE: str(self._memory_limit),
            **self._environment,
        }
        self._process = subprocess.Popen(
            [python, "-m", *self._command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self._checkout,
            env=environment,
        )
        self._lines, self._errors = queue.Queue(), deque(maxlen=50)
        _forward(self._process.stdout, self._lines.put)
        _forward(self._process.stderr, self._errors.append)
        self.versions = self._reply(IMPORT_SECONDS)["versions"]

    def prepare(
        self, loss: str, shape: Shape, xla: bool, seed: int, warm_up_steps: int = 2
    ) -> dict[str, Any]:
        """Builds and warms up one loss on one batch."""
        self.start()
        return self.ask(
            {
                "loss": loss,
                "library": self.library,
                "batch": shape.batch,
                "width": shape.width,
                "ragged": shape.ragged,
                "xla": xla,
                "seed": seed,
                "warm_up_steps": warm_up_steps,
            }
        )

    def run(self, repetitions: int, xla: bool = True) -> dict[str, Any]:
        """Times of the prepared step in seconds, and the mean of its values."""
        return self.ask({"run": repetitions, "xla": xla})

    def gradient(self, xla: bool = True) -> tuple[float, np.ndarray]:
        """Value and gradient of the prepared step."""
        reply = self.ask({"gradient": True, "xla": xla})
        flat = np.frombuffer(base64.b64decode(reply["gradient"]), dtype=np.float32)
        return reply["value"], flat

    def memory(self, xla: bool = True) -> dict[str, Any]:
        """Peak extra memory of the prepared step."""
        return self.ask({"memory": True, "xla": xla})

    def forget(self) -> None:
        """Frees the prepared steps, if the process still runs."""
        if self._process is not None:
            self.ask({"forget": True})

    def stop(self) -> None:
        """Ends the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The worker's answer to a request."""
        if self._process is None:
            raise WorkerError("the worker has ended")
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise WorkerError(self._reason_of_end()) from error
        return self._reply(self._time_limit)

    def _reply(self, seconds: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            self.stop()
            raise WorkerError(f"no answer within {seconds:g} s") from None
        if not line:
            raise WorkerError(self._reason_of_end())
        reply = json.loads(line)
        if "error" in reply:
            raise WorkerError(self._plain_reason(reply["error"]))
        return reply

    def _reason_of_end(self) -> str:
        """Why the process ended: out of memory where that shows, otherwise its signal or status."""
        status = self._process.wait()
        self._process = None
        if status == -signal.SIGKILL:
            return self._plain_reason("out of memory")
        end = f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with {status}"
        return self._plain_reason("".join(self._errors), otherwise=end)

    def _plain_reason(self, text: str, otherwise: str = "") -> str:
        """The same few words for all the ways to run out of memory; other texts stay."""
        if any(sign in text.lower() for sign in SIGNS_OF_MEMORY):
            return f"out of memory (limit {self._memory_limit:g} GB)"
        return otherwise or text


def _forward(stream: TextIO, receive: Callable[[str], None]) -> None:
    """Hands over each line of a worker in the background, and an empty one at the end."""

    def forward() -> None:
        for line in stream:
            receive(line)
        receive("")

    threading.Thread(target=forward, daemon=True).start()
