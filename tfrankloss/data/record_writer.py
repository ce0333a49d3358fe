"""Writing record files: from LETOR files of any size, or from data in memory."""

import contextlib
import glob
import os
import secrets
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfrankloss.data import record_files, storage
from tfrankloss.data.parsing import File, Loaded, Options, loaded, parse_source
from tfrankloss.data.ranking_data import RankingData, from_storage
from tfrankloss.data.reader import columns_of, letor_options
from tfrankloss.data.record_files import Piece, join_pieces, piece_of, query_key
from tfrankloss.data.sources import PathLike, Source, find_sources
from tfrankloss.data.statistics import merge_samples
from tfrankloss.options import check_integer
from tfrankloss.progress import Progress

MOST_MESSAGES = 10


def write_records(
    source: RankingData | PathLike | Sequence[PathLike],
    folder: PathLike,
    *,
    shards: int = 16,
    on_error: str = "raise",
    num_features: int | None = None,
    missing_value: float = 0.0,
    allow_nonfinite: bool = False,
    first_index: int | None = None,
    progress: bool = True,
    runner: str | None = None,
    runner_options: Sequence[str] = (),
) -> None:
    """Converts data to record files, which `open_records` streams from.

    The folder appears when all of it is complete; what a killed conversion to it has left, the next
    one removes (where the file system has locks). Files are parsed one after the other into a
    temporary binary copy beside it, as large as the features in float32, which is mapped into
    memory: what is held are labels, ids and a few blocks of text, whatever the data are. Queries
    whose lines are scattered, also over several files, are brought together.

    Args:
        source: files as `load_letor` takes them, patterns such as `"parts/*.txt"`, or
            `RankingData`. A folder with `train.txt`, `vali.txt` and `test.txt` becomes a folder of
            such folders.
        folder: where to write; it must be new or empty.
        shards: number of record files: at least one for each worker that is to read them, and so
            many that each has some hundred megabytes.
        on_error: `"raise"` a `LetorFormatError` for a line that cannot be read, or `"skip"` such
            lines: `rejected.jsonl` names file, line and what is wrong.
        num_features: see `load_letor`, as for `missing_value`, `allow_nonfinite`, `first_index`.
        missing_value: the value of features that a line does not have.
        allow_nonfinite: whether features may be `nan` or `inf`.
        first_index: 0 or 1, the index of the first feature; None to see from the files.
        progress: whether to show how far it is.
        runner: to run as an Apache Beam pipeline: the name of its runner, such as `"DirectRunner"`
            or `"DataflowRunner"`. The files are the same. A worker holds one input file and one
            record file in memory.
        runner_options: arguments of the pipeline, such as `["--region=europe-west1"]`.

    >>> import tempfile
    >>> from tfrankloss import data
    >>> folder = tempfile.mkdtemp()
    >>> data.write_records(data.synthetic(20, 5, 10), folder, shards=2)
    >>> data.open_records(folder)
    Records(20 queries, 170 documents, 5 features, 2 files)
    """
    check_integer("shards", shards, minimum=1)
    options = letor_options(num_features, on_error, missing_value, allow_nonfinite, first_index)
    if isinstance(source, RankingData):
        if runner is not None or options != Options():
            raise ValueError(
                "Options of reading and a runner are for files. Received: RankingData with "
                f"runner={runner!r}, {options}"
            )
        with _new_folder(folder) as partial:
            split = [("", Loaded(source, 1, True, True, (), 0, ()))]
            columns = (1, source.num_features)
            _write_split(partial, split, columns, shards, options, progress, from_text=False)
        return
    options = options._replace(allow_empty=True)  # some of many files may be
    if runner is not None:
        rejected = _run(source, os.fspath(folder), shards, options, runner, runner_options)
        _warn((), rejected, folder)
        return
    if runner_options:
        raise ValueError(f"runner_options need a runner. Received: {list(runner_options)}")
    if "://" in os.fspath(folder):
        raise ValueError(
            f"Without a runner of Apache Beam, files are written to this host. Received: {folder}"
        )
    sources = find_sources(_expanded(source))
    with _new_folder(folder) as partial:
        spool = partial / "spool"
        spool.mkdir()
        splits = {
            name: [
                (file.name, _read(file, options, spool / f"{name}{number}", progress))
                for number, file in enumerate(files)
            ]
            for name, files in sources.items()
        }
        files = [file for split in splits.values() for _, file in split]
        columns = columns_of([file.columns for file in files], options)
        for name, split in splits.items():
            (partial / name).mkdir(exist_ok=True)
            _write_split(partial / name, split, columns, shards, options, progress)
        shutil.rmtree(spool)
    messages = [message for file in files for message in file.messages]
    _warn(messages, sum(len(file.rejected) for file in files), folder)


def _run(
    source: PathLike | Sequence[PathLike],
    folder: str,
    shards: int,
    options: Options,
    runner: str,
    runner_options: Sequence[str],
) -> int:
    """Converts by a pipeline of Apache Beam; returns the number of rejected lines."""
    from tfrankloss.data import beam

    given = [source] if isinstance(source, str | os.PathLike) else list(source)
    remote = ["://" in os.fspath(path) for path in given]
    if any(remote) != all(remote):
        raise ValueError(f"Files must be on this machine or none of them. Received: {given}")
    sources: Mapping[str, Sequence[Source | str]]
    if any(remote):
        found = [file for path in given for file in beam.match_files(os.fspath(path))]
        sources = {"": found}
    else:
        sources = find_sources(_expanded(source))
    return beam.run_pipeline(sources, folder, shards, options, runner, runner_options)


def _expanded(source: PathLike | Sequence[PathLike]) -> PathLike | Sequence[PathLike]:
    """The files behind patterns; a single path stays one, since it may be a folder."""
    if isinstance(source, str | os.PathLike):
        found = _matching(source)
        return found if len(found) != 1 else found[0]
    return [path for pattern in source for path in _matching(pattern)]


def _matching(pattern: PathLike) -> list[PathLike]:
    text = os.fspath(pattern)
    if not glob.has_magic(text) or os.path.exists(text):
        return [pattern]
    found = sorted(path for path in glob.glob(text, recursive=True) if os.path.isfile(path))
    if not found:
        raise FileNotFoundError(f"No file matches the pattern. Received: {text!r}")
    return list(found)


@contextlib.contextmanager
def _new_folder(folder: PathLike) -> Iterator[Path]:
    """A hidden folder beside the target, which gets its name when all went well."""
    target = Path(os.path.abspath(folder))
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise ValueError(f"The folder to write to must be new or empty. Received: {folder}")
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob(f".{glob.escape(target.name)}.*.partial"):
        with _held(left, wait=False) as ended:
            # One that is empty may have been made just now, and not be held yet.
            if ended and any(left.iterdir()):
                shutil.rmtree(left, ignore_errors=True)
    partial = target.with_name(f".{target.name}.{secrets.token_hex(8)}.partial")
    partial.mkdir()
    with _held(partial, wait=True):
        try:
            yield partial
            if target.is_dir():
                target.rmdir()
            os.rename(partial, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def _held(folder: Path, wait: bool) -> Iterator[bool]:
    """Whether this process holds the folder now; a killed process holds nothing."""
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except (ImportError, OSError):  # on Windows nobody does; or it has gone, or is a file
        yield False
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        held = True
    except OSError:  # another process does, or the file system has no such thing
        held = False
    try:
        yield held
    finally:
        os.close(handle)


def _read(source: Source, options: Options, path: Path, progress: bool) -> Loaded:
    """Parses a file into a binary copy and maps that into memory."""
    with storage.Writer(path) as writer:
        parse_source(source, options, File(writer), progress)
    arrays, details = storage.read(path, verify=False)
    return loaded(from_storage((arrays, details)), details)


def _write_split(
    folder: Path,
    files: Sequence[tuple[str, Loaded]],
    columns: tuple[int, int],
    shards: int,
    options: Options,
    progress: bool,
    from_text: bool = True,
) -> None:
    """Writes the record files of one split, and what goes with them."""
    parts = [file for _, file in files]
    contents = _contents(parts, shards, from_text)
    written, samples = [], []
    with Progress(
        "records", sum(x.data.num_documents for x in parts), "documents", progress
    ) as bar:
        done = 0

        def lists(queries: list[_Query]) -> Iterator[tuple[str, Piece]]:
            nonlocal done
            for query, places in queries:
                pieces = [piece_of(parts[file], number) for file, number in places]
                whole = join_pieces(pieces, columns, options)
                done += len(whole.labels)
                bar.update(done)
                yield query, whole

        for shard, queries in enumerate(contents):
            name = record_files.file_name(shard, shards)
            index = folder / record_files.index_name(name)
            file, sample = record_files.write_file(
                folder / name, index, name, lists(queries), columns[1]
            )
            written.append(file)
            samples.append(sample)
    rejected = [record_files.rejected_line(name, x) for name, file in files for x in file.rejected]
    if rejected:
        text = record_files.rejected_text(rejected)
        (folder / record_files.REJECTED).write_text(text, encoding="utf-8")
    lines = sum(file.lines for file in parts) if from_text else None
    schema = record_files.make_schema(
        written, merge_samples(samples), columns, lines, len(rejected)
    )
    (folder / record_files.SCHEMA).write_text(record_files.schema_text(schema), encoding="utf-8")


# The id of a query, and where its documents are: file and number in that.
_Query = tuple[str, list[tuple[int, int]]]


def _contents(files: Sequence[Loaded], shards: int, from_text: bool) -> list[list[_Query]]:
    """The queries of each record file, in their order."""
    ids = [file.data.query_ids for file in files]
    if not all(file.named for file in files):  # lists without names are numbered
        if any(file.named for file in files):
            raise ValueError(
                "Some files name their queries (qid:) and others do not: convert them separately"
            )
        ends = np.cumsum([len(file.data) for file in files])
        ids = np.split(np.arange(ends[-1]), ends[:-1])
    found: dict[str, list[tuple[int, int]]] = {}
    contents: list[list[_Query]] = [[] for _ in range(shards)]
    for number, queries in enumerate(ids):
        for place, query in enumerate(queries.astype(str).tolist()):
            if query in found and from_text:
                found[query].append((number, place))
                continue
            found[query] = [(number, place)]
            contents[query_key(query) % shards].append((query, found[query]))
    lengths = [file.data.lengths for file in files]
    highest = [
        np.maximum.reduceat(file.data.labels, file.data.row_splits[:-1])
        if len(file.data)
        else np.empty(0)
        for file in files
    ]

    def key(query: _Query) -> Any:
        name, places = query
        length = sum(int(lengths[file][number]) for file, number in places)
        max_label = max(float(highest[file][number]) for file, number in places)
        return record_files.sort_key(name, length, max_label), places

    return [sorted(queries, key=key) for queries in contents]


def _warn(messages: Sequence[str], rejected: int, folder: PathLike) -> None:
    """Says what the reader found in files, of which there may be many, and what was left out."""
    shown = list(messages[:MOST_MESSAGES])
    if len(messages) > len(shown):
        shown.append(f"There are {len(messages) - len(shown)} more messages of other files")
    if rejected:
        place = f"{record_files.REJECTED} in {os.fspath(folder)}"
        shown.append(f"{rejected} lines were rejected: {place} names them")
    for message in shown:
        warnings.warn(message, stacklevel=3)
