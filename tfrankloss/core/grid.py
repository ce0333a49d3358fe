"""Sums over the pairs of long lists from a grid of scores, in O(n) for n documents.

Where a pair counts by its labels alone, the sums of a document over the others depend on nothing
but its score and its label: for each label y they are functions of a score s, such as

    v_y(s) = sum_{j: y_j < y} phi(s - s_j).

`log(1 + e^(-z))` and its kin have no singularity nearer to the real numbers than `i pi`. A function
so smooth is known from its values in a few Chebyshev nodes, with an error that falls by a constant
factor with every node (Trefethen, Approximation Theory and Approximation Practice, Theorem 8.2): by
1.55 for scores spread over 14, so that 40 nodes leave little but the rounding of float32. So, label
after label, `NODES` scores take the place of the documents on one side of the pairs, and the
documents of the label get their sums from the polynomials through these.

The error is a share of the largest number on the grid, not of a document's own. Where documents are
in such good order that their sums are small beside those on the grid, all pairs are visited; as
they are where scores are spread further, labels are too many, or documents have weights.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from tfrankloss.core.backend import Array
from tfrankloss.core.blocks import Documents
from tfrankloss.core.lists import grades

# Up to this size all pairs are visited.
VISITED_LIST = 640
NODES = 40
WIDEST_SPREAD = 14.0
# The most different labels, and how many documents there must be for each.
MOST_LABELS = 32
LEAST_DOCUMENTS = 128
# The sums of the documents must be this share of what they could be on the grid.
LEAST_SHARE = 1e-3
# Long lists are visited as several of this size: fewer visits, of more columns each.
PART = 64

Sums = tuple[Array, ...]


def sums_of_documents(
    documents: Documents,
    spread: Array,
    count: int,
    at: Callable[[Documents, Documents], Sums],
    by_pairs: Callable[[], Sums],
) -> Sums:
    """Sums over the other documents of each list, for each document: `[batch, list]`.

    Args:
        documents: with `scaled`, the scores around 0.
        spread: the widest range of `scaled` in a list.
        count: the number of sums: values, slopes, and possibly curvatures.
        at: the sums of the documents that it is given first over those that it is given second.
        by_pairs: the sums over all pairs.
    """
    labels, different = different_labels(documents.label, documents.mask)
    fits = _all(
        spread <= WIDEST_SPREAD,
        LEAST_DOCUMENTS * different <= ops.shape(documents.score)[1],
        ops.all(documents.weight == ops.cast(documents.mask, documents.weight.dtype)),
    )
    half = 0.5 * ops.maximum(spread, 1e-3)
    rows = _parts(documents)
    zeros = ops.zeros_like(documents.score)[None]

    def add_label(number: Any, totals: tuple[Array, Array]) -> tuple[Array, Array]:
        sums, largest = totals
        label = ops.slice(labels, (number, 0, 0), (1, *ops.shape(labels)[1:]))[0]
        values = ops.stack(at(_columns(rows, label, half), rows))
        values = ops.reshape(values, (count, -1, ops.shape(label)[0], NODES))
        values = ops.sum(values, axis=1)  # over the parts of a list
        peak = ops.max(ops.abs(values[:2]), axis=2, keepdims=True)
        here = documents.grade == label
        polynomials = interpolate(values, documents.scaled / half)
        return ops.where(here, polynomials, sums), ops.where(here, peak, largest)

    start = (ops.tile(zeros, (count, 1, 1)), ops.tile(zeros, (2, 1, 1)))
    sums, largest = ops.fori_loop(0, ops.where(fits, different, 0), add_label, start)
    reached, possible = (ops.sum(ops.abs(x), axis=2) for x in (sums[:2], largest))
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


def _columns(rows: Documents, label: Array, half: Array) -> Documents:
    """Documents of one label in the nodes, for each part of each list; `label` is `[batch, 1]`."""
    nodes = ops.convert_to_tensor(_nodes()[None, :], dtype=label.dtype)
    parts = ops.zeros_like(ops.reshape(rows.score[:, :1], (-1, ops.shape(label)[0], 1)))
    label = ops.reshape(parts + label, (-1, 1))
    return Documents(
        score=ops.zeros_like(label) + ops.zeros_like(nodes),
        scaled=half * nodes,
        label=label,
        grade=label,
        weight=ops.ones_like(nodes),
    )


def _parts(documents: Documents) -> Documents:
    """The documents in lists of `PART`, part after part of the whole batch."""
    batch, size = ops.shape(documents.score)
    padding = -size % PART

    def parts(x: Array, fill: float = 0.0) -> Array:
        x = ops.pad(x, ((0, 0), (0, padding)), constant_values=fill)
        x = ops.transpose(ops.reshape(x, (batch, -1, PART)), (1, 0, 2))
        return ops.reshape(x, (-1, PART))

    return Documents(
        score=parts(documents.score),
        scaled=parts(documents.scaled),
        label=parts(documents.label),
        grade=parts(documents.grade, fill=float("nan")),
        weight=parts(documents.weight),
    )


def _nodes() -> np.ndarray:
    return np.cos(np.pi / NODES * (np.arange(NODES) + 0.5))


def _cosines() -> np.ndarray:
    """What makes coefficients of Chebyshev polynomials, the last one first, of values in nodes."""
    degrees = np.arange(NODES)[::-1]
    cosines = np.cos(np.pi / NODES * np.outer(degrees, np.arange(NODES) + 0.5))
    return (np.where(degrees == 0, 1.0, 2.0)[:, None] / NODES * cosines).astype("float32")


def _all(*conditions: Array) -> Array:
    return functools.reduce(ops.logical_and, conditions)
