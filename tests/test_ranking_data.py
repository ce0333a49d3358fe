"""Ranking data: slices, splits, files, frames, transforms."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from tfrankloss.data import Log1p, QueryMinMax, RankingData, Standardize
from tfrankloss.data.storage import StorageError

LENGTHS = [2, 1, 3]


def small(**arguments: Any) -> RankingData:
    return RankingData.from_arrays(
        features=[[1, 10], [2, 20], [3, 30], [4, 40], [5, 50], [6, 60]],
        labels=[0, 1, 0, 2, 0, 1],
        query_ids=["a", "a", "b", "c", "c", "c"],
        **arguments,
    )


def assert_same(left: RankingData, right: RankingData) -> None:
    for name in ("features", "labels", "row_splits", "query_ids", "document_ids", "weights"):
        mine, others = getattr(left, name), getattr(right, name)
        assert (mine is None) == (others is None), name
        if mine is not None:
            np.testing.assert_array_equal(mine, others)


def test_queries() -> None:
    data = small()
    assert (len(data), data.num_documents, data.num_features) == (3, 6, 2)
    assert data.lengths.tolist() == LENGTHS
    assert data.query_of_documents.tolist() == ["a", "a", "b", "c", "c", "c"]
    assert data[1].labels.tolist() == [0]
    assert data[-1].query_ids.tolist() == ["c"]
    assert data[1:].row_splits.tolist() == [0, 1, 4]
    assert np.shares_memory(data[1:].features, data.features)
    assert data[[2, 0]].features[:, 0].tolist() == [4, 5, 6, 1, 2]
    assert data[np.array([True, False, True])].query_ids.tolist() == ["a", "c"]
    assert data[::2].query_ids.tolist() == ["a", "c"]
    assert len(data[3:]) == 0
    assert [len(query.labels) for query in data] == LENGTHS
    kept = data.keep_documents(data.labels > 0)
    assert kept.row_splits.tolist() == [0, 1, 3]
    assert kept.query_ids.tolist() == ["a", "c"]
    with pytest.raises(IndexError, match="3 queries.*number 3"):
        data[3]
    with pytest.raises(ValueError, match="keep"):
        data.keep_documents([1, 0])


def test_scattered_rows_are_grouped() -> None:
    data = RankingData.from_arrays(
        [[1], [2], [3]], [0, 1, 2], [7, 8, 7], ["x", "y", "z"], [1, 2, 3]
    )
    assert data.query_ids.tolist() == [7, 8]
    assert data.features[:, 0].tolist() == [1, 3, 2]
    assert data.document_ids is not None and data.document_ids.tolist() == ["x", "z", "y"]
    assert data.weights is not None and data.weights.tolist() == [1, 3, 2]


def test_concat_and_split() -> None:
    data = small(document_ids=list("uvwxyz"))
    assert_same(RankingData.concat([data[:1], data[1:]]), data)
    numbers = RankingData.from_arrays([[1]], [0], [5])
    words = RankingData.from_arrays([[1]], [0], ["q"])
    assert RankingData.concat([numbers, words]).query_ids.tolist() == ["5", "q"]
    with pytest.raises(ValueError, match="number of features.*2, 1"):
        RankingData.concat([data, numbers])
    with pytest.raises(ValueError, match="document_ids"):
        RankingData.concat([data, small()])

    many = RankingData.from_arrays(np.arange(100)[:, None], np.zeros(100), np.arange(100))
    parts = many.split([0.6, 0.2, 0.2], seed=3)
    assert [len(part) for part in parts] == [60, 20, 20]
    drawn = np.concatenate([part.query_ids for part in parts])
    assert sorted(drawn.tolist()) == list(range(100))
    assert drawn.tolist() != list(range(100))
    for mine, again in zip(parts, many.split([0.6, 0.2, 0.2], seed=3)):
        assert_same(mine, again)
    assert many.split([0.5, 0.5], seed=4)[0].query_ids.tolist() != parts[0].query_ids.tolist()
    for wrong in ([0.5, 0.6], [np.nan, 1.0], []):
        with pytest.raises(ValueError, match="fractions"):
            many.split(wrong)


def test_relevant_and_description() -> None:
    data = small()
    assert data.discard_without_relevant().query_ids.tolist() == ["a", "c"]
    features = np.ones((500, 4))
    features[:, 1] = np.arange(500)
    features[:, 2] = [1e6 if row == 7 else row % 2 for row in range(500)]
    features[3, 3] = np.nan
    described = RankingData.from_arrays(
        features, np.arange(500) % 3, np.arange(500) // 5, allow_nonfinite=True
    ).describe()
    assert (described.queries, described.documents, described.features) == (100, 500, 4)
    assert described.labels == {0.0: 167, 1.0: 167, 2.0: 166}
    assert described.constant_features == [0]
    assert described.heavy_tailed_features == [2]
    assert described.not_finite_features == [3]
    assert "500 documents" in str(described)
    assert "heavy tailed features: 1, columns (from 0) 2" in str(described)


def test_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    small().describe().plot(tmp_path / "data.png")
    assert (tmp_path / "data.png").read_bytes()[1:4] == b"PNG"


def test_save_and_open(tmp_path: Path) -> None:
    data = small(document_ids=["ä", "b", "c", "d", "e", "f"], weights=[1, 2, 3, 4, 5, 6])
    path = tmp_path / "data.rank"
    data.save(path)
    opened = RankingData.open(path)
    assert_same(opened, data)
    assert isinstance(opened.features.base, np.ndarray)
    assert not opened.features.flags.writeable  # mapped, not read
    assert [file.name for file in tmp_path.iterdir()] == ["data.rank"]
    whole = path.read_bytes()
    for broken in (whole[:-1], whole[:30], b"", whole[:100] + b"x" + whole[101:]):
        path.write_bytes(broken)
        with pytest.raises(StorageError, match=r"data.rank"):
            RankingData.open(path)
    with pytest.raises(FileNotFoundError):
        data.save(tmp_path / "absent" / "data.rank")


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames(library: str) -> None:
    frames = pytest.importorskip(library)
    frame = frames.DataFrame(
        {"query": ["x", "y", "x"], "grade": [0, 1, 2], "first": [1.5, 2, 3], "second": [4, 5, 6]}
    )
    data = RankingData.from_dataframe(frame, label="grade", query="query")
    assert data.features.tolist() == [[1.5, 4], [3, 6], [2, 5]]
    assert data.query_ids.tolist() == ["x", "y"]
    one = RankingData.from_dataframe(frame, "grade", "query", features=["second"])
    assert one.features[:, 0].tolist() == [4, 6, 5]
    named = RankingData.from_dataframe(
        frame, "grade", "query", ["first"], document="query", weight="second"
    )
    assert named.document_ids is not None and named.document_ids.tolist() == ["x", "x", "y"]
    assert named.weights is not None and named.weights.tolist() == [4, 6, 5]
    whole = RankingData.from_dataframe(frame, "grade", "second", ["first"])
    assert whole.query_ids.tolist() == [4, 5, 6]
    with pytest.raises(ValueError, match="no columns.*third"):
        RankingData.from_dataframe(frame, "grade", "query", features=["third"])
    with pytest.raises(ValueError, match="numbers.*'query'"):
        RankingData.from_dataframe(frame, "grade", "second", features=["query"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([[1.0]], [-1.0], [1]), "labels must be finite and at least 0"),
        (([[1.0]], [np.nan], [1]), "labels must be finite"),
        (([[np.nan]], [1.0], [1]), "features must be finite.*features.0, 0.=nan, 1 in all"),
        (([[1.0]], [1.0], [np.nan]), "query_ids must not be missing"),
        (([[1.0]], [1.0], [1.5]), "query_ids must be whole numbers or strings"),
        (([[1.0], [2.0]], [1.0, 1.0], ["a", None]), "query_ids must not be missing"),
        (([1.0], [1.0], [1]), "features must be numbers"),
        (([["x"]], [1.0], [1]), "features must be numbers"),
        (([[1.0]], [1.0, 2.0], [1]), "labels must have one row per entry"),
    ],
)
def test_wrong_arrays(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        RankingData.from_arrays(*arguments)


def test_map_features() -> None:
    data = small()
    assert data.map_features(lambda x: 2 * x[:, :1]).features[:, 0].tolist() == [2, 4, 6, 8, 10, 12]
    means = data.map_features(lambda x: x - x.mean(axis=0), per_query=True).features
    assert means[:, 0].tolist() == [-0.5, 0.5, 0, -1, 0, 1]
    with pytest.raises(ValueError, match="one row per row"):
        data.map_features(lambda x: x[:1])


def test_transforms(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    features = generator.lognormal(3, 4, (50, 4)) * generator.choice([-1, 1], (50, 4))
    features[:, 3] = 0.1
    data = RankingData.from_arrays(features, np.zeros(50), np.arange(50) // 7)
    rounded = data.features.astype(np.float64)
    logs = np.sign(rounded) * np.log(1 + np.abs(rounded))
    np.testing.assert_allclose(data.map_features(Log1p()).features, logs, rtol=1e-6)

    standardize = Standardize.fit(data)
    expected = (rounded - rounded.mean(axis=0)) / rounded.std(axis=0)
    expected[:, 3] = 0.0
    result = data.map_features(standardize).features
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    after_logs = Standardize.fit(data, Log1p()).get_config()
    np.testing.assert_allclose(after_logs["mean"], logs.mean(axis=0), rtol=1e-6)

    scaled = data.map_features(QueryMinMax())
    for query, raw in zip(scaled, data):
        low, high = raw.features.min(axis=0), raw.features.max(axis=0)
        wanted = (raw.features - low) / np.where(high > low, high - low, 1)
        np.testing.assert_allclose(query.features, wanted, rtol=1e-5, atol=1e-6)

    inputs = keras.Input((None, 4)), keras.Input((None,), dtype="bool")
    outputs = QueryMinMax()(standardize(Log1p()(inputs[0])), mask=inputs[1])
    keras.Model(inputs, outputs).save(tmp_path / "model.keras")
    model = keras.saving.load_model(tmp_path / "model.keras")
    lists = np.full((1, 9, 4), 1e30, np.float32)
    lists[0, :7] = data[0].features
    mask = np.arange(9)[None] < 7
    values = keras.ops.convert_to_numpy(model([lists, mask]))
    middle = (logs[:7] - rounded.mean(axis=0)) / rounded.std(axis=0)
    low, high = middle.min(axis=0), middle.max(axis=0)
    wanted = np.where(high > low, (middle - low) / (high - low), 0)
    wanted[:, 3] = 0.0
    np.testing.assert_allclose(values[0, :7], wanted, rtol=1e-3, atol=1e-4)
    assert not values[0, 7:].any()
    with pytest.raises(ValueError, match="fitted to 4 features.*3"):
        standardize(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="fitted to 4 features.*3"):
        standardize(keras.Input((None, 3)))
    with pytest.raises(ValueError, match="finite"):
        Standardize.fit(RankingData.from_arrays([[np.nan]], [0], [1], allow_nonfinite=True))
