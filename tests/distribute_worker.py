"""One process of `test_distribute`: trains in the way of its argument, a JSON object, and saves.

`two_devices` trains with Keras' own `fit` under `MirroredStrategy`; the others with
`tfrankloss.train`, which joins the cluster of the environment.
"""

import json
import os
import signal
import sys
from typing import Any

import keras
import numpy as np

import tfrankloss
from tfrankloss import training
from tfrankloss.data import RankingData, synthetic
from tfrankloss.training import networks

BATCH_SIZE = 7  # which neither two devices nor two workers share evenly
OPTIONS: dict[str, Any] = {
    "loss": "softmax",
    "model_options": {"hidden": [6], "dropout": 0.0, "batch_norm_momentum": 0.9},
    "metrics": ["mrr", "ndcg@5"],
    "batch_size": BATCH_SIZE,
    "learning_rate": 0.02,
    "optimizer": "sgd",
    "patience": 10,
    "discard_without_relevant": False,
}


def splits() -> dict[str, RankingData]:
    """33 lists of 1 to 30 documents for 5 batches, of which the last one is not full."""
    return {
        "train": synthetic(33, 5, 8, seed=1),
        "vali": synthetic(9, 5, 8, seed=2),
        "test": synthetic(11, 5, 8, seed=3),
    }


def weights_of(model: keras.Model) -> dict[str, np.ndarray]:
    """The weights by name."""
    return {x.path.split("/", 1)[-1] + str(n): np.array(x) for n, x in enumerate(model.weights)}


def train(request: dict[str, Any]) -> None:
    """A run of `tfrankloss.train`, perhaps killed in its third epoch."""
    if request.get("kill"):
        fit = training.distribution.TensorFlowCluster.fit

        def killed(self: Any, model: Any, dataset: Any, after_batch: Any) -> float:
            counts.append(0)

            def after(number: int) -> None:
                if len(counts) == 3 and number == 2:
                    os.kill(os.getpid(), signal.SIGKILL)

            return fit(self, model, dataset, after)

        counts: list[int] = []
        training.distribution.TensorFlowCluster.fit = killed
    options = {**OPTIONS, **request["options"]}
    trained = tfrankloss.train(
        splits(),
        out=request["out"],
        resume=request.get("resume", False),
        distribute=request.get("distribute"),
        progress=request.get("progress", False),
        **options,
    )
    result = {
        "history": trained.history,
        "best_epoch": trained.best_epoch,
        "metrics": {name: x.means for name, x in trained.evaluations.items()},
        "per_query": {
            name: {metric: values.tolist() for metric, values in x.per_query.items()}
            for name, x in trained.evaluations.items()
        },
    }
    with open(request["result"], "w") as file:
        json.dump(result, file)


def two_devices(request: dict[str, Any]) -> None:
    """The same steps with `fit` on two devices; the model is that of `train`."""
    import tensorflow as tf

    processor = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        processor, [tf.config.LogicalDeviceConfiguration()] * 2
    )
    options = training.TrainingOptions(**{**OPTIONS, **request["options"]})
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    data = splits()
    with strategy.scope():
        model = networks._new_model(options, data)
        model.compile(
            model.optimizer,
            loss=model.loss,
            metrics=[tfrankloss.metrics.RankingMetrics(options.metrics)],
        )
        train, vali = (
            data[name].to_dataset(batch_size=BATCH_SIZE, repeat=name == "train", list_size=size)
            for name, size in (("train", None), ("vali", 32))
        )
    history = model.fit(train, steps_per_epoch=5, epochs=options.epochs, verbose=0).history
    measured = model.evaluate(vali, verbose=0, return_dict=True)
    model.save(request["model"])
    with open(request["result"], "w") as file:
        json.dump({"history": history, "metrics": {"vali": measured}}, file)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    if given.get("floatx"):
        keras.config.set_floatx(given["floatx"])
    {"train": train, "two_devices": two_devices}[given["way"]](given)
