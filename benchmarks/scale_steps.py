"""Times a training step of one process, of two devices and of two processes on the same batches.

    python -m benchmarks.scale_steps

The network of the LambdaLoss@K paper on 136 features (804,385 weights), one epoch per round after a
first one that is not timed. All ways train on the same lists with the same global batch and share
the cores of one machine, so that two of them cannot be faster than one that uses all cores: what is
seen is what a step costs beside the computation. Rounds are interleaved, figures are medians.
"""

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import report

ROOT = Path(__file__).resolve().parent.parent
WAYS = {
    ("tensorflow", "process"): "TensorFlow, one process",
    ("tensorflow", "devices"): "TensorFlow, two devices of one process",
    ("tensorflow", "processes"): "TensorFlow, two processes",
    ("jax", "process"): "JAX, one process",
    ("jax", "processes"): "JAX, two processes",
}


def main() -> None:
    """Runs the comparison that the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.scale_steps", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--queries", type=int, default=128, help="lists to train on")
    parser.add_argument("--batch-size", type=int, default=32, help="lists of a global batch")
    parser.add_argument("--list-size", type=int, default=128, help="documents of a list at most")
    parser.add_argument("--loss", default="ndcg_loss2@5", help="name of the loss")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--update-readme", action="store_true", help="put the table there")
    options = parser.parse_args()
    request = {
        name: getattr(options, name) for name in ("queries", "batch_size", "list_size", "loss")
    }
    records = []
    with contextlib.ExitStack() as stack:
        started = [
            (way, stack.enter_context(processes(*way, {**request, "features": 136})))
            for way in WAYS
        ]
        for way, members in started:
            first = [receive(member) for member in members][0]
            records.append({"way": way, **first, "rounds": []})
            print(WAYS[way], "is ready", flush=True)
        for _ in range(options.rounds):
            for record, (_, members) in zip(records, started, strict=True):
                for member in members:
                    assert member.stdin is not None
                    member.stdin.write("epoch\n")
                    member.stdin.flush()
                record["rounds"].append([receive(member) for member in members])
    versions = {
        engine: {
            name: record[name]
            for record in records
            if record["backend"] == engine
            for name in ("tfrankloss", "keras", engine)
        }
        for engine in ("tensorflow", "jax")
    }
    run = report.describe_run("benchmarks.scale_steps", versions)
    text = "\n".join([*report.run_lines(run), *step_table(records)])
    report.write(options.output, "scale_steps", run, records, text)
    print("\n" + text)
    if options.update_readme:
        report.update_readme("scale-steps", text)


@contextlib.contextmanager
def processes(
    engine: str, way: str, request: dict[str, Any]
) -> Iterator[list[subprocess.Popen[str]]]:
    """The processes of a way, which end with the block."""
    count = 2 if way == "processes" else 1
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(2)]
        for one in sockets:
            one.bind(("localhost", 0))
        addresses = [f"localhost:{one.getsockname()[1]}" for one in sockets]
    members = []
    try:
        for number in range(count):
            environment = {**os.environ, "KERAS_BACKEND": engine, "TF_CPP_MIN_LOG_LEVEL": "3"}
            if count > 1:
                task = {"type": "worker", "index": number}
                environment |= {
                    "TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": task}),
                    "KERAS_DISTRIBUTION_JOB_ADDRESSES": addresses[0],
                    "KERAS_DISTRIBUTION_NUM_PROCESSES": "2",
                    "KERAS_DISTRIBUTION_PROCESS_ID": str(number),
                }
            content = json.dumps({**request, "engine": engine, "way": way})
            members.append(
                subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.workers.scale_steps", content],
                    env=environment,
                    cwd=ROOT,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )
        yield members
    finally:
        for member in members:
            member.kill()
            member.communicate()


def receive(member: subprocess.Popen[str]) -> dict[str, Any]:
    """The next reply of a process."""
    assert member.stdout is not None
    for line in member.stdout:
        if line.startswith("REPLY "):
            return json.loads(line.removeprefix("REPLY "))
    raise RuntimeError(f"A process ended with code {member.wait()}: {member.args}")


def step_table(records: list[dict[str, Any]]) -> list[str]:
    """The time of a step by way, and its ratio to that of one process."""
    seconds = {
        record["way"]: [max(x["seconds"] for x in results) for results in record["rounds"]]
        for record in records
    }
    rows = []
    for record in records:
        engine, _ = record["way"]
        times = seconds[record["way"]]
        ratios = [x / one for x, one in zip(times, seconds[(engine, "process")], strict=True)]
        processor = [sum(x["processor_seconds"] for x in results) for results in record["rounds"]]
        rows.append(
            [
                WAYS[record["way"]],
                f"{1000 * median(times) / record['steps']:.0f}",
                f"{1000 * median(processor) / record['steps']:.0f}",
                f"{median(ratios):.2f}",
            ]
        )
    header = ["training", "ms per step", "ms of cores per step", "÷ one process"]
    return report.markdown_table(header, rows)


if __name__ == "__main__":
    main()
