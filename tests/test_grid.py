"""Sums from a grid of scores against the pairs themselves, in NumPy and float64."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfrankloss import config, losses
from tfrankloss.core import grid, pairs
from tfrankloss.core.lists import Derivatives
from tfrankloss.core.pairs import Documents

Array = np.ndarray
SIZE = 300


class Oracle:
    """A function of z, its first and its second derivative."""

    def __init__(self, *functions: Callable[[Array], Array]) -> None:
        self.functions = functions

    def sums(self, scores: Array, labels: Array, weight: Callable[..., Any]) -> list[Array]:
        """The value, the gradient and the curvature of one list."""
        z = scores[:, None] - scores[None, :]
        weights = np.where(
            labels[:, None] > labels[None, :], weight(labels[:, None], labels[None, :]), 0.0
        )
        value, slope, bend = (weights * function(z) for function in self.functions)
        return [value.sum(), slope.sum(1) - slope.sum(0), bend.sum(1) + bend.sum(0)]


def wrong(z: Array) -> Array:
    return 1.0 / (1.0 + np.exp(z))


LOGISTIC = Oracle(
    lambda z: np.logaddexp(0.0, -z), lambda z: -wrong(z), lambda z: wrong(z) * wrong(-z)
)
SOFT_ZERO_ONE = Oracle(
    wrong, lambda z: -wrong(z) * wrong(-z), lambda z: wrong(z) * wrong(-z) * (wrong(-z) - wrong(z))
)


def one(higher: Array, lower: Array) -> float:
    return 1.0


def gap(higher: Array, lower: Array) -> Array:
    return higher - lower


def make_lists(spread: float, labels: int = 5) -> tuple[Array, Array]:
    """Two lists whose scores have just that spread; the second is shorter and padded."""
    generator = np.random.default_rng(int(10 * spread))
    scores = generator.normal(size=(2, SIZE))
    y = np.minimum(generator.geometric(0.5, (2, SIZE)) - 1, labels - 1).astype("float32")
    y[:, :labels] = np.arange(labels)
    y[1, 200:] = -1
    for row, count in ((0, SIZE), (1, 200)):
        own = scores[row, :count]
        scores[row, :count] = spread * ((own - own.min()) / (own.max() - own.min()) - 0.3)
    return scores.astype("float32"), y


@pytest.fixture
def ways(monkeypatch) -> list[str]:
    """Has lists of 300 go over the grid; and how sums were made, operation by operation."""
    monkeypatch.setattr(grid, "VISITED_LIST", 100)
    monkeypatch.setattr(grid, "LEAST_DOCUMENTS", 20)
    found: list[str] = []
    sums = pairs._sums

    def noted(*arguments: Any, columns: Documents | None = None, **options: Any) -> Any:
        found.append("pairs" if columns is None else "grid")
        return sums(*arguments, columns=columns, **options)

    monkeypatch.setattr(pairs, "_sums", noted)
    return found


def sums(
    scores: Array,
    labels: Array,
    phi: pairs.Phi,
    weights: pairs.Weights,
    weight: Array | None = None,
) -> Derivatives:
    mask = labels >= 0
    documents = Documents(
        score=tf.constant(np.where(mask, scores, 0.0).astype("float32")),
        label=tf.constant(np.where(mask, labels, 0.0).astype("float32")),
        mask=tf.constant(mask),
        weight=tf.constant((mask if weight is None else weight * mask).astype("float32")),
    )
    with config.without_xla():
        return pairs.pair_sums(documents, phi, weights, curvature=True).summed()


def assert_are_sums(
    result: Derivatives,
    oracle: Oracle,
    scores: Array,
    labels: Array,
    weight: Callable[..., Any] = one,
    relative: float = 2e-6,
    unit: float = 0.0,
) -> None:
    for row in range(len(labels)):
        real = labels[row] >= 0
        expected = oracle.sums(scores[row, real].astype(float), labels[row, real], weight)
        np.testing.assert_allclose(result.values[row], expected[0], rtol=relative)
        for actual, wanted in zip(result[1:], expected[1:], strict=True):
            largest = max(np.abs(wanted).max(), unit)
            np.testing.assert_allclose(actual[row][real], wanted, atol=relative * largest)
            assert np.all(actual[row][~real].numpy() == 0)


@pytest.mark.parametrize(
    ("spread", "pieces"), [(0.0, 1), (1.0, 1), (6.0, 1), (13.9, 1), (14.1, 2), (41.9, 3)]
)
@pytest.mark.parametrize(
    ("phi", "oracle", "weight"),
    [
        pytest.param(pairs.Logistic(), LOGISTIC, None, id="logistic"),
        pytest.param(pairs.SoftZeroOne(), SOFT_ZERO_ONE, None, id="soft zero-one"),
        pytest.param(pairs.Logistic(), LOGISTIC, gap, id="weighted by labels"),
    ],
)
def test_sums_from_a_grid(
    ways: list[str], spread: float, pieces: int, phi: pairs.Phi, oracle: Oracle, weight: Any
) -> None:
    scores, labels = make_lists(spread)
    factor = None if weight is None else lambda one, other: abs(one.label - other.label)
    result = sums(scores, labels, phi, pairs.ByLabel(factor))
    assert ways == ["grid"] * (5 * pieces)
    # The curvature of the soft zero-one loss changes its sign twice within a unit of the score.
    assert_are_sums(result, oracle, scores, labels, weight or one, relative=1e-5, unit=1.0)


def test_a_list_of_one_label_has_no_pairs(ways: list[str]) -> None:
    scores, labels = make_lists(6.0)
    labels[0] = 2.0
    result = sums(scores, labels, pairs.Logistic(), pairs.ByLabel())
    assert ways == ["grid"] * 5
    assert result.values[0] == 0 and not np.any(result.gradient[0])
    assert_are_sums(result, LOGISTIC, scores, labels)


def in_order(scores: Array, labels: Array) -> Array:
    """The same scores, the higher ones for the higher labels, and a gap between two labels."""
    result = scores.copy()
    for row in range(len(labels)):
        real = labels[row] >= 0
        result[row, real] = np.where(labels[row, real] > 0, 5.5, -5.5) + 0.1 * scores[row, real]
    return result


@pytest.mark.parametrize("reason", ["spread", "pieces", "labels", "weights", "order"])
def test_pairs_are_visited_where_a_grid_does_not_fit(
    monkeypatch, ways: list[str], reason: str
) -> None:
    if reason == "spread":  # the scores are too far from 0 for powers of e, and nothing else
        monkeypatch.setattr(grid, "LEAST_DOCUMENTS", 1)
    spread = {"spread": 125.0, "pieces": 100.0}.get(reason, 9.0)
    scores, labels = make_lists(spread, 17 if reason == "labels" else 2)
    weight = None
    if reason == "weights":
        weight = np.full(labels.shape, 2.0)
    if reason == "order":
        scores = in_order(scores, labels)
    result = sums(scores, labels, pairs.Logistic(), pairs.ByLabel(), weight)
    assert ways == (["grid", "grid", "pairs"] if reason == "order" else ["pairs"])
    if weight is not None:
        result = Derivatives(*(x / 2.0 for x in result))
    # Slopes of documents in order are a ten-thousandth of those on the grid, and the value is a sum
    # of logarithms next to 1.
    assert_are_sums(result, LOGISTIC, scores, labels, relative=1e-4 if reason == "order" else 2e-6)


@pytest.mark.parametrize("offset", [1e3, 1e4])
@pytest.mark.parametrize("ulps", [1, 5, 500])
def test_scores_far_from_zero(ways: list[str], offset: float, ulps: int) -> None:
    """The middle of such scores is rounded, and padding is far away."""
    scores, labels = make_lists(1.0)
    step = np.spacing(np.float32(offset))
    scores = (offset + step * np.round(ulps * scores)).astype("float32")
    result = sums(scores, labels, pairs.Logistic(), pairs.ByLabel())
    assert "pairs" not in ways
    assert_are_sums(result, LOGISTIC, scores, labels)


def test_curvature_of_a_list_in_reverse_order(ways: list[str]) -> None:
    """Values and slopes are as large as can be, and curvatures as small."""
    scores, labels = make_lists(9.0, labels=2)
    scores = -in_order(scores, labels)
    result = sums(scores, labels, pairs.Logistic(), pairs.ByLabel())
    assert ways[-1] == "pairs"
    assert_are_sums(result, LOGISTIC, scores, labels)


@pytest.mark.parametrize("most", [3, 5])
def test_different_labels(monkeypatch, most: int) -> None:
    monkeypatch.setattr(grid, "MOST_LABELS", most)
    labels = tf.constant([[2.0, 0.5, 2.0, 7.0], [1.0, 1.0, 0.0, 3.0], [0.0, 0.0, 0.0, 0.0]])
    mask = tf.constant([[True] * 4, [True, True, False, False], [False] * 4])
    found, count = grid.different_labels(labels, mask)
    expected = np.full((most, 3, 1), np.nan)
    expected[:3, 0, 0], expected[0, 1, 0] = [0.5, 2.0, 7.0], 1.0
    np.testing.assert_array_equal(found, expected)
    assert count == 3
    found, count = grid.different_labels(tf.constant([np.arange(6.0)]), tf.fill((1, 6), True))
    np.testing.assert_array_equal(found[:, 0, 0], np.arange(most))
    assert count == most + 1


def test_polynomials_through_the_nodes() -> None:
    """Those of a degree below the number of nodes are what they were."""
    nodes = np.cos(np.pi / grid.NODES * (np.arange(grid.NODES) + 0.5))
    x = np.linspace(-1.0, 1.0, 101)
    functions = [np.ones_like, lambda x: x, lambda x: 3 * x**5 - x**2, lambda x: np.exp(2 * x)]
    values = np.stack([[function(nodes)] for function in functions])
    found = grid.interpolate(tf.constant(values, "float32"), tf.constant([x], "float32"))
    for function, actual in zip(functions, found, strict=True):
        np.testing.assert_allclose(actual[0], function(x), atol=4e-6)


def make_list(size: int) -> tuple[Array, Array]:
    generator = np.random.default_rng(size)
    scores = generator.normal(size=(1, size)).astype("float32")
    return generator.choice(5, (1, size)).astype("float32"), scores


def step_of(loss: losses.RankingLoss, size: int | None) -> Any:
    @tf.function(input_signature=[tf.TensorSpec([None if size is None else 1, size])] * 2)
    def step(labels: Any, scores: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(scores)
            value = loss(labels, scores)
        return value, tape.gradient(value, scores)

    return step


def assert_is_loss(
    loss: losses.RankingLoss, oracle: Oracle, step: Any, labels: Array, scores: Array
) -> None:
    value, gradient = step(labels, scores)
    wanted = oracle.sums(loss.sigma * scores[0].astype(float), labels[0], one)
    largest = loss.sigma * np.abs(wanted[1]).max()
    np.testing.assert_allclose(value, wanted[0], rtol=2e-6)
    np.testing.assert_allclose(gradient[0], loss.sigma * wanted[1], atol=2e-6 * largest)


def test_compiled_programs_use_the_grid(monkeypatch) -> None:
    sums = pairs._sums

    def without_pairs(*arguments: Any, columns: Documents | None = None, **options: Any) -> Any:
        found = sums(*arguments, columns=columns, **options)
        return tuple(x * np.nan for x in found) if columns is None else found

    monkeypatch.setattr(pairs, "_sums", without_pairs)
    loss = losses.PairwiseLogisticLoss()
    assert_is_loss(loss, LOGISTIC, step_of(loss, 700), *make_list(700))


def test_long_lists_of_unknown_size() -> None:
    """A program decides when it runs."""
    loss = losses.PairwiseSoftZeroOneLoss(sigma=0.5)
    step = step_of(loss, None)
    for size in (90, 700):
        assert_is_loss(loss, SOFT_ZERO_ONE, step, *make_list(size))


def test_no_lists() -> None:
    loss = losses.PairwiseLogisticLoss(reduction="none")
    assert loss(np.zeros((0, 700)), np.zeros((0, 700))).shape == (0,)
