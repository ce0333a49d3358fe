"""Distributions over the documents of a list: softmax and Plackett-Luce.

All of them work on logarithms, mask by selection instead of by large negative numbers, and give 0
for padding.
"""

import math
from collections.abc import Callable
from typing import Any

from keras import ops

from tfrankloss.core import backend
from tfrankloss.core.backend import Array
from tfrankloss.core.blocks import (
    MAXIMUM,
    ROWS_TOGETHER,
    Documents,
    prefix_scan,
    reduce_over_blocks,
    suffix_scan,
)
from tfrankloss.core.lists import score_range

# Scores that are not farther apart than this: e^60 leaves room for sums and weights in float32.
CLOSE = 60.0


class Softmax:
    """`rho_i = e^s_i / (sum_j e^s_j + epsilon)` of each list, and sums with it.

    Scores are measured from the highest one, and all sums are over what is not negative, so that
    nothing cancels, however large the scores are.

    Args:
        scores: `[batch, list]`.
        mask: `[batch, list]`.
        epsilon: what is added to the normaliser.
    """

    def __init__(self, scores: Array, mask: Array, epsilon: float = 0.0) -> None:
        highest = _highest(scores, mask)
        zeros = ops.zeros_like(scores)
        self._lag = ops.where(mask, highest - scores, zeros)
        powers = ops.where(mask, ops.exp(-self._lag), zeros)
        total = ops.sum(powers, axis=1)
        highest = highest[:, 0]
        positive = ops.where(total > 0, total, ops.ones_like(total))
        if not epsilon:
            self._beyond = ops.log(positive)
            self.normalizer = highest + self._beyond
            self.shares = powers / positive[:, None]
            return
        log_epsilon = ops.full_like(total, math.log(epsilon))
        self.normalizer = ops.where(
            total > 0, log_add_exp(highest + ops.log(positive), log_epsilon), log_epsilon
        )
        self._beyond = self.normalizer - highest
        self.shares = powers * ops.exp(-self._beyond)[:, None]

    def cross_entropy(self, targets: Array, total: Array) -> Array:
        """`[batch]`: `-sum_i t_i log rho_i` for targets of which `total` is the sum."""
        return ops.sum(targets * self._lag, axis=1) + total * self._beyond

    def expectation(self, values: Array) -> Array:
        """`[batch]`: `sum_i v_i rho_i`."""
        return ops.sum(values * self.shares, axis=1)


def log_sum_exp(scores: Array, mask: Array) -> Array:
    """`log sum_i e^s_i` over the last axis, which stays with size 1; 0 where it is all padding."""
    highest = _highest(scores, mask)
    terms = ops.exp(ops.where(mask, scores - highest, ops.zeros_like(scores)))
    total = ops.sum(ops.where(mask, terms, ops.zeros_like(terms)), axis=-1, keepdims=True)
    return highest + ops.log(ops.where(total > 0, total, ops.ones_like(total)))


def log_softmax(scores: Array, mask: Array) -> Array:
    """`log(e^s_i / sum_j e^s_j)`, 0 in padding."""
    return ops.where(mask, scores - log_sum_exp(scores, mask), ops.zeros_like(scores))


def softmax(scores: Array, mask: Array) -> Array:
    """`e^s_i / sum_j e^s_j`, 0 in padding."""
    probabilities = ops.exp(log_softmax(scores, mask))
    return ops.where(mask, probabilities, ops.zeros_like(probabilities))


def normalized(values: Array) -> Array:
    """Values divided by their sum over the list; 0 where the sum is 0."""
    total = ops.sum(values, axis=-1, keepdims=True)
    positive = total > 0
    return ops.where(
        positive, values / ops.where(positive, total, ops.ones_like(total)), ops.zeros_like(values)
    )


def cross_entropy(targets: Array, log_probabilities: Array) -> Array:
    """`[batch]`: `-sum_i t_i log p_i`."""
    return -ops.sum(targets * log_probabilities, axis=1)


def tail_log_sum_exp(scores: Array, mask: Array) -> Array:
    """`log sum_{k >= r} e^s_k` at each position r of lists whose padding stands last.

    The normaliser of the Plackett-Luce model when the documents before r are taken. Differentiable
    in `scores`. Scores that are close are added up as powers; for others each position keeps its
    own maximum, which takes five times as long.
    """

    if backend.on_accelerator():
        return log_sum_exp_of_pairs(scores, mask, lambda i, j: j.index >= i.index)
    highest = _highest(scores, mask)
    close = score_range(ops.stop_gradient(scores), mask)[1] <= CLOSE

    @ops.custom_gradient
    def tails(scores: Array) -> Any:
        scores = ops.stop_gradient(scores)
        zeros = ops.zeros_like(scores)
        shares = ops.where(mask, ops.exp(ops.where(mask, scores - highest, zeros)), zeros)
        sums = ops.flip(ops.cumsum(ops.flip(shares, axis=1), axis=1), axis=1)
        sums = ops.where(mask, sums, ops.ones_like(sums))
        result = ops.cond(
            close,
            lambda: highest + ops.log(sums),
            lambda: _cumulative(scores, mask, reverse=True),
        )
        result = ops.where(mask, result, zeros)

        def backward(*upstreams: Array, upstream: Array | None = None) -> Array:
            # sum_{r <= k} u_r e^(s_k - tail_r)
            upstream = upstreams[0] if upstream is None else upstream
            upstream = ops.where(mask, upstream, zeros)

            def from_sums() -> Array:
                return shares * ops.cumsum(upstream / sums, axis=1)

            def from_logarithms() -> Array:
                return sum(
                    sign * _weighted_powers(scores, result, ops.maximum(sign * upstream, 0.0))
                    for sign in (1.0, -1.0)
                )

            return ops.where(mask, ops.cond(close, from_sums, from_logarithms), zeros)

        return result, backward

    return tails(scores)


def log_sum_exp_of_pairs(
    scores: Array, mask: Array, counts: Callable[[Documents, Documents], Array], **attributes: Array
) -> Array:
    """`log sum_j [counts(i, j)] e^s_j` for each document i, 0 in padding; differentiable.

    From all pairs, for accelerators, where each step of a scan would be a launch. Exact for any
    scores: each document has a maximum of its own.

    Args:
        scores: `[batch, list]`.
        mask: `[batch, list]`.
        counts: whether a document counts, of the two; they have `index`, their position, and the
            attributes. Each document must count for itself.
        **attributes: `[batch, list]`.
    """
    index = ops.zeros_like(scores, "int32") + ops.arange(ops.shape(scores)[1], dtype="int32")

    @ops.custom_gradient
    def differentiable(scores: Array) -> Any:
        scores = ops.stop_gradient(scores)
        nowhere = ops.full_like(scores, -float("inf"))
        documents = Documents(score=ops.where(mask, scores, nowhere), index=index, **attributes)

        def score(i: Documents, j: Documents) -> tuple[Array]:
            return (ops.where(counts(i, j), j.score, -float("inf")),)

        (highest,) = reduce_over_blocks(
            score, documents, documents, 1, together=ROWS_TOGETHER, reduction=MAXIMUM
        )
        documents.highest = ops.where(mask, highest, ops.zeros_like(highest))

        def power(i: Documents, j: Documents) -> tuple[Array]:
            return (ops.where(counts(i, j), ops.exp(j.score - i.highest), 0.0),)

        (total,) = reduce_over_blocks(power, documents, documents, 1, together=ROWS_TOGETHER)
        total = ops.where(mask, total, ops.ones_like(total))
        result = documents.highest + ops.log(total)

        def backward(*upstreams: Array, upstream: Array | None = None) -> Array:
            upstream = upstreams[0] if upstream is None else upstream
            rows = Documents(
                score=result,
                index=index,
                upstream=ops.where(mask, upstream, ops.zeros_like(upstream)),
                **attributes,
            )

            def pull(j: Documents, i: Documents) -> tuple[Array]:
                return (ops.where(counts(i, j), i.upstream * ops.exp(j.score - i.score), 0.0),)

            (pulls,) = reduce_over_blocks(pull, documents, rows, 1, together=ROWS_TOGETHER)
            return ops.where(mask, pulls, ops.zeros_like(pulls))

        return result, backward

    return differentiable(scores)


def _weighted_powers(scores: Array, tails: Array, weights: Array) -> Array:
    """`sum_{r <= k} w_r e^(s_k - tail_r)` for any scores and for weights of at least 0."""
    positive = weights > 0
    logarithms = ops.log(ops.where(positive, weights, ops.ones_like(weights)))
    sums = _cumulative(logarithms - tails, positive, reverse=False)
    present = sums > -float("inf")
    exponent = ops.where(present, scores + sums, ops.zeros_like(scores))
    return ops.where(present, ops.exp(exponent), ops.zeros_like(exponent))


def tail_curvature(scores: Array, mask: Array, weights: Array) -> Array:
    """The second derivative of `sum_r w_r log sum_{k >= r} e^s_k` by each score, for weights >= 0.

    With `p_rk = e^(s_k - tail_r)` it is `sum_{r <= k} w_r p_rk (1 - p_rk)`.
    """
    tails = tail_log_sum_exp(scores, mask)
    weights = ops.where(mask, weights, ops.zeros_like(weights))
    first = _weighted_powers(scores, tails, weights)
    second = _weighted_powers(2.0 * scores, 2.0 * tails, weights)
    return ops.where(mask, ops.maximum(first - second, 0.0), ops.zeros_like(first))


def log_add_exp(first: Array, second: Array) -> Array:
    """`log(e^a + e^b)`, where either may be `-inf`."""
    # By selection: TensorFlow's maximum and minimum of equal numbers share no gradient.
    ordered = first >= second
    high, low = ops.where(ordered, first, second), ops.where(ordered, second, first)
    gap = ops.where(low > -float("inf"), low - high, ops.zeros_like(low))
    return ops.where(low > -float("inf"), high + ops.log1p(ops.exp(gap)), high)


def _cumulative(scores: Array, mask: Array, reverse: bool) -> Array:
    infinity = -float("inf")
    scan = suffix_scan if reverse else prefix_scan
    terms = ops.where(mask, scores, ops.full_like(scores, infinity))
    return scan(lambda a, b: (log_add_exp(a[0], b[0]),), (terms,), (infinity,))[0]


def _highest(scores: Array, mask: Array) -> Array:
    infinity = ops.full_like(scores, -float("inf"))
    highest = ops.max(ops.where(mask, scores, infinity), axis=-1, keepdims=True)
    return ops.stop_gradient(ops.where(highest > -float("inf"), highest, ops.zeros_like(highest)))
