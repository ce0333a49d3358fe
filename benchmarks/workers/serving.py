"""Worker for the latency of one query: ``python -m benchmarks.workers.serving LIBRARY``.

``{"path", "documents"}`` prepares a request of so many documents; ``{"run": n}`` answers with the
seconds of n requests. Every worker runs on one core.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

# Before the libraries start their threads.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import numpy as np

from benchmarks.workers.protocol import reply_stream

Request = Callable[[], Any]
FEATURES = 136
LAYERS = (1024, 512, 256, 1)
TREES, LEAVES = 500, 31


def ours(path: str, features: np.ndarray) -> Request:
    """The signature `rank` of an exported model."""
    import tensorflow as tf

    loaded = tf.saved_model.load(path)
    rank = loaded.signatures["rank"]

    def request() -> Any:
        # The loaded model must outlive its signature.
        return rank(features=tf.constant(features[None]))["order"].numpy(), loaded

    return request


def ours_products(path: str, features: np.ndarray) -> Request:
    """The matrix products of the same network in NumPy, and nothing else."""
    generator = np.random.default_rng(0)
    widths = (FEATURES, *LAYERS)
    weights = [
        generator.normal(size=shape).astype(np.float32)
        for shape in zip(widths[:-1], widths[1:], strict=True)
    ]

    def request() -> Any:
        x = features
        for weight in weights:
            x = x @ weight
        return x

    return request


def lightgbm(path: str, features: np.ndarray) -> Request:
    """`predict` of 500 trees of 31 leaves."""
    import lightgbm

    generator = np.random.default_rng(0)
    rows = generator.normal(size=(20_000, FEATURES)).astype(np.float32)
    labels = rows[:, :5].sum(axis=1) + generator.normal(size=len(rows))
    booster = lightgbm.train(
        {"objective": "l2", "num_leaves": LEAVES, "verbosity": -1, "num_threads": 1},
        lightgbm.Dataset(rows, label=labels),
        num_boost_round=TREES,
    )
    return lambda: booster.predict(features, num_threads=1)


LIBRARIES = {
    "ours": (ours, "tensorflow"),
    "ours_products": (ours_products, "numpy"),
    "lightgbm": (lightgbm, "lightgbm"),
}


def main() -> None:
    """Answers requests until the input ends."""
    replies = reply_stream()
    make, module = LIBRARIES[sys.argv[1]]
    versions = {module: importlib.import_module(module).__version__}
    print(json.dumps({"versions": versions}), file=replies, flush=True)
    request: Request = lambda: None  # noqa: E731
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if "run" in asked:
                reply: dict[str, Any] = {"seconds": [_time(request) for _ in range(asked["run"])]}
            else:
                generator = np.random.default_rng(1)
                features = generator.normal(size=(asked["documents"], FEATURES))
                request = make(asked["path"], features.astype(np.float32))
                request()
                reply = {}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(reply), file=replies, flush=True)


def _time(request: Request) -> float:
    start = time.perf_counter()
    request()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
