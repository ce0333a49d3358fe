"""Queries with their documents in arrays: what all readers return and all datasets start from."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfrankloss.data import storage
from tfrankloss.data.description import Description, describe
from tfrankloss.options import check_integer

if TYPE_CHECKING:
    import tensorflow as tf

# Whole arrays are gone through in pieces of about this many documents.
CHUNK = 1 << 16


@dataclass(frozen=True, eq=False, repr=False)
class RankingData:
    """Queries, each with a list of documents, one document per row, query by query.

    Made by `load_letor`, `synthetic`, `from_arrays`, `from_dataframe`, `from_tfds` or `open`.

    Attributes:
        features: `[documents, features]` float32.
        labels: `[documents]` float32, finite and at least 0.
        row_splits: `[queries + 1]` int64; the documents of query `q` are the rows
            `row_splits[q]:row_splits[q + 1]`. Every query has at least one.
        query_ids: `[queries]`, numbers or strings.
        document_ids: `[documents]` strings, or None.
        weights: `[documents]` float32, such as inverse propensities of clicks, or None. A dataset
            yields them as `sample_weight`.

    >>> data = RankingData.from_arrays(
    ...     features=[[0.1, 3.0], [0.2, 1.0], [0.3, 2.0]], labels=[0, 2, 1], query_ids=[7, 7, 9]
    ... )
    >>> data
    RankingData(2 queries, 3 documents, 2 features)
    >>> data[0].labels.tolist()
    [0.0, 2.0]
    """

    features: np.ndarray
    labels: np.ndarray
    row_splits: np.ndarray
    query_ids: np.ndarray
    document_ids: np.ndarray | None = None
    weights: np.ndarray | None = None

    def __post_init__(self) -> None:
        features, splits = self.features, self.row_splits
        if features.ndim != 2 or features.dtype != np.float32:
            raise ValueError(
                "features must be float32 [documents, features]. "
                f"Received: {features.dtype} {features.shape}"
            )
        for name in ("labels", "document_ids", "weights"):
            column = getattr(self, name)
            if column is not None and column.shape != features.shape[:1]:
                raise ValueError(
                    f"{name} must hold one entry per row of the features. "
                    f"Received: {name} {column.shape}, features {features.shape}"
                )
        rising = splits.ndim == 1 and len(splits) and (np.diff(splits) > 0).all()
        if not rising or splits[0] != 0 or splits[-1] != len(features):
            raise ValueError(
                f"row_splits must rise from 0 to the number of documents, {len(features)}. "
                f"Received: {splits!r}"
            )
        if self.query_ids.shape != (len(splits) - 1,):
            raise ValueError(
                "query_ids must hold one entry per query. "
                f"Received: {self.query_ids.shape} for {len(splits) - 1} queries"
            )
        for name in ("labels", "weights"):
            column = getattr(self, name)
            if column is None:
                continue
            wrong = np.flatnonzero(~((column >= 0) & (column < np.inf)))
            if len(wrong):
                raise ValueError(
                    f"{name} must be finite and at least 0 (a negative label would be taken for "
                    f"padding). Received: {name}[{wrong[0]}]={column[wrong[0]]}, {len(wrong)} in "
                    "all"
                )

    def __repr__(self) -> str:
        return (
            f"RankingData({len(self)} queries, {self.num_documents} documents, "
            f"{self.num_features} features)"
        )

    def __len__(self) -> int:
        """The number of queries."""
        return len(self.query_ids)

    @property
    def num_documents(self) -> int:
        """The number of documents of all queries."""
        return self.features.shape[0]

    @property
    def num_features(self) -> int:
        """The number of features."""
        return self.features.shape[1]

    @property
    def max_label(self) -> float:
        """The highest label."""
        return float(self.labels.max(initial=0.0))

    @property
    def lengths(self) -> np.ndarray:
        """`[queries]`: the number of documents of each query."""
        return np.diff(self.row_splits)

    @property
    def query_of_documents(self) -> np.ndarray:
        """`[documents]`: the id of each document's query, as `evaluate` takes it."""
        return np.repeat(self.query_ids, self.lengths)

    def __getitem__(self, queries: Any) -> "RankingData":
        """The queries of a slice (a view), of a number, of numbers or of a Boolean mask."""
        if isinstance(queries, int | np.integer):
            if not -len(self) <= queries < len(self):
                raise IndexError(f"There are {len(self)} queries. Received: number {queries}")
            queries = slice(queries, queries + 1 or None)
        if isinstance(queries, slice) and queries.step in (None, 1):
            start, stop, _ = queries.indices(len(self))
            stop = max(start, stop)
            first = self.row_splits[start]
            rows = slice(first, self.row_splits[stop])
            return self.take_rows(rows, self.row_splits[start : stop + 1] - first, queries)
        chosen = np.arange(len(self))[queries]
        lengths = self.lengths[chosen]
        splits = splits_of(lengths)
        inside = np.arange(splits[-1]) - np.repeat(splits[:-1], lengths)
        return self.take_rows(np.repeat(self.row_splits[chosen], lengths) + inside, splits, chosen)

    def __iter__(self) -> Iterator["RankingData"]:
        """The queries one by one."""
        return (self[number] for number in range(len(self)))

    def keep_documents(self, keep: Any) -> "RankingData":
        """The documents that a Boolean mask `[documents]` keeps; empty queries are left out."""
        keep = np.asarray(keep)
        if keep.dtype != bool or keep.shape != self.labels.shape:
            raise ValueError(
                f"keep must be Boolean with one entry per document, {self.labels.shape}. "
                f"Received: {keep.dtype} {keep.shape}"
            )
        kept = np.concatenate([[0], np.cumsum(keep)])
        counts = np.diff(kept[self.row_splits])
        return self.take_rows(np.flatnonzero(keep), splits_of(counts[counts > 0]), counts > 0)

    def take_rows(self, rows: Any, splits: np.ndarray, queries: Any) -> "RankingData":
        """Rows in any order, the splits of the lists that they make, and the lists' queries."""

        def pick(x: np.ndarray | None) -> np.ndarray | None:
            return None if x is None else x[rows]

        return RankingData(
            self.features[rows],
            self.labels[rows],
            splits,
            self.query_ids[queries],
            pick(self.document_ids),
            pick(self.weights),
        )

    @staticmethod
    def concat(parts: "Sequence[RankingData]") -> "RankingData":
        """The queries of all parts, one part after the other.

        Queries of the same id in two parts stay two queries.
        """
        parts = list(parts)
        widths = [part.num_features for part in parts]
        if not parts or len(set(widths)) > 1:
            raise ValueError(
                f"Parts must have the same number of features. Received: {widths} features"
            )
        for name in ("document_ids", "weights"):
            have = [getattr(part, name) is not None for part in parts]
            if any(have) != all(have):
                raise ValueError(f"Either all parts have {name} or none. Received: {have}")

        def joined(name: str) -> np.ndarray | None:
            columns = [getattr(part, name) for part in parts]
            return None if columns[0] is None else np.concatenate(columns)

        kinds = {part.query_ids.dtype.kind in "iu" for part in parts}
        ids = [part.query_ids if len(kinds) == 1 else part.query_ids.astype(str) for part in parts]
        return RankingData(
            np.concatenate([part.features for part in parts]),
            np.concatenate([part.labels for part in parts]),
            splits_of(np.concatenate([part.lengths for part in parts])),
            np.concatenate(ids),
            joined("document_ids"),
            joined("weights"),
        )

    def split(self, fractions: Sequence[float], seed: int = 0) -> "tuple[RankingData, ...]":
        """Parts by query, drawn at random: `train, test = data.split([0.8, 0.2])`.

        Args:
            fractions: the share of the queries that each part gets, 1 in all.
            seed: the same seed gives the same parts.
        """
        shares = np.asarray(fractions, float)
        positive = shares.ndim == 1 and len(shares) and (shares > 0).all()
        if not positive or not abs(sum(shares) - 1) < 1e-6:
            raise ValueError(
                "fractions must be a list of numbers above 0 that add up to 1. "
                f"Received: fractions={fractions!r}"
            )
        ends = np.round(np.cumsum(shares) * len(self)).astype(int)
        order = np.random.default_rng(seed).permutation(len(self))
        # Each part keeps the order of the file: neighbours on disk are read together.
        return tuple(self[np.sort(part)] for part in np.split(order, ends[:-1]))

    def shard(self, index: int, count: int) -> "RankingData":
        """One of `count` parts with about as many documents each, such as the data of a worker.

        The parts are the same at every call, and together they are all queries, each once. From the
        longest list to the shortest, queries are dealt out back and forth, so that the parts differ
        by at most one query, and in documents by no more than the longest list has.

        Args:
            index: which part, from 0.
            count: number of parts, at most the number of queries.

        >>> data = RankingData.from_arrays(np.zeros((6, 1)), [0] * 6, [1, 1, 1, 2, 2, 3])
        >>> [data.shard(index, 2).query_ids.tolist() for index in (0, 1)]
        [[1], [2, 3]]
        """
        check_shard(index, count)
        if count > len(self):
            raise ValueError(
                f"A shard would be empty: there are {len(self)} queries. Received: count={count}"
            )
        order = np.argsort(-self.lengths, kind="stable")
        place = np.arange(len(self))
        turn, back = place % count, (place // count) % 2 == 1
        return self[np.sort(order[np.where(back, count - 1 - turn, turn) == index])]

    def discard_without_relevant(self) -> "RankingData":
        """The queries that have a label above 0, as the papers train and evaluate on them."""
        if not len(self):
            return self
        relevant = np.maximum.reduceat(self.labels, self.row_splits[:-1]) > 0
        return self if relevant.all() else self[relevant]

    def digest(self) -> str:
        """A number that other data do not have: of all labels and lists, and some of the rows."""
        digest = hashlib.sha256()
        rows = np.unique(np.linspace(0, max(self.num_documents - 1, 0), 1024).astype(int))
        for array in (self.row_splits, self.labels, self.features[rows[: self.num_documents]]):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def map_features(
        self, function: Callable[[np.ndarray], Any], per_query: bool | None = None
    ) -> "RankingData":
        """The same queries with other features.

        Args:
            function: takes features `[rows, features]` and returns as many rows, such as `np.sqrt`,
                or a transform of `tfrankloss.data`.
            per_query: whether it is called with the rows of one query each; otherwise with pieces
                of the data. By default as the transform needs it.
        """
        if per_query is None:
            per_query = getattr(function, "per_query", False)
        result = None
        for rows in self.chunks(per_query):
            given = self.features[rows]
            values = np.asarray(function(given))
            if values.ndim != 2 or len(values) != len(given):
                raise ValueError(
                    "The function must return one row per row that it is given. Received: shape "
                    f"{values.shape} for {given.shape}"
                )
            if result is None:
                result = np.empty((self.num_documents, values.shape[1]), np.float32)
            result[rows] = values
        return self if result is None else replace(self, features=result)

    def chunks(self, per_query: bool = False) -> Iterator[slice]:
        """The rows of all documents in pieces of at most 65,536, or query by query."""
        ends = self.row_splits.tolist()
        if not per_query:
            ends = [*range(0, self.num_documents, CHUNK), self.num_documents]
        return (slice(start, end) for start, end in zip(ends[:-1], ends[1:], strict=True))

    def predict(self, model: Any, max_documents: int = CHUNK) -> np.ndarray:
        """`[documents]`: the scores that a model gives to each document, in the order of the data.

        For `evaluate(data.labels, data.predict(model), data.query_of_documents)`.

        Args:
            model: takes `{"features", "mask"}`, or features alone, and gives scores `[batch, list]`
                or `[batch, list, 1]` (more outputs per document: `[documents, outputs]`).
            max_documents: documents that are scored at once, with padding.
        """
        from tfrankloss.data.batches import predict

        return predict(self, model, max_documents)

    def describe(self) -> Description:
        """Queries, documents per query, labels, and features that want attention.

        >>> data = RankingData.from_arrays([[1.0], [1.0]], [0, 1], [1, 1])
        >>> data.describe().constant_features
        [0]
        """
        return describe(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes one file that `open` maps into memory. It appears when it is complete."""
        with storage.Writer(Path(path)) as writer:
            for rows in self.chunks():
                writer.append(self.features[rows])
            writer.finish(self._columns(), {"num_features": self.num_features})

    def _columns(self) -> dict[str, np.ndarray]:
        """All arrays but the features."""
        names = ("labels", "row_splits", "query_ids", "document_ids", "weights")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    @staticmethod
    def open(path: str | os.PathLike[str], verify: bool = True) -> "RankingData":
        """Maps a file of `save` into memory; features are read when they are used.

        Args:
            path: the file.
            verify: whether to read the file once to see that it is undamaged.
        """
        return from_storage(storage.read(Path(path), verify))

    @staticmethod
    def from_arrays(
        features: Any,
        labels: Any,
        query_ids: Any,
        document_ids: Any = None,
        weights: Any = None,
        allow_nonfinite: bool = False,
    ) -> "RankingData":
        """Takes arrays with one row per document; those of a query need not stand together.

        Args:
            features: `[documents, features]`.
            labels: `[documents]`.
            query_ids: `[documents]`, numbers or strings.
            document_ids: `[documents]`, or None.
            weights: `[documents]`, or None.
            allow_nonfinite: whether features may be NaN or infinite; a network gives NaN for them.
        """
        ids = np.asarray(query_ids)
        if ids.dtype.kind == "f" and ids.ndim == 1:  # how pandas holds whole numbers after a join
            if np.isnan(ids).any():
                raise ValueError("query_ids must not be missing. Received: NaN among them")
            ids = ids.astype(np.int64) if (ids == np.floor(ids)).all() else ids
        if ids.ndim != 1 or ids.dtype.kind not in "iuUSO":
            raise ValueError(
                "query_ids must be whole numbers or strings, [documents]. "
                f"Received: {ids.dtype} {ids.shape}"
            )
        if ids.dtype.kind == "O" and any(query is None or query != query for query in ids):
            raise ValueError("query_ids must not be missing. Received: None or NaN among them")
        columns = {"features": features, "labels": labels, "weights": weights}
        arrays: dict[str, Any] = {}
        for name, column in columns.items():
            if column is not None:
                arrays[name] = _float32(name, column)
        broken = np.argwhere(~np.isfinite(arrays["features"]))
        if len(broken) and not allow_nonfinite:
            row, place = broken[0].tolist()
            raise ValueError(
                "features must be finite (allow_nonfinite=True takes NaN and infinity). Received: "
                f"features[{row}, {place}]={arrays['features'][row, place]}, {len(broken)} in all"
            )
        if document_ids is not None:
            arrays["document_ids"] = np.asarray(document_ids).astype(str)
        for name, column in arrays.items():
            if len(column) != len(ids):
                raise ValueError(
                    f"{name} must have one row per entry of query_ids, {len(ids)}. "
                    f"Received: shape {column.shape}"
                )
        order, splits, names = group(ids)
        if order is not None:
            arrays = {name: column[order] for name, column in arrays.items()}
        return RankingData(row_splits=splits, query_ids=names, **arrays)

    @staticmethod
    def from_dataframe(
        frame: Any,
        label: str,
        query: str,
        features: Sequence[str] | None = None,
        document: str | None = None,
        weight: str | None = None,
        allow_nonfinite: bool = False,
    ) -> "RankingData":
        """Takes a frame of pandas or Polars with one row per document.

        Args:
            frame: the frame.
            label: name of the column of labels.
            query: name of the column of query ids.
            features: names of the feature columns; by default all that are not named otherwise.
            document: name of the column of document ids, or None.
            weight: name of the column of weights, or None.
            allow_nonfinite: see `from_arrays`.
        """
        columns = list(frame.columns)
        others = [name for name in (label, query, document, weight) if name is not None]
        features = [x for x in columns if x not in others] if features is None else features
        missing = [name for name in (*others, *features) if name not in columns]
        if missing:
            raise ValueError(f"The frame has no columns {missing}. Received: columns {columns}")
        arrays = []
        for name in features:
            column = frame[name].to_numpy()
            if column.dtype.kind not in "fiub":
                raise ValueError(
                    "A feature must be a column of numbers; features=[...] names those to take. "
                    f"Received: {name!r} of {column.dtype}"
                )
            arrays.append(column.astype(np.float32))
        rows = len(frame)
        stacked = np.stack(arrays, axis=1) if arrays else np.empty((rows, 0), np.float32)
        return RankingData.from_arrays(
            stacked,
            frame[label].to_numpy(),
            frame[query].to_numpy(),
            None if document is None else frame[document].to_numpy(),
            None if weight is None else frame[weight].to_numpy(),
            allow_nonfinite,
        )

    @staticmethod
    def from_tfds(
        name: str, split: str = "train", data_dir: str | os.PathLike[str] | None = None
    ) -> "RankingData":
        """Reads `mslr_web`, `istella` or `yahoo_ltrc` of TensorFlow Datasets.

        Args:
            name: a data set and its variant, such as `"mslr_web/30k_fold1"`.
            split: `"train"`, `"vali"` or `"test"`.
            data_dir: folder of TensorFlow Datasets, by default its own.
        """
        from tfrankloss.data.tfds import from_tfds

        return from_tfds(name, split, data_dir)

    def to_letor(self, path: str | os.PathLike[str], sparse: bool = False) -> None:
        """Writes a LETOR file, from which `load_letor` reads the same bits.

        Args:
            path: the file; `.gz`, `.bz2` or `.xz` compress it. It appears when it is complete.
            sparse: whether to leave out features that are 0.
        """
        from tfrankloss.data.letor import write_letor

        write_letor(self, Path(path), sparse)

    def to_dataset(
        self,
        batch_size: int | None = None,
        max_documents: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        list_size: int | None = None,
        truncate: str = "relevant",
        repeat: bool = False,
        inputs: str = "dict",
        drop_remainder: bool = False,
        first_epoch: int = 0,
        replicas: int | None = None,
        worker: int = 0,
        workers: int = 1,
    ) -> "tf.data.Dataset":
        """Padded batches for `model.fit`: `({"features", "mask"}, labels)`, and weights if any.

        `features` are `[batch, list, features]`, `mask` and `labels` `[batch, list]`, labels -1 in
        padding. Lists of similar length come together, in at most twelve sizes that are chosen for
        these data, so that little padding is computed and XLA compiles few programs; an incomplete
        batch is filled up with empty lists, which count in no loss or metric of this package.

        Args:
            batch_size: lists per batch, 128 by default.
            max_documents: in place of `batch_size`, documents per batch (with padding), so that a
                batch holds more short lists than long ones.
            shuffle: whether lists come in another order in every epoch, or always the same.
            seed: the same seed gives the same order.
            list_size: one size for all lists, and the shape of a batch is known before it runs, as
                TPUs need it. Shorter lists are padded; a longer one loses documents by `truncate`.
            truncate: what a list longer than `list_size` keeps: `"relevant"`, its relevant
                documents first and of the others some at random; or `"position"`, the first ones.
            repeat: whether epochs follow each other without end.
            inputs: `"dict"` as above, or `"features"` for `(features, labels)` without a mask.
            drop_remainder: whether to leave out what does not fill a batch.
            first_epoch: number of the epoch to begin with, to go on where another run stopped.
            replicas: of `tf.distribute.MirroredStrategy`, which share the lists of a batch: empty
                lists fill it up to a multiple of them. By default those of the strategy in whose
                `scope` this is called.
            worker: which part of each batch to make, where `workers` hosts train together, each
                with as many of the replicas as the others.
            workers: number of hosts.

        >>> data = RankingData.from_arrays([[1.0], [2.0], [3.0]], [0, 1, 1], ["a", "a", "b"])
        >>> for inputs, labels in data.to_dataset(batch_size=2, shuffle=False, list_size=2):
        ...     print(labels.numpy().tolist())
        [[0.0, 1.0], [1.0, -1.0]]
        """
        from tfrankloss.data.batches import make_dataset, make_plan

        plan = make_plan(
            batch_size=batch_size,
            max_documents=max_documents,
            shuffle=shuffle,
            seed=seed,
            list_size=list_size,
            truncate=truncate,
            repeat=repeat,
            inputs=inputs,
            drop_remainder=drop_remainder,
            first_epoch=first_epoch,
            replicas=replicas,
            worker=worker,
            workers=workers,
        )
        return make_dataset(self, plan)


def from_storage(stored: tuple[Mapping[str, np.ndarray], Mapping[str, Any]]) -> RankingData:
    """The data of a file of `RankingData.save`, or of the cache of a reader."""
    arrays, details = stored
    features = arrays["features"].reshape(len(arrays["labels"]), details["num_features"])
    columns = {name: column for name, column in arrays.items() if name != "features"}
    return RankingData(features, **columns)


def check_shard(index: int, count: int) -> None:
    """Raises unless `index` is one of `count` parts."""
    check_integer("count", count, minimum=1)
    check_integer("index", index, minimum=0)
    if index >= count:
        raise ValueError(f"index must be below count. Received: index={index}, count={count}")


def splits_of(lengths: np.ndarray) -> np.ndarray:
    """Row splits from the lengths of lists."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def group(ids: np.ndarray) -> tuple[np.ndarray | None, np.ndarray, np.ndarray]:
    """Rows query by query in the order in which queries are first seen.

    Returns the order of the rows, or None where they stand so already; the row splits; and the
    queries.
    """
    if not len(ids):
        return None, np.zeros(1, np.int64), ids
    starts = np.concatenate([[0], np.flatnonzero(ids[1:] != ids[:-1]) + 1]).astype(np.int64)
    numbers: dict[Any, int] = {}  # a dictionary needs no order among ids of different types
    runs = [numbers.setdefault(run, len(numbers)) for run in ids[starts].tolist()]
    lengths = np.diff(np.append(starts, len(ids)))
    if len(numbers) == len(runs):
        return None, splits_of(lengths), ids[starts]
    number = np.repeat(runs, lengths)
    order = np.argsort(number, kind="stable")
    splits = splits_of(np.bincount(number))
    return order, splits, ids[order[splits[:-1]]]


def _float32(name: str, column: Any) -> np.ndarray:
    array = np.asarray(column)
    rank = 2 if name == "features" else 1
    if array.ndim != rank or array.dtype.kind not in "fiub":
        shape = "[documents, features]" if rank == 2 else "[documents]"
        raise ValueError(f"{name} must be numbers, {shape}. Received: {array.dtype} {array.shape}")
    return np.ascontiguousarray(array, np.float32)
