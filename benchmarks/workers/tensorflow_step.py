"""Forward and gradient in one ``tf.function``, for the libraries that run on TensorFlow."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from benchmarks.lists import Batch
from benchmarks.workers.protocol import Step


def tensorflow_step(loss: Callable[[Any, Any], Any], batch: Batch, xla: bool) -> Step:
    """A step for ``loss(labels, scores)``; ``xla`` compiles the whole of it."""
    labels = tf.constant(batch.labels)
    scores = tf.constant(batch.scores)

    @tf.function(jit_compile=xla)
    def value_and_gradient(labels: tf.Tensor, scores: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(scores)
            value = loss(labels, scores)
        return value, tape.gradient(value, scores)

    def step() -> tuple[Any, Any]:
        value, gradient = value_and_gradient(labels, scores)
        return value.numpy(), gradient.numpy()

    return step
