"""Times one query through an exported model, beside its bare matrix products and boosted trees.

    python -m benchmarks.serving

The network of the LambdaLoss@K paper (136-1024-512-256-1) is exported; `rank` answers one query of
100 and of 1,000 documents through the SavedModel, without a network in between. Beside it the
products of the same matrices in NumPy, which is the least that the network can take, and LightGBM's
`predict` with 500 trees of 31 leaves. One core each; rounds are interleaved.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.metrics import start, stop
from benchmarks.workers.serving import FEATURES

TITLES = {
    "ours": "tfrankloss, `rank`",
    "ours_products": "the bare products in NumPy",
    "lightgbm": "LightGBM, 500 trees",
}
SIZES = (100, 1000)


def main() -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(prog="benchmarks.serving", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50, help="interleaved rounds")
    parser.add_argument("--requests", type=int, default=20, help="per round")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--update-readme", action="store_true", help="put the table there")
    options = parser.parse_args()
    from tfrankloss import models, serving

    workers = start("serving", TITLES)
    records: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = str(serving.export(models.feedforward(FEATURES), folder, top_k=10))
        for size in SIZES:
            for worker in workers.values():
                worker.ask({"path": path, "documents": size})
            seconds: dict[str, list[float]] = {name: [] for name in workers}
            for _ in range(options.rounds):
                for name, worker in workers.items():
                    seconds[name] += worker.ask({"run": options.requests})["seconds"]
            records[str(size)] = {
                name: {
                    "median": float(np.median(times)),
                    "percentile_99": float(np.quantile(times, 0.99)),
                }
                for name, times in seconds.items()
            }
            print(size, records[str(size)], flush=True)
    stop(workers.values())
    run = report.describe_run("benchmarks.serving", {n: w.versions for n, w in workers.items()})
    text = "\n".join([*report.run_lines(run), "", *table(records)])
    report.write(options.output, "serving", run, [records], text)
    print("\n" + text)
    if options.update_readme:
        report.update_readme("serving", text)


def table(records: dict[str, Any]) -> list[str]:
    """Milliseconds of one query, documents per second, and the ratio to the bare products."""
    rows = []
    for size, found in records.items():
        bare = found.get("ours_products", {}).get("median")
        for name, figures in found.items():
            rows.append(
                [
                    size,
                    TITLES[name],
                    f"{1e3 * figures['median']:.2f}",
                    f"{1e3 * figures['percentile_99']:.2f}",
                    f"{int(size) / figures['median']:,.0f}",
                    f"{figures['median'] / bare:.2f}" if bare else "",
                ]
            )
    head = ["documents", "", "median, ms", "99 %, ms", "documents per second", "bare products = 1"]
    return report.markdown_table(head, rows)


if __name__ == "__main__":
    main()
