"""Law 4: however a loss is run and however its lists come in, the numbers are the same."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.laws import batches
from tests.laws.batches import Batch
from tests.laws.cases import CASES, FIRST_CASES, PROGRAMS, Case, metric_under_all_rules
from tests.laws.jax_worker import PLATFORMS
from tests.laws.running import Result, as_numpy, assert_same, run, traced, value_and_gradient
from tfrankloss import config
from tfrankloss.metrics import METRICS

# Runs beside the other tests of this file, from the first one on.
pytestmark = pytest.mark.usefixtures("jax_process")

# XLA has exponentials and sums of its own.
XLA_TOLERANCE = 1e-4

# Tracing and compiling take seconds: every class, and the options that change the program most.
# (All options are compiled for JAX.)
OTHER_PATHS = ("pairwise_hinge", "ndcg_loss2_plus_plus", "unique_softmax")
COMPILED_CASES = [case for case in CASES if case.first or case in PROGRAMS]


@functools.cache
def reference(case: Case) -> tuple[Batch, Result]:
    """The common batch, run operation by operation. (XLA must be off.)"""
    loss = case.build()
    batch = batches.common(loss.outputs)
    return batch, run(loss, batch)


def run_traced(case: Case, batch: Batch, dynamic: bool, **options: bool) -> Result:
    loss = case.build()
    function = traced(loss, loss.outputs, dynamic, **options)
    return as_numpy(function(*(tf.constant(x) for x in batch)))


@pytest.mark.parametrize("case", CASES)
def test_the_common_batch_means_something(case: Case) -> None:
    """What the other ways are compared with has finite numbers, and no gradient in padding."""
    batch, result = reference(case)
    assert np.isfinite(result.values).all()
    assert np.isfinite(result.gradient).all()
    assert np.abs(result.values[:4]).min() > 0
    assert np.abs(result.gradient[:2]).max() > 0
    assert np.all(result.gradient[~batch.mask] == 0)
    assert np.all(result.values[~batch.mask.any(axis=1)] == 0)


@pytest.mark.parametrize("case", COMPILED_CASES)
def test_xla(case: Case, request: pytest.FixtureRequest) -> None:
    batch, expected = reference(case)
    request.getfixturevalue("with_xla")
    result = run(case.build(), batch)
    assert_same(result, expected, XLA_TOLERANCE)
    assert np.all(result.gradient[~batch.mask] == 0)


@pytest.mark.parametrize("case", CASES)
def test_plan_for_accelerators(case: Case) -> None:
    batch, expected = reference(case)
    with config.using_plan("accelerator"):
        # Other exponentials: on a CPU, 1 minus a sigmoid near 1 loses digits.
        assert_same(run(case.build(), batch), expected, XLA_TOLERANCE)


@pytest.mark.parametrize("case", COMPILED_CASES)
def test_plan_for_accelerators_with_xla(case: Case, request: pytest.FixtureRequest) -> None:
    batch, expected = reference(case)
    request.getfixturevalue("with_xla")
    with config.using_plan("accelerator"):
        assert_same(run(case.build(), batch), expected, XLA_TOLERANCE)


@pytest.mark.parametrize("case", PROGRAMS)
def test_function_of_static_shapes(case: Case) -> None:
    batch, expected = reference(case)
    assert_same(run_traced(case, batch, dynamic=False), expected)


@pytest.mark.parametrize("case", COMPILED_CASES)
def test_function_of_dynamic_shapes(case: Case) -> None:
    batch, expected = reference(case)
    assert_same(run_traced(case, batch, dynamic=True), expected)


@pytest.mark.parametrize("case", PROGRAMS[::4])
def test_compiled_function_of_static_shapes(case: Case, request: pytest.FixtureRequest) -> None:
    batch, expected = reference(case)
    request.getfixturevalue("with_xla")
    result = run_traced(case, batch, dynamic=False, jit_compile=True)
    assert_same(result, expected, XLA_TOLERANCE)


@pytest.mark.parametrize(
    "case",
    [
        *(pytest.param(case, marks=pytest.mark.slow) for case in PROGRAMS),
        *(case for case in FIRST_CASES if case.name in OTHER_PATHS),
    ],
)
def test_compiled_function_of_dynamic_shapes(case: Case, request: pytest.FixtureRequest) -> None:
    batch, expected = reference(case)
    request.getfixturevalue("with_xla")
    result = run_traced(case, batch, dynamic=True, jit_compile=True)
    assert_same(result, expected, XLA_TOLERANCE)


@pytest.mark.parametrize("dynamic", (False, True), ids=("static", "dynamic"))
def test_kernel_that_compiles_itself_inside_a_function(
    dynamic: bool, request: pytest.FixtureRequest
) -> None:
    case = PROGRAMS[1]
    batch, expected = reference(case)
    request.getfixturevalue("with_xla")
    assert_same(run_traced(case, batch, dynamic), expected, XLA_TOLERANCE)


@pytest.mark.parametrize("case", FIRST_CASES)
def test_ragged(case: Case) -> None:
    batch, expected = reference(case)
    lengths = batch.mask.sum(axis=1)
    labels, scores, weights = (tf.RaggedTensor.from_tensor(x, lengths) for x in batch)
    with tf.GradientTape() as tape:
        tape.watch(scores.flat_values)
        values = case.build()(labels, scores, weights)
    flat = tape.gradient(values, scores.flat_values)
    gradient = scores.with_flat_values(flat).to_tensor(shape=batch.scores.shape)
    assert_same(as_numpy((values, gradient)), expected)
    mixed = case.build()(labels, tf.constant(batch.scores), tf.constant(batch.weights))
    assert_same(Result(np.asarray(mixed), expected.gradient), expected)


@pytest.mark.parametrize("case", FIRST_CASES)
def test_masks(case: Case) -> None:
    """The same lists, where labels in padded places look like any other."""
    batch, expected = reference(case)
    labels = tf.constant(np.where(batch.mask, batch.labels, 3.0).astype("float32"))
    weights, mask = tf.constant(batch.weights), tf.constant(batch.mask)
    loss = case.build()

    explicit = value_and_gradient(
        loss, {"labels": labels, "mask": mask}, tf.constant(batch.scores), weights
    )
    assert_same(as_numpy(explicit), expected)

    scores = tf.constant(batch.scores)
    scores._keras_mask = mask
    assert_same(as_numpy(value_and_gradient(loss, labels, scores, weights)), expected)


def test_masks_meet() -> None:
    """A document counts only where every mask has it."""
    loss = CASES[0].build()
    scores = tf.constant([[0.3, 0.2, 0.5, 0.7]])
    scores._keras_mask = tf.constant([[True, False, True, True]])
    y_true = {"labels": [[1.0, 0.0, -1.0, 2.0]], "mask": [[True, True, True, False]]}
    np.testing.assert_allclose(loss(y_true, scores), loss([[1.0]], [[0.3]]))


@pytest.mark.parametrize("dtype", ("int32", "int64", "uint8", "float64"))
def test_types_of_labels(dtype: str) -> None:
    loss = CASES[0].build()
    labels, scores = np.array([[2, 0, 1]]), tf.constant([[0.3, 0.2, 0.5]])
    expected = loss(labels.astype("float32"), scores)
    np.testing.assert_array_equal(loss(labels.astype(dtype), scores), expected)


@pytest.mark.parametrize("case", FIRST_CASES)
def test_scores_with_a_last_dimension(case: Case) -> None:
    if case.build().outputs > 1:
        pytest.skip("several numbers per document")
    batch, expected = reference(case)
    wider = batch._replace(scores=batch.scores[:, :, None])
    result = run(case.build(), wider)
    assert_same(Result(result.values, result.gradient[:, :, 0]), expected)


@pytest.mark.parametrize("case", CASES)
def test_jax(case: Case, jax_results: dict[str, np.ndarray]) -> None:
    _, expected = reference(case)
    for way in ("jit", "accelerator", *(("direct",) if case in PROGRAMS else ())):
        prefix = f"{case.identifier}/{way}"
        assert f"{prefix}/error" not in jax_results, str(jax_results[f"{prefix}/error"])
        result = Result(jax_results[f"{prefix}/values"], jax_results[f"{prefix}/gradient"])
        assert_same(result, expected, XLA_TOLERANCE)


@pytest.mark.parametrize("case", CASES)
def test_lowers_for_all_platforms(case: Case, jax_results: dict[str, np.ndarray]) -> None:
    message = str(jax_results[f"{case.identifier}/export"])
    assert not message, f"Does not lower for {PLATFORMS}: {message}"


@pytest.mark.parametrize("name", METRICS)
def test_metrics_on_jax(name: str, jax_results: dict[str, np.ndarray]) -> None:
    assert f"{name}/error" not in jax_results, str(jax_results[f"{name}/error"])
    expected, _ = metric_under_all_rules(name).per_list(*batches.of_metric(name))
    np.testing.assert_allclose(jax_results[f"{name}/values"], expected, rtol=1e-5, atol=1e-6)
    message = str(jax_results[f"{name}/export"])
    assert not message, f"Does not lower for {PLATFORMS}: {message}"
