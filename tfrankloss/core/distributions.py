"""Distributions over the documents of a list: softmax and Plackett-Luce.

All of them work on logarithms, mask by selection instead of by large negative numbers, and give 0
for padding.
"""

from typing import Any

from keras import ops

from tfrankloss.core.backend import Array
from tfrankloss.core.blocks import prefix_scan, suffix_scan


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
    in `scores`, exact for any spread of the scores: each position keeps its own maximum.
    """

    @ops.custom_gradient
    def tails(scores: Array) -> Any:
        scores = ops.stop_gradient(scores)
        result = _cumulative(scores, mask, reverse=True)

        def backward(*upstreams: Array, upstream: Array | None = None) -> Array:
            # sum_{r <= k} u_r e^(s_k - tail_r), by the same recursion on the logarithms of |u_r|.
            upstream = upstreams[0] if upstream is None else upstream
            total = ops.zeros_like(scores)
            for sign in (1.0, -1.0):
                part = ops.logical_and(mask, sign * upstream > 0)
                size = ops.where(part, sign * upstream, ops.ones_like(upstream))
                weights = _cumulative(ops.log(size) - result, part, reverse=False)
                present = weights > -float("inf")
                exponent = ops.where(present, scores + weights, ops.zeros_like(scores))
                total = total + sign * ops.where(present, ops.exp(exponent), 0.0 * exponent)
            return ops.where(mask, total, ops.zeros_like(total))

        finite = ops.where(mask, result, ops.zeros_like(result))
        return finite, backward

    return tails(scores)


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
