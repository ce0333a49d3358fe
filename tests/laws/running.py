"""Ways to run a loss on TensorFlow, and the comparison of their results."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tests.laws.batches import Array, Batch
from tfrankloss.losses import RankingLoss


class Result(NamedTuple):
    """What a loss gives for a batch."""

    values: Array  # [batch], or a scalar for a loss that reduces
    gradient: Array  # as the scores


def value_and_gradient(loss: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
    """The loss and the gradient of its sum with respect to dense scores, as tensors."""
    with tf.GradientTape() as tape:
        tape.watch(y_pred)
        values = loss(y_true, y_pred, sample_weight)
    return values, tape.gradient(values, y_pred)


def run(loss: RankingLoss, batch: Batch, weighted: bool = True) -> Result:
    """The loss of a dense batch, eagerly."""
    labels, scores, weights = (tf.constant(x) for x in batch)
    return as_numpy(value_and_gradient(loss, labels, scores, weights if weighted else None))


def as_numpy(results: Any) -> Result:
    return Result(*(np.asarray(x) for x in results))


def traced(loss: RankingLoss, outputs: int, dynamic: bool, **options: Any) -> Callable[..., Any]:
    """`value_and_gradient` inside `tf.function`, for shapes that are known or not."""
    documents = tf.TensorSpec([None, None], tf.float32)
    scores = documents if outputs == 1 else tf.TensorSpec([None, None, outputs], tf.float32)
    return tf.function(
        lambda y_true, y_pred, sample_weight: value_and_gradient(
            loss, y_true, y_pred, sample_weight
        ),
        input_signature=[documents, scores, documents] if dynamic else None,
        autograph=False,
        **options,
    )


def assert_same(actual: Result, expected: Result, tolerance: float = 1e-5) -> None:
    """Compares list by list: an entry may be off by a share of the largest entry of its list."""
    for name, given, wanted in zip(Result._fields, actual, expected, strict=True):
        assert given.shape == wanted.shape, (name, given.shape, wanted.shape)
        given = np.asarray(given, dtype=np.float64).reshape(len(wanted), -1)
        wanted = np.asarray(wanted, dtype=np.float64).reshape(len(wanted), -1)
        allowed = tolerance * (1e-2 + np.abs(wanted).max(axis=1, keepdims=True))
        wrong = ~(np.abs(given - wanted) <= allowed)  # NaN is wrong
        assert not wrong.any(), (
            f"{name} of lists {sorted(set(np.nonzero(wrong)[0].tolist()))}:\n"
            f"actual\n{given[wrong.any(axis=1)]}\nexpected\n{wanted[wrong.any(axis=1)]}"
        )
