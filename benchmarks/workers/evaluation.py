"""Worker for metrics of a whole test set: ``python -m benchmarks.workers.evaluation LIBRARY``.

``{"queries", "mean_documents", "seed"}`` makes the data and answers with the means of the metrics;
``{"run": n}`` answers with the seconds of n evaluations, from arrays to means.
"""

import functools
import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.lists import GRADE_SHARES
from benchmarks.workers.protocol import reply_stream

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


def make_data(queries: int, mean_documents: int, seed: int) -> Arrays:
    """Labels, scores without ties and query ids, query by query."""
    generator = np.random.default_rng(seed)
    sizes = np.clip(generator.lognormal(np.log(mean_documents) - 0.125, 0.5, queries), 5, 1000)
    ids = np.repeat(np.arange(queries), sizes.astype(int))
    labels = generator.choice(len(GRADE_SHARES), len(ids), p=GRADE_SHARES)
    labels[np.unique(ids, return_index=True)[1]] = 1  # libraries differ where nothing is relevant
    return labels, generator.permutation(len(ids)) / len(ids), ids


def ours(data: Arrays) -> Callable[[], dict[str, float]]:
    """`tfrankloss.evaluate` with linear gains, as trec_eval and scikit-learn have them."""
    from tfrankloss import evaluate, metrics

    wanted = [
        metrics.NDCG(10, gain="linear"),
        metrics.NDCG(gain="linear"),
        metrics.MRR(),
        metrics.MAP(),
        metrics.Precision(10),
    ]
    return lambda: evaluate(*data, metrics=wanted).means


def pytrec_eval(data: Arrays, dictionaries: bool = False) -> Callable[[], dict[str, float]]:
    """The library takes nested dictionaries; `dictionaries` makes them before the clock starts."""
    import pytrec_eval

    names = {
        "ndcg@10": "ndcg_cut_10",
        "ndcg": "ndcg",
        "mrr": "recip_rank",
        "map": "map",
        "precision@10": "P_10",
    }
    measures = {"ndcg_cut.10", "ndcg", "recip_rank", "map", "P.10"}

    def convert() -> tuple[dict[str, dict[str, int]], dict[str, dict[str, float]]]:
        qrels: dict[str, dict[str, int]] = {}
        run: dict[str, dict[str, float]] = {}
        for row, (label, score, query) in enumerate(zip(*(x.tolist() for x in data), strict=True)):
            qrels.setdefault(str(query), {})[str(row)] = label
            run.setdefault(str(query), {})[str(row)] = score
        return qrels, run

    made = convert() if dictionaries else None

    def evaluate() -> dict[str, float]:
        qrels, run = made or convert()
        results = pytrec_eval.RelevanceEvaluator(qrels, measures).evaluate(run).values()
        return {
            name: float(np.mean([result[theirs] for result in results]))
            for name, theirs in names.items()
        }

    return evaluate


def scikit_learn(data: Arrays) -> Callable[[], dict[str, float]]:
    """`ndcg_score` query by query; it has no other metric of these."""
    from sklearn.metrics import ndcg_score

    labels, scores, ids = data
    starts = np.unique(ids, return_index=True)[1][1:]
    pairs = list(zip(np.split(labels, starts), np.split(scores, starts), strict=True))

    def evaluate() -> dict[str, float]:
        values = [ndcg_score(y[None], s[None], k=10, ignore_ties=True) for y, s in pairs]
        return {"ndcg@10": float(np.mean(values))}

    return evaluate


LIBRARIES: dict[str, tuple[Callable[[Arrays], Callable[[], dict[str, float]]], str]] = {
    "ours": (ours, "tfrankloss"),
    "pytrec_eval": (pytrec_eval, "pytrec_eval"),
    "pytrec_eval_dictionaries": (
        functools.partial(pytrec_eval, dictionaries=True),
        "pytrec_eval",
    ),
    "scikit_learn": (scikit_learn, "sklearn"),
}


def main() -> None:
    """Answers requests until the input ends."""
    replies = reply_stream()
    make, module = LIBRARIES[sys.argv[1]]
    version = getattr(importlib.import_module(module), "__version__", "")
    print(json.dumps({"versions": {module: str(version)}}), file=replies, flush=True)
    evaluate: Callable[[], dict[str, float]] = dict
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "run" in request:
                seconds = []
                for _ in range(request["run"]):
                    start = time.perf_counter()
                    evaluate()
                    seconds.append(time.perf_counter() - start)
                reply: dict[str, Any] = {"seconds": seconds}
            else:
                evaluate = make(make_data(**request))
                reply = {"results": evaluate()}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
