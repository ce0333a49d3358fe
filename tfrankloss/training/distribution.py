"""Training on several devices and hosts, with the result of one.

All workers are given the same data and options. They plan the same batches from the same seed, and
each computes its lists of each batch: see `RankingData.to_dataset`. What is decided is decided
once, from what all have gathered, and the chief alone writes.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfrankloss.core import backend
from tfrankloss.options import check_choice

ENGINES = ("tensorflow", "jax")


class Alone:
    """One process with one device; what it trains, it trains with `fit`.

    Attributes:
        worker: number of this process among the workers; 0 is the chief.
        workers: how many there are.
        replicas: devices of all workers.
        same_shapes: whether the batches of all workers must have the same shape in each step.
    """

    worker = 0
    workers = 1
    replicas = 1
    same_shapes = False

    @property
    def chief(self) -> bool:
        """Whether this process writes."""
        return self.worker == 0

    @property
    def dropout_stream(self) -> int:
        """Workers that draw for their own lists alone draw other numbers than the chief."""
        return 0

    def check(self, jit: bool | None, mixed_precision: str | None) -> None:
        """Raises where the engine does not have what is asked for."""

    def scope(self) -> Any:
        """Where models are made that are to be trained."""
        return contextlib.nullcontext()

    def fit(self, model: keras.Model, dataset: Any, after_batch: Callable[[int], None]) -> float:
        """Trains on all batches of this worker once; returns the loss."""
        counter = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: after_batch(batch + 1)
        )
        with self.scope():
            fitted = model.fit(dataset, shuffle=False, verbose=0, callbacks=[counter])
        return float(fitted.history["loss"][-1])

    def local(self, model: keras.Model) -> keras.Model:
        """The model, or a copy of it, that this worker can call without the others."""
        return model

    def gather(self, content: bytes) -> list[bytes]:
        """What each worker has, in each of them."""
        return [content]

    def agree(self, decide: Callable[[], Any]) -> Any:
        """What the chief decides, which JSON can hold; if it fails, all do."""
        if self.workers == 1:
            return decide()
        answer: dict[str, Any] = {}
        failure: Exception | None = None
        if self.chief:
            try:
                answer["value"] = decide()
            except Exception as error:
                failure, answer["error"] = error, str(error)
        answer = json.loads(self.gather(json.dumps(answer).encode())[0])
        if failure is not None:
            raise failure
        if "error" in answer:
            raise ValueError(f"The chief stopped: {answer['error']}")
        return answer["value"]

    def check_same(self, what: str, content: str) -> None:
        """Raises where a worker has something else than the chief."""
        contents = self.gather(content.encode())
        other = [number for number, x in enumerate(contents) if x != contents[0]]
        if other:
            raise ValueError(
                f"All workers must be given the same {what}. Received: something else in the "
                f"workers {other} than in the chief"
            )

    @contextlib.contextmanager
    def file_of_chief(self, path: Path) -> Iterator[Path]:
        """A file that the chief has, or a copy of it for a worker that may not see it."""
        content = self.gather(path.read_bytes() if self.chief and self.workers > 1 else b"")[0]
        if self.chief:
            yield path
            return
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, path.name)
            copy.write_bytes(content)
            yield copy


class Cluster(Alone):
    """Several devices, of one or more hosts."""

    _copies: tuple[keras.Model | None, Any] = (None, None)

    def local(self, model: keras.Model) -> keras.Model:
        """A copy that runs on this host alone."""
        if self._copies[0] is not model:
            copy = type(model).from_config(model.get_config())
            copy.compile(loss=model.loss)
            self._copies = (model, copy)
        copy = self._copies[1]
        copy.set_weights(model.get_weights())
        return copy


class TensorFlowCluster(Cluster):
    """The hosts of `TF_CONFIG`, or without it the devices of this host, under `tf.distribute`.

    Keras' `fit` does not run under `MultiWorkerMirroredStrategy` (keras-team/keras#20585), but its
    training step and its optimizers do.
    """

    def __init__(self) -> None:
        import tensorflow as tf

        tasks, self.worker = _tf_config(os.environ.get("TF_CONFIG", ""))
        self.workers = max(1, len(tasks))
        try:
            self._strategy = (
                tf.distribute.MultiWorkerMirroredStrategy()
                if tasks
                else tf.distribute.MirroredStrategy()
            )
        except RuntimeError as error:
            raise ValueError(
                "A cluster is joined before TensorFlow computes anything: call train before, or "
                f"tfrankloss.training.join_cluster('tensorflow') at the start. Received: {error}"
            ) from error
        self.replicas = self._strategy.num_replicas_in_sync
        self._programs: tuple[keras.Model | None, Any] = (None, None)
        self._sum = self._make_sum()

    @property
    def dropout_stream(self) -> int:
        """The number of the worker."""
        return self.worker

    def check(self, jit: bool | None, mixed_precision: str | None) -> None:
        """XLA does not compile a step whose sums cross the network.

        Keras scales the loss of float16, and each worker alone would decide whether its gradients
        are finite, so that one makes a step for which the other does not come.
        """
        if jit:
            raise ValueError("jit is not available with distribute='tensorflow'. Received: True")
        if mixed_precision == "mixed_float16":
            raise ValueError(
                "With distribute='tensorflow', mixed_precision is None or 'mixed_bfloat16'. "
                f"Received: {mixed_precision!r}"
            )

    def scope(self) -> Any:
        """The scope of the strategy."""
        return self._strategy.scope()

    def fit(self, model: keras.Model, dataset: Any, after_batch: Callable[[int], None]) -> float:
        """Trains on all batches of this worker once; returns the loss."""
        if self._programs[0] is not model:
            with self.scope():
                model.optimizer.build(model.trainable_variables)
            self._programs = (model, self._make_step(model, dataset.element_spec))
        step = self._programs[1]
        model.reset_metrics()
        loss: Any = np.nan
        for number, batch in enumerate(dataset, start=1):
            loss = step(*batch)
            after_batch(number)
        return float(loss)

    def _make_step(self, model: keras.Model, specs: Any) -> Callable[..., Any]:
        """A step on the lists of this worker, of which each of its replicas takes its part."""
        import tensorflow as tf

        local = self.replicas // self.workers

        def of_replica(*batch: Any) -> Any:
            place = tf.distribute.get_replica_context().replica_id_in_sync_group % local

            def part(x: Any) -> Any:
                lists = tf.shape(x)[0] // local
                return x[place * lists : (place + 1) * lists]

            mine = batch if local == 1 else keras.tree.map_structure(part, batch)
            return model.train_step(mine)["loss"]

        def step(*batch: Any) -> Any:
            # The loss that a replica sees is that of all.
            results = self._strategy.run(of_replica, args=batch)
            return self._strategy.experimental_local_results(results)[0]

        return tf.function(step, input_signature=specs, autograph=False)

    def gather(self, content: bytes) -> list[bytes]:
        """What each worker has, in each of them."""
        return _gather_bytes(content, self._exchange) if self.workers > 1 else [content]

    def _exchange(self, numbers: np.ndarray) -> np.ndarray:
        """`[workers, count]`, of as many numbers in each worker."""
        rows = np.zeros((self.workers, len(numbers)), np.int32)
        rows[self.worker] = numbers
        return self._sum(rows).numpy()

    def _make_sum(self) -> Callable[[np.ndarray], Any]:
        """The sum over all workers: one program for all sizes, as gathering would not be."""
        import tensorflow as tf

        local = self.replicas // self.workers

        def of_replica(rows: Any) -> Any:
            context = tf.distribute.get_replica_context()
            first = tf.cast(context.replica_id_in_sync_group % local == 0, tf.int32)
            return context.all_reduce(tf.distribute.ReduceOp.SUM, rows * first)

        def total(rows: Any) -> Any:
            results = self._strategy.run(of_replica, args=(rows,))
            return self._strategy.experimental_local_results(results)[0]

        signature = [tf.TensorSpec([self.workers, None], tf.int32)]
        return tf.function(total, input_signature=signature, autograph=False)


class JaxCluster(Cluster):
    """The processes of `keras.distribution.initialize`, or else all devices of this host."""

    same_shapes = True

    def __init__(self) -> None:
        import jax

        if not jax.distributed.is_initialized():
            try:
                keras.distribution.initialize()
            except RuntimeError as error:
                raise ValueError(
                    "A cluster is joined before JAX computes anything: call train before, or "
                    f"tfrankloss.training.join_cluster('jax') at the start. Received: {error}"
                ) from error
            except ValueError as error:
                # What JAX says where nothing describes a cluster. A part of a description must not
                # make each host the chief of its own.
                names = ("KERAS_DISTRIBUTION_", "JAX_COORDINATOR_ADDRESS")
                described = [x for x in os.environ if x.startswith(names)]
                if "should be defined" not in str(error) or described:
                    raise ValueError(
                        f"The cluster is not fully described: {error}. Received: {described}"
                    ) from error
        self.worker, self.workers = jax.process_index(), jax.process_count()
        self.replicas = jax.device_count()
        self._distribution = keras.distribution.DataParallel(auto_shard_dataset=False)

    def check(self, jit: bool | None, mixed_precision: str | None) -> None:
        """Only a compiled program runs on several hosts."""
        if jit is False:
            raise ValueError("distribute='jax' always compiles. Received: jit=False")

    def scope(self) -> Any:
        """The scope of the distribution."""
        return self._distribution.scope()

    def gather(self, content: bytes) -> list[bytes]:
        """What each process has, in each of them."""
        from jax.experimental import multihost_utils

        if self.workers == 1:
            return [content]
        return _gather_bytes(content, multihost_utils.process_allgather)


def engine_errors() -> tuple[type[Exception], ...]:
    """What the engine raises where another worker does not answer any more."""
    if backend.NAME == "jax":
        return (RuntimeError,)
    import tensorflow as tf

    names = ("UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError")
    return tuple(getattr(tf.errors, name) for name in names)  # not those of damaged data


_joined: dict[str, Alone] = {}


def join_cluster(engine: str | None) -> Alone:
    """The workers that train together; a process belongs to one cluster, as long as it lives.

    Args:
        engine: `"tensorflow"`, for the hosts that the environment variable `TF_CONFIG` names, or
            `"jax"`, for the processes that `keras.distribution.initialize` finds: by
            `KERAS_DISTRIBUTION_JOB_ADDRESSES`, `KERAS_DISTRIBUTION_NUM_PROCESSES` and
            `KERAS_DISTRIBUTION_PROCESS_ID`, or as JAX knows clusters of Slurm, MPI, Kubernetes and
            Cloud TPU. Without them all devices of this host. None for a process alone.
    """
    if engine is None:
        return Alone()
    check_choice("distribute", engine, ENGINES)
    if engine != backend.NAME:
        raise ValueError(
            f"distribute={engine!r} needs KERAS_BACKEND={engine} in the environment. "
            f"Received: the backend {backend.NAME!r}"
        )
    if engine not in _joined:
        _joined[engine] = TensorFlowCluster() if engine == "tensorflow" else JaxCluster()
    return _joined[engine]


def _tf_config(text: str) -> tuple[list[str], int]:
    """The addresses of the workers, the chief first, and which of them this process is."""
    if not text:
        return [], 0
    try:
        config = json.loads(text)
        jobs, task = config["cluster"], config["task"]
        kind, number = task["type"], int(task["index"])
        tasks = [
            (job, index) for job in ("chief", "worker") for index in range(len(jobs.get(job, [])))
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            'TF_CONFIG must be such as {"cluster": {"worker": ["host1:12345", "host2:12345"]}, '
            f'"task": {{"type": "worker", "index": 0}}}}. Received: {text} '
            + (f"(without {error})" if isinstance(error, KeyError) else f"({error})")
        ) from error
    if (kind, number) not in tasks:
        raise ValueError(
            "The task of TF_CONFIG must be a chief or worker of its cluster. "
            f"Received: {kind!r} {number} of {jobs}"
        )
    return [jobs[job][index] for job, index in tasks], tasks.index((kind, number))


def _gather_bytes(content: bytes, exchange: Callable[[np.ndarray], np.ndarray]) -> list[bytes]:
    """What each worker has, of any size, by an exchange of int32 arrays of one size."""
    sizes = np.asarray(exchange(np.array([len(content)], np.int32)))[:, 0]
    padded = np.zeros(-(-max(1, int(sizes.max())) // 4) * 4, np.uint8)
    padded[: len(content)] = np.frombuffer(content, np.uint8)
    rows = np.asarray(exchange(padded.view(np.int32))).astype(np.int32)
    return [row.tobytes()[:size] for row, size in zip(rows, sizes.tolist(), strict=True)]
