"""Reading LETOR files, through a cache."""

import hashlib
import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfrankloss.data import storage
from tfrankloss.data.parsing import Columns, File, Loaded, Memory, Options, loaded, parse_source
from tfrankloss.data.ranking_data import RankingData, from_storage
from tfrankloss.data.sources import Source, find_sources
from tfrankloss.files import writing
from tfrankloss.options import check_choice, check_integer, check_number

# Changes whenever the same file would be read as something else, or its cache holds other details.
VERSION = 3


def load_letor(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    num_features: int | None = None,
    cache: bool | str | os.PathLike[str] = True,
    progress: bool = True,
    on_error: str = "raise",
    missing_value: float = 0.0,
    allow_nonfinite: bool = False,
    first_index: int | None = None,
) -> Any:
    """Reads LETOR files (SVMlight with query ids), such as MSLR-WEB30K, Yahoo's or Istella's.

    A line is `label qid:query index:value ... # docid = document`. Features may be missing and in
    any order; their indices count from 1, or from 0 if a 0 occurs in a file that is read at the
    same time (`first_index` says it for certain). Files without `qid:` have the sizes of their
    lists, one per line, in a file of the same name with `.query` added.

    The first read writes a binary copy, which later ones map into memory instead of parsing. With
    the extra `fast` (Numba) parsing is some fifty times as fast as by plain Python. Query ids that
    all are whole numbers come back as such, others as strings.

    Args:
        path: a file, also `.gz`, `.bz2`, `.xz` or `.zip`; several files, which are read as one; or
            a folder (or a folder in a zip file, `data.zip/Fold1`) with `train.txt`, `vali.txt` and
            `test.txt`.
        num_features: number of features, by default the highest index.
        cache: whether to keep a binary copy beside the file; or a folder for the copies.
        progress: whether to show how far it is, if that takes more than a moment.
        on_error: `"raise"` a `LetorFormatError` for a line that cannot be read, or `"skip"` such
            lines with a warning that counts them and names the first.
        missing_value: the value of features that a line does not have.
        allow_nonfinite: whether features may be `nan` or `inf`.
        first_index: 0 or 1, the index of the first feature; None to see from the file. Say it where
            files are read one by one and count from 0, but some lack the feature 0.

    Returns:
        `RankingData`; for a folder a dictionary of them, by `"train"`, `"vali"` and `"test"`.

    >>> import pathlib, tempfile
    >>> file = pathlib.Path(tempfile.mkdtemp(), "train.txt")
    >>> _ = file.write_text("2 qid:7 1:0.5 3:1e-3 # docid = a\\n0 qid:7 2:4 # docid = b\\n")
    >>> data = load_letor(file)
    >>> data
    RankingData(1 queries, 2 documents, 3 features)
    >>> data.document_ids.tolist()
    ['a', 'b']
    """
    options = letor_options(num_features, on_error, missing_value, allow_nonfinite, first_index)
    if not isinstance(cache, bool | str | os.PathLike):
        raise ValueError(f"cache must be True, False or a folder. Received: cache={cache!r}")
    sources = find_sources(path)
    parts = {
        name: [_load(source, options, cache, progress) for source in files]
        for name, files in sources.items()
    }
    files = [file for part in parts.values() for file in part]
    first, width = columns_of([file.columns for file in files], options)
    messages = [message for file in files for message in file.messages]
    results = {
        name: _joined([_aligned(file, first, width, options) for file in part], part, messages)
        for name, part in parts.items()
    }
    for message in messages:
        warnings.warn(message, stacklevel=2)
    return results[""] if list(results) == [""] else results


def letor_options(
    num_features: int | None,
    on_error: str,
    missing_value: float,
    allow_nonfinite: bool,
    first_index: int | None,
) -> Options:
    """The options of reading, checked."""
    if num_features is not None:
        check_integer("num_features", num_features, minimum=1)
        num_features = int(num_features)
    check_choice("on_error", on_error, ("raise", "skip"))
    check_choice("first_index", first_index, (None, 0, 1))
    check_number("missing_value", missing_value)
    check_choice("allow_nonfinite", allow_nonfinite, (True, False))
    missing_value = float(np.float32(missing_value))
    return Options(num_features, on_error, missing_value, allow_nonfinite, first_index)


def columns_of(files: Sequence[Columns], options: Options) -> tuple[int, int]:
    """The index of the first feature and the number of features of files read together."""
    first = min(file.first_index for file in files)
    width = options.num_features or max(file.last_index for file in files) - first + 1
    for file in files:
        if file.last_index - first + 1 > width and file.last_used:
            raise ValueError(
                f"One file counts features from 0 and another has the index {file.last_index}, "
                f"which is beyond num_features={options.num_features}"
            )
    return first, width


def align(
    features: np.ndarray, own_first: int, first_index: int, width: int, options: Options
) -> np.ndarray:
    """Features of one file with the columns of all that are read together."""
    before = own_first - first_index
    after = width - before - features.shape[1]
    if not before and not after:
        return features
    extra = ((0, 0), (before, max(after, 0)))
    return np.pad(features, extra, constant_values=options.missing_value)[:, :width]


def _aligned(file: Loaded, first_index: int, width: int, options: Options) -> RankingData:
    """The data of one file with the columns of all that are read together."""
    if file.first_index == first_index and file.data.num_features == width:
        return file.data
    return file.data.map_features(
        lambda features: align(features, file.first_index, first_index, width, options)
    )


def _joined(parts: list[RankingData], files: list[Loaded], messages: list[str]) -> RankingData:
    """The data of several files, one after the other; a query in two of them becomes one."""
    if len(parts) == 1:
        return parts[0]
    with_ids = [part.document_ids is not None for part in parts]
    if any(with_ids) and not all(with_ids):
        parts = [_with_document_ids(part) for part in parts]
    data = RankingData.concat(parts)
    if not all(file.named for file in files):  # lists without names are numbered
        ids = np.arange(len(data))
        return RankingData(data.features, data.labels, data.row_splits, ids, data.document_ids)
    if len(set(data.query_ids.tolist())) == len(data):
        return data
    messages.append("A query stands in more than one file; its documents were brought together")
    return RankingData.from_arrays(
        data.features, data.labels, data.query_of_documents, data.document_ids
    )


def _with_document_ids(data: RankingData) -> RankingData:
    ids = np.full(data.num_documents, "") if data.document_ids is None else data.document_ids
    return RankingData(data.features, data.labels, data.row_splits, data.query_ids, ids)


def _load(source: Source, options: Options, cache: Any, progress: bool) -> Loaded:
    """One file, from its cache if that holds."""
    if cache is False:
        return parse_source(source, options, Memory(), progress)
    path = _cache_path(source, options, cache)
    messages: list[str] = []
    # A cache that holds needs no lock: it gets its name when it is complete.
    found = _open_cache(path, source, messages)
    if found is None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with storage.locked(path):
                found = _open_cache(path, source, [])  # another process may have made it meanwhile
                if found is None:
                    storage.remove_partial(path)
                    with storage.Writer(path) as writer:
                        parse_source(source, options, File(writer, source), progress)
                    found = _open_cache(path, source, [])
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not source.path.exists():
                raise
            messages.append(f"No cache is written to {path.parent}: {error}")
    if found is None:  # no cache, or the source changes while it is read
        found = parse_source(source, options, Memory(), progress)
    return found._replace(messages=[*messages, *found.messages])


def _cache_path(source: Source, options: Options, cache: Any) -> Path:
    key = json.dumps([VERSION, source.member, *options])
    folder = source.path.parent
    if cache is not True:
        folder = Path(cache)
        key += str(source.path.resolve())
    name = source.path.name + (f".{Path(source.member).name}" if source.member else "")
    return folder / f"{name}.{hashlib.sha1(key.encode()).hexdigest()[:8]}.cache"


def _open_cache(path: Path, source: Source, messages: list[str]) -> Loaded | None:
    """What the cache holds if it is of this very file and undamaged."""
    checked = path.with_name(f".{path.name}.checked")
    try:
        details = storage.read_details(path)
        key = details["source"]
        if checked.exists():  # the time at which the file was last seen to be the same
            later = json.loads(checked.read_text())
            key = later if later["digest"] == key["digest"] else key
        if not source.matches(key):
            return None
        data = from_storage(storage.read(path))
    except OSError:
        return None
    except (storage.StorageError, ValueError, KeyError, TypeError) as error:
        messages.append(f"The cache is made again: {error}")
        return None
    if source.was_hashed:
        try:
            with writing(checked) as partial:
                partial.write_text(json.dumps(source.key()))
        except OSError:
            pass  # it will be hashed again
    return loaded(data, details)
