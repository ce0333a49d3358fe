"""The ranking data sets of TensorFlow Datasets."""

import os
from collections.abc import Iterable
from typing import Any

import numpy as np

from tfrankloss.data.parsing import query_names
from tfrankloss.data.ranking_data import RankingData, splits_of
from tfrankloss.options import check_choice, needs

DATASETS = ("mslr_web", "istella", "yahoo_ltrc")
SPLITS = ("train", "vali", "test")
FEATURES = {"float_features", "label", "query_id", "doc_id"}


def from_tfds(name: str, split: str, data_dir: str | os.PathLike[str] | None = None) -> RankingData:
    """Reads a ranking data set of TensorFlow Datasets; at the first call it is prepared there.

    Queries and documents stand in the order of the data set's own files, and the id of a document
    is the number of its line.

    Args:
        name: `mslr_web`, `istella` or `yahoo_ltrc`, and the variant, such as `"istella/x"`.
        split: `"train"`, `"vali"` (`"istella/main"` has none) or `"test"`.
        data_dir: folder of TensorFlow Datasets, by default its own. `yahoo_ltrc` cannot be
            downloaded: `ltrc_yahoo.tar.bz2` must be in `downloads/manual` of this folder.

    >>> from_tfds("mslr_web/30k_fold1", "train")  # doctest: +SKIP
    RankingData(18919 queries, 2270296 documents, 136 features)
    """
    check_choice("split", split, SPLITS)  # before a download of gigabytes
    builder = _prepared(name, data_dir)
    import tensorflow as tf

    splits = list(builder.info.splits)
    try:
        if not splits:
            raise FileNotFoundError("dataset_info.json, or the splits in it, are missing")
        if split not in splits:
            raise ValueError(f"{name} has the splits {', '.join(splits)}. Received: {split=}")
        return _read(builder, split)
    except (OSError, tf.errors.OpError) as error:
        raise RuntimeError(
            f"The prepared files in {builder.data_dir} cannot be read. Delete this folder, and "
            f"{name} is prepared anew. The error was: {error}"
        ) from error


def _prepared(name: str, data_dir: str | os.PathLike[str] | None) -> Any:
    """The builder of a data set, which has been downloaded and converted."""
    dataset, _, variant = str(name).partition(":")[0].partition("/")
    if dataset not in DATASETS:
        raise ValueError(f"The data set must be one of {', '.join(DATASETS)}. Received: {name=}")
    tfds = needs("tensorflow_datasets", "tfds")
    needs("importlib_resources", "tfds")  # which tensorflow_datasets uses but does not require
    variants = list(tfds.builder_cls(dataset).builder_configs)
    if variant and variant not in variants:
        raise ValueError(f"{dataset} has the variants {', '.join(variants)}. Received: {name=}")
    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except AssertionError as error:  # a version that is neither the newest nor prepared
        raise ValueError(f"{error} Received: {name=}") from error
    missing = FEATURES - set(builder.info.features)
    if missing:
        raise ValueError(
            f"Version {builder.version} of {dataset} is too old, it has no {sorted(missing)}. Ask "
            f"for the newest, of a newer tensorflow-datasets if need be. Received: {name=}"
        )
    try:
        builder.download_and_prepare()
    except Exception as error:
        advice = "load_letor reads the files of the data set if you download them yourself."
        if builder.MANUAL_DOWNLOAD_INSTRUCTIONS:
            advice = " ".join(builder.MANUAL_DOWNLOAD_INSTRUCTIONS.split())
            advice += f" (manual_dir is {builder.data_dir_root}/downloads/manual.)"
        raise RuntimeError(
            f"TensorFlow Datasets could not prepare {name}. {advice} The error was: {error}"
        ) from error
    return builder


def _read(builder: Any, split: str) -> RankingData:
    # Two passes: the first tells how many documents there are, so that the second can write each
    # feature to its place and none is held twice.
    queries = list(_examples(builder, split, FEATURES - {"float_features"}))
    # TensorFlow Datasets has shuffled the queries, but document ids are numbers of lines.
    queries.sort(key=lambda query: query["doc_id"][0])
    ids = [query["query_id"] for query in queries]
    row_splits = splits_of(np.array([len(query["label"]) for query in queries]))
    starts = dict(zip(ids, row_splits, strict=False))
    width = builder.info.features["float_features"].shape[-1]
    features = np.empty((row_splits[-1], width), np.float32)
    for query in _examples(builder, split, {"query_id", "float_features"}):
        rows = query["float_features"]
        start = starts[query["query_id"]]
        features[start : start + len(rows)] = rows
    lines = np.concatenate([query["doc_id"] for query in queries])
    return RankingData(
        features,
        np.concatenate([query["label"] for query in queries]).astype(np.float32),
        row_splits,
        query_names(ids),
        lines.astype(f"U{len(str(lines.max()))}"),  # astype(str) would take room for any int64
    )


def _examples(builder: Any, split: str, features: set[str]) -> Iterable[dict[str, Any]]:
    """The queries of a split one by one, with these of their features."""
    tfds = needs("tensorflow_datasets", "tfds")
    dataset = builder.as_dataset(
        split=split,
        decoders=tfds.decode.PartialDecoding(features),
        read_config=tfds.ReadConfig(try_autocache=False),  # a cache would be a second copy
    )
    return tfds.as_numpy(dataset)
