"""The Beam pipeline writes what the converter on one machine writes, bit by bit."""

import json
import multiprocessing
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.letor_parts import Parts, write_parts
from tests.test_records import check_contents
from tfrankloss import data
from tfrankloss.cli import main
from tfrankloss.data import beam

apache_beam = pytest.importorskip(
    "apache_beam", reason='Apache Beam is not installed: pip install "tfrankloss[beam]"'
)

RUNNER: dict[str, Any] = {"runner": "DirectRunner"}


def contents(folder: Path) -> dict[str, bytes]:
    """All files, by their place in the folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    return write_parts(tmp_path_factory.mktemp("parts"), 100)


def test_a_hundred_files(parts: Parts, tmp_path: Path) -> None:
    """Scattered and broken lines: the same records, and the exact list of what was rejected."""
    options: dict[str, Any] = {"shards": 4, "on_error": "skip"}
    with pytest.warns(UserWarning, match=f"{len(parts.rejected)} lines were rejected"):
        data.write_records(parts.files, tmp_path / "alone", **options)
    for name in ("one", "two"):
        with pytest.warns(UserWarning, match=f"{len(parts.rejected)} lines were rejected"):
            data.write_records(parts.files, tmp_path / name, **options, **RUNNER)
    check_contents(tmp_path / "one", parts)
    expected = contents(tmp_path / "alone")
    assert sorted(expected) == [
        *(f"records-0000{n}-of-00004.{kind}" for n in range(4) for kind in ("index", "tfrecord")),
        "records.json",
        "rejected.jsonl",
    ]
    assert contents(tmp_path / "one") == expected
    assert contents(tmp_path / "two") == expected


def test_splits_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Files of a folder share their columns, and a record file may be empty."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.txt").write_text("1 qid:1 0:5 1:1\n0 qid:2 1:2\n0 qid:1 1:3\n")
    (source / "vali.txt").write_text("0 qid:a 2:3 4:7\n")
    arguments = ["convert", str(source), "--to", "records", "--shards", "3", "--out"]
    main([*arguments, str(tmp_path / "alone")])
    main([*arguments, str(tmp_path / "beam"), "--runner", "DirectRunner"])
    assert "such as those of '1'; they were regrouped" in caplog.text
    assert contents(tmp_path / "beam") == contents(tmp_path / "alone")
    assert "train: Records(2 queries, 3 documents, 5 features" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([*arguments, str(tmp_path / "beam"), "--runner", "DirectRunner"])
    error = capsys.readouterr().err
    assert "must be new or empty" in error and "parts of a conversion" not in error


@pytest.mark.slow
def test_killed_conversion(tmp_path: Path) -> None:
    """What it has written is all in one folder, which the next conversion asks to remove."""
    process = multiprocessing.get_context("spawn").Process(
        target=_convert_and_die, args=(tmp_path,)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not list((tmp_path / "temporary").rglob("*records-*"))
    left = [path.name for path in (tmp_path / "out").iterdir()]
    assert len(left) == 2 and all(name.endswith(".partial") for name in left)  # and its index
    with pytest.raises(ValueError, match="new or empty.*out with parts of a conversion"):
        data.write_records(tmp_path / "data.txt", tmp_path / "out", **RUNNER)


def _convert_and_die(folder: Path) -> None:
    """Ends when the first record file has been written, but does not have its name yet."""
    (folder / "temporary").mkdir()
    tempfile.tempdir = str(folder / "temporary")
    (folder / "data.txt").write_text("1 qid:1 1:5\n")
    write_file = beam.record_files.write_file

    def write_and_die(*arguments: Any) -> None:
        write_file(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    beam.record_files.write_file = write_and_die  # type: ignore[assignment]
    data.write_records(folder / "data.txt", folder / "out", **RUNNER)


def test_what_cannot_be_converted(parts: Parts, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ValueError, match="must be new or empty.*full"):
        data.write_records(parts.files, tmp_path / "full", **RUNNER)
    name = json.dumps(parts.rejected[0]["file"])[1:-1]
    with pytest.raises(ValueError, match=name):  # the first bad line of the first file
        data.write_records(parts.files[:3], tmp_path / "out", **RUNNER)
    assert not (tmp_path / "out" / "records.json").exists()
    lists = tmp_path / "lists"
    lists.write_text("1 1:5\n")
    (tmp_path / "lists.query").write_text("1\n")
    with pytest.raises(ValueError, match="needs files that name their queries"):
        data.write_records(lists, tmp_path / "out", **RUNNER)


def test_other_file_systems(tmp_path: Path) -> None:
    """Whatever Beam reads and writes, such as a bucket: here a folder by another name."""
    from apache_beam.io.localfilesystem import LocalFileSystem

    parts = write_parts(tmp_path / "", 3, seed=1)
    base = f"remote:/{tmp_path}"

    class Remote(LocalFileSystem):
        """Takes `remote://path` for `/path`."""

        @classmethod
        def scheme(cls) -> str:
            return "remote"

    def local(path: str) -> str:
        return path.removeprefix("remote:/")

    for method in ("join", "split", "mkdirs", "create", "open", "exists", "delete", "size"):
        original = getattr(LocalFileSystem, method)

        def with_local(
            self: Any, path: str, *rest: Any, _call: Any = original, **named: Any
        ) -> Any:
            return _call(self, local(path), *rest, **named)

        setattr(Remote, method, with_local)
    Remote.rename = lambda self, old, new: LocalFileSystem.rename(
        self, [local(x) for x in old], [local(x) for x in new]
    )

    def listed(self: Any, folder: str) -> Any:
        for found in LocalFileSystem._list(self, local(folder)):
            found.path = f"remote:/{found.path}"
            yield found

    Remote._list = listed
    with pytest.warns(UserWarning, match="lines were rejected"):
        data.write_records(f"{base}/part-*", f"{base}/out", shards=2, on_error="skip", **RUNNER)
    for line in parts.rejected:
        line["file"] = f"remote:/{line['file']}"
    check_contents(tmp_path / "out", parts)
