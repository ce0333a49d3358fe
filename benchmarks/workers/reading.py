"""Worker for reading a LETOR file: ``python -m benchmarks.workers.reading LIBRARY``.

``{"path"}`` reads the file once and answers with what it holds; ``{"run": n}`` answers with the
seconds of n readings; ``{"memory": 1}`` with the most memory that one reading takes beyond what the
process had before, and with the size of the arrays that it gives.
"""

import importlib
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.workers.protocol import reply_stream

Read = Callable[[str], dict[str, Any]]


def ours(path: str) -> dict[str, Any]:
    """`load_letor` without its cache."""
    from tfrankloss.data import load_letor

    data = load_letor(path, cache=False, progress=False)
    return {"features": data.features, "labels": data.labels, "splits": data.row_splits}


def ours_cached(path: str) -> dict[str, Any]:
    """`load_letor` with a cache that is there already."""
    from tfrankloss.data import load_letor

    data = load_letor(path, progress=False)
    return {"features": data.features, "labels": data.labels, "splits": data.row_splits}


def scikit_learn(path: str) -> dict[str, Any]:
    """`load_svmlight_file`, which gives a sparse matrix."""
    from sklearn.datasets import load_svmlight_file

    features, labels, queries = load_svmlight_file(path, query_id=True, dtype=np.float32)
    return {"features": features.data, "labels": labels, "splits": queries, "matrix": features}


def xgboost(path: str) -> dict[str, Any]:
    """A `DMatrix` of the file, which is all that XGBoost makes of it."""
    import xgboost

    matrix = xgboost.DMatrix(f"{path}?format=libsvm")
    return {"labels": matrix.get_label(), "matrix": matrix}


def tensorflow_datasets(path: str) -> dict[str, Any]:
    """The parser of the LETOR data sets in TensorFlow Datasets, into arrays."""
    from tensorflow_datasets.ranking.libsvm_ranking_parser import LibSVMRankingParser

    names = {index: f"feature_{index}" for index in range(1, 137)}
    labels, features = [], []
    with open(path) as file:
        parser = LibSVMRankingParser(file, names)
        for _, example in parser:
            labels.append(example["label"])
            columns = example.get("float_features")
            if columns is None:
                columns = np.stack([example[name] for name in names.values()], axis=1)
            features.append(np.asarray(columns, np.float32))
    return {"features": np.concatenate(features), "labels": np.concatenate(labels)}


LIBRARIES: dict[str, tuple[Read, str]] = {
    "ours": (ours, "tfrankloss"),
    "ours_cached": (ours_cached, "tfrankloss"),
    "scikit_learn": (scikit_learn, "sklearn"),
    "xgboost": (xgboost, "xgboost"),
    "tensorflow_datasets": (tensorflow_datasets, "tensorflow_datasets"),
}


def summary(result: dict[str, Any]) -> dict[str, float]:
    """What tells whether libraries read the same."""
    numbers = {"documents": len(result["labels"]), "labels": float(np.sum(result["labels"]))}
    if "features" in result:
        numbers["features"] = float(np.sum(result["features"], dtype=np.float64))
    return numbers


def memory(read: Read, path: str) -> dict[str, float]:
    """Megabytes at the peak of one reading beyond what was there before, and of its arrays."""
    status = Path("/proc/self/status")
    if not status.exists():
        raise RuntimeError("the peak of the memory is read from /proc, which is not here")

    def megabytes(field: str) -> float:
        found = re.search(rf"{field}:\s+(\d+) kB", status.read_text())
        return int(found[1]) / 1024 if found else float("nan")

    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = megabytes("VmRSS")
    result = read(path)
    arrays = sum(x.nbytes for x in result.values() if isinstance(x, np.ndarray)) / 1024**2
    return {"extra_megabytes": megabytes("VmHWM") - before, "array_megabytes": arrays}


def main() -> None:
    """Answers requests until the input ends."""
    replies = reply_stream()
    read, module = LIBRARIES[sys.argv[1]]
    version = getattr(importlib.import_module(module), "__version__", "")
    print(json.dumps({"versions": {module: str(version)}}), file=replies, flush=True)
    path = ""
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply: dict[str, Any]
            if "run" in request:
                seconds = []
                for _ in range(request["run"]):
                    start = time.perf_counter()
                    read(path)
                    seconds.append(time.perf_counter() - start)
                reply = {"seconds": seconds}
            elif "memory" in request:
                reply = memory(read, path)
            else:
                path = request["path"]
                reply = {"results": summary(read(path))}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
