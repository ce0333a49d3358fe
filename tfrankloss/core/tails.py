"""Sums of `e^(s / temperature)` over parts of a list: what is left of it, or has a lower label.

A sum is kept as the highest score in it and the sum of `e^((s - highest) / temperature)`, which is
at least 1. What is made of it are differences of scores, so that nothing is lost, however far apart
the scores are.

On a CPU the parts are the ends of sorted lists. Where scores are close, powers are added up; where
not, a scan keeps a maximum for each position, which takes five times as long. On accelerators each
step of a scan would be a launch, and all pairs are cheaper.
"""

from collections.abc import Callable
from typing import NamedTuple

from keras import ops

from tfrankloss.core.backend import Array
from tfrankloss.core.blocks import (
    MAXIMUM,
    ROWS_TOGETHER,
    Documents,
    prefix_scan,
    reduce_over_blocks,
    suffix_scan,
)
from tfrankloss.core.lists import positions, score_range

# Scores that are not farther apart than this: the curvature squares the totals, and e^60 leaves
# room for sums and weights in float32.
CLOSE = 30.0
# Below all scores; the difference of two of these is a number.
LOWEST = -3e38

# Whether the second document belongs to the part of the first one.
Counts = Callable[[Documents, Documents], Array]


class LogSum(NamedTuple):
    """`log sum_k e^(scale s_k) = scale highest + log total`, for each document."""

    highest: Array  # [batch, list]
    total: Array  # [batch, list]
    scale: float  # 1 / temperature

    def cost(self, scores: Array) -> Array:
        """`-log(e^(scale s_i) / sum_k e^(scale s_k))`, at least 0 for what is in its sum."""
        return self.scale * (self.highest - scores) + ops.log(self.total)

    def with_itself(self, scores: Array) -> "LogSum":
        """The sums with one more document each."""
        joined = _join(self.scale)((scores, ops.ones_like(scores)), self[:2])
        return LogSum(*joined, self.scale)


class Ends:
    """Sums over each document and those after it, for lists whose padding stands last.

    Args:
        scores: `[batch, list]`.
        mask: `[batch, list]`.
        scale: 1 / temperature.
    """

    def __init__(self, scores: Array, mask: Array, scale: float) -> None:
        self._scores, self._mask, self._scale = scores, mask, scale
        zeros = ops.zeros_like(scores)
        self._top = ops.max(ops.where(mask, scores, LOWEST), axis=1, keepdims=True)
        powers = ops.exp(scale * ops.where(mask, scores - self._top, zeros))
        self._powers = ops.where(mask, powers, zeros)
        self._close = scale * score_range(scores, mask)[1] <= CLOSE

    def sums(self) -> LogSum:
        """The sums."""
        zeros, ones = ops.zeros_like(self._scores), ops.ones_like(self._scores)

        def of_powers() -> tuple[Array, Array]:
            total = ops.flip(ops.cumsum(ops.flip(self._powers, axis=1), axis=1), axis=1)
            return self._top + zeros, total

        def of_scan() -> tuple[Array, Array]:
            terms = (ops.where(self._mask, self._scores, LOWEST), ops.where(self._mask, ones, 0.0))
            highest, total = suffix_scan(_join(self._scale), terms, (LOWEST, 0.0))
            return highest, total

        highest, total = ops.cond(self._close, of_powers, of_scan)
        total = ops.where(self._mask, total, ones)
        return LogSum(ops.where(self._mask, highest, zeros), total, self._scale)

    def shares(
        self, sums: LogSum, weights: Array, last: Array | None = None, power: int = 1
    ) -> Array:
        """`sum_{r <= last_k} w_r (e^(scale s_k) / sum_r)^power`, for each k.

        Args:
            sums: these sums, or these with other documents.
            weights: `[batch, list]`.
            last: `[batch, list]` int32, or None for the position of each.
            power: of the share.
        """
        coefficients = ops.where(self._mask, weights / sums.total**power, 0.0)

        def at_last(x: Array) -> Array:
            return x if last is None else ops.take_along_axis(x, last, axis=1)

        def of_powers() -> Array:
            # Where scores are close, all sums are measured from the highest score of the list.
            return self._powers**power * at_last(ops.cumsum(coefficients, axis=1))

        def of_scan() -> Array:
            scale = power * self._scale
            terms = (-sums.highest, coefficients)
            lag, coefficient = prefix_scan(_join(scale), terms, (LOWEST, 0.0))
            exponent = ops.minimum(self._scores + at_last(lag), 0.0)
            shares = at_last(coefficient) * ops.exp(scale * exponent)
            return ops.where(self._mask, shares, ops.zeros_like(shares))

        return ops.cond(self._close, of_powers, of_scan)


def of_pairs(
    scores: Array, mask: Array, scale: float, counts: Counts, **attributes: Array
) -> LogSum:
    """The sums over the documents that count for each, from all pairs.

    Args:
        scores: `[batch, list]`.
        mask: `[batch, list]`.
        scale: 1 / temperature.
        counts: each document must count for itself. Documents have `index`, their position, and the
            attributes.
        **attributes: `[batch, list]`.
    """
    documents = _documents(scores, mask, **attributes)

    def score(i: Documents, j: Documents) -> tuple[Array]:
        return (ops.where(counts(i, j), j.score, LOWEST),)

    (highest,) = reduce_over_blocks(
        score, documents, documents, 1, together=ROWS_TOGETHER, reduction=MAXIMUM
    )
    documents.highest = ops.where(mask, highest, ops.zeros_like(highest))

    def power(i: Documents, j: Documents) -> tuple[Array]:
        return (ops.where(counts(i, j), ops.exp(scale * (j.score - i.highest)), 0.0),)

    (total,) = reduce_over_blocks(power, documents, documents, 1, together=ROWS_TOGETHER)
    return LogSum(documents.highest, ops.where(mask, total, ops.ones_like(total)), scale)


def shares_of_pairs(
    scores: Array,
    mask: Array,
    sums: LogSum,
    weights: Array,
    counts: Counts,
    power: int = 1,
    **attributes: Array,
) -> Array:
    """`sum_i w_i [j counts for i] (e^(scale s_j) / sum_i)^power`, for each j.

    Args:
        scores, mask, counts, attributes: as in `of_pairs`.
        sums: of these.
        weights: `[batch, list]`.
        power: of the share.
    """
    columns = _documents(scores, mask, **attributes)
    rows = _documents(scores, mask, **attributes)
    rows.highest = sums.highest
    rows.coefficient = ops.where(mask, weights / sums.total**power, 0.0)
    scale = power * sums.scale

    def share(j: Documents, i: Documents) -> tuple[Array]:
        here = i.coefficient * ops.exp(scale * ops.minimum(j.score - i.highest, 0.0))
        return (ops.where(counts(i, j), here, 0.0),)

    (shares,) = reduce_over_blocks(share, columns, rows, 1, together=ROWS_TOGETHER)
    return ops.where(mask, shares, ops.zeros_like(shares))


def _documents(scores: Array, mask: Array, **attributes: Array) -> Documents:
    scores = ops.where(mask, scores, LOWEST)
    return Documents(score=scores, index=positions(scores), **attributes)


def _join(scale: float) -> Callable[..., tuple[Array, Array]]:
    """The sum of two numbers `c e^(scale x)`, given and returned as pairs of x and c."""

    def join(first: tuple[Array, ...], second: tuple[Array, ...]) -> tuple[Array, Array]:
        exponent = ops.maximum(first[0], second[0])
        return exponent, sum(c * ops.exp(scale * (x - exponent)) for x, c in (first, second))

    return join
