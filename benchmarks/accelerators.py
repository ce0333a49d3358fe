"""Estimates what the losses cost on a TPU and a GPU, this library beside Rax, with neither at hand.

    python -m benchmarks.accelerators --losses pairwise_logistic,lambdarank --shapes 32x200

The compilers for both devices run without them. `benchmarks.programs` reads the cost off what they
make: these are estimates, no measurements. Every loss that Rax has is compiled in each shape: ours,
Rax as it stands (its default reduction, no mask) and Rax with the same numbers as ours; a few also
as formulas in `jax.numpy`. A training step and an update of eight metrics follow.
"""

import argparse
import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from benchmarks import report
from benchmarks.client import Worker, WorkerError
from benchmarks.lists import Shape
from benchmarks.options import chosen, shapes
from benchmarks.registry import JAX_FORMULAS, LOSSES

SHAPES = "128x32,32x200,8x1000,1x10000"
WITH_RAX = [name for name, loss in LOSSES.items() if loss.has("rax") and name != "empty_step"]
MEGABYTE = 1e6


class Device(NamedTuple):
    """How a device is called, and the unit of its estimates."""

    title: str
    unit: str
    size: float  # cycles or microseconds of one unit


DEVICES = {
    "tpu": Device("TPU v5e", "thousand cycles", 1e3),
    "gpu": Device("A100", "µs", 1.0),
}
# By the names of the worker.
RATIOS = {"rax": "Rax ÷ ours", "rax_same_numbers": "same numbers ÷ ours"}


class Other(NamedTuple):
    """What is compiled beside losses: its title, programs, the loss in it and its shape."""

    title: str
    programs: tuple[str, ...]
    loss: str
    shape: Shape


OTHERS = {
    "training_step": Other(
        "training step with NDCG-Loss2@5",
        ("training_step", "training_step_without_loss"),
        "ndcg_loss2_at_5",
        Shape(32, 200),
    ),
    "metrics": Other("update of eight metrics", ("metrics",), "", Shape(128, 200)),
}
PROGRAMS = ["ours", "ours_bfloat16", *RATIOS, "plain"]
PROGRAMS += [program for other in OTHERS.values() for program in other.programs]


def main() -> None:
    """Compiles what the command line asks for."""
    options = parse_arguments()
    records = report.read(options.output, "accelerators") if options.resume else []
    worker = Worker(
        "accelerators",
        options.memory_limit,
        options.time_limit,
        command=["benchmarks.workers.accelerators"],
    )
    worker.start()
    run = report.describe_run("benchmarks.accelerators", {"compilers": worker.versions})
    text = markdown(run, records)
    try:
        for record in work(options, records):
            for program in options.again:
                record["programs"].pop(program, None)
            if complete(worker, record, options.dump):
                print(progress_line(record), flush=True)
                text = markdown(run, records)
                report.write(options.output, "accelerators", run, records, text)
    finally:
        worker.stop()
    print("\n" + text)
    if options.update_readme:
        report.update_readme("accelerators", text)


def parse_arguments() -> argparse.Namespace:
    """The command line; lists are separated by commas."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.accelerators", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--losses", default=",".join(WITH_RAX), help="those that Rax has; all; or names"
    )
    parser.add_argument("--shapes", default=SHAPES, help="batch x list")
    parser.add_argument("--devices", default=",".join(DEVICES), help=", ".join(DEVICES))
    parser.add_argument("--others", default=",".join(OTHERS), help=", ".join(OTHERS))
    parser.add_argument("--no-losses", action="store_true", help="nothing but --others")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--dump", type=Path, help="folder for the texts of the programs")
    parser.add_argument(
        "--time-limit", type=float, default=600.0, help="seconds to compile one program"
    )
    parser.add_argument(
        "--memory-limit",
        type=float,
        default=round(0.6 * (report.memory_gigabytes() or 16.0)),
        help="gigabytes a compiler may take",
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with the run in --output, skip what it has"
    )
    parser.add_argument(
        "--again", default="", help=f"programs that --resume compiles anew: {', '.join(PROGRAMS)}"
    )
    parser.add_argument("--update-readme", action="store_true", help="put the tables there")
    options = parser.parse_args()
    if options.losses == "all":
        options.losses = ",".join(LOSSES)
    options.losses = chosen(parser, "--losses", options.losses, LOSSES)
    options.shapes = shapes(parser, options.shapes)
    if any(shape.ragged for shape in options.shapes):
        parser.error("--shapes takes no ragged lists: a program does not depend on the lengths.")
    options.devices = chosen(parser, "--devices", options.devices, DEVICES)
    options.others = chosen(parser, "--others", options.others, OTHERS) if options.others else []
    options.again = chosen(parser, "--again", options.again, PROGRAMS) if options.again else []
    if options.no_losses:
        options.losses = []
    if options.dump:
        options.dump = options.dump.resolve()
        options.dump.mkdir(parents=True, exist_ok=True)
    return options


# --- a run


def work(options: argparse.Namespace, records: list[report.Record]) -> Iterable[report.Record]:
    """The records that the run has to complete; what it has is taken, what is new is added."""
    known = {(x["name"], x["shape"], x["device"]): x for x in records}

    def record(name: str, title: str, shape: Shape, device: str) -> report.Record:
        key = (name, str(shape), device)
        if key not in known:
            known[key] = {"name": name, "title": title, "shape": str(shape), "device": device}
            known[key]["programs"] = {}
            records.append(known[key])
        return known[key]

    for name in options.losses:
        for shape in options.shapes:
            for device in options.devices:
                yield record(name, LOSSES[name].title, shape, device)
    for name in options.others:
        for device in options.devices:
            yield record(name, OTHERS[name].title, OTHERS[name].shape, device)


def complete(worker: Worker, record: report.Record, dump: Path | None) -> bool:
    """Compiles the programs that a record lacks; whether there were any."""
    name, device = record["name"], record["device"]
    programs = OTHERS[name].programs if name in OTHERS else loss_programs(name)
    missing = [program for program in programs if program not in record["programs"]]
    shape = Shape.parse(record["shape"])
    for program in missing:
        file = f"{name}-{shape.batch}x{shape.width}-{device}-{program}.txt"
        request = {
            "program": program,
            "name": OTHERS[name].loss if name in OTHERS else name,
            "batch": shape.batch,
            "width": shape.width,
            "device": device,
            "dump": str(dump / file) if dump else None,
        }
        try:
            worker.start()
            record["programs"][program] = worker.ask(request)
        except WorkerError as error:
            record["programs"][program] = {"error": str(error)}
    if name in OTHERS:
        record["share_of_loss"] = share_of_loss(record)
    else:
        found = {other: ratio(record, other, "ours") for other in RATIOS}
        record["ratios"] = {other: value for other, value in found.items() if value is not None}
    return bool(missing)


def loss_programs(name: str) -> list[str]:
    """What is compiled of a loss."""
    programs = ["ours", "ours_bfloat16"]
    programs += RATIOS if name in WITH_RAX else []
    return programs + (["plain"] if name in JAX_FORMULAS else [])


def figure(record: report.Record, program: str, key: str) -> float | None:
    """A figure of one program, if it was compiled."""
    return record["programs"].get(program, {}).get(key)


def ratio(record: report.Record, above: str, below: str) -> float | None:
    """The time of one program over that of another."""
    times = [figure(record, program, "time") for program in (above, below)]
    return times[0] / times[1] if times[0] is not None and times[1] else None


def share_of_loss(record: report.Record) -> float | None:
    """How much of a training step is gone without its loss."""
    rest = ratio(record, "training_step_without_loss", "training_step")
    return None if rest is None else 1.0 - rest


def progress_line(record: report.Record) -> str:
    """One line per record while the run goes on."""
    device = DEVICES[record["device"]]
    parts = [
        f"{program} {result['error']}"
        if "error" in result
        else f"{program} {report.number(result['time'] / device.size)}"
        f" ({result['compile_seconds']:.0f} s)"
        for program, result in record["programs"].items()
    ]
    ratios = ", ".join(map(report.number, record.get("ratios", {}).values()))
    line = f"{record['name']} {record['shape']} {device.title}: {', '.join(parts)}"
    return f"{line}; ratios {ratios}" if ratios else line


# --- Markdown


def markdown(run: report.Record, records: list[report.Record]) -> str:
    """The whole report."""
    lines = report.run_lines(run)
    losses = [record for record in records if record["name"] in LOSSES]
    order = {name: number for number, name in enumerate(LOSSES)}
    losses.sort(key=lambda x: (order[x["name"]], Shape.parse(x["shape"]).width))
    if any(record.get("ratios") for record in losses):
        lines += [*summary(losses), ""]
    notes: dict[str, str] = {}
    for name, device in DEVICES.items():
        chosen = [record for record in losses if record["device"] == name]
        if chosen:
            lines += [f"### {device.title}, {device.unit}", "", *table(chosen, notes), ""]
    others = [record for record in records if record["name"] in OTHERS]
    if others:
        lines += ["### Training step and metrics", "", *others_table(others, notes), ""]
    lines += [f"{mark} {note}  " for note, mark in notes.items()]
    return "\n".join(lines).rstrip() + "\n"


def summary(records: list[report.Record]) -> list[str]:
    """Geometric mean and smallest ratio of each device and shape."""
    header = ["device", "batch × list", "losses"]
    for title in RATIOS.values():
        header += [f"{title}, geometric mean", "smallest"]
    rows = []
    for device in DEVICES:
        here = [record for record in records if record["device"] == device]
        for shape in dict.fromkeys(x["shape"] for x in sorted(here, key=_width)):
            same = [record for record in here if record["shape"] == shape]
            having = [x for x in same if x.get("ratios")]
            row = [DEVICES[device].title, shape, str(len(having))]
            for ratio_name in RATIOS:
                row += _mean_and_smallest(having, ratio_name)
            rows.append(row)
    return report.markdown_table(header, rows)


def _width(record: report.Record) -> int:
    return Shape.parse(record["shape"]).width


def _mean_and_smallest(records: list[report.Record], name: str) -> list[str]:
    known = {x["title"]: x["ratios"][name] for x in records if name in x["ratios"]}
    if not known:
        return ["–", "–"]
    mean = math.exp(sum(map(math.log, known.values())) / len(known))
    smallest = min(known, key=lambda title: known[title])
    return [report.number(mean), f"{report.number(known[smallest])} ({smallest})"]


def table(records: list[report.Record], notes: dict[str, str]) -> list[str]:
    """A row per loss and shape of one device."""
    tpu = records[0]["device"] == "tpu"
    header = ["loss", "batch × list", "ours", "Rax", "Rax, same numbers", "`jax.numpy`"]
    header += [*RATIOS.values(), "steps, ours / Rax"]
    if tpu:
        header += ["sorts, ours / Rax", "others without an estimate, ours / Rax"]
    header += ["temporary MB, ours / Rax", "compile s, ours / Rax", "bfloat16 ÷ float32, ours"]
    rows = []
    for record in records:
        row = [record["title"], record["shape"]]
        row += [_time(record, x, notes) for x in ("ours", *RATIOS, "plain")]
        row += [report.number(record.get("ratios", {}).get(name)) for name in RATIOS]
        row.append(_pair(record, "steps"))
        row += [_pair(record, "sorts"), _pair(record, "unknown")] if tpu else []
        row += [_pair(record, "temporary_bytes", MEGABYTE, 1), _pair(record, "compile_seconds")]
        bfloat16 = record["programs"].get("ours_bfloat16", {})
        if "error" in bfloat16:
            row.append(_time(record, "ours_bfloat16", notes))
        else:
            row.append(report.number(ratio(record, "ours_bfloat16", "ours")))
        rows.append(row)
    return report.markdown_table(header, rows)


def others_table(records: list[report.Record], notes: dict[str, str]) -> list[str]:
    """A row per device for a training step and for the metrics."""
    header = ["program", "batch × list", "device", "estimate", "steps", "sorts", "temporary MB"]
    header += ["compile s", "the same without its loss", "share of the loss"]
    rows = []
    for record in sorted(records, key=lambda x: list(OTHERS).index(x["name"])):
        device = DEVICES[record["device"]]
        program, *without = OTHERS[record["name"]].programs
        share = record.get("share_of_loss")
        cells = [_time(record, x, notes) for x in (program, *without)]
        rows.append(
            [
                record["title"],
                record["shape"],
                device.title,
                f"{cells[0]} {device.unit}",
                _cell(record, program, "steps"),
                _cell(record, program, "sorts"),
                _cell(record, program, "temporary_bytes", MEGABYTE, 1),
                _cell(record, program, "compile_seconds"),
                f"{cells[1]} {device.unit}" if without else "–",
                "–" if share is None else f"{share:.1%}",
            ]
        )
    return report.markdown_table(header, rows)


def _time(record: report.Record, program: str, notes: dict[str, str]) -> str:
    """The estimate in the unit of the device, or a mark that says why there is none.

    A star marks a program with a loop whose number of steps the compiler does not know.
    """
    result = record["programs"].get(program)
    if result is None:
        return "–"
    if "error" in result:
        return notes.setdefault(result["error"], f"[{len(notes) + 1}]")
    star = "*" if result["loops"] else ""
    return report.number(result["time"] / DEVICES[record["device"]].size) + star


def _pair(record: report.Record, key: str, unit: float = 1.0, digits: int = 0) -> str:
    """A figure of ours and of Rax."""
    return " / ".join(_cell(record, program, key, unit, digits) for program in ("ours", "rax"))


def _cell(record: report.Record, program: str, key: str, unit: float = 1.0, digits: int = 0) -> str:
    value = figure(record, program, key)
    return "–" if value is None else f"{value / unit:.{digits}f}"


if __name__ == "__main__":
    main()
