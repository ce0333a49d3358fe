"""SoftRank's ranks: every score is the mean of a Gaussian, and a rank has a distribution.

Document j is above i with probability `p_ij = Phi((s_j - s_i) / (sqrt(2) noise_scale))`, and the
others are above i independently of each other (Taylor et al., 2008), so that

    E[z^(rank_i - 1)] = prod_{j != i} (1 - (1 - z) p_ij).

The discounts of NDCG are sums of such powers: `1 / D(r) = sum_m w_m z_m^(r - 1)`, with four terms
for every factor of ten in the number of ranks (`1 / log(1 + r)` is completely monotone, that is, an
integral of powers with positive weights). So the expectation of `1 / D(rank_i)` is a sum of a few
products over the other documents. The recursion of the paper, which gives the distribution of every
rank, takes time like n^3 for n documents: 1.8 s for 1,000 of them on two cores, against 6 ms. It
remains for discounts with a cutoff, which no short sum of powers follows, for discounts of the
user's, and for float64.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from tfrankloss.core import backend, ranks
from tfrankloss.core.backend import ROW_BLOCK, Array
from tfrankloss.core.blocks import Documents, fold_rows, over_lists, over_rows, sum_over_rows

INVERSE_DISCOUNTS: dict[Any, Callable[[np.ndarray], np.ndarray]] = {
    "log2": lambda rank: 1.0 / np.log2(1.0 + rank),
    "linear": lambda rank: 1.0 / rank,
}
# Ranks for which the powers are fitted where the size of the lists is not known.
MOST_RANKS = 1 << 17
# e^-60 adds nothing to a sum, and products with it are still normal numbers. (Arithmetic with the
# others takes ten times as long.)
SMALLEST_LOGARITHM = -60.0
# Below, XLA's error function of float32 stays at 2e-7 - 1, which would add up over long lists; that
# of float64 is -1.
LOWEST_ARGUMENT = {"float32": -3.8, "float64": -6.0}
# The recursion keeps one distribution over ranks per step: this bounds their bytes.
RECURSION_BYTES = 1 << 23


def expected_inverse_discounts(
    scores: Array,
    mask: Array,
    noise_scale: float,
    discount: ranks.Discount = "log2",
    topn: int | None = None,
) -> Array:
    """`E[1 / D(rank_i)]` when score i is Normal(s_i, noise_scale^2), differentiable in scores.

    Args:
        scores: `[batch, list]`.
        mask: `[batch, list]`.
        noise_scale: standard deviation of each score.
        discount: of a rank.
        topn: ranks after this one are worth 0.
    """
    size = scores.shape[1]
    all_ranks = topn is None or (size is not None and topn >= size)
    known = isinstance(discount, str) and discount in INVERSE_DISCOUNTS
    if all_ranks and known and keras.backend.standardize_dtype(scores.dtype) == "float32":
        return _from_powers(scores, mask, noise_scale, *_powers(discount, size or MOST_RANKS))
    inverse_discounts = ranks.inverse_discounts(ranks.rank_numbers(scores), discount)[0]
    return _by_recursion(scores, mask, noise_scale, inverse_discounts[:topn])


@functools.cache
def _powers(discount: str, size: int) -> tuple[np.ndarray, np.ndarray]:
    """`w` and `c`, `[terms]`, of `1 / D(r) = sum_m w_m (1 - c_m)^(r - 1)`, for ranks up to `size`.

    Rates evenly spaced in their logarithms, from below one in all the ranks to one that leaves the
    first rank alone; weights by least squares. The error is at most 2e-7 of `1 / D(r)`.
    """
    rates = np.geomspace(0.3 / size, 5.0, 8 + math.ceil(4.0 * math.log10(size)))
    rank = np.unique(np.geomspace(1.0, size, 4000).round())
    powers = np.exp(-np.outer(rank - 1.0, rates))
    relative = powers / INVERSE_DISCOUNTS[discount](rank)[:, None]
    weights = np.linalg.lstsq(relative, np.ones(len(rank)), rcond=None)[0]
    return weights.astype("float32"), -np.expm1(-rates).astype("float32")


def _from_powers(
    scores: Array, mask: Array, noise_scale: float, weights: np.ndarray, falls: np.ndarray
) -> Array:
    """`sum_m w_m prod_{j != i} (1 - c_m p_ij)`, with `weights` w and `falls` c.

    Documents j are rows and documents i columns, for it is sums over rows that are fast (`blocks`).
    """
    real, index = _real_and_index(scores, mask)
    if backend.on_accelerator():
        return _from_powers_at_once(scores, real, index, noise_scale, weights, falls)
    weight, fall = (ops.convert_to_tensor(x)[None, :, None] for x in (weights, falls))

    @ops.custom_gradient
    def differentiable(scores: Array) -> Any:
        scores = ops.stop_gradient(scores)
        column_scores, column_index = scores[:, None, :], index[:, None, :]

        def contests(row_scores: Array, row_real: Array, row_index: Array) -> tuple[Array, Array]:
            return _contests(
                row_scores, column_scores, row_real, row_index != column_index, noise_scale
            )

        def multiply(logarithm: Array, first: Any, *rows: Array) -> Array:
            above, _ = contests(*rows)
            # 1 minus the product: small c p would lose most of their digits beside the 1.
            lost = fall * above[:, :1]
            for row in range(1, ROW_BLOCK):
                lost = lost + fall * above[:, row : row + 1] * (1.0 - lost)
            return logarithm + ops.log1p(-lost)

        start = ops.zeros_like(column_scores * fall)
        logarithm = fold_rows(multiply, start, scores, real, index)
        terms = weight * ops.exp(ops.maximum(logarithm, SMALLEST_LOGARITHM))

        def backward(*upstreams: Array, upstream: Array | None = None) -> Array:
            upstream = upstreams[0] if upstream is None else upstream
            costs = upstream[:, None, :] * fall * terms

            def pull(*rows: Array) -> Array:
                above, density = contests(*rows)
                slopes = (
                    costs[:, m : m + 1] / (1.0 - float(c) * above) for m, c in enumerate(falls)
                )
                return sum(slopes) * density

            return over_rows(pull, scores, real, index, antisymmetric=True)

        return ops.sum(terms, axis=1), backward

    return differentiable(scores)


def _from_powers_at_once(
    scores: Array,
    real: Array,
    index: Array,
    noise_scale: float,
    weights: np.ndarray,
    falls: np.ndarray,
) -> Array:
    """The same for accelerators: each sum over all pairs is one reduction."""

    def contest(above: Documents, below: Documents) -> tuple[Array, Array]:
        different = above.index != below.index
        return _contests(above.score, below.score, above.real, different, noise_scale)

    @ops.custom_gradient
    def differentiable(scores: Array) -> Any:
        scores = ops.stop_gradient(scores)
        documents = Documents(score=scores, real=real, index=index)

        def logarithms(document: Documents, other: Documents) -> tuple[Array, ...]:
            p, _ = contest(other, document)
            return tuple(ops.log1p(-float(c) * p) for c in falls)

        found = sum_over_rows(logarithms, documents, documents, sums=len(falls))
        terms = [
            float(w) * ops.exp(ops.maximum(x, SMALLEST_LOGARITHM))
            for w, x in zip(weights, found, strict=True)
        ]

        def backward(*upstreams: Array, upstream: Array | None = None) -> Array:
            upstream = upstreams[0] if upstream is None else upstream
            names = [f"cost_{m}" for m in range(len(falls))]
            costs = {
                name: upstream * float(c) * term
                for name, c, term in zip(names, falls, terms, strict=True)
            }
            with_costs = Documents(**vars(documents), **costs)

            def pull(document: Documents, other: Documents) -> tuple[Array]:
                total: Any = 0.0
                for above, below, sign in ((other, document, 1.0), (document, other, -1.0)):
                    p, density = contest(above, below)
                    slopes = (
                        getattr(below, name) / (1.0 - float(c) * p)
                        for name, c in zip(names, falls, strict=True)
                    )
                    total = total + sign * density * sum(slopes)
                return (total,)

            (pulls,) = sum_over_rows(pull, with_costs, with_costs, sums=1)
            return ops.where(real > 0, pulls, ops.zeros_like(pulls))

        return sum(terms), backward

    return differentiable(scores)


def _by_recursion(
    scores: Array, mask: Array, noise_scale: float, inverse_discounts: Array
) -> Array:
    """The same for any `inverse_discounts`, `[ranks]`, of the first ranks; a later one is worth 0.

    The rank distribution of i follows by adding one document after the other (Taylor et al., 2008,
    Sect. 4); the derivative by `p_ij` is what one more rank costs, in expectation over the
    documents added before j and those added after it. That is O(list^2 ranks) work.
    """
    real, index = _real_and_index(scores, mask)
    rows = _recursion_rows(scores.shape[0] or 32, scores, inverse_discounts)
    # Long lists go one by one: for each row the recursion remembers list x ranks numbers.
    one_by_one = rows == 1
    if one_by_one:
        rows = _recursion_rows(1, scores, inverse_discounts)

    def each_list(function: Callable[..., Array], *arrays: Array) -> Array:
        return over_lists(function, *arrays) if one_by_one else function(*arrays)

    def contests(
        scores: Array, real: Array, row_scores: Array, row_index: Array
    ) -> tuple[Array, Array]:
        columns = ops.cast(ops.arange(ops.shape(scores)[1]), scores.dtype)
        return _contests(
            scores[:, None, :], row_scores, real[:, None, :], row_index != columns, noise_scale
        )

    def expectations(scores: Array, real: Array, index: Array) -> Array:
        def expectation(row_scores: Array, row_index: Array) -> Array:
            beaten, _ = contests(scores, real, row_scores, row_index)

            def add(j: Any, distribution: Array) -> Array:
                p = _contestant(beaten, j)
                return (1.0 - p) * distribution + p * _later(distribution)

            start = _certain(beaten, inverse_discounts)
            last = ops.fori_loop(0, ops.shape(beaten)[2], add, start)
            return ops.sum(last * inverse_discounts, axis=-1)

        return over_rows(expectation, scores, index, block=rows)

    def pulls(scores: Array, real: Array, index: Array, upstream: Array) -> Array:
        def pull(row_scores: Array, row_index: Array, row_upstream: Array) -> Array:
            beaten, density = contests(scores, real, row_scores, row_index)
            return _slopes(beaten, density, inverse_discounts) * row_upstream

        return over_rows(pull, scores, index, upstream, block=rows, antisymmetric=True)

    @ops.custom_gradient
    def differentiable(scores: Array) -> Any:
        scores = ops.stop_gradient(scores)

        def backward(*upstreams: Array, upstream: Array | None = None) -> Array:
            upstream = upstreams[0] if upstream is None else upstream
            return each_list(pulls, scores, real, index, upstream)

        return each_list(expectations, scores, real, index), backward

    return differentiable(scores)


def _real_and_index(scores: Array, mask: Array) -> tuple[Array, Array]:
    """1 for documents and 0 for padding, and the number of each in its list: `[batch, list]`."""
    index = ops.cast(ops.arange(ops.shape(scores)[1]), scores.dtype)
    return ops.cast(mask, scores.dtype), ops.zeros_like(scores) + index


def _contests(
    above: Array, below: Array, real: Array, different: Array, noise_scale: float
) -> tuple[Array, Array]:
    """`p`, the probability that the documents `above` are above those `below`, and its derivative.

    Both are 0 where those above are not `real`, or not `different` from those below.
    """
    scale = 1.0 / (math.sqrt(2.0) * noise_scale)
    z = (above - below) * scale
    other = ops.logical_and(real > 0, different)
    lowest = math.sqrt(2.0) * LOWEST_ARGUMENT[keras.backend.standardize_dtype(z.dtype)]
    p = 0.5 * (1.0 + ops.erf(z / math.sqrt(2.0)))
    density = ops.exp(-0.5 * z * z) * (scale / math.sqrt(2.0 * math.pi))
    nothing = ops.zeros_like(z)
    possible = ops.logical_and(other, z > lowest)
    return ops.where(possible, p, nothing), ops.where(other, density, nothing)


def _slopes(beaten: Array, density: Array, inverse_discounts: Array) -> Array:
    """Derivatives `[batch, rows, list]` of the expectations by the scores of the others."""
    length = ops.shape(beaten)[2]
    first = _certain(beaten, inverse_discounts)

    def add(j: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        distribution, history = carry
        history = ops.slice_update(history, (j, 0, 0, 0), distribution[None])
        p = _contestant(beaten, j)
        return (1.0 - p) * distribution + p * _later(distribution), history

    def remove(step: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        rest, result = carry
        j = length - 1 - step
        before = ops.slice(history, (j, 0, 0, 0), (1, *ops.shape(first)))[0]
        worse = _earlier(rest)
        slope = ops.sum(before * (worse - rest), axis=-1, keepdims=True)
        p = _contestant(beaten, j)
        return (1.0 - p) * rest + p * worse, ops.slice_update(result, (0, 0, j), slope)

    nothing = ops.zeros((length, *ops.shape(first)), dtype=beaten.dtype)
    _, history = ops.fori_loop(0, length, add, (first, nothing))
    value = ops.zeros_like(first) + inverse_discounts
    _, result = ops.fori_loop(0, length, remove, (value, ops.zeros_like(beaten)))
    return result * density


def _contestant(beaten: Array, j: Any) -> Array:
    shape = ops.shape(beaten)
    return ops.slice(beaten, (0, 0, j), (shape[0], shape[1], 1))


def _certain(beaten: Array, inverse_discounts: Array) -> Array:
    """Rank 1 with certainty: `[batch, rows, ranks]`."""
    first = ops.cast(ops.arange(ops.shape(inverse_discounts)[0]) == 0, beaten.dtype)
    return ops.zeros_like(beaten[:, :, :1]) + first


def _later(distribution: Array) -> Array:
    """Every rank becomes one worse; what falls off the end is beyond the ranks that count."""
    return ops.pad(distribution[..., :-1], ((0, 0), (0, 0), (1, 0)))


def _earlier(values: Array) -> Array:
    """The value of the next rank, at each rank."""
    return ops.pad(values[..., 1:], ((0, 0), (0, 0), (0, 1)))


def _recursion_rows(lists: int, scores: Array, inverse_discounts: Array) -> int:
    step = lists * (scores.shape[1] or 256) * (inverse_discounts.shape[0] or 256) * 4
    rows = ROW_BLOCK
    while rows > 1 and rows * step > RECURSION_BYTES:
        rows //= 2
    return rows
