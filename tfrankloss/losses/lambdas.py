"""LambdaRank and the LambdaLoss framework: pairwise losses whose weights know the ranks.

All are `sum w_ij log2(1 + e^(-sigma (s_i - s_j)))` and differ in the weight and in the pairs that
count (Wang et al., CIKM 2018; Jagerman et al., SIGIR 2022). `G_i` is the gain of document i divided
by the maximal DCG of its list, `D` the discount, `r_i` the rank of i in the present order. Ranks
and weights are constants for the gradient: the losses alternate between ranking and minimising a
bound on the metric (CIKM 2018, Sect. 4.2).

The base 2 of the logarithm makes the losses upper bounds (CIKM 2018, Eq 12).
"""

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from tfrankloss.core import noise, pairs, ranks, swaps
from tfrankloss.core.backend import Array
from tfrankloss.core.blocks import ByDistance
from tfrankloss.core.lists import (
    Derivatives,
    Lists,
    grades,
    mean_over_repeats,
    repeat_lists,
    score_range,
)
from tfrankloss.core.pairs import Documents, Weights
from tfrankloss.losses.base import SampledLoss
from tfrankloss.losses.pairwise import PairLoss, count_all_pairs, documents_of
from tfrankloss.options import (
    check_choice,
    check_function,
    check_integer,
    check_positive,
    check_topn,
    register,
)

RANKINGS = ("sorted", "gaussian", "plackett_luce")
METRICS = ("ndcg", "dcg", "precision", "mrr", "map", "err")


class RankWeightedLoss(PairLoss, SampledLoss):
    """A pairwise loss whose weights may depend on the ranks of the documents.

    Args:
        ranking: where the ranks come from: `"sorted"`, the order of the scores; or the average of
            the weights over orders drawn from them (CIKM 2018, Eq 9): `"gaussian"` sorts the
            scores plus normal noise (SoftRank), `"plackett_luce"` plus Gumbel noise.
        samples: orders to draw.
        noise_scale: standard deviation of the normal noise, scale of the Gumbel noise.
        seed: seed of the noise.
        sigma: see `PairLoss`, as the other arguments.
    """

    uses_ranks = True

    def __init__(
        self,
        *,
        ranking: str = "sorted",
        samples: int = 8,
        noise_scale: float = 1.0,
        seed: int | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(seed=seed, **arguments)
        check_choice("ranking", ranking, RANKINGS)
        check_integer("samples", samples, minimum=1)
        check_positive("noise_scale", noise_scale)
        self.ranking = ranking
        self.samples = samples
        self.noise_scale = noise_scale

    def gains(self, lists: Lists) -> Array:
        """`[batch, list]`: the gain of each document, NaN in padding."""
        return grades(lists.labels, lists.mask)

    def weights(self, documents: Documents) -> Weights:
        """The weight of a pair, from the documents in the order of their ranks."""
        raise NotImplementedError("A subclass of RankWeightedLoss defines weights.")

    def visited(self) -> int | None:
        """The rank K if only pairs with one of the first K documents have a weight."""
        return None

    def normalized_derivatives(self, lists: Lists) -> Derivatives:
        """Gradient and curvature as LightGBM's `lambdarank_norm` has them; the values are forces.

        The weight of a pair is divided by 0.01 plus the distance of its scores, and what comes out
        for a list is multiplied by `log2(1 + S) / S`, where S is twice the sum of the forces (for a
        logarithm to base e, and without weights of documents) of its pairs.
        """
        sums = self.pair_sums(lists, curvature=True, normalized=True).summed()
        force = 2.0 * self.sigma * math.log(2.0) * sums.values
        factor = ranks.divide_no_nan(ops.log2(1.0 + force), force)
        return self.reduced(sums.times(factor), lists)

    def pair_sums(
        self, lists: Lists, curvature: bool = False, normalized: bool = False
    ) -> Derivatives:
        if not self.uses_ranks:
            documents = _documents(lists, lists.labels)
            return self._to_base_two(self._sum(documents, curvature, normalized))
        samples = 1 if self.ranking == "sorted" else self.samples
        ranked = self._draw(lists)
        gains = repeat_lists(self.gains(lists), samples)
        order, ordered, gains = ranks.sorted_lists(ranked.scores, lists.repeat(samples), gains)
        sums = self._sum(_documents(ordered, gains), curvature, normalized)
        derivatives = order.unsort_all(*(x for x in sums[1:] if x is not None))
        sums = Derivatives(*(mean_over_repeats(x, samples) for x in (sums.values, *derivatives)))
        return self._to_base_two(sums)

    def _sum(self, documents: Documents, curvature: bool, normalized: bool) -> Derivatives:
        weights, phi = self.weights(documents), pairs.Logistic()
        if normalized:
            middle, _ = score_range(documents.score, documents.mask)
            other = ops.logical_and(documents.mask, documents.score != middle)
            some = ops.any(other, axis=1, keepdims=True)
            documents.offset = ops.where(some, 0.01, ops.ones_like(documents.score))
            weights, phi = pairs.nearest_first(weights), pairs.LogisticForces()
        return pairs.pair_sums(documents, phi, weights, self.sigma, self.visited(), curvature)

    def _to_base_two(self, sums: Derivatives) -> Derivatives:
        return Derivatives(*(None if x is None else x / math.log(2.0) for x in sums))

    def _draw(self, lists: Lists) -> Lists:
        if self.ranking == "sorted":
            return lists
        draw = noise.normal if self.ranking == "gaussian" else noise.gumbel
        return noise.perturbed(lists, draw(lists, self._drawn_seed, self.samples), self.noise_scale)


class GainLoss(RankWeightedLoss):
    """A rank-weighted loss with gains and discounts.

    Args:
        topn: cutoff K of the metric, or None for the whole list.
        gain: `"exponential"` for `2^y - 1`, `"linear"` for `y`, or a function of the labels.
        discount: `"log2"` for `log2(1 + r)`, `"linear"` for `r`, or a function of the ranks.
        normalize: whether gains are divided by the maximal DCG (at the cutoff) of the list.
        ranking: see `RankWeightedLoss`, as the other arguments.
    """

    def __init__(
        self,
        *,
        topn: int | None = None,
        gain: ranks.Gain = "exponential",
        discount: ranks.Discount = "log2",
        normalize: bool = True,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        check_topn(topn)
        check_function("gain", gain, ranks.GAINS)
        check_function("discount", discount, ranks.DISCOUNTS)
        self.topn = topn
        self.gain = gain
        self.discount = discount
        self.normalize = normalize

    def gains(self, lists: Lists) -> Array:
        labels, mask = lists.labels, lists.mask
        if not self.normalize:
            return grades(ranks.gains(labels, mask, self.gain), mask)
        normalized = ranks.normalized_gains(labels, mask, self.gain, self.discount, self.topn)
        return grades(normalized, mask)

    def gain_gap(self, factor: pairs.PairFactor) -> Weights:
        """`|G_i - G_j|` times a symmetric function of the two documents."""
        if isinstance(self.gain, str):
            return pairs.Preferred(factor, gap="gain")
        # A gain of the user's need not grow with the label.
        return pairs.Preferred(lambda i, j: ops.abs(i.gain - j.gain) * factor(i, j))


class CutoffLoss(GainLoss):
    """A loss for NDCG whose cutoff leaves out the pairs that are wholly beyond it.

    Args:
        cutoff: what `topn` does to the weights: `"truncated"` drops pairs of which both documents
            are beyond the cutoff, a heuristic (CIKM 2018, Eq 18).
        topn: see `GainLoss`, as the other arguments.
    """

    cutoffs: tuple[str, ...] = ("truncated",)

    def __init__(self, *, cutoff: str = "truncated", **arguments: Any) -> None:
        super().__init__(**arguments)
        check_choice("cutoff", cutoff, self.cutoffs)
        self.cutoff = cutoff

    def visited(self) -> int | None:
        return self.topn if self.cutoff == "truncated" else None


@register
class LambdaRankLoss(GainLoss):
    """LambdaRank: the change of a metric when two documents swap places weighs their pair.

    `sum_{y_i > y_j} |change of the metric| log2(1 + e^(-sigma (s_i - s_j)))`. For NDCG the change
    is `|G_i - G_j| |1/D(r_i) - 1/D(r_j)|` (CIKM 2018, Eqs 5-6; SIGIR 2022, Eq 11), with a cutoff
    `|G_i - G_j| |[r_i <= K]/D(r_i) - [r_j <= K]/D(r_j)|` (SIGIR 2022, Eq 12).

    Args:
        metric: `"ndcg"`, `"dcg"`, `"precision"` (needs `topn`), `"mrr"`, `"map"` or `"err"`. A
            document with a label above 0 is relevant for precision, MRR and MAP. The probability of
            ERR that a document satisfies is `(2^y - 1) / 2^(highest label of the list)`.
        topn: cutoff K of the metric, or None for the whole list.
        sigma: slope of the pairwise function.
        gain, discount: see `GainLoss`; for NDCG and DCG only.
        ranking, samples, noise_scale, seed: see `RankWeightedLoss`.
        pair_reduction: see `PairLoss`, as the other arguments.

    >>> loss = LambdaRankLoss()
    >>> round(float(loss([[1.0, 0.0]], [[0.6, 0.8]])), 4)  # (1 - 1/log2(3)) log2(1 + e^0.2)
    0.425
    """

    def __init__(
        self,
        metric: str = "ndcg",
        topn: int | None = None,
        sigma: float = 1.0,
        *,
        gain: ranks.Gain = "exponential",
        discount: ranks.Discount = "log2",
        ranking: str = "sorted",
        samples: int = 8,
        noise_scale: float = 1.0,
        seed: int | None = None,
        pair_reduction: str = "sum",
        reduction: str | None = "mean",
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            topn=topn,
            gain=gain,
            discount=discount,
            normalize=metric == "ndcg",
            ranking=ranking,
            samples=samples,
            noise_scale=noise_scale,
            seed=seed,
            sigma=sigma,
            pair_reduction=pair_reduction,
            reduction=reduction,
            name=name,
            dtype=dtype,
        )
        check_choice("metric", metric, METRICS)
        if metric == "precision" and topn is None:
            raise ValueError(
                "metric='precision' needs a cutoff: precision of the whole list never changes. "
                "Received: topn=None"
            )
        if metric not in ("ndcg", "dcg") and (gain, discount) != ("exponential", "log2"):
            raise ValueError(
                "gain and discount are for the metrics ndcg and dcg. "
                f"Received: metric={metric!r}, gain={gain!r}, discount={discount!r}"
            )
        self.metric = metric

    def visited(self) -> int | None:
        return self.topn

    def weights(self, documents: Documents) -> Weights:
        if self.metric in ("ndcg", "dcg"):
            return self.gain_gap(swaps.credit_gap(documents, self.discount, self.topn))
        if self.metric == "precision":
            change = swaps.precision(documents, self.topn or 1)
        elif self.metric == "mrr":
            change = swaps.reciprocal_rank(documents, self.topn)
        elif self.metric == "map":
            change = swaps.average_precision(documents, self.topn)
        else:
            change = swaps.expected_reciprocal_rank(documents, self.topn)
        return pairs.Preferred(change)


@register
class ARPLoss1(RankWeightedLoss):
    """ARP-Loss1, a bound on the average relevance position.

    `sum_{i != j} y_i log2(1 + e^(-sigma (s_i - s_j)))` (CIKM 2018, Sect. 5.1). The weights do not
    depend on the ranks, so that every `ranking` gives the same loss.

    Args:
        sigma: see `PairLoss`, as `pair_reduction` and the other arguments.
        ranking: see `RankWeightedLoss`.

    >>> loss = ARPLoss1()
    >>> round(float(loss([[1.0, 0.0]], [[0.6, 0.8]])), 4)  # log2(1 + e^0.2)
    1.1515
    """

    uses_ranks = False

    def weights(self, documents: Documents) -> Weights:
        return pairs.all_ordered(lambda document: document.label)

    def count_pairs(self, lists: Lists) -> Array:
        return count_all_pairs(lists)


@register
class ARPLoss2(RankWeightedLoss):
    """ARP-Loss2, a tighter bound on the average relevance position.

    `sum_{y_i > y_j} |y_i - y_j| log2(1 + e^(-sigma (s_i - s_j)))` (CIKM 2018, Sect. 5.1). The
    weights do not depend on the ranks, so that every `ranking` gives the same loss.

    Args:
        sigma: see `PairLoss`, as `pair_reduction` and the other arguments.
        ranking: see `RankWeightedLoss`.

    >>> loss = ARPLoss2()
    >>> round(float(loss([[2.0, 0.0]], [[0.6, 0.8]])), 4)  # 2 log2(1 + e^0.2)
    2.3029
    """

    uses_ranks = False

    def weights(self, documents: Documents) -> Weights:
        return pairs.ByLabel(gap="grade")


@register
class NDCGLoss1(CutoffLoss):
    """NDCG-Loss1, a simple bound on the NDCG cost.

    `sum_{i != j} G_i / D(r_i) log2(1 + e^(-sigma (s_i - s_j)))` (CIKM 2018, Sect. 5.2).

    Args:
        topn: cutoff K of NDCG, or None for the whole list.
        cutoff: `"truncated"`, the only one that this loss offers (CIKM 2018, Eq 18).
        gain, discount, normalize: see `GainLoss`.
        ranking, samples, noise_scale, seed: see `RankWeightedLoss`.
        sigma: see `PairLoss`, as `pair_reduction` and the other arguments.

    >>> loss = NDCGLoss1()
    >>> round(float(loss([[1.0, 0.0]], [[0.6, 0.8]])), 4)  # 1/log2(3) log2(1 + e^0.2)
    0.7265
    """

    def weights(self, documents: Documents) -> Weights:
        documents.credit = ranks.inverse_discounts(documents.rank, self.discount)
        return pairs.all_ordered(lambda document: document.gain * document.credit)

    def count_pairs(self, lists: Lists) -> Array:
        return count_all_pairs(lists)


@register
class NDCGLoss2(CutoffLoss):
    """NDCG-Loss2, and with a cutoff LambdaLoss@K: the loss to start with for NDCG@K.

    `sum_{y_i > y_j} |G_i - G_j| delta_ij log2(1 + e^(-sigma (s_i - s_j)))` with
    `delta_ij = |1/D(|r_i - r_j|) - 1/D(|r_i - r_j| + 1)|` (CIKM 2018, Eqs 15-16;
    SIGIR 2022, Eq 13). With a cutoff K
    `delta_ij` is multiplied by `1 / (1 - 1/D(max(r_i, r_j)))` where one of the documents is beyond
    K, which makes the loss a bound on the NDCG@K cost (SIGIR 2022, Eqs 16-17).

    Args:
        topn: cutoff K of NDCG, or None for the whole list.
        cutoff: `"corrected"` for LambdaLoss@K, or `"truncated"` for the earlier heuristic, which
            drops pairs of which both documents are beyond K (CIKM 2018, Eq 18; SIGIR 2022, Eq 15).
        gain, discount, normalize: see `GainLoss`. `gain="linear", discount="linear"` gives the
            MRR-like loss of CIKM 2018, Sect. 5.2.
        ranking, samples, noise_scale, seed: see `RankWeightedLoss`.
        sigma: see `PairLoss`, as `pair_reduction` and the other arguments.

    >>> loss = NDCGLoss2(topn=5)
    >>> round(float(loss([[1.0, 0.0]], [[0.6, 0.8]])), 4)  # (1 - 1/log2(3)) log2(1 + e^0.2)
    0.425
    """

    cutoffs = ("corrected", "truncated")

    def __init__(self, *, cutoff: str = "corrected", **arguments: Any) -> None:
        super().__init__(cutoff=cutoff, **arguments)

    def weights(self, documents: Documents) -> Weights:
        documents.delta = rank_distance_discounts(documents.rank, self.discount)
        corrected = self.topn is not None and self.cutoff == "corrected"
        if corrected:
            documents.correction = self.corrections(documents.rank, self.topn or 1)

        def discounts(document: Documents, other: Documents) -> Array:
            if not corrected:
                return other.delta
            later = document.rank > other.rank
            return other.delta * ops.where(later, document.correction, other.correction)

        return self.gain_gap(discounts)

    def corrections(self, rank: Array, topn: int) -> Array:
        """`mu_ij` (SIGIR 2022, Eq 17) by the later rank of the two, 1 within the cutoff."""
        credit = 1.0 / ranks.divisors(rank, self.discount)
        multiplier = ranks.divide_no_nan(ops.ones_like(credit), 1.0 - credit)
        return ops.where(rank > topn, multiplier, ops.ones_like(multiplier))


@register
class NDCGLoss2PlusPlus(CutoffLoss):
    """NDCG-Loss2++, the sum of LambdaRank and NDCG-Loss2.

    `sum_{y_i > y_j} |G_i - G_j| (rho_ij + mu delta_ij) log2(1 + e^(-sigma (s_i - s_j)))` with
    LambdaRank's `rho_ij = |1/D(r_i) - 1/D(r_j)|` and the `delta_ij` of `NDCGLoss2` (CIKM 2018,
    Eq 19).

    Args:
        mu: weight of NDCG-Loss2; the paper's table uses 5 and its study goes from 0.1 to 10.
        topn: cutoff K of NDCG, or None for the whole list.
        cutoff: `"truncated"`, the only one that this loss offers (CIKM 2018, Eq 18).
        gain, discount, normalize: see `GainLoss`.
        ranking, samples, noise_scale, seed: see `RankWeightedLoss`.
        sigma: see `PairLoss`, as `pair_reduction` and the other arguments.

    >>> loss = NDCGLoss2PlusPlus(mu=1.0)
    >>> round(float(loss([[1.0, 0.0]], [[0.6, 0.8]])), 3)  # 2 (1 - 1/log2(3)) log2(1 + e^0.2)
    0.85
    """

    def __init__(self, mu: float = 10.0, **arguments: Any) -> None:
        super().__init__(**arguments)
        check_positive("mu", mu)
        self.mu = mu

    def weights(self, documents: Documents) -> Weights:
        documents.credit = ranks.inverse_discounts(documents.rank, self.discount)
        documents.delta = rank_distance_discounts(documents.rank, self.discount)

        def discounts(document: Documents, other: Documents) -> Array:
            return ops.abs(document.credit - other.credit) + self.mu * other.delta

        return self.gain_gap(discounts)


@register
class LambdaLoss(GainLoss):
    """The LambdaLoss framework with a weight of your own.

    `sum_{y_i > y_j} weight(i, j) log2(1 + e^(-sigma (s_i - s_j)))`. `weight(high, low)` gets the
    document with the higher label and the one with the lower label, and returns the weight of the
    pair. Both have the attributes `label`, `gain` (normalised as `gain`, `discount` and `normalize`
    say), `rank`, `score` and `weight` (the sample weight, which is applied anyway), arrays that
    broadcast against each other. Write it in `keras.ops`.

    Args:
        weight: function of the two documents.
        gain, discount, normalize: see `GainLoss`.
        topn: cutoff of the maximal DCG by which gains are divided; it drops no pair.
        ranking, samples, noise_scale, seed: see `RankWeightedLoss`.
        sigma: see `PairLoss`, as `pair_reduction` and the other arguments.

    >>> loss = LambdaLoss(weight=lambda high, low: high.gain / high.rank)
    >>> round(float(loss([[1.0, 0.0]], [[0.6, 0.8]])), 4)  # 1/2 log2(1 + e^0.2)
    0.5757
    """

    def __init__(self, weight: Callable[[Documents, Documents], Array], **arguments: Any) -> None:
        super().__init__(**arguments)
        if not callable(weight):
            raise ValueError(
                "weight must be a function of two documents, weight(high, low). "
                f"Received: weight={weight!r}"
            )
        self.weight = weight

    def weights(self, documents: Documents) -> Weights:
        if not hasattr(documents, "weight"):
            documents.weight = ops.cast(documents.mask, documents.score.dtype)
        return pairs.directed(self.weight)


def rank_distance_discounts(rank: Array, discount: ranks.Discount) -> ByDistance:
    """`delta_ij = |1/D(d) - 1/D(d + 1)|` of the distance d of two ranks, 0 for d = 0 (Eq 15)."""

    def delta(distance: Array) -> Array:
        near = ranks.inverse_discounts(ops.maximum(distance, 1.0), discount)
        far = ranks.inverse_discounts(distance + 1.0, discount)
        return ops.where(distance > 0.0, ops.abs(near - far), ops.zeros_like(near))

    dtype = keras.backend.standardize_dtype(rank.dtype)
    return ByDistance(delta, ops.shape(rank)[1], dtype)


def _documents(lists: Lists, gains: Array) -> Documents:
    return Documents(**vars(documents_of(lists)), gain=gains, rank=ranks.rank_numbers(lists.scores))
