"""The oracles against arithmetic done by hand, and against a second way to compute the same."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from tests import oracles
from tfrankloss import losses

LOG2_OF_3 = math.log2(3.0)


def library_value(loss: Any, labels: list[float], scores: list[float]) -> float:
    """The library's value for one list, in float64."""
    result = loss(np.array([labels], dtype=np.float64), np.array([scores], dtype=np.float64))
    value = np.asarray(result)
    assert value.dtype == np.float64
    assert value.shape == (1,)
    return float(value[0])


# --- one relevant document below an irrelevant one -----------------------------------------------

WORKED_LABELS = [1.0, 0.0]
WORKED_SCORES = [0.6, 0.8]
# Every loss sees the one pair with z = 0.6 - 0.8 = -0.2.
LOGISTIC = math.log(1.0 + math.exp(0.2))
WORKED_VALUES = {
    "pairwise_hinge": 1.2,
    "pairwise_exponential": math.exp(0.2),
    "pairwise_logistic": LOGISTIC,
    "pairwise_soft_zero_one": 1.0 / (1.0 + math.exp(-0.2)),
    # (1 - 0) - (0.6 - 0.8) = 1.2, met once in each order.
    "pairwise_squared": 2.88,
    "ranknet": LOGISTIC,
    "pointwise_squared": 0.16 + 0.64,
    "pointwise_sigmoid": math.log(1.0 + math.exp(-0.6)) + math.log(1.0 + math.exp(0.8)),
    # -log(e^0.6 / (e^0.6 + e^0.8)) = log(1 + e^0.2): with two documents these are one loss.
    "softmax": LOGISTIC,
    "list_mle": LOGISTIC,
    "unique_softmax": LOGISTIC,
    # (2^1 - 1, 2^0 - 1) / (1 + 0) is the weight of the first position and of the second.
    "position_aware_list_mle": LOGISTIC,
    "listnet": (math.e * LOGISTIC + math.log(1.0 + math.exp(-0.2))) / (math.e + 1.0),
    # Label distribution (2, 1) / 3.
    "xe_ndcg": (2.0 * LOGISTIC + math.log(1.0 + math.exp(-0.2))) / 3.0,
    # The extra probability of a miss is 1 - 1 / (1 + e^0.2).
    "poly1_softmax": LOGISTIC + 1.0 - 1.0 / (1.0 + math.exp(0.2)),
    "calibrated_softmax": 2.0 * math.log(math.exp(0.6) + math.exp(0.8) + 1.0) - 0.6,
    "arp_loss1": LOGISTIC / math.log(2.0),
    "arp_loss2": LOGISTIC / math.log(2.0),
    # The relevant document is at rank 2, where 1 / D = 1 / log2(3); the best DCG is 1.
    "ndcg_loss1": LOGISTIC / math.log(2.0) / LOG2_OF_3,
    "ndcg_loss2": LOGISTIC / math.log(2.0) * (1.0 - 1.0 / LOG2_OF_3),
    "lambdarank": LOGISTIC / math.log(2.0) * (1.0 - 1.0 / LOG2_OF_3),
    "ndcg_loss2_plus_plus": LOGISTIC / math.log(2.0) * 11.0 * (1.0 - 1.0 / LOG2_OF_3),
    # Soft rank 1 + 1 / (1 + e^-0.2).
    "approx_ndcg": -1.0 / math.log2(2.0 + 1.0 / (1.0 + math.exp(-0.2))),
    "approx_dcg": -1.0 / math.log2(2.0 + 1.0 / (1.0 + math.exp(-0.2))),
    "approx_mrr": -1.0 / (1.0 + 1.0 / (1.0 + math.exp(-0.2))),
    "approx_map": -1.0 / (1.0 + 1.0 / (1.0 + math.exp(-0.2))),
    # The other document is ahead with the probability Phi(0.2 / sqrt 2) = (1 + erf 0.1) / 2.
    "soft_ndcg": -(
        0.5 * (1.0 - math.erf(0.1)) + 0.5 * (1.0 + math.erf(0.1)) / LOG2_OF_3
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WORKED_VALUES)
def test_worked_pair(name: str) -> None:
    value = getattr(oracles, name)(WORKED_SCORES, WORKED_LABELS)
    assert value == pytest.approx(WORKED_VALUES[name], rel=1e-14)


def test_worked_pair_with_document_weights() -> None:
    weights = [3.0, 5.0]
    # The weight of a pair is that of its preferred document: the second one is never preferred.
    assert oracles.pairwise_hinge(WORKED_SCORES, WORKED_LABELS, weights) == pytest.approx(3.6)
    assert oracles.ndcg_loss2(WORKED_SCORES, WORKED_LABELS, weights) == pytest.approx(
        3.0 * WORKED_VALUES["ndcg_loss2"]
    )
    # Equal labels: one half of either order, each with its own weight.
    tied = oracles.ranknet(WORKED_SCORES, [1.0, 1.0], weights)
    assert tied == pytest.approx(1.5 * LOGISTIC + 2.5 * math.log(1.0 + math.exp(-0.2)))
    assert oracles.softmax(WORKED_SCORES, WORKED_LABELS, weights) == pytest.approx(3.0 * LOGISTIC)
    assert oracles.approx_mrr(WORKED_SCORES, WORKED_LABELS, weights) == pytest.approx(
        3.0 * WORKED_VALUES["approx_mrr"]
    )


def test_worked_pair_in_the_library() -> None:
    for loss, name in (
        (losses.PairwiseHingeLoss(reduction="none"), "pairwise_hinge"),
        (losses.PairwiseLogisticLoss(reduction="none"), "pairwise_logistic"),
        (losses.RankNetLoss(reduction="none"), "ranknet"),
        (losses.SoftmaxLoss(reduction="none"), "softmax"),
        (losses.ListMLELoss(reduction="none"), "list_mle"),
    ):
        value = library_value(loss, WORKED_LABELS, WORKED_SCORES)
        assert value == pytest.approx(WORKED_VALUES[name], rel=1e-12)


# --- graded pointwise losses ---------------------------------------------------------------------


def test_graded_pointwise_losses() -> None:
    scores, labels = [[0.0, 1.0, 0.0], [2.0, 0.0, 0.0]], [1.0, 2.0]
    # First document hits its one-hot vector; the second misses it by (2, 0, -1).
    assert oracles.pointwise_squared(scores, labels, num_grades=3) == pytest.approx(5.0)
    first = math.log(2.0 + math.e) - 1.0
    second = math.log(2.0 + math.exp(2.0))
    assert oracles.pointwise_softmax(scores, labels) == pytest.approx(first + second)
    # Targets (1, 0, 0) and (1, 1, 0); cross entropy log(1 + e^x) - t x of each output.
    at_zero = math.log(2.0)
    first = at_zero + math.log(1.0 + math.e) + at_zero
    second = math.log(1.0 + math.exp(-2.0)) + at_zero + at_zero
    assert oracles.ordinal(scores, labels) == pytest.approx(first + second)
    # Halfway between two grades the target of the threshold is one half.
    assert oracles.ordinal([[0.0, 1.0]], [1.5]) == pytest.approx(
        at_zero + math.log(1.0 + math.e) - 0.5
    )


# --- the worked examples of the lecture ----------------------------------------------------------

LECTURE_LABELS = [1.0, 0.0, 0.0, 0.0, 0.0]
GOOD_SCORES = [0.6, 0.5, 0.5, 0.5, 0.5]
BAD_SCORES = [0.1, 0.2, 0.2, 0.2, 0.2]


def test_a_lower_squared_loss_can_rank_worse() -> None:
    # 0.4^2 + 4 0.5^2 = 1.16 and 0.9^2 + 4 0.2^2 = 0.97 (lecture, Eqs 8 and 10).
    assert oracles.pointwise_squared(GOOD_SCORES, LECTURE_LABELS) == pytest.approx(1.16)
    assert oracles.pointwise_squared(BAD_SCORES, LECTURE_LABELS) == pytest.approx(0.97)
    assert oracles.ndcg(GOOD_SCORES, LECTURE_LABELS) == 1.0
    assert oracles.ndcg(BAD_SCORES, LECTURE_LABELS) == pytest.approx(1.0 / math.log2(6.0))


def test_a_lower_squared_loss_can_rank_worse_in_the_library() -> None:
    squared = losses.PointwiseSquaredLoss(reduction="none")
    assert library_value(squared, LECTURE_LABELS, GOOD_SCORES) == pytest.approx(1.16)
    assert library_value(squared, LECTURE_LABELS, BAD_SCORES) == pytest.approx(0.97)
    # A pairwise loss is not misled by this example.
    logistic = losses.PairwiseLogisticLoss(reduction="none")
    good = library_value(logistic, LECTURE_LABELS, GOOD_SCORES)
    bad = library_value(logistic, LECTURE_LABELS, BAD_SCORES)
    assert good == pytest.approx(4.0 * math.log(1.0 + math.exp(-0.1)))
    assert bad == pytest.approx(4.0 * math.log(1.0 + math.exp(0.1)))
    assert good < bad


def list_with_relevant_at(positions: tuple[int, ...], size: int) -> list[float]:
    """Binary labels in rank order."""
    return [1.0 if position in positions else 0.0 for position in range(1, size + 1)]


def scores_in_order(size: int) -> list[float]:
    """Scores that rank the documents as they are listed."""
    return [float(size - position) for position in range(size)]


def correct_pairs(labels: list[float], scores: list[float]) -> int:
    """Number of preferred pairs that the scores order correctly."""
    return sum(scores[i] > scores[j] for i, j in oracles.preferred_pairs(labels))


SHORTEST_EXAMPLE = 7
NINE_PAIRS = (1, 2, 6)
TEN_PAIRS = (1, 3, 4)


def misleading_examples(size: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Relevant positions with 9 and with 10 correct pairs, where 9 has the higher NDCG."""
    scores, found = scores_in_order(size), []
    for relevant in range(1, size):
        choices = list(itertools.combinations(range(1, size + 1), relevant))
        rankings = {choice: list_with_relevant_at(choice, size) for choice in choices}
        for nine, ten in itertools.permutations(choices, 2):
            if (
                correct_pairs(rankings[nine], scores) == 9
                and correct_pairs(rankings[ten], scores) == 10
                and oracles.ndcg(scores, rankings[nine]) > oracles.ndcg(scores, rankings[ten])
            ):
                found.append((nine, ten))
    return found


def test_more_correct_pairs_can_mean_a_lower_ndcg() -> None:
    # A search over every shorter list shows that this is the smallest example there is.
    for size in range(2, SHORTEST_EXAMPLE):
        assert misleading_examples(size) == []
    assert (NINE_PAIRS, TEN_PAIRS) in misleading_examples(SHORTEST_EXAMPLE)
    scores = scores_in_order(SHORTEST_EXAMPLE)
    nine = oracles.dcg(scores, list_with_relevant_at(NINE_PAIRS, SHORTEST_EXAMPLE))
    ten = oracles.dcg(scores, list_with_relevant_at(TEN_PAIRS, SHORTEST_EXAMPLE))
    assert nine == pytest.approx(1.0 + 1.0 / LOG2_OF_3 + 1.0 / math.log2(7.0))
    assert ten == pytest.approx(1.0 + 1.0 / 2.0 + 1.0 / math.log2(5.0))
    assert nine > ten


def test_more_correct_pairs_can_mean_a_lower_ndcg_in_the_library() -> None:
    scores = scores_in_order(SHORTEST_EXAMPLE)
    nine = list_with_relevant_at(NINE_PAIRS, SHORTEST_EXAMPLE)
    ten = list_with_relevant_at(TEN_PAIRS, SHORTEST_EXAMPLE)
    # A steep slope makes the soft zero-one loss count the wrong pairs: 12 - 9 and 12 - 10.
    counting = losses.PairwiseSoftZeroOneLoss(sigma=100.0, reduction="none")
    assert library_value(counting, nine, scores) == pytest.approx(3.0, abs=1e-12)
    assert library_value(counting, ten, scores) == pytest.approx(2.0, abs=1e-12)
    # RankNet too prefers the ranking with the lower NDCG, ties or no ties.
    for loss in (losses.PairwiseLogisticLoss, losses.RankNetLoss):
        assert library_value(loss(reduction="none"), ten, scores) < library_value(
            loss(reduction="none"), nine, scores
        )


# --- metrics by hand -----------------------------------------------------------------------------


def test_metrics_by_hand() -> None:
    # Read from rank 1: labels 0, 2, 0, 1.
    scores, labels = [0.1, 0.9, 0.5, 0.7], [1.0, 0.0, 0.0, 2.0]
    assert oracles.ranks(scores).tolist() == [4, 1, 3, 2]
    assert oracles.ranks([0.5, 0.5, 0.9]).tolist() == [2, 3, 1]
    assert oracles.dcg(scores, labels) == pytest.approx(3.0 / LOG2_OF_3 + 1.0 / math.log2(5.0))
    assert oracles.dcg(scores, labels, 3) == pytest.approx(3.0 / LOG2_OF_3)
    assert oracles.dcg(scores, labels, None, "linear", "linear") == pytest.approx(1.0 + 0.25)
    assert oracles.max_dcg(labels) == pytest.approx(3.0 + 1.0 / LOG2_OF_3)
    assert oracles.max_dcg(labels, 1) == 3.0
    assert oracles.ndcg(scores, labels, 1) == 0.0
    assert oracles.ndcg(scores, [0.0] * 4) == 0.0
    assert oracles.precision(scores, labels, 2) == 0.5
    assert oracles.reciprocal_rank(scores, labels) == 0.5
    assert oracles.reciprocal_rank(scores, labels, 1) == 0.0
    assert oracles.average_precision(scores, labels) == pytest.approx((1 / 2 + 2 / 4) / 2)
    assert oracles.average_precision(scores, labels, 2) == pytest.approx(1 / 4)
    # Satisfied with 3/4 at rank 2, else with 1/4 at rank 4.
    assert oracles.err(scores, labels) == pytest.approx(3 / 4 / 2 + 1 / 4 * 1 / 4 / 4)
    assert oracles.arp(scores, labels) == 2 * 2 + 1 * 4
    cost = 3.0 * (1.0 - 1.0 / LOG2_OF_3) + 1.0 * (1.0 - 1.0 / math.log2(5.0))
    assert oracles.ndcg_cost(scores, labels) == pytest.approx(cost / (3.0 + 1.0 / LOG2_OF_3))
    beyond = 3.0 * (1.0 - 1.0 / LOG2_OF_3) + 1.0
    assert oracles.ndcg_cost(scores, labels, 2) == pytest.approx(
        beyond / oracles.max_dcg(labels, 2)
    )


# --- the same quantity computed in a second way --------------------------------------------------


def random_list(seed: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 5, size).astype(np.float64)
    return generator.normal(size=size), labels, generator.uniform(0.5, 2.0, size)


@pytest.mark.parametrize("seed", range(5))
def test_ranknet_over_unordered_pairs(seed: int) -> None:
    scores, labels, _ = random_list(seed, 6)
    total = 0.0
    for i, j in itertools.combinations(range(6), 2):
        # Lecture, Eq 23.
        z = 1.7 * (scores[i] - scores[j])
        total += 0.5 * (1.0 - np.sign(labels[i] - labels[j])) * z + math.log(1.0 + math.exp(-z))
    assert oracles.ranknet(scores, labels, sigma=1.7) == pytest.approx(total, rel=1e-12)
    mean = oracles.ranknet(scores, labels, sigma=1.7, pair_reduction="mean")
    assert mean == pytest.approx(total / 15.0, rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_pairwise_squared_closed_form(seed: int) -> None:
    scores, labels, _ = random_list(seed, 6)
    gap = labels - scores
    closed = 2.0 * 6 * np.sum(gap**2) - 2.0 * np.sum(gap) ** 2
    assert oracles.pairwise_squared(scores, labels) == pytest.approx(closed, rel=1e-12)


@pytest.mark.parametrize("topn", [None, 1, 3])
@pytest.mark.parametrize("metric", ["ndcg", "dcg"])
def test_lambdarank_weight_is_the_change_of_the_metric(metric: str, topn: int | None) -> None:
    scores, labels, weights = random_list(7, 6)
    measure = {"ndcg": oracles.ndcg, "dcg": oracles.dcg}[metric]
    matrix = oracles.lambda_weights_lambdarank(scores, labels, weights, metric=metric, topn=topn)
    expected = np.zeros((6, 6))
    for i, j in oracles.preferred_pairs(labels):
        swapped = scores.copy()
        swapped[i], swapped[j] = scores[j], scores[i]
        change = measure(swapped, labels, topn) - measure(scores, labels, topn)
        expected[i, j] = weights[i] * abs(change)
    np.testing.assert_allclose(matrix, expected, rtol=1e-11, atol=1e-13)


def test_lambdarank_weights_of_binary_metrics_by_hand() -> None:
    # Rank order: irrelevant, relevant, irrelevant, relevant.
    scores, labels = [4.0, 3.0, 2.0, 1.0], [0.0, 1.0, 0.0, 1.0]
    by_hand = {
        # Only a relevant document that enters the first two changes Precision@2, by one half.
        "precision": {(1, 0): 0.0, (1, 2): 0.5, (3, 0): 0.5, (3, 2): 0.0},
        # Reciprocal rank 1/2 before; @2 it is lost when the second rank becomes irrelevant.
        "mrr": {(1, 0): 0.5, (1, 2): 0.5, (3, 0): 0.5, (3, 2): 0.0},
        # AP@2 is 1/4 before; after: rank 1 only, none, ranks 1 and 2, rank 2 only.
        "map": {(1, 0): 0.25, (1, 2): 0.25, (3, 0): 0.75, (3, 2): 0.0},
        # ERR@2 with satisfaction 1/2 is 1/4 before; after: 1/2, 0, 1/2 + 1/8, 1/4.
        "err": {(1, 0): 0.25, (1, 2): 0.25, (3, 0): 0.375, (3, 2): 0.0},
    }
    for metric, expected in by_hand.items():
        matrix = oracles.lambda_weights_lambdarank(scores, labels, metric=metric, topn=2)
        for pair in oracles.preferred_pairs(labels):
            assert matrix[pair] == pytest.approx(expected[pair]), (metric, pair)


def test_lambda_weights_follow_the_sampled_orders() -> None:
    scores, labels, weights = random_list(11, 5)
    orders = np.random.default_rng(12).normal(size=(3, 5))
    for name in ("lambdarank", "ndcg_loss1", "ndcg_loss2", "ndcg_loss2_plus_plus"):
        function = getattr(oracles, f"lambda_weights_{name}")
        single = [function(scores, labels, weights, order_scores=order) for order in orders]
        averaged = function(scores, labels, weights, order_scores=orders)
        np.testing.assert_allclose(averaged, np.mean(single, axis=0), rtol=1e-12)
        # The hard order of other scores: their ranks, these labels.
        np.testing.assert_allclose(single[0], function(orders[0], labels, weights), rtol=1e-12)


def test_truncation_and_correction_by_hand() -> None:
    # Ranks 1, 2, 3 with the labels 0, 0, 1: the pair of ranks 2 and 3 lies beyond K = 1.
    scores, labels = [3.0, 2.0, 1.0], [0.0, 0.0, 1.0]
    near, far = 1.0 - 1.0 / LOG2_OF_3, 1.0 / LOG2_OF_3 - 0.5
    truncated = oracles.lambda_weights_ndcg_loss2(scores, labels, topn=1, cutoff="truncated")
    corrected = oracles.lambda_weights_ndcg_loss2(scores, labels, topn=1)
    assert truncated[2, 0] == pytest.approx(far)
    assert truncated[2, 1] == 0.0
    # The multiplier at rank 3 is 1 / (1 - 1/2).
    assert corrected[2, 0] == pytest.approx(2.0 * far)
    assert corrected[2, 1] == pytest.approx(2.0 * near)
    mean = oracles.lambda_weights_ndcg_loss2(scores, labels, topn=1, pair_reduction="mean")
    np.testing.assert_allclose(mean, corrected / 2.0)


@pytest.mark.parametrize("distribution", ["softmax", "normalized"])
def test_listnet_of_all_positions(distribution: str) -> None:
    scores, _, weights = random_list(3, 4)
    labels = np.array([1.0, 3.0, 2.0, 4.0])
    strength = np.exp(labels) if distribution == "softmax" else labels
    expected = 0.0
    for order in itertools.permutations(range(4)):
        probability, log_likelihood = 1.0, 0.0
        for position, i in enumerate(order):
            rest = list(order[position:])
            probability *= strength[i] / strength[rest].sum()
            log_likelihood += weights[i] * np.log(np.exp(scores[i]) / np.exp(scores[rest]).sum())
        expected -= probability * log_likelihood
    options: dict[str, Any] = {"label_distribution": distribution}
    for topk in (4, 9):
        value = oracles.listnet(scores, labels, weights, topk=topk, **options)
        assert value == pytest.approx(expected, rel=1e-12)
    # The top one: cross entropy of two distributions over the documents.
    top_one = -np.sum(
        weights * strength / strength.sum() * np.log(np.exp(scores) / np.exp(scores).sum())
    )
    assert oracles.listnet(scores, labels, weights, **options) == pytest.approx(top_one, rel=1e-12)


def test_listnet_without_enough_relevant_documents() -> None:
    options: dict[str, Any] = {"label_distribution": "normalized"}
    assert oracles.listnet([0.3, 0.1, 0.2], [0.0, 0.0, 0.0], **options) == 0.0
    assert oracles.listnet([0.3, 0.1, 0.2], [0.0, 1.0, 0.0], topk=2, **options) == 0.0


def test_list_mle_is_the_probability_of_one_order() -> None:
    scores, labels = np.array([0.2, -0.4, 0.9]), np.array([1.0, 3.0, 1.0])
    exponentials = np.exp(scores)
    # Order by label, ties by position: second, first, third.
    probability = (
        exponentials[1] / exponentials.sum() * exponentials[0] / exponentials[[0, 2]].sum()
    )
    assert oracles.list_mle(scores, labels) == pytest.approx(-math.log(probability))
    # Position weights 3, 1, 0 of four.
    expected = -0.75 * math.log(exponentials[1] / exponentials.sum())
    expected -= 0.25 * math.log(exponentials[0] / exponentials[[0, 2]].sum())
    assert oracles.position_aware_list_mle(scores, labels) == pytest.approx(expected)
    assert oracles.position_aware_list_mle([0.3], [1.0]) == 0.0
    assert math.isfinite(oracles.position_aware_list_mle(np.zeros(1200), np.arange(1200.0)))


@pytest.mark.parametrize("topn", [None, 2])
def test_soft_ndcg_by_enumeration_of_outcomes(topn: int | None) -> None:
    scores, labels, weights = random_list(5, 5)
    gains, expected = oracles.gains(labels, topn), 0.0
    for i in range(5):
        rivals = [j for j in range(5) if j != i]
        beats = [
            oracles.beating_probability(float(scores[j]), float(scores[i]), 0.7) for j in rivals
        ]
        for outcome in itertools.product([False, True], repeat=4):
            probability = math.prod(
                beat if won else 1.0 - beat for won, beat in zip(outcome, beats, strict=True)
            )
            rank = 1 + sum(outcome)
            if topn is None or rank <= topn:
                expected -= weights[i] * gains[i] * probability / math.log2(1.0 + rank)
    value = oracles.soft_ndcg(scores, labels, weights, noise_scale=0.7, topn=topn)
    assert value == pytest.approx(expected, rel=1e-12)


def test_smooth_metrics_approach_the_metrics() -> None:
    scores, labels = [0.1, 0.9, 0.5, 0.7], [1.0, 0.0, 0.0, 2.0]
    for topn in (None, 1, 2, 3):
        for smooth, metric in (
            (oracles.approx_ndcg, oracles.ndcg),
            (oracles.approx_dcg, oracles.dcg),
            (oracles.approx_mrr, oracles.reciprocal_rank),
            (oracles.approx_map, oracles.average_precision),
        ):
            value = -smooth(scores, labels, temperature=1e-3, topn=topn)
            assert value == pytest.approx(metric(scores, labels, topn), abs=1e-9)
        value = -oracles.soft_ndcg(scores, labels, noise_scale=1e-3, topn=topn)
        assert value == pytest.approx(oracles.ndcg(scores, labels, topn), abs=1e-9)


def test_noise_is_averaged() -> None:
    scores, labels, _ = random_list(9, 4)
    noise = np.random.default_rng(10).gumbel(size=(2, 4))
    values = [oracles.approx_ndcg(scores + 0.5 * row, labels) for row in noise]
    averaged = oracles.mean_over_noise(
        lambda noisy: oracles.approx_ndcg(noisy, labels), scores, noise, beta=0.5
    )
    assert averaged == pytest.approx(np.mean(values))


def test_central_difference_of_a_known_gradient() -> None:
    scores, labels, weights = random_list(13, 5)
    gradient = oracles.central_difference(
        lambda values: oracles.pointwise_squared(values, labels, weights), scores
    )
    np.testing.assert_allclose(gradient, 2.0 * weights * (scores - labels), rtol=1e-8)
    grades = np.random.default_rng(14).normal(size=(5, 3))
    assert oracles.central_difference(lambda values: float(np.sum(values**2)), grades) == (
        pytest.approx(2.0 * grades, rel=1e-8)
    )


def test_exponential_continues_as_its_tangent() -> None:
    # z = -32: beyond the bend at -z = 30 the value grows by e^30 per unit.
    value = oracles.pairwise_exponential([-16.0, 16.0], [1.0, 0.0])
    assert value == pytest.approx(3.0 * math.exp(30.0))
