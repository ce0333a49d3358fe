"""The pair engine: sums over all pairs of documents of a list, with closed-form derivatives.

A pairwise loss is `sum_ij w_i w_ij phi(z_ij)` with `z_ij = sigma (s_i - s_j)` and weights that are
constants for the gradient. With the derivatives of phi at hand, the value, the gradient and the
diagonal curvature of document i are sums over the other documents j,

    v_i = w_i sum_j w_ij phi(z_ij)
    g_i = sigma   sum_j [w_i w_ij phi'(z_ij)  - w_j w_ji phi'(z_ji)]
    h_i = sigma^2 sum_j [w_i w_ij phi''(z_ij) + w_j w_ji phi''(z_ji)],

so one pass over the others gives everything and stores nothing of size list x list: see `blocks`
for how that pass is made fast, and for what was measured.

What makes a pair cheap:

- With one power `p = e^(sigma s)` per document, `1 / (1 + e^z_ij)` is `p_j / (p_i + p_j)`: a pair
  needs no exponential. Scores too far apart for that take the direct form; the program decides for
  each batch.
- The logarithm was most of the time of the logistic loss. Where the pair has no weight of its own,
  the sum of logarithms over a visit of 16 rows is one logarithm of a product of factors in [1, 2].
  Where it has, a polynomial takes 40% of the time of the whole loss off.
- Value and slope are two programs inside of XLA's, and what is costly and used by both is written
  to memory, row by row. So they share no division: with one, the soft zero-one loss took twice as
  long, and six times with 128 lists of 1,000.
- Where only labels weigh, long lists do without most pairs: see `grid`.
- A weight that depends on the distance of two ranks is read from a table (`ByDistance`).
- On accelerators a pair is evaluated once, by the margin of the preferred document (`Preferred`,
  `_signed_terms`), with one exponential: a branch on the spread of the scores would be a read-back.

Vocabulary: `document` and `other` are the two documents of a pair; their attributes broadcast
against each other. `weights(document, other)` says which of the two is preferred, and how much the
pair counts.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import keras
from keras import ops

from tfrankloss.core import backend, grid
from tfrankloss.core.backend import Array
from tfrankloss.core.blocks import (
    LONG_LIST,
    Documents,
    Logarithmic,
    if_shorter,
    pad_to_rows,
    sum_over_rows,
)
from tfrankloss.core.grid import Sums
from tfrankloss.core.lists import Derivatives, grades, score_range

# Beyond this the exponential loss goes on as a straight line: e^30 is about 1e13, so that a sum
# over a billion pairs still fits float32.
EXPONENT_LIMIT = 30.0
# Numbers whose powers are far from overflow. (From e^70 on TensorFlow's float32 reciprocal, used
# outside XLA, loses half of its digits.)
POWER_LIMITS = {"float32": 60.0, "float64": 300.0}

# `log(1 + x) / x` on [0, 1], interpolated in Chebyshev's nodes: the coefficients of 1, x, x^2, ...
LOG_ONE_PLUS = [
    0.999999966,
    -0.49999445,
    0.333181217,
    -0.24835399,
    0.190768807,
    -0.136022476,
    0.0775160866,
    -0.0290740646,
    0.00512610212,
]


class Difference:
    """The difference of two scores, `z = sigma (s_i - s_j)`, and what follows from it."""

    def __init__(self, document: Documents, other: Documents, sigma: float) -> None:
        self.document = document
        self.other = other
        self._sigma = sigma

    @functools.cached_property
    def z(self) -> Array:
        """`sigma (s_i - s_j)`.

        Of the scores as they are, and multiplied last: of a score that is far away, neither a
        multiple nor the distance from the middle of all keeps its digits, or those of the others.
        """
        if self._has_powers:
            return self.document.centred - self.other.centred
        gap = self.document.score - self.other.score
        return gap if self._sigma == 1.0 else self._sigma * gap

    @functools.cached_property
    def right(self) -> Array:
        """`1 / (1 + e^(-z))`, the probability of the order document, other."""
        if self._has_powers:
            return self.document.power * self._inverse_sum
        return ops.where(self.z >= 0.0, 1.0, self.decay) * self._inverse_sum

    @functools.cached_property
    def wrong(self) -> Array:
        """`1 / (1 + e^z)`, the probability of the reverse order."""
        if self._has_powers:
            return self.other.power * self._inverse_sum
        return ops.where(self.z >= 0.0, self.decay, 1.0) * self._inverse_sum

    @functools.cached_property
    def bend(self) -> Array:
        """`right * wrong`, the derivative of `right`.

        With a division of its own: XLA for CPU writes a division that two sums share to memory.
        """
        if self._has_powers:
            return 1.0 / (2.0 + self.growth + self.shrinkage)
        return self.right * self.wrong

    @functools.cached_property
    def decay(self) -> Array:
        """`e^(-|z|)`."""
        if self._has_powers:
            return ops.minimum(self.growth, self.shrinkage)
        return ops.exp(-ops.abs(self.z))

    @functools.cached_property
    def growth(self) -> Array:
        """`e^z`."""
        if self._has_powers:
            return self.document.power * self.other.inverse_power
        return ops.exp(self.z)

    @functools.cached_property
    def shrinkage(self) -> Array:
        """`e^(-z)`."""
        if self._has_powers:
            return self.document.inverse_power * self.other.power
        return ops.exp(-self.z)

    @functools.cached_property
    def _inverse_sum(self) -> Array:
        if self._has_powers:
            return 1.0 / (self.document.power + self.other.power)
        return 1.0 / (1.0 + self.decay)

    @functools.cached_property
    def _has_powers(self) -> bool:
        return hasattr(self.document, "power")


class Margin(Difference):
    """A difference that is given: by how much the preferred document of a pair is ahead."""

    def __init__(self, z: Array) -> None:
        self.__dict__["z"] = z

    @functools.cached_property
    def _has_powers(self) -> bool:
        return False


class Phi:
    """A function of z and its derivatives.

    `uses_powers`: whether it is one of e^z. `on_grid`: whether its sums over documents are smooth
    enough for a `grid`. `weighs_value`: whether weights of documents multiply the value, as they do
    the derivatives.
    """

    uses_powers = False
    on_grid = False
    weighs_value = True

    def value(self, difference: Difference) -> tuple[Array, Array | None]:
        """The value in two parts, `linear + log(1 + decay)`: decay is at most 1, None for 0."""
        raise NotImplementedError

    def slopes(self, difference: Difference) -> tuple[Array, Array]:
        """The first derivative at z, and at -z."""
        raise NotImplementedError

    def curvatures(self, difference: Difference) -> tuple[Array, Array]:
        """The second derivative at z, and at -z."""
        raise NotImplementedError


class PairWeights(NamedTuple):
    """Which pairs count, and how much.

    Args:
        forward: whether a pair counts with `document` as the preferred one.
        backward: whether it counts with `other` as the preferred one.
        weight: weight of the pair, or None for 1.
        reverse_weight: its weight where `other` is preferred, if that is another.
    """

    forward: Array
    backward: Array
    weight: Array | None = None
    reverse_weight: Array | None = None


PairFactor = Callable[[Documents, Documents], Array]
Weights = Callable[[Documents, Documents], PairWeights]


class Hinge(Phi):
    """`max(0, 1 - z)`."""

    def value(self, difference: Difference) -> tuple[Array, None]:
        return ops.maximum(1.0 - difference.z, 0.0), None

    def slopes(self, difference: Difference) -> tuple[Array, Array]:
        z = difference.z
        return tuple(-ops.cast(active, z.dtype) for active in (z < 1.0, z > -1.0))


class Exponential(Phi):
    """`e^(-z)`, continued linearly where `-z` exceeds `EXPONENT_LIMIT`."""

    uses_powers = True

    def value(self, difference: Difference) -> tuple[Array, None]:
        beyond = ops.maximum(-difference.z - EXPONENT_LIMIT, 0.0)
        return self._limited(difference.shrinkage) * (1.0 + beyond), None

    def slopes(self, difference: Difference) -> tuple[Array, Array]:
        return -self._limited(difference.shrinkage), -self._limited(difference.growth)

    def curvatures(self, difference: Difference) -> tuple[Array, Array]:
        return tuple(
            ops.where(exponent > EXPONENT_LIMIT, 0.0, self._limited(power))
            for exponent, power in (
                (-difference.z, difference.shrinkage),
                (difference.z, difference.growth),
            )
        )

    def _limited(self, power: Array) -> Array:
        return ops.minimum(power, math.exp(EXPONENT_LIMIT))


class Logistic(Phi):
    """`log(1 + e^(-z))`."""

    uses_powers = True
    on_grid = True

    def value(self, difference: Difference) -> tuple[Array, Array]:
        return ops.maximum(-difference.z, 0.0), difference.decay

    def slopes(self, difference: Difference) -> tuple[Array, Array]:
        return -difference.wrong, -difference.right

    def curvatures(self, difference: Difference) -> tuple[Array, Array]:
        return difference.bend, difference.bend


class LogisticForces(Logistic):
    """As `Logistic`, with the force of a pair, minus the slope, in place of the value."""

    weighs_value = False

    def value(self, difference: Difference) -> tuple[Array, None]:
        return difference.wrong, None


class SoftZeroOne(Phi):
    """`1 / (1 + e^z)`."""

    uses_powers = True
    on_grid = True

    def value(self, difference: Difference) -> tuple[Array, None]:
        return difference.wrong, None

    def slopes(self, difference: Difference) -> tuple[Array, Array]:
        return -difference.bend, -difference.bend

    def curvatures(self, difference: Difference) -> tuple[Array, Array]:
        bend = difference.bend * (difference.right - difference.wrong)
        return bend, -bend


class Preferred:
    """Pairs of different labels, weighted by a symmetric function of the two documents.

    Args:
        weight: the function, or None for 1.
        gap: an attribute that grows with the label and is NaN in padding, of which the absolute
            difference multiplies the weight.
        condition: which of these pairs count, if not all.
    """

    def __init__(
        self,
        weight: PairFactor | None = None,
        gap: str | None = None,
        condition: PairFactor | None = None,
    ) -> None:
        self._weight = weight
        self._gap = gap
        self._condition = condition

    def __call__(self, document: Documents, other: Documents) -> PairWeights:
        weight = None if self._weight is None else self._weight(document, other)
        if self._gap is not None:
            gap = ops.abs(getattr(document, self._gap) - getattr(other, self._gap))
            weight = gap if weight is None else gap * weight
        above, below = document.grade > other.grade, document.grade < other.grade
        if self._condition is not None:
            allowed = self._condition(document, other)
            above, below = ops.logical_and(above, allowed), ops.logical_and(below, allowed)
        return PairWeights(above, below, weight)

    @property
    def plain(self) -> bool:
        """Whether every pair that counts weighs 1."""
        return self._weight is None and self._gap is None

    def signed(self, document: Documents, other: Documents) -> Array:
        """The weight, below 0 where `other` is preferred; NaN where one of the two is padding."""
        gap = getattr(document, self._gap or "grade") - getattr(other, self._gap or "grade")
        sign = ops.sign(gap) if self._gap is None else gap
        if self._condition is not None:
            sign = ops.where(self._condition(document, other), sign, 0.0)
        return sign if self._weight is None else sign * self._weight(document, other)

    def where(self, condition: PairFactor) -> "Preferred":
        """The same for those pairs alone that satisfy a condition."""
        return Preferred(self._weight, self._gap, condition)


class ByLabel(Preferred):
    """Weights that look at nothing but `label` and `grade` of the two documents.

    What a document adds up over its pairs is then a function of its label and score, and long lists
    need not visit all pairs: see `grid`.
    """


def directed(weight: PairFactor) -> Weights:
    """Pairs of different labels, weighted by any function of the higher and the lower document."""

    def weights(document: Documents, other: Documents) -> PairWeights:
        above, below, *_ = Preferred()(document, other)
        return PairWeights(above, below, weight(document, other), weight(other, document))

    return weights


def nearest_first(weights: Weights) -> Weights:
    """The weights divided by the `offset` of the list plus the distance of the two scores."""

    def divided(document: Documents, other: Documents) -> PairWeights:
        pair = weights(document, other)
        distance = other.offset + ops.abs(document.score - other.score)
        return pair._replace(
            weight=(1.0 if pair.weight is None else pair.weight) / distance,
            reverse_weight=None if pair.reverse_weight is None else pair.reverse_weight / distance,
        )

    return divided


def half_for_ties(document: Documents, other: Documents) -> PairWeights:
    """RankNet's target probabilities: 1 for the preferred document, one half where labels tie."""
    differ = document.index != other.index
    tied = ops.where(document.grade == other.grade, 0.5, 1.0)
    return PairWeights(
        ops.logical_and(document.grade >= other.grade, differ),
        ops.logical_and(document.grade <= other.grade, differ),
        ops.cast(tied, document.score.dtype),
    )


def all_ordered(importance: Callable[[Documents], Array]) -> Weights:
    """Every pair of different documents both ways, weighted by the preferred one."""

    def weights(document: Documents, other: Documents) -> PairWeights:
        both = ops.logical_and(document.mask, other.mask)
        both = ops.logical_and(both, document.index != other.index)
        return PairWeights(both, both, importance(document), importance(other))

    return weights


def pair_sums(
    documents: Documents,
    phi: Phi,
    weights: Weights,
    sigma: float = 1.0,
    top: int | None = None,
    curvature: bool = False,
) -> Derivatives:
    """Sums `w_i w_ij phi(sigma (s_i - s_j))` over the pairs of each list.

    Args:
        documents: what `weights` needs of the documents, `[batch or 1, list]`. The weights may also
            look at `grade`, the label, which compares as neither higher nor lower in padding; and
            at `index`, the position.
        phi: the function of the score difference.
        weights: the weight of a pair in both directions.
        sigma: slope of the pairwise loss.
        top: where given, only pairs with at least one of the first `top` documents have a weight
            and the others are not visited.
        curvature: whether to sum the second derivatives, too.
    """
    size = documents.score.shape[1]
    documents = pad_to_rows(documents)
    documents.grade = grades(documents.label, documents.mask)
    documents.index = ops.arange(ops.shape(documents.score)[1])[None, :]
    count = 3 if curvature else 2
    sums = functools.partial(_sums, phi, weights, top, count, sigma)
    # On accelerators `e^(-|z|)`, without a branch on the spread, which the device alone knows.
    if phi.uses_powers and not backend.on_accelerator():
        on_grid = phi.on_grid and top is None and isinstance(weights, ByLabel)
        results = _sums_of_powers(sums, documents, sigma, on_grid, count)
    else:
        results = sums(documents)
    values, gradient, *bend = (result[:, :size] for result in results)
    return Derivatives(values, sigma * gradient, sigma * sigma * bend[0] if bend else None)


def _sums_of_powers(
    sums: Callable[..., Sums], documents: Documents, sigma: float, on_grid: bool, count: int
) -> Sums:
    """`_sums` with powers where they are in range, and from a grid where that is faster."""
    dtype = keras.backend.standardize_dtype(documents.score.dtype)
    limit = POWER_LIMITS[dtype]
    middle, spread = score_range(documents.score, documents.mask)
    centred = Documents(**vars(documents), centred=sigma * (documents.score - middle))

    def with_powers(documents: Documents) -> Documents:
        # Powers of centred scores are as good as exponentials of the differences, if in range.
        exponent = ops.clip(documents.centred, -limit, limit)
        powers = {"power": ops.exp(exponent), "inverse_power": ops.exp(-exponent)}
        return Documents(**vars(documents), **powers)

    def by_pairs() -> Sums:
        return ops.cond(
            sigma * spread <= 2.0 * limit,
            lambda: sums(with_powers(centred)),
            lambda: sums(documents, compact=True),
        )

    def by_grid() -> Sums:
        def at(columns: Documents, rows: Documents) -> Sums:
            return sums(with_powers(rows), columns=with_powers(columns))

        return grid.sums_of_documents(centred, limit, count, at, by_pairs)

    if not on_grid or dtype != "float32":
        return by_pairs()
    return if_shorter(documents.score, grid.VISITED_LIST, by_pairs, by_grid)


def _sums(
    phi: Phi,
    weights: Weights,
    top: int | None,
    count: int,
    sigma: float,
    documents: Documents,
    columns: Documents | None = None,
    compact: bool = False,
) -> Sums:
    """Value, gradient and, where asked for, curvature of each document, for sigma = 1.

    Or of each of the `columns`, other documents that are compared with these.
    """
    size = documents.score.shape[1]
    columns = documents if columns is None else columns
    pass_over = functools.partial(sum_over_rows, sums=count, compact=compact)
    signed = backend.on_accelerator() and isinstance(weights, Preferred)
    terms = functools.partial(_signed_terms if signed else _terms, phi, count, sigma)
    if top is None or (size is not None and top >= size):
        sums = pass_over(functools.partial(terms, weights), columns, documents)
    elif backend.on_accelerator() and size is not None and size < LONG_LIST:
        # Few pairs: to leave some of them out would be more launches.
        one = _where(weights, lambda i, j: ops.minimum(i.index, j.index) < top)
        sums = pass_over(functools.partial(terms, one), columns, documents)
    else:
        # Every document with the first ones; then the first ones with those after them.
        within = _where(weights, lambda document, other: other.index < top)
        beyond = _where(weights, lambda document, other: other.index >= top)
        first = documents.map(lambda x: x[:, :top])
        distances = top if size is not None else ops.minimum(top, ops.shape(documents.score)[1])
        others = documents.map(lambda x: x, lambda x: x.to_first(distances))
        sums = tuple(
            ops.concatenate([total[:, :top] + more, total[:, top:]], axis=1)
            for total, more in zip(
                pass_over(functools.partial(terms, within), documents, documents, top=top),
                pass_over(functools.partial(terms, beyond), first, others),
                strict=True,
            )
        )
    value, *derivatives = sums
    if signed:
        # Half for each of the two documents of a pair, so that the terms need not choose.
        value = 0.5 * value
    elif phi.weighs_value and hasattr(columns, "weight"):
        value = columns.weight * value
    return value, *derivatives


def _terms(
    phi: Phi,
    count: int,
    sigma: float,
    weights: Weights,
    document: Documents,
    other: Documents,
) -> tuple[Array | Logarithmic, ...]:
    """The value, without the document's weight; the slope; and the curvature if `count` is 3."""
    forward, backward, weight, reverse_weight = weights(document, other)
    difference = Difference(document, other, sigma)
    value, decay = phi.value(difference)
    if weight is not None:
        value = weight * (value if decay is None else value + log_one_plus(decay))
    terms: list[Array | Logarithmic] = [ops.where(forward, value, 0.0)]
    if decay is not None and weight is None:
        terms = [Logarithmic(terms[0], ops.where(forward, 1.0 + decay, 1.0))]
    slope, reverse_slope = phi.slopes(difference)
    both_ways = [(slope, -reverse_slope)]
    if count == 3:
        both_ways.append(phi.curvatures(difference))
    for here, there in both_ways:
        if hasattr(document, "weight"):
            here, there = document.weight * here, other.weight * there
        if weight is not None:
            # Before the selection: what does not count may have an infinite weight.
            here = weight * here
            there = (weight if reverse_weight is None else reverse_weight) * there
        terms.append(ops.where(forward, here, 0.0) + ops.where(backward, there, 0.0))
    return tuple(terms)


def _signed_terms(
    phi: Phi, count: int, sigma: float, weights: Preferred, document: Documents, other: Documents
) -> tuple[Array, ...]:
    """The same where one of the two documents is preferred, by the margin of that one.

    Half of the arithmetic: phi is evaluated once for both directions of a pair, and the value
    counts half for each of its two documents.
    """
    preference = weights.signed(document, other)
    preference = ops.where(preference == preference, preference, 0.0)
    strength = ops.abs(preference)
    # (Not by selection: XLA for GPU would store the condition that two sums share.)
    sign = preference if weights.plain else ops.sign(preference)
    margin = Margin(sign * Difference(document, other, sigma).z)
    value, decay = phi.value(margin)
    if decay is not None:
        value = value + log_one_plus(decay)
    if hasattr(document, "weight"):
        # That of the preferred document, which the value gets, too.
        weight = ops.where(preference > 0.0, document.weight, other.weight)
        preference, strength = preference * weight, strength * weight
    terms = [strength * value, preference * phi.slopes(margin)[0]]
    if count == 3:
        terms.append(strength * phi.curvatures(margin)[0])
    return tuple(terms)


def log_one_plus(x: Array) -> Array:
    """`log(1 + x)` for x from 0 to 1; in float32 by a polynomial, right to a relative 4e-7.

    On accelerators by the logarithm, which costs half as much there and is right to 6e-8: as right
    as the sums of logarithms on a CPU (`Logarithmic`).
    """
    if keras.backend.standardize_dtype(x.dtype) != "float32":
        return ops.log1p(x)
    if backend.on_accelerator():
        return ops.log(1.0 + x)
    result = LOG_ONE_PLUS[-1] * x
    for coefficient in LOG_ONE_PLUS[-2:0:-1]:
        result = (result + coefficient) * x
    return (result + LOG_ONE_PLUS[0]) * x


def _where(weights: Weights, condition: PairFactor) -> Weights:
    """The weights of the pairs that satisfy a condition."""
    if isinstance(weights, Preferred):
        return weights.where(condition)

    def restricted(document: Documents, other: Documents) -> PairWeights:
        pair, allowed = weights(document, other), condition(document, other)
        return pair._replace(
            forward=ops.logical_and(pair.forward, allowed),
            backward=ops.logical_and(pair.backward, allowed),
        )

    return restricted
