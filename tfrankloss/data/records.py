"""Reading record files: a pipeline of batches in TensorFlow's own operations.

Records stay bytes until a batch of them is complete; then one operation for each array reads and
pads all of its lists.
"""

import fnmatch
import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tfrankloss.data.batches import (
    BatchPlan,
    check_batches,
    element,
    element_specs,
    finished,
    sizes_of,
)
from tfrankloss.data.parsing import query_names
from tfrankloss.data.ranking_data import RankingData, check_shard, splits_of
from tfrankloss.data.record_files import FORMAT, SCHEMA, merge_histograms
from tfrankloss.options import check_choice, check_integer

if TYPE_CHECKING:
    import tensorflow as tf

# Files that are read in turns when lists are shuffled.
CYCLE = 16
# Lists among which the next one is drawn.
SHUFFLE_BUFFER = 1024
SPLITS = ("train", "vali", "test")


@dataclass(frozen=True, repr=False, eq=False)
class Records:
    """Ranking data in record files, opened by `open_records`; nothing of them is in memory.

    Attributes:
        folder: where they are.
        schema: what was noted of all files when they were written, see `statistics`.
        files: the entries in the schema of those that are read.
        parts: into how many shards the files were divided.
        only_relevant: whether lists without a label above 0 are passed over.
    """

    folder: str
    schema: Mapping[str, Any]
    files: Sequence[Mapping[str, Any]]
    parts: int = 1
    only_relevant: bool = False

    def __repr__(self) -> str:
        return (
            f"Records({len(self)} queries, {self.num_documents} documents, "
            f"{self.num_features} features, {len(self.files)} files)"
        )

    def __len__(self) -> int:
        """The number of queries."""
        return sum(self._lengths(self.files).values())

    @property
    def num_queries(self) -> int:
        """The number of queries."""
        return len(self)

    @property
    def num_documents(self) -> int:
        """The number of documents of all queries."""
        return sum(length * count for length, count in self._lengths(self.files).items())

    @property
    def num_features(self) -> int:
        """The number of features."""
        return self.schema["num_features"]

    @property
    def max_label(self) -> float:
        """The highest label."""
        return max((file["max_label"] for file in self.files), default=0.0)

    @property
    def statistics(self) -> Mapping[str, Any]:
        """What is known of the features of all files, also where only some are read.

        Lists with an entry per feature: `mean` and `deviation`, `minimum` and `maximum` of its
        finite values, the number of which is `finite`; `log1p_mean` and `log1p_deviation` of what
        `Log1p` makes of them; and `quantiles`, a dictionary from `"0.01"` to `"0.99"`, of a sample
        of 10,000 documents (`sampled` says how many; of all where there are fewer).
        """
        return self.schema["statistics"]

    def _lengths(self, files: Sequence[Mapping[str, Any]]) -> dict[int, int]:
        """How many lists of each length there are."""
        name = "relevant" if self.only_relevant else "lengths"
        merged = merge_histograms(file[name] for file in files)
        return {int(length): count for length, count in merged.items()}

    def shard(self, index: int, count: int) -> "Records":
        """The record files of one of `count` workers, with about as many documents each.

        Args:
            index: which worker, from 0.
            count: number of workers, at most the number of files.
        """
        check_shard(index, count)
        if self.parts > 1:
            raise ValueError(f"These files are a shard already, of {self.parts}: divide all files")
        filled = [file for file in self.files if file["documents"]]
        if count > len(filled):
            raise ValueError(
                f"Each worker reads files of its own, and {self.folder} has {len(filled)} with "
                f"documents: write more of them (--shards). Received: count={count}"
            )
        documents = [0] * count
        chosen: list[list[Mapping[str, Any]]] = [[] for _ in range(count)]
        for file in sorted(filled, key=lambda file: (-file["documents"], file["name"])):
            lightest = documents.index(min(documents))
            documents[lightest] += file["documents"]
            chosen[lightest].append(file)
        files = sorted(chosen[index], key=lambda file: file["name"])
        return replace(self, files=files, parts=count)

    def discard_without_relevant(self) -> "Records":
        """The same without queries that have no label above 0."""
        return replace(self, only_relevant=True)

    def digest(self) -> str:
        """A number that other data do not have, from the checksums of the files."""
        known = [self.num_features, self.only_relevant, self.schema["statistics"], list(self.files)]
        return hashlib.sha256(json.dumps(known).encode()).hexdigest()

    def to_dataset(
        self, *, shuffle_buffer: int = SHUFFLE_BUFFER, **options: Any
    ) -> "tf.data.Dataset":
        """Padded batches that are read while they are used, as `RankingData.to_dataset` has them.

        Shuffled, files are read in another order in every epoch, sixteen at a time, and lists are
        drawn from a buffer; the same seed gives the same order. The sizes that lists are padded to
        come from the lengths of all files, so that they are the same in all shards. Lists wait
        until as many of their size are there as a batch holds: together with the buffer this is
        what is held in memory. What is left of the sizes at the end goes into common batches.

        Args:
            shuffle_buffer: number of lists among which the next one is drawn.
            **options: see `RankingData.to_dataset`.
        """
        check_integer("shuffle_buffer", shuffle_buffer, minimum=1)
        for name in options:
            check_choice("The name of an option", name, tuple(BatchPlan.__dataclass_fields__))
        return _make_dataset(self, BatchPlan(**options), shuffle_buffer)

    def to_ranking_data(self) -> RankingData:
        """All of it in memory, file by file; for validation data."""
        import tensorflow as tf

        rows = self.num_documents
        features = np.empty((rows, self.num_features), np.float32)
        labels = np.empty(rows, np.float32)
        weights = np.empty(rows, np.float32) if self.schema["weights"] else None
        arrays = {"features": features.reshape(-1), "labels": labels}
        if weights is not None:
            arrays["weights"] = weights
        spec = {name: tf.io.FixedLenFeature([], tf.string) for name in (*arrays, "query")}
        spec |= {"length": tf.io.FixedLenFeature([], tf.int64)}
        spec |= {"documents": tf.io.RaggedFeature(tf.string)}
        lengths: list[int] = []
        queries: list[bytes] = []
        names: list[str] = []
        place = dict.fromkeys(arrays, 0)
        order = np.arange(len(self.files))
        for batch in _lists(self, tf.constant(order), 1).batch(256):
            _check_damage(batch)
            parsed = tf.io.parse_example(batch, spec)
            for name, array in arrays.items():
                values = np.frombuffer(b"".join(parsed[name].numpy().tolist()), "<f4")
                array[place[name] : place[name] + len(values)] = values
                place[name] += len(values)
            new = parsed["length"].numpy().tolist()
            lengths += new
            queries += parsed["query"].numpy().tolist()
            if self.schema["document_ids"]:
                documents = parsed["documents"].to_list()
                for length, words in zip(new, documents, strict=True):
                    names += [word.decode() for word in words] or [""] * length
        ids = query_names(queries)
        return RankingData(
            features,
            labels,
            splits_of(np.array(lengths, np.int64)),
            ids if self.schema["whole_numbers"] else ids.astype(str),
            np.array(names) if self.schema["document_ids"] else None,
            weights,
        )


def open_records(pattern: str | os.PathLike[str]) -> Any:
    """Opens record files that `write_records` or `tfrankloss convert` has written.

    Args:
        pattern: their folder, or a pattern of some of its files, such as
            `"folder/records-0000*"`. Any place that TensorFlow reads from will do.

    Returns:
        `Records`; for a folder of the folders `train`, `vali` and `test` a dictionary of them.
    """
    import tensorflow as tf

    path = os.fspath(pattern).rstrip("/")
    splits = _splits(path)
    if splits:
        found = {name: _open(f"{path}/{name}".rstrip("/"), "*") for name in splits}
        return found if splits != [""] else found[""]
    folder, _, name = path.rpartition("/")
    if not tf.io.gfile.exists(f"{folder or '.'}/{SCHEMA}"):
        raise FileNotFoundError(
            f"There are no complete record files, with {SCHEMA} beside them. Received: "
            f"pattern={path!r}"
        )
    return _open(folder or ".", name)


def is_records(path: str) -> bool:
    """Whether `open_records` opens what is in this folder."""
    return bool(_splits(path.rstrip("/")))


def _splits(folder: str) -> list[str]:
    """The names of the folders of record files in a folder; of itself an empty name."""
    import tensorflow as tf

    if tf.io.gfile.exists(f"{folder}/{SCHEMA}"):
        return [""]
    return [name for name in SPLITS if tf.io.gfile.exists(f"{folder}/{name}/{SCHEMA}")]


def _open(folder: str, pattern: str) -> Records:
    import tensorflow as tf

    path = f"{folder}/{SCHEMA}"
    try:
        schema = json.loads(tf.io.gfile.GFile(path).read())
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if not isinstance(schema, dict) or schema.get("format") != FORMAT:
        raise ValueError(f"{path} is not of this version, format {FORMAT}: convert the data again")
    files = [file for file in schema["files"] if fnmatch.fnmatch(file["name"], pattern)]
    if not files:
        raise FileNotFoundError(f"No record file matches. Received: pattern={folder}/{pattern}")
    for file in files:
        path = f"{folder}/{file['name']}"
        if not tf.io.gfile.exists(path):
            raise FileNotFoundError(f"A record file is missing: {path}")
        size = tf.io.gfile.stat(path).length
        if size != file["bytes"]:
            raise ValueError(
                f"The record file {path} is truncated or damaged: it has {size} bytes in place of "
                f"{file['bytes']}"
            )
    return Records(folder, schema, files)


def _make_dataset(data: Records, plan: BatchPlan, buffer: int) -> "tf.data.Dataset":
    import tensorflow as tf

    if not len(data):
        raise ValueError("There are no queries to make batches of. Received: empty data")
    whole = data._lengths(data.schema["files"])
    lengths = np.repeat(list(whole), list(whole.values()))
    sizes = sizes_of(lengths, plan, data.parts)
    count = _count(data._lengths(data.files), sizes, plan)
    check_batches(plan, count, len(data), sizes, lengths.max())
    epochs = itertools.count(plan.first_epoch)

    def seeds() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The order of the files and two numbers for each epoch; see `batches.make_dataset`."""
        for epoch in itertools.count(plan.first_epoch) if plan.repeat else [next(epochs)]:
            generator = np.random.default_rng([plan.seed, epoch if plan.shuffle else 0])
            order = np.arange(len(data.files))
            if plan.shuffle:
                generator.shuffle(order)
            yield order, generator.integers(1, 2**31 - 1, 2)

    specs = element_specs(plan, data.num_features, data.schema["weights"])

    def epoch(order: "tf.Tensor", seed: "tf.Tensor") -> "tf.data.Dataset":
        # The graph of this function only: an order depends on nothing but its own seed.
        tf.random.set_seed(1)
        lists = _lists(data, order, min(CYCLE, len(data.files)) if plan.shuffle else 1)
        if plan.shuffle:
            lists = lists.shuffle(buffer, seed=seed[0], reshuffle_each_iteration=False)
        parser = _Parser(plan, specs, sizes, seed)
        batched = _batched(lists, plan, sizes).enumerate()
        return batched.map(parser, num_parallel_calls=2, deterministic=True)

    signature = (
        tf.TensorSpec([len(data.files)], tf.int64),
        tf.TensorSpec([2], tf.int64),
    )
    dataset = tf.data.Dataset.from_generator(seeds, output_signature=signature).flat_map(epoch)
    return finished(dataset, plan, count)


def _lists(data: Records, order: "tf.Tensor", cycle: int) -> "tf.data.Dataset":
    """The records of all lists, as bytes.

    A record that cannot be read, and all behind it in the same file, come as records that name the
    file, for `_check_damage`: TensorFlow's own error does not.
    """
    import tensorflow as tf

    paths = [f"{data.folder}/{file['name']}" for file in data.files]
    counts = tf.constant([file["queries"] for file in data.files], tf.int64)
    marks = tf.constant([_mark(path) for path in paths])

    def read(path: "tf.Tensor", mark: "tf.Tensor", count: "tf.Tensor") -> "tf.data.Dataset":
        records = tf.data.TFRecordDataset(path, buffer_size=1 << 20).ignore_errors()
        return records.concatenate(tf.data.Dataset.from_tensors(mark).repeat()).take(count)

    files = tf.data.Dataset.from_tensor_slices(
        tuple(tf.gather(column, order) for column in (tf.constant(paths), marks, counts))
    )
    lists = files.interleave(read, cycle_length=cycle, block_length=1, deterministic=True)
    if data.only_relevant and any(file["lengths"] != file["relevant"] for file in data.files):
        spec = {"maximum": tf.io.FixedLenFeature([], tf.float32)}
        lists = lists.filter(lambda record: tf.io.parse_single_example(record, spec)["maximum"] > 0)
    return lists


def _mark(path: str) -> bytes:
    import tensorflow as tf

    columns = {
        "damaged": tf.train.Feature(bytes_list=tf.train.BytesList(value=[path.encode()])),
        "length": tf.train.Feature(int64_list=tf.train.Int64List(value=[1])),
        "maximum": tf.train.Feature(float_list=tf.train.FloatList(value=[1.0])),
    }
    example = tf.train.Example(features=tf.train.Features(feature=columns))
    return example.SerializeToString(deterministic=True)


def _check_damage(records: "tf.Tensor") -> None:
    """Raises if one of the records stands for a damaged file."""
    import tensorflow as tf

    spec = {"damaged": tf.io.FixedLenFeature([], tf.string, "")}
    damaged = tf.io.parse_example(records, spec)["damaged"]
    place = tf.reduce_max(tf.where(damaged != "", tf.range(tf.size(damaged)), 0))
    message = "A record file is damaged or cannot be read:"
    tf.debugging.Assert(tf.reduce_all(damaged == ""), [message, damaged[place]])


def _descending(plan: BatchPlan, sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Sizes from the largest to the smallest, and how many lists of each come together."""
    return [(size, plan.lists_per_batch(size)) for size in reversed(sizes)]


def _count(lengths: Mapping[int, int], sizes: Sequence[int], plan: BatchPlan) -> int:
    """The number of batches that `_batched` makes."""
    if len(sizes) == 1:
        (lists,) = (lists for _, lists in _descending(plan, sizes))
        total = sum(lengths.values())
        return total // lists if plan.drop_remainder else -(-total // lists)
    count, carried, room = 0, 0, 0
    ends = np.searchsorted(sizes, list(lengths))
    for place, (_, lists) in enumerate(_descending(plan, sizes)):
        here = sum(
            number
            for number, end in zip(lengths.values(), ends, strict=True)
            if end == len(sizes) - 1 - place
        )
        count += here // lists
        rest = here % lists
        room = room if carried else lists
        carried += rest
        if carried >= room:
            count, carried, room = count + 1, carried - room, lists
    return count + (carried > 0 and not plan.drop_remainder)


def _batched(lists: "tf.data.Dataset", plan: BatchPlan, sizes: Sequence[int]) -> "tf.data.Dataset":
    """Batches of records, and which of the sizes, from the largest, each is padded to."""
    import tensorflow as tf

    ordered = _descending(plan, sizes)
    rooms = tf.constant([lists for _, lists in ordered], tf.int64)
    if len(sizes) == 1:
        batched = lists.batch(ordered[0][1], drop_remainder=plan.drop_remainder)
        return batched.map(lambda records: (records, tf.constant(0, tf.int64)))
    ends = tf.constant(sizes[:-1], tf.int64)
    spec = {"length": tf.io.FixedLenFeature([], tf.int64)}

    def key(record: "tf.Tensor") -> "tf.Tensor":
        length = tf.io.parse_single_example(record, spec)["length"]
        return tf.reduce_sum(tf.cast(length <= ends, tf.int64))

    def reduce(key: "tf.Tensor", window: "tf.data.Dataset") -> "tf.data.Dataset":
        return window.batch(rooms[key]).map(lambda records: (records, key))

    def join(carried: Any, batch: Any) -> Any:
        """Lists that fill no batch of their size go with those of the next smaller one.

        They come at the end, from the largest size to the smallest, and behind them -1.
        """
        (waiting, size), (records, key) = carried, batch
        last = key < 0

        def rest() -> Any:
            whole = tf.concat([waiting, records], axis=0)
            to = tf.where(tf.logical_or(tf.size(waiting) > 0, last), size, key)
            enough = tf.logical_or(last, tf.size(whole, tf.int64) >= rooms[to])
            taken = tf.where(enough, rooms[to], 0)
            kept = tf.where(tf.logical_and(enough, ~last), key, to)
            return (whole[taken:], kept), (whole[:taken], to)

        # Strings are copied where they are joined: not those of full batches.
        full = tf.logical_and(~last, tf.size(records, tf.int64) == rooms[tf.maximum(key, 0)])
        return tf.cond(full, lambda: (carried, batch), rest)

    none = tf.constant([], tf.string)
    end = tf.data.Dataset.from_tensors((none, tf.constant(-1, tf.int64)))
    windows = lists.group_by_window(key, reduce, window_size_func=lambda key: rooms[key])
    batched = windows.concatenate(end).scan((none, tf.constant(0, tf.int64)), join)
    if plan.drop_remainder:
        return batched.filter(lambda records, size: tf.size(records, tf.int64) == rooms[size])
    return batched.filter(lambda records, size: tf.size(records) > 0)


class _Parser:
    """Makes padded arrays of a batch of records.

    Args:
        plan: how.
        specs: shapes and types of the arrays.
        sizes: what lists are padded to, ascending.
        seed: two numbers of the epoch.
    """

    def __init__(
        self, plan: BatchPlan, specs: Mapping[str, Any], sizes: Sequence[int], seed: "tf.Tensor"
    ) -> None:
        self._plan, self._specs, self._seed = plan, specs, seed
        self._ordered = _descending(plan, sizes)
        self._width = cast(int, specs["features"].shape[-1])
        self._names = ["labels", "features"] + (["weights"] if specs["weights"] else [])

    def __call__(self, number: "tf.Tensor", batch: Any) -> Any:
        import tensorflow as tf

        records, key = batch
        _check_damage(records)
        size = tf.constant([size for size, _ in self._ordered])[key]
        lists = tf.constant([lists for _, lists in self._ordered])[key]
        empty = tf.fill([lists - tf.size(records)], "")  # lists that fill the batch up
        spec: dict[str, Any] = {
            name: tf.io.FixedLenFeature([], tf.string, "") for name in self._names
        }
        spec["length"] = tf.io.FixedLenFeature([], tf.int64, 0)
        parsed = tf.io.parse_example(tf.concat([records, empty], axis=0), spec)
        lengths = tf.cast(parsed["length"], tf.int32)
        cut = self._plan.list_size is not None and self._plan.truncate == "relevant"
        longest = tf.maximum(tf.reduce_max(lengths), size) if cut else size
        arrays = self._decoded(parsed, lengths, lists, longest)
        if cut:
            seed = tf.stack([self._seed[1], number])
            arrays = tf.cond(
                longest > size, lambda: self._relevant(arrays, lengths, size, seed), lambda: arrays
            )
        arrays["mask"] = tf.sequence_mask(tf.minimum(lengths, size), size)
        for name, array in arrays.items():
            arrays[name] = tf.ensure_shape(array, self._specs[name].shape)
        return element(self._plan, {"weights": None, **arrays})

    def _decoded(self, parsed: Any, lengths: Any, lists: Any, longest: Any) -> dict[str, Any]:
        """All arrays, padded to the same length; -1 in the padding of labels, 0 in the others."""
        import tensorflow as tf

        arrays = {}
        for name in self._names:
            shape = [lists, longest] + ([self._width] if name == "features" else [])
            width = self._width if name == "features" else 1
            values = tf.io.decode_raw(parsed[name], tf.float32, fixed_length=4 * width * longest)
            arrays[name] = tf.reshape(values, shape)
        inside = tf.sequence_mask(lengths, longest)
        arrays["labels"] = tf.where(inside, arrays["labels"], -1.0)
        return arrays

    def _relevant(self, arrays: Any, lengths: Any, size: Any, seed: Any) -> dict[str, Any]:
        """The highest labels and, of equal ones, some at random; in their order."""
        import tensorflow as tf

        labels = arrays["labels"]
        drawn = tf.argsort(tf.random.stateless_uniform(tf.shape(labels), seed))
        by_label = tf.argsort(-tf.gather(labels, drawn, batch_dims=1), stable=True)
        kept = tf.sort(tf.gather(drawn, by_label, batch_dims=1)[:, :size])
        return {name: tf.gather(array, kept, batch_dims=1) for name, array in arrays.items()}
