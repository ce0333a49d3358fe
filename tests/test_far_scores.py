"""Numbers far apart: right, and not only finite, in float32 and by both plans.

Values are compared with plain float64 formulas at the same (rounded) scores, gradients with those
of the library in float64, whose correctness is shown elsewhere.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.test_losses import LAMBDA, PLAIN, Case, value_and_gradient
from tfrankloss import config, losses, metrics
from tfrankloss.core.lists import Lists

LABELS = [2.0, 0.0, 1.0, 0.0, 0.0, 3.0]
NEAR = [0.3, 0.7, -0.2, 0.1, 0.4, -0.6]
# Single precision keeps seven digits of each score; sums of a few dozen terms keep five.
TOLERANCE = 3e-5


@pytest.fixture(autouse=True, params=("cpu", "accelerator"))
def plan(request: pytest.FixtureRequest) -> Iterator[None]:
    with config.without_xla(), config.using_plan(request.param):
        yield


def with_outliers(**scores: float) -> list[float]:
    """The scores that are near each other, but for documents such as `d3`."""
    return [scores.get(f"d{number}", score) for number, score in enumerate(NEAR)]


LISTS = {
    **{f"irrelevant_at_{far:g}": with_outliers(d4=far) for far in (-1e4, -1e9, -1e20)},
    **{f"relevant_at_{far:g}": with_outliers(d5=far) for far in (1e6, 1e20)},
    "wrong_way": with_outliers(d4=1e5),
    "two_ways": with_outliers(d4=-1e7, d5=1e9),
    "two_clusters": [score + 1e4 * (number % 2) for number, score in enumerate(NEAR)],
    "far_from_0": [score + 5e4 for score in NEAR],
    "tiny": [1e-7 * score for score in NEAR],
}


def assert_right(case: Case, labels: list[float], scores: list[float]) -> None:
    single = np.array([scores], "float32")
    weights = np.ones((1, len(scores)))
    values, gradient = value_and_gradient(
        case.loss, np.array([labels], "float32"), single, weights.astype("float32")
    )
    double = single.astype("float64")
    expected = case.oracle(double[0], np.array(labels), weights[0], **case.options)
    _, wanted = value_and_gradient(case.loss, np.array([labels]), double, weights)
    np.testing.assert_allclose(values[0], expected, rtol=TOLERANCE, atol=1e-6)
    allowed = TOLERANCE * (1e-2 + np.abs(wanted).max())
    assert np.abs(gradient - wanted).max() <= allowed, (gradient, wanted)


def squares_overflow(case: Case, name: str) -> bool:
    """Whether the value itself, a square of a score, is no float32 number."""
    return "Squared" in type(case.loss).__name__ and name.endswith("e+20")


def exact_cases() -> list[Any]:
    """All losses with an oracle. SoftNDCG's takes minutes."""
    return [
        case
        for case in (*PLAIN, *LAMBDA)
        if not isinstance(case.values[0].loss, losses.SoftNDCGLoss)
    ]


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("case", exact_cases())
def test_far_scores(case: Case, name: str) -> None:
    if squares_overflow(case, name):
        pytest.skip("The square is beyond float32.")
    if isinstance(case.loss, losses.ApproxMRRLoss) and name == "tiny":
        pytest.skip("The best of credits that are equal to seven digits: either may be it.")
    assert_right(case, LABELS, LISTS[name])


@pytest.mark.parametrize("largest", (1e-1, 1e-4, 1e-7))
@pytest.mark.parametrize("case", exact_cases())
def test_small_labels(case: Case, largest: float) -> None:
    """Click rates: the gain 2^y - 1 of a small label must not cancel."""
    assert_right(case, [largest * label / 3.0 for label in LABELS], NEAR)


@pytest.mark.parametrize("spread", (20.0, 29.0, 44.0, 50.0, 59.0, 70.0))
@pytest.mark.parametrize("name", ("list_mle", "position_aware_list_mle"))
def test_curvature_of_scores_apart(name: str, spread: float) -> None:
    """The share of a document in what is left may be a normal number whose square is none."""
    loss = losses.get(name)
    found = {}
    for dtype in ("float32", "float64"):
        scores = tf.constant([[spread, 0.3, 0.0]], dtype)
        labels, mask = tf.constant([[2.0, 1.0, 0.0]], dtype), tf.fill((1, 3), True)
        lists = Lists(scores, labels, mask, tf.ones((1, 3), dtype))
        found[dtype] = loss.derivatives(lists, curvature=True).curvature.numpy()
    # p (1 - p) of two documents that are left, e^0.3 : 1.
    p = 1.0 / (1.0 + np.exp(-0.3))
    weight = 1.0 if name == "list_mle" else (2.0**1 - 1.0) / (2.0**2 - 1.0 + 2.0**1 - 1.0)
    np.testing.assert_allclose(found["float64"][0, 1:], weight * p * (1.0 - p), rtol=1e-7)
    np.testing.assert_allclose(found["float32"], found["float64"], rtol=TOLERANCE, atol=1e-7)


@pytest.mark.parametrize("case", [*PLAIN, *LAMBDA])
def test_a_filtered_document_is_none(case: Case) -> None:
    """A score of -inf: the loss is that of the others, and there is no gradient to it."""
    labels, weights = np.array([LABELS]), np.ones((1, len(LABELS)))
    scores = np.array([with_outliers(d2=-np.inf, d3=-np.inf)])
    left = [0, 1, 4, 5]
    expected, wanted = value_and_gradient(
        case.loss, labels[:, left], scores[:, left], weights[:, left]
    )
    values, gradient = value_and_gradient(case.loss, labels, scores, weights)
    np.testing.assert_allclose(values, expected, rtol=1e-12)
    np.testing.assert_allclose(gradient[:, left], wanted, rtol=1e-9, atol=1e-12)
    assert np.all(gradient[:, [2, 3]] == 0)


def test_metrics_rank_a_filtered_document_last() -> None:
    scores = [with_outliers(d0=-np.inf)]
    last = [with_outliers(d0=-100.0)]
    for metric in (metrics.NDCG(), metrics.MRR(), metrics.ARP(), metrics.Recall(topn=5)):
        assert metric(LABELS_OF_ONE, scores) == metric(LABELS_OF_ONE, last)


LABELS_OF_ONE = [LABELS]
