"""Most laws run operation by operation: compiling every loss for every shape would take minutes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest

import tfrankloss
from tests.laws.cases import Case


def pytest_make_parametrize_id(val: Any) -> str | None:
    """Failures are named after the case."""
    return val.identifier if isinstance(val, Case) else None


@pytest.fixture(autouse=True)
def without_xla() -> Iterator[None]:
    tfrankloss.config.disable_xla()
    yield
    tfrankloss.config.enable_xla()


@pytest.fixture
def with_xla(without_xla: None) -> None:
    tfrankloss.config.enable_xla()


@pytest.fixture(scope="module")
def jax_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """All cases on JAX, in a process that runs beside the tests of the module.

    Keras has one backend per process.
    """
    target = tmp_path_factory.mktemp("jax") / "results.npz"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.laws.jax_worker", str(target)],
        cwd=Path(__file__).parents[2],
        env={
            **os.environ,
            "KERAS_BACKEND": "jax",
            "JAX_PLATFORMS": "cpu",
            # Every program runs once: it is not worth the time to make it fast.
            "XLA_FLAGS": "--xla_backend_optimization_level=0",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    yield process, target
    if process.poll() is None:
        process.kill()
    process.wait()


@pytest.fixture(scope="module")
def jax_results(jax_process: Any) -> dict[str, Any]:
    """Arrays by name, as `jax_worker` wrote them."""
    process, target = jax_process
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    with np.load(target) as stored:
        return dict(stored)
