"""Worker for the metrics of one library: ``python -m benchmarks.workers.metrics LIBRARY``.

One JSON object per line in, one per line out: ``{"batch", "width", "xla", "seed", "way"}`` prepares
the update of all metrics (``together`` as one metric, or each as a metric of its own, ``single``)
and answers with the results by name; ``{"run": n}`` answers with the seconds of n updates.
"""

import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.lists import Shape, make_batch
from benchmarks.workers.protocol import reply_stream

NAMES = ("ndcg@1", "ndcg@5", "ndcg@10", "mrr", "map@10", "precision@10", "recall@10", "arp")


def ours(way: str) -> dict[str, Any]:
    """The metrics of this library; under the name of all if they are one."""
    from tfrankloss import metrics

    if way == "together":
        return {"all": metrics.RankingMetrics(list(NAMES))}
    return {name: metrics.get(name) for name in NAMES}


def tensorflow_ranking(way: str) -> dict[str, Any]:
    """TF-Ranking's metrics; the gains are those of ours, the divisor of MAP@10 is not."""
    from tensorflow_ranking.python.keras import metrics

    makers = {
        "ndcg": metrics.NDCGMetric,
        "mrr": metrics.MRRMetric,
        "map": metrics.MeanAveragePrecisionMetric,
        "precision": metrics.PrecisionMetric,
        "recall": metrics.RecallMetric,
        "arp": metrics.ARPMetric,
    }
    return _by_name(makers, "topn")


def keras_rs(way: str) -> dict[str, Any]:
    """The metrics of keras-rs, which has no ARP."""
    from keras_rs import metrics

    makers = {
        "ndcg": metrics.NDCG,
        "mrr": metrics.MeanReciprocalRank,
        "map": metrics.MeanAveragePrecision,
        "precision": metrics.PrecisionAtK,
        "recall": metrics.RecallAtK,
    }
    return _by_name(makers, "k")


def _by_name(makers: dict[str, Any], cutoff: str) -> dict[str, Any]:
    found = {}
    for name in NAMES:
        kind, _, topn = name.partition("@")
        if kind in makers:
            found[name] = makers[kind](**({cutoff: int(topn)} if topn else {}))
    return found


LIBRARIES: dict[str, tuple[Callable[[str], dict[str, Any]], str]] = {
    "ours": (ours, "tfrankloss"),
    "tensorflow_ranking": (tensorflow_ranking, "tensorflow_ranking"),
    "keras_rs": (keras_rs, "keras_rs"),
}


def main() -> None:
    """Answers requests until the input ends."""
    replies = reply_stream()
    make, module = LIBRARIES[sys.argv[1]]
    import tensorflow as tf

    versions = {
        module: str(getattr(importlib.import_module(module), "__version__", "")),
        "TensorFlow": tf.__version__,
    }
    print(json.dumps({"versions": versions}), file=replies, flush=True)
    update: Callable[[], None] = lambda: None  # noqa: E731
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "run" in request:
                reply: dict[str, Any] = {"seconds": [_time(update) for _ in range(request["run"])]}
            else:
                update, reply = _prepare(make(request["way"]), request)
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(reply), file=replies, flush=True)


def _prepare(
    metrics: dict[str, Any], request: dict[str, Any]
) -> tuple[Callable[[], None], dict[str, Any]]:
    import tensorflow as tf

    batch = make_batch(Shape(request["batch"], request["width"]), request["seed"])
    labels, scores = tf.constant(batch.labels), tf.constant(batch.scores)

    @tf.function(jit_compile=request["xla"])
    def step(labels: Any, scores: Any) -> Any:
        for metric in metrics.values():
            metric.update_state(labels, scores)
        return metrics[next(iter(metrics))].variables[0] + 0.0

    def update() -> None:
        step(labels, scores).numpy()

    update()
    results: dict[str, float] = {}
    for name, metric in metrics.items():
        value = metric.result()
        parts = value if isinstance(value, dict) else {name: value}
        results.update({key: float(part) for key, part in parts.items()})
    return update, {"results": results}


def _time(update: Callable[[], None]) -> float:
    start = time.perf_counter()
    update()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
