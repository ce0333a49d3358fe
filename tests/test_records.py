"""Records: what is written is what is read, in batches like those from memory, whatever happens."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.letor_parts import Parts, write_parts
from tests.test_batches import documents, web_like
from tfrankloss import config, data, train
from tfrankloss.cli import main
from tfrankloss.data import (
    LetorFormatError,
    RankingData,
    parsing,
    record_lists,
    record_writer,
    statistics,
)
from tfrankloss.data import records as records_module


def by_query(given: RankingData) -> dict[str, list[Any]]:
    """Labels, features, documents and weights of each list, by the id of its query."""
    found: dict[str, list[Any]] = {}
    for one in given:
        entry = [one.labels.tolist(), one.features.tolist()]
        entry += [None if x is None else x.tolist() for x in (one.document_ids, one.weights)]
        found.setdefault(str(one.query_ids[0]), []).append(entry)
    return found


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> tuple[RankingData, data.Records]:
    """Lists as long as those of Web30K, in memory and in seven files."""
    given = web_like(200)
    folder = tmp_path_factory.mktemp("web")
    data.write_records(given, folder, shards=7)
    return given, data.open_records(folder)


# --- shards of data in memory


@pytest.mark.parametrize("count", [1, 2, 3, 7, 50])
def test_shards_are_all_of_the_data(count: int) -> None:
    given = web_like(50, seed=1)
    shards = [given.shard(index, count) for index in range(count)]
    ids = [query for shard in shards for query in shard.query_ids.tolist()]
    assert sorted(ids) == list(range(50))
    assert by_query(RankingData.concat(shards)) == by_query(given)
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    sizes = [shard.num_documents for shard in shards]
    assert max(sizes) - min(sizes) <= given.lengths.max() - given.lengths.min()
    for shard in shards:  # in the order of the data
        assert (np.diff(shard.query_ids) > 0).all()


def test_shards_that_cannot_be() -> None:
    given = web_like(3)
    with pytest.raises(ValueError, match="would be empty: there are 3 queries.*count=4"):
        given.shard(0, 4)
    with pytest.raises(ValueError, match="index must be below count.*index=2, count=2"):
        given.shard(2, 2)
    with pytest.raises(ValueError, match="count must be an integer of at least 1"):
        given.shard(0, 0)


# --- writing


def test_round_trip(tmp_path: Path) -> None:
    """With ids that are words, two lists of the same query, weights and documents."""
    generator = np.random.default_rng(0)
    given = RankingData(
        generator.normal(size=(9, 3)).astype(np.float32),
        np.array([0, 1, 2, 0, 0.5, 0, 3, 0, 1], np.float32),
        np.array([0, 2, 3, 7, 9]),
        np.array(["b", "ä", "7", "b"]),
        np.array(["d1", "", "ö", "", "", "", "", "x y", "z"]),
        generator.random(9).astype(np.float32),
    )
    data.write_records(given, tmp_path / "out", shards=3)
    records = data.open_records(tmp_path / "out")
    assert (len(records), records.num_queries) == (4, 4)
    assert (records.num_documents, records.num_features, records.max_label) == (9, 3, 3.0)
    assert by_query(records.to_ranking_data()) == by_query(given)
    assert records.schema["labels"] == {"0": 4, "0.5": 1, "1": 2, "2": 1, "3": 1}
    assert records.schema["lengths"] == {"1": 1, "2": 2, "4": 1}
    (_, labels, weights) = next(iter(records.to_dataset(batch_size=4, shuffle=False)))
    assert sorted(weights.numpy()[labels.numpy() >= 0]) == sorted(given.weights.tolist())
    numbers = RankingData.from_arrays(given.features, given.labels, [5] * 4 + [-3] * 5)
    data.write_records(numbers, tmp_path / "numbers", shards=1)
    again = data.open_records(tmp_path / "numbers").to_ranking_data()
    assert again.query_ids.dtype == np.int64
    assert again.document_ids is None and again.weights is None


def check_contents(folder: Path, parts: Parts) -> None:
    """That all good lines, and only those, are there, and all others are accounted for."""
    records = data.open_records(folder)
    found = records.to_ranking_data()
    expected = parts.lists()
    assert sorted(map(str, found.query_ids)) == sorted(expected)
    for one in found:
        wanted = expected[str(one.query_ids[0])]
        assert one.labels.tolist() == [x.label for x in wanted]
        assert one.document_ids.tolist() == [x.name for x in wanted]
        features = np.zeros((len(wanted), 5), np.float32)
        for row, document in zip(features, wanted):
            row[[i - 1 for i in document.values]] = list(document.values.values())
        np.testing.assert_array_equal(one.features, features)
    rejected = (folder / "rejected.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in rejected] == parts.rejected
    lines = records.schema["lines"]
    assert lines == {
        "read": len(parts.documents) + len(parts.rejected) + parts.blank,
        "documents": len(parts.documents),
        "rejected": len(parts.rejected),
        "blank": parts.blank,
    }


def test_scattered_and_broken_lines(tmp_path: Path) -> None:
    parts = write_parts(tmp_path, 20)
    with pytest.warns(UserWarning, match=f"{len(parts.rejected)} lines were rejected"):
        data.write_records(tmp_path / "part-*", tmp_path / "out", shards=4, on_error="skip")
    check_contents(tmp_path / "out", parts)
    with pytest.raises(LetorFormatError, match="part-"):
        data.write_records(parts.files, tmp_path / "none", shards=4)
    assert not (tmp_path / "none").exists()
    assert not list(tmp_path.glob(".*partial"))


def test_columns_of_all_files(tmp_path: Path) -> None:
    """One file counts from 0, another has more features, a third is empty; as `load_letor` does."""
    (tmp_path / "a").write_text("1 qid:1 0:5 1:1\n0 qid:2 1:2\n")
    (tmp_path / "b").write_text("0 qid:1 2:3 4:7\n")
    (tmp_path / "c").write_text("\n")
    data.write_records([tmp_path / x for x in "abc"], tmp_path / "out", shards=2, missing_value=9)
    found = data.open_records(tmp_path / "out").to_ranking_data()
    with pytest.warns(UserWarning, match="more than one file"):
        wanted = data.load_letor([tmp_path / "a", tmp_path / "b"], cache=False, missing_value=9)
    assert by_query(found) == by_query(wanted)
    assert found.num_features == 5
    (tmp_path / "lists").write_text("1 1:5\n0 1:6\n2 1:7\n")
    (tmp_path / "lists.query").write_text("2\n1\n")
    data.write_records(tmp_path / "lists", tmp_path / "numbered", shards=1)
    numbered = data.open_records(tmp_path / "numbered").to_ranking_data()
    assert by_query(numbered) == by_query(data.load_letor(tmp_path / "lists", cache=False))


def test_what_cannot_be_written(tmp_path: Path) -> None:
    given = web_like(3)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ValueError, match="must be new or empty.*full"):
        data.write_records(given, tmp_path / "full")
    with pytest.raises(ValueError, match="shards must be an integer of at least 1"):
        data.write_records(given, tmp_path / "out", shards=0)
    with pytest.raises(ValueError, match="are for files"):
        data.write_records(given, tmp_path / "out", on_error="skip")
    with pytest.raises(FileNotFoundError, match="No file matches"):
        data.write_records(tmp_path / "*.txt", tmp_path / "out")
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ValueError, match="There are no documents"):
        data.write_records(tmp_path / "empty.txt", tmp_path / "out")
    with pytest.raises(ValueError, match="runner_options need a runner"):
        data.write_records(tmp_path / "empty.txt", tmp_path / "out", runner_options=["--x"])
    assert not (tmp_path / "out").exists()


def test_killed_conversion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left is not taken for records, and does not stand in the way of another attempt."""

    class Killed(BaseException):
        """Nothing cleans up."""

    def kill(*arguments: Any, **_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(record_writer.record_files, "make_schema", kill)
        patch.setattr(shutil, "rmtree", lambda *arguments, **_: None)
        with pytest.raises(Killed):
            data.write_records(web_like(9), tmp_path / "out", shards=2)
    left = list(tmp_path.iterdir())
    assert len(left) == 1 and len(list(left[0].glob("records-*"))) == 4
    for place in (tmp_path / "out", left[0]):
        with pytest.raises(FileNotFoundError, match="no complete record files"):
            data.open_records(place)
    with record_writer._held(left[0], wait=False):  # as a conversion does that has not ended
        data.write_records(web_like(9), tmp_path / "out", shards=2)
    assert len(data.open_records(tmp_path / "out")) == 9
    assert set(tmp_path.iterdir()) == {tmp_path / "out", left[0]}
    shutil.rmtree(tmp_path / "out")
    data.write_records(web_like(9), tmp_path / "out", shards=2)
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


def test_a_running_conversion_holds_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one to the same place leaves it alone, and comes first."""
    make_schema, begun = record_writer.record_files.make_schema, []

    def with_another(*arguments: Any) -> Any:
        begun.append(arguments)
        if len(begun) == 1:
            data.write_records(web_like(9), tmp_path / "out", shards=2)
        return make_schema(*arguments)

    monkeypatch.setattr(record_writer.record_files, "make_schema", with_another)
    with pytest.raises(OSError, match="[Nn]ot empty"):
        data.write_records(web_like(5), tmp_path / "out", shards=2)
    assert len(begun) == 2
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]
    assert len(data.open_records(tmp_path / "out")) == 9


# --- reading


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_size": 8},
        {"max_documents": 4096},
        {"batch_size": 16, "shuffle": False},
        {"batch_size": 32, "list_size": 512, "inputs": "features"},
    ],
    ids=str,
)
def test_batches_like_those_from_memory(
    web: tuple[RankingData, data.Records], options: dict[str, Any]
) -> None:
    given, records = web
    dataset, wanted = records.to_dataset(**options), given.to_dataset(**options)
    assert dataset.element_spec == wanted.element_spec
    seen: list[int] = []
    shapes, incomplete, padded = set(), 0, 0
    elements = list(dataset)
    assert len(elements) == int(dataset.cardinality())
    for inputs, labels in elements:
        labels = labels.numpy()
        inside = labels >= 0
        features = inputs["features"] if isinstance(inputs, dict) else inputs
        if isinstance(inputs, dict):
            np.testing.assert_array_equal(inputs["mask"].numpy(), inside)
        assert (labels[~inside] == -1).all()
        assert not features.numpy()[~inside].any()
        rows = features.numpy()[inside][:, 0].astype(int)
        np.testing.assert_array_equal(labels[inside], given.labels[rows])
        for row, filled in zip(features.numpy(), inside):  # whole lists, in their order
            if filled.any():
                first = np.searchsorted(given.row_splits, int(row[0, 0]), side="right") - 1
                start, end = given.row_splits[first : first + 2]
                assert row[filled, 0].tolist() == list(range(start, end))
        seen += rows.tolist()
        shapes.add(labels.shape)
        incomplete += not inside.any(axis=1).all()
        padded += labels.size
        if "max_documents" in options:
            assert labels.size <= 4096
    assert sorted(seen) == list(range(given.num_documents))
    assert len(shapes) <= 12 and incomplete <= 1
    memory = sum(int(np.prod(element[1].shape)) for element in wanted)
    assert padded <= 1.1 * memory


def test_seeds(tmp_path: Path) -> None:
    data.write_records(web_like(60), tmp_path, shards=3)
    records = data.open_records(tmp_path)

    def orders(epochs: int = 2, **options: Any) -> list[list[int]]:
        dataset = records.to_dataset(batch_size=16, **options)
        return [[x for element in dataset for x in documents(element)] for _ in range(epochs)]

    first, second = orders(seed=1)
    assert first != second
    keras.utils.set_random_seed(5)  # of others
    assert orders(seed=1) == [first, second]
    assert orders(1, seed=2)[0] != first
    assert orders(1, seed=1, first_epoch=1) == [second]
    still = orders(seed=1, shuffle=False)
    assert still[0] == still[1] == orders(1, seed=2, shuffle=False)[0]
    dataset = records.to_dataset(batch_size=16, seed=1, repeat=True)
    assert int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
    count = int(records.to_dataset(batch_size=16).cardinality())
    for _ in range(2):
        endless = [x for element in dataset.take(2 * count) for x in documents(element)]
        assert endless == first + second


def test_remainder(web: tuple[RankingData, data.Records]) -> None:
    _, records = web
    whole = records.to_dataset(max_documents=6000, shuffle=False)
    cut = records.to_dataset(max_documents=6000, shuffle=False, drop_remainder=True)
    full = [x for x in whole if (x[1].numpy() >= 0).any(axis=1).all()]
    elements = list(cut)
    assert len(elements) == int(cut.cardinality()) == len(full)
    assert [documents(x) for x in elements] == [documents(x) for x in full]
    with pytest.raises(ValueError, match="leaves no batch of 200 queries"):
        records.to_dataset(batch_size=201, drop_remainder=True)


def test_truncation(tmp_path: Path) -> None:
    labels = np.zeros(50)
    labels[[3, 30, 40]] = [1, 2, 1]
    given = RankingData.from_arrays(np.arange(53)[:, None], [*labels, 0, 1, 0], [1] * 50 + [2] * 3)
    data.write_records(given, tmp_path, shards=1)
    records = data.open_records(tmp_path)

    def kept(**options: Any) -> list[list[int]]:
        dataset = records.to_dataset(batch_size=2, list_size=10, **options)
        ((inputs, found),) = list(dataset)
        assert inputs["mask"].shape == (2, 10)
        rows = zip(inputs["features"].numpy()[..., 0].astype(int), found.numpy())
        lists = [row[label >= 0].tolist() for row, label in rows]
        np.testing.assert_array_equal(
            found.numpy()[found.numpy() >= 0], given.labels[sum(lists, [])]
        )
        return sorted(lists)

    long, short = kept(shuffle=False)
    assert short == [50, 51, 52]
    assert {3, 30, 40} <= set(long) and long == sorted(set(long)) and len(long) == 10
    assert long != list(range(10))
    assert kept(shuffle=False) == [long, short]
    drawn = {tuple(kept(seed=seed)[0]) for seed in range(2)}
    assert len(drawn) > 1 and all({3, 30, 40} <= set(row) for row in drawn)
    assert kept(truncate="position", shuffle=False)[0] == list(range(10))


def test_shards_of_files(web: tuple[RankingData, data.Records]) -> None:
    given, records = web
    shards = [records.shard(index, 3) for index in range(3)]
    names = [file["name"] for shard in shards for file in shard.files]
    assert sorted(names) == sorted(file["name"] for file in records.files)
    sizes = [shard.num_documents for shard in shards]
    assert sum(sizes) == given.num_documents and max(sizes) < 2 * min(sizes)
    seen, lists = [], set()
    for shard in shards:
        dataset = shard.to_dataset(batch_size=16)
        elements = list(dataset)
        assert len(elements) == int(dataset.cardinality())
        seen += [x for element in elements for x in documents(element)]
        lists |= {element[1].shape[1] for element in elements}
    assert sorted(seen) == list(range(given.num_documents))
    assert len(lists) <= 12
    with pytest.raises(ValueError, match="has 7 with documents: write more.*count=8"):
        records.shard(0, 8)
    with pytest.raises(ValueError, match="index must be below count"):
        records.shard(3, 3)
    with pytest.raises(ValueError, match="a shard already"):
        shards[0].shard(0, 2)
    some = data.open_records(f"{records.folder}/records-0000[01]*")
    assert [file["name"] for file in some.files] == [file["name"] for file in records.files[:2]]


def test_workers_read_shards_of_their_own(web: tuple[RankingData, data.Records]) -> None:
    given, records = web
    plan = {"batch_size": 7, "list_size": 256, "seed": 3}
    seen: list[int] = []
    for worker in range(2):
        mine = records.shard(worker, 2)
        dataset = records.to_dataset(worker=worker, workers=2, replicas=4, **plan)
        counts = []
        for _, labels in dataset:
            assert labels.shape == (4, 256)  # seven lists for four devices, two of them here
            counts.append(int((labels.numpy() >= 0).any(axis=1).sum()))
        assert max(counts) == 4 - worker  # seven in all
        assert sum(counts) == len(mine) and len(counts) == int(dataset.cardinality())
        inputs, _ = next(iter(dataset))
        assert inputs["mask"].dtype == tf.float32  # which `fit` can add up
        seen.append(sum(counts))
    assert sum(seen) == len(given)
    sizes = [
        {labels.shape[1] for _, labels in records.to_dataset(batch_size=8, worker=n, workers=2)}
        for n in range(2)
    ]
    assert 1 < len(sizes[0] | sizes[1]) <= 12  # all from the lengths of all files


def test_without_relevant(tmp_path: Path) -> None:
    given = web_like(40, seed=2)
    labels = given.labels * (np.repeat(np.arange(40), given.lengths) % 3 > 0)
    given = RankingData(given.features, labels, given.row_splits, given.query_ids)
    data.write_records(given, tmp_path, shards=2)
    records = data.open_records(tmp_path)
    left = records.discard_without_relevant()
    wanted = given.discard_without_relevant()
    assert (len(left), left.num_documents) == (len(wanted), wanted.num_documents)
    assert by_query(left.to_ranking_data()) == by_query(wanted)
    dataset = left.to_dataset(batch_size=4)
    seen = [documents(element) for element in dataset]
    assert len(seen) == int(dataset.cardinality())
    assert sorted(sum(seen, [])) == wanted.features[:, 0].astype(int).tolist()
    assert left.digest() != records.digest() == data.open_records(tmp_path).digest()


def test_options_that_are_wrong(web: tuple[RankingData, data.Records]) -> None:
    _, records = web
    with pytest.raises(ValueError, match="must be one of.*batch_sizes"):
        records.to_dataset(batch_sizes=3)
    with pytest.raises(ValueError, match="Either batch_size or max_documents"):
        records.to_dataset(batch_size=3, max_documents=3)
    with pytest.raises(ValueError, match="is longer than a batch may be.*max_documents=64"):
        records.to_dataset(max_documents=64)
    with pytest.raises(ValueError, match="shuffle_buffer must be"):
        records.to_dataset(shuffle_buffer=0)


def test_a_file_that_goes_away(tmp_path: Path) -> None:
    data.write_records(web_like(6), tmp_path, shards=2)
    records = data.open_records(tmp_path)
    dataset = records.to_dataset(batch_size=4)
    remote = data.open_records(f"file://{tmp_path}").to_dataset(batch_size=4)
    (tmp_path / records.files[1]["name"]).unlink()
    for given in (dataset, remote):
        with pytest.raises(Exception, match="records-00001-of-00002.tfrecord cannot be read"):
            list(given)
    with pytest.raises(OSError, match="records-00001-of-00002.tfrecord cannot be read"):
        records.to_ranking_data()


def test_damage(tmp_path: Path) -> None:
    data.write_records(web_like(30), tmp_path / "good", shards=2)
    name = "records-00001-of-00002.tfrecord"

    def copy(title: str) -> Path:
        shutil.copytree(tmp_path / "good", tmp_path / title)
        return tmp_path / title

    folder = copy("flipped")
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    records = data.open_records(folder)  # of the same size: seen when it is read
    for read in (
        lambda: list(records.to_dataset(batch_size=8)),
        lambda: list(data.open_records(f"file://{folder}").to_dataset(batch_size=8)),
        records.to_ranking_data,
        lambda: list(records.discard_without_relevant().to_dataset()),
    ):
        with pytest.raises(
            (tf.errors.InvalidArgumentError, ValueError), match=f"flipped/{name} is damaged"
        ):
            read()
    folder = copy("cut")
    opened = [data.open_records(f"{place}{folder}") for place in ("", "file://")]
    (folder / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=f"cut/{name} is truncated or damaged: it has"):
        data.open_records(folder)
    for records in opened:
        with pytest.raises(ValueError, match=f"cut/{name} is damaged: it ends too soon"):
            records.to_ranking_data()
    folder = copy("missing")
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"is missing: .*missing/{name}"):
        data.open_records(folder)
    folder = copy("schema")
    schema = folder / "records.json"
    schema.write_text(schema.read_text()[:-100])
    with pytest.raises(ValueError, match="records.json is damaged"):
        data.open_records(folder)
    schema.write_text('{"format": 99}')
    with pytest.raises(ValueError, match="is not of this version"):
        data.open_records(folder)


@pytest.mark.parametrize("damage", ["missing", "short", "flipped"])
def test_a_damaged_index(tmp_path: Path, damage: str) -> None:
    data.write_records(web_like(30), tmp_path, shards=2)
    records = data.open_records(tmp_path)
    path = tmp_path / "records-00001-of-00002.index"
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
        with pytest.raises(FileNotFoundError, match=f"is missing: {path}"):
            data.open_records(tmp_path)
    elif damage == "short":
        path.write_bytes(content[:-1])
    else:
        content[-5] ^= 1
        path.write_bytes(content)
    text = "cannot be read" if damage == "missing" else "is damaged: convert the data again"
    for read in (records.to_dataset, records.to_ranking_data):
        with pytest.raises((OSError, ValueError), match=f"The index {path} {text}") as raised:
            read()
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("buffer", [1, 5, 10_000])
@pytest.mark.parametrize("options", [{}, {"list_size": 64}], ids=str)
def test_every_list_once_in_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buffer: int, options: dict[str, Any]
) -> None:
    """With weights, and without lists that have no relevant document, from many small chunks.

    Once from files that are mapped into memory, and once as those of other file systems are read.
    """
    monkeypatch.setattr(records_module, "SMALLEST_PART", 3)
    monkeypatch.setattr(record_lists, "CHUNK", 1 << 11)
    given = web_like(90, seed=4)
    lists = np.repeat(np.arange(90), given.lengths)
    labels = given.labels * (lists % 4 > 0)
    weights = np.arange(len(labels), dtype=np.float32)
    given = RankingData(given.features, labels, given.row_splits, given.query_ids, weights=weights)
    data.write_records(given, tmp_path, shards=3)
    records = data.open_records(tmp_path).discard_without_relevant()
    wanted = given.discard_without_relevant()
    dataset = records.to_dataset(batch_size=8, seed=2, shuffle_buffer=buffer, **options)
    remote = data.open_records(f"file://{tmp_path}").discard_without_relevant()
    again = remote.to_dataset(batch_size=8, seed=2, shuffle_buffer=buffer, **options)
    orders = []
    for _ in range(2):
        seen: list[int] = []
        for (inputs, found, weight), same in zip(dataset, again, strict=True):
            inside = found.numpy() >= 0
            rows = inputs["features"].numpy()[..., 0].astype(int)[inside]
            np.testing.assert_array_equal(found.numpy()[inside], labels[rows])
            np.testing.assert_array_equal(weight.numpy()[inside], rows)
            np.testing.assert_array_equal(same[1].numpy(), found.numpy())
            np.testing.assert_array_equal(same[2].numpy(), weight.numpy())
            seen += rows.tolist()
        counts = np.unique(lists[seen], return_counts=True)
        kept = np.minimum(wanted.lengths, options.get("list_size", np.inf))
        assert [x.tolist() for x in counts] == [wanted.query_ids.tolist(), kept.tolist()]
        assert len(set(seen)) == len(seen)
        best = [
            np.sort(one.labels)[::-1][:size].sum() for one, size in zip(wanted, kept.astype(int))
        ]
        assert labels[seen].sum() == sum(best)  # cut lists keep the highest labels
        orders.append(lists[seen].tolist())
    assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1])


@pytest.mark.parametrize("place", ["", "file://"])
def test_two_iterations_at_a_time(tmp_path: Path, place: str) -> None:
    """They take chunks from each other, and each gets all lists."""
    given = web_like(60, seed=5)
    data.write_records(given, tmp_path, shards=3)
    records = data.open_records(f"{place}{tmp_path}")
    dataset = records.to_dataset(batch_size=8, repeat=True)
    count = int(records.to_dataset(batch_size=8).cardinality())
    seen: list[list[float]] = [[], []]
    for pair in zip(dataset.take(count), dataset.take(count), strict=True):
        for rows, (inputs, labels, *_) in zip(seen, pair, strict=True):
            rows += inputs["features"].numpy()[labels.numpy() >= 0][:, 0].tolist()
    for rows in seen:
        assert sorted(rows) == sorted(given.features[:, 0].tolist())


def test_records_are_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by the datasets of several epochs, if nothing is read anew."""
    data.write_records(web_like(20), tmp_path, shards=2)
    checked = []
    crc32 = record_lists.zlib.crc32

    class Zlib:
        @staticmethod
        def crc32(content: Any) -> int:
            checked.append(len(content))
            return crc32(content)

    monkeypatch.setattr(record_lists, "zlib", Zlib)
    for epochs, place in ((1, ""), (3, "file://")):
        checked.clear()
        for _ in range(3):
            list(data.open_records(f"{place}{tmp_path}").shard(0, 1).to_dataset(batch_size=8))
        assert len(checked) == 2 + 20 * epochs  # the indexes of the files, and the records


def test_more_files_than_are_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_lists, "MOST_MAPS", 2)
    given = web_like(40, seed=6)
    data.write_records(given, tmp_path, shards=7)
    records = data.open_records(tmp_path)
    rows: list[float] = []
    for inputs, labels, *_ in records.to_dataset(batch_size=8):
        rows += inputs["features"].numpy()[labels.numpy() >= 0][:, 0].tolist()
    assert sorted(rows) == sorted(given.features[:, 0].tolist())


def test_all_workers_refuse_what_one_cannot_hold(tmp_path: Path) -> None:
    given = RankingData.from_arrays(
        np.ones((226, 2)), np.ones(226), [0] * 200 + [1] * 8 + [2] * 9 + [3] * 9
    )
    data.write_records(given, tmp_path, shards=4)
    records = data.open_records(tmp_path)
    workers = sum(1 for file in records.files if file["documents"])
    assert workers > 1
    for worker in range(workers):
        with pytest.raises(ValueError, match="is longer than a batch may be.*max_documents=64"):
            records.to_dataset(max_documents=64, workers=workers, worker=worker)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("place", ["", "file://"])
def test_what_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffle: bool, place: str
) -> None:
    """Each byte is read once in an epoch, and forgotten when its lists were taken."""
    monkeypatch.setattr(record_lists, "CHUNK", 1 << 14)
    generator = np.random.default_rng(0)
    given = RankingData.from_arrays(
        generator.random((20_000, 25)), generator.integers(0, 3, 20_000), np.arange(20_000) // 10
    )
    data.write_records(given, tmp_path, shards=4)
    records = data.open_records(f"{place}{tmp_path}")
    counted, held, most = [], [0], [0]
    read, chunks = record_lists.Lists.read, []
    load, begin = record_lists.Chunks.load, record_lists.Chunks.begin

    def read_and_count(self: Any, first: int, last: int) -> Any:
        counted.append((first, last))
        return read(self, first, last)

    def load_and_count(self: Any, numbers: Any) -> None:
        load(self, numbers)
        held[0] = sum(len(content()) for content, _ in self._held.values())
        most[0] = max(most[0], held[0])

    def begin_and_keep(self: Any) -> None:
        chunks.append(self)
        begin(self)

    monkeypatch.setattr(record_lists.Lists, "read", read_and_count)
    monkeypatch.setattr(record_lists.Chunks, "load", load_and_count)
    monkeypatch.setattr(record_lists.Chunks, "begin", begin_and_keep)
    dataset = records.to_dataset(batch_size=8, shuffle=shuffle, shuffle_buffer=64, repeat=True)
    batches = len(records) // 8
    for _ in dataset.take(batches):
        pass
    first_epoch = counted[: len(set(counted))]
    assert len(set(first_epoch)) == len(first_epoch)
    assert sum(last + 1 - first for first, last in first_epoch) == len(records)
    list_bytes = 10 * 26 * 4 + 100
    # The lists of the buffer, those of eight parts that are read in turns, and the batches ahead.
    ahead = (records_module.AHEAD + 4) * 8 * (1 << 14) if shuffle else 8 * (1 << 14)
    assert most[0] <= 64 * list_bytes + 2 * records_module.CYCLE * (1 << 14) + ahead
    assert most[0] < 0.3 * sum(file["bytes"] for file in records.files)
    finished = list(records.to_dataset(batch_size=8, shuffle=shuffle))
    assert len(finished) == batches and not chunks[-1]._held
    # The same epoch again, after one that was not read to its end.
    counted.clear()
    for _ in range(2):
        for _ in dataset.take(batches // 2):
            pass
    assert len(counted) <= 2 * (len(first_epoch) // 2 + len(first_epoch) // 4 + 32)


def test_a_program_that_stops_in_the_middle(tmp_path: Path) -> None:
    """It ends, though batches are being read ahead."""
    data.write_records(web_like(300), tmp_path, shards=2)
    program = (
        "import sys\n"
        "from tfrankloss import data\n"
        "records = data.open_records(sys.argv[1])\n"
        "remote = data.open_records('file://' + sys.argv[1])\n"
        "for given in (records, remote, records.to_ranking_data()):\n"
        "    batches = iter(given.to_dataset(batch_size=4, repeat=True))\n"
        "    next(batches)\n"
    )
    for _ in range(3):
        ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)], timeout=120)
        assert ended.returncode == 0


def test_parts_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read in any order, they are still all of the lists, and long ones do not come last."""
    monkeypatch.setattr(records_module, "SMALLEST_PART", 5)
    given = web_like(160, seed=3)
    data.write_records(given, tmp_path, shards=2)
    opened = data.open_records(tmp_path)
    dataset = opened.to_dataset(batch_size=8, list_size=1256, shuffle_buffer=8)
    seen = [documents(element) for element in dataset]
    assert sorted(sum(seen, [])) == list(range(given.num_documents))
    sizes = np.array([len(x) for x in seen], float)
    assert abs(np.corrcoef(sizes, np.arange(len(sizes)))[0, 1]) < 0.6
    assert by_query(opened.to_ranking_data()) == by_query(given)


# --- statistics


def test_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "ROWS", 50)  # several pieces
    generator = np.random.default_rng(0)
    features = generator.lognormal(1, 2, (700, 4)).astype(np.float32) - 1
    features[:, 1] = 7.25
    given = RankingData.from_arrays(features, generator.integers(0, 3, 700), np.arange(700) // 9)
    data.write_records(given, tmp_path / "out", shards=3)
    records = data.open_records(tmp_path / "out")
    found = records.statistics
    exact = features.astype(float)
    np.testing.assert_allclose(found["mean"], exact.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found["deviation"], exact.std(axis=0), rtol=1e-12)
    np.testing.assert_array_equal(found["minimum"], exact.min(axis=0))
    np.testing.assert_array_equal(found["maximum"], exact.max(axis=0))
    for share, row in found["quantiles"].items():
        np.testing.assert_allclose(row, np.quantile(exact, float(share), axis=0), rtol=1e-12)
    assert found["sampled"] == 700 and found["finite"] == [700] * 4
    labels, counts = np.unique(given.labels, return_counts=True)
    assert records.schema["labels"] == {f"{x:g}": y for x, y in zip(labels, counts.tolist())}
    for transform in (None, data.Log1p()):
        of_records = data.Standardize.fit(records, transform).get_config()
        of_data = data.Standardize.fit(given, transform).get_config()
        for name in ("mean", "deviation"):
            np.testing.assert_allclose(of_records[name], of_data[name], rtol=1e-6)
        assert of_records["deviation"][1] == 0.0
    with pytest.raises(ValueError, match="raw features and of Log1p are known"):
        data.Standardize.fit(records, data.QueryMinMax())


def test_statistics_of_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "SAMPLE", 500)
    monkeypatch.setattr(statistics, "ROWS", 100)
    values = np.random.default_rng(0).permutation(5000)[:, None].astype(np.float32)
    given = RankingData.from_arrays(values, np.zeros(5000), np.arange(5000) // 10)
    shares = {}
    for shards in (1, 4):
        data.write_records(given, tmp_path / str(shards), shards=shards)
        found = data.open_records(tmp_path / str(shards)).statistics
        assert found["sampled"] == 500
        shares[shards] = found["quantiles"]
    assert shares[1] == shares[4]  # the same documents, whatever the files
    for share, (value,) in shares[1].items():
        spread = np.sqrt(float(share) * (1 - float(share)) / 500)
        assert abs(value / 5000 - float(share)) < 5 * spread


def test_features_that_are_not_finite(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("1 qid:1 1:nan 2:1\n0 qid:1 1:nan 2:inf\n0 qid:2 1:inf 2:3\n")
    data.write_records(tmp_path / "file", tmp_path / "out", allow_nonfinite=True, shards=2)
    records = data.open_records(tmp_path / "out")
    assert records.statistics["finite"] == [0, 2]
    assert records.statistics["mean"] == [None, 2.0]
    assert records.statistics["deviation"] == [None, 1.0]
    with pytest.raises(ValueError, match=r"must be finite to be standardized.*\[0, 1\]"):
        data.Standardize.fit(records)


# --- training and the command line


def test_train_on_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder of `convert` is data of `train` and `evaluate`, and a run goes on from there."""
    config.disable_xla()
    try:
        source = tmp_path / "source"
        source.mkdir()
        for seed, name in enumerate(("train", "vali", "test")):
            data.synthetic(20, 4, 8, seed=seed).to_letor(source / f"{name}.txt")
        folder = str(tmp_path / "records")
        main(["convert", str(source), "--to", "records", "--shards", "3", "--out", folder])
        assert "train: Records(20 queries" in capsys.readouterr().out
        opened = data.open_records(folder)
        assert list(opened) == ["train", "vali", "test"]
        options = [
            "--model",
            "linear",
            "--loss",
            "softmax",
            "--batch-size",
            "8",
            "--list-size",
            "8",
        ]
        options += ["--model-options", '{"transform": "standardize"}']
        run = str(tmp_path / "run")
        main(["train", folder, "--out", run, "--epochs", "1", *options])
        main(["train", folder, "--out", run, "--epochs", "2", "--resume"])
        history = json.loads((tmp_path / "run" / "metrics.json").read_text())["history"]
        assert len(history) == 2
        main(["evaluate", run, folder])
        assert "ndcg@10" in capsys.readouterr().out
        once = train(
            opened,
            model="linear",
            loss="softmax",
            batch_size=8,
            list_size=8,
            model_options={"transform": "standardize"},
            epochs=2,
            progress=False,
        )
        assert [x["loss"] for x in once.history] == pytest.approx([x["loss"] for x in history])
        with pytest.raises(SystemExit):
            main(["train", f"{folder}/train", "--out", run + "2", "--validation-fraction", "0.2"])
        assert "holds records, of which no part is held back" in capsys.readouterr().err
        damaged = Path(folder, "train", opened["train"].files[0]["name"])
        content = bytearray(damaged.read_bytes())
        content[len(content) // 2] ^= 1
        shutil.copytree(folder, tmp_path / "damaged")
        (tmp_path / "damaged" / "train" / damaged.name).write_bytes(content)
        with pytest.raises(SystemExit) as ended:
            main(["train", str(tmp_path / "damaged"), "--out", run + "3", *options])
        assert ended.value.code == 2
        (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
        assert line.endswith(f"{damaged.name} is damaged: convert the data again")
    finally:
        config.enable_xla()


def test_convert_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = write_parts(tmp_path, 4)
    arguments = ["convert", *map(str, parts.files), "--to", "records", "--out"]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, str(tmp_path / "out")])
    assert ended.value.code == 2
    assert "part-00" in capsys.readouterr().err
    main([*arguments, str(tmp_path / "out"), "--on-error", "skip", "--shards", "2"])
    check_contents(tmp_path / "out", parts)
    captured = capsys.readouterr()
    assert f"{len(parts.rejected)} lines were rejected" in captured.err
    assert f"{len(parts.rejected)} rejected, {parts.blank} blank" in captured.out
    with pytest.raises(SystemExit):
        main([*arguments, str(tmp_path / "out"), "--on-error", "skip"])
    assert "must be new or empty" in capsys.readouterr().err


def test_convert_shows_what_the_reader_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(parsing, "SLOW_FROM", 10)
    names = [tmp_path / f"{number}.txt" for number in range(12)]
    for name in names:
        name.write_text(f"1 qid:{name.stem} 1:2\n0 qid:{name.stem} 1:3\n")
    arguments = ["convert", *map(str, names), "--to", "records", "--shards", "1", "--out"]
    main([*arguments, str(tmp_path / "out")])
    texts = [x for x in capsys.readouterr().err.splitlines() if x.startswith("tfrankloss: ")]
    assert len(texts) == 11 and "There are 2 more messages" in texts[10]
    for name, text in zip(names[:10], texts[:10]):
        assert str(name) in text and "tfrankloss[fast]" in text
