"""Sorting, ranks, gains and discounts.

A gain is what a document is worth, `G_i = 2^y_i - 1` by default; a discount divides it by what its
rank costs, `D(r) = log2(1 + r)` by default. Ranks are 1-based, scores sorted high to low, equal
scores by position.
"""

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from tfrankloss import config
from tfrankloss.core import backend
from tfrankloss.core.backend import Array
from tfrankloss.core.blocks import Documents, if_shorter, pad_to_rows, prefix_scan, sum_over_rows
from tfrankloss.core.lists import Lists, grades, positions

Gain = str | Callable[[Array], Array]
Discount = str | Callable[[Array], Array]

GAINS = ("exponential", "linear")
DISCOUNTS = ("log2", "linear")


# Up to this size documents are ranked by counting those above them, beyond it by sorting. On two
# cores argsort takes 0.7 ms more than counting at 8 x 1000 and 1.1 ms at 8 x 2000; they meet at
# lists of 4,000 to 5,000 documents.
COUNTED_LIST = 4096
# The same for the number of pairs of different labels.
COUNTED_PAIRS = 2048


class Order:
    """A permutation of each list, `[batch, list]` int32.

    Args:
        indices: the document at each position.
        positions: the position of each document, if it is known.
    """

    def __init__(self, indices: Array, positions: Array | None = None) -> None:
        self.indices = indices
        self._positions = positions

    @property
    def positions(self) -> Array:
        """The position of each document."""
        if self._positions is None:
            self._positions = _inverse(self.indices)
        return self._positions

    def sort(self, x: Array) -> Array:
        """`x` in the sorted order."""
        if backend.on_accelerator():
            return backend.sort_together(self.positions, x)[1]
        return ops.take_along_axis(x, self.indices, axis=1)

    def unsort(self, x: Array) -> Array:
        """Back from the sorted order to that of the documents."""
        return self.unsort_all(x)[0]

    def unsort_all(self, *arrays: Array) -> tuple[Array, ...]:
        """Several arrays back from the sorted order to that of the documents."""
        if backend.on_accelerator():
            return backend.sort_together(self.indices, *arrays)[1:]
        return tuple(ops.take_along_axis(x, self.positions, axis=1) for x in arrays)

    def then(self, order: "Order") -> "Order":
        """This order, and another of the lists that are so sorted."""
        return Order(order.sort(self.indices), self.unsort(order.positions))


def descending(keys: Array, mask: Array) -> Order:
    """The stable order of `keys` from high to low, padding last."""

    def by_counting() -> tuple[Array, Array]:
        order = from_positions(_count_above(keys, mask))
        return order.indices, order.positions

    def by_sorting() -> tuple[Array, Array]:
        order = ascending(-keys, mask)
        return order.indices, order.positions

    # A sort is one operation where counting would be many, and on accelerators cheaper.
    if not config.xla_enabled() or backend.on_accelerator():
        return ascending(-keys, mask)
    return Order(*if_shorter(keys, COUNTED_LIST, by_counting, by_sorting))


def ascending(keys: Array, mask: Array) -> Order:
    """The stable order of `keys` from low to high, padding last, by sorting."""
    if backend.on_accelerator():
        return _sorted(keys, mask)[0]
    infinity = ops.full_like(keys, float("inf"))
    order = ops.argsort(
        ops.where(mask, ops.minimum(_one_zero(keys), _limit(keys)), infinity), axis=1
    )
    indices = ops.cast(order, "int32")
    return Order(indices, _inverse(indices))


def _sorted(keys: Array, mask: Array, *arrays: Array) -> tuple[Order, tuple[Array, ...]]:
    """The order of `keys` from low to high, padding last, and arrays that the sort takes along."""
    _, indices, *moved = backend.sort_together(
        _sort_keys(keys, mask), positions(keys), *arrays, keys=2
    )
    return Order(indices), tuple(moved)


def _sort_keys(keys: Array, mask: Array) -> Array:
    """Whole numbers in the order of `keys`, padding last, before it what is not a number."""
    integers = backend.ordered_integers(_one_zero(keys))
    last = np.iinfo(keras.backend.standardize_dtype(integers.dtype)).max
    integers = ops.where(keys == keys, integers, last - 1)
    return ops.where(mask, integers, last)


def _first_places(mask: Array) -> Array:
    """The mask of lists whose padding stands last."""
    count = ops.sum(ops.cast(mask, "int32"), axis=1, keepdims=True)
    return ops.arange(ops.shape(mask)[1], dtype="int32")[None, :] < count


def sorted_lists(keys: Array, lists: Lists, *arrays: Array) -> tuple[Any, ...]:
    """The order of `keys` from high to low, the lists in this order, and further arrays in it."""
    if not backend.on_accelerator():
        order = descending(keys, lists.mask)
        return order, lists.map(order.sort), *(order.sort(x) for x in arrays)
    # What the sort need not carry, it does not: the fewer arrays, the faster.
    carried = [lists.scores, lists.labels, *arrays, *([lists.weights] if lists.weighted else [])]
    order, (scores, labels, *rest) = _sorted(-keys, lists.mask, *carried)
    mask = _first_places(lists.mask)
    weights = rest.pop() if lists.weighted else ops.cast(mask, scores.dtype)
    return order, Lists(scores, labels, mask, weights, lists.weighted), *rest


def descending_indices(keys: Array, mask: Array) -> Array:
    """The indices of the stable order of `keys` from high to low, padding last, by sorting."""
    if backend.shapes_must_be_static():
        keys = _one_zero(keys)
    keys = ops.where(mask, ops.maximum(keys, -_limit(keys)), -float("inf"))
    # Equal numbers stay in order: of TensorFlow's sorts this takes the fewest operations.
    _, indices = ops.top_k(keys, ops.shape(keys)[1])
    return ops.cast(indices, "int32")


def highest_first(x: Array) -> Array:
    """The numbers of each list from high to low."""
    if backend.on_accelerator():
        return -backend.sort_together(-x)[0]
    if backend.shapes_must_be_static():
        return ops.flip(ops.sort(x, axis=1), axis=1)
    return ops.top_k(x, ops.shape(x)[1])[0]  # TensorFlow's sort is this and more


def _one_zero(keys: Array) -> Array:
    """The keys without a zero below zero, which XLA tells from the other one when it sorts."""
    return ops.where(keys == 0, ops.zeros_like(keys), keys)


def _limit(keys: Array) -> float:
    """The largest number: infinite keys become it, as padding stands behind all of them."""
    return float(np.finfo(keras.backend.standardize_dtype(keys.dtype)).max)


def from_positions(positions: Array) -> Order:
    """The order in which each document has the given position."""
    return Order(_inverse(positions), positions)


def _count_above(keys: Array, mask: Array) -> Array:
    """The number of documents that come before each in the order from high to low."""
    size = keys.shape[1]
    documents = pad_to_rows(Documents(score=keys, mask=mask))
    lowest = ops.full_like(documents.score, -float("inf"))
    # A score that is not a number stands below all others, so that the result is a permutation.
    number = ops.logical_and(documents.mask, documents.score == documents.score)
    scores = ops.where(number, documents.score, lowest)
    # Whole numbers take half the time, and among them "at least" is "above one less".
    documents.score = backend.ordered_integers(_one_zero(scores))
    documents.index = ops.arange(ops.shape(lowest)[1], dtype="int32")[None, :]

    def terms(document: Documents, other: Documents) -> tuple[Array]:
        dtype = document.score.dtype
        earlier = ops.cast(other.index < document.index, dtype)
        return (ops.cast(other.score > document.score - earlier, dtype),)

    (above,) = sum_over_rows(terms, documents, documents, sums=1)
    return ops.cast(above[:, :size], "int32")


def _inverse(permutation: Array) -> Array:
    if backend.on_accelerator():
        return backend.sort_together(permutation, positions(permutation))[1]
    # By scattering: to sort the indices would take ten times as long.
    shape = ops.shape(permutation)
    lists = ops.arange(shape[0], dtype="int32")[:, None] + ops.zeros_like(permutation)
    places = ops.reshape(ops.stack([lists, permutation], axis=-1), (-1, 2))
    numbers = ops.arange(shape[1], dtype="int32")[None, :] + ops.zeros_like(permutation)
    return ops.scatter_update(ops.zeros_like(permutation), places, ops.reshape(numbers, (-1,)))


def rank_numbers(x: Array) -> Array:
    """`[1, list]`: the ranks 1, 2, 3, ... of sorted lists."""
    if isinstance(x.shape[1], int):
        # Numbers that XLA knows: what follows from them alone is computed when it compiles.
        numbers = np.arange(1, x.shape[1] + 1, dtype=keras.backend.standardize_dtype(x.dtype))
        return ops.convert_to_tensor(numbers[None, :])
    return ops.cast(ops.arange(1, ops.shape(x)[1] + 1), x.dtype)[None, :]


def gains(labels: Array, mask: Array, gain: Gain = "exponential") -> Array:
    """`G_i` of each document, 0 in padding (where labels are 0, of which the gain is 0)."""
    if gain == "exponential":
        return ops.expm1(labels * math.log(2.0))
    if gain == "linear":
        return labels
    values = ops.cast(gain(labels), labels.dtype)  # type: ignore[operator]
    return ops.where(mask, values, ops.zeros_like(values))


def scaled_gains(
    labels: Array, mask: Array, gain: Gain = "exponential", highest: Array | None = None
) -> Array:
    """Gains divided by 2 to the highest label of the list, so that no label overflows.

    For whatever is divided by the maximal DCG afterwards the factor does not matter.

    Args:
        labels: `[batch, list]`.
        mask: `[batch, list]`.
        gain: see `gains`.
        highest: `[batch, 1]`, the highest label, where `labels` are only some of the list.
    """
    if gain != "exponential":
        return gains(labels, mask, gain)
    if highest is None:
        highest = highest_label(labels)
    # (1 - 2^-y) 2^y, which neither overflows nor cancels where labels are click rates, say.
    return power_of_two(labels - highest) * -ops.expm1(-math.log(2.0) * labels)


def highest_label(labels: Array) -> Array:
    """`[batch, 1]`: the highest label of each list, 0 for lists without documents."""
    if backend.on_accelerator() and all(labels.shape[:2]):
        # XLA for GPU fuses what follows from this maximum, and not what follows from the other.
        return ops.max(labels, axis=1, keepdims=True)
    return ops.max(labels, axis=1, keepdims=True, initial=0.0)


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
    return inverse if topn is None else ops.where(ranks <= topn, inverse, 0.0)


def max_dcg(
    gains: Array, mask: Array, discount: Discount = "log2", topn: int | None = None
) -> Array:
    """`[batch, 1]`: the DCG of the list sorted by gain."""
    size = gains.shape[1]
    if backend.on_accelerator():
        lowest = ops.full_like(gains, -float("inf"))
        ideal = highest_first(ops.where(mask, gains, lowest))
        credit = inverse_discounts(rank_numbers(ideal), discount, topn)
        return ops.sum(ops.where(ideal > lowest, ideal * credit, 0.0), axis=1, keepdims=True)
    if topn is not None and size is not None and topn < size:
        lowest = ops.full_like(gains, -float("inf"))
        ideal, _ = ops.top_k(ops.where(mask, gains, lowest), topn)
        ideal = ops.where(ideal > -float("inf"), ideal, ops.zeros_like(ideal))
        return ops.sum(
            ideal * inverse_discounts(rank_numbers(ideal), discount), axis=1, keepdims=True
        )
    rank = ops.cast(descending(gains, mask).positions + 1, gains.dtype)
    return ops.sum(gains * inverse_discounts(rank, discount, topn), axis=1, keepdims=True)


def normalized_gains(
    labels: Array,
    mask: Array,
    gain: Gain = "exponential",
    discount: Discount = "log2",
    topn: int | None = None,
) -> Array:
    """`G_i / maxDCG@topn`, 0 in lists without a gain."""
    values = scaled_gains(labels, mask, gain)
    if backend.on_accelerator() and gain in GAINS:
        best = _max_dcg_of_labels(labels, mask, gain, discount, topn)
    else:
        best = max_dcg(values, mask, discount, topn)
    return divide_no_nan(values, best)


def _max_dcg_of_labels(
    labels: Array, mask: Array, gain: Gain, discount: Discount, topn: int | None
) -> Array:
    """`max_dcg` of scaled gains that grow with the label: a sort of labels waits for nothing."""
    order = highest_first(ops.where(mask, labels, ops.full_like(labels, -1.0)))
    ideal = scaled_gains(ops.maximum(order, 0.0), mask, gain, highest_label(labels))
    credit = inverse_discounts(rank_numbers(order), discount, topn)
    return ops.sum(ideal * credit, axis=1, keepdims=True)


def divide_no_nan(numerator: Array, denominator: Array) -> Array:
    """The quotient, and 0 where the denominator is 0."""
    zero = denominator == 0
    return ops.where(zero, 0.0, numerator / ops.where(zero, 1.0, denominator))


def count_ordered_pairs(labels: Array, mask: Array) -> Array:
    """`[batch]`: the number of pairs with `y_i > y_j`."""

    def by_pairs() -> Array:
        documents = pad_to_rows(Documents(score=labels, mask=mask))
        documents.grade = grades(documents.score, documents.mask)

        def terms(document: Documents, other: Documents) -> tuple[Array]:
            return (ops.cast(document.grade > other.grade, labels.dtype),)

        return ops.sum(sum_over_rows(terms, documents, documents, sums=1)[0], axis=1)

    def by_sorting() -> Array:
        # In the order of the labels as many are higher as stand before the first of equal label.
        order = ascending(-labels, mask)
        ordered, numbers = order.sort(labels), rank_numbers(labels) - 1.0
        starts = ops.where(ordered[:, 1:] != ordered[:, :-1], numbers[:, 1:], 0.0)
        starts = ops.pad(starts, ((0, 0), (1, 0)))
        (higher,) = prefix_scan(lambda a, b: (ops.maximum(a[0], b[0]),), (starts,), (0.0,))
        return ops.sum(ops.where(order.sort(mask), higher, 0.0), axis=1)

    if backend.on_accelerator():
        return by_pairs()
    return if_shorter(labels, COUNTED_PAIRS, by_pairs, by_sorting)
