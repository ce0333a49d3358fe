"""Pairwise losses: `sum_{y_i > y_j} phi(sigma (s_i - s_j))` (Oosterhuis, Learning to Rank, Eq 18).

They count inversions wherever these happen: for the top of the list see `lambdas`.
"""

from typing import Any

from keras import ops

from tfrankloss.core import backend, hinge, pairs, ranks
from tfrankloss.core.backend import Array
from tfrankloss.core.blocks import if_shorter
from tfrankloss.core.lists import Derivatives, Lists
from tfrankloss.core.pairs import Documents
from tfrankloss.losses.base import RankingLoss
from tfrankloss.options import check_choice, check_positive, register

PAIR_REDUCTIONS = ("sum", "mean")


class PairLoss(RankingLoss):
    """A loss that is a weighted sum over pairs of documents.

    Args:
        sigma: slope of the pairwise function.
        pair_reduction: `"sum"`, or `"mean"` to divide by the number of pairs of the list.
        reduction: see `RankingLoss`, as the other arguments.
    """

    curved = True

    def __init__(
        self, *, sigma: float = 1.0, pair_reduction: str = "sum", **arguments: Any
    ) -> None:
        super().__init__(**arguments)
        check_positive("sigma", sigma)
        check_choice("pair_reduction", pair_reduction, PAIR_REDUCTIONS)
        self.sigma = sigma
        self.pair_reduction = pair_reduction

    def pair_sums(self, lists: Lists, curvature: bool = False) -> Derivatives:
        """Sums over the pairs of each list."""
        raise NotImplementedError("A subclass of PairLoss defines pair_sums.")

    def count_pairs(self, lists: Lists) -> Array:
        """`[batch]`: the number of pairs that the loss counts."""
        return ranks.count_ordered_pairs(lists.labels, lists.mask)

    def derivatives(self, lists: Lists, curvature: bool = False) -> Derivatives:
        """Values `[batch]`, gradient `[batch, list]` and, where asked for, diagonal curvature."""
        return self.reduced(self.pair_sums(lists, curvature), lists).summed()

    def reduced(self, sums: Derivatives, lists: Lists) -> Derivatives:
        """The sums over pairs, or their means."""
        if self.pair_reduction == "sum":
            return sums
        count = self.count_pairs(lists)
        return sums.times(ranks.divide_no_nan(ops.ones_like(count), count))

    def value_and_gradient(self, lists: Lists) -> tuple[Array, Array]:
        return self.reduced(self.pair_sums(lists), lists)[:2]


class PlainPairLoss(PairLoss):
    """A pairwise loss whose weights do not depend on ranks."""

    phi: pairs.Phi
    weights: pairs.Weights = pairs.ByLabel()

    def pair_sums(self, lists: Lists, curvature: bool = False) -> Derivatives:
        documents = documents_of(lists)
        return pairs.pair_sums(documents, self.phi, self.weights, self.sigma, curvature=curvature)


@register
class PairwiseHingeLoss(PlainPairLoss):
    """Hinge loss on pairs (RankSVM).

    `sum_{y_i > y_j} max(0, 1 - sigma (s_i - s_j))` (Oosterhuis, Learning to Rank, Eq 19; Herbrich
    et al., 2000).

    Args:
        sigma: slope of the pairwise function; the margin is `1 / sigma`.
        pair_reduction: `"sum"`, or `"mean"` to divide by the number of pairs of the list.
        reduction: see `RankingLoss`, as the other arguments.

    >>> loss = PairwiseHingeLoss()
    >>> round(float(loss([[1.0, 0.0]], [[0.6, 0.8]])), 4)  # 1 - (0.6 - 0.8)
    1.2
    """

    phi = pairs.Hinge()
    strictly_convex = False  # its curvature is 0

    def pair_sums(self, lists: Lists, curvature: bool = False) -> Derivatives:

        def by_pairs() -> tuple[Array, Array]:
            return super(PairwiseHingeLoss, self).pair_sums(lists).summed()[:2]

        def by_sorting() -> tuple[Array, Array]:
            return hinge.hinge_sums(documents_of(lists), self.sigma)

        if backend.on_accelerator():  # the sums run over many groups, one after the other
            values, gradient = by_pairs()
        else:
            values, gradient = if_shorter(lists.scores, hinge.SORTED_LIST, by_pairs, by_sorting)
        # The curvature is 0 wherever there is one.
        return Derivatives(values, gradient, ops.zeros_like(gradient) if curvature else None)


@register
class PairwiseExponentialLoss(PlainPairLoss):
    """Exponential loss on pairs (RankBoost).

    `sum_{y_i > y_j} e^(-sigma (s_i - s_j))` (Oosterhuis, Learning to Rank, Eq 19; Freund et al.,
    2003). Where the exponent exceeds 30 the loss goes on as a straight line, so that it stays
    finite for any scores.

    Args:
        sigma: slope of the pairwise function.
        pair_reduction: `"sum"`, or `"mean"` to divide by the number of pairs of the list.
        reduction: see `RankingLoss`, as the other arguments.

    >>> loss = PairwiseExponentialLoss()
    >>> round(float(loss([[1.0, 0.0]], [[0.6, 0.8]])), 4)  # e^0.2
    1.2214
    """

    phi = pairs.Exponential()


@register
class PairwiseLogisticLoss(PlainPairLoss):
    """Logistic loss on pairs with different labels.

    `sum_{y_i > y_j} log(1 + e^(-sigma (s_i - s_j)))` (Oosterhuis, Learning to Rank, Eqs 33, 35;
    Jagerman et al., SIGIR 2022, Eq 6; Burges et al., 2005).

    Args:
        sigma: slope of the pairwise function.
        pair_reduction: `"sum"`, or `"mean"` to divide by the number of pairs of the list.
        reduction: see `RankingLoss`, as the other arguments.

    >>> loss = PairwiseLogisticLoss()
    >>> round(float(loss([[1.0, 0.0]], [[0.6, 0.8]])), 4)  # log(1 + e^0.2)
    0.7981
    """

    phi = pairs.Logistic()


@register
class PairwiseSoftZeroOneLoss(PlainPairLoss):
    """The number of wrongly ordered pairs, smoothed.

    `sum_{y_i > y_j} 1 / (1 + e^(sigma (s_i - s_j)))`. It is bounded, so that hopeless pairs do not
    dominate, and not convex.

    Args:
        sigma: slope of the pairwise function.
        pair_reduction: `"sum"`, or `"mean"` to divide by the number of pairs of the list.
        reduction: see `RankingLoss`, as the other arguments.

    >>> loss = PairwiseSoftZeroOneLoss()
    >>> round(float(loss([[1.0, 0.0]], [[0.6, 0.8]])), 4)  # 1 / (1 + e^-0.2)
    0.5498
    """

    phi = pairs.SoftZeroOne()
    strictly_convex = False


@register
class RankNetLoss(PlainPairLoss):
    """Cross entropy of the pairwise preferences, ties included.

    `1/2 (1 - S_ij) z_ij + log(1 + e^(-z_ij))` for every unordered pair, `z_ij = sigma (s_i - s_j)`
    and `S_ij` = 1, 0 or -1 for a higher, equal or lower label (Oosterhuis, Learning to Rank, Eq 23;
    Burges et al., 2005). A pair of equal labels draws its scores together; without such pairs it is
    `PairwiseLogisticLoss`.

    Args:
        sigma: slope of the pairwise function.
        pair_reduction: `"sum"`, or `"mean"` to divide by the number of pairs of the list.
        reduction: see `RankingLoss`, as the other arguments.

    >>> loss = RankNetLoss()
    >>> round(float(loss([[1.0, 1.0]], [[0.6, 0.8]])), 4)  # log(1 + e^0.2) - 0.1
    0.6981
    """

    phi = pairs.Logistic()
    weights = staticmethod(pairs.half_for_ties)

    def count_pairs(self, lists: Lists) -> Array:
        return 0.5 * count_all_pairs(lists)


@register
class PairwiseSquaredLoss(RankingLoss):
    """Squared error of the score differences as predictions of the label differences.

    `sum_{i != j} ((y_i - y_j) - (s_i - s_j))^2`, equal labels included. With `d = y - s`, centred,
    that is `n sum_i d_i^2 + n sum_j d_j^2`: linear in the length of the list.

    Args:
        pair_reduction: `"sum"`, or `"mean"` to divide by the number of pairs of the list.
        reduction: see `RankingLoss`, as the other arguments.

    >>> loss = PairwiseSquaredLoss()
    >>> round(float(loss([[1.0, 0.0]], [[0.6, 0.8]])), 4)  # 2 (1 + 0.2)^2
    2.88
    """

    curved = True

    def __init__(self, *, pair_reduction: str = "sum", **arguments: Any) -> None:
        super().__init__(**arguments)
        check_choice("pair_reduction", pair_reduction, PAIR_REDUCTIONS)
        self.pair_reduction = pair_reduction

    def per_list(self, lists: Lists) -> Array:
        real = ops.cast(lists.mask, lists.scores.dtype)
        count = ops.sum(real, axis=1)
        errors = lists.labels - lists.scores
        mean = ranks.divide_no_nan(ops.sum(errors, axis=1), count)
        squares = real * (errors - mean[:, None]) ** 2
        value = count * ops.sum(lists.weights * squares, axis=1) + ops.sum(
            lists.weights, axis=1
        ) * ops.sum(squares, axis=1)
        if self.pair_reduction == "sum":
            return value
        return ranks.divide_no_nan(value, count_all_pairs(lists))

    def curvature(self, lists: Lists) -> Array:
        count = ops.sum(ops.cast(lists.mask, lists.scores.dtype), axis=1, keepdims=True)
        total = ops.sum(lists.weights, axis=1, keepdims=True)
        bend = 2.0 * ((count - 2.0) * lists.weights + total)
        bend = ops.where(lists.mask, bend, ops.zeros_like(bend))
        if self.pair_reduction == "sum":
            return bend
        return ranks.divide_no_nan(bend, count_all_pairs(lists)[:, None])


def count_all_pairs(lists: Lists) -> Array:
    """`[batch]`: n (n - 1), the number of ordered pairs of different documents."""
    count = ops.sum(ops.cast(lists.mask, lists.scores.dtype), axis=1)
    return count * (count - 1.0)


def documents_of(lists: Lists) -> Documents:
    """The lists as the pair engine takes them."""
    documents = Documents(score=lists.scores, label=lists.labels, mask=lists.mask)
    if lists.weighted:
        documents.weight = lists.weights
    return documents
