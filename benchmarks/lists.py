"""The seeded batches that every library is given.

Only NumPy is imported here, because the workers of all libraries import this module.
"""

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

# The share of the grades 0 to 4 in a large web search collection (Web30K).
GRADE_SHARES = (0.52, 0.32, 0.13, 0.02, 0.01)
PADDING_LABEL = -1.0
SHORTEST_LIST, LONGEST_LIST, MEAN_LENGTH = 5, 1000, 120
RAGGED = "ragged"


class Shape(NamedTuple):
    """Batch size and list width; ``ragged`` lists have different lengths, padded to the longest."""

    batch: int
    width: int
    ragged: bool = False

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """Reads ``32x200``, ``ragged`` (32 lists), ``ragged64`` (64 lists), and what it prints."""
        text = text.lower()
        if text.startswith(RAGGED):
            batch = int(text[len(RAGGED) :] or 32)
            return cls(batch, int(ragged_lengths(batch).max()), ragged=True)
        sizes = text.removesuffix(f" {RAGGED}").replace("×", "x")
        batch, width = map(int, sizes.split("x"))
        return cls(batch, width, text.endswith(RAGGED))

    def __str__(self) -> str:
        return f"{self.batch} × {self.width}" + (f" {RAGGED}" if self.ragged else "")


class Batch(NamedTuple):
    """Labels ``[batch, width]`` and scores ``[batch, width]`` or ``[batch, width, outputs]``."""

    labels: np.ndarray
    scores: np.ndarray


def ragged_lengths(batch: int) -> np.ndarray:
    """List lengths at the quantiles of a log-normal distribution, between 5 and 1000."""
    spread = 1.0
    center = math.log(MEAN_LENGTH) - spread**2 / 2
    quantiles = [NormalDist(center, spread).inv_cdf((i + 0.5) / batch) for i in range(batch)]
    return np.clip(np.exp(quantiles).round().astype(int), SHORTEST_LIST, LONGEST_LIST)


def make_batch(shape: Shape, seed: int, labels: str = "graded", outputs: int = 0) -> Batch:
    """Standard normal scores and labels of one of three kinds.

    ``graded`` labels follow ``GRADE_SHARES``, ``binary`` ones are cut off at 1, and ``untied`` ones
    get a different fraction each, for losses whose value depends on how ties are broken. Every
    list has a relevant document, because the libraries disagree about lists that have none.
    """
    generator = np.random.default_rng(seed)
    size = (shape.batch, shape.width)
    scores = generator.standard_normal((*size, outputs) if outputs else size)
    grades = generator.choice(len(GRADE_SHARES), size=size, p=GRADE_SHARES)
    grades[:, 0] = np.where(grades.max(axis=1) == 0, 1, grades[:, 0])
    if labels == "binary":
        values = np.minimum(grades, 1.0)
    elif labels == "untied":
        fractions = generator.random(size).argsort(axis=1) / (2.0 * shape.width)
        values = grades + fractions
    elif labels == "graded":
        values = grades.astype(float)
    else:
        raise ValueError(f"labels must be graded, binary or untied. Received: labels={labels!r}")
    if shape.ragged:
        lengths = generator.permutation(ragged_lengths(shape.batch))
        values = np.where(np.arange(shape.width) < lengths[:, None], values, PADDING_LABEL)
        # The document that makes a list relevant must not be padding: the first one never is.
        values[:, 0] = np.where(values.max(axis=1) < 1, 1.0, values[:, 0])
    return Batch(values.astype(np.float32), scores.astype(np.float32))
