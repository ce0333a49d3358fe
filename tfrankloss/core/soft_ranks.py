"""Soft ranks: ranks as smooth functions of the scores.

`pi_i = 1 + sum_{j != i} sigmoid((s_j - s_i) / t)` (Qin, Liu and Li, 2010), with a closed-form
gradient and in blocks of rows, so that nothing of size list x list x batch is stored for it.
"""

from collections.abc import Callable
from typing import Any

from keras import ops

from tfrankloss.core import backend
from tfrankloss.core.backend import Array
from tfrankloss.core.blocks import ROWS_TOGETHER, Documents, pad_to_rows, sum_over_rows
from tfrankloss.core.lists import score_range

# e^85 and e^-85 are normal float32 numbers, as is the sum of two such powers.
POWER_LIMIT = 85.0
# Wider scores take powers of the eighth root of e, and 1.3 times as long; still wider ones
# exponentials of all pairs, and three times as long.
SQUARINGS = 3

# What to add up for a pair: takes the two documents and `sigmoid((s_j - s_i) / temperature)`.
Terms = Callable[[Documents, Documents, Array], tuple[Array, ...]]
# The sums over j of such terms for each i, of documents with further attributes.
Sums = Callable[..., tuple[Array, ...]]


def soft_counts(
    scores: Array, mask: Array, temperature: float, values: Array | None = None
) -> Array:
    """`c_i = sum_{j != i} sigmoid((s_j - s_i) / temperature)`, differentiable in scores.

    `1 + c_i` is the soft rank. Where `values` are given, `[2, batch, list]`: beside it the sum of
    `values_j` times the sigmoid, from the same pass over the pairs.

    Args:
        scores: `[batch, list]`.
        mask: `[batch, list]`.
        temperature: the smaller, the closer to the true count and the harder to optimise.
        values: `[batch, list]`, constants; 0 in padding.
    """
    own = [ops.cast(mask, scores.dtype), *([] if values is None else [values])]
    attributes = {} if values is None else {"value": values}

    def count(document: Documents, other: Documents, above: Array) -> tuple[Array, ...]:
        return above, *([] if values is None else [other.value * above])

    def pull(document: Documents, other: Documents, slope: Array) -> tuple[Array, ...]:
        force = other.upstream - document.upstream
        if values is not None:
            force = force + other.second * document.value - document.second * other.value
        return (slope * force,)

    @ops.custom_gradient
    def counts(scores: Array) -> Any:
        scores = ops.stop_gradient(scores)
        sums_above, sums_of_slopes = (
            _on_accelerator(scores, mask, temperature)
            if backend.on_accelerator()
            else _in_registers(scores, mask, temperature)
        )

        def backward(*upstreams: Array, upstream: Array | None = None) -> Array:
            upstream = upstreams[0] if upstream is None else upstream
            forces = {"upstream": upstream}
            if values is not None:
                forces = {"upstream": upstream[0], "second": upstream[1]}
            # What the count of a document in padding is worth does not matter.
            real = {name: ops.where(mask, x, 0.0) for name, x in forces.items()}
            (pulls,) = sums_of_slopes(pull, 1, **real, **attributes)
            return ops.where(mask, pulls, 0.0) / temperature

        sums = sums_above(count, len(own), **attributes)
        # sigmoid(0) = 1/2 is the document's comparison with itself.
        found = [x - 0.5 * y for x, y in zip(sums, own, strict=True)]
        return found[0] if values is None else ops.stack(found), backward

    return counts(scores)


def _on_accelerator(scores: Array, mask: Array, temperature: float) -> tuple[Sums, Sums]:
    """Sums with exponentials of all pairs, which are right for any scores."""
    # What is no document is above none.
    above_none = ops.where(mask, scores, ops.full_like(scores, -float("inf")))

    def sums(function: Callable[[Array], Array]) -> Sums:
        def add_up(terms: Terms, number: int, **attributes: Array) -> tuple[Array, ...]:
            columns = Documents(score=scores, **attributes)
            rows = Documents(score=above_none, **attributes)

            def term(document: Documents, other: Documents) -> tuple[Array, ...]:
                gap = (other.score - document.score) * (1.0 / temperature)
                return terms(document, other, function(gap))

            return sum_over_rows(term, columns, rows, sums=number, together=ROWS_TOGETHER)

        return add_up

    def slope(gap: Array) -> Array:
        # Small where it is small: 1 minus a sigmoid near 1 would lose its digits.
        decay = ops.exp(-ops.abs(gap))
        share = 1.0 / (1.0 + decay)
        return decay * share * share

    return sums(lambda gap: 1.0 / (1.0 + ops.exp(-gap))), sums(slope)


def _in_registers(scores: Array, mask: Array, temperature: float) -> tuple[Sums, Sums]:
    """Sums with one power for each document, where the scores are close enough together."""
    size = scores.shape[1]
    middle, spread = score_range(scores, mask)
    centred = (scores - middle) / temperature
    half = 0.5 * spread / temperature
    real = ops.cast(mask, scores.dtype)

    def in_range(exponent: Array) -> Array:
        return ops.clip(exponent, -POWER_LIMIT, POWER_LIMIT)  # of padding

    def sums(function: Callable[[Array, Array], Array]) -> Sums:
        """Sums with a function of `sigmoid((s_j - s_i) / temperature)` and of 1 minus it."""

        def add_up(terms: Terms, number: int, **attributes: Array) -> tuple[Array, ...]:
            def of_documents(
                shares: Callable[..., tuple[Array, Array]], compact: bool = False, **more: Array
            ) -> tuple[Array, ...]:
                documents = pad_to_rows(Documents(score=scores, real=real, **attributes, **more))

                def term(document: Documents, other: Documents) -> tuple[Array, ...]:
                    share = other.real * function(*shares(document, other))
                    return terms(document, other, share)

                return sum_over_rows(term, documents, documents, sums=number, compact=compact)

            def from_powers() -> tuple[Array, ...]:
                def shares(document: Documents, other: Documents) -> tuple[Array, Array]:
                    above = other.power / (other.power + document.power)
                    return above, 1.0 - above

                return of_documents(shares, power=ops.exp(in_range(centred)))

            def from_squared_powers() -> tuple[Array, ...]:
                def shares(document: Documents, other: Documents) -> tuple[Array, Array]:
                    ratio = document.power * other.inverse_power
                    for _ in range(SQUARINGS):
                        ratio = ratio * ratio
                    above = 1.0 / (1.0 + ratio)
                    return above, 1.0 - above

                root = in_range(centred / 2.0**SQUARINGS)
                return of_documents(shares, power=ops.exp(root), inverse_power=ops.exp(-root))

            def direct() -> tuple[Array, ...]:
                def shares(document: Documents, other: Documents) -> tuple[Array, Array]:
                    gap = (other.score - document.score) / temperature
                    return ops.sigmoid(gap), ops.sigmoid(-gap)

                return of_documents(shares, compact=True)

            found = ops.cond(
                half <= POWER_LIMIT,
                from_powers,
                lambda: ops.cond(half <= 2.0**SQUARINGS * POWER_LIMIT, from_squared_powers, direct),
            )
            return tuple(x[:, :size] for x in found)

        return add_up

    return sums(lambda above, below: above), sums(lambda above, below: above * below)
