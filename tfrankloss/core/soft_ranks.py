"""Soft ranks: ranks as smooth functions of the scores.

`soft_counts` is the logistic form, `pi_i = 1 + sum_{j != i} sigmoid((s_j - s_i) / t)` (Qin, Liu and
Li, 2010); `expected_inverse_discounts` is SoftRank's, where every score is the mean of a Gaussian
and a rank has a distribution (Taylor et al., 2008). Both have closed-form gradients and work in
blocks of rows, so that nothing of size list x list x batch is stored for the gradient.
"""

import math
from typing import Any

from keras import ops

from tfrankloss.core.backend import ROW_BLOCK, Array
from tfrankloss.core.blocks import over_rows

# SoftRank keeps one distribution over ranks per step of its recursion: this bounds their bytes.
RECURSION_BYTES = 1 << 26


def soft_counts(scores: Array, values: Array, temperature: float) -> Array:
    """`c_i = sum_{j != i} values_j sigmoid((s_j - s_i) / temperature)`, differentiable in scores.

    With `values` 1 for documents and 0 for padding, `1 + c_i` is the soft rank.

    Args:
        scores: `[batch, list]`.
        values: `[batch, list]`, constants; 0 in padding.
        temperature: the smaller, the closer to the true count and the harder to optimise.
    """

    @ops.custom_gradient
    def counts(scores: Array) -> Any:
        scores = ops.stop_gradient(scores)

        def forward(row_scores: Array, _: Array, __: Array) -> Array:
            above = ops.sigmoid((scores[:, None, :] - row_scores) / temperature)
            return ops.sum(above * values[:, None, :], axis=2)

        def backward(*upstreams: Array, upstream: Array | None = None) -> Array:
            upstream = upstreams[0] if upstream is None else upstream

            def pull(row_scores: Array, row_values: Array, row_upstream: Array) -> Array:
                above = ops.sigmoid((scores[:, None, :] - row_scores) / temperature)
                force = upstream[:, None, :] * row_values - row_upstream * values[:, None, :]
                return ops.sum(above * (1.0 - above) * force, axis=2) / temperature

            return over_rows(pull, scores, values, upstream)

        # sigmoid(0) = 1/2 is the document's comparison with itself.
        return over_rows(forward, scores, values, values) - 0.5 * values, backward

    return counts(scores)


def expected_inverse_discounts(
    scores: Array, mask: Array, noise_scale: float, inverse_discounts: Array
) -> Array:
    """`E[1 / D(rank_i)]` when score i is Normal(s_i, noise_scale^2), differentiable in scores.

    Document j beats i with probability `p_ij = Phi((s_j - s_i) / (sqrt(2) noise_scale))`. The rank
    distribution of i follows by adding one document after the other (Taylor et al., 2008, Sect. 4);
    the derivative by `p_ij` is what one more rank costs, in expectation over the documents added
    before j and those added after it. That is O(list^3) work.

    Args:
        scores: `[batch, list]`.
        mask: `[batch, list]`.
        noise_scale: standard deviation of each score.
        inverse_discounts: `[ranks]`, `1 / D(r)` for the first ranks; a later rank is worth 0.
    """
    scale = 1.0 / (math.sqrt(2.0) * noise_scale)
    ranks = ops.shape(inverse_discounts)[0]

    def contests(scores: Array, row_scores: Array, row_index: Array) -> tuple[Array, Array]:
        """Probabilities `[batch, rows, list]` of being beaten by each, and their derivatives."""
        z = (scores[:, None, :] - row_scores) * scale
        index = ops.arange(ops.shape(scores)[1])[None, None, :]
        other = ops.logical_and(mask[:, None, :], row_index != index)
        beaten = 0.5 * (1.0 + ops.erf(z / math.sqrt(2.0)))
        density = ops.exp(-0.5 * z * z) * (scale / math.sqrt(2.0 * math.pi))
        nothing = ops.zeros_like(z)
        return ops.where(other, beaten, nothing), ops.where(other, density, nothing)

    def contestant(beaten: Array, j: Any) -> Array:
        shape = ops.shape(beaten)
        return ops.slice(beaten, (0, 0, j), (shape[0], shape[1], 1))

    def certain(beaten: Array) -> Array:
        """Rank 1 with certainty: `[batch, rows, ranks]`."""
        first = ops.cast(ops.arange(ranks) == 0, beaten.dtype)
        return ops.zeros_like(beaten[:, :, :1]) + first

    def expectation(row_scores: Array, row_index: Array) -> Array:
        beaten, _ = contests(scores, row_scores, row_index)

        def add(j: Any, distribution: Array) -> Array:
            p = contestant(beaten, j)
            return (1.0 - p) * distribution + p * _later(distribution)

        last = ops.fori_loop(0, ops.shape(beaten)[2], add, certain(beaten))
        return ops.sum(last * inverse_discounts, axis=-1)

    def slopes(row_scores: Array, row_index: Array) -> Array:
        """Derivatives `[batch, rows, list]` of the expectations by the scores of the others."""
        beaten, density = contests(scores, row_scores, row_index)
        length = ops.shape(beaten)[2]
        first = certain(beaten)

        def add(j: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            distribution, history = carry
            history = ops.slice_update(history, (j, 0, 0, 0), distribution[None])
            p = contestant(beaten, j)
            return (1.0 - p) * distribution + p * _later(distribution), history

        def remove(step: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            rest, result = carry
            j = length - 1 - step
            before = ops.slice(history, (j, 0, 0, 0), (1, *ops.shape(first)))[0]
            worse = _earlier(rest)
            slope = ops.sum(before * (worse - rest), axis=-1, keepdims=True)
            p = contestant(beaten, j)
            return (1.0 - p) * rest + p * worse, ops.slice_update(result, (0, 0, j), slope)

        nothing = ops.zeros((length, *ops.shape(first)), dtype=beaten.dtype)
        _, history = ops.fori_loop(0, length, add, (first, nothing))
        value = ops.zeros_like(first) + inverse_discounts
        _, result = ops.fori_loop(0, length, remove, (value, ops.zeros_like(beaten)))
        return result * density

    block = _recursion_rows(scores, inverse_discounts)
    index = ops.zeros_like(scores) + ops.cast(ops.arange(ops.shape(scores)[1]), scores.dtype)

    scores_with_gradient, scores = scores, ops.stop_gradient(scores)

    @ops.custom_gradient
    def expectations(_: Array) -> Any:
        def backward(*upstreams: Array, upstream: Array | None = None) -> Array:
            upstream = upstreams[0] if upstream is None else upstream

            def pull(row_scores: Array, row_index: Array, row_upstream: Array) -> Array:
                return slopes(row_scores, ops.cast(row_index, "int32")) * row_upstream

            return over_rows(pull, scores, index, upstream, block=block, antisymmetric=True)

        def forward(row_scores: Array, row_index: Array) -> Array:
            return expectation(row_scores, ops.cast(row_index, "int32"))

        return over_rows(forward, scores, index, block=block), backward

    return expectations(scores_with_gradient)


def _later(distribution: Array) -> Array:
    """Every rank becomes one worse; what falls off the end is beyond the ranks that count."""
    return ops.pad(distribution[..., :-1], ((0, 0), (0, 0), (1, 0)))


def _earlier(values: Array) -> Array:
    """The value of the next rank, at each rank."""
    return ops.pad(values[..., 1:], ((0, 0), (0, 0), (0, 1)))


def _recursion_rows(scores: Array, inverse_discounts: Array) -> int:
    batch, size = scores.shape
    step = (batch or 32) * (size or 256) * (inverse_discounts.shape[0] or 256) * 4
    rows = ROW_BLOCK
    while rows > 1 and rows * step > RECURSION_BYTES:
        rows //= 2
    return rows
