"""What `sample_weight` means, for every loss."""

import numpy as np
import pytest
import tensorflow as tf

from tests.laws import batches
from tests.laws.cases import CASES, FIRST_CASES, Case
from tests.laws.running import Result, assert_same, run, value_and_gradient
from tfrankloss import losses


@pytest.mark.parametrize("case", CASES)
def test_ones_and_zeros_for_documents(case: Case) -> None:
    """One batch: the lists with weights of 1, and again with weights of 0."""
    loss = case.build()
    batch = batches.distinct(loss.outputs)
    expected = run(loss, batch, weighted=False)
    twice = batch.rows([0, 1, 2, 0, 1, 2])
    twice.weights[:3] = np.where(batch.mask, 1.0, np.nan)
    twice.weights[3:] = np.where(batch.mask, 0.0, np.nan)
    result = run(loss, twice)
    assert_same(Result(result.values[:3], result.gradient[:3]), expected)
    if isinstance(loss, losses.CalibratedSoftmaxLoss):
        return  # its virtual document keeps its weight of 1
    assert np.all(result.values[3:] == 0)
    assert np.all(result.gradient[3:] == 0)


@pytest.mark.parametrize("case", FIRST_CASES)
def test_weights_of_lists(case: Case) -> None:
    loss = case.build()
    batch = batches.distinct(loss.outputs)
    labels, scores = tf.constant(batch.labels), tf.constant(batch.scores)
    expected = run(loss, batch, weighted=False)
    weights = np.array([2.0, 0.5, 3.0], dtype=np.float32)
    for shape in ((3,), (3, 1)):
        values, gradient = value_and_gradient(loss, labels, scores, weights.reshape(shape))
        np.testing.assert_allclose(values, weights * expected.values, rtol=1e-6)
        factors = weights.reshape((3,) + (1,) * (scores.ndim - 1))
        np.testing.assert_allclose(gradient, factors * expected.gradient, rtol=1e-6)
    mean = case.build("mean")(labels, scores, weights)
    np.testing.assert_allclose(mean, np.average(expected.values, weights=weights), rtol=1e-5)
    total = case.build("sum")(labels, scores, weights)
    np.testing.assert_allclose(total, (expected.values * weights).sum(), rtol=1e-5)


@pytest.mark.parametrize("case", FIRST_CASES)
def test_as_many_lists_as_documents(case: Case) -> None:
    """Weights `[batch]` are not spread along the list where both have the same size."""
    loss = case.build()
    batch = batches.distinct(loss.outputs).rows([0] * batches.WIDTH)
    weights = np.arange(1.0, batches.WIDTH + 1.0, dtype=np.float32)
    labels, scores = tf.constant(batch.labels), tf.constant(batch.scores)
    values, gradient = value_and_gradient(loss, labels, scores, weights)
    np.testing.assert_allclose(values, weights * values[0], rtol=1e-6)
    factors = weights.reshape((-1,) + (1,) * (scores.ndim - 1))
    np.testing.assert_allclose(gradient, factors * gradient[:1], rtol=1e-6)


def test_list_weights_of_zero_give_zero() -> None:
    loss = CASES[0].build("mean")
    batch = batches.distinct(1)
    labels, scores = tf.constant(batch.labels), tf.constant(batch.scores)
    values, gradient = value_and_gradient(loss, labels, scores, np.zeros(3, np.float32))
    assert values == 0
    assert np.all(gradient == 0)


def test_the_weight_of_an_empty_list_does_not_count() -> None:
    loss = CASES[0].build("mean")
    batch = batches.common(1).rows([0, 1, 6])
    assert not batch.mask[2].any()
    labels, scores = tf.constant(batch.labels), tf.constant(batch.scores)
    expected = loss(labels[:2], scores[:2], [1.0, 3.0])
    for weight in (5.0, np.nan):
        result = loss(labels, scores, np.array([1.0, 3.0, weight], np.float32))
        np.testing.assert_allclose(result, expected, rtol=1e-6)
