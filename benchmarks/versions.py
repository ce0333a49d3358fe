"""Times forward + gradient of this checkout beside another one, such as an older version.

    git worktree add ../before v0.1.0
    python -m benchmarks.versions ../before --shapes 32x200,8x1000

Both run on the packages of this environment, on the same data, in interleaved rounds. A loss whose
ratio is above 1.05 has become slower; it is measured once more, with twice as many rounds.
"""

import argparse
from pathlib import Path
from statistics import median

from benchmarks import report
from benchmarks.client import ROOT, Worker, WorkerError
from benchmarks.lists import Shape
from benchmarks.options import chosen, shapes
from benchmarks.registry import LOSSES, OURS

SHAPES = "128x32,32x200,8x1000"
ROUND_SECONDS = 0.15
MOST_REPETITIONS = 200
SLOWER = 1.05


def main() -> None:
    """Runs the comparison that the command line asks for."""
    options = parse_arguments()
    workers = {
        name: Worker(options.library, 16.0, 180.0, checkout=checkout)
        for name, checkout in (("before", options.before), ("after", ROOT))
    }
    rows = []
    for name in options.losses:
        for shape in options.shapes:
            try:
                times = measure(workers, name, shape, options.rounds)
                if times["after"] > SLOWER * times["before"]:
                    times = measure(workers, name, shape, 2 * options.rounds)
            except WorkerError as error:
                print(f"{name} {shape}: {error}", flush=True)
                continue
            before, after = times["before"], times["after"]
            row = [name, str(shape), *map(report.number, (before, after, after / before))]
            rows.append(row)
            print("  ".join(row), flush=True)
    for worker in workers.values():
        worker.stop()
    header = ["loss", "batch × list", "before, ms", "after, ms", "after / before"]
    print("\n" + "\n".join(report.markdown_table(header, rows)))


def parse_arguments() -> argparse.Namespace:
    """The command line; lists are separated by commas."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.versions", description=__doc__.splitlines()[0]
    )
    parser.add_argument("before", type=Path, help="a checkout of the other version")
    parser.add_argument("--losses", default=",".join(LOSSES), help=", ".join(LOSSES))
    parser.add_argument("--shapes", default=SHAPES, help=f"batch x list: {SHAPES}")
    parser.add_argument("--library", default=OURS[0], choices=OURS, help="the backend of Keras")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds")
    options = parser.parse_args()
    if not (options.before / "benchmarks" / "workers").is_dir():
        parser.error(f"before must be a checkout of this project. Received: {options.before}")
    options.before = options.before.resolve()
    options.losses = chosen(parser, "--losses", options.losses, LOSSES)
    options.shapes = shapes(parser, options.shapes)
    return options


def measure(workers: dict[str, Worker], name: str, shape: Shape, rounds: int) -> dict[str, float]:
    """The median milliseconds of each version."""
    for worker in workers.values():
        worker.prepare(name, shape, xla=True, seed=0)
    first = max(worker.run(1)["seconds"][0] for worker in workers.values())
    repetitions = int(min(max(ROUND_SECONDS / first, 1), MOST_REPETITIONS))
    times: dict[str, list[float]] = {version: [] for version in workers}
    for _ in range(rounds):
        for version, worker in workers.items():
            times[version] += worker.run(repetitions)["seconds"]
    for worker in workers.values():
        worker.forget()
    return {version: 1e3 * median(seconds) for version, seconds in times.items()}


if __name__ == "__main__":
    main()
