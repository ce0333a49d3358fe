"""Worker for this library, on the TensorFlow backend of Keras."""

import os

from benchmarks.lists import Batch
from benchmarks.workers.protocol import Step, StepMaker, serve


def start() -> tuple[StepMaker, dict[str, str]]:
    """Imports the library; see ``protocol.serve``."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import keras
    import tensorflow as tf

    import tfrankloss
    from benchmarks.workers.tensorflow_step import tensorflow_step
    from tfrankloss import losses

    def make_step(expression: str, batch: Batch, xla: bool) -> Step:
        return tensorflow_step(eval(expression, {"losses": losses, "ops": keras.ops}), batch, xla)

    versions = {
        "tfrankloss": str(getattr(tfrankloss, "__version__", "development")),
        "Keras": keras.__version__,
        "TensorFlow": tf.__version__,
    }
    return make_step, versions


if __name__ == "__main__":
    serve("ours", start)
