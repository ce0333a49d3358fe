"""Padded batches of lists of similar length, for `model.fit`."""

import atexit
import contextlib
import functools
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from tfrankloss.options import check_choice, check_integer

if TYPE_CHECKING:
    import tensorflow as tf

    from tfrankloss.data.ranking_data import RankingData

# XLA compiles a program per size.
MOST_SIZES = 12
BATCH_SIZE = 128
MULTIPLE = 8


@dataclass(frozen=True)
class BatchPlan:
    """How lists become batches; the arguments of `RankingData.to_dataset`."""

    batch_size: int | None = None
    max_documents: int | None = None
    shuffle: bool = True
    seed: int = 0
    list_size: int | None = None
    truncate: str = "relevant"
    repeat: bool = False
    inputs: str = "dict"
    drop_remainder: bool = False
    first_epoch: int = 0
    replicas: int = 1
    worker: int = 0
    workers: int = 1

    def __post_init__(self) -> None:
        for name in ("batch_size", "max_documents", "list_size"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), minimum=1)
        check_integer("seed", self.seed, minimum=0)
        check_integer("first_epoch", self.first_epoch, minimum=0)
        check_integer("replicas", self.replicas, minimum=1)
        if self.replicas % self.workers or not 0 <= self.worker < self.workers:
            raise ValueError(
                "Each of the workers has as many replicas as the others, and worker is below "
                f"workers. Received: replicas={self.replicas}, worker={self.worker}, "
                f"workers={self.workers}"
            )
        check_choice("inputs", self.inputs, ("dict", "features"))
        check_choice("truncate", self.truncate, ("relevant", "position"))
        if self.batch_size is not None and self.max_documents is not None:
            raise ValueError(
                "Either batch_size or max_documents sets how much a batch holds. "
                f"Received: batch_size={self.batch_size}, max_documents={self.max_documents}"
            )
        if (self.list_size or 1) > (self.max_documents or np.inf):
            raise ValueError(
                "A batch must hold a list. "
                f"Received: list_size={self.list_size}, max_documents={self.max_documents}"
            )

    def lists_per_batch(self, size: int) -> int:
        """The number of lists of a size that come together."""
        if self.max_documents is None:
            return self.batch_size or BATCH_SIZE
        return max(1, self.max_documents // size)

    def lists_of_worker(self, lists: int) -> int:
        """How many of the lists of a batch a worker has, filled up for all of its replicas."""
        return -(-lists // self.replicas) * (self.replicas // self.workers)

    def share_of_worker(self, lists: int) -> int:
        """How many of the lists of a batch are real ones of this worker, at least one."""
        return max(1, lists // self.workers + (self.worker < lists % self.workers))

    def of_worker(self, batch: "Batch") -> "Batch":
        """The part of a batch that a worker has: all have the same shape."""
        queries = batch.queries[self.worker :: self.workers]
        return Batch(queries, self.lists_of_worker(batch.lists), batch.size)


def make_plan(*, replicas: int | None = None, workers: int = 1, **options: Any) -> BatchPlan:
    """A plan for the replicas of the strategy in whose scope it is made, if none are given."""
    import tensorflow as tf

    if replicas is None:
        replicas = max(tf.distribute.get_strategy().num_replicas_in_sync, workers)
    return BatchPlan(replicas=replicas, workers=workers, **options)


class Batch(NamedTuple):
    """Which queries come together, and the shape they are padded to."""

    queries: np.ndarray
    lists: int
    size: int


def batches(data: "RankingData", plan: BatchPlan, epoch: int = 0) -> list[Batch]:
    """All batches of an epoch.

    From the longest lists to the shortest: what does not fill a batch of its size is joined by the
    longest of the lists that follow, so that only the shortest lists can leave a batch incomplete.
    The shapes, and how often each comes, are the same in all epochs.
    """
    generator = np.random.default_rng([plan.seed, epoch])
    lengths = data.lengths
    sizes = sizes_of(lengths, plan)
    if plan.list_size is not None:
        lengths = np.minimum(lengths, plan.list_size)
    order = generator.permutation(len(data)) if plan.shuffle else np.arange(len(data))
    order = order[np.argsort(-lengths[order], kind="stable")]
    planned = []
    start = 0
    for size, smaller in zip(sizes[::-1], [*sizes[:-1][::-1], 0], strict=True):
        lists = plan.lists_per_batch(size)
        waiting = (lengths > smaller).sum() - start
        queries = order[start : start + max(0, -(-waiting // lists) * lists)]
        start += len(queries)
        # Lists of equal length would otherwise always meet.
        queries = generator.permutation(queries) if plan.shuffle else np.sort(queries)
        parts = [queries[first : first + lists] for first in range(0, len(queries), lists)]
        planned += [Batch(part, lists, size) for part in parts]
    if plan.drop_remainder:
        planned = [batch for batch in planned if len(batch.queries) == batch.lists]
    if plan.shuffle:
        generator.shuffle(planned)
    return planned


def sizes_of(lengths: np.ndarray, plan: BatchPlan, parts: int = 1) -> list[int]:
    """The sizes that lists of these lengths are padded to, in each of so many parts of them."""
    if plan.list_size is not None:
        return [plan.list_size]
    # A size that is used once or twice is not worth its program.
    amount = len(lengths) if plan.max_documents is None else lengths.sum()
    count = amount // (2 * parts * (plan.max_documents or plan.lists_per_batch(1)))
    return list_sizes(lengths, most=int(np.clip(count, 1, MOST_SIZES)))


def list_sizes(lengths: np.ndarray, most: int = MOST_SIZES) -> list[int]:
    """At most `most` sizes, multiples of eight, that pad lists of these lengths the least.

    By dynamic programming over the possible sizes: the least padding up to size `j` with one more
    size is the best over all sizes `i` that may come before it.

    >>> list_sizes(np.array([3, 5, 8, 30, 31]), most=2)
    [8, 32]
    """
    if not len(lengths):
        return [MULTIPLE]
    rounded = -(-lengths // MULTIPLE) * MULTIPLE
    possible, counts = np.unique(rounded, return_counts=True)
    if len(possible) > 512:  # every size in the tail is not worth its time
        kept = np.unique(np.linspace(0, len(possible) - 1, 512).round().astype(int))
        possible = possible[kept]
        counts = np.bincount(np.searchsorted(possible, rounded), minlength=len(possible))
    below = np.concatenate([[0], np.cumsum(counts)])  # lists smaller than each size
    first = np.arange(len(possible) + 1)
    # cost[i, j]: the lists above the first i sizes and up to the j-th, all padded to that
    cost = (below[None, 1:] - below[:, None]) * possible[None, :].astype(float)
    cost[first[:, None] > first[None, :-1]] = np.inf
    best = np.concatenate([[0.0], np.full(len(possible), np.inf)])
    choices = []
    for _ in range(min(most, len(possible))):
        candidates = best[:, None] + cost
        choices.append(candidates.argmin(axis=0))
        best = np.concatenate([[np.inf], candidates.min(axis=0)])
    chosen = []
    last = len(possible)
    for choice in reversed(choices):
        chosen.append(int(possible[last - 1]))
        last = choice[last - 1]
    return chosen[::-1]


# The features, labels and weights of a list.
Rows = tuple[np.ndarray, np.ndarray, np.ndarray | None]


def arrays(
    rows_of: Callable[[int], Rows],
    columns: tuple[int, bool],
    batch: Batch,
    plan: BatchPlan,
    epoch: int = 0,
) -> dict[str, Any]:
    """Features, mask, labels and weights of a batch, padded.

    Args:
        rows_of: gives the arrays of a list by its number.
        columns: the number of features, and whether there are weights.
        batch: which lists.
        plan: how they are cut.
        epoch: by whose number documents are drawn where lists are cut.
    """
    num_features, weighted = columns
    shape = (batch.lists, batch.size)
    features = np.empty((*shape, num_features), np.float32)
    mask = np.zeros(shape, mask_type(plan))
    labels = np.full(shape, -1.0, np.float32)
    weights = np.zeros(shape, np.float32) if weighted else None
    for place, query in enumerate(batch.queries.tolist()):
        rows = rows_of(query)
        length = min(len(rows[1]), batch.size)
        kept: Any = slice(length)
        if length < len(rows[1]) and plan.truncate == "relevant":
            kept = _relevant_first(rows[1], length, plan, epoch, query)
        features[place, :length] = rows[0][kept]
        features[place, length:] = 0.0
        mask[place, :length] = True
        labels[place, :length] = rows[1][kept]
        if weights is not None:
            weights[place, :length] = cast(np.ndarray, rows[2])[kept]
    features[len(batch.queries) :] = 0.0
    return {"features": features, "mask": mask, "labels": labels, "weights": weights}


def mask_type(plan: BatchPlan) -> Any:
    """Keras' `fit` adds up what replicas have, to learn its shape; truth values have no sum."""
    return np.float32 if plan.replicas > plan.workers else np.bool_


def _relevant_first(
    labels: np.ndarray, size: int, plan: BatchPlan, epoch: int, query: int
) -> np.ndarray:
    """The places of the highest labels and, of equal ones, some at random; in their order."""
    generator = np.random.default_rng([plan.seed, epoch if plan.shuffle else 0, query])
    best = np.lexsort([generator.random(len(labels)), -labels])[:size]
    return np.sort(best)


def make_dataset(data: "RankingData", plan: BatchPlan) -> "tf.data.Dataset":
    """The dataset of a plan, see `RankingData.to_dataset`."""
    import tensorflow as tf

    if not len(data):
        raise ValueError("There are no queries to make batches of. Received: empty data")
    first = batches(data, plan)
    check_batches(plan, len(first), len(data), sizes_of(data.lengths, plan), data.lengths.max())
    batches_of = functools.lru_cache(maxsize=2)(lambda epoch: batches(data, plan, epoch))
    rows_of = functools.partial(rows_of_list, data)
    columns = (data.num_features, data.weights is not None)
    specs = element(plan, element_specs(plan, *columns))

    def make(epoch: np.int64, place: np.int64) -> list[np.ndarray]:
        batch = plan.of_worker(batches_of(int(epoch))[int(place)])
        return tf.nest.flatten(element(plan, arrays(rows_of, columns, batch, plan, int(epoch))))

    dataset = numbered(plan, len(first))
    dataset = dataset.map(lambda *place: from_python(make, [*place], specs))
    return finished(dataset, plan, len(first))


def rows_of_list(data: "RankingData", query: int) -> Rows:
    """The arrays of a list of data in memory."""
    rows = slice(*data.row_splits[query : query + 2].tolist())
    weights = None if data.weights is None else data.weights[rows]
    return data.features[rows], data.labels[rows], weights


def numbered(plan: BatchPlan, count: int) -> "tf.data.Dataset":
    """The numbers of the epoch and of the batch in it, for all `count` of them."""
    import tensorflow as tf

    places = tf.data.Dataset.range(count)
    return epochs(plan).flat_map(lambda epoch: places.map(lambda place: (epoch, place)))


def epochs(plan: BatchPlan) -> "tf.data.Dataset":
    """The number of the epoch, a new one for each iteration; all of them where there is no end."""
    import tensorflow as tf

    if plan.repeat:
        return tf.data.Dataset.range(plan.first_epoch, 2**62)
    numbers = itertools.count(plan.first_epoch)
    spec = tf.TensorSpec([], tf.int64)
    return tf.data.Dataset.range(1).map(
        lambda _: from_python(lambda: [np.int64(next(numbers))], [], spec)
    )


def from_python(function: Callable[..., Any], arguments: list[Any], specs: Any) -> Any:
    """The arrays that a Python function lists, as tensors in the structure of `specs`.

    In place of `Dataset.from_generator`, which makes malloc give back whatever is freed at once:
    networks on batches of several sizes then take half as long again, to get their memory anew.
    """
    import tensorflow as tf

    flat = tf.nest.flatten(specs)
    called = functools.partial(_CALLS.run, function)
    values = tf.numpy_function(called, arguments, [spec.dtype for spec in flat])
    values = [tf.ensure_shape(x, spec.shape) for x, spec in zip(values, flat, strict=True)]
    return tf.nest.pack_sequence_as(specs, values)


class _Calls:
    """Calls into Python from the threads of datasets.

    One that comes while Python ends never returns, and TensorFlow waits for it: a program that has
    not read a dataset to its end would hang. So the end waits until all that is read ahead is.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = self._ended = 0
        self._error: Exception | None = None
        atexit.register(self._wait)

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function."""
        with self._lock:
            self._begun += 1
        try:
            return function(*arguments)
        except Exception as error:
            self._error = error
            raise
        finally:
            with self._lock:
                self._ended += 1

    @contextlib.contextmanager
    def own_errors(self) -> Iterator[None]:
        """What a function raises is raised here, in place of what TensorFlow makes of it."""
        self._error = None
        try:
            yield
        except Exception:
            if self._error is not None:
                raise self._error from None
            raise

    def _wait(self, seconds: float = 10.0, still: float = 0.05) -> None:
        end = time.monotonic() + seconds
        begun = -1
        while (begun != self._begun or begun != self._ended) and time.monotonic() < end:
            begun = self._begun
            time.sleep(still if begun else 0.0)


_CALLS = _Calls()
own_errors = _CALLS.own_errors


def check_batches(
    plan: BatchPlan, count: int, queries: int, sizes: Sequence[int], longest: int
) -> None:
    """Raises where an epoch would have no batch, or lists do not fit into one."""
    if not count:
        raise ValueError(
            f"drop_remainder=True leaves no batch of {queries} queries. "
            f"Received: batch_size={plan.batch_size}, max_documents={plan.max_documents}"
        )
    if sizes[-1] > (plan.max_documents or sizes[-1]):
        raise ValueError(
            f"A list of {longest} documents, padded to {sizes[-1]}, is longer than a "
            f"batch may be (list_size cuts lists). Received: max_documents={plan.max_documents}"
        )


def element_specs(plan: BatchPlan, num_features: int, weighted: bool) -> dict[str, Any]:
    """The shapes and types of a batch."""
    import tensorflow as tf

    lists = plan.lists_of_worker(plan.lists_per_batch(plan.list_size or 1))
    static = plan.list_size is not None or plan.max_documents is None
    shape = (lists if static else None, plan.list_size)
    return {
        "features": tf.TensorSpec((*shape, num_features), tf.float32),
        "mask": tf.TensorSpec(shape, mask_type(plan)),
        "labels": tf.TensorSpec(shape, tf.float32),
        "weights": tf.TensorSpec(shape, tf.float32) if weighted else None,
    }


def finished(dataset: "tf.data.Dataset", plan: BatchPlan, count: int) -> "tf.data.Dataset":
    """The dataset with the number of its batches, read ahead."""
    import tensorflow as tf

    cardinality = tf.data.INFINITE_CARDINALITY if plan.repeat else count
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(cardinality))
    # Two batches ahead, not as many as TensorFlow finds best: its tuning thread sleeps ever longer,
    # and now and then an epoch ends only when it wakes.
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.prefetch(2).with_options(options)


def filled_up(dataset: "tf.data.Dataset", count: int) -> "tf.data.Dataset":
    """The dataset with batches of empty lists, which count nowhere, until there are `count`."""
    import tensorflow as tf

    missing = count - int(dataset.cardinality())
    if missing <= 0:
        return dataset

    def zeros(spec: Any) -> Any:
        return tf.zeros([size or MULTIPLE for size in spec.shape], spec.dtype)

    inputs, labels, *weights = dataset.element_spec
    empty = (tf.nest.map_structure(zeros, inputs), zeros(labels) - 1.0, *map(zeros, weights))
    return dataset.concatenate(tf.data.Dataset.from_tensors(empty).repeat(missing))


def element(plan: BatchPlan, parts: dict[str, Any]) -> Any:
    """What the dataset yields, of arrays or of their descriptions."""
    inputs = parts["features"]
    if plan.inputs == "dict":
        inputs = {"features": parts["features"], "mask": parts["mask"]}
    end = () if parts["weights"] is None else (parts["weights"],)
    return (inputs, parts["labels"], *end)


def predict(data: "RankingData", model: Any, max_documents: int) -> np.ndarray:
    """The scores of each document, see `RankingData.predict`."""
    import keras

    longest = int(data.lengths.max(initial=1)) + MULTIPLE
    plan = BatchPlan(max_documents=max(max_documents, longest), shuffle=False)
    rows_of = functools.partial(rows_of_list, data)
    named = isinstance(getattr(model, "input", None), dict)
    result: np.ndarray | None = None
    for batch in batches(data, plan) if len(data) else []:
        parts = arrays(rows_of, (data.num_features, False), batch, plan)
        inputs = {"features": parts["features"], "mask": parts["mask"]}
        outputs = model(inputs if named else parts["features"], training=False)
        scores = keras.ops.convert_to_numpy(outputs)
        if scores.shape[:2] != parts["mask"].shape:
            raise ValueError(
                "The model must give one score per document, [batch, list]. "
                f"Received: {scores.shape} for {parts['mask'].shape}"
            )
        scores = scores[..., 0] if scores.shape[2:] == (1,) else scores
        if result is None:
            result = np.empty((data.num_documents, *scores.shape[2:]), scores.dtype)
        lengths = data.lengths[batch.queries]
        first = data.row_splits[batch.queries]
        inside = np.arange(batch.size) < lengths[:, None]
        rows = (first[:, None] + np.arange(batch.size))[inside]
        result[rows] = scores[: len(batch.queries)][inside]
    return np.empty(0, np.float32) if result is None else result
