"""Each metric from its definition, for one ranked list, in plain NumPy and loops.

A function takes the labels and the weights of the documents from the first rank to the last and the
options of the metric, and returns the value and whether there is anything to find in the list.
Ties are what their definition says: the mean over every order of equal scores, one after the other.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Result = tuple[float, bool]


def gain_of(label: float, gain: str) -> float:
    return 2.0**label - 1.0 if gain == "exponential" else label


def discount_of(rank: int, discount: str) -> float:
    return math.log2(1 + rank) if discount == "log2" else float(rank)


def dcg(labels: Any, weights: Any, topn: Any = None, gain="exponential", discount="log2") -> Result:
    total = sum(
        weight * gain_of(label, gain) / discount_of(rank, discount)
        for rank, (label, weight) in enumerate(zip(labels, weights), start=1)
        if topn is None or rank <= topn
    )
    return total, any(weight * gain_of(y, gain) > 0 for y, weight in zip(labels, weights))


def max_dcg(labels: Any, weights: Any, topn: Any, gain: str, discount: str) -> float:
    gains = sorted((w * gain_of(y, gain) for y, w in zip(labels, weights)), reverse=True)
    first = gains if topn is None else gains[:topn]
    return sum(g / discount_of(rank, discount) for rank, g in enumerate(first, start=1))


def ndcg(labels: Any, weights: Any, topn=None, gain="exponential", discount="log2") -> Result:
    ideal = max_dcg(labels, weights, topn, gain, discount)
    if ideal == 0:
        return 0.0, False
    return dcg(labels, weights, topn, gain, discount)[0] / ideal, True


def ndcg_cost(labels: Any, weights: Any, topn=None, gain="exponential", discount="log2") -> Result:
    ideal = max_dcg(labels, weights, topn, gain, discount)
    if ideal == 0:
        return 0.0, False
    cost = 0.0
    for rank, (label, weight) in enumerate(zip(labels, weights), start=1):
        inside = topn is None or rank <= topn
        lost = 1 - 1 / discount_of(rank, discount) if inside else 1
        cost += weight * gain_of(label, gain) / ideal * lost
    return cost, True


def lambda_rank_metric(
    labels: Any, weights: Any, topn=None, gain="exponential", discount="log2"
) -> Result:
    ideal = max_dcg(labels, weights, topn, gain, discount)
    if ideal == 0:
        return 0.0, False

    def credit(rank: int) -> float:
        return 1 / discount_of(rank, discount) if topn is None or rank <= topn else 0.0

    total = 0.0
    for rank, (label, weight) in enumerate(zip(labels, weights), start=1):
        for above in range(1, rank):
            total += weight * gain_of(label, gain) / ideal * abs(credit(above) - credit(rank))
    return total, True


def is_relevant(label: float, relevance_threshold: float | None) -> bool:
    return label > 0 if relevance_threshold is None else label >= relevance_threshold


def mrr(labels: Any, weights: Any, topn=None, relevance_threshold=None) -> Result:
    for rank, (label, weight) in enumerate(zip(labels, weights), start=1):
        if is_relevant(label, relevance_threshold):
            return (weight / rank if topn is None or rank <= topn else 0.0), True
    return 0.0, False


def hit_rate(labels: Any, weights: Any, topn=None, relevance_threshold=None) -> Result:
    for rank, (label, weight) in enumerate(zip(labels, weights), start=1):
        if is_relevant(label, relevance_threshold):
            return (weight if topn is None or rank <= topn else 0.0), True
    return 0.0, False


def average_precision(labels: Any, weights: Any, topn=None, relevance_threshold=None) -> Result:
    found, total, every = 0, 0.0, 0.0
    for rank, (label, weight) in enumerate(zip(labels, weights), start=1):
        if is_relevant(label, relevance_threshold):
            found += 1
            every += weight
            if topn is None or rank <= topn:
                total += weight * found / rank
    return (total / every, True) if every else (0.0, False)


def precision(labels: Any, weights: Any, topn=None, relevance_threshold=None) -> Result:
    relevant = [is_relevant(y, relevance_threshold) for y in labels]
    first = sum(w for w, r in list(zip(weights, relevant))[:topn] if r)
    return first / (topn or len(labels)), any(relevant)


def recall(labels: Any, weights: Any, topn=None, relevance_threshold=None) -> Result:
    relevant = [w if is_relevant(y, relevance_threshold) else 0.0 for y, w in zip(labels, weights)]
    return (sum(relevant[:topn]) / sum(relevant), True) if sum(relevant) else (0.0, False)


def rbp(labels: Any, weights: Any, persistence=0.8, topn=None, relevance_threshold=None) -> Result:
    relevant = [is_relevant(y, relevance_threshold) for y in labels]
    terms = [w * persistence**r for r, (w, here) in enumerate(zip(weights, relevant)) if here]
    inside = sum(relevant[:topn])
    return (1 - persistence) * sum(terms[:inside]), any(relevant)


def arp(labels: Any, weights: Any, normalize=True) -> Result:
    total = sum(w * y for y, w in zip(labels, weights))
    positions = sum(w * y * r for r, (y, w) in enumerate(zip(labels, weights), start=1))
    return (positions / total if normalize and total else positions), total > 0


def err(labels: Any, weights: Any, topn=None, highest_label=4) -> Result:
    reached, total = 1.0, 0.0
    for rank, (label, weight) in enumerate(zip(labels, weights), start=1):
        satisfied = (2.0 ** min(label, highest_label) - 1.0) / 2.0**highest_label
        if topn is None or rank <= topn:
            total += weight * reached * satisfied / rank
        reached *= 1 - satisfied
    return total, any(y > 0 for y in labels)


def ordered_pair_accuracy(labels: Any, weights: Any) -> Result:
    right = pairs = 0.0
    for i, j in itertools.permutations(range(len(labels)), 2):
        if labels[i] > labels[j]:
            pairs += weights[i]
            right += weights[i] * (i < j)
    return (right / pairs, True) if pairs else (0.0, False)


def precision_ia(labels: Any, weights: Any, topn=None, relevance_threshold=None) -> Result:
    subtopics = list(zip(*labels))
    each = [precision(s, weights, topn, relevance_threshold) for s in subtopics]
    each = [value for value, relevant in each if relevant]
    return (sum(each) / len(each), True) if each else (0.0, False)


def alpha_dcg(labels: Any, weights: Any, alpha: float, topn: Any, discount: str, threshold: Any):
    seen = [0] * len(labels[0])
    total = 0.0
    for rank, (document, weight) in enumerate(zip(labels, weights), start=1):
        covers = [is_relevant(y, threshold) for y in document]
        gain = sum((1 - alpha) ** times for times, here in zip(seen, covers) if here)
        if topn is None or rank <= topn:
            total += weight * gain / discount_of(rank, discount)
        seen = [times + here for times, here in zip(seen, covers)]
    return total


def alpha_ndcg(
    labels: Any, weights: Any, topn=None, alpha=0.5, discount="log2", relevance_threshold=None
) -> Result:
    left, order = list(range(len(labels))), []
    seen = [0] * len(labels[0])
    while left:
        gains = [
            weights[i]
            * sum(
                (1 - alpha) ** times
                for times, y in zip(seen, labels[i])
                if is_relevant(y, relevance_threshold)
            )
            for i in left
        ]
        best = left[int(np.argmax(gains))]
        order.append(best)
        left.remove(best)
        seen = [s + is_relevant(y, relevance_threshold) for s, y in zip(seen, labels[best])]
    ideal = alpha_dcg(
        [labels[i] for i in order],
        [weights[i] for i in order],
        alpha,
        topn,
        discount,
        relevance_threshold,
    )
    if ideal == 0:
        return 0.0, False
    return alpha_dcg(labels, weights, alpha, topn, discount, relevance_threshold) / ideal, True


ORACLES: dict[str, Callable[..., Result]] = {
    "ndcg": ndcg,
    "dcg": dcg,
    "mrr": mrr,
    "map": average_precision,
    "precision": precision,
    "recall": recall,
    "hit_rate": hit_rate,
    "arp": arp,
    "err": err,
    "rbp": rbp,
    "ordered_pair_accuracy": ordered_pair_accuracy,
    "alpha_ndcg": alpha_ndcg,
    "precision_ia": precision_ia,
    "ndcg_cost": ndcg_cost,
    "lambda_rank_metric": lambda_rank_metric,
}


def orders(scores: Any, labels: Any, ties: str) -> Iterator[list[int]]:
    """The orders that a rule for ties allows, all equally likely."""
    indices = range(len(scores))
    total = [float(np.sum(y)) for y in labels]
    if ties == "position":
        yield sorted(indices, key=lambda i: -scores[i])
    elif ties == "worst":
        yield sorted(indices, key=lambda i: (-scores[i], total[i]))
    elif ties == "best":
        yield sorted(indices, key=lambda i: (-scores[i], -total[i]))
    else:
        groups = [
            list(itertools.permutations(i for i in indices if scores[i] == value))
            for value in sorted(set(scores), reverse=True)
        ]
        for choice in itertools.product(*groups):
            yield list(itertools.chain(*choice))


def measure(name: str, labels: Any, scores: Any, weights: Any, ties: str, **options: Any) -> Result:
    """The metric of one list of documents in any order."""
    results = [
        ORACLES[name]([labels[i] for i in order], [weights[i] for i in order], **options)
        for order in orders(list(scores), labels, ties)
    ]
    return float(np.mean([value for value, _ in results])), results[0][1]
