"""One process that trains for `benchmarks.scale_steps`: an epoch for each line of its input."""

import json
import sys
import time
from typing import Any

import keras

from tfrankloss.data import synthetic
from tfrankloss.training import TrainingOptions, join_cluster, library_versions, networks


def main(request: dict[str, Any]) -> None:
    """Prints what each epoch took."""
    two_devices = request["way"] == "devices"
    cluster = join_cluster(request["engine"] if request["way"] == "processes" else None)
    strategy = _two_devices() if two_devices else None
    data = synthetic(request["queries"], request["features"], seed=0)
    plan = {"batch_size": request["batch_size"], "list_size": request["list_size"]}
    options = TrainingOptions(loss=request["loss"], **plan)
    with strategy.scope() if strategy else cluster.scope():
        model = networks._new_model(options, {"train": data})
    dataset = data.to_dataset(
        **plan,
        replicas=2 if two_devices else cluster.replicas,
        worker=cluster.worker,
        workers=cluster.workers,
    )
    cluster.fit(model, dataset, lambda number: None)
    _say(steps=int(dataset.cardinality()), weights=model.count_params(), **library_versions())
    for _ in sys.stdin:
        begin = time.perf_counter(), time.process_time()
        cluster.fit(model, dataset, lambda number: None)
        seconds = time.perf_counter() - begin[0]
        _say(seconds=seconds, processor_seconds=time.process_time() - begin[1])


def _two_devices() -> Any:
    """The processor as two devices, which `fit` uses."""
    import tensorflow as tf

    processor = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        processor, [tf.config.LogicalDeviceConfiguration()] * 2
    )
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def _say(**content: Any) -> None:
    content.setdefault("backend", keras.backend.backend())
    print("REPLY " + json.dumps(content), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
