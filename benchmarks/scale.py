"""Times batches from record files beside those from memory, and conversion beside plain reading.

    python -m benchmarks.scale

Rounds are interleaved, and the figures are medians. The files were just written, so that the system
still holds them: this is the cost of the pipeline, not of the disk.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import report
from benchmarks.data import FEATURES, make_file
from tfrankloss import __version__
from tfrankloss.data import RankingData, load_letor, open_records, synthetic, write_records


def main() -> None:
    """Measures, prints, and writes what the command line asks for."""
    parser = argparse.ArgumentParser(prog="benchmarks.scale", description=__doc__.splitlines()[0])
    parser.add_argument("--queries", type=int, default=6000, help="queries of the batches")
    parser.add_argument("--batch-sizes", default="32,128", help="lists per batch")
    parser.add_argument("--documents", type=int, default=200_000, help="rows of the file")
    parser.add_argument("--shards", type=int, default=16, help="record files")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds")
    parser.add_argument("--seed", type=int, default=0, help="seed of the data")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--update-readme", action="store_true", help="put the tables there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = synthetic(options.queries, FEATURES, seed=options.seed)
        batches = {}
        for size in map(int, options.batch_sizes.split(",")):
            records = Path(folder, f"records-{size}")  # new ones, whose checksums are not known
            write_records(data, records, shards=options.shards)
            batches[size] = measure_batches(data, records, size, options.rounds)
        conversion = measure_conversion(Path(folder), options)
    run = report.describe_run("benchmarks.scale", {"ours": {"tfrankloss": __version__}})
    lines = [*report.run_lines(run), *batch_table(batches, data), "", *conversion_table(conversion)]
    text = "\n".join(lines)
    report.write(options.output, "scale-data", run, [batches, conversion], text)
    print("\n" + text)
    if options.update_readme:
        report.update_readme("scale-data", text)


def measure_batches(
    data: RankingData, folder: Path, batch_size: int, rounds: int
) -> dict[str, Any]:
    """Documents per second of endless datasets, and seconds until an epoch's first batch."""
    sources = {"memory": data, "records": open_records(folder)}
    count = int(data.to_dataset(batch_size=batch_size).cardinality())
    endless = {
        name: iter(source.to_dataset(batch_size=batch_size, repeat=True))
        for name, source in sources.items()
    }
    begun = {name: source.to_dataset(batch_size=batch_size) for name, source in sources.items()}
    rates: dict[str, list[float]] = {name: [] for name in sources}
    starts: dict[str, list[float]] = {name: [] for name in sources}
    for number in range(rounds + 1):
        for name, iterator in endless.items():
            start = time.perf_counter()
            for _ in range(count):
                next(iterator)
            rates[name].append(data.num_documents / (time.perf_counter() - start))
            start = time.perf_counter()
            next(iter(begun[name]))
            starts[name].append(time.perf_counter() - start)
        if number == 0:  # traces, fills buffers, and compares the checksums of records
            first = {name: rates[name][0] for name in sources}
            rates, starts = ({name: [] for name in sources} for _ in range(2))
    result = {
        name: {"rate": median(rates[name]), "start": median(starts[name]), "first": first[name]}
        for name in sources
    }
    print(batch_size, result, flush=True)
    return result


def measure_conversion(folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Seconds to read a file into memory, and to convert it, of dense numbers."""
    path, target = folder / "dense.txt", folder / "converted"
    make_file(path, options.documents, 1.0, options.seed)
    works: dict[str, Callable[[], Any]] = {
        "read": lambda: load_letor(path, cache=False, progress=False),
        "convert": lambda: write_records(path, target, shards=options.shards, progress=False),
    }
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for number in range(options.rounds + 1):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            if number:  # the first compiles
                seconds[name].append(time.perf_counter() - start)
            shutil.rmtree(target, ignore_errors=True)
    result = {name: median(found) for name, found in seconds.items()}
    result["megabytes"] = path.stat().st_size / 1e6
    print(result, flush=True)
    return result


def batch_table(batches: dict[int, Any], data: RankingData) -> list[str]:
    """The rates by size of the batch."""
    header = ["documents per second", "lists per batch", "from memory", "from records"]
    header += ["records ÷ memory", "first epoch, memory", "first epoch, records"]
    header += ["first batch, memory, s", "first batch, records, s"]
    rows = [
        [
            f"{data.num_documents:,} documents of {FEATURES} features",
            str(size),
            f"{found['memory']['rate']:,.0f}",
            f"{found['records']['rate']:,.0f}",
            report.number(found["records"]["rate"] / found["memory"]["rate"]),
            f"{found['memory']['first']:,.0f}",
            f"{found['records']['first']:,.0f}",
            report.number(found["memory"]["start"]),
            report.number(found["records"]["start"]),
        ]
        for size, found in batches.items()
    ]
    return report.markdown_table(header, rows)


def conversion_table(conversion: dict[str, float]) -> list[str]:
    """The rates of reading and converting."""
    megabytes = conversion["megabytes"]
    row = [
        f"dense, {megabytes:.0f} MB",
        f"{conversion['read']:.2f} ({megabytes / conversion['read']:.0f} MB/s)",
        f"{conversion['convert']:.2f} ({megabytes / conversion['convert']:.0f} MB/s)",
        report.number(conversion["convert"] / conversion["read"]),
    ]
    header = ["seconds", "load_letor without its cache", "convert to records", "convert ÷ read"]
    return report.markdown_table(header, [row])


if __name__ == "__main__":
    main()
