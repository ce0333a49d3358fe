"""Lists in the order of their scores, and what a metric asks of them, whatever the rule for ties.

`best_first` sorts and runs outside of the compiled kernel: TensorFlow's own sort is several times
as fast as that of XLA for CPU, and shared by all metrics of a step. Behind it every metric is a sum
over sorted documents, of which those beyond a cutoff can be left out (`first`).

Documents of equal score are a tie group. With the rule `"average"` every order of a tie group is
equally likely and all sums are expectations over these orders, in closed form: nothing is drawn.
"""

import copy
import functools
from typing import Any

from keras import ops

from tfrankloss.core import ranks
from tfrankloss.core.backend import Array
from tfrankloss.core.blocks import prefix_scan, suffix_scan
from tfrankloss.core.lists import Lists

TIES = ("position", "average", "worst", "best")


def best_first(lists: Lists, ties: str) -> Array:
    """The indices `[batch, list]` of the documents from the highest score to the lowest.

    Args:
        lists: clean lists; labels `[batch, list]`, or `[batch, list, subtopics]`.
        ties: the order of equal scores: by position in the list (`"position"`, `"average"`), or
            with the labels from low to high (`"worst"`) or from high to low (`"best"`).
    """
    if ties not in ("worst", "best"):
        return ranks.descending_indices(lists.scores, lists.mask)
    labels = lists.labels if len(lists.labels.shape) == 2 else ops.sum(lists.labels, axis=2)
    by_label = ranks.descending_indices(labels if ties == "best" else -labels, lists.mask)
    scores, mask = take(lists.scores, by_label), take(lists.mask, by_label)
    return take(by_label, ranks.descending_indices(scores, mask))


class Ranked:
    """The documents of each list from the highest score to the lowest, padding last.

    Args:
        lists: clean lists.
        indices: their order, from `best_first`.
        averaged: whether to average over all orders of equal scores.
        weighted: whether the documents have weights other than 1.
        depth: the highest cutoff of the metrics that compare with the ideal order, or None.
    """

    def __init__(
        self,
        lists: Lists,
        indices: Array,
        averaged: bool = False,
        weighted: bool = True,
        depth: int | None = None,
    ) -> None:
        self.lists = lists
        self.averaged = averaged
        self.weighted = weighted
        self.depth = depth
        self.rank = ranks.rank_numbers(lists.scores)
        count = ops.sum(ops.cast(lists.mask, lists.scores.dtype), axis=1, keepdims=True)
        self.mask = self.rank <= count
        self.scores = take(lists.scores, indices) if averaged else lists.scores[:, :1]
        self.labels = take(lists.labels, indices)
        self.weights = take(lists.weights, indices) if weighted else lists.weights
        self.highest = ops.max(lists.labels, axis=1, keepdims=True, initial=0.0)
        self.known: dict[Any, Any] = {}  # what several metrics ask for

    def first(self, topn: int | None) -> "Ranked":
        """The first `topn` documents, where the others are easily left out; or else all of them."""
        size = self.mask.shape[1]
        if topn is None or self.averaged or (size is not None and topn >= size):
            return self
        if ("first", topn) not in self.known:
            part = copy.copy(self)
            part.known = {}
            part.labels, part.mask = self.labels[:, :topn], self.mask[:, :topn]
            part.weights, part.rank = self.weights[:, :topn], self.rank[:, :topn]
            self.known["first", topn] = part
        return self.known["first", topn]

    def weigh(self, x: Array) -> Array:
        """What documents contribute, 0 in padding, times their weights."""
        if not self.weighted:
            return x
        return x * (self.weights if len(x.shape) == 2 else self.weights[:, :, None])

    def gains(self, gain: ranks.Gain) -> Array:
        """`[batch, list]`: the gain of each document, in scale of the highest label of its list."""
        if gain not in self.known:
            gains = ranks.scaled_gains(self.labels, self.mask, gain, self.highest)
            self.known[gain] = self.weigh(gains)
        return self.known[gain]

    def max_dcg(self, gain: ranks.Gain, discount: ranks.Discount, topn: int | None) -> Array:
        """`[batch]`: the DCG of the ideal order, of gains as in `gains`."""
        gains = self._highest_gains(gain, topn)[:, :topn]
        rank = ranks.rank_numbers(gains)
        return ops.sum(gains * ranks.inverse_discounts(rank, discount, topn), axis=1)

    def _highest_gains(self, gain: ranks.Gain, topn: int | None) -> Array:
        """`[batch, list]`, or at least the first `topn`: the gains from high to low."""
        few = topn is not None and self.depth is not None and topn <= self.depth
        if ("highest", gain, few) not in self.known:
            # What is not negative may be sorted together with the zeros of padding.
            by_label = gain in ranks.GAINS and not self.weighted
            highest = self.labels if by_label else self.gains(gain)
            if gain not in ranks.GAINS:
                highest = ops.where(self.mask, highest, ops.full_like(highest, -float("inf")))
            size = highest.shape[1]
            if few and size is not None and self.depth < size:
                highest, _ = ops.top_k(highest, self.depth)
            else:
                highest = ranks.highest_first(highest)
            if by_label:
                highest = ranks.scaled_gains(highest, self.mask, gain, self.highest)
            elif gain not in ranks.GAINS:
                some = highest > -float("inf")
                highest = ops.where(some, highest, ops.zeros_like(highest))
            self.known["highest", gain, few] = highest
        return self.known["highest", gain, few]

    @functools.cached_property
    def tie_group(self) -> tuple[Array, Array, Array]:
        """First and last position (from 0) of each document's tie group, and its starts."""
        index = self.rank - 1.0 + ops.zeros_like(self.scores)
        same = ops.logical_and(
            self.scores[:, 1:] == self.scores[:, :-1], self.mask[:, 1:] == self.mask[:, :-1]
        )
        starts = ops.logical_not(ops.pad(same, ((0, 0), (1, 0)), constant_values=False))
        ends = ops.logical_not(ops.pad(same, ((0, 0), (0, 1)), constant_values=False))
        (first,) = prefix_scan(_maximum, (ops.where(starts, index, 0.0),), (0.0,))
        far = float(1 << 30)
        (last,) = suffix_scan(_minimum, (ops.where(ends, index, far),), (far,))
        return first, last, starts

    @property
    def tied(self) -> Array:
        """The number of documents in each document's tie group."""
        first, last, _ = self.tie_group
        return last - first + 1.0

    def sum_over_ties(self, x: Array) -> Array:
        """The sum of `x` over the tie group of each document.

        Sums run within a group only: differences of running sums over the list would lose digits.
        """
        _, last, starts = self.tie_group

        def add(earlier: tuple[Array, Array], later: tuple[Array, Array]) -> tuple[Array, Array]:
            starts = ops.maximum(earlier[0], later[0])
            return starts, later[1] + ops.where(later[0] > 0, 0.0, earlier[1])

        x = x + ops.zeros_like(self.scores)
        _, sums = prefix_scan(add, (ops.cast(starts, x.dtype), x), (0.0, 0.0))
        return ops.take_along_axis(sums, ops.cast(last, "int32"), axis=1)

    def expected(self, credit: Array) -> Array:
        """What each document gets if rank r gives `credit[r]`."""
        return self.sum_over_ties(credit) / self.tied if self.averaged else credit

    def running_precision(self, relevant: Array) -> Array:
        """`[r relevant] (relevant documents up to r) / r` at each position r.

        In a tie group of m documents, R of them relevant, the t-th position holds a relevant one
        with probability R / m, and then (t - 1) (R - 1) / (m - 1) of the others stand before it.
        """
        if not self.averaged:
            return self.weigh(relevant * ops.cumsum(relevant, axis=1) / self.rank)
        first, _, _ = self.tie_group
        in_group = self.sum_over_ties(relevant)
        above = self._before_ties(relevant)
        earlier = (self.rank - 1.0 - first) * (in_group - 1.0)
        earlier = ranks.divide_no_nan(earlier, self.tied - 1.0)
        chance = self.sum_over_ties(self.weigh(relevant)) / self.tied
        return chance * (above + 1.0 + earlier) / self.rank

    def _before_ties(self, counts: Array) -> Array:
        """The sum of whole numbers over the documents above the tie group of each document."""
        first, _, _ = self.tie_group
        sums = ops.pad(ops.cumsum(counts, axis=1), ((0, 0), (1, 0)))
        return ops.take_along_axis(sums, ops.cast(first, "int32"), axis=1)

    def first_relevant(self, relevant: Array) -> Array:
        """The chance that the first relevant document stands at each position, times its weight.

        With R relevant ones among m tied documents and none among the first t - 1 of them, the t-th
        is relevant with probability R / (m - t + 1).
        """
        if not self.averaged:
            first = ops.where(relevant > 0, self.rank, float("inf"))
            first = ops.min(first, axis=1, keepdims=True, initial=float("inf"))
            return ops.where(self.rank == first, self.weigh(relevant), 0.0)
        first, _, _ = self.tie_group
        in_group = self.sum_over_ties(relevant)
        chance = ops.minimum(in_group / (self.tied - (self.rank - 1.0 - first)), 1.0)
        weight = ranks.divide_no_nan(self.sum_over_ties(self.weigh(relevant)), in_group)
        return weight * chance * exclusive_product(1.0 - chance)

    def cascade(self, values: Array, stop: Array) -> Array:
        """`values_r prod_{q < r} (1 - stop_q)` at each position r, `[batch, list]`.

        The expectation over the orders of a tie group grows document by document, in all groups at
        once: the new one of m is not among the first t (probability (m - t) / m), is the t-th
        (1 / m), or stands before it ((t - 1) / m).
        """
        if not self.averaged:
            return values * exclusive_product(1.0 - stop)
        first, last, _ = self.tie_group
        place = self.rank - first  # 1, 2, ... in its tie group

        def previous(x: Array, at_first: float) -> Array:
            shifted = ops.concatenate([x[:, :1], x[:, :-1]], axis=1)
            return ops.where(place > 1, shifted, ops.full_like(x, at_first))

        def add(number: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
            earned, passed = state  # at each place, and the chance to get past it
            size = ops.cast(number, values.dtype) + 1.0
            newest = ops.cast(ops.minimum(first + size - 1.0, last), "int32")
            value, go_on = take(values, newest), 1.0 - take(stop, newest)
            absent = (size - place) / size
            reach = previous(passed, 1.0)
            new_earned = absent * earned + value * reach / size
            new_earned = new_earned + (place - 1.0) / size * go_on * previous(earned, 0.0)
            new_passed = absent * passed + place / size * go_on * reach
            inside = ops.logical_and(place <= size, size <= self.tied)
            return ops.where(inside, new_earned, earned), ops.where(inside, new_passed, passed)

        start = (ops.zeros_like(values), ops.zeros_like(values))
        tied = ops.where(self.mask, self.tied, 0.0 * self.tied)  # padding is one large group
        most = ops.cast(ops.max(tied, initial=0.0), "int32")
        earned, passed = ops.fori_loop(0, most, add, start)
        ends = ops.logical_and(self.rank - 1.0 == last, self.mask)
        return earned * exclusive_product(ops.where(ends, passed, ops.ones_like(passed)))


def take(x: Array, indices: Array) -> Array:
    """Labels `[batch, list]` or `[batch, list, subtopics]`, or the like, in an order."""
    if len(x.shape) == 3:
        indices = indices[:, :, None]
    return ops.take_along_axis(x, indices, axis=1)


def exclusive_product(x: Array) -> Array:
    """The product of all entries before each."""
    (product,) = prefix_scan(lambda a, b: (a[0] * b[0],), (x,), (1.0,))
    return ops.concatenate([ops.ones_like(x[:, :1]), product[:, :-1]], axis=1)


def _maximum(earlier: tuple[Array], later: tuple[Array]) -> tuple[Array]:
    return (ops.maximum(earlier[0], later[0]),)


def _minimum(later: tuple[Array], earlier: tuple[Array]) -> tuple[Array]:
    return (ops.minimum(later[0], earlier[0]),)
