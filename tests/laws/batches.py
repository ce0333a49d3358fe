"""Small batches of lists, as NumPy arrays, that bring many situations into one call."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tfrankloss import metrics

Array = npt.NDArray[Any]

WIDTH = 8
HIGHEST_LABEL = 31
# What may stand in padded places.
GARBAGE_SCORES = (np.nan, np.inf, -np.inf, 1e30)
PADDING_LABELS = (-1.0, np.nan, -3.0)


class Batch(NamedTuple):
    """Lists with document weights."""

    labels: Array  # [batch, list], below 0 or NaN in padding
    scores: Array  # [batch, list] or [batch, list, outputs]
    weights: Array  # [batch, list]

    @property
    def mask(self) -> Array:
        """True for real documents."""
        return self.labels >= 0

    def astype(self, dtype: str) -> "Batch":
        return Batch(*(x.astype(dtype) for x in self))

    def rows(self, rows: Any) -> "Batch":
        return Batch(*(x[rows] for x in self))


def stack(lists: list[tuple[Any, Any]], outputs: int, width: int = WIDTH) -> Batch:
    """A batch of `(labels, scores)`, padded at the end with garbage; distinct weights."""
    size = len(lists)
    labels = np.resize(PADDING_LABELS, (size, width)).astype(np.float64)
    scores = np.resize(GARBAGE_SCORES, (size, width)).astype(np.float64)
    weights = np.full((size, width), np.nan)
    generator = np.random.default_rng(1)
    for row, (given_labels, given_scores) in enumerate(lists):
        count = len(given_labels)
        labels[row, :count] = given_labels
        scores[row, :count] = given_scores
        weights[row, :count] = generator.uniform(0.5, 2.0, count)
    return Batch(labels, expand(scores, outputs), weights).astype("float32")


def expand(scores: Array, outputs: int) -> Array:
    """Scores `[batch, list, outputs]` for losses that take one number per grade."""
    if outputs == 1:
        return scores
    # Positive factors, so that garbage stays what it is.
    factors = 1.0 + 0.25 * np.cos(np.arange(outputs))
    return scores[:, :, None] * factors


def distinct(outputs: int) -> Batch:
    """Lists of 8, 5 and 2 documents with distinct labels and distinct scores: no order is open."""
    return stack(
        [
            ([3, 0, 6, 1, 7, 2, 5, 4], [0.5, -0.3, 1.7, 0.25, -1.5, 2.5, -0.75, 1.1]),
            ([2, 4, 0, 1, 3], [-1.2, 0.4, 0.9, -0.1, 2.2]),
            ([0, 1], [0.3, -0.6]),
        ],
        outputs,
    )


def common(outputs: int) -> Batch:
    """The situations of practice, and some of the worst, for comparisons of two ways to run."""
    return stack(
        [
            ([3, 0, 6, 1, 7, 2, 5, 4], [0.5, -0.3, 1.7, 0.25, -1.5, 2.5, -0.75, 1.1]),
            ([2, 4, 0, 1, 3], [-1.2, 0.4, 0.9, -0.1, 2.2]),
            ([0, 1, 0, 0, 1, 1, 0], [0.5, 0.5, -0.0, 0.0, 1.5, -2.0, -2.0]),
            ([0, 2, 1, 4, 2, 0], [0.7] * 6),
            ([0, 0, 0, 0], [1.0, -1.0, 0.5, 2.0]),
            ([2], [0.3]),
            ([], []),
            ([31, 0, 7, 0, 1], [-1e4, 1e4, 3.0, -2.0, 1e4]),
        ],
        outputs,
    )


def extreme(outputs: int) -> Batch:
    """Finite inputs at which formulas overflow, divide by 0 or take the logarithm of 0."""
    generator = np.random.default_rng(2)
    rising = np.linspace(-1e4, 1e4, WIDTH)
    mixed = np.array([0, 1, 2, 4, 8, 16, 24, HIGHEST_LABEL], dtype=np.float64)
    highest = np.full(WIDTH, HIGHEST_LABEL)
    ones = np.ones(WIDTH)
    return stack(
        [
            (mixed, rising),
            (mixed, -rising),
            (mixed, generator.uniform(-1e4, 1e4, WIDTH)),
            (mixed, 1e4 * np.resize([1, -1], WIDTH)),
            (mixed, -1e4 * np.resize([1, -1], WIDTH)),
            (mixed, 1e4 * ones),
            (mixed, -1e4 * ones),
            (mixed, 0 * ones),
            (mixed, np.resize([0.0, -0.0], WIDTH)),
            (mixed, np.resize([1e-30, -1e-30, 1e-6], WIDTH)),
            (mixed, [1e4, 0, 0, 0, 0, 0, 0, 0]),
            (mixed, [-1e4, 0, 0, 0, 0, 0, 0, 0]),
            (highest, rising),
            (highest, 1e4 * ones),
            ([HIGHEST_LABEL, 0], [-1e4, 1e4]),
            ([HIGHEST_LABEL, 0], [1e4, -1e4]),
            ([HIGHEST_LABEL, 0, 0, 0, 0, 0, 0, 0], -rising),
            ([1, 0, 0, 0, 0, 0, 0, 0], rising),
            (0 * ones, rising),
            (0 * ones, 0 * ones),
            (ones, -rising),
            ([HIGHEST_LABEL], [1e4]),
            ([HIGHEST_LABEL], [-1e4]),
            ([0], [1e4]),
            ([0], [0.0]),
            ([1, 1], [0.0, 0.0]),
            ([], []),
        ],
        outputs,
    )


def of_metric(name: str) -> tuple[Array, Array]:
    """The common labels and scores, many equal; for a metric of subtopics each label is three."""
    batch = common(1)
    scores = np.where(np.isfinite(batch.scores), np.round(batch.scores), batch.scores)
    labels = batch.labels
    if metrics.METRICS[name].subtopics:
        labels = np.stack([np.where(labels >= 0, labels >= grade, -1) for grade in (1, 2, 3)], -1)
    return labels.astype("float32"), scores.astype("float32")
