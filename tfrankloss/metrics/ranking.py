"""The metrics: each is a formula on the documents in the order of their scores.

`r` is the rank of a document from 1, `y` its label, `G = 2^y - 1` its gain, `D(r) = log2(1 + r)`
the discount, `K` the cutoff `topn`. Where documents have weights, a weight multiplies what its
document contributes.
"""

import math
from typing import Any

from keras import ops

from tfrankloss.core import ranks
from tfrankloss.core.backend import Array
from tfrankloss.core.blocks import Documents, pad_to_rows, sum_over_rows
from tfrankloss.core.lists import grades
from tfrankloss.core.ranked import Ranked
from tfrankloss.core.ranks import divide_no_nan, inverse_discounts
from tfrankloss.metrics.base import CutoffMetric, Measured, RankingMetric
from tfrankloss.options import (
    check_fraction,
    check_function,
    check_positive,
    register,
)


class GainMetric(CutoffMetric):
    """A metric of gains and discounts.

    Args:
        topn: the cutoff K.
        gain: `"exponential"`, `G = 2^y - 1`; `"linear"`, `G = y`; or a function of the labels in
            `keras.ops`.
        discount: `"log2"`, `D(r) = log2(1 + r)`; `"linear"`, `D(r) = r`; or a function of the
            ranks, which must grow.
        ties: see `RankingMetric`, as the other arguments.
    """

    ideal = True

    def __init__(
        self,
        topn: int | None = None,
        gain: ranks.Gain = "exponential",
        discount: ranks.Discount = "log2",
        **arguments: Any,
    ) -> None:
        check_function("gain", gain, ranks.GAINS)
        check_function("discount", discount, ranks.DISCOUNTS)
        super().__init__(topn, **arguments)
        self.gain = gain
        self.discount = discount

    def _credit(self, ranked: Ranked) -> Array:
        """`[r <= K] / D(r)` of each document."""
        return inverse_discounts(ranked.rank, self.discount, self.topn)

    def _cost(self, ranked: Ranked, credit: Array) -> Measured:
        """`sum_i G_i credit_i / maxDCG`."""
        total = ops.sum(ranked.gains(self.gain) * ranked.expected(credit), axis=1)
        max_dcg = ranked.max_dcg(self.gain, self.discount, self.topn)
        return Measured(divide_no_nan(total, max_dcg), max_dcg > 0)


@register
class DCG(GainMetric):
    """Discounted cumulative gain, `sum_{r_i <= K} G_i / D(r_i)` (Järvelin and Kekäläinen 2002).

    >>> metric = DCG(topn=2)
    >>> metric.update_state([[2.0, 0.0, 1.0]], [[0.3, 0.2, 0.1]])
    >>> float(metric.result())  # 3 / log2(2) + 0 / log2(3)
    3.0
    """

    def measure(self, ranked: Ranked) -> Measured:
        gains = ranked.weigh(ranks.gains(ranked.labels, ranked.mask, self.gain))
        values = ops.sum(gains * ranked.expected(self._credit(ranked)), axis=1)
        return Measured(values, ops.any(gains > 0, axis=1))


@register
class NDCG(GainMetric):
    """DCG@K divided by that of the ideal order (Järvelin and Kekäläinen 2002).

    Arguments: see `GainMetric` (`topn`, `gain`, `discount`) and `RankingMetric` (`ties`,
    `no_relevant`, `name`, `dtype`).

    >>> metric = NDCG(topn=10)
    >>> metric.name
    'ndcg@10'
    >>> metric.update_state([[2.0, 0.0, 1.0]], [[0.3, 0.2, 0.1]])
    >>> round(float(metric.result()), 4)  # (3 + 1 / log2(4)) / (3 + 1 / log2(3))
    0.9639

    With the average over the orders of equal scores a constant scorer gets its expected value:

    >>> metric = NDCG(topn=1, ties="average", gain="linear")
    >>> metric.update_state([[1.0, 0.0, 0.0, 0.0]], [[0.5, 0.5, 0.5, 0.5]])
    >>> float(metric.result())
    0.25
    """

    def measure(self, ranked: Ranked) -> Measured:
        first = ranked.first(self.topn)
        dcg = ops.sum(first.gains(self.gain) * first.expected(self._credit(first)), axis=1)
        max_dcg = ranked.max_dcg(self.gain, self.discount, self.topn)
        return Measured(divide_no_nan(dcg, max_dcg), max_dcg > 0)


@register
class NDCGCost(GainMetric):
    """`sum_i G_i / maxDCG (1 - [r_i <= K] / D(r_i))`, what a ranking loses (CIKM 2018, Eq 14).

    With a cutoff, a document beyond it costs its whole gain (SIGIR 2022, Eq 17).

    >>> metric = NDCGCost(gain="linear")
    >>> metric.update_state([[1.0, 0.0]], [[0.2, 0.1]])
    >>> float(metric.result())
    0.0
    """

    _direction = "down"

    def measure(self, ranked: Ranked) -> Measured:
        return self._cost(ranked, 1.0 - self._credit(ranked))


@register
class LambdaRankMetric(GainMetric):
    """`sum_i G_i / maxDCG sum_{r < r_i} (1 / D(r) - 1 / D(r_i))` (CIKM 2018, Eqs 17 and 18).

    What LambdaRank bounds: a coarser bound on `NDCGCost` than that of NDCG-Loss2. With a cutoff,
    `1 / D` is 0 beyond it.

    >>> metric = LambdaRankMetric(gain="linear", discount="linear")
    >>> metric.update_state([[0.0, 1.0]], [[0.2, 0.1]])
    >>> float(metric.result())  # 1 / 1 - 1 / 2
    0.5
    """

    _direction = "down"

    def measure(self, ranked: Ranked) -> Measured:
        credit = self._credit(ranked)
        above = ops.cumsum(credit, axis=1) - credit
        return self._cost(ranked, above - (ranked.rank - 1.0) * credit)


class BinaryMetric(CutoffMetric):
    """A metric of relevant and other documents.

    Args:
        topn: the cutoff K.
        relevance_threshold: the lowest label of a relevant document. By default every label above 0
            is relevant.
        ties: see `RankingMetric`, as the other arguments.
    """

    def __init__(
        self,
        topn: int | None = None,
        relevance_threshold: float | None = None,
        **arguments: Any,
    ) -> None:
        if relevance_threshold is not None:
            check_positive("relevance_threshold", relevance_threshold)
        super().__init__(topn, **arguments)
        self.relevance_threshold = relevance_threshold

    def _relevant(self, ranked: Ranked) -> Array:
        """1 for a relevant document, 0 for others and in padding; as the labels."""
        threshold = self.relevance_threshold
        if ("relevant", threshold) not in ranked.known:
            labels = ranked.labels  # 0 in padding
            relevant = labels > 0 if threshold is None else labels >= threshold
            ranked.known["relevant", threshold] = ops.cast(relevant, ranked.scores.dtype)
        return ranked.known["relevant", threshold]

    def _total(self, ranked: Ranked) -> Array:
        """`[batch]`: the number of relevant documents, or what they weigh."""
        if ("total", self.relevance_threshold) not in ranked.known:
            total = ops.sum(ranked.weigh(self._relevant(ranked)), axis=1)
            ranked.known["total", self.relevance_threshold] = total
        return ranked.known["total", self.relevance_threshold]

    def _inside(self, ranked: Ranked, x: Array) -> Array:
        """`x`, with 0 at the ranks beyond the cutoff."""
        return x if self.topn is None else ops.where(ranked.rank <= self.topn, x, 0.0 * x)

    def _found(self, ranked: Ranked) -> Array:
        """`[batch, list]` or `[batch, list, subtopics]`: relevant documents up to the cutoff."""
        first = ranked.first(self.topn)
        inside = first.expected(self._inside(first, ops.ones_like(first.rank)))
        found = first.weigh(self._relevant(first))
        return found * (inside if len(found.shape) == 2 else inside[:, :, None])

    def _places(self, ranked: Ranked) -> Array:
        """`[batch]`: the cutoff, or the number of documents where there is none."""
        documents = ops.sum(ops.cast(ranked.mask, ranked.scores.dtype), axis=1)
        places = documents if self.topn is None else ops.full_like(documents, self.topn)
        return ops.maximum(places, 1.0)


@register
class MRR(BinaryMetric):
    """Mean reciprocal rank, `1 / r` of the first relevant document, 0 beyond the cutoff.

    >>> metric = MRR()
    >>> metric.update_state([[0.0, 1.0, 1.0]], [[0.3, 0.2, 0.1]])
    >>> float(metric.result())
    0.5
    """

    def measure(self, ranked: Ranked) -> Measured:
        chance = self._inside(ranked, ranked.first_relevant(self._relevant(ranked)))
        return Measured(ops.sum(chance / ranked.rank, axis=1), self._total(ranked) > 0)


@register
class HitRate(BinaryMetric):
    """Whether a relevant document is among the first K.

    >>> metric = HitRate(topn=2)
    >>> metric.update_state([[0.0, 1.0, 1.0], [0.0, 0.0, 1.0]], [[0.3, 0.2, 0.1], [0.3, 0.2, 0.1]])
    >>> float(metric.result())
    0.5
    """

    def measure(self, ranked: Ranked) -> Measured:
        chance = self._inside(ranked, ranked.first_relevant(self._relevant(ranked)))
        return Measured(ops.sum(chance, axis=1), self._total(ranked) > 0)


@register
class MAP(BinaryMetric):
    """Mean average precision, `(1 / R) sum_{relevant, r <= K} precision@r`, R relevant documents.

    With a cutoff the divisor is still the number of all relevant documents, as trec_eval's
    `map_cut` has it.

    >>> metric = MAP()
    >>> metric.update_state([[0.0, 1.0, 1.0]], [[0.3, 0.2, 0.1]])
    >>> round(float(metric.result()), 4)  # (1 / 2 + 2 / 3) / 2
    0.5833
    """

    def measure(self, ranked: Ranked) -> Measured:
        first = ranked.first(self.topn)
        precision = first.running_precision(self._relevant(first))
        precision = ops.sum(self._inside(first, precision), axis=1)
        total = self._total(ranked)
        return Measured(divide_no_nan(precision, total), total > 0)


@register
class Precision(BinaryMetric):
    """The share of relevant documents among the first K (of K also where the list is shorter).

    >>> metric = Precision(topn=2)
    >>> metric.update_state([[0.0, 1.0, 1.0]], [[0.3, 0.2, 0.1]])
    >>> float(metric.result())
    0.5
    """

    def measure(self, ranked: Ranked) -> Measured:
        found = ops.sum(self._found(ranked), axis=1)
        return Measured(found / self._places(ranked), self._total(ranked) > 0)


@register
class Recall(BinaryMetric):
    """The share of the relevant documents that are among the first K.

    >>> metric = Recall(topn=2)
    >>> metric.update_state([[0.0, 1.0, 1.0]], [[0.3, 0.2, 0.1]])
    >>> float(metric.result())
    0.5
    """

    def measure(self, ranked: Ranked) -> Measured:
        total = self._total(ranked)
        found = ops.sum(self._found(ranked), axis=1)
        return Measured(divide_no_nan(found, total), total > 0)


@register
class RBP(BinaryMetric):
    """Rank-biased precision, `(1 - p) sum_{relevant, r <= K} p^(r - 1)` (Moffat and Zobel 2008).

    Args:
        persistence: `p`, the probability that a reader goes on to the next document.
        topn: the cutoff K.
        relevance_threshold: see `BinaryMetric`, as the other arguments.

    >>> metric = RBP(persistence=0.5)
    >>> metric.update_state([[0.0, 1.0, 1.0]], [[0.3, 0.2, 0.1]])
    >>> float(metric.result())  # 0.5 (0.5 + 0.25)
    0.375
    """

    def __init__(self, persistence: float = 0.8, topn: int | None = None, **arguments: Any) -> None:
        check_fraction("persistence", persistence)
        super().__init__(topn, **arguments)
        self.persistence = persistence

    def measure(self, ranked: Ranked) -> Measured:
        relevant = ranked.weigh(self._relevant(ranked))
        reached = ops.exp((ranked.rank - 1.0) * math.log(self.persistence))
        credit = ranked.expected(self._inside(ranked, reached))
        values = (1.0 - self.persistence) * ops.sum(relevant * credit, axis=1)
        return Measured(values, self._total(ranked) > 0)


@register
class ARP(RankingMetric):
    """Average relevance position, `sum_i y_i r_i / sum_i y_i` (CIKM 2018, Sect. 5.1).

    Args:
        normalize: whether to divide by the sum of the labels. What ARP-Loss1 and ARP-Loss2 bound is
            the sum that is not divided.
        ties: see `RankingMetric`, as the other arguments.

    >>> metric = ARP()
    >>> metric.update_state([[0.0, 1.0, 1.0]], [[0.3, 0.2, 0.1]])
    >>> float(metric.result())
    2.5
    """

    _direction = "down"

    def __init__(self, normalize: bool = True, **arguments: Any) -> None:
        if not isinstance(normalize, bool):
            raise ValueError(f"normalize must be True or False. Received: normalize={normalize!r}")
        super().__init__(**arguments)
        self.normalize = normalize

    def measure(self, ranked: Ranked) -> Measured:
        labels = ranked.weigh(ranked.labels)
        positions = ops.sum(labels * ranked.expected(ranked.rank), axis=1)
        total = ops.sum(labels, axis=1)
        return Measured(divide_no_nan(positions, total) if self.normalize else positions, total > 0)


@register
class ERR(CutoffMetric):
    """Expected reciprocal rank, `sum_r (1 / r) R_r prod_{q < r} (1 - R_q)` (Chapelle et al. 2009).

    `R = (2^y - 1) / 2^highest_label` is the probability that a document satisfies the reader.

    Args:
        topn: the cutoff K.
        highest_label: the highest grade of the scale; labels above it count as the highest.
        ties: see `RankingMetric`, as the other arguments.

    >>> metric = ERR(highest_label=1)
    >>> metric.update_state([[1.0, 0.0, 1.0]], [[0.3, 0.2, 0.1]])
    >>> round(float(metric.result()), 4)  # 1 / 2 + (1 / 3) (1 / 2) (1 / 2)
    0.5833
    """

    def __init__(self, topn: int | None = None, highest_label: float = 4, **arguments: Any) -> None:
        check_positive("highest_label", highest_label)
        super().__init__(topn, **arguments)
        self.highest_label = highest_label

    def measure(self, ranked: Ranked) -> Measured:
        label = ops.minimum(ranked.labels, self.highest_label)
        satisfied = ranks.power_of_two(label - self.highest_label) - 2.0**-self.highest_label
        stops = ranked.cascade(ranked.weigh(satisfied), satisfied)
        credit = inverse_discounts(ranked.rank, "linear", self.topn)
        return Measured(
            ops.sum(stops * credit, axis=1),
            ops.any(ranked.weigh(ranked.labels) > 0, axis=1),
        )


@register
class OrderedPairAccuracy(RankingMetric):
    """The share of the pairs with `y_i > y_j` that have `s_i > s_j`.

    A pair of equal scores counts one half with `ties="average"`, nothing at the worst and 1 at the
    best. The weight of a pair is that of its document with the higher label.

    >>> metric = OrderedPairAccuracy()
    >>> metric.update_state([[0.0, 1.0, 2.0]], [[0.3, 0.2, 0.4]])  # two of three pairs
    >>> round(float(metric.result()), 4)
    0.6667
    """

    def measure(self, ranked: Ranked) -> Measured:
        lists = ranked.lists
        documents = pad_to_rows(
            Documents(score=lists.scores, label=lists.labels, mask=lists.mask, weight=lists.weights)
        )
        documents.grade = grades(documents.label, documents.mask)
        documents.index = ops.arange(ops.shape(documents.score)[1], dtype="int32")[None, :]
        credit = {"position": None, "average": 0.5, "worst": 0.0, "best": 1.0}[self.ties]

        def terms(document: Documents, other: Documents) -> tuple[Array, Array]:
            pair = ops.where(document.grade > other.grade, document.weight, 0.0)
            equal = document.score == other.score
            if credit is None:
                tied = ops.cast(document.index < other.index, pair.dtype)
            else:
                tied = ops.full_like(pair, credit)
            right = ops.cast(document.score > other.score, pair.dtype)
            return pair * ops.where(equal, tied, right), pair

        right, pairs = (
            ops.sum(x, axis=1) for x in sum_over_rows(terms, documents, documents, sums=2)
        )
        return Measured(divide_no_nan(right, pairs), pairs > 0)


class SubtopicMetric(BinaryMetric):
    """A metric of diversity: labels are `[batch, list, subtopics]`.

    A document is padding if its labels are below 0 for all subtopics. `"worst"` and `"best"` order
    equal scores by the sum of the labels over the subtopics.
    """

    subtopics = True


@register
class PrecisionIA(SubtopicMetric):
    """Intent-aware precision, the mean of precision@K over the subtopics (Agrawal et al. 2009).

    Subtopics without a relevant document in the list do not count.

    >>> metric = PrecisionIA(topn=2)
    >>> metric.update_state([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]], [[0.3, 0.2, 0.1]])
    >>> float(metric.result())  # (2 / 2 + 0 / 2) / 2
    0.5
    """

    def measure(self, ranked: Ranked) -> Measured:
        found = ops.sum(self._found(ranked), axis=(1, 2))
        covered = ops.any(ranked.weigh(self._relevant(ranked)) > 0, axis=1)
        subtopics = ops.sum(ops.cast(covered, found.dtype), axis=1)
        return Measured(divide_no_nan(found, subtopics * self._places(ranked)), subtopics > 0)


@register
class AlphaNDCG(SubtopicMetric):
    """alpha-NDCG@K, where what repeats a subtopic gains less (Clarke et al. 2008).

    `sum_{r <= K} (1 / D(r)) sum_s J_rs (1 - alpha)^(documents above r with subtopic s)`, with `J`
    1 where a document is relevant for a subtopic, divided by the same of an ideal order. That is
    built greedily, as in the paper: the best order is too costly to find.

    Args:
        topn: the cutoff K.
        alpha: how much a repetition loses.
        discount: see `GainMetric`.
        relevance_threshold: see `BinaryMetric`, as the other arguments.

    >>> metric = AlphaNDCG(topn=2)
    >>> metric.update_state([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]], [[0.3, 0.2, 0.1]])
    >>> round(float(metric.result()), 4)  # (1 + 0.5 / log2(3)) / (1 + 1 / log2(3))
    0.8066
    """

    def __init__(
        self,
        topn: int | None = None,
        alpha: float = 0.5,
        discount: ranks.Discount = "log2",
        **arguments: Any,
    ) -> None:
        check_fraction("alpha", alpha, closed=True)
        check_function("discount", discount, ranks.DISCOUNTS)
        super().__init__(topn, **arguments)
        self.alpha = alpha
        self.discount = discount

    def measure(self, ranked: Ranked) -> Measured:
        relevant = self._relevant(ranked)  # [batch, list, subtopics]
        credit = inverse_discounts(ranked.rank, self.discount, self.topn)
        weighted = ranked.weigh(relevant)
        novelty = sum(
            ranked.cascade(weighted[:, :, subtopic], self.alpha * relevant[:, :, subtopic])
            for subtopic in range(relevant.shape[2])
        )
        values = ops.sum(novelty * credit, axis=1)
        ideal = self._greedy(relevant, weighted, ranked.mask, credit)
        return Measured(divide_no_nan(values, ideal), ideal > 0)

    def _greedy(self, relevant: Array, weighted: Array, mask: Array, credit: Array) -> Array:
        """`[batch]`: the alpha-DCG of the order that always takes the document that gains most."""
        length = ops.shape(relevant)[1]
        steps = length if self.topn is None else ops.minimum(length, self.topn)
        index = ops.arange(length, dtype="int32")[None, :]

        def take(number: Any, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            total, left, new = state  # so far; documents not taken; what a subtopic still gains
            gains = ops.sum(weighted * new[:, None, :], axis=2)
            gains = ops.where(left, gains, -ops.ones_like(gains))
            best = ops.cast(ops.argmax(gains, axis=1), "int32")[:, None] == index
            gain = ops.maximum(ops.max(gains, axis=1), 0.0)
            covered = ops.sum(ops.where(best[:, :, None], relevant, 0.0 * relevant), axis=1)
            new = ops.where(covered > 0, (1.0 - self.alpha) * new, new)
            place = ops.where(index == number, credit, 0.0 * credit)
            left = ops.logical_and(left, ops.logical_not(best))
            return total + gain * ops.sum(place, axis=1), left, new

        start = (ops.zeros_like(relevant[:, 0, 0]), mask, ops.ones_like(relevant[:, 0]))
        return ops.fori_loop(0, steps, take, start)[0]


METRICS: dict[str, type[RankingMetric]] = {
    "ndcg": NDCG,
    "dcg": DCG,
    "mrr": MRR,
    "map": MAP,
    "precision": Precision,
    "recall": Recall,
    "hit_rate": HitRate,
    "arp": ARP,
    "err": ERR,
    "rbp": RBP,
    "ordered_pair_accuracy": OrderedPairAccuracy,
    "alpha_ndcg": AlphaNDCG,
    "precision_ia": PrecisionIA,
    "ndcg_cost": NDCGCost,
    "lambda_rank_metric": LambdaRankMetric,
}
