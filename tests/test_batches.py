"""Batches of ranking data: every document once, little padding, few shapes, seeds."""

import itertools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfrankloss import losses, metrics
from tfrankloss.data import RankingData
from tfrankloss.data.batches import list_sizes


def web_like(queries: int = 3000, width: int = 2, seed: int = 0) -> RankingData:
    """Lists as long as those of Web30K: 120 documents on average, up to a thousand and more."""
    generator = np.random.default_rng(seed)
    lengths = np.clip(generator.lognormal(np.log(120) - 0.125, 0.5, queries), 1, 1251).astype(int)
    count = lengths.sum()
    features = np.zeros((count, width), np.float32)
    features[:, 0] = np.arange(count)
    return RankingData.from_arrays(
        features, generator.integers(0, 3, count), np.repeat(np.arange(queries), lengths)
    )


def documents(element: Any) -> list[int]:
    """The first feature, which numbers the documents, of all that are not padding."""
    inputs, labels = element[:2]
    features = inputs["features"] if isinstance(inputs, dict) else inputs
    return features.numpy()[labels.numpy() >= 0][:, 0].astype(int).tolist()


@pytest.mark.parametrize(
    "options", [{}, {"batch_size": 32}, {"max_documents": 8192}, {"shuffle": False}]
)
def test_every_document_once(options: dict[str, Any]) -> None:
    data = web_like()
    dataset = data.to_dataset(**options)
    shapes = set()
    seen: list[int] = []
    padded = 0
    elements = list(dataset)
    for element in elements:
        inputs, labels = element
        shapes.add(tuple(labels.shape))
        padded += int(np.prod(labels.shape))
        seen += documents(element)
        mask = inputs["mask"].numpy()
        np.testing.assert_array_equal(mask, labels.numpy() >= 0)
        assert not inputs["features"].numpy()[~mask].any()
        if "max_documents" in options:
            assert np.prod(labels.shape) <= 8192
    assert sorted(seen) == list(range(data.num_documents))
    assert len(shapes) <= 12
    assert len(elements) == int(dataset.cardinality())
    few = len(elements) < 50  # for twelve sizes
    assert 1 - len(seen) / padded <= (0.2 if few else 0.15)


def test_little_padding_on_the_whole_of_web30k() -> None:
    data = web_like(19_000, width=1)
    padded = sum(int(np.prod(labels.shape)) for _, labels in data.to_dataset())
    assert 1 - data.num_documents / padded <= 0.15


def test_sizes_are_the_best() -> None:
    """Against all choices of three sizes."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 80, 40)

    def padded(sizes: Any) -> int:
        return int(np.take(sizes, np.searchsorted(sizes, lengths)).sum())

    largest = -(-lengths.max() // 8) * 8
    best = min(
        padded([*chosen, largest]) for chosen in itertools.combinations(range(8, largest, 8), 2)
    )
    assert padded(list_sizes(lengths, most=3)) == best
    assert list_sizes(np.array([5, 5])) == [8]
    many = list_sizes(np.arange(1, 9000))
    assert len(many) == 12
    assert many[-1] >= 8999


def test_seeds() -> None:
    data = web_like(300)

    def orders(epochs: int = 2, **options: Any) -> list[list[int]]:
        dataset = data.to_dataset(batch_size=32, **options)
        return [[x for element in dataset for x in documents(element)] for _ in range(epochs)]

    first, second = orders(seed=1)
    assert first != second
    assert orders(seed=1) == [first, second]
    assert orders(seed=2)[0] != first
    assert orders(epochs=1, seed=1, first_epoch=1) == [second]
    assert orders(seed=2, shuffle=False) == orders(seed=1, shuffle=False)
    dataset = data.to_dataset(batch_size=32, seed=1, repeat=True)
    count = int(data.to_dataset(batch_size=32).cardinality())
    for _ in range(2):  # whatever was read ahead before
        endless = [x for element in dataset.take(2 * count) for x in documents(element)]
        assert endless == first + second
    assert int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY


def test_one_list_size() -> None:
    labels = np.zeros(50)
    labels[[3, 30, 40]] = 1
    data = RankingData.from_arrays(np.arange(53)[:, None], [*labels, 0, 1, 0], [1] * 50 + [2] * 3)
    dataset = data.to_dataset(batch_size=2, list_size=10, shuffle=False)
    features, mask = (dataset.element_spec[0][name].shape for name in ("features", "mask"))
    assert (features.as_list(), mask.as_list()) == ([2, 10, 1], [2, 10])
    ((inputs, labels),) = list(dataset)
    kept = inputs["features"].numpy()[0, :, 0].astype(int).tolist()
    assert {3, 30, 40} <= set(kept)
    assert kept == sorted(kept) and len(set(kept)) == 10
    assert kept != list(range(10))
    assert labels.numpy()[1].tolist() == [0, 1, 0] + [-1] * 7
    ((inputs, _),) = list(data.to_dataset(2, list_size=10, shuffle=False, truncate="position"))
    assert inputs["features"].numpy()[0, :, 0].tolist() == list(range(10))
    ((inputs, labels),) = list(data.to_dataset(3, list_size=2, shuffle=False))
    assert labels.numpy()[0].tolist() == [1, 1]  # two of the three relevant ones
    assert sorted(labels.numpy()[1].tolist()) == [0, 1]
    assert labels.numpy()[2].tolist() == [-1, -1]  # an empty list fills the batch


def test_weights_and_plain_features() -> None:
    data = RankingData.from_arrays([[1], [2], [3]], [0, 1, 0], [5, 5, 6], weights=[0.5, 2, 4])
    ((features, labels, weights),) = list(
        data.to_dataset(2, inputs="features", list_size=2, shuffle=False)
    )
    assert features.shape == (2, 2, 1)
    assert weights.numpy().tolist() == [[0.5, 2], [4, 0]]
    assert labels.numpy().tolist() == [[0, 1], [0, -1]]


def test_remainder() -> None:
    data = web_like(70)
    assert sum(len(labels) for _, labels in data.to_dataset(32)) == 96
    dropped = list(data.to_dataset(32, drop_remainder=True))
    assert all((labels.numpy() >= 0).any(axis=1).all() for _, labels in dropped)
    assert len(dropped) == 2
    with pytest.raises(ValueError, match="leaves no batch of 70 queries.*batch_size=71"):
        data.to_dataset(71, drop_remainder=True)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"max_documents": -1},
        {"batch_size": 2, "max_documents": 3},
        {"inputs": "tuple"},
        {"truncate": "last"},
        {"list_size": 10, "max_documents": 9},
        {"seed": -1},
    ],
)
def test_wrong_options(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        web_like(5).to_dataset(**options)


def test_a_list_longer_than_a_batch() -> None:
    data = RankingData.from_arrays(np.zeros((50, 1)), np.zeros(50), np.zeros(50, int))
    with pytest.raises(ValueError, match="50 documents, padded to 56.*max_documents=50"):
        data.to_dataset(max_documents=50)
    assert data.to_dataset(max_documents=50, list_size=50).element_spec[1].shape == (1, 50)


def test_predict() -> None:
    """Scores come back in the order of the data, whatever the batches."""
    data = web_like(200)

    def model(inputs: Any, training: bool) -> Any:
        return inputs[..., 0]

    np.testing.assert_array_equal(data.predict(model), data.features[:, 0])
    np.testing.assert_array_equal(data.predict(model, max_documents=1), data.features[:, 0])

    def wrong(inputs: Any, training: bool) -> Any:
        return inputs[:, 0, 0]

    with pytest.raises(ValueError, match="one score per document"):
        data.predict(wrong)


def test_fit() -> None:
    """A model learns from the dataset, and padding counts nowhere."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(3, 30, 60)
    features = generator.normal(size=(lengths.sum(), 3)).astype(np.float32)
    labels = (features[:, 0] > 0.5).astype(int)
    data = RankingData.from_arrays(features, labels, np.repeat(np.arange(60), lengths))
    inputs = {
        "features": keras.Input((None, 3), name="features"),
        "mask": keras.Input((None,), dtype="bool", name="mask"),
    }
    scores = keras.layers.Dense(1)(inputs["features"])
    model = keras.Model(inputs, keras.layers.Reshape((-1,))(scores))
    model.compile(
        optimizer=keras.optimizers.Adam(0.1),
        loss=losses.SoftmaxLoss(),
        metrics=[metrics.NDCG(topn=5)],
    )
    model.fit(data.to_dataset(batch_size=16), epochs=10, verbose=0)
    result = model.evaluate(
        data.to_dataset(batch_size=16, shuffle=False), return_dict=True, verbose=0
    )
    assert result["ndcg@5"] > 0.97
    whole = model.evaluate(data.to_dataset(batch_size=7), return_dict=True, verbose=0)
    assert whole["ndcg@5"] == pytest.approx(result["ndcg@5"], abs=1e-6)
