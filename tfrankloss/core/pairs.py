"""The pair engine: sums over all pairs of documents of a list, with closed-form derivatives.

A pairwise loss is `sum_ij w_ij phi(z_ij)` with `z_ij = sigma (s_i - s_j)` and weights that are
constants for the gradient. With the derivatives of phi at hand, the gradient and the diagonal
curvature of document i are sums over its row of pairs,

    g_i = sigma   sum_j [w_ij phi'(z_ij)  - w_ji phi'(z_ji)]
    h_i = sigma^2 sum_j [w_ij phi''(z_ij) + w_ji phi''(z_ji)],

so one pass over blocks of rows gives everything and stores nothing of size list x list.

Vocabulary: `row` and `column` are the two documents of a pair as `Documents` whose attributes
broadcast to `[batch, rows, list]`. `weights(row, column)` returns the weight of the pair in both
directions: that of `row` being preferred to `column`, and the reverse.
"""

import functools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import keras
from keras import ops

from tfrankloss.core.backend import ROW_BLOCK, Array
from tfrankloss.core.blocks import over_rows

# Beyond this the exponential loss goes on as a straight line: e^30 is about 1e13, so that a sum
# over a billion pairs still fits float32.
EXPONENT_LIMIT = 30.0


class Documents(SimpleNamespace):
    """Attributes of the documents of each list by name, arrays `[batch or 1, list]`.

    Every loss gives `score`, `label`, `mask` and `weight` (the document's sample weight); the
    lambda losses add `gain` and `rank`, in the order of the ranks.
    """


class Phi(NamedTuple):
    """A function of the score difference, and its first two derivatives."""

    value: Array
    slope: Array
    curvature: Array


class PairSums(NamedTuple):
    """Sums over pairs: the value of each list, and the derivatives for each document."""

    values: Array  # [batch]
    gradient: Array  # [batch, list]
    curvature: Array | None  # [batch, list], where asked for


PairFunction = Callable[[Array, Array], Phi]  # of z and of e^(-|z|)
Weights = Callable[[Documents, Documents], tuple[Array, Array]]

# Pairs per block of rows: half a megabyte of float32, so that the few arrays that XLA keeps between
# operations stay in the cache.
BLOCK_ELEMENTS = 1 << 17
# The products of `logistic_sums` keep one array at a time; its best block is larger (measured at
# 32 x 200 and 8 x 1000 on two cores).
FUSED_ELEMENTS = 1 << 20


def hinge(z: Array, decay: Array) -> Phi:
    """`max(0, 1 - z)`."""
    below = ops.cast(z < 1.0, z.dtype)
    return Phi(below * (1.0 - z), -below, ops.zeros_like(z))


def exponential(z: Array, decay: Array) -> Phi:
    """`e^(-z)`, continued linearly where `-z` exceeds `EXPONENT_LIMIT`."""
    power = ops.exp(ops.minimum(-z, EXPONENT_LIMIT))
    beyond = ops.maximum(-z - EXPONENT_LIMIT, 0.0)
    return Phi(power * (1.0 + beyond), -power, ops.where(beyond > 0, 0.0 * power, power))


def logistic(z: Array, decay: Array) -> Phi:
    """`log(1 + e^(-z))`."""
    inverse = 1.0 / (1.0 + decay)
    slope = -ops.where(z > 0, decay, ops.ones_like(decay)) * inverse
    return Phi(ops.log(1.0 + decay) + ops.maximum(-z, 0.0), slope, decay * inverse * inverse)


def base2_logistic(z: Array, decay: Array) -> Phi:
    """`log2(1 + e^(-z))`, an upper bound of `[z < 0]`."""
    return Phi(*(x / math.log(2.0) for x in logistic(z, decay)))


def soft_zero_one(z: Array, decay: Array) -> Phi:
    """`1 / (1 + e^z)`."""
    inverse = 1.0 / (1.0 + decay)
    value = ops.where(z > 0, decay, ops.ones_like(decay)) * inverse
    product = decay * inverse * inverse
    return Phi(value, -product, product * (1.0 - 2.0 * value))


# Functions that need e^(-|z|), which is an outer product unless the scores are far apart.
USES_DECAY: list[PairFunction] = [logistic, base2_logistic, soft_zero_one]


def preferred(base: Callable[[Documents, Documents], Array] | None = None) -> Weights:
    """Pairs with `y_i > y_j`, weighted by a symmetric `base` and by the preferred document."""

    def weights(row: Documents, column: Documents) -> tuple[Array, Array]:
        forward = ops.where(row.label > column.label, row.weight, ops.zeros_like(row.weight))
        backward = ops.where(row.label < column.label, column.weight, ops.zeros_like(column.weight))
        if base is None:
            return forward, backward
        factor = base(row, column)
        return forward * factor, backward * factor

    return weights


def half_for_ties(row: Documents, column: Documents) -> tuple[Array, Array]:
    """RankNet's target probabilities: 1 for the preferred document, one half where labels tie."""
    sign = ops.sign(row.label - column.label)
    return 0.5 * (1.0 + sign) * row.weight, 0.5 * (1.0 - sign) * column.weight


def all_ordered(importance: Callable[[Documents], Array]) -> Weights:
    """Every pair with `i != j`, weighted by the importance of the first document."""

    def weights(row: Documents, column: Documents) -> tuple[Array, Array]:
        return importance(row) * row.weight, importance(column) * column.weight

    return weights


def directed(weight: Callable[[Documents, Documents], Array]) -> Weights:
    """Pairs with `y_i > y_j`, weighted by any function of the higher and the lower document."""

    def weights(row: Documents, column: Documents) -> tuple[Array, Array]:
        forward, backward = preferred()(row, column)
        return _select(forward, weight(row, column)), _select(backward, weight(column, row))

    return weights


def _select(factor: Array, weight: Array) -> Array:
    """The product, and 0 where `factor` is 0 whatever `weight` is."""
    return ops.where(factor != 0, factor * weight, ops.zeros_like(factor * weight))


def pair_sums(
    documents: Documents,
    phi: PairFunction,
    weights: Weights,
    sigma: float = 1.0,
    top: int | None = None,
    curvature: bool = False,
) -> PairSums:
    """Sums `w_ij phi(sigma (s_i - s_j))` over the pairs of each list.

    Args:
        documents: what `weights` needs of the documents, `[batch or 1, list]`.
        phi: the function of the score difference.
        weights: the weight of a pair in both directions.
        sigma: slope of the pairwise loss.
        top: where given, only pairs with at least one of the first `top` documents have a weight
            and the others are not visited.
        curvature: whether to sum the second derivatives, too.
    """
    visit = functools.partial(_visit_rows, phi, weights, sigma, top, curvature)
    if phi not in USES_DECAY:
        return visit(documents)
    # Powers of centred scores: their products are exact as long as none leaves the range of floats.
    low, high = _range(documents)
    centred = sigma * (documents.score - 0.5 * (low + high))
    limit = 40.0 if keras.backend.standardize_dtype(centred.dtype) == "float32" else 300.0
    centred = ops.clip(centred, -limit, limit)
    powered = Documents(**vars(documents), power=ops.exp(centred), inverse_power=ops.exp(-centred))
    results = ops.cond(
        ops.max(sigma * (high - low)) <= 2.0 * limit,
        lambda: visit(powered),
        lambda: visit(documents),
    )
    return PairSums(*results)


def logistic_sums(documents: Documents, sigma: float = 1.0, curvature: bool = False) -> PairSums:
    """`sum_{y_i > y_j} w_i log(1 + e^(-z_ij))`: `pair_sums` of the logistic loss, faster.

    The weight belongs to the row, so the sum over a row is the logarithm of a product. With
    `e^(-z_ij)` an outer product, four factors share one logarithm; that logarithm was what took the
    time. Lists whose scores are too far apart for the product of four take the general form.
    """
    if curvature:
        return pair_sums(documents, logistic, preferred(), sigma, curvature=True)
    size = documents.score.shape[1]
    if size is not None and size % ROW_BLOCK:
        documents = _pad(documents, -size % ROW_BLOCK)
    low, high = _range(documents)
    single = keras.backend.standardize_dtype(documents.score.dtype) == "float32"
    limit = 20.0 if single else 160.0
    centred = ops.clip(sigma * (documents.score - 0.5 * (low + high)), -limit, limit)
    label = ops.where(documents.mask, documents.label, ops.full_like(centred, float("nan")))
    inverse_power, weight, power = ops.exp(-centred), documents.weight, ops.exp(centred)

    def products() -> tuple[Array, Array]:
        # A label that is NaN is neither above nor below any other, so that padding has no pairs.
        columns = [ops.split(x[:, None, :], 4, axis=2) for x in (label, power)]

        def row_values(label_i: Array, inverse_power_i: Array, _: Array) -> Array:
            factors = [
                ops.where(label_i > label_j, 1.0 + inverse_power_i * power_j, 1.0)
                for label_j, power_j in zip(*columns, strict=True)
            ]
            return ops.sum(ops.log(factors[0] * factors[1] * (factors[2] * factors[3])), axis=2)

        def row_forces(label_i: Array, inverse_power_i: Array, weight_i: Array) -> Array:
            label_j, weight_j = label[:, None, :], weight[:, None, :]
            odds = inverse_power_i * power[:, None, :]  # of the wrong order
            share = 1.0 / (1.0 + odds)
            below = ops.where(label_i < label_j, weight_j * share, 0.0)
            return ops.sum(ops.where(label_i > label_j, -weight_i * odds * share, below), axis=2)

        rows = (label, inverse_power, weight)
        block = _rows_per_block(label, None, FUSED_ELEMENTS)
        values = over_rows(row_values, *rows, block=block)
        return ops.sum(weight * values, axis=1), sigma * over_rows(row_forces, *rows, block=block)

    def general() -> tuple[Array, Array]:
        return pair_sums(documents, logistic, preferred(), sigma)[:2]

    close = ops.max(sigma * (high - low)) <= limit
    values, gradient = ops.cond(close, products, general)
    return PairSums(values, gradient if size is None else gradient[:, :size], None)


def _visit_rows(
    phi: PairFunction,
    weights: Weights,
    sigma: float,
    top: int | None,
    curvature: bool,
    documents: Documents,
) -> PairSums:
    """The sums, by blocks of rows."""
    size = documents.score.shape[1]
    if top is not None and size is not None and top >= size:
        top = None
    block = _rows_per_block(documents.score, top)
    length = ops.shape(documents.score)[1]
    if size is not None and size % block:
        documents = _pad(documents, -size % block)
        length = size + -size % block
    documents = Documents(**{**vars(documents), "index": ops.arange(length)[None, :]})
    columns = Documents(**{name: x[:, None, :] for name, x in vars(documents).items()})

    def visit(start: Any) -> list[tuple[Array, Array | None]]:
        """Row sums `[batch, block]` and, for `top`, column sums `[batch, list]` of each term."""
        rows = Documents(
            **{
                name: ops.slice(x, (0, start), (ops.shape(x)[0], block))[:, :, None]
                for name, x in vars(documents).items()
            }
        )
        z = sigma * (rows.score - columns.score)
        decay = _decay(rows, columns, z)
        forward, backward = phi(z, decay), phi(-z, decay)
        real = ops.logical_and(rows.mask, columns.mask)
        real = ops.logical_and(real, rows.index != columns.index)
        if top is not None:
            real = ops.logical_and(real, rows.index < top)
        weight_forward, weight_backward = (
            ops.where(real, w, ops.zeros_like(z)) for w in weights(rows, columns)
        )
        force = sigma * (weight_forward * forward.slope - weight_backward * backward.slope)
        terms = [weight_forward * forward.value, force]
        mirrored = [weight_backward * backward.value, -force]
        if curvature:
            bend = weight_forward * forward.curvature + weight_backward * backward.curvature
            terms.append(sigma * sigma * bend)
            mirrored.append(terms[2])
        return [
            (ops.sum(term, axis=2), None if top is None else _column_sums(mirror, columns, top))
            for term, mirror in zip(terms, mirrored, strict=True)
        ]

    def accumulate(number: Any, totals: tuple[Array, ...]) -> tuple[Array, ...]:
        start = number * block
        return tuple(
            ops.slice_update(total, (0, start), sums)
            if below is None
            # The last block may hold rows beyond `top`, which have column sums: add, not replace.
            else total + below + ops.slice_update(ops.zeros_like(total), (0, start), sums)
            for total, (sums, below) in zip(totals, visit(start), strict=True)
        )

    blocks = length // block
    if top is not None:
        blocks = ops.minimum(blocks, -(-top // block)) if size is None else -(-top // block)
    zeros = ops.zeros_like(documents.score)
    totals = (zeros,) * (3 if curvature else 2)
    if isinstance(blocks, int) and blocks == 1:
        totals = accumulate(0, totals)
    else:
        totals = ops.fori_loop(0, blocks, accumulate, totals)
    if size is not None:
        totals = tuple(total[:, :size] for total in totals)
    return PairSums(ops.sum(totals[0], axis=1), totals[1], totals[2] if curvature else None)


def _decay(rows: Documents, columns: Documents, z: Array) -> Array:
    """`e^(-|z|)` of each pair, without an exponential where the documents have their powers."""
    if not hasattr(rows, "power"):
        return ops.exp(-ops.abs(z))
    return ops.minimum(rows.power * columns.inverse_power, rows.inverse_power * columns.power)


def _range(documents: Documents) -> tuple[Array, Array]:
    """The lowest and highest score `[batch, 1]` of each list."""
    infinity = ops.full_like(documents.score, float("inf"))
    low = ops.min(ops.where(documents.mask, documents.score, infinity), axis=1, keepdims=True)
    high = ops.max(ops.where(documents.mask, documents.score, -infinity), axis=1, keepdims=True)
    some = ops.any(documents.mask, axis=1, keepdims=True)
    zero = ops.zeros_like(low)
    return ops.where(some, low, zero), ops.where(some, high, zero)


def _rows_per_block(score: Array, top: int | None, elements: int = BLOCK_ELEMENTS) -> int:
    batch, size = score.shape
    rows = ROW_BLOCK
    if size is not None:
        rows = max(ROW_BLOCK, elements // ((batch or 32) * size) // ROW_BLOCK * ROW_BLOCK)
        rows = min(rows, size + -size % ROW_BLOCK)
    return rows if top is None else min(rows, top)


def _column_sums(term: Array, columns: Documents, top: int) -> Array:
    """Sums over rows, for the columns that are not rows themselves."""
    sums = ops.sum(term, axis=1)
    return ops.where(columns.index[:, 0, :] >= top, sums, ops.zeros_like(sums))


def _pad(documents: Documents, amount: int) -> Documents:
    return Documents(
        **{name: ops.pad(x, ((0, 0), (0, amount))) for name, x in vars(documents).items()}
    )
