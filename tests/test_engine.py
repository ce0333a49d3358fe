"""The fast paths of the engine, which short lists in float64 do not take, against the oracles.

Lists of 37 and 21 documents in float32, not padded to a round size: rows are written out and filled
up, logarithms are polynomials or of products, exponentials are products of powers; and with scores
far apart, none of these.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tests import oracles
from tests.test_losses import (
    Case,
    _central_difference,
    case,
    lambdarank,
    ndcg_loss1,
    ndcg_loss2,
    ndcg_loss2_plus_plus,
    value_and_gradient,
)
from tfrankloss import losses
from tfrankloss.core import blocks, hinge, lists, pairs, ranks


def slow(parameters: Any) -> Any:
    """A case that takes long to compile."""
    return pytest.param(*parameters.values, id=parameters.id, marks=pytest.mark.slow)


WIDTH = 37
CASES = [
    case(losses.PairwiseHingeLoss, oracles.pairwise_hinge, sigma=0.7),
    case(losses.PairwiseExponentialLoss, oracles.pairwise_exponential, sigma=0.7),
    case(losses.PairwiseLogisticLoss, oracles.pairwise_logistic),
    case(losses.PairwiseSoftZeroOneLoss, oracles.pairwise_soft_zero_one),
    case(losses.UniqueSoftmaxLoss, oracles.unique_softmax),
    case(losses.ListMLELoss, oracles.list_mle),
    case(losses.ApproxNDCGLoss, oracles.approx_ndcg, temperature=0.3, topn=3),
    case(losses.LambdaRankLoss, lambdarank, topn=20),
    slow(case(losses.LambdaRankLoss, lambdarank, metric="mrr")),
    slow(case(losses.LambdaRankLoss, lambdarank, metric="map", topn=4)),
    slow(case(losses.LambdaRankLoss, lambdarank, metric="err", topn=4)),
    slow(case(losses.NDCGLoss1, ndcg_loss1, topn=5)),
    case(losses.NDCGLoss2, ndcg_loss2, topn=5),
    slow(case(losses.NDCGLoss2, ndcg_loss2, topn=5, cutoff="truncated")),
    slow(case(losses.NDCGLoss2PlusPlus, ndcg_loss2_plus_plus, topn=20)),
]


def make_batch(spread: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(11)
    labels = generator.integers(0, 5, (2, WIDTH)).astype("float32")
    labels[1, 21:] = -1
    scores = (spread * generator.normal(size=labels.shape)).astype("float32")
    scores[1, 21:] = np.nan
    return labels, scores, generator.uniform(0.5, 2.0, labels.shape).astype("float32")


@pytest.mark.parametrize("case", CASES)
def test_long_lists_in_float32(case: Case) -> None:
    step = static_step(case.loss)
    assert_equals_oracle(case, step, *make_batch(1.0))
    labels, scores, weights = make_batch(60.0)
    if not isinstance(case.loss, losses.ApproxNDCGLoss):
        assert_equals_oracle(case, step, labels, scores, weights)
        return
    for far, offset in ((200.0, 0.0), (2000.0, 0.0), (2000.0, 1000.0)):
        # Soft ranks of scores so far apart are steps: one document far away is enough.
        scores = make_batch(1.0)[1] + np.float32(offset)
        scores[:, 3] += far
        assert_equals_oracle(case, step, labels, scores, weights)


def static_step(loss: losses.RankingLoss) -> Callable[..., Any]:
    """Value and gradient in a program of the given shapes, where nothing pads the lists."""

    @tf.function(input_signature=[tf.TensorSpec([2, WIDTH])] * 3)
    def step(labels: Any, scores: Any, weights: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(scores)
            values = loss(labels, scores, weights)
        return values, tape.gradient(values, scores)

    return step


def assert_equals_oracle(
    case: Case,
    step: Callable[..., Any],
    labels: np.ndarray,
    scores: np.ndarray,
    weights: np.ndarray,
) -> None:
    values, gradient = (x.numpy() for x in step(labels, scores, weights))
    for row in range(len(labels)):
        real = labels[row] >= 0
        mine, given_weights = labels[row, real].astype(float), weights[row, real].astype(float)
        own = scores[row, real].astype(float)
        options = dict(case.options)
        if isinstance(case.loss, losses.lambdas.RankWeightedLoss):
            options["order_scores"] = own

        def oracle(x, mine=mine, given_weights=given_weights, options=options) -> float:
            return case.oracle(x, mine, given_weights, **options)

        np.testing.assert_allclose(values[row], oracle(own), rtol=5e-6, atol=1e-9)
        slopes = _central_difference(oracle, own)
        largest = np.abs(slopes).max()
        np.testing.assert_allclose(
            gradient[row, real], slopes, rtol=2e-4, atol=1e-5 * largest + 1e-9
        )
        assert np.all(gradient[row, ~real] == 0)


def ordered_numpy(keys: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return np.argsort(np.where(mask, -keys, np.inf), axis=1, kind="stable")


@settings(max_examples=30, deadline=None)
@given(
    keys=npst.arrays(
        "float64", (3, 7), elements=st.sampled_from([-1e30, -2.5, -2.0, -0.0, 0.0, 0.5, 1e30])
    ),
    mask=npst.arrays(bool, (3, 7)),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_orders_by_counting_and_by_sorting(keys: np.ndarray, mask: np.ndarray, dtype: str) -> None:
    keys = keys.astype(dtype)
    expected = ordered_numpy(keys, mask)
    by_counting = ranks.descending(tf.constant(keys), tf.constant(mask))
    by_sorting = ranks.ascending(-tf.constant(keys), tf.constant(mask))
    for order in (by_counting, by_sorting):
        np.testing.assert_array_equal(order.indices, expected)
        np.testing.assert_array_equal(order.positions, np.argsort(expected, axis=1))
        np.testing.assert_array_equal(order.unsort(order.sort(tf.constant(keys))), keys)


def test_order_of_rows_written_out() -> None:
    keys = np.random.default_rng(0).integers(0, 9, (2, 50)).astype("float32")
    mask = np.arange(50)[None, :] < [[50], [31]]
    order = ranks.descending(tf.constant(keys), tf.constant(mask))
    np.testing.assert_array_equal(order.indices, ordered_numpy(keys, mask))


@settings(max_examples=30, deadline=None)
@given(
    sigma=st.sampled_from([1.0, 0.5, 2.0]),
    labels=npst.arrays(
        "float64", (2, 9), elements=st.sampled_from([-1.0, 0.0, 1.0, 2.5, 3.0, 7.0])
    ),
    scores=npst.arrays("float64", (2, 9), elements=st.integers(-8, 8).map(lambda x: x / 2)),
    weights=npst.arrays("float64", (2, 9), elements=st.sampled_from([0.0, 1.0, 2.5])),
)
def test_hinge_by_sorting(
    sigma: float, labels: np.ndarray, scores: np.ndarray, weights: np.ndarray
) -> None:
    mask = labels >= 0
    documents = blocks.Documents(
        score=tf.constant(np.where(mask, scores, 0.0)),
        label=tf.constant(labels),
        mask=tf.constant(mask),
        weight=tf.constant(weights),
    )
    values, gradient = hinge.hinge_sums(documents, sigma)
    for row, real in enumerate(mask):
        s, y, w = scores[row, real], labels[row, real], weights[row, real]
        z = sigma * (s[:, None] - s[None, :])
        counts = np.where((y[:, None] > y[None, :]) & (z < 1), w[:, None], 0.0)
        np.testing.assert_allclose(values[row], (counts * (1 - z)).sum(), atol=1e-9)
        expected = sigma * (counts.sum(axis=0) - counts.sum(axis=1))
        np.testing.assert_allclose(gradient.numpy()[row, real], expected, atol=1e-9)


def test_hinge_of_a_long_list_is_the_same_by_sorting_and_by_pairs(monkeypatch) -> None:
    generator = np.random.default_rng(3)
    labels = generator.choice(5, (1, 600)).astype("float32")
    scores = generator.normal(size=(1, 600)).astype("float32")
    by_pairs = value_and_gradient(losses.PairwiseHingeLoss(), labels, scores, None)
    monkeypatch.setattr(hinge, "SORTED_LIST", 100)
    by_sorting = value_and_gradient(losses.PairwiseHingeLoss(), labels, scores, None)
    np.testing.assert_allclose(by_sorting[0], by_pairs[0], rtol=1e-6)
    np.testing.assert_allclose(by_sorting[1], by_pairs[1], rtol=1e-6, atol=1e-4)


def test_a_hinge_loss_of_a_list_in_order_is_small() -> None:
    """Running sums of many large scores must not add noise where nothing counts."""
    generator = np.random.default_rng(4)
    labels = np.repeat([0.0, 1.0], 10_000)[None, :].astype("float32")
    scores = (1e3 * labels + generator.normal(size=labels.shape)).astype("float32")
    values, gradient = value_and_gradient(losses.PairwiseHingeLoss(), labels, scores, None)
    assert values == 0
    assert np.all(gradient == 0)


def test_a_score_that_is_not_a_number_is_not_lost() -> None:
    scores = np.array([[0.5, np.nan, 0.1, 0.9]], "float32")
    order = ranks.descending(tf.constant(scores), tf.constant(scores == scores) | True)
    assert sorted(order.indices.numpy()[0]) == [0, 1, 2, 3]
    assert np.isnan(losses.NDCGLoss2()(np.array([[1.0, 2.0, 0.0, 0.0]]), scores))


@pytest.mark.parametrize("size", [5, pytest.param(40, marks=pytest.mark.slow)])
def test_cutoff_beyond_lists_of_unknown_size(size: int) -> None:
    generator = np.random.default_rng(size)
    labels = generator.choice(5, (2, size)).astype("float32")
    scores = generator.normal(size=(2, size)).astype("float32")
    loss = losses.NDCGLoss2(topn=20, cutoff="truncated", reduction="none")
    traced = tf.function(loss, input_signature=[tf.TensorSpec([None, None])] * 2)
    expected = [
        oracles.ndcg_loss2(s.astype(float), y, topn=20, cutoff="truncated")
        for s, y in zip(scores, labels, strict=True)
    ]
    np.testing.assert_allclose(traced(labels, scores), expected, rtol=1e-5)


def test_ordered_pairs_by_sorting(monkeypatch) -> None:
    labels = np.random.default_rng(5).choice(5, (2, 30)).astype("float32")
    mask = np.arange(30)[None, :] < [[30], [17]]
    expected = [
        (y[real][:, None] > y[real][None, :]).sum() for y, real in zip(labels, mask, strict=True)
    ]
    for limit in (2048, 4):
        monkeypatch.setattr(ranks, "COUNTED_PAIRS", limit)
        count = ranks.count_ordered_pairs(tf.constant(labels * mask), tf.constant(mask))
        np.testing.assert_array_equal(count, expected)


def test_programs_of_unknown_list_size(monkeypatch) -> None:
    """A program traced without the list size decides between the paths when it runs."""
    monkeypatch.setattr(hinge, "SORTED_LIST", 40)
    monkeypatch.setattr(ranks, "COUNTED_LIST", 40)
    for loss in (losses.PairwiseHingeLoss(), losses.NDCGLoss2(topn=5)):
        traced = tf.function(
            lambda labels, scores, loss=loss: loss(labels, scores),
            input_signature=[tf.TensorSpec([None, None])] * 2,
        )
        for width in (20, 60):
            generator = np.random.default_rng(width)
            labels = generator.choice(5, (2, width)).astype("float32")
            scores = generator.normal(size=(2, width)).astype("float32")
            expected = loss.derivatives(
                lists.Lists(
                    scores=tf.constant(scores, tf.float64),
                    labels=tf.constant(labels, tf.float64),
                    mask=tf.fill((2, width), True),
                    weights=tf.ones((2, width), tf.float64),
                )
            ).values
            np.testing.assert_allclose(traced(labels, scores), np.mean(expected), rtol=1e-5)


def test_logarithm_by_a_polynomial() -> None:
    x = np.linspace(0.0, 1.0, 10_001, dtype="float32")
    expected = np.log1p(x.astype("float64"))
    np.testing.assert_allclose(pairs.log_one_plus(tf.constant(x)), expected, rtol=4e-7)
