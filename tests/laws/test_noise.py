"""Noise: fresh at every step, the same again from the same seed."""

import keras
import numpy as np
import pytest

from tests.laws import batches
from tests.laws.cases import NOISY_CASES, SEED, Case
from tests.laws.running import run


@pytest.mark.parametrize("case", NOISY_CASES)
def test_seeds(case: Case) -> None:
    # Random ties need labels that tie.
    batch = batches.distinct(1)
    batch.labels[:] = np.where(batch.mask, np.minimum(batch.labels, 2.0), -1.0)
    expected = run(case.build(), batch).values
    same = run(case.fresh(reduction="none", seed=SEED), batch).values
    np.testing.assert_array_equal(same, expected)
    other = run(case.fresh(reduction="none", seed=SEED + 1), batch).values
    assert np.all(other[:2] != expected[:2])

    # Without a seed, that of Keras decides.
    unseeded = []
    for seed in (1, 1, 2):
        keras.utils.set_random_seed(seed)
        loss = case.fresh(reduction="none", seed=None)
        assert loss.get_config()["seed"] is None
        unseeded.append(run(loss, batch).values)
    np.testing.assert_array_equal(unseeded[0], unseeded[1])
    assert np.all(unseeded[0][:2] != unseeded[2][:2])


@pytest.mark.parametrize("case", [case for case in NOISY_CASES if case.first])
def test_fresh_noise_when_scores_change(case: Case) -> None:
    """The loss at scores that hardly differ is that of other noise, not nearly the same."""
    loss = case.build()
    batch = batches.distinct(1).rows([0] * 6)
    moved = batch._replace(scores=batch.scores + 1e-5 * np.arange(6.0)[:, None]).astype("float32")
    values = run(loss, moved, weighted=False).values
    assert len(np.unique(np.round(values, 4))) == 6
