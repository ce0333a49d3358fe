"""Time and memory of our losses as one list grows from 1,000 to 100,000 documents.

    python -m benchmarks.growth --losses pairwise_logistic,approx_ndcg

A loss stops growing once forward + gradient takes more than a minute or 8 GB. Each loss has a
process of its own, with the system's allocator, so that memory shows; what a step takes is the peak
of the resident size during it over the size before it.
"""

import argparse
from pathlib import Path
from statistics import median

from benchmarks import report
from benchmarks.client import SHOWN_MEMORY, Worker, WorkerError
from benchmarks.lists import Shape
from benchmarks.options import chosen
from benchmarks.registry import LOSSES

SIZES = [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 100_000]
MOST_SECONDS = 60.0
MOST_MEGABYTES = 8.0 * 1024
# Above the limit that ends a loss, so that exceeding it is measured instead of crashing.
WORKER_GIGABYTES = 12.0
WORKER_SECONDS = 2.5 * MOST_SECONDS


def main() -> None:
    """Lets every loss grow that the command line asks for."""
    options = parse_arguments()
    records = report.read(options.output, "growth") if options.resume else []
    measured = {record["loss"] for record in records}
    worker = new_worker()
    worker.start()
    run = report.describe_run("benchmarks.growth", {"ours": worker.versions})
    worker.stop()
    text = report.growth_markdown(run, records, options.sizes)
    for name in options.losses:
        if name not in measured:
            records.append(grow(name, options))
            text = report.growth_markdown(run, records, options.sizes)
            report.write(options.output, "growth", run, records, text)
    print("\n" + text)
    if options.update_readme:
        report.update_readme("growth", text)


def parse_arguments() -> argparse.Namespace:
    """The command line; lists are separated by commas."""
    parser = argparse.ArgumentParser(prog="benchmarks.growth", description=__doc__.splitlines()[0])
    parser.add_argument("--losses", default=",".join(LOSSES), help=", ".join(LOSSES))
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="list sizes")
    parser.add_argument("--plain", action="store_true", help="no XLA around the step")
    parser.add_argument("--seed", type=int, default=0, help="seed of the data")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    parser.add_argument(
        "--resume", action="store_true", help="go on with the run in --output, skip what it has"
    )
    parser.add_argument("--update-readme", action="store_true", help="put the table there")
    options = parser.parse_args()
    options.losses = chosen(parser, "--losses", options.losses, LOSSES)
    options.sizes = [int(size) for size in options.sizes.split(",")]
    return options


def new_worker() -> Worker:
    """A process of this library."""
    return Worker("ours", WORKER_GIGABYTES, WORKER_SECONDS, environment=SHOWN_MEMORY)


def grow(name: str, options: argparse.Namespace) -> report.Record:
    """The points of one loss up to its limit."""
    worker = new_worker()
    points: list[report.Record] = []
    stopped = ""
    for size in options.sizes:
        try:
            point = measure(worker, name, size, options)
        except WorkerError as error:
            stopped = f"n = {size:,}: {error}"
            break
        points.append(point)
        print(
            f"{name} n = {size:,}: {report.number(point['milliseconds'])} ms,"
            f" {report.number(point['extra_megabytes'])} MB",
            flush=True,
        )
        if point["milliseconds"] > 1e3 * MOST_SECONDS:
            stopped = f"more than {MOST_SECONDS:g} s at n = {size:,}"
        elif point["extra_megabytes"] > MOST_MEGABYTES:
            stopped = f"more than {MOST_MEGABYTES / 1024:g} GB at n = {size:,}"
        if stopped:
            break
    worker.stop()
    if stopped:
        print(f"{name} stopped: {stopped}", flush=True)
    return {"loss": name, "title": LOSSES[name].title, "points": points, "stopped": stopped}


def measure(worker: Worker, name: str, size: int, options: argparse.Namespace) -> report.Record:
    """Time and memory of one list of the given size."""
    xla = not options.plain
    warm_up = worker.prepare(name, Shape(1, size), xla, options.seed, warm_up_steps=1)
    seconds = worker.run(1, xla)["seconds"]
    if seconds[0] < 1.0:
        seconds = worker.run(5, xla)["seconds"]
    return {
        "size": size,
        "milliseconds": 1e3 * median(seconds),
        "extra_megabytes": worker.memory(xla)["extra_megabytes"],
        "warm_up_seconds": warm_up["warm_up_seconds"],
    }


if __name__ == "__main__":
    main()
