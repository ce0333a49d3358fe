"""The two plans of the engine: the same numbers from lists that need several blocks of pairs."""

import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.laws.cases import FIRST_CASES, Case
from tests.laws.running import Result, as_numpy, assert_same, traced, value_and_gradient
from tfrankloss import config, losses
from tfrankloss.core import backend, blocks

# Sums of hundreds of pairs in another order, with exponentials of another make.
TOLERANCE = 1e-4
# Beyond `LONG_LIST`, where rows are taken side by side if they can be: 144 is a multiple of four.
WIDTHS = (144, 131)


@pytest.fixture(autouse=True)
def without_xla() -> Iterator[None]:
    with config.without_xla():
        yield


def batch_of(width: int, outputs: int = 1) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Three lists of different lengths: labels, scores and weights."""
    generator = np.random.default_rng(width)
    labels = generator.choice(5, (3, width), p=(0.5, 0.3, 0.1, 0.07, 0.03)).astype("float32")
    labels[np.arange(width) >= [[width], [width - 20], [40]]] = -1
    shape = (3, width) if outputs == 1 else (3, width, outputs)
    scores = generator.normal(size=shape).astype("float32")
    weights = generator.uniform(0.5, 2.0, (3, width)).astype("float32")
    return tf.constant(labels), tf.constant(scores), tf.constant(weights)


def result_of(case: Case, plan: str, width: int) -> Result:
    loss = case.fresh(reduction="none")
    with config.using_plan(plan):
        return as_numpy(value_and_gradient(loss, *batch_of(width, loss.outputs)))


@pytest.mark.parametrize("case", FIRST_CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("width", WIDTHS)
def test_long_lists(case: Case, width: int) -> None:
    assert_same(result_of(case, "accelerator", width), result_of(case, "cpu", width), TOLERANCE)


@pytest.mark.parametrize("case", FIRST_CASES, ids=lambda case: case.name)
def test_several_blocks(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = result_of(case, "cpu", 144)
    # 64 rows at a time: the last of three blocks begins within the second one.
    monkeypatch.setattr(blocks, "PAIRS_AT_ONCE", 44 * 144 * 3)
    assert_same(result_of(case, "accelerator", 144), expected, TOLERANCE)


@pytest.mark.parametrize("name", ("approx_map", "list_mle", "unique_softmax"))
def test_several_blocks_with_rows_side_by_side(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in FIRST_CASES if case.name == name)
    expected = result_of(case, "cpu", 300)
    monkeypatch.setattr(blocks, "PAIRS_AT_ONCE", 152 * 300 * 3)
    assert_same(result_of(case, "accelerator", 300), expected, TOLERANCE)


@pytest.mark.parametrize("name", ("pairwise_logistic", "ndcg_loss2@5", "unique_softmax"))
def test_sizes_that_the_trace_does_not_know(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loss, arguments = losses.get(name, reduction="none"), batch_of(131)
    expected = as_numpy(value_and_gradient(loss, *arguments))
    monkeypatch.setattr(blocks, "PAIRS_AT_ONCE", 44 * 144 * 3)
    with config.using_plan("accelerator"):
        found = traced(loss, outputs=1, dynamic=True)(*arguments)
        assert_same(as_numpy(found), expected, TOLERANCE)
        config.enable_xla()
        found = traced(losses.get(name, reduction="none"), outputs=1, dynamic=True)(*arguments)
        assert_same(as_numpy(found), expected, TOLERANCE)


@pytest.mark.parametrize("rows", (1, 2, 4, None))
@pytest.mark.parametrize("topn", (2, 5, 200))
@pytest.mark.parametrize("width", (40, 144))
def test_cutoffs(topn: int, width: int, rows: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short lists visit all pairs, long ones those with a document within the cutoff."""
    arguments = batch_of(width)
    if rows is not None:
        monkeypatch.setattr(blocks, "PAIRS_AT_ONCE", rows * width * 3)
    for options in (
        {"identifier": "lambdarank"},
        {"identifier": "ndcg_loss2", "cutoff": "truncated"},
    ):
        loss = losses.get(**options, topn=topn, reduction="none")
        expected = as_numpy(value_and_gradient(loss, *arguments))
        with config.using_plan("accelerator"):
            assert_same(as_numpy(value_and_gradient(loss, *arguments)), expected, TOLERANCE)


def test_gains_that_do_not_grow_with_the_label() -> None:
    loss = losses.NDCGLoss2(gain=lambda labels: 3.0 * labels - labels**2 + 1.0, reduction="none")
    arguments = batch_of(40)
    expected = as_numpy(value_and_gradient(loss, *arguments))
    with config.using_plan("accelerator"):
        assert_same(as_numpy(value_and_gradient(loss, *arguments)), expected, TOLERANCE)


def test_the_plan_follows_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not backend.on_accelerator()
    devices = [SimpleNamespace(device_type="CPU"), SimpleNamespace(device_type="GPU")]
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda: devices)
    assert backend.on_accelerator()
    with config.using_plan("cpu"):
        assert not backend.on_accelerator()


def test_a_loss_follows_the_plan_between_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    sorts: list[int] = []
    sort_together = backend.sort_together

    def noted(*arrays: Any, keys: int = 1) -> Any:
        sorts.append(keys)
        return sort_together(*arrays, keys=keys)

    monkeypatch.setattr(backend, "sort_together", noted)
    loss = losses.LambdaRankLoss()
    loss([[1.0, 0.0]], [[0.2, 0.1]])
    assert not sorts
    with config.using_plan("accelerator"):
        loss([[1.0, 0.0]], [[0.2, 0.1]])
        found = len(sorts)
        assert found > 0
    loss([[1.0, 0.0]], [[0.2, 0.1]])
    assert len(sorts) == found


@pytest.mark.parametrize("plan", ("cpu", "accelerator"))
def test_a_batch_without_lists(plan: str) -> None:
    """As a replica may have it."""
    with config.using_plan(plan):
        for name in ("lambdarank", "ndcg_loss2@5", "approx_ndcg", "pairwise_logistic"):
            assert float(losses.get(name)(tf.zeros((0, 3)), tf.zeros((0, 3)))) == 0.0


def test_inside_of_a_function_that_autograph_translates(capfd: pytest.CaptureFixture[str]) -> None:
    loss = losses.PairwiseLogisticLoss()

    @tf.function
    def step(labels: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
        return loss(labels, scores)

    step(tf.constant([[1.0, 0.0]]), tf.constant([[0.2, 0.1]]))
    assert "AutoGraph" not in capfd.readouterr().err


def test_an_unknown_plan() -> None:
    with pytest.raises(ValueError, match="plan must be one of 'auto', 'cpu', 'accelerator'.*'gpu'"):
        config.set_plan("gpu")
    assert config.plan() == "auto"


def test_an_unknown_plan_in_the_environment() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import tfrankloss.config"],
        env={**_environment(), "TFRANKLOSS_PLAN": "tpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "The environment variable TFRANKLOSS_PLAN must be one of" in done.stderr


MEMORY = """
import resource, sys
import numpy as np, tensorflow as tf
import tfrankloss
from tfrankloss import losses

tfrankloss.config.set_plan(sys.argv[1])
loss = losses.get(sys.argv[2])
generator = np.random.default_rng(0)

def step(size):
    labels = tf.constant(generator.choice(5, (1, size)).astype("float32"))
    scores = tf.constant(generator.normal(size=(1, size)).astype("float32"))
    with tf.GradientTape() as tape:
        tape.watch(scores)
        value = loss(labels, scores)
    assert np.isfinite(value), value
    assert np.isfinite(tape.gradient(value, scores)).all()

step(64)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
step(20_000)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20)
"""


@pytest.mark.slow
@pytest.mark.parametrize("plan", ("cpu", "accelerator"))
@pytest.mark.parametrize(
    "name", ("pairwise_logistic", "ndcg_loss2@5", "unique_softmax", "approx_ndcg")
)
def test_memory_of_20_000_documents(name: str, plan: str) -> None:
    """Where pairs are not fused, as in the accelerators' plan on a CPU, a block of them is kept."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, plan, name],
        env=_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(done.stdout.split()[-1]) < 1.0  # gigabytes


def _environment() -> dict[str, Any]:
    import os

    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
