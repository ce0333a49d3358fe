"""Worker for training a network: ``python -m benchmarks.workers.training LIBRARY``.

``{"path", "way", "loss", "batch_size"}`` makes network and batches, trains on all documents once,
so that all shapes are known, and answers with what the network holds and how much of its batches is
padding; ``{"run": n}`` answers with the seconds and the processor's seconds of n further epochs and
with the loss of the last.
"""

import importlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.workers.protocol import describe, reply_stream

HIDDEN = (1024, 512, 256)
DROPOUT = (0.5, 0.5, 0.8)
MOMENTUM = 0.999
LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class Lists:
    """The lists to train on: one document per row, list by list."""

    features: np.ndarray
    labels: np.ndarray
    row_splits: np.ndarray
    batch_size: int

    @staticmethod
    def read(path: str, batch_size: int) -> "Lists":
        """Reads what the driver wrote."""
        with np.load(Path(path)) as arrays:
            return Lists(
                arrays["features"], arrays["labels"], arrays["row_splits"], batch_size=batch_size
            )

    @property
    def documents(self) -> int:
        """Documents of all lists."""
        return len(self.labels)

    @property
    def queries(self) -> int:
        """Number of lists."""
        return len(self.row_splits) - 1


@dataclass(frozen=True)
class Training:
    """A compiled model, and the function that makes the batches of an epoch from its number."""

    model: Any
    batches: Callable[[int], Any]
    rows: Callable[[Any, Any], int]  # of a batch of inputs and labels, with padding

    def epoch(self, number: int) -> float:
        """Trains on all documents once and returns the loss."""
        history = self.model.fit(
            self.batches(number), epochs=number + 1, initial_epoch=number, shuffle=False, verbose=0
        )
        return float(history.history["loss"][-1])

    def summary(self, documents: int) -> dict[str, float]:
        """Parameters of the network, steps of an epoch, and the share of padding in their rows."""
        rows = [self.rows(inputs, labels) for inputs, labels in self.batches(0)]
        return {
            "parameters": self.model.count_params(),
            "steps": len(rows),
            "padding": 1 - documents / sum(rows),
        }


def ours_lists(lists: Lists, loss: str) -> Training:
    """What `tfrankloss.train` does in an epoch."""
    import keras

    from tfrankloss import losses, models
    from tfrankloss.data import RankingData

    ids = np.arange(lists.queries)
    data = RankingData(lists.features, lists.labels, lists.row_splits, ids)
    model = models.feedforward(lists.features.shape[1])
    optimizer = keras.optimizers.Adam(LEARNING_RATE)
    model.compile(optimizer=optimizer, loss=losses.get(loss), jit_compile=False)
    return Training(
        model,
        lambda epoch: data.to_dataset(batch_size=lists.batch_size, seed=0, first_epoch=epoch),
        lambda inputs, labels: int(np.prod(labels.shape)),
    )


def ours_flat(lists: Lists, loss: str) -> Training:
    """The ceiling: the same layers on single documents, with no list, mask or ranking loss."""
    import keras
    import tensorflow as tf

    from tfrankloss.data import Log1p

    layers: list[Any] = [Log1p(), keras.layers.BatchNormalization(momentum=MOMENTUM)]
    for units, rate in zip(HIDDEN, DROPOUT, strict=True):
        layers += [
            keras.layers.Dense(units),
            keras.layers.BatchNormalization(momentum=MOMENTUM),
            keras.layers.Activation("relu"),
            keras.layers.Dropout(rate),
        ]
    layers.append(keras.layers.Dense(1))
    model = keras.Sequential([keras.Input((lists.features.shape[1],)), *layers])
    optimizer = keras.optimizers.Adam(LEARNING_RATE)
    model.compile(optimizer=optimizer, loss="mean_squared_error", jit_compile=False)
    features, labels = tf.constant(lists.features), tf.constant(lists.labels[:, None])
    steps = -(-lists.queries // lists.batch_size)
    size = -(-lists.documents // steps)
    # Whole slices: what a document more costs in the input must not lower the ceiling.
    dataset = tf.data.Dataset.range(0, lists.documents, size)
    dataset = dataset.map(lambda row: (features[row : row + size], labels[row : row + size]))
    dataset = _prefetched(dataset)
    return Training(model, lambda epoch: dataset, lambda inputs, labels: len(labels))


def tensorflow_ranking_padded(lists: Lists, loss: str) -> Training:
    """TF-Ranking's `ModelBuilder` and `DNNScorer` on batches padded to their longest list."""
    import tensorflow as tf
    import tensorflow_ranking as tfr

    num_features = lists.features.shape[1]
    builder = tfr.keras.model.ModelBuilder(
        input_creator=lambda: ({}, {"features": tf.keras.Input((None, num_features))}),
        preprocessor=lambda context, documents, mask: (
            context,
            {name: _log1p(values) for name, values in documents.items()},
        ),
        scorer=tfr.keras.model.DNNScorer(**_tower_arguments()),
        mask_feature_name="mask",
    )
    model = builder.build()
    model.compile(
        optimizer=tf.keras.optimizers.Adam(LEARNING_RATE), loss=_tensorflow_ranking_loss(loss)
    )

    def pad(features: Any, labels: Any) -> tuple[dict[str, Any], Any]:
        dense = labels.to_tensor(-1.0)
        return {"features": features.to_tensor(), "mask": dense >= 0}, dense

    dataset = _prefetched(_ragged_batches(lists).map(pad))
    return Training(model, lambda epoch: dataset, lambda inputs, labels: int(np.prod(labels.shape)))


def tensorflow_ranking_ragged(lists: Lists, loss: str) -> Training:
    """TF-Ranking's tower on the documents of ragged batches; its loss pads their scores."""
    import tensorflow as tf
    import tensorflow_ranking as tfr

    features = tf.keras.Input((None, lists.features.shape[1]), ragged=True)
    tower = tfr.keras.layers.create_tower(**_tower_arguments())
    scores = tower(_log1p(features.flat_values))
    model = tf.keras.Model(features, features.with_flat_values(scores[:, 0]))
    model.compile(
        optimizer=tf.keras.optimizers.Adam(LEARNING_RATE),
        loss=_tensorflow_ranking_loss(loss, ragged=True),
    )
    dataset = _prefetched(_ragged_batches(lists))
    return Training(model, lambda epoch: dataset, lambda inputs, labels: len(labels.flat_values))


def _tower_arguments() -> dict[str, Any]:
    """The same network; a tower of TF-Ranking takes one rate of dropout, which costs the same."""
    import tensorflow as tf

    return {
        "hidden_layer_dims": list(HIDDEN),
        "output_units": 1,
        "activation": tf.nn.relu,
        "input_batch_norm": True,
        "batch_norm_moment": MOMENTUM,
        "dropout": DROPOUT[0],
    }


def _log1p(features: Any) -> Any:
    import tensorflow as tf

    return tf.sign(features) * tf.math.log1p(tf.abs(features))


def _tensorflow_ranking_loss(name: str, ragged: bool = False) -> Any:
    from tensorflow_ranking.python.keras import losses

    if name == "ndcg_loss2@5":
        weight = losses.NDCGLambdaWeightV2(topn=5)
        return losses.PairwiseLogisticLoss(lambda_weight=weight, ragged=ragged)
    if name == "approx_ndcg":
        return losses.ApproxNDCGLoss(ragged=ragged)
    return losses.SoftmaxLoss(ragged=ragged)


def _ragged_batches(lists: Lists) -> Any:
    """Shuffled batches of whole lists as ragged tensors, as TF-Ranking's tutorials batch them."""
    import tensorflow as tf

    features = tf.RaggedTensor.from_row_splits(lists.features, lists.row_splits)
    labels = tf.RaggedTensor.from_row_splits(lists.labels, lists.row_splits)
    dataset = tf.data.Dataset.from_tensor_slices((features, labels))
    return dataset.shuffle(lists.queries, seed=0).ragged_batch(lists.batch_size)


def _prefetched(dataset: Any) -> Any:
    """Prepares two batches ahead.

    Not as many as TensorFlow finds best: its tuning thread sleeps ever longer, and now and then an
    epoch ends only when it wakes, after up to twice the time that the epoch took.
    """
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.prefetch(2).with_options(options)


WAYS: dict[str, Callable[[Lists, str], Training]] = {
    "ours lists": ours_lists,
    "ours flat": ours_flat,
    "tensorflow_ranking padded": tensorflow_ranking_padded,
    "tensorflow_ranking ragged": tensorflow_ranking_ragged,
}
MODULES = {"ours": "tfrankloss", "tensorflow_ranking": "tensorflow_ranking"}


def main() -> None:
    """Answers requests until the input ends."""
    replies = reply_stream()
    library = sys.argv[1]
    import tensorflow as tf

    module = importlib.import_module(MODULES[library])
    versions = {MODULES[library]: str(module.__version__), "TensorFlow": tf.__version__}
    print(json.dumps({"versions": versions}), file=replies, flush=True)
    training: Training | None = None
    epochs = 0
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply: dict[str, Any]
            if "run" in request:
                assert training is not None
                seconds, processor_seconds, loss = [], [], 0.0
                for _ in range(request["run"]):
                    start, processor_start = time.perf_counter(), time.process_time()
                    loss = training.epoch(epochs)
                    seconds.append(time.perf_counter() - start)
                    processor_seconds.append(time.process_time() - processor_start)
                    epochs += 1
                reply = {"seconds": seconds, "processor_seconds": processor_seconds, "loss": loss}
            else:
                tf.keras.backend.clear_session()
                lists = Lists.read(request["path"], request["batch_size"])
                training = WAYS[f"{library} {request['way']}"](lists, request["loss"])
                reply = {"results": training.summary(lists.documents), "loss": training.epoch(0)}
                epochs = 1
        except Exception as error:
            reply = {"error": describe(error)}
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
