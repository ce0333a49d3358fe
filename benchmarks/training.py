"""Times training the network of the LambdaLoss@K paper, this library beside TF-Ranking.

    python -m benchmarks.training

136 features, their logarithm, dense layers of 1024, 512 and 256 units with batch normalisation and
dropout, one score; Adam; 32 lists per batch, of very different lengths. Each way trains on the same
documents, one epoch per round, after a first one that is not timed, with `fit` on batches that
`tf.data` makes of arrays in memory:

- tfrankloss: `models.feedforward` on the batches of `to_dataset`, as `tfrankloss.train` does it.
- the ceiling: the same layers in Keras on single documents, as many per step as tfrankloss has on
  average, with the mean squared error: no list, no padding, no mask, no loss to speak of.
- TF-Ranking, padded: its `ModelBuilder` and `DNNScorer` on batches padded to the longest of their
  lists, with their mask; the same loss in its form.
- TF-Ranking, ragged: its tower on the documents of ragged batches, its loss with `ragged=True`.
  Its documentation has ragged losses, but no network with batch normalisation in front of them.

Only documents count, never padding. Rounds are interleaved; figures are medians, also of ratios.
Documents per second of a core say what the computation takes, whatever else the machine does.
"""

import argparse
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.client import Worker, WorkerError
from benchmarks.metrics import start, stop
from benchmarks.options import chosen

FEATURES = 136
BATCH_SIZE = 32
LOSSES = {"ndcg_loss2@5": "NDCG-Loss2@5", "softmax": "softmax", "approx_ndcg": "ApproxNDCG"}
OURS, CEILING = "ours lists", "ours flat"
TITLES = {
    OURS: "tfrankloss",
    CEILING: "ceiling: Keras, squared error",
    "tensorflow_ranking padded": "TF-Ranking, padded",
    "tensorflow_ranking ragged": "TF-Ranking, ragged",
}


def main() -> None:
    """Runs the comparison that the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.training", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--queries", type=int, default=600, help="lists to train on")
    parser.add_argument("--loss", default="ndcg_loss2@5", help=f"some of {', '.join(LOSSES)}")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds")
    parser.add_argument("--seed", type=int, default=0, help="seed of the data")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--update-readme", action="store_true", help="put the table there")
    options = parser.parse_args()
    losses = chosen(parser, "--loss", options.loss, LOSSES)
    workers = {}
    for name in TITLES:
        library = name.split()[0]
        # One worker holds one model, and each library has two ways.
        if started := start("training", (library,)):
            workers[name] = started[library]
    records = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "lists.npz")
        documents = make_lists(path, options.queries, options.seed)
        for loss in losses:
            records[loss] = measure(workers, path, loss, documents, options.rounds)
            print(LOSSES[loss], _summary(records[loss]), flush=True)
    stop(workers.values())
    versions = {name.split()[0]: worker.versions for name, worker in workers.items()}
    run = report.describe_run("benchmarks.training", versions)
    text = "\n".join([*report.run_lines(run), *training_table(records)])
    report.write(options.output, "training", run, [records], text)
    print("\n" + text)
    if options.update_readme:
        report.update_readme("training", text)


def make_lists(path: Path, queries: int, seed: int) -> int:
    """Writes the lists that `train` would keep, for all workers; returns how many documents."""
    from tfrankloss.data import synthetic

    data = synthetic(queries, FEATURES, seed=seed).discard_without_relevant()
    np.savez(path, features=data.features, labels=data.labels, row_splits=data.row_splits)
    return data.num_documents


def measure(
    workers: dict[str, Worker], path: Path, loss: str, documents: int, rounds: int
) -> dict[str, Any]:
    """Documents per second by way, with what its batches hold."""
    request = {"path": str(path), "loss": loss, "batch_size": BATCH_SIZE}
    results: dict[str, Any] = {}
    for name, worker in workers.items():
        try:
            reply = worker.ask({**request, "way": name.split()[1]})
            results[name] = {**reply["results"], "losses": [reply["loss"]]}
            results[name].update(seconds=[], processor_seconds=[])
        except WorkerError as error:
            results[name] = {"error": str(error)}
    for _ in range(rounds):
        for name, result in results.items():
            if "error" not in result:
                reply = workers[name].ask({"run": 1})
                result["seconds"] += reply["seconds"]
                result["processor_seconds"] += reply["processor_seconds"]
                result["losses"].append(reply["loss"])
    for result in results.values():
        if "error" not in result:
            for clock in ("second", "processor_second"):
                result[f"documents_per_{clock}"] = documents / median(result[f"{clock}s"])
    return results


def training_table(records: dict[str, Any]) -> list[str]:
    """Documents per second by way, and both ratios."""
    rows = []
    for loss, results in records.items():
        for name, title in TITLES.items():
            result = results.get(name, {"error": "not available"})
            if "error" in result:
                rows.append([LOSSES[loss], f"{title} – ({result['error'][:60]})", *["–"] * 5])
                continue
            rows.append(
                [
                    LOSSES[loss],
                    title,
                    f"{result['documents_per_second']:,.0f}",
                    f"{result['documents_per_processor_second']:,.0f}",
                    f"{result['padding']:.1%}",
                    _share(result, results.get(CEILING)),
                    report.number(_ratio(result, results.get(OURS))),
                ]
            )
    header = ["loss", "training", "documents per second", "per second of a core"]
    header += ["padding in the batches", "of the ceiling", "tfrankloss ÷ it"]
    return report.markdown_table(header, rows)


def _ratio(slow: dict[str, Any], fast: dict[str, Any] | None) -> float | None:
    """How many times faster: the median over the rounds, whose moments the two share."""
    if fast is None or "error" in fast:
        return None
    return median(np.divide(slow["seconds"], fast["seconds"]).tolist())


def _share(result: dict[str, Any], ceiling: dict[str, Any] | None) -> str:
    ratio = _ratio(result, ceiling)
    return "–" if ratio is None else f"{1 / ratio:.0%}"


def _summary(results: dict[str, Any]) -> str:
    return "; ".join(
        f"{name} {result.get('error') or format(result['documents_per_second'], ',.0f')}"
        for name, result in results.items()
    )


if __name__ == "__main__":
    main()
