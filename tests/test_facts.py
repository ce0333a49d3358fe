"""Bounds and identities proven in the papers, for the library's losses on random lists.

The losses come from the library; metrics, constants and costs come from the NumPy oracles.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from tests import oracles
from tfrankloss import losses

Array = npt.NDArray[np.float64]

LISTS = 200
# Few lengths, because a new shape means a new program to compile.
SIZES = [4, 11]
# A bound may be met exactly: leave room for rounding, and for nothing else.
ROUNDING = 1e-10


def random_lists(size: int, *, binary: bool = False, relevant: bool = False) -> tuple[Array, Array]:
    """Labels and scores [LISTS, size]: wide and narrow spreads, and every third list with ties."""
    generator = np.random.default_rng([size, binary, relevant])
    labels = generator.integers(0, 2 if binary else 5, (LISTS, size)).astype(np.float64)
    # Most documents are irrelevant in practice, some lists have no relevant document at all.
    labels *= generator.uniform(size=labels.shape) < generator.uniform(0.0, 1.2, (LISTS, 1))
    if relevant:
        empty = np.flatnonzero(labels.max(axis=1) == 0)
        labels[empty, generator.integers(0, size, len(empty))] = 1.0
    scores = generator.normal(size=(LISTS, size)) * generator.choice([0.1, 1.0, 5.0], (LISTS, 1))
    # Rounding leaves 0.0 and -0.0 in one list: they are equal, and must rank as equal scores do.
    scores[::3] = np.round(scores[::3])
    return labels, scores


def evaluate(loss: Any, labels: Array, scores: Array) -> Array:
    """One float64 value per list from the library."""
    value = np.asarray(loss(labels, scores))
    assert value.dtype == np.float64
    assert value.shape == (len(labels),)
    return value


def gradient_of(loss: Any, labels: Array, scores: Array) -> Array:
    """Gradient of each list's own loss with respect to its own scores, from the library."""
    variable = tf.constant(scores, dtype=tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(variable)
        total = tf.reduce_sum(loss(labels, variable))
    gradient = np.asarray(tape.gradient(total, variable))
    assert gradient.dtype == np.float64
    return gradient


def per_list(function: Callable[[Array, Array], float], labels: Array, scores: Array) -> Array:
    """An oracle of (scores, labels) for every list of a batch."""
    return np.array([function(s, y) for s, y in zip(scores, labels, strict=True)])


def assert_bounds(upper: Array, lower: Array) -> None:
    """upper >= lower for every list, and somewhere strictly so."""
    assert np.all(upper >= lower - ROUNDING * (1.0 + np.abs(lower)))
    assert np.any(upper > lower)


def delta_constants(scores: Array, labels: Array, topn: int | None = None) -> float:
    """C2 + C3 of NDCG-Loss2, with the corrected delta where there is a cutoff."""
    rank = oracles.ranks(scores)
    return oracles.bound_constants(
        oracles.gains(labels, topn), lambda i, j: oracles.delta_at_k(rank[i], rank[j], topn)
    )


def rho_constants(scores: Array, labels: Array) -> float:
    """C2 + C3 of LambdaRank."""
    rank = oracles.ranks(scores)
    return oracles.bound_constants(
        oracles.gains(labels), lambda i, j: oracles.rho(rank[i], rank[j])
    )


def wrongly_ordered_weight(matrix: Array, scores: Array) -> float:
    """Sum of the weights of the pairs whose preferred document is ranked below the other."""
    # Ranks, not scores: among equal scores the order of the list decides who is below.
    rank = oracles.ranks(scores)
    return math.fsum(matrix[i, j] for i, j in oracles.all_pairs(scores) if rank[j] < rank[i])


# --- CIKM 2018 and SIGIR 2022: the LambdaLoss framework ------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_ndcg_loss1_bounds_the_cost(size: int) -> None:
    labels, scores = random_lists(size)
    loss = evaluate(losses.NDCGLoss1(reduction="none"), labels, scores)
    assert_bounds(loss, per_list(oracles.ndcg_cost, labels, scores))


@pytest.mark.parametrize("size", SIZES)
def test_ndcg_loss2_bounds_the_cost(size: int) -> None:
    labels, scores = random_lists(size)
    loss = evaluate(losses.NDCGLoss2(reduction="none"), labels, scores)
    constants = per_list(delta_constants, labels, scores)
    assert_bounds(loss + constants, per_list(oracles.ndcg_cost, labels, scores))


@pytest.mark.parametrize("topn", [1, 3, 8])
@pytest.mark.parametrize("size", SIZES)
def test_ndcg_loss2_with_a_cutoff_bounds_the_cost(size: int, topn: int) -> None:
    labels, scores = random_lists(size)
    loss = evaluate(losses.NDCGLoss2(topn=topn, reduction="none"), labels, scores)
    constants = per_list(lambda s, y: delta_constants(s, y, topn), labels, scores)
    cost = per_list(lambda s, y: oracles.ndcg_cost(s, y, topn), labels, scores)
    assert_bounds(loss + constants, cost)


@pytest.mark.parametrize("topn", [None, 1, 3, 8])
@pytest.mark.parametrize("size", SIZES)
def test_wrong_pairs_and_constants_add_up_to_the_cost(size: int, topn: int | None) -> None:
    labels, scores = random_lists(size)
    matrices = [
        oracles.lambda_weights_ndcg_loss2(s, y, topn=topn)
        for s, y in zip(scores, labels, strict=True)
    ]
    wrong = [wrongly_ordered_weight(w, s) for w, s in zip(matrices, scores, strict=True)]
    constants = per_list(lambda s, y: delta_constants(s, y, topn), labels, scores)
    cost = per_list(lambda s, y: oracles.ndcg_cost(s, y, topn), labels, scores)
    np.testing.assert_allclose(wrong + constants, cost, rtol=1e-12, atol=1e-13)
    # These are the weights the library uses: its loss is their sum over the pairs.
    phi = oracles.PHI["logistic_base2"]
    expected = [oracles.pair_sum(w, s, phi) for w, s in zip(matrices, scores, strict=True)]
    loss = evaluate(losses.NDCGLoss2(topn=topn, reduction="none"), labels, scores)
    np.testing.assert_allclose(loss, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("topn", [None, 1, 3])
def test_library_weights_add_up_to_the_cost(topn: int | None) -> None:
    labels, _ = random_lists(SIZES[1], binary=True)
    generator = np.random.default_rng(1)
    scores = np.array([generator.permutation(SIZES[1]) for _ in labels], dtype=np.float64)
    # So steep a slope leaves a gradient of sigma / ln 2 for a wrong pair and none for a right one.
    # With binary labels y_i - y_j = 1 for every pair, so y . gradient adds up the wrong pairs.
    sigma = 1000.0
    loss = losses.NDCGLoss2(topn=topn, sigma=sigma, reduction="none")
    gradient = gradient_of(loss, labels, scores)
    wrong = -np.sum(labels * gradient, axis=1) * math.log(2.0) / sigma
    constants = per_list(lambda s, y: delta_constants(s, y, topn), labels, scores)
    cost = per_list(lambda s, y: oracles.ndcg_cost(s, y, topn), labels, scores)
    np.testing.assert_allclose(wrong + constants, cost, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("topn", [1, 3, 8])
@pytest.mark.parametrize("size", SIZES)
def test_corrected_delta_adds_up_to_the_cost(size: int, topn: int) -> None:
    labels, scores = random_lists(size)
    for s, y in zip(scores, labels, strict=True):
        rank, gain, total = oracles.ranks(s), oracles.gains(y, topn), 0.0
        for i, j in oracles.all_pairs(s):
            if rank[j] < rank[i]:
                total += gain[i] * oracles.delta_at_k(rank[i], rank[j], topn)
        assert total == pytest.approx(oracles.ndcg_cost(s, y, topn), rel=1e-12, abs=1e-13)


@pytest.mark.parametrize("size", SIZES)
def test_lambdarank_bounds_its_metric_and_the_cost(size: int) -> None:
    labels, scores = random_lists(size)
    metric = per_list(oracles.lambdarank_metric, labels, scores)
    assert_bounds(metric, per_list(oracles.ndcg_cost, labels, scores))
    loss = evaluate(losses.LambdaRankLoss(metric="ndcg", reduction="none"), labels, scores)
    assert_bounds(loss + per_list(rho_constants, labels, scores), metric)


@pytest.mark.parametrize("size", SIZES)
def test_arp_losses_bound_the_average_relevance_position(size: int) -> None:
    labels, scores = random_lists(size)
    position, label_sums = per_list(oracles.arp, labels, scores), labels.sum(axis=1)
    first = evaluate(losses.ARPLoss1(reduction="none"), labels, scores)
    assert_bounds(first + label_sums, position)
    second = evaluate(losses.ARPLoss2(reduction="none"), labels, scores)
    constants = np.array([oracles.bound_constants(y, lambda i, j: 1.0) for y in labels])
    assert_bounds(second + constants + label_sums, position)
    # The constants are exact: wrongly ordered pairs alone give the metric itself.
    for s, y, constant in zip(scores, labels, constants, strict=True):
        wrong = wrongly_ordered_weight(oracles.lambda_weights_arp_loss2(s, y), s)
        assert wrong + constant + y.sum() == pytest.approx(oracles.arp(s, y), rel=1e-12)


# --- ICTIR 2019 and WWW 2021: softmax cross entropy ----------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("metric", ["reciprocal_rank", "ndcg"])
def test_listnet_bounds_binary_metrics(size: int, metric: str) -> None:
    labels, scores = random_lists(size, binary=True, relevant=True)
    listnet = losses.ListNetLoss(label_distribution="normalized", reduction="none")
    loss = evaluate(listnet, labels, scores)
    quality = per_list(getattr(oracles, metric), labels, scores)
    assert -math.log(quality.mean()) <= loss.mean() + ROUNDING
    # One list is a data set too: the bound holds for each of them.
    assert_bounds(loss, -np.log(quality))


@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("size", SIZES)
def test_xe_ndcg_bounds_ndcg(size: int, gamma: float) -> None:
    labels, scores = random_lists(size, relevant=True)
    loss = evaluate(losses.XENDCGLoss(gamma=gamma, reduction="none"), labels, scores)
    quality = per_list(oracles.ndcg, labels, scores)
    shift = np.array([1.0 / oracles.max_dcg(y) for y in labels])
    assert -math.log(quality.mean() + shift.mean()) <= loss.mean() + ROUNDING
    assert_bounds(loss, -np.log(quality + shift))


def score_probabilities(scores: Array, epsilon: float) -> Array:
    """rho of WWW 2021, Eq 14, for one list."""
    exponentials = np.exp(scores)
    return exponentials / (exponentials.sum() + epsilon)


@pytest.mark.parametrize("epsilon", [0.0, 0.5])
@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0])
def test_xe_ndcg_gradient(gamma: float, epsilon: float) -> None:
    labels, scores = random_lists(SIZES[1], relevant=True)
    loss = losses.XENDCGLoss(gamma=gamma, epsilon=epsilon, reduction="none")
    gradient = gradient_of(loss, labels, scores)
    for row, s, y in zip(gradient, scores, labels, strict=True):
        expected = score_probabilities(s, epsilon) - oracles.xe_ndcg_label_distribution(y, gamma)
        np.testing.assert_allclose(row, expected, rtol=1e-10, atol=1e-13)
    # The dual of the max norm is the sum of absolute values: at most 2 for every list.
    assert np.all(np.abs(gradient).sum(axis=1) <= 2.0 + ROUNDING)


def test_xe_ndcg_is_2_lipschitz_in_the_max_norm() -> None:
    labels, scores = random_lists(SIZES[1], relevant=True)
    generator = np.random.default_rng(2)
    loss = losses.XENDCGLoss(gamma=0.3, reduction="none")
    start = evaluate(loss, labels, scores)
    for spread in (0.01, 1.0, 10.0):
        move = spread * generator.normal(size=scores.shape)
        # Against the gradient's signs the loss changes as fast as it can.
        signs = np.sign(gradient_of(loss, labels, scores))
        for step in (move, spread * signs, -spread * signs):
            change = np.abs(evaluate(loss, labels, scores + step) - start)
            assert np.all(change <= 2.0 * np.abs(step).max(axis=1) + ROUNDING)


HESSIAN_LISTS = 30
HESSIAN_SIZE = 6
EPSILON = 0.5


def hessian_lists() -> tuple[Array, Array]:
    generator = np.random.default_rng(3)
    labels = generator.integers(0, 5, (HESSIAN_LISTS, HESSIAN_SIZE)).astype(np.float64)
    return labels, generator.normal(size=labels.shape)


def neumann_parts(probabilities: Array) -> tuple[Array, Array]:
    """The diagonal of D and the matrix S of H = D (I - S) (WWW 2021, section 4.3)."""
    off_diagonal = 1.0 - np.eye(len(probabilities))
    ratio = off_diagonal * probabilities[None, :] / (1.0 - probabilities[:, None])
    return probabilities * (1.0 - probabilities), ratio


def test_xe_ndcg_hessian() -> None:
    labels, scores = hessian_lists()
    loss, step = losses.XENDCGLoss(gamma=0.3, epsilon=EPSILON, reduction="none"), 1e-5
    moves = step * np.concatenate([np.eye(HESSIAN_SIZE), -np.eye(HESSIAN_SIZE)])
    # Every list once for every move of one score, all in one call.
    moved = (scores[:, None, :] + moves[None]).reshape(-1, HESSIAN_SIZE)
    gradient = gradient_of(loss, np.repeat(labels, len(moves), axis=0), moved)
    gradient = gradient.reshape(HESSIAN_LISTS, 2, HESSIAN_SIZE, HESSIAN_SIZE)
    for measured, s in zip((gradient[:, 0] - gradient[:, 1]) / (2.0 * step), scores, strict=True):
        probabilities = score_probabilities(s, EPSILON)
        hessian = np.diag(probabilities) - np.outer(probabilities, probabilities)
        np.testing.assert_allclose(measured, hessian, atol=1e-9)
        diagonal, ratio = neumann_parts(probabilities)
        split = np.diag(diagonal) @ (np.eye(HESSIAN_SIZE) - ratio)
        np.testing.assert_allclose(split, hessian, atol=1e-15)
        assert np.linalg.eigvalsh((measured + measured.T) / 2.0).min() > 0.0
        assert np.abs(np.linalg.eigvals(ratio)).max() < 1.0


def test_newton_step_in_linear_time() -> None:
    labels, scores = hessian_lists()
    loss = losses.XENDCGLoss(gamma=0.3, epsilon=EPSILON, reduction="none")
    for gradient, s in zip(gradient_of(loss, labels, scores), scores, strict=True):
        probabilities = score_probabilities(s, EPSILON)
        diagonal, ratio = neumann_parts(probabilities)
        dense = (np.eye(HESSIAN_SIZE) + ratio + ratio @ ratio) @ (gradient / diagonal)
        linear = oracles.xe_ndcg_newton_step(gradient, probabilities)
        np.testing.assert_allclose(linear, dense, rtol=1e-10, atol=1e-12)
