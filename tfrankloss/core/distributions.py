"""Distributions over all documents of a list: softmax. (Over parts of it: `tails`.)

All of them work on logarithms, mask by selection instead of by large negative numbers, and give 0
for padding.
"""

import math

from keras import ops

from tfrankloss.core.backend import Array


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
        self._powers = powers
        total = ops.sum(powers, axis=1)
        highest = highest[:, 0]
        positive = ops.where(total > 0, total, ops.ones_like(total))
        if not epsilon:
            self._beyond = ops.log(positive)
            self.normalizer = highest + self._beyond
            self._inverse = 1.0 / positive
            self.shares = powers * self._inverse[:, None]
            return
        log_epsilon = ops.full_like(total, math.log(epsilon))
        self.normalizer = ops.where(
            total > 0, log_add_exp(highest + ops.log(positive), log_epsilon), log_epsilon
        )
        self._beyond = self.normalizer - highest
        self._inverse = ops.exp(-self._beyond)
        self.shares = powers * self._inverse[:, None]

    def cross_entropy(self, targets: Array, total: Array) -> Array:
        """`[batch]`: `-sum_i t_i log rho_i` for targets of which `total` is the sum."""
        return ops.sum(targets * self._lag, axis=1) + total * self._beyond

    def expectation(self, values: Array) -> Array:
        """`[batch]`: `sum_i v_i rho_i`."""
        # From the powers: the sum does not wait for that of the shares.
        return ops.sum(values * self._powers, axis=1) * self._inverse


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


def log_add_exp(first: Array, second: Array) -> Array:
    """`log(e^a + e^b)`, where either may be `-inf`."""
    # By selection: TensorFlow's maximum and minimum of equal numbers share no gradient.
    ordered = first >= second
    high, low = ops.where(ordered, first, second), ops.where(ordered, second, first)
    gap = ops.where(low > -float("inf"), low - high, ops.zeros_like(low))
    return ops.where(low > -float("inf"), high + ops.log1p(ops.exp(gap)), high)


def _highest(scores: Array, mask: Array) -> Array:
    infinity = ops.full_like(scores, -float("inf"))
    highest = ops.max(ops.where(mask, scores, infinity), axis=-1, keepdims=True)
    return ops.stop_gradient(ops.where(highest > -float("inf"), highest, ops.zeros_like(highest)))
