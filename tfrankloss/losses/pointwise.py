"""Pointwise losses: every document by itself.

They predict the label, not the order: a lower loss may rank worse (Oosterhuis, Learning to Rank,
Eqs 7-11). Use them as baselines, or where the score itself must mean something.
"""

from typing import Any

from keras import ops

from tfrankloss.core.backend import Array
from tfrankloss.core.lists import Lists
from tfrankloss.core.pairs import log_one_plus
from tfrankloss.losses.base import RankingLoss
from tfrankloss.options import check_integer, check_positive, register


class PointwiseLoss(RankingLoss):
    """A loss that looks at every document by itself."""

    compares = False


class GradedLoss(PointwiseLoss):
    """A pointwise loss of a model that gives one number per grade: `[batch, list, num_grades]`."""

    def __init__(self, num_grades: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        check_integer("num_grades", num_grades, minimum=2)
        self.num_grades = num_grades
        self.outputs = num_grades


@register
class PointwiseSquaredLoss(PointwiseLoss):
    """Squared error of the score as a prediction of the label.

    `sum_i (y_i - s_i)^2` (Oosterhuis, Learning to Rank, Eq 3; Cossock and Zhang, 2006). With
    `num_grades` the model gives one number per grade, `[batch, list, num_grades]`, and the target
    is the one-hot label (Fuhr, 1989).

    Args:
        num_grades: number of grades 0, 1, ... of the labels, or None to predict the label itself.
        reduction: see `RankingLoss`, as the other arguments.

    >>> loss = PointwiseSquaredLoss()
    >>> round(float(loss([[1.0, 0.0]], [[0.6, 0.8]])), 4)  # (1 - 0.6)^2 + 0.8^2
    0.8
    """

    curved = True

    def __init__(self, num_grades: int | None = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        if num_grades is not None:
            check_integer("num_grades", num_grades, minimum=2)
            self.outputs = num_grades
        self.num_grades = num_grades

    def per_list(self, lists: Lists) -> Array:
        if self.num_grades is None:
            return ops.sum(lists.weights * (lists.labels - lists.scores) ** 2, axis=1)
        targets = _one_hot(lists.labels, self.num_grades)
        errors = ops.sum((targets - lists.scores) ** 2, axis=2)
        return ops.sum(ops.where(lists.mask, lists.weights * errors, 0.0 * lists.weights), axis=1)

    def curvature(self, lists: Lists) -> Array:
        return 2.0 * lists.weights

    def ranking_scores(self, y_pred: Array) -> Array:
        """The score itself, or the expected grade where the model gives one number per grade."""
        return y_pred if self.num_grades is None else _expected_grade(y_pred)


@register
class PointwiseSigmoidLoss(PointwiseLoss):
    """Binary cross entropy: is the document relevant?

    `sum_i log(1 + e^s_i) - min(y_i, 1) s_i`. A label between 0 and 1 is a probability; every label
    above 1 counts as relevant (as a target it would make the loss unbounded).

    >>> loss = PointwiseSigmoidLoss()
    >>> round(float(loss([[1.0, 0.0]], [[0.6, 0.8]])), 4)  # log(1 + e^-0.6) + log(1 + e^0.8)
    1.6086
    """

    curved = True

    def value_and_gradient(self, lists: Lists) -> tuple[Array, Array]:
        targets = ops.minimum(lists.labels, 1.0)
        values, gradient = _sigmoid_cross_entropy(targets, lists.scores)
        return ops.sum(lists.weights * values, axis=1), lists.weights * gradient

    def curvature(self, lists: Lists) -> Array:
        return lists.weights * ops.sigmoid(lists.scores) * ops.sigmoid(-lists.scores)


@register
class PointwiseSoftmaxLoss(GradedLoss):
    """Classification of each document into its grade (McRank).

    `sum_i -log softmax(gamma s_i)[y_i]` with scores `[batch, list, num_grades]` (Oosterhuis,
    Learning to Rank, Eq 4; Li, Burges and Wu, 2007). To rank, sort by the expected grade. A label
    that is not one of 0, ..., num_grades - 1 gives NaN.

    Args:
        num_grades: number of grades.
        gamma: inverse temperature of the softmax.
        reduction: see `RankingLoss`, as the other arguments.

    >>> loss = PointwiseSoftmaxLoss(num_grades=2)
    >>> round(float(loss([[1.0, 0.0]], [[[0.0, 0.6], [0.8, 0.0]]])), 4)
    0.8086
    """

    def __init__(self, num_grades: int, gamma: float = 1.0, **arguments: Any) -> None:
        super().__init__(num_grades, **arguments)
        check_positive("gamma", gamma)
        self.gamma = gamma

    def per_list(self, lists: Lists) -> Array:
        log_probabilities = ops.log_softmax(self.gamma * lists.scores, axis=-1)
        terms = -ops.sum(_one_hot(lists.labels, self.num_grades) * log_probabilities, axis=2)
        return ops.sum(ops.where(lists.mask, lists.weights * terms, 0.0 * lists.weights), axis=1)

    def ranking_scores(self, y_pred: Array) -> Array:
        """The expected grade `sum_g g softmax(gamma s)[g]` of each document."""
        return _expected_grade(ops.softmax(self.gamma * y_pred, axis=-1))


@register
class OrdinalLoss(GradedLoss):
    """One yes-or-no question per grade: is the label above it?

    `sum_i sum_g` of the binary cross entropies of `[y_i > g]`, where output g of the model,
    `[batch, list, num_grades]`, is the logit of `P(y > g)` for g = 0, ..., num_grades - 1. To rank,
    sort by the sum of the probabilities. Labels go from 0 to `num_grades` (with labels up to
    `num_grades - 1` the last output learns to say no); a fractional label is shared by its two
    neighbours; a higher one gives NaN.

    Args:
        num_grades: number of grades.
        reduction: see `RankingLoss`, as the other arguments.

    >>> loss = OrdinalLoss(num_grades=2)
    >>> round(float(loss([[1.0, 0.0]], [[[0.6, 0.0], [0.8, 0.0]]])), 4)  # 1.6086 + 2 log 2
    2.9949
    """

    def value_and_gradient(self, lists: Lists) -> tuple[Array, Array]:
        grades = ops.cast(ops.arange(self.num_grades), lists.labels.dtype)
        targets = ops.clip(lists.labels[:, :, None] - grades, 0.0, 1.0)
        unknown = lists.labels[:, :, None] > self.num_grades
        targets = ops.where(unknown, ops.full_like(targets, float("nan")), targets)
        values, gradient = _sigmoid_cross_entropy(targets, lists.scores)
        weights = lists.weights[:, :, None]
        return ops.sum(weights * values, axis=(1, 2)), weights * gradient

    def ranking_scores(self, y_pred: Array) -> Array:
        """The expected grade `sum_g P(y > g)` of each document."""
        return ops.sum(ops.sigmoid(y_pred), axis=-1)


def _expected_grade(probabilities: Array) -> Array:
    grades = ops.arange(probabilities.shape[-1], dtype=probabilities.dtype)
    return ops.sum(grades * probabilities, axis=-1)


def _sigmoid_cross_entropy(targets: Array, logits: Array) -> tuple[Array, Array]:
    """`log(1 + e^s) - y s` and its derivative; XLA's own log(1 + x) takes most of the time."""
    decay = ops.exp(-ops.abs(logits))
    values = ops.maximum(logits, 0.0) + log_one_plus(decay) - targets * logits
    return values, ops.sigmoid(logits) - targets


def _one_hot(labels: Array, num_grades: int) -> Array:
    """`[batch, list, num_grades]`; a label that is no grade becomes NaN, not a silent 0."""
    hot = ops.cast(
        labels[:, :, None] == ops.cast(ops.arange(num_grades), labels.dtype), labels.dtype
    )
    known = ops.any(hot > 0, axis=2, keepdims=True)
    return ops.where(known, hot, ops.full_like(hot, float("nan")))
