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
from tfrankloss.data import RankingData, open_records, synthetic
from tfrankloss.training import networks

EPOCHS, BATCHES = 4, 5
OPTIONS: dict[str, Any] = {
    "loss": "softmax",
    "model_options": {"hidden": [6], "dropout": 0.0, "batch_norm_momentum": 0.9},
    "metrics": ["mrr", "ndcg@5"],
    "batch_size": 7,  # which neither two devices nor two workers share evenly
    "list_size": 32,
    "optimizer": "adagrad",  # Adam would make steps of the rounding errors that are gradients of 0
    "learning_rate": 0.1,
    "epochs": EPOCHS,
    "patience": 10,
    "discard_without_relevant": False,
}


def splits() -> dict[str, RankingData]:
    """33 lists of different lengths for 5 batches, of which the last one is not full."""
    return {
        "train": synthetic(33, 5, 8, seed=1),
        "vali": synthetic(9, 5, 8, seed=2),
        "test": synthetic(11, 5, 8, seed=3),
    }


def start_the_same() -> None:
    """New models get weights from NumPy: backends draw different ones."""
    new_model = networks._new_model

    def make(*arguments: Any) -> keras.Model:
        model = new_model(*arguments)
        generator = np.random.default_rng(0)
        for layer in model.layers:
            if isinstance(layer, keras.layers.Dense):
                layer.set_weights([0.5 * generator.normal(size=x.shape) for x in layer.weights])
        return model

    networks._new_model = make


def kill_in_mid_epoch(cluster: type) -> None:
    """This process ends behind the second batch of the third epoch."""
    fit, begun = cluster.fit, []

    def fit_until_killed(self: Any, model: Any, dataset: Any, after_batch: Any) -> float:
        begun.append(model)

        def after(number: int) -> None:
            if len(begun) == 3 and number == 2:
                os.kill(os.getpid(), signal.SIGKILL)

        return fit(self, model, dataset, after)

    cluster.fit = fit_until_killed


def split_processor(devices: int) -> None:
    """Makes several devices of the processor, for TensorFlow; `XLA_FLAGS` tell JAX."""
    import tensorflow as tf
    from tensorflow.python.distribute import collective_all_reduce_strategy

    processor = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        processor, [tf.config.LogicalDeviceConfiguration()] * devices
    )

    def all_of_host(self: Any, resolver: Any, host: str) -> tuple[tuple[str, ...], str]:
        return tuple(f"{host}/device:CPU:{number}" for number in range(devices)), "CPU"

    # In a cluster TensorFlow takes all GPUs of a host, but only one of its processors.
    extended = collective_all_reduce_strategy.CollectiveAllReduceExtended
    extended._initialize_local_devices = all_of_host


def train(request: dict[str, Any]) -> dict[str, Any]:
    """A run of `tfrankloss.train`."""
    if "devices" in request:
        split_processor(request["devices"])
    if request.get("kill"):
        kill_in_mid_epoch(type(training.join_cluster(request["distribute"])))
    given: dict[str, Any] = splits()
    if "records" in request:
        given["train"] = open_records(request["records"])
    trained = tfrankloss.train(
        given,
        out=request["out"],
        resume=request.get("resume", False),
        distribute=request.get("distribute"),
        **{**OPTIONS, **request.get("options", {})},
    )
    return {
        "history": trained.history,
        "best_epoch": trained.best_epoch,
        "means": {name: found.means for name, found in trained.evaluations.items()},
        "per_query": {
            name: {metric: values.tolist() for metric, values in found.per_query.items()}
            for name, found in trained.evaluations.items()
        },
        "scores": trained.model.predict(next(iter(splits()["vali"].to_dataset()))[0], verbose=0)
        .astype(float)
        .tolist(),
    }


def two_devices(request: dict[str, Any]) -> dict[str, Any]:
    """The same steps with `fit` on two devices."""
    import tensorflow as tf

    split_processor(2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    data = splits()
    options = training.TrainingOptions(**OPTIONS)
    plan = {name: OPTIONS[name] for name in ("batch_size", "list_size")}
    with strategy.scope():
        model = networks._new_model(options, data)
        model.compile(
            model.optimizer,
            loss=model.loss,
            metrics=[tfrankloss.metrics.RankingMetrics(options.metrics)],
        )
        learnt = data["train"].to_dataset(repeat=True, **plan)
        measured = data["vali"].to_dataset(**plan)
    history = model.fit(learnt, steps_per_epoch=BATCHES, epochs=EPOCHS, verbose=0).history
    model.save(request["model"])
    means = model.evaluate(measured, verbose=0, return_dict=True)
    return {"history": history, "means": {"vali": means}, "differences": differences(strategy)}


def differences(strategy: Any) -> dict[str, float]:
    """How far a step on very unequal replicas is from that on one device.

    The first has five lists, the second two, of which one is empty; or an empty one alone.
    """
    import tensorflow as tf

    generator = np.random.default_rng(5)
    features = generator.normal(size=(7, 9, 3))
    labels = generator.integers(0, 3, (7, 9)).astype(float)
    labels[np.arange(9) >= generator.integers(2, 9, (7, 1))] = -1.0
    labels[6] = -1.0
    weights = generator.uniform(1.0, 3.0, 7)
    found = {}

    def compute(model: Any, loss: Any, *batch: Any) -> tuple[Any, Any, Any]:
        features, labels, weights = batch
        with tf.GradientTape() as tape:
            scores = model({"features": features, "mask": labels >= 0}, training=True)
            value = loss(labels, scores, weights)
        return value, tape.gradient(value, model.trainable_variables), scores

    for name, reduction, first in (
        ("weighted mean", "mean", 5),
        ("sum, and nothing on one replica", "sum", 6),
    ):
        loss = tfrankloss.losses.SoftmaxLoss(reduction=reduction)
        keras.utils.set_random_seed(1)
        alone = tfrankloss.models.feedforward(3, hidden=(4,), dropout=0.0, transform=None)
        with strategy.scope():
            shared = tfrankloss.models.feedforward(3, hidden=(4,), dropout=0.0, transform=None)
        shared.set_weights(alone.get_weights())
        batch = [tf.constant(x) for x in (features, labels, weights)]
        value, gradients, scores = compute(alone, loss, *batch)

        def of_replica(parts: Any, model: Any = shared, loss: Any = loss) -> tuple[Any, Any, Any]:
            value, gradients, scores = compute(model, loss, *parts)
            context = tf.distribute.get_replica_context()
            return value, context.all_reduce("SUM", gradients), scores

        @tf.function
        def step(parts: Any, of_replica: Any = of_replica) -> Any:
            return strategy.run(of_replica, args=(parts,))

        def part(context: Any, first: int = first, batch: Any = batch) -> Any:
            return [
                x[:first] if context.replica_id_in_sync_group == 0 else x[first:] for x in batch
            ]

        values, sums, both = step(strategy.experimental_distribute_values_from_function(part))
        pairs = [(2 * x, value) for x in values.values]  # each has its share of the value
        pairs += [
            (x, expected)
            for total, expected in zip(sums, gradients, strict=True)
            for x in total.values
        ]
        pairs += [(np.concatenate([np.array(x) for x in both.values]), scores)]
        pairs += list(zip(shared.get_weights(), alone.get_weights(), strict=True))
        found[name] = max(float(np.abs(np.subtract(x, y)).max()) for x, y in pairs)
    return found


def main(request: dict[str, Any]) -> None:
    """Trains and keeps the result."""
    if "floatx" in request:
        keras.config.set_floatx(request["floatx"])
    start_the_same()
    result = {"train": train, "two_devices": two_devices}[request["way"]](request)
    with open(request["result"], "w") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
