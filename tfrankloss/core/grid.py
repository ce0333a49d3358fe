"""Sums over the pairs of long lists from a grid of scores, in O(n) for n documents.

Where a pair counts by its labels alone, the sums of a document over the others depend on nothing
but its score and its label: for each label y they are functions of a score s, such as

    v_y(s) = sum_{j: y_j < y} phi(s - s_j).

`log(1 + e^(-z))` and its kin have no singularity nearer to the real numbers than `i pi`. A function
so smooth is known from its values in a few Chebyshev nodes, with an error that falls by a constant
factor with every node (Trefethen, Approximation Theory and Approximation Practice, Theorem 8.2): by
1.65 for scores spread over 12, so that with 32 nodes only the rounding of float32 is left. So
`NODES` scores for each of up to `LABELS` labels take the place of the documents on one side of the
pairs, and a document gets its sums from the polynomials of its label.

The error is a share of the largest number on the grid, not of a document's own. Where documents are
in such good order that their sums are small beside those on the grid, all pairs are visited instead;
as they are where scores are spread further, labels are more, or documents have weights.

TIMES
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from tfrankloss.core.backend import Array
from tfrankloss.core.blocks import Documents
from tfrankloss.core.lists import grades

# Up to this size all pairs are visited.
VISITED_LIST = 512
NODES = 40
WIDEST_SPREAD = 14.0
# The most different labels, and how many documents there must be for each.
MOST_LABELS = 32
LEAST_DOCUMENTS = 64
# The sums of the documents must be this share of what they could be on the grid.
LEAST_SHARE = 1e-3
# Long lists are visited as several of this size: fewer visits, of more columns each. The sizes to
# which lists of unknown length are padded are multiples of it.
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
    size = ops.shape(documents.score)[1]
    fits = ops.logical_and(spread <= WIDEST_SPREAD, different * LEAST_DOCUMENTS <= size)
    weights = ops.cast(documents.mask, documents.weight.dtype)
    fits = ops.logical_and(fits, ops.all(documents.weight == weights))
    half = 0.5 * ops.maximum(spread, 1e-3)
    rows = _parts(documents)
    nodes = ops.cast(_nodes()[None, :], documents.score.dtype)

    def add_label(number: Any, totals: tuple[Array, Array]) -> tuple[Array, Array]:
        sums, possible = totals
        label = ops.slice(labels, (number, 0, 0), (1, *ops.shape(labels)[1:]))[0]  # [batch, 1]
        columns = Documents(
            score=ops.zeros_like(rows.score[:, :1]) + ops.zeros_like(nodes),
            scaled=half * nodes,
            grade=repeated(label),
            weight=ops.ones_like(nodes),
        )
        values = ops.reshape(ops.stack(at(columns, rows)), (count, -1, *ops.shape(label)[:1], NODES))
        values = ops.sum(values, axis=1)  # over the parts of a list
        here = documents.grade == label
        largest = ops.max(ops.abs(values[:2]), axis=-1, keepdims=True)
        polynomial = interpolate(values, documents.scaled / half)
        return ops.where(here, polynomial, sums), ops.where(here, largest, possible)

    def repeated(label):
        times = ops.shape(rows.score)[0] // ops.shape(label)[0]
        return ops.reshape(ops.zeros((times, 1, 1)) + label[None], (-1, 1))

    zeros = ops.zeros((count, *ops.shape(documents.score)))
    sums, possible = ops.fori_loop(0, ops.where(fits, different, 0), add_label, (zeros, zeros[:2]))
    accurate = ops.sum(ops.abs(sums[:2]), axis=-1) >= LEAST_SHARE * ops.sum(possible, axis=-1)
    return ops.cond(
        ops.logical_and(fits, ops.all(accurate)),
        lambda: tuple(sums[i] for i in range(count)),
        by_pairs,
    )


def different_labels(labels: Array, mask: Array) -> tuple[Array, Array]:
    """The different labels of each list from the lowest one on, `[MOST_LABELS, batch, 1]`.

    And the largest number of them in a list, more than `MOST_LABELS` if these are not all. In lists
    with fewer the rest is NaN.
    """
    infinity = float("inf")

    def some_are_left(number: Any, rest: Array, _: Array) -> Array:
        return ops.logical_and(number <= MOST_LABELS, ops.any(rest < infinity))

    def take_lowest(number: Any, rest: Array, found: Array) -> tuple[Any, Array, Array]:
        lowest = ops.min(rest, axis=1, keepdims=True, initial=infinity)
        found = ops.slice_update(found, (number, 0, 0), lowest[None])
        return number + 1, ops.where(rest > lowest, rest, infinity), found

    rest = ops.where(mask, labels, ops.full_like(labels, infinity))
    found = ops.full((MOST_LABELS + 1, *ops.shape(labels)[:1], 1), infinity)
    count, _, found = ops.while_loop(some_are_left, take_lowest, (0, rest, found))
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


def _nodes() -> np.ndarray:
    return np.cos(np.pi * (np.arange(NODES) + 0.5) / NODES)


def _cosines() -> np.ndarray:
    """The coefficients of Chebyshev polynomials, of the last one first, from values in the nodes."""
    degrees = np.arange(NODES)[::-1]
    cosines = np.cos(np.pi / NODES * np.outer(degrees, np.arange(NODES) + 0.5))
    return (np.where(degrees == 0, 1.0, 2.0)[:, None] / NODES * cosines).astype("float32")


def _parts(documents: Documents) -> Documents:
    """The documents in lists of `PART`, part after part of the whole batch."""
    size = documents.score.shape[1]
    batch = ops.shape(documents.score)[0]
    padding = 0 if size is None else -size % PART

    def parts(x: Array, fill: float = 0.0) -> Array:
        x = ops.pad(x, ((0, 0), (0, padding)), constant_values=fill)
        x = ops.transpose(ops.reshape(x, (batch, -1, PART)), (1, 0, 2))
        return ops.reshape(x, (-1, PART))

    return Documents(
        score=parts(documents.score),
        scaled=parts(documents.scaled),
        weight=parts(documents.weight),
        grade=parts(documents.grade, fill=float("nan")),
    )
