"""Sorting, ranks, gains and discounts.

A gain is what a document is worth, `G_i = 2^y_i - 1` by default; a discount divides it by what its
rank costs, `D(r) = log2(1 + r)` by default. Ranks are 1-based, scores sorted high to low, equal
scores by position.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from keras import ops

from tfrankloss.core.backend import Array
from tfrankloss.core.blocks import over_rows

Gain = str | Callable[[Array], Array]
Discount = str | Callable[[Array], Array]

GAINS = ("exponential", "linear")
DISCOUNTS = ("log2", "linear")


class Order(NamedTuple):
    """A permutation of each list: `indices[r]` is the document at position r, `[batch, list]`."""

    indices: Array

    def sort(self, x: Array) -> Array:
        """`x` in the sorted order."""
        return ops.take_along_axis(x, self.indices, axis=1)

    def unsort(self, x: Array) -> Array:
        """Back from the sorted order to that of the documents."""
        # By scattering: to sort the indices for the inverse order would take ten times as long.
        batch = ops.shape(self.indices)[0]
        rows = ops.arange(batch, dtype=self.indices.dtype)[:, None] + ops.zeros_like(self.indices)
        places = ops.reshape(ops.stack([rows, self.indices], axis=-1), (-1, 2))
        return ops.scatter_update(ops.zeros_like(x), places, ops.reshape(x, (-1,)))

    def positions(self) -> Array:
        """The position of each document in the sorted order."""
        size = ops.shape(self.indices)[1]
        return self.unsort(ops.arange(size, dtype="int32")[None, :] + 0 * self.indices)


def descending(keys: Array, mask: Array) -> Order:
    """The stable order of `keys` from high to low, padding last."""
    infinity = ops.full_like(keys, float("inf"))
    keys = ops.where(keys == 0, ops.zeros_like(keys), keys)  # XLA sorts -0.0 below 0.0
    return Order(ops.cast(ops.argsort(ops.where(mask, -keys, infinity), axis=1), "int32"))


def rank_numbers(x: Array) -> Array:
    """`[1, list]`: the ranks 1, 2, 3, ... of sorted lists."""
    return ops.cast(ops.arange(1, ops.shape(x)[1] + 1), x.dtype)[None, :]


def gains(labels: Array, mask: Array, gain: Gain = "exponential") -> Array:
    """`G_i` of each document, 0 in padding."""
    if gain == "exponential":
        values = power_of_two(labels) - 1.0
    elif gain == "linear":
        values = labels
    else:
        values = ops.cast(gain(labels), labels.dtype)  # type: ignore[operator]
    return ops.where(mask, values, ops.zeros_like(values))


def scaled_gains(labels: Array, mask: Array, gain: Gain = "exponential") -> Array:
    """Gains divided by 2 to the highest label of the list, so that no label overflows.

    For whatever is divided by the maximal DCG afterwards the factor does not matter.
    """
    if gain != "exponential":
        return gains(labels, mask, gain)
    highest = ops.max(labels, axis=1, keepdims=True)
    values = power_of_two(labels - highest) - power_of_two(-highest)
    return ops.where(mask, values, ops.zeros_like(values))


def power_of_two(x: Array) -> Array:
    """`2^x` by the exponential: XLA takes minutes to vectorise a power that is fused into rows."""
    return ops.exp(x * math.log(2.0))


def divisors(ranks: Array, discount: Discount = "log2") -> Array:
    """`D(r)` for each rank."""
    if discount == "log2":
        return ops.log2(1.0 + ranks)
    if discount == "linear":
        return ranks
    return ops.cast(discount(ranks), ranks.dtype)  # type: ignore[operator]


def inverse_discounts(ranks: Array, discount: Discount = "log2", topn: int | None = None) -> Array:
    """`[r <= topn] / D(r)`."""
    inverse = 1.0 / divisors(ranks, discount)
    return inverse if topn is None else ops.where(ranks <= topn, inverse, ops.zeros_like(inverse))


def max_dcg(gains: Array, discount: Discount = "log2", topn: int | None = None) -> Array:
    """`[batch, 1]`: the DCG of the list sorted by gain."""
    ideal = -ops.sort(-gains, axis=1)
    return ops.sum(
        ideal * inverse_discounts(rank_numbers(gains), discount, topn), axis=1, keepdims=True
    )


def normalized_gains(
    labels: Array,
    mask: Array,
    gain: Gain = "exponential",
    discount: Discount = "log2",
    topn: int | None = None,
) -> Array:
    """`G_i / maxDCG@topn`, 0 in lists without a gain."""
    values = scaled_gains(labels, mask, gain)
    return divide_no_nan(values, max_dcg(values, discount, topn))


def divide_no_nan(numerator: Array, denominator: Array) -> Array:
    """The quotient, and 0 where the denominator is 0."""
    zero = denominator == 0
    safe = ops.where(zero, ops.ones_like(denominator), denominator)
    return ops.where(zero, ops.zeros_like(numerator), numerator / safe)


def count_ordered_pairs(labels: Array, mask: Array) -> Array:
    """`[batch]`: the number of pairs with `y_i > y_j`."""
    # Padding is higher than any label, and no row of its own is counted.
    keys = ops.where(mask, labels, ops.full_like(labels, float("inf")))
    lower = over_rows(
        lambda row: ops.sum(ops.cast(keys[:, None, :] < row, labels.dtype), axis=2), keys
    )
    return ops.sum(ops.where(mask, lower, ops.zeros_like(lower)), axis=1)
