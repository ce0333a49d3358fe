"""Record files: whole lists in TFRecord files, with what is known of them in JSON beside them.

FOLDER/records-00000-of-00016.tfrecord   a `tf.train.Example` for each list, see `serialize`
FOLDER/records-00000-of-00016.index      where they are in it, see `INDEX`; an array of NumPy
FOLDER/records.json                      the schema: numbers, histograms, statistics, files
FOLDER/rejected.jsonl                    lines that could not be read, where there are any

A query goes to the file that the hash of its id says; there, lists with a relevant document come
first, shorter ones before longer ones (in steps of eight), and among those the hash decides. The
documents of a list are in the order of the input. So the same input gives the same files, wherever
and in however many pieces it is converted; and a reader finds lists of similar length together.
"""

import fnmatch
import hashlib
import io
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfrankloss.data.batches import MULTIPLE
from tfrankloss.data.letor import shortest
from tfrankloss.data.parsing import WHOLE_NUMBER, Loaded, Options
from tfrankloss.data.reader import align
from tfrankloss.data.statistics import FeatureStatistics, Sample, merge_statistics

FORMAT = 2
SCHEMA = "records.json"
REJECTED = "rejected.jsonl"
# Bytes of a TFRecord file that stand before and after each record.
HEADER, FOOTER = 12, 4
# A record, and the arrays in it: with these numbers a reader needs to parse nothing.
INDEX = np.dtype(
    [
        ("offset", "<i8"),  # of the record in the file
        ("bytes", "<i4"),
        ("checksum", "<u4"),  # CRC-32 of the record
        ("length", "<i4"),  # of the list
        ("features", "<i4"),  # the first byte in the record
        ("labels", "<i4"),
        ("weights", "<i4"),  # -1 where there are none
    ]
)
# More different labels than these are not counted.
MOST_LABELS = 1000


class Piece(NamedTuple):
    """Documents of a query as one file has them."""

    first_index: int  # of the first column
    features: np.ndarray
    labels: np.ndarray
    documents: np.ndarray | None = None
    weights: np.ndarray | None = None


class RecordFile(NamedTuple):
    """What the schema needs to know of one record file."""

    entry: dict[str, Any]  # as it stands in the schema
    labels: dict[str, int] | None  # documents by label; None where there are too many labels
    whole_numbers: bool  # whether all query ids are
    documents: bool  # whether documents have ids
    weights: bool
    statistics: dict[str, np.ndarray]


def file_name(shard: int, shards: int) -> str:
    """The name of a record file."""
    return f"records-{shard:05d}-of-{shards:05d}.tfrecord"


def index_name(name: str) -> str:
    """The name of the index of a record file."""
    return name.removesuffix(".tfrecord") + ".index"


def is_file_name(path: str) -> bool:
    """Whether a record file or its index has this name, or one that is being written."""
    return any(fnmatch.fnmatch(path, f"*records-*-of-*.{x}*") for x in ("tfrecord", "index"))


def query_key(query: str) -> int:
    """The hash of a query id."""
    return int.from_bytes(hashlib.blake2b(query.encode(), digest_size=8).digest(), "little")


def sort_key(query: str, length: int, max_label: float) -> tuple[bool, int, int, str]:
    """What decides where in its file a list stands."""
    return not max_label > 0, -(-length // MULTIPLE) * MULTIPLE, query_key(query), query


def piece_of(file: Loaded, number: int) -> Piece:
    """The documents of a query of a file."""
    data = file.data
    rows = slice(*data.row_splits[number : number + 2].tolist())
    return Piece(
        file.first_index,
        data.features[rows],
        data.labels[rows],
        None if data.document_ids is None else data.document_ids[rows],
        None if data.weights is None else data.weights[rows],
    )


def join_pieces(pieces: Sequence[Piece], columns: tuple[int, int], options: Options) -> Piece:
    """One list of the pieces of a query, with the columns (first index, number) of all files."""
    features = [align(x.features, x.first_index, *columns, options) for x in pieces]
    if len(pieces) == 1:
        return pieces[0]._replace(features=features[0])
    documents = None
    if any(x.documents is not None for x in pieces):
        empty = [np.full(len(x.labels), "") if x.documents is None else x.documents for x in pieces]
        documents = np.concatenate(empty)
    labels = np.concatenate([x.labels for x in pieces])
    return Piece(columns[0], np.concatenate(features), labels, documents)


def serialize(query: str, piece: Piece) -> bytes:
    """A list as `tf.train.Example`.

    `features` `[length, features]`, `labels` and `weights` `[length]` are the bytes of float32
    numbers, least significant first; `documents` are the ids of the documents, where there are any.
    """
    import tensorflow as tf

    def words(values: list[bytes]) -> Any:
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))

    length = tf.train.Int64List(value=[len(piece.labels)])
    columns = {
        "query": words([query.encode()]),
        "length": tf.train.Feature(int64_list=length),
    }
    columns |= {name: words([values]) for name, values in _raw(piece).items()}
    if piece.documents is not None and any(piece.documents):
        columns["documents"] = words([name.encode() for name in piece.documents.tolist()])
    example = tf.train.Example(features=tf.train.Features(feature=columns))
    return example.SerializeToString(deterministic=True)


def _raw(piece: Piece) -> dict[str, bytes]:
    """The arrays of a list as bytes."""
    arrays = {"features": piece.features, "labels": piece.labels, "weights": piece.weights}
    return {
        name: np.ascontiguousarray(values, "<f4").tobytes()
        for name, values in arrays.items()
        if values is not None
    }


def write_file(
    path: Path, index: Path, name: str, lists: Iterable[tuple[str, Piece]], num_features: int
) -> tuple[RecordFile, Sample]:
    """Writes lists in their order; returns what the schema needs, and a sample of documents.

    Args:
        path: where to write.
        index: where to write the index.
        name: the name that the file will have.
        lists: query ids, and their documents with all columns, in the order of `sort_key`.
        num_features: number of features.
    """
    import tensorflow as tf

    statistics = FeatureStatistics(num_features)
    lengths: Counter[int] = Counter()
    relevant: Counter[int] = Counter()
    labels: Counter[str] | None = Counter()
    rows: list[tuple[int, ...]] = []
    highest, offset = 0.0, 0
    whole_numbers, documents, weights = True, False, False
    with tf.io.TFRecordWriter(str(path)) as file:
        for query, piece in lists:
            record = serialize(query, piece)
            file.write(record)
            length, maximum = len(piece.labels), float(piece.labels.max())
            # Wherever these bytes are found, they are the array.
            found = {name: record.index(values) for name, values in _raw(piece).items()}
            places = (found["features"], found["labels"], found.get("weights", -1))
            rows.append((offset + HEADER, len(record), zlib.crc32(record), length, *places))
            offset += HEADER + len(record) + FOOTER
            statistics.add(query_key(query), piece.features)
            lengths[length] += 1
            relevant[length] += maximum > 0
            highest = max(highest, maximum)
            if labels is not None:
                values, counts = np.unique(piece.labels, return_counts=True)
                for label, count in zip(shortest(values), counts.tolist(), strict=True):
                    labels[label] += count
                labels = labels if len(labels) <= MOST_LABELS else None
            whole_numbers = whole_numbers and WHOLE_NUMBER.fullmatch(query.encode()) is not None
            documents = documents or (piece.documents is not None and any(piece.documents))
            weights = weights or piece.weights is not None
    table = io.BytesIO()
    np.save(table, np.array(rows, INDEX))
    index.write_bytes(table.getvalue())
    entry = {
        "name": name,
        "queries": lengths.total(),
        "documents": sum(length * count for length, count in lengths.items()),
        "bytes": path.stat().st_size,
        # Of the index, which has those of the records.
        "checksum": zlib.crc32(table.getvalue()),
        "max_label": highest,
        "lengths": {str(length): lengths[length] for length in sorted(lengths)},
        "relevant": {str(length): relevant[length] for length in sorted(+relevant)},
    }
    numbers, sample = statistics.finish()
    return RecordFile(entry, labels, whole_numbers, bool(documents), weights, numbers), sample


def rejected_line(file: str, bad: Sequence[Any]) -> dict[str, Any]:
    """A line that could not be read, as `rejected.jsonl` has it."""
    return {"file": file, **dict(zip(("line", "column", "received", "reason"), bad, strict=True))}


def rejected_text(rejected: Iterable[Mapping[str, Any]]) -> str:
    """The contents of `rejected.jsonl`."""
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in rejected)


def make_schema(
    files: Sequence[RecordFile],
    sample: Sample,
    columns: tuple[int, int],
    lines: int | None = None,
    rejected: int = 0,
) -> dict[str, Any]:
    """What is known of record files, in their order, as JSON holds it.

    `lines` of the input are documents, rejected lines and blank ones.
    """
    first_index, num_features = columns
    documents = sum(file.entry["documents"] for file in files)
    if not documents:
        raise ValueError(
            f"There are no documents to write. Received: {lines or 0} lines, {rejected} of them "
            "rejected"
        )
    labels: Counter[str] | None = Counter()
    for file in files:
        labels = None if labels is None or file.labels is None else labels + Counter(file.labels)
        labels = None if labels is None or len(labels) > MOST_LABELS else labels
    schema: dict[str, Any] = {
        "format": FORMAT,
        "num_features": num_features,
        "first_index": first_index,
        "queries": sum(file.entry["queries"] for file in files),
        "documents": documents,
        "whole_numbers": all(file.whole_numbers for file in files),
        "document_ids": any(file.documents for file in files),
        "weights": any(file.weights for file in files),
        "max_label": max(file.entry["max_label"] for file in files),
        "labels": labels and {label: labels[label] for label in sorted(labels, key=float)},
        "lengths": merge_histograms(file.entry["lengths"] for file in files),
        "relevant": merge_histograms(file.entry["relevant"] for file in files),
        "statistics": merge_statistics((file.statistics for file in files), sample),
        "files": [file.entry for file in files],
    }
    if lines is not None:
        blank = lines - documents - rejected
        counts = {"read": lines, "documents": documents, "rejected": rejected, "blank": blank}
        schema["lines"] = counts
    return schema


def merge_histograms(histograms: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """How many lists of each length there are in all."""
    total: Counter[int] = Counter()
    for histogram in histograms:
        total.update({int(length): count for length, count in histogram.items()})
    return {str(length): total[length] for length in sorted(total)}


def schema_text(schema: Mapping[str, Any]) -> str:
    """The contents of `records.json`."""
    short = {name: value for name, value in schema.items() if name not in ("statistics", "files")}
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in short.items()]
    for name, opening, closing in (("statistics", "{", "}"), ("files", "[", "]")):
        value = schema[name]
        items = (
            [f"{json.dumps(key)}: {json.dumps(x, allow_nan=False)}" for key, x in value.items()]
            if isinstance(value, Mapping)
            else [json.dumps(x) for x in value]
        )
        lines.append(f'"{name}": {opening}\n' + ",\n".join(items) + f"\n{closing}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
