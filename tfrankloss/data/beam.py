"""The conversion to record files as an Apache Beam pipeline.

    files ─ read_file ─┬─ pieces of queries, by record file ─ write_shard ─┬─ write_schema
                       └─ columns, rejected lines, numbers of lines ───────┘

A file is read by one worker, and so is a record file written. The functions are those of the
converter on one machine, and the order within a record file does not depend on who did what: the
files are the same, bit by bit. The schema is written last, and nothing is trusted without it.
"""

import contextlib
import itertools
import json
import logging
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfrankloss.data import record_files
from tfrankloss.data.parsing import Columns, Memory, Options, parse_source
from tfrankloss.data.reader import columns_of
from tfrankloss.data.record_files import RecordFile, join_pieces, piece_of, query_key, sort_key
from tfrankloss.data.sources import Source
from tfrankloss.data.statistics import Sample, merge_samples
from tfrankloss.files import writing
from tfrankloss.options import needs


def run_pipeline(
    sources: Mapping[str, Sequence[Source | str]],
    folder: str,
    shards: int,
    options: Options,
    runner: str,
    runner_options: Sequence[str],
) -> int:
    """Converts the files of each split and returns the number of lines that were rejected."""
    beam = needs("apache_beam", "beam")
    pipeline_options = needs("apache_beam.options.pipeline_options", "beam")
    chosen = pipeline_options.PipelineOptions([f"--runner={runner}", *runner_options])
    check_empty(folder)
    places = {name: f"{folder}/{name}".rstrip("/") for name in sources}
    pipeline = beam.Pipeline(options=chosen)
    _build(pipeline, sources, places, shards, options)
    try:
        pipeline.run().wait_until_finish()
    except RuntimeError as error:  # what is wrong, with all that Beam adds to it
        raise ValueError(f"The pipeline failed: {str(error).strip().splitlines()[-1]}") from error
    return sum(_rejected(place) for place in places.values())


def _build(
    pipeline: Any,
    sources: Mapping[str, Sequence[Source | str]],
    places: Mapping[str, str],
    shards: int,
    options: Options,
) -> None:
    """Adds the steps for each split."""
    beam = needs("apache_beam", "beam")
    read = {
        name: pipeline
        | f"files {name}" >> beam.Create(list(enumerate(files)))
        | f"apart {name}" >> beam.Reshuffle()
        | f"read {name}"
        >> beam.FlatMap(read_file, options, shards).with_outputs(
            "columns", "lines", "rejected", main="pieces"
        )
        for name, files in sources.items()
    }
    # Splits have the same columns.
    together = tuple(outputs.columns for outputs in read.values()) | beam.Flatten()
    columns = beam.pvalue.AsList(together)
    for name, outputs in read.items():
        # A record file without queries is written, too.
        every = pipeline | f"shards {name}" >> beam.Create([(x, None) for x in range(shards)])
        grouped = (
            (every, outputs.pieces)
            | f"with empty ones {name}" >> beam.Flatten()
            | f"by shard {name}" >> beam.GroupByKey()
        )
        written = grouped | f"write {name}" >> beam.FlatMap(
            write_shard, places[name], shards, options, columns=columns
        ).with_outputs("samples", main="files")
        sample = written.samples | f"sample {name}" >> beam.CombineGlobally(merge_samples)
        _ = (
            pipeline
            | f"once {name}" >> beam.Create([places[name]])
            | f"schema {name}"
            >> beam.Map(
                write_schema,
                options,
                columns=columns,
                files=beam.pvalue.AsList(written.files),
                sample=beam.pvalue.AsSingleton(sample),
                lines=beam.pvalue.AsList(outputs.lines),
                rejected=beam.pvalue.AsList(outputs.rejected),
            )
        )


def read_file(numbered: tuple[int, Source | str], options: Options, shards: int) -> Iterator[Any]:
    """The pieces of the queries of a file, by record file; what else there is to know by name."""
    from apache_beam.pvalue import TaggedOutput

    number, source = numbered
    name = source if isinstance(source, str) else source.name
    with _local(source) as here:
        file = parse_source(here, options, Memory(), progress=False)
    if not file.named:
        raise ValueError(
            f"A pipeline needs files that name their queries (qid:). Received: {name} without"
        )
    for message in file.messages:
        logging.getLogger(__name__).warning(message)  # which runners collect from their workers
    yield TaggedOutput("columns", file.columns)
    yield TaggedOutput("lines", file.lines)
    for bad in file.rejected:
        yield TaggedOutput("rejected", (number, record_files.rejected_line(name, bad)))
    for place, query in enumerate(file.data.query_ids.astype(str).tolist()):
        yield query_key(query) % shards, (query, number, piece_of(file, place))


def write_shard(
    grouped: tuple[int, Iterable[Any]],
    folder: str,
    shards: int,
    options: Options,
    columns: Sequence[Columns],
) -> Iterator[Any]:
    """Writes a record file; what the schema needs of it, and its sample."""
    from apache_beam.pvalue import TaggedOutput

    shard, values = grouped
    found = columns_of(columns, options)
    pieces = sorted((x for x in values if x is not None), key=lambda x: x[:2])
    lists = [
        (query, join_pieces([piece for *_, piece in same], found, options))
        for query, same in itertools.groupby(pieces, key=lambda x: x[0])
    ]
    lists.sort(key=lambda x: sort_key(x[0], len(x[1].labels), float(x[1].labels.max())))
    name = record_files.file_name(shard, shards)
    index_name = record_files.index_name(name)
    with _publishing(folder, name) as path, _publishing(folder, index_name) as index:
        file, sample = record_files.write_file(path, index, name, lists, found[1])
    yield file
    yield TaggedOutput("samples", sample)


def write_schema(
    folder: str,
    options: Options,
    columns: Sequence[Columns],
    files: Sequence[RecordFile],
    sample: Sample,
    lines: Sequence[int],
    rejected: Sequence[tuple[int, dict[str, Any]]],
) -> None:
    """Writes what stands beside the record files."""
    ordered = sorted(rejected, key=lambda x: (x[0], x[1]["line"]))
    schema = record_files.make_schema(
        sorted(files, key=lambda file: file.entry["name"]),
        sample,
        columns_of(columns, options),
        sum(lines),
        len(rejected),
    )
    texts = {record_files.SCHEMA: record_files.schema_text(schema)}
    if rejected:
        texts = {record_files.REJECTED: record_files.rejected_text(x for _, x in ordered), **texts}
    for name, text in texts.items():
        with _publishing(folder, name) as path:
            path.write_text(text, encoding="utf-8")


def match_files(pattern: str) -> list[str]:
    """The files behind a pattern in any file system that Beam knows, such as `gs://...`."""
    systems = _file_systems()
    found = sorted(file.path for file in systems.match([pattern])[0].metadata_list)
    if not found:
        raise FileNotFoundError(f"No file matches the pattern. Received: {pattern!r}")
    return found


def check_empty(folder: str) -> None:
    """Raises unless nothing is there.

    A runner may go on when the process that started it was killed: so nobody knows here whether a
    conversion that is not complete has ended.
    """
    systems = _file_systems()
    if not systems.exists(folder):
        return
    found = [file.path for file in systems.match([f"{folder}/**"])[0].metadata_list]
    if found:
        complete = any(path.endswith(f"/{record_files.SCHEMA}") for path in found)
        parts = not complete and any(record_files.is_file_name(path) for path in found)
        hint = " with parts of a conversion, to be removed if that has ended" if parts else ""
        raise ValueError(f"The folder to write to must be new or empty. Received: {folder}{hint}")


@contextlib.contextmanager
def _local(source: Source | str) -> Iterator[Source]:
    """The file, or a copy of it where it is not on this machine's disk."""
    if isinstance(source, Source):
        yield source
        return
    systems = _file_systems()
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary, source.rpartition("/")[2])
        with (
            systems.open(source, compression_type="uncompressed") as there,
            open(path, "wb") as here,
        ):
            shutil.copyfileobj(there, here)
        yield Source(path)


@contextlib.contextmanager
def _publishing(folder: str, name: str) -> Iterator[Path]:
    """A path on this machine's disk to write to; the file gets its name when it is complete.

    In the folder itself, where that is on this machine: what a kill leaves is all in one place.
    """
    systems = _file_systems()
    with contextlib.suppress(OSError):  # another worker may have made it
        systems.mkdirs(folder)
    if "://" not in folder:
        with writing(Path(folder, name)) as partial:
            yield partial
        return
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary, name)
        yield path
        there = f"{folder}/.{name}.{secrets.token_hex(8)}.partial"
        with (
            open(path, "rb") as here,
            systems.create(there, compression_type="uncompressed") as copy,
        ):
            shutil.copyfileobj(here, copy)
        systems.rename([there], [f"{folder}/{name}"])


def _rejected(folder: str) -> int:
    with _file_systems().open(f"{folder}/{record_files.SCHEMA}") as file:
        return json.loads(file.read())["lines"]["rejected"]


def _file_systems() -> Any:
    return needs("apache_beam.io.filesystems", "beam").FileSystems
