"""Soft ranks: ranks as smooth functions of the scores.

`soft_counts` is the logistic form, `pi_i = 1 + sum_{j != i} sigmoid((s_j - s_i) / t)` (Qin, Liu and
Li, 2010); `expected_inverse_discounts` is SoftRank's, where every score is the mean of a Gaussian
and a rank has a distribution (Taylor et al., 2008). Both have closed-form gradients and work in
blocks of rows, so that nothing of size list x list x batch is stored for the gradient.
"""

import math
from collections.abc import Callable
from typing import Any

from keras import ops

from tfrankloss.core.backend import ROW_BLOCK, Array
from tfrankloss.core.blocks import Documents, over_lists, over_rows, pad_to_rows, sum_over_rows
from tfrankloss.core.lists import score_range

# e^85 and e^-85 are normal float32 numbers, as is the sum of two such powers.
POWER_LIMIT = 85.0
# Wider scores take powers of the eighth root of e, and 1.3 times as long; still wider ones
# exponentials of all pairs, and three times as long.
SQUARINGS = 3
# SoftRank keeps one distribution over ranks per step of its recursion: this bounds their bytes.
RECURSION_BYTES = 1 << 23


def soft_counts(scores: Array, mask: Array, values: Array, temperature: float) -> Array:
    """`c_i = sum_{j != i} values_j sigmoid((s_j - s_i) / temperature)`, differentiable in scores.

    With `values` 1 for documents and 0 for padding, `1 + c_i` is the soft rank.

    Args:
        scores: `[batch, list]`.
        mask: `[batch, list]`.
        values: `[batch, list]`, constants; 0 in padding.
        temperature: the smaller, the closer to the true count and the harder to optimise.
    """

    size = scores.shape[1]

    def sum_above(scores: Array, terms: Callable[..., Array], **arrays: Array) -> Array:
        """Sums over j of `terms(document, other, sigmoid((s_j - s_i) / temperature))`."""
        middle, spread = score_range(scores, mask)
        centred = (scores - middle) / temperature

        def add_up(above: Callable[..., Array], compact: bool = False, **more: Array) -> Array:
            documents = pad_to_rows(Documents(score=scores, **arrays, **more))

            def term(document: Documents, other: Documents) -> tuple[Array]:
                return (terms(document, other, above(document, other)),)

            return sum_over_rows(term, documents, documents, sums=1, compact=compact)[0]

        def in_range(exponent: Array) -> Array:
            return ops.clip(exponent, -POWER_LIMIT, POWER_LIMIT)  # of padding

        def from_powers() -> Array:
            def above(document: Documents, other: Documents) -> Array:
                return other.power / (other.power + document.power)

            return add_up(above, power=ops.exp(in_range(centred)))

        def from_squared_powers() -> Array:
            def above(document: Documents, other: Documents) -> Array:
                ratio = document.power * other.inverse_power
                for _ in range(SQUARINGS):
                    ratio = ratio * ratio
                return 1.0 / (1.0 + ratio)

            root = in_range(centred / 2.0**SQUARINGS)
            return add_up(above, power=ops.exp(root), inverse_power=ops.exp(-root))

        def direct() -> Array:
            def above(document: Documents, other: Documents) -> Array:
                return ops.sigmoid((other.score - document.score) / temperature)

            return add_up(above, compact=True)

        half = 0.5 * spread / temperature
        sums = ops.cond(
            half <= POWER_LIMIT,
            from_powers,
            lambda: ops.cond(half <= 2.0**SQUARINGS * POWER_LIMIT, from_squared_powers, direct),
        )
        return sums[:, :size]

    @ops.custom_gradient
    def counts(scores: Array) -> Any:
        scores = ops.stop_gradient(scores)

        def count(document: Documents, other: Documents, above: Array) -> Array:
            return other.value * above

        def backward(*upstreams: Array, upstream: Array | None = None) -> Array:
            upstream = upstreams[0] if upstream is None else upstream

            def pull(document: Documents, other: Documents, above: Array) -> Array:
                force = other.upstream * document.value - document.upstream * other.value
                return above * (1.0 - above) * force

            return sum_above(scores, pull, value=values, upstream=upstream) / temperature

        # sigmoid(0) = 1/2 is the document's comparison with itself.
        return sum_above(scores, count, value=values) - 0.5 * values, backward

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
    real = ops.cast(mask, scores.dtype)
    index = ops.zeros_like(scores) + ops.cast(ops.arange(ops.shape(scores)[1]), scores.dtype)
    rows = _recursion_rows(scores.shape[0] or 32, scores, inverse_discounts)
    # Long lists go one by one: for each row the recursion remembers list x ranks numbers.
    one_by_one = rows == 1
    if one_by_one:
        rows = _recursion_rows(1, scores, inverse_discounts)

    def each_list(function: Callable[..., Array], *arrays: Array) -> Array:
        return over_lists(function, *arrays) if one_by_one else function(*arrays)

    def expectations(scores: Array, real: Array, index: Array) -> Array:
        def expectation(row_scores: Array, row_index: Array) -> Array:
            beaten, _ = _contests(scores, real, row_scores, row_index, noise_scale)

            def add(j: Any, distribution: Array) -> Array:
                p = _contestant(beaten, j)
                return (1.0 - p) * distribution + p * _later(distribution)

            start = _certain(beaten, inverse_discounts)
            last = ops.fori_loop(0, ops.shape(beaten)[2], add, start)
            return ops.sum(last * inverse_discounts, axis=-1)

        return over_rows(expectation, scores, index, block=rows)

    def pulls(scores: Array, real: Array, index: Array, upstream: Array) -> Array:
        def pull(row_scores: Array, row_index: Array, row_upstream: Array) -> Array:
            contests = _contests(scores, real, row_scores, row_index, noise_scale)
            return _slopes(*contests, inverse_discounts) * row_upstream

        return over_rows(pull, scores, index, upstream, block=rows, antisymmetric=True)

    @ops.custom_gradient
    def differentiable(scores: Array) -> Any:
        scores = ops.stop_gradient(scores)

        def backward(*upstreams: Array, upstream: Array | None = None) -> Array:
            upstream = upstreams[0] if upstream is None else upstream
            return each_list(pulls, scores, real, index, upstream)

        return each_list(expectations, scores, real, index), backward

    return differentiable(scores)


def _contests(
    scores: Array, real: Array, row_scores: Array, row_index: Array, noise_scale: float
) -> tuple[Array, Array]:
    """Probabilities `[batch, rows, list]` of being beaten by each, and their derivatives."""
    scale = 1.0 / (math.sqrt(2.0) * noise_scale)
    z = (scores[:, None, :] - row_scores) * scale
    index = ops.cast(ops.arange(ops.shape(scores)[1]), scores.dtype)[None, None, :]
    other = ops.logical_and(real[:, None, :] > 0, row_index != index)
    beaten = 0.5 * (1.0 + ops.erf(z / math.sqrt(2.0)))
    density = ops.exp(-0.5 * z * z) * (scale / math.sqrt(2.0 * math.pi))
    nothing = ops.zeros_like(z)
    return ops.where(other, beaten, nothing), ops.where(other, density, nothing)


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
