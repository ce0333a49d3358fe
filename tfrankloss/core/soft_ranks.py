"""Soft ranks: ranks as smooth functions of the scores.

`pi_i = 1 + sum_{j != i} sigmoid((s_j - s_i) / t)` (Qin, Liu and Li, 2010), with a closed-form
gradient and in blocks of rows, so that nothing of size list x list x batch is stored for it.
"""

from collections.abc import Callable
from typing import Any

from keras import ops

from tfrankloss.core import backend
from tfrankloss.core.backend import Array
from tfrankloss.core.blocks import Documents, pad_to_rows, sum_over_rows
from tfrankloss.core.lists import score_range

# e^85 and e^-85 are normal float32 numbers, as is the sum of two such powers.
POWER_LIMIT = 85.0
# Wider scores take powers of the eighth root of e, and 1.3 times as long; still wider ones
# exponentials of all pairs, and three times as long.
SQUARINGS = 3


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
        if backend.on_accelerator():
            documents = Documents(score=scores / temperature, **arrays)

            def term(document: Documents, other: Documents) -> tuple[Array]:
                gap = other.score - document.score
                # Small where it is small: 1 minus a sigmoid near 1 would lose the gradient.
                decay = ops.exp(-ops.abs(gap))
                share = 1.0 / (1.0 + decay)
                return (terms(document, other, ops.where(gap >= 0.0, 1.0, decay) * share),)

            return sum_over_rows(term, documents, documents, sums=1)[0]
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
