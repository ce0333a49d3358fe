"""Worker for boosted trees: ``python -m benchmarks.workers.boosting LIBRARY``.

``{"path", "objective"}`` reads the arrays of the splits of one fold (``train_features``,
``train_labels``, ``train_sizes``, ...) from an .npz file and answers with the scores of the test
documents.
"""

import json
import sys
from typing import Any

import numpy as np

from benchmarks.workers.protocol import reply_stream


def lightgbm(arrays: Any, objective: str) -> list[float]:
    """Trees of 15 leaves, stopped early by NDCG@10 on validation data."""
    import lightgbm

    def dataset(split: str, reference: Any = None) -> Any:
        return lightgbm.Dataset(
            arrays[f"{split}_features"],
            label=arrays[f"{split}_labels"],
            group=arrays[f"{split}_sizes"],
            reference=reference,
        )

    train = dataset("train")
    booster = lightgbm.train(
        {
            "objective": objective,
            "metric": "ndcg",
            "eval_at": [10],
            "learning_rate": 0.05,
            "num_leaves": 15,
            "verbosity": -1,
            "seed": 0,
        },
        train,
        num_boost_round=1000,
        valid_sets=[dataset("vali", train)],
        callbacks=[lightgbm.early_stopping(50, verbose=False)],
    )
    return booster.predict(arrays["test_features"]).tolist()


def main() -> None:
    """Answers requests until the input ends."""
    replies = reply_stream()
    import lightgbm as library

    print(json.dumps({"versions": {"lightgbm": library.__version__}}), file=replies, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            with np.load(request["path"]) as arrays:
                reply: dict[str, Any] = {"scores": lightgbm(arrays, request["objective"])}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
