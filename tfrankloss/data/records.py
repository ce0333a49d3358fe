"""Reading record files: a pipeline of batches in TensorFlow's own operations.

Records stay bytes until a batch of them is complete; then one operation for each array reads and
pads all of its lists.
"""

import fnmatch
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from tfrankloss.data.batches import (
    BatchPlan,
    check_batches,
    element,
    element_specs,
    epochs,
    finished,
    from_python,
    make_plan,
    sizes_of,
)
from tfrankloss.data.parsing import query_names
from tfrankloss.data.ranking_data import RankingData, check_shard, splits_of
from tfrankloss.data.record_files import FORMAT, SCHEMA, merge_histograms
from tfrankloss.options import check_choice, check_integer

if TYPE_CHECKING:
    import tensorflow as tf

# Files that are read in turns for each size when lists are shuffled, and the bytes read at once.
CYCLE = 8
BUFFER = 1 << 18
# Into how many parts the lists of one size in a file are divided, and how many lists these have.
MOST_PARTS = 8
SMALLEST_PART = 64
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
        return _documents(self._lengths(self.files))

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
        amounts = {file["name"]: _documents(self._lengths([file])) for file in self.files}
        filled = [file for file in self.files if amounts[file["name"]]]
        if count > len(filled):
            raise ValueError(
                f"Each worker reads files of its own, and {self.folder} has {len(filled)} with "
                f"documents: write more of them (--shards). Received: count={count}"
            )
        documents = [0] * count
        chosen: list[list[Mapping[str, Any]]] = [[] for _ in range(count)]
        for file in sorted(filled, key=lambda file: (-amounts[file["name"]], file["name"])):
            lightest = documents.index(min(documents))
            documents[lightest] += amounts[file["name"]]
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

        Shuffled, files are read in another order in every epoch, several at a time, lists are drawn
        from a buffer, and sizes come in any order; the same seed gives the same order. The sizes
        that lists are padded to come from the lengths of all files, so that they are the same in
        all shards. In memory are the lists of the buffer and a few batches.

        Args:
            shuffle_buffer: number of lists, of all sizes, among which the next ones are drawn; for
                each size there are at least as many as a batch holds.
            **options: see `RankingData.to_dataset`. Of `workers`, each reads its own shard, with
                its share of the lists of a batch, at least one: they need not have as many batches
                as the others, nor in the same order of sizes.
        """
        check_integer("shuffle_buffer", shuffle_buffer, minimum=1)
        for name in options:
            check_choice("The name of an option", name, tuple(BatchPlan.__dataclass_fields__))
        plan = make_plan(**options)
        data = self if plan.workers == 1 else self.shard(plan.worker, plan.workers)
        return _make_dataset(data, plan, shuffle_buffer)

    def to_ranking_data(self) -> RankingData:
        """All of it in memory, file by file; for validation data."""
        import tensorflow as tf

        _check_readable(self)
        rows = self.num_documents
        features = np.empty((rows, self.num_features), np.float32)
        labels = np.empty(rows, np.float32)
        weights = np.empty(rows, np.float32) if self.schema["weights"] else None
        arrays = {"features": features.reshape(-1), "labels": labels}
        if weights is not None:
            arrays["weights"] = weights
        spec: dict[str, Any] = {
            name: tf.io.FixedLenFeature([], tf.string, "") for name in (*arrays, "query")
        }
        spec |= {"length": tf.io.FixedLenFeature([], tf.int64, 0)}
        spec |= {"documents": tf.io.RaggedFeature(tf.string)}
        lengths: list[int] = []
        queries: list[bytes] = []
        names: list[str] = []
        place = dict.fromkeys(arrays, 0)
        parts = _parts(self, 0, np.inf)
        if not parts:
            raise ValueError("There are no queries to load. Received: empty data")
        for batch in _lists(parts, tf.range(len(parts)), 1).batch(256):
            parsed = _parse(batch, spec)
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


class _Part(NamedTuple):
    """Records of a file that stand together."""

    path: str
    offset: int
    queries: int


class _Size(NamedTuple):
    """The lists that are padded to one size, and how many of them come together."""

    size: int
    lists: int
    padded: int  # with the empty lists that fill a batch up for all devices
    parts: list[_Part]

    @property
    def queries(self) -> int:
        """The number of lists."""
        return sum(part.queries for part in self.parts)


def _parts(data: Records, above: float, up_to: float) -> list[_Part]:
    """Where the lists of these lengths are.

    Those of a file, with and without relevant documents, are divided: they stand there from the
    shortest to the longest, and parts can be read in any order.
    """
    parts = []
    for file in data.files:
        path = f"{data.folder}/{file['name']}"
        for relevant in (1,) if data.only_relevant else (1, 0):
            chosen = [
                _Part(path, offset, queries)
                for kind, size, queries, offset in file["segments"]
                if kind == relevant and above < size <= up_to
            ]
            enough = max(SMALLEST_PART, sum(part.queries for part in chosen) // MOST_PARTS)
            joined: list[_Part] = []
            for part in chosen:
                if joined and joined[-1].queries < enough:
                    joined[-1] = joined[-1]._replace(queries=joined[-1].queries + part.queries)
                else:
                    joined.append(part)
            parts += joined
    return parts


def _documents(lengths: Mapping[int, int]) -> int:
    return sum(length * count for length, count in lengths.items())


def _check_readable(data: Records) -> None:
    """Raises where a file cannot be opened, which `_lists` would try again and again."""
    import tensorflow as tf

    for file in data.files:
        path = f"{data.folder}/{file['name']}"
        try:
            with tf.io.gfile.GFile(path, "rb") as opened:
                opened.read(1)
        except tf.errors.OpError as error:
            raise OSError(f"The record file {path} cannot be read: {error.message}") from None


def _make_dataset(data: Records, plan: BatchPlan, buffer: int) -> "tf.data.Dataset":
    import tensorflow as tf

    if not len(data):
        raise ValueError("There are no queries to make batches of. Received: empty data")
    whole = data._lengths(data.schema["files"])
    lengths = np.repeat(list(whole), list(whole.values()))
    sizes = sizes_of(lengths, plan, data.parts // plan.workers)
    ends: list[float] = [0, *sizes[:-1], np.inf]  # the largest size has all that are cut, too
    groups = [
        _Size(
            size,
            plan.share_of_worker(plan.lists_per_batch(size)),
            plan.lists_of_worker(plan.lists_per_batch(size)),
            _parts(data, ends[place], ends[place + 1]),
        )
        for place, size in enumerate(sizes)
    ]
    # From the largest size to the smallest.
    groups = [group for group in reversed(groups) if group.parts]
    count = _count(groups, plan)
    check_batches(plan, count, len(data), sizes, lengths.max())
    specs = element_specs(plan, data.num_features, data.schema["weights"])

    def planned(epoch: np.int64) -> list[np.ndarray]:
        """The order of parts, the order of sizes, and two numbers."""
        _check_readable(data)
        generator = np.random.default_rng([plan.seed, int(epoch) if plan.shuffle else 0])
        orders = [np.arange(len(group.parts)) for group in groups]
        turns = np.repeat(np.arange(len(groups)), [x.queries // x.lists for x in groups])
        for order in (*orders, turns) if plan.shuffle else ():
            generator.shuffle(order)
        # What fills no batch comes at the end, see `_joined`.
        rest = [place for place, x in enumerate(groups) if x.queries % x.lists]
        turns = np.concatenate([turns, np.array(rest, np.int64)])
        return [np.concatenate(orders), turns, generator.integers(1, 2**31 - 1, 2)]

    def batches_of(group: _Size, order: "tf.Tensor", seed: "tf.Tensor") -> "tf.data.Dataset":
        lists = _lists(group.parts, order, CYCLE if plan.shuffle else 1)
        if plan.shuffle:
            share = max(group.lists, buffer * group.queries // len(data))
            lists = lists.shuffle(share, seed=seed, reshuffle_each_iteration=False)
        return lists.batch(group.lists)

    def epoch(orders: "tf.Tensor", turns: "tf.Tensor", seed: "tf.Tensor") -> "tf.data.Dataset":
        # The graph of this function only: an order depends on nothing but its own seed.
        tf.random.set_seed(1)
        of_groups = tf.split(orders, [len(group.parts) for group in groups])
        batched = [
            batches_of(group, order, seed[0] + place)
            for place, (group, order) in enumerate(zip(groups, of_groups, strict=True))
        ]
        turn = tf.data.Dataset.from_tensor_slices(turns)
        mixed = tf.data.Dataset.choose_from_datasets(batched, turn, stop_on_empty_dataset=False)
        joined = _joined(tf.data.Dataset.zip((mixed, turn)), groups, plan)
        parser = _Parser(plan, specs, groups, seed[1])
        return joined.enumerate().map(parser, num_parallel_calls=2, deterministic=True)

    numbers = tf.TensorSpec([None], tf.int64)
    plans = (numbers, numbers, tf.TensorSpec([2], tf.int64))
    dataset = epochs(plan).map(lambda number: from_python(planned, [number], plans))
    # An epoch begins sooner where TensorFlow does not look for a better program each time.
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    return finished(dataset.flat_map(epoch), plan, count).with_options(options)


def _lists(parts: Sequence[_Part], order: "tf.Tensor", cycle: int) -> "tf.data.Dataset":
    """The records of all lists, as bytes.

    A record that cannot be read, and all behind it in the same part, come as records that name the
    file, for `_parse`: TensorFlow's own error does not.
    """
    import tensorflow as tf

    paths, offsets, counts = zip(*parts, strict=True)
    columns = (
        tf.constant(paths),
        tf.constant(offsets, tf.int64),
        tf.constant(counts, tf.int64),
        tf.constant([_mark(path) for path in paths]),
    )

    def read(
        path: "tf.Tensor", offset: "tf.Tensor", count: "tf.Tensor", mark: "tf.Tensor"
    ) -> "tf.data.Dataset":
        # `tf.data.TFRecordDataset`, which does not offer to begin within a file.
        variant = tf.raw_ops.TFRecordDatasetV2(
            filenames=[path], compression_type="", buffer_size=BUFFER, byte_offsets=[offset]
        )
        records = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
        marks = tf.data.Dataset.from_tensors(mark).repeat()
        return records.ignore_errors().concatenate(marks).take(count)

    files = tf.data.Dataset.from_tensor_slices(tuple(tf.gather(x, order) for x in columns))
    return files.interleave(read, cycle_length=min(cycle, len(parts)), block_length=1)


def _mark(path: str) -> bytes:
    import tensorflow as tf

    columns = {
        "damaged": tf.train.Feature(bytes_list=tf.train.BytesList(value=[path.encode()])),
    }
    example = tf.train.Example(features=tf.train.Features(feature=columns))
    return example.SerializeToString(deterministic=True)


def _parse(records: "tf.Tensor", spec: Mapping[str, Any]) -> Any:
    """What is in the records; raises if one of them stands for a damaged file."""
    import tensorflow as tf

    parsed = tf.io.parse_example(
        records, {"damaged": tf.io.FixedLenFeature([], tf.string, ""), **spec}
    )
    damaged = parsed.pop("damaged")
    place = tf.argmax(tf.strings.length(damaged))
    message = "A record file is damaged or cannot be read:"
    tf.debugging.Assert(tf.reduce_all(damaged == ""), [message, damaged[place]])
    return parsed


def _count(groups: Sequence[_Size], plan: BatchPlan) -> int:
    """The number of batches that `_joined` makes."""
    count, waiting, room = 0, 0, 0
    for group in groups:
        count += group.queries // group.lists
        room = room if waiting else group.lists
        waiting += group.queries % group.lists
        if waiting >= room:
            count, waiting, room = count + 1, waiting - room, group.lists
    return count + (waiting > 0 and not plan.drop_remainder)


def _joined(
    batched: "tf.data.Dataset", groups: Sequence[_Size], plan: BatchPlan
) -> "tf.data.Dataset":
    """Lists that fill no batch of their size go with those of the next smaller one.

    They come at the end, from the largest size to the smallest, and behind them -1.
    """
    import tensorflow as tf

    rooms = tf.constant([group.lists for group in groups], tf.int64)

    def join(carried: Any, batch: Any) -> Any:
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
    joined = batched.concatenate(end).scan((none, tf.constant(0, tf.int64)), join)
    if plan.drop_remainder:
        return joined.filter(lambda records, size: tf.size(records, tf.int64) == rooms[size])
    return joined.filter(lambda records, size: tf.size(records) > 0)


class _Parser:
    """Makes padded arrays of a batch of records.

    Args:
        plan: how.
        specs: shapes and types of the arrays.
        groups: what lists are padded to.
        seed: a number of the epoch.
    """

    def __init__(
        self, plan: BatchPlan, specs: Mapping[str, Any], groups: Sequence[_Size], seed: "tf.Tensor"
    ) -> None:
        self._plan, self._specs, self._groups, self._seed = plan, specs, groups, seed
        self._width = cast(int, specs["features"].shape[-1])
        self._names = ["labels", "features"] + (["weights"] if specs["weights"] else [])

    def __call__(self, number: "tf.Tensor", batch: Any) -> Any:
        import tensorflow as tf

        records, key = batch
        size = tf.constant([group.size for group in self._groups])[key]
        lists = tf.constant([group.padded for group in self._groups])[key]
        missing = lists - tf.size(records)
        records = tf.cond(  # empty lists fill the batch up
            missing > 0,
            lambda: tf.concat([records, tf.fill([missing], "")], axis=0),
            lambda: records,
        )
        spec: dict[str, Any] = {
            name: tf.io.FixedLenFeature([], tf.string, "") for name in self._names
        }
        spec["length"] = tf.io.FixedLenFeature([], tf.int64, 0)
        parsed = _parse(records, spec)
        lengths = tf.cast(parsed["length"], tf.int32)
        cut = self._plan.list_size is not None and self._plan.truncate == "relevant"
        longest = tf.maximum(tf.reduce_max(lengths), size) if cut else size
        arrays = self._decoded(parsed, lengths, lists, longest)
        if cut:
            seed = tf.stack([self._seed, number])
            arrays = tf.cond(
                longest > size, lambda: self._relevant(arrays, lengths, size, seed), lambda: arrays
            )
        arrays["mask"] = tf.sequence_mask(
            tf.minimum(lengths, size), size, self._specs["mask"].dtype
        )
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
