"""Loops that keep large intermediate results out of memory: sums over pairs, and prefix scans.

What was found about sums over pairs `[batch, row, column]` with XLA for CPU (two cores with AVX2,
TensorFlow 2.21), and why `sum_over_rows` looks as it does:

- A reduction over more than 32 elements is rewritten into a reduce-window that is not fused with
  what it sums, so that the pairs are written to memory. Two reductions that share a costly operand
  write it out, too. Fresh arrays of 32 MB take longer than the arithmetic.
- So rows are taken one by one as `[batch, 1]` and the columns, `[batch, list]`, are the result: 16
  rows written out make one elementwise expression that runs in registers, vectorised over the
  columns. The hinge loss of 8 x 1000 took 7.5 ms in blocks of rows with a reduction and takes
  2 ms so; no array is larger than `[batch, list]` (16 times that in a compact visit, for programs
  that are seldom run). More than 16 rows at once gain nothing.
- The cores hardly share the work of such a loop: waking the second one takes as long as a visit.
- An empty program takes 0.3 ms to launch from TensorFlow, a sort 0.8 ms at 32 x 200.

On a GPU or TPU (`backend.on_accelerator`) the opposite holds: every step of a loop is a launch, and
the compilers fuse whole pairs into one reduction. So there all rows are taken at once, or as many
as `PAIRS_AT_ONCE` allows: see `benchmarks/accelerators.py` for the estimates of the compilers.
"""

import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from tfrankloss import config
from tfrankloss.core import backend
from tfrankloss.core.backend import ROW_BLOCK, Array

# Up to this size a list is one visit, with the rows as an axis; up to the other, half as many rows
# are written out. Both compile faster.
SHORT_LIST = 16
MEDIUM_LIST = 64
# From this many documents on a visit takes long enough with a quarter of the rows, too.
LARGE_BATCH = 1 << 14
# Pairs of one block on accelerators, of all lists and of one list. Fused reductions store none of
# them. Where a compiler does not fuse (on a CPU, say), an array of a block of many lists takes
# 256 MB; and XLA for GPU may store a weight of two ranks, which both sums of a block need.
PAIRS_AT_ONCE = 1 << 26
PAIRS_OF_A_LIST = 1 << 24
# Lists of at least this size have rows enough to take several side by side, where a pair costs
# little beside the loop over it.
LONG_LIST = 128
ROWS_TOGETHER = 4
# Rows per block are a multiple of this: the height of a tile of a TPU, for each row side by side.
ALIGNED_ROWS = 8 * ROWS_TOGETHER
# From this many lists on, what depends on two positions alone is computed once for all of them, in
# a table of at most so many entries.
TABLE_LISTS = 4
TABLE_ENTRIES = 1 << 22
# A table of this size is computed when the program is compiled, and becomes a part of it.
FOLDED_ENTRIES = 1 << 16


class Documents(SimpleNamespace):
    """Attributes of the documents of each list by name, arrays `[batch or 1, list]`.

    The losses give `score`, `label`, `mask` and `weight` (the document's sample weight); the lambda
    losses add `gain` and `rank`, in the order of the ranks. An attribute may be a `ByDistance`.
    """

    def map(
        self,
        arrays: Callable[[Array], Array],
        distances: Callable[["ByDistance"], Any] = lambda x: x,
    ) -> "Documents":
        """The documents with a function applied to every array, and one to every `ByDistance`."""
        return Documents(
            **{
                name: distances(x) if isinstance(x, ByDistance) else arrays(x)
                for name, x in vars(self).items()
            }
        )


class ByDistance:
    """A function of the distance of two positions in the list, as an attribute of documents.

    `terms` of `sum_over_rows` find it in the row, as the values for its distance from each column.

    Args:
        function: of distances 0, 1, 2, ..., element by element.
        length: the number of documents of a list.
        dtype: type of the values.
        columns: the number of documents to which distances are asked for, if not all.
    """

    def __init__(
        self, function: Callable[[Array], Array], length: Any, dtype: str, columns: Any = None
    ) -> None:
        self.function = function
        self.length = length
        self.dtype = dtype
        self.columns = length if columns is None else columns
        if not backend.on_accelerator():  # here, because a loop cannot hand it out
            values = function(ops.arange(length, dtype=dtype))
            self._both_sides = ops.concatenate([ops.flip(values[1:], axis=0), values], axis=0)

    def padded(self, amount: int) -> "ByDistance":
        """For lists that are longer by `amount`."""
        return ByDistance(self.function, self.length + amount, self.dtype)

    def to_first(self, columns: Any) -> "ByDistance":
        """The distances to the first `columns` documents."""
        return ByDistance(self.function, self.length, self.dtype, columns)

    def from_positions(self, start: Any, count: int) -> list[Array]:
        """The values `[1, columns]` at the distances from each of `count` positions."""
        size = (self.columns,)
        return [
            ops.slice(self._both_sides, (self.length - 1 - (start + i),), size)[None, :]
            for i in range(count)
        ]

    def table(self, start: Any, count: Any) -> Array:
        """The same as one array `[1, count, columns]`, by the formula: without a gather."""
        known = all(isinstance(x, int) for x in (start, count, self.columns))
        if known and count * self.columns <= FOLDED_ENTRIES:
            row, column = np.arange(start, start + count), np.arange(self.columns)
            distance = np.abs(row[:, None] - column[None, :]).astype(self.dtype)
            return self.function(ops.convert_to_tensor(distance))[None]
        rows = ops.cast(ops.arange(count), self.dtype) + ops.cast(start, self.dtype)
        columns = ops.arange(self.columns, dtype=self.dtype)
        return self.function(ops.abs(rows[:, None] - columns[None, :]))[None]


def if_shorter(x: Array, limit: int, short: Callable[[], Any], long: Callable[[], Any]) -> Any:
    """`short()` if the lists of `x` have at most `limit` documents, or else `long()`.

    Where the size is not known when TensorFlow traces, it is when XLA compiles, and XLA drops the
    other branch.
    """
    if x.shape[1] is None:
        return ops.cond(ops.shape(x)[1] <= limit, short, long)
    return short() if x.shape[1] <= limit else long()


class Logarithmic(NamedTuple):
    """The term `number + log(factor)`, or the sum of a few: factors from 1 to 2 are multiplied."""

    number: Array
    factor: Array


def pad_to_rows(documents: Documents) -> Documents:
    """Pads lists of a static size with zeros, so that `sum_over_rows` has whole visits."""
    size = documents.score.shape[1]
    amount = 0 if size is None or backend.on_accelerator() else -size % _rows_per_visit(documents)
    return documents.map(lambda x: ops.pad(x, ((0, 0), (0, amount))), lambda x: x.padded(amount))


def sum_over_rows(
    terms: Callable[[Documents, Documents], tuple[Array | Logarithmic, ...]],
    columns: Documents,
    rows: Documents,
    sums: int,
    top: int | None = None,
    compact: bool = False,
    together: int = 1,
) -> tuple[Array, ...]:
    """Sums over the documents of `rows`, for each document of `columns`: `[batch, columns]` each.

    Args:
        terms: takes columns and rows, whose attributes broadcast, and returns what to add up.
        columns: documents.
        rows: documents, in lists as `pad_to_rows` returns them.
        sums: the number of terms.
        top: where given, the rows after the first `top` need not be visited.
        compact: whether to keep rows as an axis instead of writing them out, for a program that is
            seldom run.
        together: on accelerators, rows side by side in long lists: so many pairs for each element
            of the array that is reduced, which spares the loops over it.
    """
    if backend.on_accelerator():
        return reduce_over_blocks(terms, columns, rows, sums, top, together)
    size = rows.score.shape[1]
    length = ops.shape(rows.score)[1]
    # Operation by operation, rows that are written out would only be more operations.
    compact = compact or not config.xla_enabled() or (size is not None and size <= SHORT_LIST)
    step = _rows_per_visit(rows)
    visits = length // step
    if top is not None and (size is None or top < size):
        step = min(step, top)
        visits = -(-top // step)
        if size is None:
            visits = ops.minimum(visits, length // step)

    def visit(start: Any) -> tuple[Array, ...]:
        block = rows.map(
            lambda x: ops.slice(x, (0, start), (ops.shape(x)[0], step)),
            lambda x: x.from_positions(start, step),
        )
        if compact:
            return _reduce_axis(terms, columns, [block])
        return _sum_written_out(terms, columns, block, step)

    if isinstance(visits, int) and visits == 1:
        return visit(0)

    def add(number: Any, totals: tuple[Array, ...]) -> tuple[Array, ...]:
        here = visit(number * step)
        return tuple(total + term for total, term in zip(totals, here, strict=True))

    return ops.fori_loop(0, visits, add, (ops.zeros_like(columns.score),) * sums)


class Reduction(NamedTuple):
    """A way to make one number of many."""

    join: Callable[[Array, Array], Array]
    along: Callable[..., Array]  # of an array, along an axis
    start: float


SUM = Reduction(operator.add, ops.sum, 0.0)
MAXIMUM = Reduction(ops.maximum, ops.max, -float("inf"))


def reduce_over_blocks(
    terms: Callable[..., Any],
    columns: Documents,
    rows: Documents,
    results: int,
    top: int | None = None,
    together: int = 1,
    reduction: Reduction = SUM,
) -> tuple[Array, ...]:
    """`sum_over_rows` for accelerators: all rows at once, or in a few large blocks.

    Args:
        terms, columns, rows, top, together: see `sum_over_rows`.
        results: the number of terms.
        reduction: sums, or something else.
    """
    batch, width = ops.shape(columns.score)
    length = ops.shape(rows.score)[1]
    if top is not None:
        length = min(length, top) if isinstance(length, int) else ops.minimum(length, top)
    step = _rows_at_once(batch, width, length)
    known = all(isinstance(x, int) for x in (batch, width, step))
    together = together if known and step >= LONG_LIST and step % together == 0 else 1

    def blocks_from(start: Any, share: bool = False) -> list[Documents]:
        count = step // together

        def block(first: Any) -> Documents:
            def table(x: ByDistance) -> Array:
                values = x.table(first, count)
                return backend.kept(values) if share else values

            return rows.map(lambda x: ops.slice(x, (0, first), (ops.shape(x)[0], count)), table)

        return [block(start + i * count) for i in range(together)]

    if known and step == length:
        share = batch >= TABLE_LISTS and width * length <= TABLE_ENTRIES
        return _reduce_axis(terms, columns, blocks_from(0, share), reduction)

    def add(number: Any, totals: tuple[Array, ...]) -> tuple[Array, ...]:
        # The last block ends with the list, and leaves out what the one before it counted.
        start = ops.minimum(number * step, length - step)
        new = ops.arange(step)[None, :, None] >= number * step - start
        news = ops.split(new, together, axis=1) if together > 1 else [new]
        here = _reduce_axis(terms, columns, blocks_from(start), reduction, news)
        return tuple(reduction.join(*pair) for pair in zip(totals, here, strict=True))

    blocks = (length + step - 1) // step
    start = ops.full_like(columns.score, reduction.start)
    return ops.fori_loop(0, blocks, add, (start,) * results)


def _rows_at_once(batch: Any, width: Any, length: Any) -> Any:
    """As many rows as `PAIRS_AT_ONCE` allows: a number where sizes are known, or else a tensor."""
    if all(isinstance(size, int) for size in (batch, width, length)):
        width = max(width, 1)
        most = max(min(PAIRS_AT_ONCE // (max(batch, 1) * width), PAIRS_OF_A_LIST // width), 1)
        if length <= most:
            return length
        rows = -(-length // -(-length // most))  # blocks of nearly the same size
        return min(rows + -rows % ALIGNED_ROWS, length)
    lists, width = (ops.maximum(ops.cast(x, "float32"), 1.0) for x in (batch, width))
    rows = ops.minimum(PAIRS_AT_ONCE / (lists * width), PAIRS_OF_A_LIST / width)
    rows = ops.cast(rows, "int32")
    return ops.maximum(ops.minimum(rows, length), ops.minimum(length, 1))


def _rows_per_visit(documents: Documents) -> int:
    batch, size = documents.score.shape
    if size is not None and size > SHORT_LIST and (batch or 0) * size >= LARGE_BATCH:
        return ROW_BLOCK // 4
    if size is None or size > MEDIUM_LIST:
        return ROW_BLOCK
    return ROW_BLOCK // 2 if size > SHORT_LIST else max(size, 1)


def _sum_written_out(
    terms: Callable[..., Any], columns: Documents, block: Documents, step: int
) -> tuple[Array, ...]:
    rows = {
        name: x if isinstance(x, list) else ops.split(x, step, axis=1)
        for name, x in vars(block).items()
    }
    totals: Any = None
    for i in range(step):
        here = terms(columns, Documents(**{name: x[i] for name, x in rows.items()}))
        if totals is not None:
            here = tuple(_join(*pair) for pair in zip(totals, here, strict=True))
        totals = here
    return tuple(map(_number, totals))


def _reduce_axis(
    terms: Callable[..., Any],
    columns: Documents,
    blocks: list[Documents],
    reduction: Reduction = SUM,
    counts: list[Array] | None = None,
) -> tuple[Array, ...]:
    """The rows of blocks of one size reduced to one; the blocks are joined row by row first.

    `counts`, `[1, rows, 1]` for each block, is False for rows to leave out.
    """

    def as_rows(x: Any) -> Array:
        if isinstance(x, list):
            return ops.stack(x, axis=1)
        return x if len(x.shape) == 3 else x[:, :, None]

    columns = columns.map(lambda x: x[:, None, :])
    totals: Any = None
    for number, block in enumerate(blocks):
        rows = Documents(**{name: as_rows(x) for name, x in vars(block).items()})
        here = tuple(map(_number, terms(columns, rows)))
        if counts is not None:
            nothing = reduction.start
            here = tuple(ops.where(counts[number], x, ops.full_like(x, nothing)) for x in here)
        totals = here if totals is None else tuple(map(reduction.join, totals, here))
    return tuple(reduction.along(x, axis=1) for x in totals)


def _join(total: Any, term: Any) -> Any:
    if isinstance(total, Logarithmic):
        return Logarithmic(total.number + term.number, total.factor * term.factor)
    return total + term


def _number(term: Array | Logarithmic) -> Array:
    return term.number + ops.log(term.factor) if isinstance(term, Logarithmic) else term


def fold_rows(
    function: Callable[..., Array], result: Array, *arrays: Array, block: int = ROW_BLOCK
) -> Array:
    """`result = function(result, first, *rows)` for all blocks of rows of the arrays.

    `first` is the number of the first row, and `rows` are `[batch, block, 1]` of each array. Lists
    of a static size are padded with zeros.
    """
    size = arrays[0].shape[1]
    padding = 0 if size is None else -size % block
    arrays = tuple(ops.pad(x, ((0, 0), (0, padding))) for x in arrays)
    batch, length = ops.shape(arrays[0])

    def visit(number: Any, result: Array) -> Array:
        first = number * block
        rows = (ops.slice(x, (0, first), (batch, block))[:, :, None] for x in arrays)
        return function(result, first, *rows)

    return ops.fori_loop(0, length // block, visit, result)


def over_rows(
    function: Callable[..., Array],
    *arrays: Array,
    block: int = ROW_BLOCK,
    antisymmetric: bool = False,
) -> Array:
    """Applies `function` to blocks of rows `[batch, block, 1]` of the arrays and joins the results.

    `function` gives one number per row, `[batch, block]`; or, where `antisymmetric`, a matrix
    `[batch, block, list]` whose column sums minus row sums are wanted.
    """
    size = arrays[0].shape[1]
    padding = ((0, 0), (0, 0 if size is None else -size % block))

    def visit(result: Array, first: Any, *rows: Array) -> Array:
        term = function(*rows)
        if not antisymmetric:
            return ops.slice_update(result, (0, first), term)
        columns = ops.pad(ops.sum(term, axis=1), padding)
        row_sums = ops.slice_update(ops.zeros_like(result), (0, first), ops.sum(term, axis=2))
        return result + columns - row_sums

    start = ops.pad(ops.zeros_like(arrays[0]), padding)
    return fold_rows(visit, start, *arrays, block=block)[:, :size]


def over_lists(function: Callable[..., Array], *arrays: Array) -> Array:
    """Applies `function` to one list after the other: `[1, list]` of each of the arrays."""
    size = ops.shape(arrays[0])[1]

    def visit(number: Any, result: Array) -> Array:
        term = function(*(ops.slice(x, (number, 0), (1, size)) for x in arrays))
        return ops.slice_update(result, (number, 0), term)

    return ops.fori_loop(0, ops.shape(arrays[0])[0], visit, ops.zeros_like(arrays[0]))


def prefix_scan(
    combine: Callable[..., Any], arrays: tuple[Array, ...], fills: tuple[float, ...]
) -> tuple[Array, ...]:
    """Inclusive scan along the list of an associative `combine`, in log2(list) steps.

    `combine(earlier, later)` takes and returns tuples of arrays `[batch, list]`; `fills` is its
    neutral element. (`keras.ops.associative_scan` does not compile with XLA on TensorFlow and needs
    a static length.)
    """
    length = ops.shape(arrays[0])[1]
    if backend.on_accelerator() and isinstance(length, int):
        return _unrolled_scan(combine, arrays, fills, length)
    index = ops.arange(length)

    def unfinished(step: Any, *_: Array) -> Any:
        return step < length

    def double(step: Any, *arrays: Array) -> tuple[Any, ...]:
        sources = ops.maximum(index - step, 0)
        earlier = tuple(
            ops.where(index[None, :] >= step, ops.take(x, sources, axis=1), fill)
            for x, fill in zip(arrays, fills, strict=True)
        )
        return (2 * step, *combine(earlier, arrays))

    return ops.while_loop(unfinished, double, (1, *arrays))[1:]


def _unrolled_scan(
    combine: Callable[..., Any], arrays: tuple[Array, ...], fills: tuple[float, ...], length: int
) -> tuple[Array, ...]:
    """The same written out, without a gather: a step of a loop is several launches."""
    step = 1
    while step < length:
        earlier = tuple(
            ops.pad(x[:, :-step], ((0, 0), (step, 0)), constant_values=fill)
            for x, fill in zip(arrays, fills, strict=True)
        )
        arrays = combine(earlier, arrays)
        step *= 2
    return arrays


def suffix_scan(
    combine: Callable[..., Any], arrays: tuple[Array, ...], fills: tuple[float, ...]
) -> tuple[Array, ...]:
    """The same from the end of the list; `combine(later, earlier)`."""
    flipped = tuple(ops.flip(x, axis=1) for x in arrays)
    return tuple(ops.flip(x, axis=1) for x in prefix_scan(combine, flipped, fills))
