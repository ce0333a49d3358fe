"""Law 6: a loss survives its configuration, a saved model, pickling and copying."""

import copy
import pickle
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from tests.laws import batches
from tests.laws.cases import CASES, FIRST_CASES, Case
from tests.laws.running import run
from tfrankloss import losses


def options(loss: losses.RankingLoss) -> dict[str, Any]:
    """The configuration as plain data, so that nested losses compare by what they are."""
    return keras.saving.serialize_keras_object(loss)["config"]


def assert_equal(actual: losses.RankingLoss, expected: losses.RankingLoss) -> None:
    assert type(actual) is type(expected)
    assert options(actual) == options(expected)
    assert actual.name == expected.name
    batch = batches.distinct(expected.outputs)
    np.testing.assert_array_equal(run(actual, batch).values, run(expected, batch).values)


@pytest.mark.parametrize("case", CASES)
def test_config(case: Case) -> None:
    loss = case.fresh(reduction="sum", name="mine", dtype="float32")
    config = loss.get_config()
    assert config["reduction"] == "sum"
    assert config["name"] == "mine"
    assert config["dtype"] == "float32"
    given = {k: v for k, v in case.options if k not in ("loss", "weight")}
    assert {name: config[name] for name in given} == given
    assert_equal(type(loss).from_config(config), loss)


@pytest.mark.parametrize("case", FIRST_CASES)
def test_get(case: Case) -> None:
    """By name, and by what Keras writes."""
    loss = losses.get(case.name, **dict(case.options), reduction="none")
    assert options(loss) == options(case.build())
    assert options(losses.get(keras.saving.serialize_keras_object(loss))) == options(loss)
    assert losses.get(loss) is loss
    for name in (case.name.replace("_", "-"), case.name.replace("_", ""), type(loss).__name__):
        assert type(losses.get(name, **dict(case.options))) is type(loss)


@pytest.mark.parametrize("case", FIRST_CASES)
def test_copies(case: Case) -> None:
    loss = case.fresh(reduction="none")
    batch = batches.distinct(loss.outputs)
    expected = run(loss, batch)  # a loss that was used, with whatever it keeps
    for other in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert type(other) is type(loss)
        assert options(other) == options(loss)
        np.testing.assert_array_equal(run(other, batch).values, expected.values)


@pytest.mark.parametrize("case", FIRST_CASES)
def test_saved_model(case: Case, tmp_path: Path) -> None:
    loss = case.fresh(reduction="sum")
    inputs = keras.Input((batches.WIDTH,))
    scores = keras.layers.Dense(batches.WIDTH * loss.outputs)(inputs)
    if loss.outputs > 1:
        scores = keras.layers.Reshape((batches.WIDTH, loss.outputs))(scores)
    model = keras.Model(inputs, scores)
    model.compile(optimizer="sgd", loss=loss)
    model.save(tmp_path / "m.keras")
    restored = keras.saving.load_model(tmp_path / "m.keras")
    assert_equal(restored.loss, loss)


def test_training_and_going_on_after_loading(tmp_path: Path) -> None:
    """`fit` takes the lists, the padding and the weights, before and after saving."""
    batch = batches.common(1)
    features = np.nan_to_num(batch.scores, posinf=0.0, neginf=0.0, nan=0.0) / 1e4
    labels = np.nan_to_num(batch.labels, nan=-1.0)
    model = keras.Sequential([keras.Input((batches.WIDTH,)), keras.layers.Dense(batches.WIDTH)])
    model.compile(optimizer="sgd", loss=losses.NDCGLoss2(topn=3))
    weights = np.arange(1.0, len(labels) + 1.0)
    model.fit(features, labels, sample_weight=weights, verbose=0, batch_size=len(labels))
    model.save(tmp_path / "m.keras")
    restored = keras.saving.load_model(tmp_path / "m.keras")
    assert restored.loss.topn == 3
    expected = model.evaluate(features, labels, verbose=0, batch_size=len(labels))
    result = restored.evaluate(features, labels, verbose=0, batch_size=len(labels))
    np.testing.assert_allclose(result, expected, rtol=1e-6)
