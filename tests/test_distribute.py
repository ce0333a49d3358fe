"""Two devices, two workers of TensorFlow and two processes of JAX train as one process does."""

import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import tfrankloss
from tests.distribute_worker import EPOCHS, OPTIONS, splits, start_the_same, train
from tfrankloss import cli, models, training
from tfrankloss.data import RankingData, open_records, synthetic, write_records
from tfrankloss.data.batches import BatchPlan, arrays, batches, filled_up, rows_of_list
from tfrankloss.training import distribution, networks, scores

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 240  # of a cluster, on a machine that does other things, too


@contextlib.contextmanager
def started(requests: list[dict[str, Any]]) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes of `distribute_worker`, none of which outlives the block."""
    environment = {**os.environ, "TFRANKLOSS_XLA": "0", "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["PYTHONPATH"] = str(ROOT)
    processes = []
    try:
        for request in requests:
            extra = request.pop("environment", {})
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.distribute_worker", json.dumps(request)],
                    env={**environment, **extra},
                    cwd=ROOT,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def run(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results of processes that all end well, and what they printed."""
    results = [Path(request["result"]) for request in requests]
    with started(requests) as processes:
        # All at once: a process whose output nobody reads would wait.
        printed: list[str] = [""] * len(processes)

        def read(number: int) -> None:
            printed[number] = processes[number].communicate(timeout=SECONDS)[0]

        threads = [threading.Thread(target=read, args=(n,)) for n in range(len(processes))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for process, text in zip(processes, printed):
            assert process.returncode == 0, text[-3000:]
    return [
        {**json.loads(path.read_text()), "printed": text} for path, text in zip(results, printed)
    ]


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("localhost", 0))
        return [one.getsockname()[1] for one in sockets]


def cluster(
    engine: str, folder: Path, *, devices: int = 1, workers: int = 2, **request: Any
) -> list[dict[str, Any]]:
    """The requests of two workers, or of one that knows of no cluster."""
    addresses = [f"localhost:{port}" for port in free_ports(2)]
    requests = []
    for worker in range(workers):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": worker}}
        environment = {
            "tensorflow": {"TF_CONFIG": json.dumps(task)},
            "jax": {
                "KERAS_DISTRIBUTION_JOB_ADDRESSES": addresses[0],
                "KERAS_DISTRIBUTION_NUM_PROCESSES": "2",
                "KERAS_DISTRIBUTION_PROCESS_ID": str(worker),
            },
        }[engine]
        environment = environment if workers > 1 else {}
        if engine == "jax":
            environment["KERAS_BACKEND"] = "jax"
            environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
            environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # most of the time is compilation
        requests.append(
            {
                "way": "train",
                "distribute": engine,
                "environment": environment,
                # Only the chief sees the folder of the run.
                "out": str(folder / ("run" if worker == 0 else "elsewhere")),
                "result": str(folder / f"result-{worker}.json"),
                **({"floatx": "float64", "devices": devices} if engine == "tensorflow" else {}),
                **request,
            }
        )
    return requests


def last_model(folder: Path) -> keras.Model:
    """Of the last epoch, which need not be the best one."""
    return keras.saving.load_model(folder / "state" / f"epoch-{EPOCHS}.keras")


def assert_close(found: list[np.ndarray], expected: list[np.ndarray], atol: float) -> None:
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=atol)


def train_alone(folder: Path, **options: Any) -> dict[str, Any]:
    """What one process gets, this one, in float64."""
    new_model, floatx = networks._new_model, keras.config.floatx()
    try:
        keras.config.set_floatx("float64")
        start_the_same()
        with tfrankloss.config.without_xla():
            result = train({"out": str(folder), "options": options})
    finally:
        networks._new_model = new_model
        keras.config.set_floatx(floatx)
    return {**result, "weights": last_model(folder).get_weights()}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return train_alone(tmp_path_factory.mktemp("alone") / "run")


def check_workers(
    engine: str,
    results: list[dict[str, Any]],
    alone: dict[str, Any],
    folder: Path,
    place: str = "run",
) -> None:
    """All workers have what one process has; `place` is the folder of a learning rate."""
    atol = 1e-6 if engine == "tensorflow" else 1e-4
    for result in results:
        assert result["best_epoch"] == alone["best_epoch"]
        for entry, expected in zip(result["history"], alone["history"], strict=True):
            for name in ("loss", *OPTIONS["metrics"]):
                assert entry[name] == pytest.approx(expected[name], abs=10 * atol)
        for split, metrics in alone["per_query"].items():
            for name, values in metrics.items():
                found = np.array(result["per_query"][split][name])
                # Exact in which lists count, and how many.
                np.testing.assert_array_equal(np.isnan(found), np.isnan(values))
                np.testing.assert_allclose(found, values, rtol=0, atol=1e-6)
                assert result["means"][split][name] == pytest.approx(np.nanmean(values), abs=1e-6)
        np.testing.assert_allclose(result["scores"], alone["scores"], rtol=0, atol=10 * atol)
    for worker, result in enumerate(results):
        assert ("epoch 4/4" in result["printed"]) == (worker == 0)
        assert ("epoch" in result["printed"]) == (worker == 0)
    written = {path.name for path in (folder / "run").iterdir()}
    assert {"config.json", "metrics.json", "model.keras", "curves.svg"} <= written
    assert not (folder / "elsewhere").exists()  # the chief alone writes
    notes = json.loads((folder / "run" / "config.json").read_text())["notes"]
    assert notes == {"distribute": engine, "workers": len(results)}
    assert_close(last_model(folder / place).get_weights(), alone["weights"], atol)


@pytest.mark.slow
def test_fit_on_two_devices(alone: dict[str, Any], tmp_path: Path) -> None:
    request = {"way": "two_devices", "floatx": "float64", "model": str(tmp_path / "m.keras")}
    [result] = run([{**request, "result": str(tmp_path / "result.json")}])
    for epoch, expected in enumerate(alone["history"]):
        assert result["history"]["loss"][epoch] == pytest.approx(expected["loss"], abs=1e-9)
    for name in OPTIONS["metrics"]:  # the state of a metric is float32
        expected = alone["history"][-1][name]
        assert result["means"]["vali"][name] == pytest.approx(expected, abs=1e-6)
    # Of losses, gradients, scores and the statistics of batch normalisation, in float64.
    assert len(result["differences"]) == 2
    for name, difference in result["differences"].items():
        assert difference < 1e-12, name
    weights = keras.saving.load_model(tmp_path / "m.keras").get_weights()
    assert_close(weights, alone["weights"], 1e-6)


def test_two_workers_of_tensorflow(alone: dict[str, Any], tmp_path: Path) -> None:
    results = run(cluster("tensorflow", tmp_path))
    check_workers("tensorflow", results, alone, tmp_path)


@pytest.mark.slow
def test_two_processes_of_jax(alone: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("jax")
    results = run(cluster("jax", tmp_path))
    check_workers("jax", results, alone, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("engine", distribution.ENGINES)
def test_two_devices_of_one_host(engine: str, alone: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip(engine)
    results = run(cluster(engine, tmp_path, devices=2, workers=1))
    assert "1 workers with 2 devices" in results[0]["printed"]
    check_workers(engine, results, alone, tmp_path)


def kill_one(requests: list[dict[str, Any]], killed: int, place: Path) -> dict[str, Any]:
    """Starts workers, one of which ends in the middle of the third epoch; the state it leaves."""
    requests[killed]["kill"] = True
    with started(requests) as processes:
        assert processes[killed].wait(SECONDS) == -signal.SIGKILL
    state = json.loads((place / "state" / "state.json").read_text())
    assert state["epoch"] == 2
    return state


@pytest.mark.slow
@pytest.mark.parametrize("engine", distribution.ENGINES)
def test_a_killed_worker(engine: str, alone: dict[str, Any], tmp_path: Path) -> None:
    """After a restart the run goes on from the last checkpoint, with the result of none.

    The run of two devices on each of two hosts, which chooses among learning rates, of which one
    keeps no loss finite, and writes for TensorBoard.
    """
    pytest.importorskip(engine)
    slow, fast, too_fast = 0.01, OPTIONS["learning_rate"], 1e38 if engine == "jax" else 1e300
    other = train_alone(tmp_path / "other", learning_rate=slow)
    best, worse = (max(entry["ndcg@5"] for entry in x["history"]) for x in (alone, other))
    assert best > worse  # and the run of the other is the one that is killed
    options = {"learning_rate": [slow, fast, too_fast], "tensorboard": True}
    places = {rate: tmp_path / "run" / "learning-rates" / f"{rate:g}" for rate in (slow, fast)}
    state = kill_one(cluster(engine, tmp_path, devices=2, options=options), 1, places[slow])
    results = run(cluster(engine, tmp_path, devices=2, options=options, resume=True))
    assert "2 workers with 4 devices" in results[0]["printed"]
    assert "is not finite" in results[0]["printed"]
    check_workers(engine, results, alone, tmp_path, f"run/learning-rates/{fast:g}")
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["learning_rate"] == fast
    # Not trained again: these were written before the kill, to the last digit of the time.
    resumed = json.loads((places[slow] / "state" / "state.json").read_text())["history"]
    assert resumed[:2] == state["history"]
    atol = 1e-6 if engine == "tensorflow" else 1e-4
    assert_close(last_model(places[slow]).get_weights(), other["weights"], atol)
    for rate, files in ((slow, 2), (fast, 1)):  # one of each process that wrote
        assert len(list((places[rate] / "tensorboard").iterdir())) == files


@pytest.mark.slow
@pytest.mark.parametrize("engine", distribution.ENGINES)
def test_workers_that_read_records(engine: str, tmp_path: Path) -> None:
    """Lists of each worker's own files; the steps are those of both, and so is the model.

    With dropout, and again with a chief that is killed: the same numbers, to the last digit.
    """
    pytest.importorskip(engine)
    write_records(splits()["train"], tmp_path / "records", shards=3)
    request: dict[str, Any] = {
        "devices": 2,
        "records": str(tmp_path / "records"),
        "options": {"model_options": {**OPTIONS["model_options"], "dropout": 0.4}},
    }
    found = {}
    for name in ("undisturbed", "killed"):
        (tmp_path / name).mkdir()
        if name == "killed":
            kill_one(cluster(engine, tmp_path / name, **request), 0, tmp_path / name / "run")
        found[name] = run(cluster(engine, tmp_path / name, **request, resume=name == "killed"))
    results = found["undisturbed"]
    for name in ("history", "per_query", "scores"):
        np.testing.assert_equal(results[0][name], results[1][name])
    losses = [entry["loss"] for entry in results[0]["history"]]
    assert losses[-1] < losses[0]
    # Of 7 lists in a batch, the workers have 4 and 3: as many steps as the one with the most needs.
    records = open_records(tmp_path / "records")
    steps = max(-(-len(records.shard(worker, 2)) // (4 - worker)) for worker in range(2))
    model = last_model(tmp_path / "undisturbed" / "run")
    assert int(model.optimizer.iterations) == EPOCHS * steps

    for result in found["killed"]:
        for entry, expected in zip(result["history"], results[0]["history"], strict=True):
            for name in ("loss", *OPTIONS["metrics"]):
                assert entry[name] == expected[name]
        for name in ("best_epoch", "means", "per_query", "scores"):
            np.testing.assert_equal(result[name], results[0][name])
    weights = last_model(tmp_path / "killed" / "run").get_weights()
    assert_close(weights, model.get_weights(), 0.0)


# --- in this process


def test_the_command_on_the_devices_of_this_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    synthetic(30, 4, 8, seed=6).to_letor(tmp_path / "data.txt")
    results = {}
    for name, arguments in (("alone", []), ("together", ["--distribute", "tensorflow"])):
        command = f"train {tmp_path / 'data.txt'} --validation-fraction 0.3 --model linear"
        command += f" --loss softmax --batch-size 7 --epochs 2 --out {tmp_path / name}"
        with tfrankloss.config.without_xla():
            cli.main([*command.split(), *arguments])
        results[name] = json.loads((tmp_path / name / "metrics.json").read_text())
        assert ("1 workers with 1 devices" in capsys.readouterr().out) == (name == "together")
    for found, expected in zip(results["together"]["history"], results["alone"]["history"]):
        for name in ("loss", "ndcg@5"):
            assert found[name] == pytest.approx(expected[name], abs=1e-5)
    assert_close(
        keras.saving.load_model(tmp_path / "together" / "model.keras").get_weights(),
        keras.saving.load_model(tmp_path / "alone" / "model.keras").get_weights(),
        1e-5,
    )


def test_parts_of_a_batch() -> None:
    data = synthetic(23, 3, 8, seed=4)
    for options in ({"batch_size": 7}, {"max_documents": 50}):
        plans = [BatchPlan(replicas=6, worker=n, workers=3, **options) for n in range(3)]
        for batch in batches(data, BatchPlan(**options)):
            parts = [plan.of_worker(batch) for plan in plans]
            together = np.concatenate([part.queries for part in parts])
            assert sorted(together) == sorted(batch.queries)
            assert {(part.lists, part.size) for part in parts} == {(parts[0].lists, batch.size)}
            assert parts[0].lists % 2 == 0 and parts[0].lists * 3 >= batch.lists
            rows_of = functools.partial(rows_of_list, data)
            padded = [arrays(rows_of, (3, False), part, plans[0]) for part in parts]
            assert sum(x["mask"].any(axis=1).sum() for x in padded) == len(batch.queries)
    shapes = {
        x.shape
        for worker in range(2)
        for _, x in data.to_dataset(batch_size=7, list_size=32, worker=worker, workers=2)
    }
    assert shapes == {(4, 32)}
    with pytest.raises(ValueError, match="replicas=3, worker=0, workers=2"):
        data.to_dataset(replicas=3, workers=2)
    with pytest.raises(ValueError, match="worker=2, workers=2"):
        data.to_dataset(worker=2, workers=2)


class Threads(distribution.Alone):
    """Workers that are threads of this process, of which one runs while the others wait."""

    def __init__(
        self, worker: int, shared: list[Any], barrier: threading.Barrier, turn: threading.Lock
    ) -> None:
        self.worker, self.workers = worker, len(shared)
        self._shared, self._barrier, self._turn = shared, barrier, turn

    def gather(self, content: bytes) -> list[bytes]:
        return distribution._gather_bytes(content, self._exchange)

    def _exchange(self, numbers: np.ndarray) -> np.ndarray:
        self._shared[self.worker] = numbers
        self._turn.release()
        try:
            self._barrier.wait(20)
            found = np.stack(self._shared)
            self._barrier.wait(20)
        finally:
            self._turn.acquire()
        return found


def in_threads(count: int, work: Callable[[distribution.Alone], Any]) -> list[Any]:
    """What `work` returns or raises in each worker."""
    shared, barrier = [None] * count, threading.Barrier(count)
    turn, results = threading.Lock(), list[Any](shared)

    def one(worker: int) -> None:
        with turn:
            try:
                results[worker] = work(Threads(worker, shared, barrier, turn))
            except Exception as error:
                results[worker] = error

    threads = [threading.Thread(target=one, args=(worker,)) for worker in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize(
    "options", [{"batch_size": 4, "list_size": 16}, {"batch_size": 4}, {"max_documents": 40}]
)
def test_batches_without_lists(options: dict[str, int]) -> None:
    dataset = synthetic(10, 3, 8, seed=4).to_dataset(**options)
    count = int(dataset.cardinality())
    assert filled_up(dataset, count - 1) is dataset
    elements = list(filled_up(dataset, count + 2))
    assert len(elements) == count + 2
    for number, (inputs, labels) in enumerate(elements):
        assert (labels.numpy() >= 0).any() == inputs["mask"].numpy().any() == (number < count)


def test_a_run_from_records_keeps_its_number_of_workers(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"notes": {"workers": 2}}))
    training._check_workers(tmp_path, 2)
    with pytest.raises(ValueError, match="began with, 2. Received: 1"):
        training._check_workers(tmp_path, 1)


def test_records_of_workers_that_need_one_shape(tmp_path: Path) -> None:
    data = splits()
    write_records(data["train"], tmp_path / "records", shards=3)
    given = {**data, "train": open_records(tmp_path / "records")}
    options = training.TrainingOptions(model="linear")
    one = distribution.Alone()
    one.workers, one.same_shapes = 2, True
    with pytest.raises(ValueError, match="give list_size. Received: list_size=None"):
        training._begin_together(one, options, given, False)


def test_evaluation_with_more_workers_than_lists() -> None:
    data = synthetic(3, 4, 6, seed=5)
    model = models.linear(4)
    options = training.TrainingOptions(model="linear", metrics=["ndcg@5", "mrr"])
    expected = scores.evaluate_model(model, data, options, distribution.Alone())
    for workers in (2, 5):
        for found in in_threads(
            workers, lambda one: scores.evaluate_model(model, data, options, one)
        ):
            assert found.means == pytest.approx(expected.means, abs=1e-12)
            np.testing.assert_array_equal(found.query_ids, expected.query_ids)
            for name, values in expected.per_query.items():
                np.testing.assert_allclose(found.per_query[name], values, atol=1e-12)


def test_all_workers_stop_for_the_score_of_one() -> None:
    data = synthetic(8, 4, 6, seed=5)
    data.features[-1] = np.inf
    model = models.linear(4)
    options = training.TrainingOptions(model="linear")
    for found in in_threads(2, lambda one: scores.evaluate_model(model, data, options, one)):
        assert isinstance(found, FloatingPointError)


def test_what_the_chief_says(tmp_path: Path) -> None:
    assert in_threads(3, lambda one: one.agree(lambda: [one.worker])) == [[0], [0], [0]]

    def fails() -> None:
        raise FileExistsError("the folder holds a run already")

    first, *others = in_threads(3, lambda one: one.agree(fails))
    assert isinstance(first, FileExistsError)
    for other in others:
        assert isinstance(other, ValueError) and "folder holds a run already" in str(other)
    (tmp_path / "0").write_bytes(b"content")

    def read(one: distribution.Alone) -> bytes:
        with one.file_of_chief(tmp_path / str(one.worker)) as path:
            return path.read_bytes()

    assert in_threads(2, read) == [b"content"] * 2
    for error in in_threads(3, lambda one: one.check_same("seeds", str(one.worker == 1))):
        assert isinstance(error, ValueError) and "same seeds" in str(error) and "[1]" in str(error)


def test_messages_of_any_size() -> None:
    contents = [b"", b"abcde", bytes(range(256)) * 5]
    for found in in_threads(3, lambda one: one.gather(contents[one.worker])):
        assert found == contents
    assert in_threads(2, lambda one: one.gather(b"")) == [[b"", b""]] * 2


def test_clusters_of_tf_config() -> None:
    jobs = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}
    for kind, index, worker in (("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2)):
        text = json.dumps({"cluster": jobs, "task": {"type": kind, "index": index}})
        assert distribution._tf_config(text) == (["a:1", "b:1", "c:1"], worker)
    assert distribution._tf_config("") == ([], 0)
    for text, problem in (
        ("{", "must be such as"),
        ("{}", "must be such as"),
        (json.dumps({"cluster": jobs, "task": {"type": "ps", "index": 0}}), "'ps' 0"),
        (json.dumps({"cluster": jobs, "task": {"type": "worker", "index": 2}}), "'worker' 2"),
    ):
        with pytest.raises(ValueError, match=problem):
            distribution._tf_config(text)


def test_what_cannot_be_distributed() -> None:
    data: dict[str, RankingData] = splits()
    with pytest.raises(ValueError, match="KERAS_BACKEND=jax"):
        tfrankloss.train(data, distribute="jax")
    with pytest.raises(ValueError, match="'spark'"):
        tfrankloss.train(data, distribute="spark")
    for options, problem in (
        ({"model": "lightgbm", "loss": "lambdarank"}, "distribute is for networks"),
        ({"jit": True}, "jit is not available"),
        ({"mixed_precision": "mixed_float16"}, "'mixed_bfloat16'"),
    ):
        with pytest.raises(ValueError, match=problem):
            tfrankloss.train(data, distribute="tensorflow", **options)
