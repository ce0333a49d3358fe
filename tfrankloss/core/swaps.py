"""What a metric changes by when two documents of a ranked list swap places.

Each function looks at `documents` in the order of their ranks and returns the absolute change for a
pair, `change(document, other)`. Sums over what lies between the two come from running sums, so that
a pair costs a handful of operations, and no division: value and slope both use the change, and XLA
for CPU would write it to memory for the two (as it does with ERR's exponential). `topn` is the
cutoff of the metric.
"""

from collections.abc import Callable

from keras import ops

from tfrankloss.core import ranks
from tfrankloss.core.backend import Array
from tfrankloss.core.blocks import suffix_scan
from tfrankloss.core.pairs import Documents

Change = Callable[[Documents, Documents], Array]


def credit_gap(documents: Documents, discount: ranks.Discount, topn: int | None) -> Change:
    """What multiplies `|G_i - G_j|` for DCG: `|[r_i <= K] / D(r_i) - [r_j <= K] / D(r_j)|`.

    CIKM 2018, Eq 5; with a cutoff SIGIR 2022, Eq 12.
    """
    documents.credit = ranks.inverse_discounts(documents.rank, discount, topn)

    def change(document: Documents, other: Documents) -> Array:
        return ops.abs(document.credit - other.credit)

    return change


def precision(documents: Documents, topn: int) -> Change:
    """Precision@K: a relevant and another document on different sides of the cutoff."""
    documents.relevant = documents.label > 0
    documents.inside = documents.rank <= topn

    def change(document: Documents, other: Documents) -> Array:
        both = ops.logical_and(document.relevant != other.relevant, document.inside != other.inside)
        return (1.0 / topn) * ops.cast(both, document.label.dtype)

    return change


def reciprocal_rank(documents: Documents, topn: int | None) -> Change:
    """Reciprocal rank: the first relevant document after the swap against the one before."""
    credit = ranks.inverse_discounts(documents.rank, "linear", topn) + 0.0 * documents.label
    rank, infinity = documents.rank + 0.0 * documents.label, float("inf")
    documents.relevant = ops.logical_and(documents.label > 0, documents.mask)
    relevant_ranks = ops.where(documents.relevant, rank, ops.full_like(rank, infinity))
    first = ops.min(relevant_ranks, axis=1, keepdims=True)
    after = ops.logical_and(documents.relevant, rank > first)
    documents.credit = credit
    documents.is_first = rank == first
    documents.first = _highest(credit, documents.relevant)
    documents.second = _highest(credit, after)

    def change(document: Documents, other: Documents) -> Array:
        is_first = ops.where(document.relevant, document.is_first, other.is_first)
        replacement = ops.where(document.relevant, other.credit, document.credit)
        rest = ops.where(is_first, document.second, document.first)
        difference = ops.abs(ops.maximum(rest, replacement) - document.first)
        return ops.where(
            document.relevant != other.relevant, difference, ops.zeros_like(difference)
        )

    return change


def average_precision(documents: Documents, topn: int | None) -> Change:
    """Average precision, `(1 / R) sum_{relevant, r <= K} count(r) / r` over R relevant ones.

    A relevant document that moves from the upper to the lower place takes its own precision along
    and lowers that of every relevant document in between by `1 / rank`; upwards the reverse.
    """
    relevant = ops.cast(ops.logical_and(documents.label > 0, documents.mask), documents.label.dtype)
    documents.relevant = relevant
    documents.credit = ranks.inverse_discounts(documents.rank, "linear", topn)
    documents.count = ops.cumsum(relevant, axis=1)
    documents.running = ops.cumsum(relevant * documents.credit, axis=1)
    total = ops.sum(relevant, axis=1, keepdims=True)
    documents.share = ranks.divide_no_nan(ops.ones_like(relevant), total)

    def change(document: Documents, other: Documents) -> Array:
        upper, lower = _by_rank(document, other, ("relevant", "credit", "count", "running"))
        down = lower.count * lower.credit - upper.count * upper.credit
        down = down - (lower.running - upper.running)
        up = (upper.count + 1.0) * upper.credit - lower.count * lower.credit
        up = up + (lower.running - lower.credit - upper.running)
        difference = document.share * ops.abs(ops.where(upper.relevant > 0, down, up))
        return ops.where(
            document.relevant != other.relevant, difference, ops.zeros_like(difference)
        )

    return change


def expected_reciprocal_rank(documents: Documents, topn: int | None) -> Change:
    """ERR, `sum_r (1 / r) R_r prod_{q < r} (1 - R_q)`, `R = (2^y - 1) / 2^(highest y)`.

    With `P` the probability of getting to the upper place a, `T` that of getting from a to the
    lower place b through what lies between, and `M` the ERR earned in between, the swap changes ERR
    by `P |R_a - R_b| |1/a - M - T/b|`.
    """
    documents.satisfied = ranks.scaled_gains(documents.label, documents.mask)
    credit = ranks.inverse_discounts(documents.rank, "linear", topn)
    documents.credit = credit + 0.0 * documents.label
    # In float32, 1 - R of the highest label 31 would be 0 and its logarithm infinite.
    going_on = 1.0 - ops.minimum(documents.satisfied, 1.0 - 1e-7)
    documents.through = ops.cumsum(ops.log(going_on), axis=1)  # includes the document itself
    documents.reach = documents.through - ops.log(going_on)
    documents.reached = ops.exp(documents.reach)
    earned = documents.satisfied * documents.credit

    def compose(later: tuple[Array, Array], earlier: tuple[Array, Array]) -> tuple[Array, Array]:
        return earlier[0] * later[0], earlier[1] + earlier[0] * later[1]

    # From this place on, given that it is reached; and the same from the next place on.
    documents.from_here = suffix_scan(compose, (going_on, earned), (1.0, 0.0))[1]
    documents.from_next = ops.pad(documents.from_here[:, 1:], ((0, 0), (0, 1)))

    def change(document: Documents, other: Documents) -> Array:
        names = ("credit", "through", "reach", "reached", "from_here", "from_next")
        upper, lower = _by_rank(document, other, names)
        passing = ops.exp(ops.minimum(lower.reach - upper.through, 0.0))
        between = upper.from_next - passing * lower.from_here
        loss = ops.abs(upper.credit - between - passing * lower.credit)
        return upper.reached * ops.abs(document.satisfied - other.satisfied) * loss

    return change


def _highest(credit: Array, mask: Array) -> Array:
    """The highest credit of a list, for each of its documents; 0 if the mask leaves none."""
    highest = ops.max(ops.where(mask, credit, ops.zeros_like(credit)), axis=1, keepdims=True)
    return highest + ops.zeros_like(credit)


def _by_rank(
    document: Documents, other: Documents, names: tuple[str, ...]
) -> tuple[Documents, Documents]:
    """The document with the better rank, and the other one."""
    better = document.rank < other.rank
    upper, lower = Documents(), Documents()
    for name in names:
        ours, theirs = getattr(document, name), getattr(other, name)
        setattr(upper, name, ops.where(better, ours, theirs))
        setattr(lower, name, ops.where(better, theirs, ours))
    return upper, lower
