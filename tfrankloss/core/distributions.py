"""Distributions over all documents of a list: softmax. (Over parts of it: `tails`.)

All of them work on logarithms, mask by selection instead of by large negative numbers, and give 0
for padding.
"""

import math

from keras import ops

from tfrankloss.core.backend import Array


class Softmax:
    """`rho_i = e^z_i / (sum_j e^z_j + epsilon)` of each list, `z = s / temperature`, and its sums.

    Scores are measured from the highest one, and all sums are over what is not negative, so that
    nothing cancels, however large the scores are.

    Args:
        scores: `[batch, list]`.
        mask: `[batch, list]`.
        temperature: divides the scores.
        epsilon: what is added to the normaliser.
    """

    def __init__(
        self, scores: Array, mask: Array, temperature: float = 1.0, epsilon: float = 0.0
    ) -> None:
        self._mask = mask
        highest = _highest(scores, mask)
        zeros = ops.zeros_like(scores)
        self._lag = ops.where(mask, (highest - scores) / temperature, zeros)
        self._powers = ops.where(mask, ops.exp(-self._lag), zeros)
        total = ops.sum(self._powers, axis=1)
        total = ops.where(total > 0, total, ops.ones_like(total))
        highest = highest[:, 0] / temperature
        if not epsilon:
            self._beyond = ops.log(total)
            self.normalizer = highest + self._beyond
            self._total = total
            self._missing = ops.zeros_like(total)
        else:
            # Each from its own end, because one of the two terms may be far below the other.
            log_total, log_epsilon = ops.log(total), ops.full_like(total, math.log(epsilon))
            self._beyond = log_add_exp(log_total, log_epsilon - highest)
            self.normalizer = log_add_exp(highest + log_total, log_epsilon)
            self._total = ops.exp(self._beyond)
            self._missing = ops.exp(log_epsilon - highest - self._beyond)
        # (A quotient: TensorFlow's reciprocal of 1 is not exactly 1.)
        self.shares = self._powers / self._total[:, None]

    def cross_entropy(self, targets: Array, total: Array) -> Array:
        """`[batch]`: `-sum_i t_i log rho_i` for targets of which `total` is the sum."""
        return ops.sum(targets * self._lag, axis=1) + total * self._beyond

    def expectation(self, values: Array) -> Array:
        """`[batch]`: `sum_i v_i rho_i`."""
        # From the powers: the sum does not wait for that of the shares.
        return ops.sum(values * self._powers, axis=1) / self._total

    def rest(self) -> Array:
        """`1 - rho`, 0 in padding.

        If one document has nearly all, that is what the others and epsilon have.
        """
        most, zeros = self.shares > 0.5, ops.zeros_like(self.shares)
        others = ops.sum(ops.where(most, zeros, self.shares), axis=1) + self._missing
        return ops.where(self._mask, ops.where(most, others[:, None], 1.0 - self.shares), zeros)


def log_softmax(scores: Array, mask: Array, temperature: float = 1.0) -> Array:
    """`log(e^z_i / sum_j e^z_j)`, `z = s / temperature`, over the last axis; 0 in padding."""
    zeros = ops.zeros_like(scores)
    lead = ops.where(mask, (scores - _highest(scores, mask)) / temperature, zeros)
    terms = ops.where(mask, ops.exp(lead), zeros)
    total = ops.sum(terms, axis=-1, keepdims=True)
    return ops.where(mask, lead - ops.log(ops.where(total > 0, total, ops.ones_like(total))), zeros)


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
