"""Times forward + gradient of the losses, this library and its peers in one run.

    python -m benchmarks.losses --shapes 32x200,8x1000 --losses pairwise_logistic,lambdarank

All libraries get the same seeded data. Their rounds are interleaved (each library once, with XLA
around the step and without, then each again), so that a slow moment of the machine hits all of
them. Before any time counts, values and gradients are compared with ours.
"""

import argparse
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.client import SHOWN_MEMORY, Worker, WorkerError
from benchmarks.environments import PEERS
from benchmarks.lists import Shape
from benchmarks.options import chosen, shapes
from benchmarks.registry import LOSSES, ON_TENSORFLOW, OURS, Loss, markdown

SHAPES = "128x32,32x200,8x1000,1x10000,ragged"
VALUE_TOLERANCE = 1e-4
GRADIENT_TOLERANCE = 1e-3
# Losses that draw noise are compared through their mean over the runs.
RANDOM_TOLERANCE = 5e-2
ROUND_SECONDS = 0.2
MOST_REPETITIONS = 100


def main() -> None:
    """Runs the comparison that the command line asks for."""
    options = parse_arguments()
    libraries = [*OURS, *options.peers]
    workers, unavailable = start_workers(libraries, options)
    versions = {library: worker.versions for library, worker in workers.items()}
    run = {**report.describe_run("benchmarks.losses", versions), "unavailable": unavailable}
    records = report.read(options.output, "losses") if options.resume else []
    measured = {(record["loss"], record["shape"], record["xla"]) for record in records}
    text = report.losses_markdown(run, records, libraries)
    try:
        for name in options.losses:
            for shape in options.shapes:
                modes = [x for x in options.modes if (name, str(shape), x) not in measured]
                if not modes:
                    continue
                for record in measure(name, shape, modes, workers, options):
                    records.append(record)
                    print(progress_line(record), flush=True)
                text = report.losses_markdown(run, records, libraries)
                report.write(options.output, "losses", run, records, text)
    finally:
        for worker in workers.values():
            worker.stop()
    if options.memory:

        def save() -> None:
            written = report.losses_markdown(run, records, libraries)
            report.write(options.output, "losses", run, records, written)

        measure_memory(records, [x for x in workers if x in ON_TENSORFLOW], options, save)
        text = report.losses_markdown(run, records, libraries)
    print("\n" + text)
    report.plot_losses(options.output, records, libraries)
    if options.update_readme:
        report.update_readme("formulas", markdown())
        report.update_readme("losses", text)


def parse_arguments() -> argparse.Namespace:
    """The command line; lists are separated by commas."""
    compared = [name for name, loss in LOSSES.items() if loss.peers]
    parser = argparse.ArgumentParser(prog="benchmarks.losses", description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default=SHAPES, help=f"batch x list, or ragged: {SHAPES}")
    parser.add_argument("--losses", default=",".join(compared), help=", ".join(compared))
    parser.add_argument("--peers", default=",".join(PEERS), help=", ".join(PEERS) + ", or nothing")
    parser.add_argument("--modes", default="xla,plain", help="xla, plain or both")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds per loss")
    parser.add_argument("--seed", type=int, default=0, help="seed of the data")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    parser.add_argument(
        "--time-limit", type=float, default=120.0, help="seconds for one answer of a worker"
    )
    parser.add_argument(
        "--budget", type=float, default=30.0, help="seconds of rounds per library and loss"
    )
    parser.add_argument(
        "--memory-limit",
        type=float,
        default=round(0.6 * (report.memory_gigabytes() or 16.0)),
        help="gigabytes a worker may take",
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with the run in --output, skip what it has"
    )
    parser.add_argument(
        "--no-memory",
        dest="memory",
        action="store_false",
        help="leave the memory of what runs on TensorFlow to a later run with --resume",
    )
    parser.add_argument("--update-readme", action="store_true", help="put the tables there")
    options = parser.parse_args()
    options.losses = chosen(parser, "--losses", options.losses, LOSSES)
    options.peers = chosen(parser, "--peers", options.peers, PEERS) if options.peers else []
    modes = chosen(parser, "--modes", options.modes, ["xla", "plain"])
    options.modes = [mode == "xla" for mode in modes]
    options.shapes = shapes(parser, options.shapes)
    return options


def start_workers(
    libraries: list[str], options: argparse.Namespace
) -> tuple[dict[str, Worker], dict[str, str]]:
    """The workers that came up, and the reasons of those that did not."""
    workers, unavailable = {}, {}
    for library in libraries:
        worker = Worker(library, options.memory_limit, options.time_limit)
        try:
            worker.start()
            workers[library] = worker
            print(f"{library}: {worker.versions}", flush=True)
        except WorkerError as error:
            unavailable[library] = str(error)
            print(f"{library} is not available: {error}", flush=True)
            worker.stop()
    return workers, unavailable


# A library, and whether XLA is around its step.
Key = tuple[str, bool]


def measure(
    name: str,
    shape: Shape,
    modes: list[bool],
    workers: dict[str, Worker],
    options: argparse.Namespace,
) -> list[report.Record]:
    """One loss at one shape in all libraries that have it; a record for each mode.

    What has no choice about XLA is measured once and stands in all records.
    """
    loss = LOSSES[name]
    having = [library for library in workers if loss.has(library)]
    keys = {library: modes if library in ON_TENSORFLOW else modes[:1] for library in having}
    results: dict[Key, dict[str, Any]] = {}
    gradients: dict[Key, np.ndarray] = {}

    def prepare(library: str, xla: bool) -> dict[str, Any]:
        try:
            return workers[library].prepare(name, shape, xla, options.seed)
        except WorkerError as error:
            return {"error": str(error)}

    def prepare_all(library: str) -> list[dict[str, Any]]:
        return [prepare(library, xla) for xla in keys[library]]

    with ThreadPoolExecutor(2) as pool:  # most of the time goes into tracing and compiling
        for library, found in zip(having, pool.map(prepare_all, having), strict=True):
            results |= {(library, xla): x for xla, x in zip(keys[library], found, strict=True)}
    for key in results:
        for last in (False, True):
            if "error" in results[key] or key in gradients:
                break
            try:
                gradients[key] = look(workers[key[0]], key[1], results[key])
            except WorkerError as error:
                # The step of the other mode may have ended the process: once more, alone.
                results[key] = {"error": str(error)} if last else prepare(*key)
    run_rounds(workers, results, options)
    for library in having:
        with contextlib.suppress(WorkerError):  # its process has ended
            workers[library].forget()
    records = []
    for xla in modes:
        chosen = {x: xla if x in ON_TENSORFLOW else modes[0] for x in having}
        here = {x: dict(results[x, mode]) for x, mode in chosen.items()}
        compare(loss, shape, here, {x: gradients.get((x, mode)) for x, mode in chosen.items()})
        fastest, ratios = fastest_peer(here)
        records.append(
            {
                "loss": name,
                "title": loss.title,
                "shape": str(shape),
                "xla": xla,
                "libraries": here,
                "fastest_peer": fastest,
                "ratios": ratios,
            }
        )
    return records


def look(worker: Worker, xla: bool, result: dict[str, Any]) -> np.ndarray:
    """Takes the gradient of a prepared step, its memory, and picks the repetitions per round.

    The memory of what runs on TensorFlow comes later: see `measure_memory`.
    """
    _, gradient = worker.gradient(xla)
    if worker.library not in ON_TENSORFLOW:
        note_memory(worker, xla, result)
    first = worker.run(1, xla)["seconds"][0]
    result["repetitions"] = int(np.clip(ROUND_SECONDS / first, 1, MOST_REPETITIONS))
    return gradient


def note_memory(worker: Worker, xla: bool, result: dict[str, Any]) -> None:
    """Puts the peak extra memory of a prepared step into the result."""
    memory = worker.memory(xla)
    result["extra_megabytes"] = memory["extra_megabytes"]
    result["memory_method"] = memory["method"]


def measure_memory(
    records: list[report.Record],
    libraries: list[str],
    options: argparse.Namespace,
    save: Callable[[], None],
) -> None:
    """The memory of what runs on TensorFlow and has a time, in processes where it shows."""
    lock = threading.Lock()

    def measure_all(library: str) -> None:
        worker = Worker(library, options.memory_limit, options.time_limit, environment=SHOWN_MEMORY)
        for record in records:
            result = record["libraries"].get(library, {})
            if "milliseconds" not in result or "extra_megabytes" in result:
                continue
            shape, xla = Shape.parse(record["shape"]), record["xla"]
            try:
                worker.prepare(record["loss"], shape, xla, options.seed, warm_up_steps=1)
                note_memory(worker, xla, result)
                memory = f"{report.number(result['extra_megabytes'])} MB"
            except WorkerError as error:
                result["memory_error"] = memory = str(error)
            with contextlib.suppress(WorkerError):  # its process has ended
                worker.forget()
            with lock:
                print(f"{library} {record['loss']} {shape}: {memory}", flush=True)
                save()
        worker.stop()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(measure_all, libraries))


def run_rounds(
    workers: dict[str, Worker], results: dict[Key, dict[str, Any]], options: argparse.Namespace
) -> None:
    """Interleaves the rounds; what has used up its budget sits out the rest."""
    times: dict[Key, list[float]] = {key: [] for key in results}
    values: dict[Key, list[float]] = {key: [] for key in results}
    for _ in range(options.rounds):
        for key, result in results.items():
            if "error" in result or sum(times[key]) > options.budget:
                continue
            try:
                reply = workers[key[0]].run(result["repetitions"], key[1])
            except WorkerError as error:
                result["error"] = str(error)
                continue
            times[key] += reply["seconds"]
            values[key].append(reply["value"])
    for key, result in results.items():
        if times[key]:
            result["milliseconds"] = 1e3 * median(times[key])
            result["fastest_milliseconds"] = 1e3 * min(times[key])
            result["runs"] = len(times[key])
            result["value"] = float(np.mean(values[key]))


def compare(
    loss: Loss, shape: Shape, results: dict[str, dict[str, Any]], gradients: dict[str, Any]
) -> None:
    """Notes how far each library is from the first that answered, which is ours if it can be."""
    measured = [library for library in results if "value" in results[library]]
    if not measured:
        return
    scaled = {}
    for library in measured:
        scale = loss.formula(library).scale_for(shape.batch, shape.width)
        scaled[library] = scale * results[library]["value"], scale * gradients[library]
    expected_value, expected_gradient = scaled[measured[0]]
    for library in measured[1:]:
        value, gradient = scaled[library]
        result = results[library]
        result["value_error"] = _relative_error(value, expected_value)
        result["gradient_error"] = _relative_error(gradient, expected_gradient)
        result["disagreement"] = disagreement(loss, library, result)


def _relative_error(actual: Any, expected: Any) -> float:
    """The largest difference over the largest expected number."""
    return float(np.max(np.abs(actual - expected)) / max(np.max(np.abs(expected)), 1e-30))


def disagreement(loss: Loss, library: str, result: dict[str, Any]) -> str:
    """Nothing where the library computes the same numbers, otherwise how and why not."""
    stated = loss.formula(library).differs
    if stated:
        return f"another definition: {stated}"
    if loss.random:
        same = result["value_error"] <= RANDOM_TOLERANCE
    else:
        same = (
            result["value_error"] <= VALUE_TOLERANCE
            and result["gradient_error"] <= GRADIENT_TOLERANCE
        )
    if same:
        return ""
    return (
        f"its numbers are not ours: value {result['value_error']:.0e},"
        f" gradient {result['gradient_error']:.0e} apart"
    )


def fastest_peer(results: dict[str, dict[str, Any]]) -> tuple[str | None, dict[str, float]]:
    """The fastest peer that computes the same, and its time over that of each of our backends."""
    times = {
        library: result["milliseconds"]
        for library, result in results.items()
        if "milliseconds" in result and not result.get("disagreement")
    }
    peers = [library for library in times if library not in OURS]
    if not peers:
        return None, {}
    fastest = min(peers, key=lambda library: times[library])
    return fastest, {ours: times[fastest] / times[ours] for ours in OURS if ours in times}


def progress_line(record: report.Record) -> str:
    """One line per measurement while the run goes on."""
    parts = [
        f"{library} {report.number(result.get('milliseconds'))}"
        + (f" ({result['error']})" if "error" in result else "")
        for library, result in record["libraries"].items()
    ]
    mode = "XLA" if record["xla"] else "plain"
    ratios = ", ".join(map(report.number, record["ratios"].values()))
    return f"{record['loss']} {record['shape']} {mode}: {', '.join(parts)} ms; ratios {ratios}"


if __name__ == "__main__":
    main()
