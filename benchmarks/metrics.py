"""Times the metrics, this library and its peers in one run.

    python -m benchmarks.metrics

First one update of eight metrics on a batch, as `fit` does it at every step, beside TF-Ranking and
keras-rs; then `tfrankloss.evaluate` on a whole test set beside pytrec_eval and scikit-learn. Rounds
are interleaved, so that a slow moment of the machine hits all libraries.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.client import Worker, WorkerError
from benchmarks.lists import Shape

BATCH_PEERS = ("tensorflow_ranking", "keras_rs")
SET_PEERS = ("pytrec_eval", "pytrec_eval_dictionaries", "scikit_learn")
TITLES = {
    "ours together": "tfrankloss, `RankingMetrics`",
    "ours single": "tfrankloss, eight metrics",
    "tensorflow_ranking single": "TF-Ranking",
    "keras_rs single": "keras-rs (no ARP: seven)",
    "ours": "tfrankloss",
    "pytrec_eval": "pytrec_eval",
    "pytrec_eval_dictionaries": "pytrec_eval, from ready dictionaries",
    "scikit_learn": "scikit-learn (`ndcg_score` alone)",
}
ROUND_SECONDS = 0.2
VALUE_TOLERANCE = 1e-4


def main() -> None:
    """Runs the comparisons that the command line asks for."""
    parser = argparse.ArgumentParser(prog="benchmarks.metrics", description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default="128x200,32x1000", help="batch x list")
    parser.add_argument("--queries", type=int, default=30_000, help="queries of the test set")
    parser.add_argument("--documents", type=int, default=120, help="mean documents per query")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds")
    parser.add_argument("--seed", type=int, default=0, help="seed of the data")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--update-readme", action="store_true", help="put the tables there")
    options = parser.parse_args()
    batches = measure_batches(options)
    sets = measure_sets(options)
    versions = {**batches.pop("versions"), **sets.pop("versions")}
    run = report.describe_run("benchmarks.metrics", versions)
    text = "\n".join([*report.run_lines(run), "", *batch_table(batches), "", *set_table(sets)])
    report.write(options.output, "metrics", run, [batches, sets], text)
    print("\n" + text)
    if options.update_readme:
        report.update_readme("metrics", text)


def measure_batches(options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of one update, by shape, by whether XLA compiles it, and by library and way."""
    workers = start("metrics", ("ours", *BATCH_PEERS))
    records: dict[str, Any] = {"versions": {name: w.versions for name, w in workers.items()}}
    for text in options.shapes.split(","):
        shape = Shape.parse(text)
        for xla in (False, True):
            # One worker holds one step: ours has two ways, hence one more worker.
            workers["ours together"] = start("metrics", ("ours",))["ours"]
            request = {"batch": shape.batch, "width": shape.width, "xla": xla, "seed": options.seed}
            steps = {}
            for name in (
                "ours together",
                "ours single",
                *(f"{peer} single" for peer in BATCH_PEERS),
            ):
                library, way = name.split()
                worker = workers.get(name, workers.get(library))
                if worker is not None:
                    steps[name] = worker, {**request, "way": way}
            results = interleave(steps, options.rounds)
            records[f"{shape}, {'with' if xla else 'without'} XLA"] = results
            print(shape, "XLA:" if xla else "plain:", _summary(results), flush=True)
            workers.pop("ours together").stop()
    stop(workers.values())
    return records


def measure_sets(options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds for a whole test set by library."""
    workers = start("evaluation", ("ours", *SET_PEERS))
    request = {
        "queries": options.queries,
        "mean_documents": options.documents,
        "seed": options.seed,
    }
    steps = {library: (worker, request) for library, worker in workers.items()}
    title = f"{options.queries:,} queries of {options.documents} documents on average"
    records = {title: interleave(steps, min(options.rounds, 5), once=True)}
    print(title, _summary(records[title]), flush=True)
    stop(workers.values())
    return {**records, "versions": {name: w.versions for name, w in workers.items()}}


def interleave(
    steps: dict[str, tuple[Worker, dict[str, Any]]], rounds: int, once: bool = False
) -> dict[str, Any]:
    """Prepares each step, then runs all of them round by round; medians, and who disagrees."""
    results: dict[str, Any] = {}
    for name, (worker, request) in steps.items():
        try:
            reply = worker.ask(request)
            first = worker.ask({"run": 1})["seconds"][0]
            count = 1 if once else int(np.clip(ROUND_SECONDS / first, 1, 100))
            results[name] = {"values": reply["results"], "count": count, "seconds": []}
        except WorkerError as error:
            results[name] = {"error": str(error)}
    for _ in range(rounds):
        for name, result in results.items():
            if "error" not in result:
                result["seconds"] += steps[name][0].ask({"run": result["count"]})["seconds"]
    for result in results.values():
        if "error" not in result:
            result["milliseconds"] = 1e3 * median(result.pop("seconds"))
            ours = next(iter(results.values()))["values"]
            result["differs"] = [
                key
                for key, value in result["values"].items()
                if abs(value - ours[key]) > VALUE_TOLERANCE * max(abs(ours[key]), 1)
            ]
    return results


def start(module: str, libraries: Iterable[str]) -> dict[str, Worker]:
    """The workers that came up; the others are named."""
    workers = {}
    for library in libraries:
        command = [f"benchmarks.workers.{module}", library]
        worker = Worker(library, 16.0, 600.0, command)
        try:
            worker.start()
            workers[library] = worker
        except WorkerError as error:
            print(f"{library} is not available: {error}", flush=True)
    return workers


def stop(workers: Iterable[Worker]) -> None:
    """Ends the processes."""
    for worker in workers:
        worker.stop()


def batch_table(records: dict[str, Any]) -> list[str]:
    """Milliseconds of one update, and the ratio to the fastest peer."""
    names = [name for name in TITLES if " " in name]
    missing = {"error": "not available"}
    rows = []
    for title, found in records.items():
        results = {name: found.get(name, missing) for name in names}
        peers = [results[n]["milliseconds"] for n in names[2:] if "milliseconds" in results[n]]
        ratio = min(peers) / results["ours together"]["milliseconds"] if peers else None
        rows.append([title, *(_cell(results[name]) for name in names), report.number(ratio)])
    header = ["one update of eight metrics, ms", *(TITLES[name] for name in names), "ratio"]
    return report.markdown_table(header, rows)


def set_table(records: dict[str, Any]) -> list[str]:
    """Milliseconds of one evaluation, and the ratio of pytrec_eval, from arrays, to ours."""
    names = ["ours", *SET_PEERS]
    rows = []
    for title, found in records.items():
        results = {name: found.get(name, {"error": "not available"}) for name in names}
        ratio = results["pytrec_eval"].get("milliseconds", np.nan) / results["ours"]["milliseconds"]
        rows.append([title, *(_cell(results[name]) for name in names), report.number(ratio)])
    header = ["five metrics of a test set, ms", *(TITLES[name] for name in names)]
    return report.markdown_table([*header, "pytrec_eval / ours"], rows)


def _summary(results: dict[str, Any]) -> str:
    return "; ".join(f"{name} {_cell(result)}" for name, result in results.items())


def _cell(result: dict[str, Any]) -> str:
    if "error" in result:
        return f"– ({result['error'][:60]})"
    differs = f" (differs: {', '.join(result['differs'])})" if result["differs"] else ""
    return report.number(result["milliseconds"]) + differs


if __name__ == "__main__":
    main()
