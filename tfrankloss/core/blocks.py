"""Loops that keep large intermediate results out of memory: blocks of rows, and prefix scans."""

from collections.abc import Callable
from typing import Any

from keras import ops

from tfrankloss.core.backend import ROW_BLOCK, Array


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
    length = ops.shape(arrays[0])[1]
    padding = 0 if size is None else -size % block
    if padding:
        arrays = tuple(ops.pad(x, ((0, 0), (0, padding))) for x in arrays)
        length = size + padding

    def visit(number: Any, result: Array) -> Array:
        start = number * block
        shape = (ops.shape(arrays[0])[0], block)
        term = function(*(ops.slice(x, (0, start), shape)[:, :, None] for x in arrays))
        if not antisymmetric:
            return ops.slice_update(result, (0, start), term)
        columns = ops.pad(ops.sum(term, axis=1), ((0, 0), (0, padding)))
        rows = ops.slice_update(ops.zeros_like(result), (0, start), ops.sum(term, axis=2))
        return result + columns - rows

    result = ops.fori_loop(0, length // block, visit, ops.zeros_like(arrays[0]))
    return result[:, :size] if padding else result


def prefix_scan(
    combine: Callable[..., Any], arrays: tuple[Array, ...], fills: tuple[float, ...]
) -> tuple[Array, ...]:
    """Inclusive scan along the list of an associative `combine`, in log2(list) steps.

    `combine(earlier, later)` takes and returns tuples of arrays `[batch, list]`; `fills` is its
    neutral element. (`keras.ops.associative_scan` does not compile with XLA on TensorFlow and needs
    a static length.)
    """
    size = arrays[0].shape[1]
    if size is not None:
        step = 1
        while step < size:
            earlier = tuple(
                ops.pad(x[:, :-step], ((0, 0), (step, 0)), constant_values=fill)
                for x, fill in zip(arrays, fills, strict=True)
            )
            arrays = combine(earlier, arrays)
            step *= 2
        return arrays

    length = ops.shape(arrays[0])[1]
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


def suffix_scan(
    combine: Callable[..., Any], arrays: tuple[Array, ...], fills: tuple[float, ...]
) -> tuple[Array, ...]:
    """The same from the end of the list; `combine(later, earlier)`."""
    flipped = tuple(ops.flip(x, axis=1) for x in arrays)
    return tuple(ops.flip(x, axis=1) for x in prefix_scan(combine, flipped, fills))
