"""Ranking networks: the paper's numbers, padding, neighbours, saving, half precision."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import tfrankloss
from tfrankloss import losses, models
from tfrankloss.data import QueryMinMax, RankingData, Standardize

FEATURES = 6
SMALL: dict[str, dict[str, Any]] = {
    "feedforward": {"hidden": (8, 4), "dropout": 0.2, "noise": 0.1},
    "linear": {},
    "ranknet": {},
    "self_attention": {"hidden": (8, 4), "heads": 2, "head_units": 3},
    "gam": {"hidden": (4,)},
    "classification": {"num_grades": 3, "hidden": (8,), "dropout": 0.0},
}


def small_model(name: str) -> keras.Model:
    """A model whose weights, moving statistics included, are not those of the start."""
    keras.utils.set_random_seed(0)
    model = models.get(name, FEATURES, **SMALL[name])
    generator = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(generator.uniform(0.1, 1.0, weight.shape))
    return model


def lists(width: int = 5, seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    lengths = np.array([3, 5, 1])
    mask = np.arange(width) < lengths[:, None]
    features = generator.normal(size=(3, width, FEATURES)).astype(np.float32)
    return {"features": features, "mask": mask}


def scores(model: keras.Model, inputs: dict[str, np.ndarray]) -> np.ndarray:
    return keras.ops.convert_to_numpy(model(inputs))


def test_the_network_of_the_paper() -> None:
    model = models.feedforward(136)
    shapes = [layer.kernel.shape for layer in model.layers if isinstance(layer, keras.layers.Dense)]
    assert shapes == [(136, 1024), (1024, 512), (512, 256), (256, 1)]
    rates = [layer.rate for layer in model.layers if isinstance(layer, keras.layers.Dropout)]
    assert rates == [0.5, 0.5, 0.8]
    norms = [x for x in model.layers if isinstance(x, keras.layers.BatchNormalization)]
    assert [norm.momentum for norm in norms] == [0.999] * 4
    dense = 136 * 1024 + 1024 + 1024 * 512 + 512 + 512 * 256 + 256 + 256 + 1
    assert model.count_params() == dense + 4 * (136 + 1024 + 512 + 256)
    kept = models.feedforward(136, **models.SIGIR2022_KEPT)
    rates = [layer.rate for layer in kept.layers if isinstance(layer, keras.layers.Dropout)]
    assert rates == [0.5, 0.5, 0.2]


def test_padding_stays_out_of_the_statistics() -> None:
    model = models.feedforward(FEATURES, hidden=(4,), dropout=0.0, transform=None)
    inputs = lists()
    inputs["features"][~inputs["mask"]] = 1e3
    model(inputs, training=True)
    norm = model.get_layer("input_batch_norm")
    documents = inputs["features"][inputs["mask"]].astype(np.float64)
    mean = keras.ops.convert_to_numpy(norm.moving_mean)
    variance = keras.ops.convert_to_numpy(norm.moving_variance)
    np.testing.assert_allclose(mean, 0.001 * documents.mean(axis=0), rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(variance, 0.999 + 0.001 * documents.var(axis=0), rtol=1e-5)


@pytest.mark.parametrize(
    "name", ["feedforward", "gam", pytest.param("self_attention", marks=pytest.mark.slow)]
)
def test_a_compiled_step_learns_the_same(name: str) -> None:
    """Inside XLA padding has rows of its own, outside it has none."""
    options = {key: value for key, value in SMALL[name].items() if key not in ("dropout", "noise")}
    if name != "gam":
        options["dropout"] = 0.0
    if name == "self_attention":
        options["noise"] = 0.0
    inputs = lists()
    inputs["features"][~inputs["mask"]] = 1e3
    labels = np.where(inputs["mask"], np.arange(5) % 2, -1).astype(np.float32)
    learnt = []
    for compiled in (False, True):
        keras.utils.set_random_seed(0)
        model = models.get(name, FEATURES, **options)
        optimizer = keras.optimizers.SGD(0.1)
        model.compile(optimizer, losses.PointwiseSquaredLoss(), jit_compile=compiled)
        model.fit(inputs, labels, epochs=3, batch_size=3, verbose=0)
        learnt.append(model.get_weights())
    for first, second in zip(*learnt, strict=True):
        np.testing.assert_allclose(first, second, rtol=2e-3, atol=2e-4)


def test_a_batch_of_padding_alone() -> None:
    model = models.feedforward(FEATURES, hidden=(4,), dropout=0.0)
    inputs = lists()
    inputs["mask"][:] = False
    assert not keras.ops.convert_to_numpy(model(inputs, training=True)).any()
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    assert scores(model, {key: value[:0] for key, value in inputs.items()}).shape == (0, 5)


@pytest.mark.parametrize("name", SMALL)
def test_padding_changes_no_score(name: str) -> None:
    model = small_model(name)
    inputs = lists()
    expected = scores(model, inputs)
    assert not expected[~inputs["mask"]].any()
    wider = {
        "features": np.pad(inputs["features"], ((0, 0), (0, 4), (0, 0)), constant_values=7.0),
        "mask": np.pad(inputs["mask"], ((0, 0), (0, 4))),
    }
    wider["features"][:, :5][~inputs["mask"]] = -3.0
    np.testing.assert_allclose(scores(model, wider)[:, :5], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SMALL)
def test_order_and_neighbours(name: str) -> None:
    """All models follow a permutation of the documents; univariate ones do not see the others."""
    model = small_model(name)
    inputs = {key: value[1:2] for key, value in lists().items()}  # a list without padding
    expected = scores(model, inputs)
    order = [3, 0, 4, 1, 2]
    permuted = {key: value[:, order] for key, value in inputs.items()}
    np.testing.assert_allclose(scores(model, permuted), expected[:, order], rtol=1e-4, atol=1e-5)
    alone = {key: value[:, :1] for key, value in inputs.items()}
    same = np.allclose(scores(model, alone)[:, 0], expected[:, 0], rtol=1e-5, atol=1e-5)
    assert same == (name != "self_attention")


@pytest.mark.parametrize("name", SMALL)
def test_saving(name: str, tmp_path: Path) -> None:
    model = small_model(name)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    inputs = lists()
    np.testing.assert_array_equal(scores(loaded, inputs), scores(model, inputs))


@pytest.fixture(params=["mixed_float16", "mixed_bfloat16"])
def policy(request: pytest.FixtureRequest) -> Iterator[str]:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(request.param)
    yield request.param
    keras.config.set_dtype_policy(before)
    tfrankloss.config.enable_xla()


@pytest.mark.parametrize(
    "name", ["feedforward", "gam", pytest.param("self_attention", marks=pytest.mark.slow)]
)
def test_half_precision(name: str, policy: str) -> None:
    tfrankloss.config.disable_xla()  # the loss has tests of its own
    keras.utils.set_random_seed(0)
    model = models.get(name, FEATURES, **SMALL[name])
    inputs = lists()
    inputs["features"] *= 1e6  # does not fit float16
    labels = np.where(inputs["mask"], np.arange(5) % 2, -1).astype(np.float32)
    model.compile("adam", losses.SoftmaxLoss())
    history = model.fit(inputs, labels, epochs=3, verbose=0).history["loss"]
    assert np.isfinite(history).all()
    assert model.output.dtype == "float32"
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


def test_additive_model() -> None:
    model = small_model("gam")
    parts = models.sub_scores(model)
    inputs = lists()
    of_features = scores(parts, inputs)
    np.testing.assert_allclose(
        of_features.sum(axis=-1)[inputs["mask"]], scores(model, inputs)[inputs["mask"]], rtol=1e-5
    )
    changed = {**inputs, "features": inputs["features"].copy()}
    changed["features"][..., 2] += 1.0
    difference = scores(parts, changed) - of_features
    assert difference[..., 2].any()
    assert not np.delete(difference, 2, axis=-1).any()
    with pytest.raises(ValueError, match="gam.*linear"):
        models.sub_scores(models.linear(3))


def test_transforms_in_a_model(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    data = RankingData.from_arrays(
        generator.lognormal(size=(40, FEATURES)), np.zeros(40), np.arange(40) // 8
    )
    standardize = Standardize.fit(data)
    model = models.linear(FEATURES, transform=[standardize, QueryMinMax()])
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    inputs, _ = next(iter(data.to_dataset(batch_size=5, list_size=10)))
    np.testing.assert_array_equal(scores(loaded, inputs), scores(model, inputs))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("feedforward", {"num_features": 0}, "num_features"),
        ("feedforward", {"hidden": (8, 8), "dropout": (0.1,)}, "dropout"),
        ("feedforward", {"dropout": 1.5, "hidden": (4,)}, "dropout"),
        ("feedforward", {"transform": "log"}, "transform"),
        ("feedforward", {"hidden": (0,), "dropout": 0.0}, "hidden"),
        ("feedforward", {"batch_norm_momentum": 2.0}, "batch_norm_momentum"),
        ("classification", {"num_grades": 1}, "num_grades"),
        ("self_attention", {"hidden": ()}, "hidden"),
        ("forest", {}, "model"),
    ],
)
def test_wrong_options(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        models.get(name, **{"num_features": FEATURES, **options})
