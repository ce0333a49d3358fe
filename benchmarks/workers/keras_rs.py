"""Worker for keras-rs, on the TensorFlow backend of Keras."""

import os

from benchmarks.lists import Batch
from benchmarks.workers.protocol import Step, StepMaker, serve


def start() -> tuple[StepMaker, dict[str, str]]:
    """Imports the library; see ``protocol.serve``."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import keras
    import keras_rs
    import tensorflow as tf

    from benchmarks.workers.tensorflow_step import tensorflow_step

    names = {"keras_rs": keras_rs, "ops": keras.ops}

    def make_step(expression: str, batch: Batch, xla: bool) -> Step:
        return tensorflow_step(eval(expression, names), batch, xla)

    versions = {
        "keras-rs": keras_rs.__version__,
        "Keras": keras.__version__,
        "TensorFlow": tf.__version__,
    }
    return make_step, versions


if __name__ == "__main__":
    serve("keras_rs", start)
