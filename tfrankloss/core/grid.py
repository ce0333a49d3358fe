"""Sums over the pairs of long lists from a grid of scores, in O(n) per label for n documents.

Where a pair counts by its labels alone, the sums of a document over the others depend on nothing
but its score and its label: for each label y they are functions of a score s, such as

    v_y(s) = sum_{j: y_j < y} phi(s - s_j).

`log(1 + e^(-z))` and its kin have no singularity nearer to the real numbers than `i pi`. A function
so smooth is known from its values in a few Chebyshev nodes, with an error that falls by a constant
factor with every node (Trefethen, Approximation Theory and Approximation Practice, Theorem 8.2): by
1.55 for scores spread over 14, so that 40 nodes leave little but the rounding of float32. So, label
after label, `NODES` scores take the place of the documents on one side of the pairs, and the
documents of the label get their sums from the polynomials through these. Scores that are spread
further are cut into pieces of this width, with nodes for each.

The error is a share of the largest number on the grid, not of a document's own. Where documents are
in such good order that their sums are small beside those on the grid, all pairs are visited; as
they are where there are too many labels and pieces for the documents, or these have weights.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from tfrankloss.core.backend import Array
from tfrankloss.core.blocks import Documents
from tfrankloss.core.lists import grades

# Measured on two cores, 8 and 32 lists, five labels: at 512 documents the grid takes as long as all
# pairs, at 1,000 half as long, at 10,000 a fifteenth. Up to this size all pairs are visited.
VISITED_LIST = 640
NODES = 40
PIECE = 14.0
# Every piece of every label takes as long as 128 documents on one side of the pairs; so many fit
# into a list, and never more labels than the other number.
LEAST_DOCUMENTS = 128
MOST_LABELS = 32
# What the documents of a list add up to must be this share of what they would if each had the
# largest number on the grid: errors are some 4e-7 of that number, so at most 4e-5 of the sums.
LEAST_SHARE = 1e-2
# Long lists are visited as several of this size: fewer visits, of more columns each. (128 and 256
# took longer.)
PART = 64
# Of a grid for scores that are all equal.
SMALLEST_HALF = 1e-6

Sums = tuple[Array, ...]


def sums_of_documents(
    documents: Documents,
    widest: float,
    count: int,
    at: Callable[[Documents, Documents], Sums],
    by_pairs: Callable[[], Sums],
) -> Sums:
    """Sums over the other documents of each list, for each document: `[batch, list]`.

    Args:
        documents: with `centred`, the scores around 0.
        widest: how far from 0 these may be for `at`.
        count: the number of sums: values, slopes, and possibly curvatures.
        at: the sums of the documents that it is given first over those that it is given second.
        by_pairs: the sums over all pairs.
    """
    labels, different = different_labels(documents.label, documents.mask)
    # Not half of the spread: the middle of scores that are far from 0 is rounded.
    half = ops.max(
        ops.where(documents.mask, ops.abs(documents.centred), 0.0), initial=SMALLEST_HALF
    )
    pieces = ops.cast(ops.ceil(ops.minimum(half, widest) / (0.5 * PIECE)), "int32")
    fits = _all(
        half <= widest,
        different <= MOST_LABELS,
        LEAST_DOCUMENTS * different * pieces <= ops.shape(documents.score)[1],
        *_all_weigh_one(documents),
    )
    radius = half / ops.cast(pieces, half.dtype)
    rows = _parts(documents)

    def add_piece(number: Any, totals: tuple[Array, Array]) -> tuple[Array, Array]:
        sums, largest = totals
        # Not a slice: where that begins would be a constant to XLA, as the number of pieces does
        # not change in the loop, and the whole program would be compiled again for other scores.
        label = ops.take(labels, number // pieces, axis=0)
        piece = ops.cast(number % pieces, half.dtype)
        centre = (2.0 * piece + 1.0) * radius - half
        batch, parts = ops.shape(label)[0], _number_of_parts(documents)
        values = ops.stack(at(_in_nodes(label, centre, radius, parts), rows))
        values = ops.sum(ops.reshape(values, (count, parts, batch, NODES)), axis=1)
        peak = ops.max(ops.abs(values), axis=2, keepdims=True)
        x = (documents.centred - centre) / radius
        # A document at the border is in both pieces, whichever way it is rounded.
        here = ops.logical_and(documents.grade == label, ops.abs(x) <= 1.0 + 1e-5)
        polynomials = interpolate(values, ops.clip(x, -1.0, 1.0))
        return ops.where(here, polynomials, sums), ops.where(here, peak, largest)

    zeros = ops.tile(ops.zeros_like(documents.score)[None], (count, 1, 1))
    pieces_to_add = ops.where(fits, different * pieces, 0)
    sums, largest = ops.fori_loop(0, pieces_to_add, add_piece, (zeros, zeros))
    reached, possible = (ops.sum(ops.abs(y), axis=2) for y in (sums, largest))
    return ops.cond(
        _all(fits, ops.all(reached >= LEAST_SHARE * possible)),
        lambda: tuple(sums[i] for i in range(count)),
        by_pairs,
    )


def different_labels(labels: Array, mask: Array) -> tuple[Array, Array]:
    """The different labels of each list from the lowest one on, `[MOST_LABELS, batch, 1]`.

    And the largest number of them in a list, more than `MOST_LABELS` if these are not all. In lists
    with fewer, the rest is NaN.
    """
    infinity = float("inf")

    def some_are_left(number: Any, rest: Array, _: Array) -> Array:
        return ops.logical_and(number < MOST_LABELS, ops.any(rest < infinity))

    def take_lowest(number: Any, rest: Array, found: Array) -> tuple[Any, Array, Array]:
        lowest = ops.min(rest, axis=1, keepdims=True, initial=infinity)
        found = ops.slice_update(found, (number, 0, 0), lowest[None])
        return number + 1, ops.where(rest > lowest, rest, infinity), found

    rest = ops.where(mask, labels, ops.full_like(labels, infinity))
    found = ops.full((MOST_LABELS, ops.shape(labels)[0], 1), infinity, dtype=labels.dtype)
    count, rest, found = ops.while_loop(some_are_left, take_lowest, (0, rest, found))
    count = ops.where(ops.any(rest < infinity), MOST_LABELS + 1, count)
    return grades(found, found < infinity), count


def interpolate(values: Array, x: Array) -> Array:
    """The polynomials with the given values in the nodes, by Clenshaw's recurrence.

    Args:
        values: `[functions, batch, NODES]`.
        x: `[batch, list]`, from -1 to 1.

    Returns:
        `[functions, batch, list]`.
    """
    coefficients = ops.sum(_cosines()[:, None, None, :] * values[None], axis=-1)[..., None]
    last = before = ops.zeros_like(x)[None]
    for i in range(NODES - 1):
        last, before = coefficients[i] + 2.0 * x * last - before, last
    return coefficients[NODES - 1] + x * last - before


def _in_nodes(label: Array, centre: Array, radius: Array, parts: Any) -> Documents:
    """Documents of one label in the nodes, for each part of each list; `label` is `[batch, 1]`."""
    nodes = ops.convert_to_tensor(_nodes()[None, :])
    batch = ops.shape(label)[0]
    label = ops.reshape(ops.broadcast_to(label[None], (parts, batch, 1)), (parts * batch, 1))
    return Documents(
        score=ops.zeros_like(label) + ops.zeros_like(nodes),  # only its shape is used
        centred=centre + radius * nodes,
        label=label,
        grade=label,
    )


def _parts(documents: Documents) -> Documents:
    """The documents in lists of `PART`, part after part of the whole batch."""
    batch, size = ops.shape(documents.score)
    parts = _number_of_parts(documents)

    def split(x: Array, fill: float = 0.0) -> Array:
        x = ops.pad(x, ((0, 0), (0, parts * PART - size)), constant_values=fill)
        x = ops.transpose(ops.reshape(x, (batch, parts, PART)), (1, 0, 2))
        return ops.reshape(x, (parts * batch, PART))

    return Documents(
        score=split(documents.score),
        centred=split(documents.centred),
        label=split(documents.label),
        grade=split(documents.grade, fill=float("nan")),
    )


def _all_weigh_one(documents: Documents) -> list[Array]:
    """The condition that no document has a weight of its own; nothing where that is known."""
    if not hasattr(documents, "weight"):
        return []
    return [ops.all(documents.weight == ops.cast(documents.mask, documents.weight.dtype))]


def _number_of_parts(documents: Documents) -> Any:
    return -(-ops.shape(documents.score)[1] // PART)


def _nodes() -> np.ndarray:
    return np.cos(np.pi / NODES * (np.arange(NODES) + 0.5)).astype("float32")


def _cosines() -> np.ndarray:
    """What makes coefficients of Chebyshev polynomials, the last one first, of values in nodes."""
    degrees = np.arange(NODES)[::-1]
    cosines = np.cos(np.pi / NODES * np.outer(degrees, np.arange(NODES) + 0.5))
    return (np.where(degrees == 0, 1.0, 2.0)[:, None] / NODES * cosines).astype("float32")


def _all(*conditions: Array) -> Array:
    return functools.reduce(ops.logical_and, conditions)
