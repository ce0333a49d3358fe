"""Worker for TF-Ranking, on the last TensorFlow that it imports on."""

from collections.abc import Callable
from typing import Any

from benchmarks.lists import Batch
from benchmarks.workers.protocol import Step, StepMaker, serve

LossFunction = Callable[[Any, Any], Any]


def start() -> tuple[StepMaker, dict[str, str]]:
    """Imports the library; see ``protocol.serve``."""
    import tensorflow as tf
    import tensorflow_ranking as tfr

    from benchmarks.workers.tensorflow_step import tensorflow_step

    def with_normalized_labels(loss: LossFunction) -> LossFunction:
        """Divides the labels of each list by their sum before the loss; padding stays padding."""

        def normalized_loss(labels: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
            valid = labels >= 0
            total = tf.reduce_sum(tf.where(valid, labels, 0.0), axis=1, keepdims=True)
            return loss(tf.where(valid, labels / total, labels), scores)

        return normalized_loss

    def outside_keras(loss: Callable[[Any, Any, dict], Any]) -> LossFunction:
        """A loss that is offered only in the older interface ``loss(labels, scores, features)``."""
        return lambda labels, scores: loss(labels, scores, {})

    names = {
        "tf": tf,
        "tfr": tfr,
        "with_normalized_labels": with_normalized_labels,
        "outside_keras": outside_keras,
    }

    def make_step(expression: str, batch: Batch, xla: bool) -> Step:
        return tensorflow_step(eval(expression, names), batch, xla)

    return make_step, {"TF-Ranking": "0.5.5", "TensorFlow": tf.__version__}


if __name__ == "__main__":
    serve("tensorflow_ranking", start)
