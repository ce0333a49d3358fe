"""Reading record files: all batches of an epoch are planned before, from the index of the lists.

Chunks of the files are read ahead, as the next batches need them, and their lists are copied into
padded arrays.
"""

import fnmatch
import functools
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tfrankloss.data.batches import (
    Batch,
    BatchPlan,
    arrays,
    check_batches,
    element,
    element_specs,
    finished,
    from_python,
    make_plan,
    numbered,
    sizes_of,
)
from tfrankloss.data.parsing import query_names
from tfrankloss.data.ranking_data import RankingData, check_shard, splits_of
from tfrankloss.data.record_files import FORMAT, SCHEMA, index_name, merge_histograms
from tfrankloss.data.record_lists import Chunks, Lists, open_lists
from tfrankloss.options import check_choice, check_integer

if TYPE_CHECKING:
    import tensorflow as tf

# Parts of files that are read in turns for each size when lists are shuffled.
CYCLE = 8
# Into how many parts the lists of one size in a file are divided, and how many lists these have.
MOST_PARTS = 8
SMALLEST_PART = 64
# Lists among which the next one is drawn.
SHUFFLE_BUFFER = 1024
# Batches whose lists are read before they are needed.
AHEAD = 4
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
        all shards. In memory are the index of the lists, those of the buffer, and a few batches.

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

        lists = open_lists(self.folder, self.files, self.num_features, self.only_relevant)
        if not len(lists):
            raise ValueError("There are no queries to load. Received: empty data")
        splits = splits_of(lists.index["length"].astype(np.int64))
        features = np.empty((splits[-1], self.num_features), np.float32)
        labels = np.empty(splits[-1], np.float32)
        weights = np.empty(splits[-1], np.float32) if self.schema["weights"] else None
        queries: list[bytes] = []
        names: list[str] = []
        chunk = lists.chunks(lists.stretch)
        for numbers in np.split(np.arange(len(lists)), np.flatnonzero(np.diff(chunk)) + 1):
            first = int(numbers[0])
            content = lists.read(first, int(numbers[-1]))()
            entries = lists.index[numbers].tolist()
            for number in numbers.tolist():
                rows = slice(*splits[number : number + 2].tolist())
                entry, start = entries[number - first], entries[0][0]
                features[rows], labels[rows], of_list = lists.rows(number, entry, content, start)
                if weights is not None:
                    weights[rows] = of_list
                begin, size = entry[0] - start, entry[1]
                record = content[begin : begin + size].tobytes()
                columns = tf.train.Example.FromString(record).features.feature
                queries += columns["query"].bytes_list.value
                if self.schema["document_ids"]:
                    words = columns["documents"].bytes_list.value
                    count = rows.stop - rows.start
                    names += [word.decode() for word in words] or [""] * count
        ids = query_names(queries)
        return RankingData(
            features,
            labels,
            splits,
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
        for needed in (f"{folder}/{index_name(file['name'])}", path):
            if not tf.io.gfile.exists(needed):
                raise FileNotFoundError(f"A file is missing: {needed}. Convert the data again")
        size = tf.io.gfile.stat(path).length
        if size != file["bytes"]:
            raise ValueError(
                f"The record file {path} is truncated or damaged: it has {size} bytes in place of "
                f"{file['bytes']}"
            )
    return Records(folder, schema, files)


class _Size(NamedTuple):
    """The lists that are padded to one size, and how many of them come together."""

    size: int
    lists: int
    padded: int  # with the empty lists that fill a batch up for all devices
    numbers: np.ndarray
    parts: np.ndarray  # the part of each, see `_parts`

    @property
    def batches(self) -> int:
        """The number of batches that its lists fill."""
        return len(self.numbers) // self.lists


def _parts(stretch: np.ndarray) -> np.ndarray:
    """Divides the lists of one size in each stretch of a file.

    They stand there from the shortest to the longest, and parts can be read in any order.
    """
    _, place, count = np.unique(stretch, return_inverse=True, return_counts=True)
    within = np.arange(len(stretch)) - np.searchsorted(stretch, stretch)
    enough = np.maximum(SMALLEST_PART, count // MOST_PARTS)[place]
    return np.unique(stretch * (len(stretch) + 1) + within // enough, return_inverse=True)[1]


def _documents(lengths: Mapping[int, int]) -> int:
    return sum(length * count for length, count in lengths.items())


def _make_dataset(data: Records, plan: BatchPlan, buffer: int) -> "tf.data.Dataset":
    import tensorflow as tf

    if not len(data):
        raise ValueError("There are no queries to make batches of. Received: empty data")
    lists = open_lists(data.folder, data.files, data.num_features, data.only_relevant)
    whole = data._lengths(data.schema["files"])
    lengths = np.repeat(list(whole), list(whole.values()))
    sizes = sizes_of(lengths, plan, data.parts // plan.workers)
    groups = _groups(lists, sizes, plan)
    part = np.empty(len(lists), np.int64)
    for place, group in enumerate(groups):
        part[group.numbers] = place * len(lists) + group.parts
    chunk = lists.chunks(part)
    count = len(_batches(groups, plan, buffer, 0))
    # As all workers see it, also one whose lists are short.
    check_batches(plan, count, len(data), sizes, max(whole))
    columns = (data.num_features, data.schema["weights"])
    specs = element(plan, element_specs(plan, *columns))

    @functools.lru_cache(maxsize=4)
    def planned(epoch: int) -> tuple[list[Batch], Chunks]:
        batches = _batches(groups, plan, buffer, epoch)
        return batches, Chunks(lists, chunk, np.concatenate([x.queries for x in batches]))

    def make(epoch: np.int64, place: np.int64) -> list[np.ndarray]:
        batches, chunks = planned(int(epoch))
        if place == 0:  # the epoch may have been before, and not to its end
            chunks.begin()
        for batch in batches[place + AHEAD if place else 0 : place + AHEAD + 1]:
            chunks.load(batch.queries)
        found = arrays(chunks.take, columns, batches[place], plan, int(epoch))
        return tf.nest.flatten(element(plan, found))

    dataset = numbered(plan, count).map(lambda *x: from_python(make, [*x], specs))
    return finished(dataset, plan, count)


def _groups(lists: Lists, sizes: Sequence[int], plan: BatchPlan) -> list[_Size]:
    """The lists by the size they are padded to, from the largest to the smallest."""
    # The largest size has all that are cut, too.
    place = np.minimum(np.searchsorted(sizes, lists.index["length"]), len(sizes) - 1)
    groups = []
    for number, size in reversed(list(enumerate(sizes))):
        together = plan.lists_per_batch(size)
        numbers = np.flatnonzero(place == number)
        groups.append(
            _Size(
                size,
                plan.share_of_worker(together),
                plan.lists_of_worker(together),
                numbers,
                _parts(lists.stretch[numbers]),
            )
        )
    return [group for group in groups if len(group.numbers)]


def _batches(groups: Sequence[_Size], plan: BatchPlan, buffer: int, epoch: int) -> list[Batch]:
    """All batches of an epoch.

    Lists that fill no batch of their size come at the end, with those of the next smaller size: so
    that only the last batch can be incomplete.
    """
    generator = np.random.default_rng([plan.seed, epoch])
    turns = np.repeat(np.arange(len(groups)), [group.batches for group in groups])
    orders = [group.numbers for group in groups]
    if plan.shuffle:
        generator.shuffle(turns)
        queries = sum(len(group.numbers) for group in groups)
        windows = [max(x.lists, buffer * len(x.numbers) // queries) for x in groups]
        orders = [
            group.numbers[_drawn(group.parts, window, generator)]
            for group, window in zip(groups, windows, strict=True)
        ]
    start = [0] * len(groups)
    batches = []
    for turn in turns.tolist():
        group, first = groups[turn], start[turn]
        start[turn] += group.lists
        batches.append(Batch(orders[turn][first : start[turn]], group.padded, group.size))
    waiting, to = np.empty(0, np.int64), groups[0]
    for group, order, first in zip(groups, orders, start, strict=True):
        to = to if len(waiting) else group
        waiting = np.concatenate([waiting, order[first:]])
        if len(waiting) >= to.lists:
            batches.append(Batch(waiting[: to.lists], to.padded, to.size))
            waiting, to = waiting[to.lists :], group
    if len(waiting) and not plan.drop_remainder:
        batches.append(Batch(waiting, to.padded, to.size))
    return batches


def _drawn(parts: np.ndarray, window: int, generator: np.random.Generator) -> np.ndarray:
    """The order of lists: a few parts at a time, one list of each in turn, then within a window.

    No list moves by more than the window: what is in memory are the lists of that, and of the
    chunks that they are in.
    """
    rank = generator.permutation(parts[-1] + 1)[parts]
    within = np.arange(len(parts)) - np.searchsorted(parts, parts)
    order = np.lexsort([rank, within, rank // CYCLE])
    return order[np.argsort(np.arange(len(parts)) + window * generator.random(len(parts)))]
