"""The hinge loss on pairs of long lists by sorting, in O(n log n) for n documents.

`max(0, 1 - z_ij)` counts for `y_i > y_j` where `a_j > a_i - 1`, with `a = sigma s`. With the number
of such j and the sum of their `a_j` the row of i is known:

    v_i = w_i (n_i (1 - a_i) + sum_j a_j)
    g_i = sigma (-w_i n_i + sum of the weights w_k of the documents k above i that count it).

Were all labels of the i above all labels of the j, both sums were running sums over the `a_j` and
the `a_i - 1` sorted together. Two different labels, numbered in their order, first differ in one
binary digit, and the higher label has the 1 there: so the digits are gone through one by one, and
for each the sums run within the groups of labels whose higher digits agree. A group is split by
counting: beside two sorts, everything is a running sum or a gather.
"""

from typing import Any

from keras import ops

from tfrankloss.core import ranks
from tfrankloss.core.backend import Array
from tfrankloss.core.blocks import Documents

# Up to this size all pairs are visited, beyond it documents are sorted. At 8,000 documents the two
# meet (two cores): pairs take 12 ms, sorting 10 ms with five different labels and 15 ms with 8,000.
SORTED_LIST = 8192
MAX_DIGITS = 24


def hinge_sums(documents: Documents, sigma: float) -> tuple[Array, Array]:
    """`sum_{y_i > y_j} w_i max(0, 1 - sigma (s_i - s_j))` of each list, and its gradient."""
    mask = documents.mask
    real = ops.cast(mask, documents.score.dtype)
    weight = getattr(documents, "weight", real)
    count = ops.maximum(ops.sum(real, axis=1, keepdims=True), 1.0)
    # Centred, because the sums of scores lose what is far below their size; at a whole number, so
    # that differences of exactly 1 stay what they are.
    mean = ops.round(ops.sum(real * documents.score, axis=1, keepdims=True) / count)
    scores = sigma * real * (documents.score - mean)
    size = ops.shape(scores)[1]

    # Each document twice: as the lower one with `a`, as the higher one with `a - 1`. Where they are
    # equal the lower one stands first, and does not count.
    order = ranks.ascending(_twice(scores, scores - 1.0), _twice(mask, mask))
    zeros = ops.zeros_like(scores)
    number = order.sort(_twice(*[_label_numbers(documents.label, mask)] * 2))
    is_lower = order.sort(_twice(real, zeros))
    is_higher = order.sort(_twice(zeros, real))
    lower_score = order.sort(_twice(scores, zeros))
    higher_weight = order.sort(_twice(zeros, real * weight))

    def add_digit(step: Any, state: tuple[Array, ...]) -> tuple[Array, ...]:
        digit, (indices, positions, first, last), totals = digits - 1 - step, state[:4], state[4:]
        groups = ranks.Order(indices, positions)
        bit = ops.bitwise_and(ops.right_shift(number, digit), 1)
        high = ops.cast(bit, scores.dtype)
        low = 1.0 - high

        def before(x: Array) -> Array:
            x = groups.sort(x)
            sums = ops.cumsum(x, axis=1) - x
            return groups.unsort(sums - ops.take_along_axis(sums, first, axis=1))

        def after(x: Array) -> Array:
            sums = ops.cumsum(groups.sort(x), axis=1)
            return groups.unsort(ops.take_along_axis(sums, last, axis=1) - sums)

        terms = (
            high * is_higher * after(low * is_lower),
            high * is_higher * after(low * lower_score),
            low * is_lower * before(high * higher_weight),
        )
        totals = tuple(total + term for total, term in zip(totals, terms, strict=True))
        groups, first, last = _split(groups, first, last, groups.sort(bit))
        return (groups.indices, groups.positions, first, last, *totals)

    digits = _digits(number)
    index = ops.arange(2 * size, dtype="int32")[None, :] + ops.zeros_like(number)
    zero = ops.zeros_like(is_lower)
    state = (index, index, 0 * index, 0 * index + 2 * size - 1, zero, zero, zero)
    totals = ops.fori_loop(0, digits, add_digit, state)[4:]
    counted, sums, pulls = order.unsort_all(*totals)
    counted, sums, pulls = counted[:, size:], sums[:, size:], pulls[:, :size]
    # Where nothing counts, the difference of two running sums need not be exactly 0.
    values = ops.maximum(counted * (1.0 - scores) + sums, 0.0)
    values = weight * ops.where(counted > 0, values, ops.zeros_like(values))
    return ops.sum(real * values, axis=1), sigma * (pulls - weight * counted)


def _twice(first: Array, second: Array) -> Array:
    return ops.concatenate([first, second], axis=1)


def _label_numbers(labels: Array, mask: Array) -> Array:
    """The different labels of each list numbered from 0 in their order."""
    order = ranks.ascending(labels, mask)
    ordered = order.sort(labels)
    changes = ops.logical_and(ordered[:, 1:] != ordered[:, :-1], order.sort(mask)[:, 1:])
    changes = ops.cast(changes, "int32")
    return order.unsort(ops.pad(ops.cumsum(changes, axis=1), ((0, 0), (1, 0))))


def _digits(numbers: Array) -> Array:
    """The binary digits of the highest number."""
    highest = ops.max(numbers)
    powers = ops.left_shift(ops.ones((MAX_DIGITS,), dtype="int32"), ops.arange(MAX_DIGITS))
    return ops.sum(ops.cast(powers <= highest, "int32"))


def _split(
    groups: ranks.Order, first: Array, last: Array, bit: Array
) -> tuple[ranks.Order, Array, Array]:
    """Splits every group into its documents with bit 0 and those with bit 1, in their order.

    `first` and `last` are the bounds of the group at each position; `bit` is in the same order.
    """
    zero = 1 - bit
    sums = ops.cumsum(zero, axis=1)
    earlier = ops.take_along_axis(sums - zero, first, axis=1)
    zeros = ops.take_along_axis(sums, last, axis=1) - earlier
    zeros_before = sums - zero - earlier
    index = ops.arange(ops.shape(bit)[1], dtype="int32")[None, :]
    middle = first + zeros
    is_zero = bit == 0
    split = ranks.from_positions(
        ops.where(is_zero, first + zeros_before, middle + (index - first - zeros_before))
    )
    first = split.sort(ops.where(is_zero, first, middle))
    last = split.sort(ops.where(is_zero, middle - 1, last))
    return groups.then(split), first, last
