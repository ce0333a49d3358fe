"""Law 2: finite inputs give a finite value and a finite gradient, of the type of the scores."""

import numpy as np
import pytest
import tensorflow as tf

from tests.laws import batches
from tests.laws.cases import CASES, FIRST_CASES, PROGRAMS, Case
from tests.laws.running import value_and_gradient

DTYPES = ("float16", "bfloat16", "float32", "float64")


def assert_finite(case: Case, dtype: str) -> None:
    loss = case.build()
    batch = batches.extreme(loss.outputs)
    labels, scores = (tf.cast(x, dtype) for x in (batch.labels, batch.scores))
    values, gradient = value_and_gradient(loss, labels, scores)
    assert gradient.dtype == scores.dtype
    assert values.dtype == ("float64" if dtype == "float64" else "float32")
    values, gradient = (tf.cast(x, tf.float64).numpy() for x in (values, gradient))
    finite = np.isfinite(values) & np.isfinite(gradient).reshape(len(values), -1).all(axis=1)
    bad = np.flatnonzero(~finite)
    assert not len(bad), (
        f"Not finite: lists {bad}, labels {batch.labels[bad]}, scores {batch.scores[bad]}, "
        f"values {values[bad]}, gradient {gradient[bad]}"
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_extremes(case: Case, dtype: str) -> None:
    assert_finite(case, dtype)


@pytest.mark.usefixtures("with_xla")
@pytest.mark.parametrize("case", PROGRAMS[1::3])
def test_extremes_with_xla(case: Case) -> None:
    """XLA has functions of its own (float32 is compiled with an extreme list in law 4)."""
    assert_finite(case, "float16")


@pytest.mark.parametrize("case", FIRST_CASES)
def test_half_precision_computes_in_float32(case: Case) -> None:
    """The value of half precision scores is that of the same numbers in float32."""
    loss = case.build()
    batch = batches.distinct(loss.outputs)
    scores = tf.cast(batch.scores, "float16")
    labels, weights = tf.constant(batch.labels), tf.constant(batch.weights)
    values, gradient = value_and_gradient(loss, labels, scores, weights)
    expected = value_and_gradient(loss, labels, tf.cast(scores, "float32"), weights)
    np.testing.assert_array_equal(values, expected[0])
    np.testing.assert_array_equal(gradient, tf.cast(expected[1], "float16"))
