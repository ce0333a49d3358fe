"""Losses and metrics of one list in plain NumPy float64, written pair by pair to be easy to check.

Every function takes the real documents of one list only: the caller drops padded documents first.
Nothing here imports the library, so that a mistake there cannot repeat itself here.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Vector = npt.ArrayLike
Weights = npt.ArrayLike | None
Ranks = npt.NDArray[np.int64]
Cutoff = int | None
Phi = Callable[[float], float]
PairRule = Callable[[int, int, Ranks], float]

# --- scalars, ranks, gains and discounts ---------------------------------------------------------


def softplus(x: float) -> float:
    """log(1 + e^x), in the form that cannot overflow."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def sigmoid(x: float) -> float:
    """1 / (1 + e^-x), in the form that cannot overflow."""
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


def log_sum_exp(values: Iterable[float]) -> float:
    """Logarithm of a sum of exponentials, shifted by the largest value; -inf for no values."""
    listed = [float(value) for value in values]
    largest = max(listed, default=-math.inf)
    if largest == -math.inf:
        return -math.inf
    return largest + math.log(math.fsum(math.exp(value - largest) for value in listed))


def _floats(values: Vector) -> Array:
    return np.asarray(values, dtype=np.float64)


def _document_weights(weights: Weights, size: int) -> Array:
    return np.ones(size) if weights is None else _floats(weights)


def _rows(scores: Vector, labels: Vector, weights: Weights) -> Iterable[tuple[Any, Any, Any]]:
    """Score (or row of scores), label and weight of each document."""
    labels = _floats(labels)
    return zip(_floats(scores), labels, _document_weights(weights, len(labels)), strict=True)


def ranks(scores: Vector) -> Ranks:
    """1-based ranks, highest score first, ties in the order of the list (SIGIR 2022, Eq 1)."""
    scores = _floats(scores)
    result = np.zeros(len(scores), dtype=np.int64)
    # Python's sort is stable, which is what breaks ties by position.
    for position, i in enumerate(sorted(range(len(scores)), key=lambda i: -scores[i])):
        result[i] = position + 1
    return result


def ranked_labels(scores: Vector, labels: Vector) -> list[float]:
    """The labels read from rank 1 to rank n."""
    labels = _floats(labels)
    result = [0.0] * len(labels)
    for label, rank in zip(labels, ranks(scores), strict=True):
        result[rank - 1] = float(label)
    return result


def gain_of(label: float, gain: str = "exponential") -> float:
    """Gain of one label: 2^y - 1, or y itself (CIKM 2018, Eq 4)."""
    return {"exponential": 2.0 ** float(label) - 1.0, "linear": float(label)}[gain]


def discount_of(rank: float, discount: str = "log2") -> float:
    """Discount divisor D of a rank: log2(1 + r), or r itself (CIKM 2018, Eq 4 and section 5.2)."""
    return {"log2": math.log2(1.0 + rank), "linear": float(rank)}[discount]


def delta(rank_i: int, rank_j: int, discount: str = "log2") -> float:
    """delta_ij of NDCG-Loss2 (CIKM 2018, Eq 15), zero on the diagonal."""
    distance = abs(int(rank_i) - int(rank_j))
    if distance == 0:
        return 0.0
    return abs(1.0 / discount_of(distance, discount) - 1.0 / discount_of(distance + 1, discount))


def delta_at_k(rank_i: int, rank_j: int, topn: Cutoff, discount: str = "log2") -> float:
    """delta_ij@K with the correction multiplier beyond K (SIGIR 2022, Eqs 16 and 17)."""
    value, lower = delta(rank_i, rank_j, discount), max(rank_i, rank_j)
    if value == 0.0 or topn is None or lower <= topn:
        return value
    return value / (1.0 - 1.0 / discount_of(lower, discount))


def rho(rank_i: int, rank_j: int, topn: Cutoff = None, discount: str = "log2") -> float:
    """Difference of reciprocal discounts, zero beyond K (CIKM 2018, Eq 5; SIGIR 2022, Eq 12)."""
    first, second = (
        1.0 / discount_of(rank, discount) if topn is None or rank <= topn else 0.0
        for rank in (rank_i, rank_j)
    )
    return abs(first - second)


# --- metrics -------------------------------------------------------------------------------------


def dcg(
    scores: Vector, labels: Vector, topn: Cutoff = None, gain: str = "exponential",
    discount: str = "log2",
) -> float:  # fmt: skip
    """Discounted cumulative gain of the first K ranks (SIGIR 2022, Eqs 2 and 4)."""
    total = 0.0
    for position, label in enumerate(ranked_labels(scores, labels)[:topn], start=1):
        total += gain_of(label, gain) / discount_of(position, discount)
    return total


def max_dcg(
    labels: Vector, topn: Cutoff = None, gain: str = "exponential", discount: str = "log2"
) -> float:
    """DCG of the list sorted by its labels (SIGIR 2022, Eqs 3 and 5)."""
    return dcg(labels, labels, topn, gain, discount)


def ndcg(
    scores: Vector, labels: Vector, topn: Cutoff = None, gain: str = "exponential",
    discount: str = "log2",
) -> float:  # fmt: skip
    """Normalised DCG (SIGIR 2022, Eqs 3 and 5); 0 for a list without a relevant document."""
    best = max_dcg(labels, topn, gain, discount)
    return dcg(scores, labels, topn, gain, discount) / best if best > 0 else 0.0


def precision(scores: Vector, labels: Vector, topn: Cutoff = None) -> float:
    """Share of relevant documents among the first K (lecture, Eq 37)."""
    cutoff = len(_floats(labels)) if topn is None else topn
    return sum(label > 0 for label in ranked_labels(scores, labels)[:cutoff]) / max(cutoff, 1)


def reciprocal_rank(scores: Vector, labels: Vector, topn: Cutoff = None) -> float:
    """One over the rank of the first relevant document (ICTIR 2019, Eq 4), zero beyond K."""
    for position, label in enumerate(ranked_labels(scores, labels)[:topn], start=1):
        if label > 0:
            return 1.0 / position
    return 0.0


def average_precision(scores: Vector, labels: Vector, topn: Cutoff = None) -> float:
    """Mean over all relevant documents of the precision at their rank, zero beyond K."""
    ordered, found, total = ranked_labels(scores, labels), 0, 0.0
    for position, label in enumerate(ordered[:topn], start=1):
        if label > 0:
            found += 1
            total += found / position
    return total / max(sum(label > 0 for label in ordered), 1)


def err(scores: Vector, labels: Vector, topn: Cutoff = None) -> float:
    """Expected reciprocal rank of the cascade model (Chapelle et al, CIKM 2009)."""
    ordered, still_looking, total = ranked_labels(scores, labels), 1.0, 0.0
    for position, label in enumerate(ordered[:topn], start=1):
        satisfied = gain_of(label) / 2.0 ** max(ordered)
        total += still_looking * satisfied / position
        still_looking *= 1.0 - satisfied
    return total


SWAP_METRICS: dict[str, Callable[..., float]] = {
    "precision": precision, "mrr": reciprocal_rank, "map": average_precision, "err": err,
}  # fmt: skip


def arp(scores: Vector, labels: Vector) -> float:
    """Average relevance position, as a sum (CIKM 2018, Eq 13)."""
    ordered = ranked_labels(scores, labels)
    return sum(label * position for position, label in enumerate(ordered, start=1))


def gains(
    labels: Vector, topn: Cutoff = None, gain: str = "exponential", discount: str = "log2",
    normalize: bool = True,
) -> Array:  # fmt: skip
    """Gains, divided by the best DCG@K unless normalize is off; zeros where that DCG is zero."""
    values = np.array([gain_of(label, gain) for label in _floats(labels)], dtype=np.float64)
    if not normalize:
        return values
    best = max_dcg(labels, topn, gain, discount)
    return values / best if best > 0 else np.zeros_like(values)


def ndcg_cost(scores: Vector, labels: Vector, topn: Cutoff = None) -> float:
    """NDCG as a cost (CIKM 2018, Eq 14); with a cutoff the sum of SIGIR 2022, Eq 18."""
    total = 0.0
    for value, rank in zip(gains(labels, topn), ranks(scores), strict=True):
        total += value * (1.0 - (1.0 / discount_of(rank) if topn is None or rank <= topn else 0.0))
    return float(total)


def lambdarank_metric(scores: Vector, labels: Vector) -> float:
    """The metric that LambdaRank bounds (CIKM 2018, Eq 17)."""
    rank, gain, total = ranks(scores), gains(labels), 0.0
    for i, j in all_pairs(scores):
        if rank[j] < rank[i]:
            total += gain[i] * rho(rank[i], rank[j])
    return float(total)


def bound_constants(values: Vector, pair_factor: Callable[[int, int], float]) -> float:
    """C2 + C3 for a symmetric factor on pairs (CIKM 2018, Eq 16 and the proof of Prop 5.1).

    A document is no pair with itself: j = i is left out, also where the factor is not zero there.
    """
    values = _floats(values)
    total = 0.0
    for i, j in all_pairs(values):
        if values[j] <= values[i]:
            # A pair of equal values is met twice, once in each order.
            share = 0.5 if values[j] == values[i] else 1.0
            total += share * pair_factor(i, j) * values[j]
    return float(total)


def central_difference(
    function: Callable[[Array], float], scores: Vector, step: float = 1e-5
) -> Array:
    """Gradient of a function of the scores, one score at a time."""
    scores = _floats(scores)
    gradient = np.zeros_like(scores)
    for index in np.ndindex(*scores.shape):
        above, below = scores.copy(), scores.copy()
        above[index] += step
        below[index] -= step
        gradient[index] = (function(above) - function(below)) / (above[index] - below[index])
    return gradient


# --- pointwise -----------------------------------------------------------------------------------


def pointwise_squared(
    scores: Vector, labels: Vector, weights: Weights = None, *, num_grades: int | None = None
) -> float:
    """Squared error to the label, or to its one-hot vector (lecture, Eqs 1 and 3)."""
    total = 0.0
    for score, label, weight in _rows(scores, labels, weights):
        if num_grades is None:
            total += weight * (label - score) ** 2
            continue
        for grade in range(num_grades):
            total += weight * (float(label == grade) - score[grade]) ** 2
    return float(total)


def pointwise_sigmoid(scores: Vector, labels: Vector, weights: Weights = None) -> float:
    """Sigmoid cross entropy with the target min(y, 1)."""
    total = 0.0
    for score, label, weight in _rows(scores, labels, weights):
        total += weight * (softplus(score) - min(label, 1.0) * score)
    return float(total)


def pointwise_softmax(
    scores: Vector, labels: Vector, weights: Weights = None, *, gamma: float = 1.0
) -> float:
    """Cross entropy over the grades, scores [n, grades] (lecture, Eqs 2 and 4)."""
    total = 0.0
    for grade_scores, label, weight in _rows(scores, labels, weights):
        logits = gamma * grade_scores
        total += weight * (log_sum_exp(logits) - logits[int(label)])
    return float(total)


def ordinal(scores: Vector, labels: Vector, weights: Weights = None) -> float:
    """Sum of sigmoid cross entropies, scores [n, grades]: output g is the logit of P(y > g)."""
    total = 0.0
    for logits, label, weight in _rows(scores, labels, weights):
        for grade, logit in enumerate(logits):
            total += weight * (softplus(logit) - min(max(label - grade, 0.0), 1.0) * logit)
    return float(total)


# --- pairs ---------------------------------------------------------------------------------------


def _exponential(z: float) -> float:
    """e^-z (lecture, Eq 19), continued by its tangent where -z > 30 so that it stays finite."""
    return math.exp(-z) if -z <= 30.0 else math.exp(30.0) * (1.0 + (-z - 30.0))


PHI: dict[str, Phi] = {  # lecture, Eq 19
    "hinge": lambda z: max(0.0, 1.0 - z),
    "exponential": _exponential,
    "logistic": lambda z: softplus(-z),
    # Base 2 is what makes it bound the zero-one loss (CIKM 2018, Eq 12).
    "logistic_base2": lambda z: softplus(-z) / math.log(2.0),
    "soft_zero_one": lambda z: sigmoid(-z),
}


def all_pairs(labels: Vector) -> list[tuple[int, int]]:
    """Ordered pairs (i, j) with i != j, whatever their labels."""
    return list(itertools.permutations(range(len(_floats(labels))), 2))


def preferred_pairs(labels: Vector) -> list[tuple[int, int]]:
    """Ordered pairs (i, j) with y_i > y_j (lecture, Eq 12)."""
    labels = _floats(labels)
    return [(i, j) for i, j in all_pairs(labels) if labels[i] > labels[j]]


def pair_sum(pair_weights: Array, scores: Vector, phi: Phi, sigma: float = 1.0) -> float:
    """Sum of W[i, j] phi(sigma (s_i - s_j)) with W held constant (lecture, Eq 18)."""
    scores, total = _floats(scores), 0.0
    for i, j in all_pairs(scores):
        total += pair_weights[i, j] * phi(sigma * (scores[i] - scores[j]))
    return float(total)


def _divisor(pair_count: float, pair_reduction: str) -> float:
    # Without pairs the sum is zero, and the mean must be zero too.
    return {"sum": 1.0, "mean": max(float(pair_count), 1.0)}[pair_reduction]


def _pair_weights(
    rule: PairRule, pairs: Sequence[tuple[int, int]], scores: Vector, weights: Weights,
    order_scores: Vector | None = None, pair_reduction: str = "sum",
) -> Array:  # fmt: skip
    """W[i, j] for i preferred over j, averaged over the sampled orders (CIKM 2018, Eq 9)."""
    size = len(_floats(scores))
    document_weights = _document_weights(weights, size)
    orders = np.atleast_2d(_floats(scores if order_scores is None else order_scores))
    matrix = np.zeros((size, size))
    for order in orders:
        rank = ranks(order)
        for i, j in pairs:
            matrix[i, j] += document_weights[i] * rule(i, j, rank) / len(orders)
    return matrix / _divisor(len(pairs), pair_reduction)


def _pairwise(phi: Phi) -> Callable[..., float]:
    """A loss that counts every preferred pair alike (lecture, Eq 18)."""

    def loss(
        scores: Vector, labels: Vector, weights: Weights = None, *, sigma: float = 1.0,
        pair_reduction: str = "sum",
    ) -> float:  # fmt: skip
        pairs = preferred_pairs(labels)
        matrix = _pair_weights(lambda i, j, rank: 1.0, pairs, scores, weights, None, pair_reduction)
        return pair_sum(matrix, scores, phi, sigma)

    return loss


pairwise_hinge = _pairwise(PHI["hinge"])  # lecture, Eqs 18 and 19
pairwise_exponential = _pairwise(PHI["exponential"])  # lecture, Eqs 18 and 19
pairwise_logistic = _pairwise(PHI["logistic"])  # lecture, Eqs 18 and 19; SIGIR 2022, Eq 6
pairwise_soft_zero_one = _pairwise(PHI["soft_zero_one"])  # lecture, Eqs 18 and 22


def pairwise_squared(
    scores: Vector, labels: Vector, weights: Weights = None, *, pair_reduction: str = "sum"
) -> float:
    """Squared gap between label and score differences, over ordered pairs, equal labels too."""
    scores, labels, pairs, total = _floats(scores), _floats(labels), all_pairs(labels), 0.0
    document_weights = _document_weights(weights, len(labels))
    for i, j in pairs:
        total += document_weights[i] * ((labels[i] - labels[j]) - (scores[i] - scores[j])) ** 2
    return float(total) / _divisor(len(pairs), pair_reduction)


def ranknet(
    scores: Vector, labels: Vector, weights: Weights = None, *, sigma: float = 1.0,
    pair_reduction: str = "sum",
) -> float:  # fmt: skip
    """Cross entropy with the desired probabilities 1, 1/2 and 0 (lecture, Eqs 21 to 23)."""
    labels = _floats(labels)

    def desired_probability(i: int, j: int, rank: Ranks) -> float:
        return 0.5 * (1.0 + float(np.sign(labels[i] - labels[j])))

    matrix = _pair_weights(desired_probability, all_pairs(labels), scores, weights)
    # The mean is over unordered pairs: each of them has a total desired probability of one.
    count = len(labels) * (len(labels) - 1) / 2
    return pair_sum(matrix, scores, PHI["logistic"], sigma) / _divisor(count, pair_reduction)


# --- the lambda family: constant weights first, then the sum over pairs --------------------------
# Keyword options that every function passes on: order_scores ([n] or [samples, n], whose stable
# descending order gives the ranks; the scores themselves by default) and pair_reduction.


def _within(topn: Cutoff, rank_i: int, rank_j: int) -> float:
    """The factor that truncates a lambda loss (CIKM 2018, Eq 18)."""
    return float(topn is None or min(rank_i, rank_j) <= topn)


def lambda_weights_lambdarank(
    scores: Vector, labels: Vector, weights: Weights = None, *, metric: str = "ndcg",
    topn: Cutoff = None, gain: str = "exponential", discount: str = "log2",
    normalize: bool = True, **options: Any,
) -> Array:  # fmt: skip
    """Change of the metric when two ranks are swapped (CIKM 2018, Eq 5; SIGIR 2022, Eqs 11, 12)."""
    labels = _floats(labels)
    gain_values = gains(labels, topn, gain, discount, normalize and metric == "ndcg")

    def rule(i: int, j: int, rank: Ranks) -> float:
        if metric in ("ndcg", "dcg"):
            return abs(gain_values[i] - gain_values[j]) * rho(rank[i], rank[j], topn, discount)
        # By brute force: put the two documents in each other's place and measure again.
        swapped = rank.copy()
        swapped[i], swapped[j] = rank[j], rank[i]
        measure = SWAP_METRICS[metric]
        return abs(measure(-swapped, labels, topn) - measure(-rank, labels, topn))

    return _pair_weights(rule, preferred_pairs(labels), scores, weights, **options)


def lambda_weights_arp_loss1(
    scores: Vector, labels: Vector, weights: Weights = None, **options: Any
) -> Array:
    """y_i for every j != i (CIKM 2018, section 5.1, ARP-Loss1)."""
    labels = _floats(labels)
    return _pair_weights(
        lambda i, j, rank: labels[i], all_pairs(labels), scores, weights, **options
    )


def lambda_weights_arp_loss2(
    scores: Vector, labels: Vector, weights: Weights = None, **options: Any
) -> Array:
    """|y_i - y_j| for preferred pairs (CIKM 2018, section 5.1, ARP-Loss2)."""
    labels = _floats(labels)
    pairs = preferred_pairs(labels)
    return _pair_weights(
        lambda i, j, rank: abs(labels[i] - labels[j]), pairs, scores, weights, **options
    )


def lambda_weights_ndcg_loss1(
    scores: Vector, labels: Vector, weights: Weights = None, *, topn: Cutoff = None,
    gain: str = "exponential", discount: str = "log2", normalize: bool = True, **options: Any,
) -> Array:  # fmt: skip
    """G_i / D_i for every j != i (CIKM 2018, section 5.2, NDCG-Loss1; truncated as in Eq 18)."""
    gain_values = gains(labels, topn, gain, discount, normalize)

    def rule(i: int, j: int, rank: Ranks) -> float:
        return _within(topn, rank[i], rank[j]) * gain_values[i] / discount_of(rank[i], discount)

    return _pair_weights(rule, all_pairs(labels), scores, weights, **options)


def lambda_weights_ndcg_loss2(
    scores: Vector, labels: Vector, weights: Weights = None, *, topn: Cutoff = None,
    cutoff: str = "corrected", gain: str = "exponential", discount: str = "log2",
    normalize: bool = True, **options: Any,
) -> Array:  # fmt: skip
    """|G_i - G_j| delta_ij (CIKM 2018, Eq 16); with a cutoff SIGIR 2022, Eq 16, or CIKM Eq 18."""
    gain_values = gains(labels, topn, gain, discount, normalize)

    def rule(i: int, j: int, rank: Ranks) -> float:
        factor = {
            "corrected": delta_at_k(rank[i], rank[j], topn, discount),
            "truncated": _within(topn, rank[i], rank[j]) * delta(rank[i], rank[j], discount),
        }[cutoff]
        return abs(gain_values[i] - gain_values[j]) * factor

    return _pair_weights(rule, preferred_pairs(labels), scores, weights, **options)


def lambda_weights_ndcg_loss2_plus_plus(
    scores: Vector, labels: Vector, weights: Weights = None, *, mu: float = 10.0,
    topn: Cutoff = None, gain: str = "exponential", discount: str = "log2",
    normalize: bool = True, **options: Any,
) -> Array:  # fmt: skip
    """|G_i - G_j| (rho_ij + mu delta_ij) (CIKM 2018, Eq 19; truncated as in Eq 18)."""
    gain_values = gains(labels, topn, gain, discount, normalize)

    def rule(i: int, j: int, rank: Ranks) -> float:
        # Truncation drops whole pairs here; rho itself stays the one without a cutoff.
        mixed = rho(rank[i], rank[j], None, discount) + mu * delta(rank[i], rank[j], discount)
        return _within(topn, rank[i], rank[j]) * abs(gain_values[i] - gain_values[j]) * mixed

    return _pair_weights(rule, preferred_pairs(labels), scores, weights, **options)


def _lambda_loss(weights_function: Callable[..., Array]) -> Callable[..., float]:
    """Base-2 logistic loss of the pairs under constant weights (CIKM 2018, Eqs 6 and 12)."""

    def loss(
        scores: Vector, labels: Vector, weights: Weights = None, *, sigma: float = 1.0,
        **options: Any,
    ) -> float:  # fmt: skip
        matrix = weights_function(scores, labels, weights, **options)
        return pair_sum(matrix, scores, PHI["logistic_base2"], sigma)

    return loss


lambdarank = _lambda_loss(lambda_weights_lambdarank)  # CIKM 2018, Eq 6
arp_loss1 = _lambda_loss(lambda_weights_arp_loss1)  # CIKM 2018, section 5.1
arp_loss2 = _lambda_loss(lambda_weights_arp_loss2)  # CIKM 2018, section 5.1
ndcg_loss1 = _lambda_loss(lambda_weights_ndcg_loss1)  # CIKM 2018, section 5.2
ndcg_loss2 = _lambda_loss(lambda_weights_ndcg_loss2)  # CIKM 2018, Eq 16; SIGIR 2022, Eq 16
ndcg_loss2_plus_plus = _lambda_loss(lambda_weights_ndcg_loss2_plus_plus)  # CIKM 2018, Eq 19


# --- listwise ------------------------------------------------------------------------------------


def _log_softmax(scores: Vector, temperature: float = 1.0, epsilon: float = 0.0) -> Array:
    """log(e^s_i / (sum e^s_j + epsilon)) (ICTIR 2019, Eq 6; WWW 2021, Eq 14)."""
    scores = _floats(scores) / temperature
    extra = [math.log(epsilon)] if epsilon > 0 else []
    return scores - log_sum_exp([*scores, *extra])


def softmax(
    scores: Vector, labels: Vector, weights: Weights = None, *, temperature: float = 1.0
) -> float:
    """Softmax cross entropy with the labels as they are (SIGIR 2022, Eq 7)."""
    rows = _rows(_log_softmax(scores, temperature), labels, weights)
    return -math.fsum(weight * label * log_probability for log_probability, label, weight in rows)


def listnet(
    scores: Vector, labels: Vector, weights: Weights = None, *, topk: int = 1,
    label_distribution: str = "softmax", temperature: float = 1.0,
) -> float:  # fmt: skip
    """Cross entropy of Plackett-Luce top-k probabilities (Cao et al, ICML 2007; ICTIR 2019, Eq 7).

    Sums over every ordered choice of k documents; the labels' strengths are e^y or y.
    """
    scores, labels, total = _floats(scores) / temperature, _floats(labels), 0.0
    document_weights = _document_weights(weights, len(labels))
    strength = {"softmax": np.exp(labels - max(labels, default=0.0)), "normalized": labels}
    for chosen in itertools.permutations(range(len(labels)), min(topk, len(labels))):
        probability, log_likelihood = 1.0, 0.0
        remaining = list(range(len(labels)))
        for i in chosen:
            own = float(strength[label_distribution][i])
            # A strength of zero is never drawn, also not when nothing else is left (0 / 0).
            mass = math.fsum(strength[label_distribution][j] for j in remaining)
            probability *= own / mass if own > 0 else 0.0
            log_factor = scores[i] - log_sum_exp(scores[j] for j in remaining)
            log_likelihood += document_weights[i] * log_factor
            remaining.remove(i)
        total -= probability * log_likelihood
    return float(total)


def _plackett_luce_terms(scores: Vector, labels: Vector, weights: Weights) -> list[float]:
    """-log of each factor of the probability of the order by labels (lecture, Eq 47)."""
    scores, labels = _floats(scores), _floats(labels)
    document_weights = _document_weights(weights, len(labels))
    order = sorted(range(len(labels)), key=lambda i: -labels[i])
    terms = []
    for position, i in enumerate(order):
        later = log_sum_exp(scores[j] for j in order[position:])
        terms.append(float(document_weights[i] * (later - scores[i])))
    return terms


def list_mle(
    scores: Vector, labels: Vector, weights: Weights = None, *, temperature: float = 1.0
) -> float:
    """-log probability of the stable order by labels (Xia et al, ICML 2008; lecture, Eq 47)."""
    return math.fsum(_plackett_luce_terms(_floats(scores) / temperature, labels, weights))


def position_aware_list_mle(
    scores: Vector, labels: Vector, weights: Weights = None, *, temperature: float = 1.0
) -> float:
    """ListMLE with position r weighted by 2^(n - r) - 1, normalised (Lan et al, UAI 2014)."""
    terms = _plackett_luce_terms(_floats(scores) / temperature, labels, weights)
    # Python's integers are exact, however long the list is.
    factors = [2 ** (len(terms) - position) - 1 for position in range(1, len(terms) + 1)]
    whole = sum(factors)
    return math.fsum(f / whole * term for f, term in zip(factors, terms, strict=True) if whole)


def xe_ndcg_label_distribution(labels: Vector, gamma: Vector = 0.0) -> Array:
    """phi of XE-NDCG (WWW 2021, Definition 1); zeros where its denominator is zero."""
    labels = _floats(labels)
    mass = 2.0**labels - np.broadcast_to(_floats(gamma), labels.shape)
    whole = math.fsum(mass)
    return mass / whole if whole > 0 else np.zeros_like(mass)


def xe_ndcg(
    scores: Vector, labels: Vector, weights: Weights = None, *, gamma: Vector = 0.0,
    epsilon: float = 0.0, temperature: float = 1.0,
) -> float:  # fmt: skip
    """Cross entropy between phi and rho (WWW 2021, Definition 1 and Eq 14)."""
    phi = xe_ndcg_label_distribution(labels, gamma)
    rows = _rows(_log_softmax(scores, temperature, epsilon), phi, weights)
    return -math.fsum(weight * share * log_rho for log_rho, share, weight in rows)


def xe_ndcg_newton_step(gradient: Vector, probabilities: Vector) -> Array:
    """Second-order Neumann step (I + S + S^2) D^-1 g in O(n) (WWW 2021, section 4.3)."""
    gradient, rho_values = _floats(gradient), _floats(probabilities)
    # Each sum over i != k is a total from which the own term is taken away.
    scaled = gradient / (1.0 - rho_values)
    first = (math.fsum(scaled) - scaled) / (1.0 - rho_values)
    weighted = rho_values * first
    second = (math.fsum(weighted) - weighted) / (1.0 - rho_values)
    return gradient / (rho_values * (1.0 - rho_values)) + first + second


def unique_softmax(
    scores: Vector, labels: Vector, weights: Weights = None, *, temperature: float = 1.0
) -> float:
    """Each document against the lower labels only, times 2^y - 1 (Zhu and Klabjan, WSDM 2020)."""
    scores, labels, total = _floats(scores) / temperature, _floats(labels), 0.0
    for i, weight in enumerate(_document_weights(weights, len(labels))):
        rivals = [scores[j] for j in range(len(labels)) if j == i or labels[j] < labels[i]]
        total += weight * gain_of(labels[i]) * (log_sum_exp(rivals) - scores[i])
    return float(total)


def poly1_softmax(
    scores: Vector, labels: Vector, weights: Weights = None, *, epsilon: float = 1.0,
    temperature: float = 1.0,
) -> float:  # fmt: skip
    """Softmax loss plus epsilon times the missed probability (Leng et al, ICLR 2022)."""
    labels = _floats(labels)
    mass = _document_weights(weights, len(labels)) * labels
    whole, hit = math.fsum(mass), 0.0
    if whole == 0:
        return 0.0
    for share, log_probability in zip(mass, _log_softmax(scores, temperature), strict=True):
        hit += share / whole * math.exp(log_probability)
    return softmax(scores, labels, weights, temperature=temperature) + epsilon * (1.0 - hit)


def calibrated_softmax(
    scores: Vector, labels: Vector, weights: Weights = None, *, virtual_label: float = 1.0,
    temperature: float = 1.0,
) -> float:  # fmt: skip
    """Softmax loss with one more document of score 0 (Yan et al, KDD 2022)."""
    scores, labels = _floats(scores), _floats(labels)
    if not len(labels):
        return 0.0
    extended_weights = [*_document_weights(weights, len(labels)), 1.0]
    return softmax(
        [*scores, 0.0], [*labels, virtual_label], extended_weights, temperature=temperature
    )


# --- smooth metrics ------------------------------------------------------------------------------


def soft_ranks(scores: Vector, temperature: float = 1.0) -> Array:
    """1 + the sum over j != i of sigmoid((s_j - s_i) / temperature) (SIGIR 2022, Eq 8)."""
    scores = _floats(scores)
    result = np.ones(len(scores))
    for i, j in all_pairs(scores):
        result[i] += sigmoid((scores[j] - scores[i]) / temperature)
    return result


def _soft_cutoff(soft_rank: float, topn: Cutoff, temperature: float) -> float:
    return 1.0 if topn is None else sigmoid((topn + 0.5 - soft_rank) / temperature)


def approx_ndcg(
    scores: Vector, labels: Vector, weights: Weights = None, *, temperature: float = 1.0,
    topn: Cutoff = None, gain: str = "exponential", discount: str = "log2",
    normalize: bool = True,
) -> float:  # fmt: skip
    """-NDCG at the soft ranks (SIGIR 2022, Eqs 3 and 8)."""
    gain_values, total = gains(labels, topn, gain, discount, normalize), 0.0
    document_weights = _document_weights(weights, len(gain_values))
    for i, soft_rank in enumerate(soft_ranks(scores, temperature)):
        inside = _soft_cutoff(soft_rank, topn, temperature)
        total -= document_weights[i] * gain_values[i] * inside / discount_of(soft_rank, discount)
    return float(total)


def approx_dcg(scores: Vector, labels: Vector, weights: Weights = None, **options: Any) -> float:
    """-DCG at the soft ranks (SIGIR 2022, Eqs 2 and 8)."""
    return approx_ndcg(scores, labels, weights, normalize=False, **options)


def approx_mrr(
    scores: Vector, labels: Vector, weights: Weights = None, *, temperature: float = 1.0,
    topn: Cutoff = None,
) -> float:  # fmt: skip
    """-max of the reciprocal soft ranks of relevant documents (ICTIR 2019, Eq 4; SIGIR, Eq 8)."""
    labels, best = _floats(labels), []
    document_weights = _document_weights(weights, len(labels))
    for i, soft_rank in enumerate(soft_ranks(scores, temperature)):
        if labels[i] > 0:
            inside = _soft_cutoff(soft_rank, topn, temperature)
            best.append(float(document_weights[i] * inside / soft_rank))
    return -max(best, default=0.0)


def approx_map(
    scores: Vector, labels: Vector, weights: Weights = None, *, temperature: float = 1.0,
    topn: Cutoff = None,
) -> float:  # fmt: skip
    """-average precision at the soft ranks (Qin et al, Information Retrieval 2010)."""
    scores, labels, total = _floats(scores), _floats(labels), 0.0
    document_weights = _document_weights(weights, len(labels))
    soft_rank = soft_ranks(scores, temperature)
    relevant = [i for i in range(len(labels)) if labels[i] > 0]
    for i in relevant:
        above = sum(sigmoid((scores[j] - scores[i]) / temperature) for j in relevant if j != i)
        inside = _soft_cutoff(soft_rank[i], topn, temperature)
        total -= document_weights[i] * inside * (1.0 + above) / soft_rank[i]
    return float(total) / len(relevant) if relevant else 0.0


def beating_probability(score_j: float, score_i: float, noise_scale: float) -> float:
    """P(j ranked above i) for Normal scores (Taylor et al, WSDM 2008)."""
    # The difference of two scores has the variance 2 noise_scale^2; erfc brings another sqrt(2).
    return 0.5 * math.erfc(-(score_j - score_i) / (2.0 * noise_scale))


def rank_distribution(scores: Vector, i: int, noise_scale: float) -> Array:
    """P(rank of i = r) at index r - 1, by adding one rival at a time (Taylor et al, WSDM 2008)."""
    scores = _floats(scores)
    distribution = [1.0]
    for j in range(len(scores)):
        if j == i:
            continue
        pushed = beating_probability(scores[j], scores[i], noise_scale)
        longer = [0.0] * (len(distribution) + 1)
        for place, probability in enumerate(distribution):
            longer[place] += probability * (1.0 - pushed)
            longer[place + 1] += probability * pushed
        distribution = longer
    return np.array(distribution)


def soft_ndcg(
    scores: Vector, labels: Vector, weights: Weights = None, *, noise_scale: float = 1.0,
    topn: Cutoff = None, gain: str = "exponential", discount: str = "log2",
    normalize: bool = True,
) -> float:  # fmt: skip
    """-expected NDCG under the rank distributions (Taylor et al, WSDM 2008)."""
    gain_values, total = gains(labels, topn, gain, discount, normalize), 0.0
    for i, weight in enumerate(_document_weights(weights, len(gain_values))):
        for rank, probability in enumerate(rank_distribution(scores, i, noise_scale), start=1):
            if topn is None or rank <= topn:
                total -= weight * gain_values[i] * probability / discount_of(rank, discount)
    return float(total)


def mean_over_noise(
    loss: Callable[[Array], float], scores: Vector, noise: Vector, beta: float = 1.0
) -> float:
    """Mean of a loss at s + beta g over the rows g of the noise (SIGIR 2022, Eqs 9 and 10)."""
    rows = np.atleast_2d(_floats(noise))
    return math.fsum(loss(_floats(scores) + beta * row) for row in rows) / len(rows)
