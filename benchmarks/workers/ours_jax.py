"""Worker for this library on the JAX backend of Keras; a step is always compiled."""

import os
from typing import Any

from benchmarks.lists import Batch
from benchmarks.workers.protocol import Step, StepMaker, serve


def start() -> tuple[StepMaker, dict[str, str]]:
    """Imports the library; see ``protocol.serve``."""
    os.environ["KERAS_BACKEND"] = "jax"
    import jax
    import keras

    import tfrankloss
    from tfrankloss import losses

    def make_step(expression: str, batch: Batch, xla: bool) -> Step:
        del xla
        loss = eval(expression, {"losses": losses, "ops": keras.ops})
        labels, scores = jax.numpy.asarray(batch.labels), jax.numpy.asarray(batch.scores)

        @jax.jit
        @jax.value_and_grad
        def value_and_gradient(scores: Any, labels: Any) -> Any:
            return loss(labels, scores)

        return lambda: jax.block_until_ready(value_and_gradient(scores, labels))

    versions = {
        "tfrankloss": tfrankloss.__version__,
        "Keras": keras.__version__,
        "JAX": jax.__version__,
    }
    return make_step, versions


if __name__ == "__main__":
    serve("ours_jax", start)
