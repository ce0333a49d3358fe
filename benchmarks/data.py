"""Times reading a LETOR file beside peers, and the batches beside a network that eats them.

    python -m benchmarks.data

The file is made first: 200,000 documents of 136 features, dense, and with 30 % of them filled.
Rounds are interleaved. XGBoost gives no arrays but a matrix of its own; scikit-learn a sparse one.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.client import Worker, WorkerError
from benchmarks.metrics import start, stop
from benchmarks.options import chosen

PEERS = ("scikit_learn", "xgboost", "tensorflow_datasets")
TITLES = {
    "ours": "tfrankloss",
    "ours_cached": "tfrankloss, cached",
    "scikit_learn": "scikit-learn",
    "xgboost": "XGBoost",
    "tensorflow_datasets": "TensorFlow Datasets",
}
FEATURES = 136
SECONDS_PER_LIBRARY = 10.0


def main() -> None:
    """Runs the comparisons that the command line asks for."""
    parser = argparse.ArgumentParser(prog="benchmarks.data", description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=200_000, help="rows of the file")
    parser.add_argument("--queries", type=int, default=3000, help="queries of the batches")
    parser.add_argument("--peers", default=",".join(PEERS), help="libraries to compare with")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds")
    parser.add_argument("--seed", type=int, default=0, help="seed of the data")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--update-readme", action="store_true", help="put the tables there")
    options = parser.parse_args()
    peers = chosen(parser, "--peers", options.peers, PEERS)
    workers = start("reading", ("ours", "ours_cached", *peers))
    records = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, filled in (("dense", 1.0), ("30 % filled", 0.3)):
            path = Path(folder, f"{kind[:2]}.txt")
            make_file(path, options.documents, filled, options.seed)
            title = f"{kind}, {path.stat().st_size / 1e6:.0f} MB"
            records[title] = measure_reading(workers, path, options.rounds)
            records[title]["megabytes"] = path.stat().st_size / 1e6
            print(title, records[title], flush=True)
    stop(workers.values())
    batches = measure_batches(options)
    run = report.describe_run("benchmarks.data", {n: w.versions for n, w in workers.items()})
    lines = [*report.run_lines(run), "", *reading_table(records), "", *memory_table(records)]
    text = "\n".join([*lines, "", *batch_lines(batches)])
    report.write(options.output, "data", run, [records, batches], text)
    print("\n" + text)
    if options.update_readme:
        report.update_readme("data", text)


def make_file(path: Path, documents: int, filled: float, seed: int) -> None:
    """Writes numbers as Web30K has them: many whole ones, others with six digits."""
    generator = np.random.default_rng(seed)
    with open(path, "w") as file:
        for start in range(0, documents, 2000):
            count = min(2000, documents - start)
            values = np.round(generator.lognormal(1, 2, (count, FEATURES)), 6)
            values[:, ::2] = np.round(values[:, ::2])
            kept = generator.random((count, FEATURES)) < filled
            labels = generator.integers(0, 5, count)
            for row in range(count):
                indices = np.flatnonzero(kept[row]).tolist()
                pairs = " ".join(f"{i + 1}:{values[row, i]:.12g}" for i in indices)
                file.write(f"{labels[row]} qid:{(start + row) // 120} {pairs}\n")


def measure_reading(workers: dict[str, Worker], path: Path, rounds: int) -> dict[str, Any]:
    """Milliseconds and megabytes by library; what takes long sits out further rounds."""
    results: dict[str, Any] = {}
    for name, worker in workers.items():
        try:
            results[name] = {"values": worker.ask({"path": str(path)})["results"], "seconds": []}
        except WorkerError as error:
            results[name] = {"error": str(error)}
    for _ in range(rounds):
        for name, result in results.items():
            if "error" not in result and sum(result["seconds"]) < SECONDS_PER_LIBRARY:
                result["seconds"] += workers[name].ask({"run": 1})["seconds"]
    for name, result in results.items():
        if "error" not in result:
            result["milliseconds"] = 1e3 * median(result["seconds"])
            result["memory"] = workers[name].ask({"memory": 1})
            ours = results["ours"]["values"]
            result["differs"] = [
                key
                for key, value in result["values"].items()
                if abs(value - ours[key]) > 1e-5 * abs(ours[key])
            ]
    return results


def measure_batches(options: argparse.Namespace) -> dict[str, float]:
    """Documents per second: what the dataset delivers, and what a network trains on."""
    import keras

    from tfrankloss import losses
    from tfrankloss.data import synthetic

    data = synthetic(options.queries, FEATURES, seed=options.seed)
    inputs = {
        "features": keras.Input((None, FEATURES), name="features"),
        "mask": keras.Input((None,), dtype="bool", name="mask"),
    }
    layer = inputs["features"]
    for units in (1024, 512, 256):
        layer = keras.layers.Dense(units, activation="relu")(layer)
    model = keras.Model(inputs, keras.layers.Reshape((-1,))(keras.layers.Dense(1)(layer)))
    model.compile(optimizer="adam", loss=losses.SoftmaxLoss())
    dataset = data.to_dataset(batch_size=32)
    few = data[:200]
    model.fit(few.to_dataset(batch_size=32, list_size=128), epochs=1, verbose=0)
    delivered, trained = [], []
    shapes, padded = set(), 0
    for number in range(options.rounds):
        start = time.perf_counter()
        for _, labels in dataset:
            shapes.add(tuple(labels.shape))
            padded += int(np.prod(labels.shape)) if number == 0 else 0
        delivered.append(data.num_documents / (time.perf_counter() - start))
        start = time.perf_counter()
        model.fit(few.to_dataset(batch_size=32, list_size=128), epochs=1, verbose=0)
        documents = np.minimum(few.lengths, 128).sum()
        trained.append(documents / (time.perf_counter() - start))
    return {
        "delivered": median(delivered),
        "trained": median(trained),
        "padding": 1 - data.num_documents / padded,
        "shapes": len(shapes),
    }


def reading_table(records: dict[str, Any]) -> list[str]:
    """Seconds by library, and the ratios."""
    rows = []
    for title, results in records.items():
        seconds = {
            name: results[name]["milliseconds"] / 1e3
            for name in TITLES
            if "milliseconds" in results.get(name, {})
        }
        cells = [
            f"{seconds[name]:.3f} ({results['megabytes'] / seconds[name]:.0f} MB/s)"
            + (" (differs)" if results[name]["differs"] else "")
            if name in seconds
            else f"– ({results.get(name, {}).get('error', 'not available')[:60]})"
            for name in TITLES
        ]
        peers = [seconds[name] for name in PEERS if name in seconds]
        ratios = [
            seconds.get("scikit_learn", np.nan) / seconds["ours"],
            min(peers) / seconds["ours"],
            seconds["ours_cached"] / seconds.get("scikit_learn", np.nan),
        ]
        shown = [report.number(ratios[0]), report.number(ratios[1]), f"{ratios[2]:.2%}"]
        rows.append([title, *cells, *shown])
    header = ["reading, s", *TITLES.values(), "scikit-learn / ours", "fastest peer / ours"]
    return report.markdown_table([*header, "cached / scikit-learn"], rows)


def memory_table(records: dict[str, Any]) -> list[str]:
    """The peak of the memory by library."""
    rows = []
    for title, results in records.items():
        cells = []
        for name in TITLES:
            taken = results.get(name, {}).get("memory")
            cells.append("–" if taken is None else report.number(taken["extra_megabytes"]))
        ours = results["ours"]["memory"]
        share = ours["extra_megabytes"] / ours["array_megabytes"]
        rows.append([title, *cells, report.number(ours["array_megabytes"]), report.number(share)])
    header = ["peak of the memory, MB", *TITLES.values(), "arrays", "peak / arrays, ours"]
    return report.markdown_table(header, rows)


def batch_lines(batches: dict[str, float]) -> list[str]:
    """The rates of batches and network."""
    header = ["documents per second", "delivered", "trained on (136-1024-512-256-1)", "ratio"]
    row = [
        "synthetic lists of 120 documents on average, 32 per batch",
        f"{batches['delivered']:,.0f}",
        f"{batches['trained']:,.0f}",
        report.number(batches["delivered"] / batches["trained"]),
        f"{batches['padding']:.1%}",
        str(batches["shapes"]),
    ]
    return report.markdown_table([*header, "padding", "shapes"], [row])


if __name__ == "__main__":
    main()
