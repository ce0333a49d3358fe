"""Law 3: the gradient is that of the value, with ranks and noise held constant."""

import numpy as np
import pytest

from tests.laws import batches
from tests.laws.batches import Array, Batch
from tests.laws.cases import CASES, Case
from tests.laws.running import run

# A deterministic loss takes the step that balances truncation and rounding. Noise is a function of
# the scores in float32: a step far below the resolution of float32 leaves it as it is.
STEP = 1e-5
NOISE_KEEPING_STEP = 2.0**-29


def smooth_lists(outputs: int) -> Batch:
    """Scores that are exact in float32, at least 1/4, and far from any kink or tie."""
    return batches.stack(
        [
            ([3, 0, 1, 1, 4, 0, 2, 0], [0.5, 1.25, 1.6875, 0.3125, 2.125, 2.5625, 0.75, 1.0625]),
            ([0, 2, 0, 1, 2], [2.8125, 0.4375, 0.875, 1.4375, 2.1875]),
        ],
        outputs,
    ).astype("float64")


def coordinates(batch: Batch) -> list[tuple[Array, ...]]:
    """Places of the scores to move: all of them, or a few grades of each document."""
    places = [tuple(place) for place in np.argwhere(batch.mask)]
    if batch.scores.ndim == 2:
        return places
    return [(*place, grade) for place in places for grade in {0, 1, int(batch.labels[place]), 9}]


def assert_slopes(case: Case, batch: Batch, step: float, tolerance: float) -> None:
    """Compares the gradient with central differences of the value."""
    places = coordinates(batch)
    # All moved lists are one batch: two for each score.
    moved = batch.rows([place[0] for place in places for _ in range(2)])
    for number, place in enumerate(places):
        moved.scores[(2 * number, *place[1:])] += step
        moved.scores[(2 * number + 1, *place[1:])] -= step
    together = Batch(*(np.concatenate(x) for x in zip(batch, moved, strict=True)))
    result = run(case.build(), together)
    gradient, values = result.gradient[: len(batch.labels)], result.values[len(batch.labels) :]
    slopes = (values[0::2] - values[1::2]) / (2.0 * step)
    assert np.abs(slopes).max() > 1e-3
    np.testing.assert_allclose(
        [gradient[place] for place in places],
        slopes,
        rtol=0,
        atol=tolerance * np.abs(gradient).max(),
        err_msg=f"of the scores at {[tuple(map(int, place)) for place in places]}",
    )


@pytest.mark.parametrize("case", CASES)
def test_central_differences(case: Case) -> None:
    batch = smooth_lists(case.build().outputs)
    # Scores of graded losses are products: back to numbers that float32 holds.
    batch = batch._replace(scores=np.float64(np.float32(batch.scores)))
    if case.noisy:
        assert_slopes(case, batch, NOISE_KEEPING_STEP, tolerance=1e-4)
    else:
        assert_slopes(case, batch, STEP, tolerance=1e-6)


# Where scores tie, ranks jump, and so does the document that is the first relevant one.
SMOOTH_AT_TIES = [
    case
    for case in CASES
    if not case.noisy
    and not getattr(case.build(), "uses_ranks", False)
    and case.name != "approx_mrr"
]


@pytest.mark.parametrize("case", SMOOTH_AT_TIES)
def test_central_differences_at_ties_and_zeros(case: Case) -> None:
    """A model that starts with zeros scores everything 0: the gradient there starts training."""
    lists = [
        ([1, 0], [0.0, 0.0]),
        ([1], [0.0]),
        ([0], [0.0]),
        ([2, 0, 1, 0], [0.0, 0.0, 0.0, 0.0]),
        ([1, 0, 2], [0.5, 0.5, -0.25]),
        ([2, 1, 0], [0.0, -0.0, 0.75]),
    ]
    batch = batches.stack(lists, case.build().outputs).astype("float64")
    assert_slopes(case, batch, STEP, tolerance=1e-6)
