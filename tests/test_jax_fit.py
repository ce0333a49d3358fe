"""On JAX, `fit` with validation and with the mask of a Keras layer, in a process of its own."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import keras, numpy as np
from tfrankloss import boosting, losses, models
assert keras.backend.backend() == "jax"
keras.utils.set_random_seed(0)

generator = np.random.default_rng(0)
features = generator.normal(size=(8, 6, 3)).astype("float32")
labels = generator.integers(0, 3, (8, 6)).astype("float32")
features[:, 4:] = 0.0  # masked by the layer; the labels there are not marked as padding

inputs = keras.Input((6, 3))
scores = keras.layers.Dense(1)(keras.layers.Masking()(inputs))
model = keras.Model(inputs, scores)
for loss in (losses.SoftmaxLoss(), losses.NDCGLoss2(topn=3), losses.XENDCGLoss(gamma=0.5)):
    model.compile("sgd", loss=loss)
    value = model.evaluate(features, labels, batch_size=8, verbose=0)
    visible = np.where(np.arange(6) < 4, labels, -1)
    expected = float(loss(visible, model.predict(features, verbose=0)))
    assert abs(value - expected) < 1e-4 * abs(expected), (value, expected)
    history = model.fit(
        features, labels, validation_data=(features, labels), epochs=5, verbose=0
    ).history
    assert history["loss"][-1] < history["loss"][0]
    assert np.isfinite(history["val_loss"]).all()

# A network of this package, which needs static shapes here, on lists with padding.
network = models.feedforward(3, hidden=(4,), dropout=0.0)
mask = np.arange(6) < np.arange(1, 9)[:, None] % 5 + 1
padded = {"features": features, "mask": mask}
network.compile("adam", loss=losses.SoftmaxLoss())
network.fit(padded, np.where(mask, labels, -1), epochs=1, verbose=0)
before = network.predict(padded, verbose=0)
padded["features"] = np.where(mask[..., None], features, 7.0).astype("float32")
np.testing.assert_allclose(network.predict(padded, verbose=0), before, rtol=1e-5, atol=1e-6)
assert not before[~mask].any()

# The derivatives for trees.
gradient, curvature = boosting.lightgbm_objective("softmax")(
    labels.ravel(), features[..., 0].ravel(), None, np.full(8, 6)
)
rho = np.exp(features[..., 0])
rho /= rho.sum(axis=1, keepdims=True)
total = labels.sum(axis=1, keepdims=True)
np.testing.assert_allclose(gradient, (total * rho - labels).ravel(), rtol=1e-4, atol=1e-5)
np.testing.assert_allclose(curvature, (total * rho * (1 - rho)).ravel(), rtol=1e-4, atol=1e-6)

# A list so long that its pairs are summed from a grid of scores, here and on other platforms.
import jax
from tfrankloss.core import pairs
sums = pairs._sums
pairs._sums = lambda *arguments, columns=None, **options: tuple(
    x * (np.nan if columns is None else 1.0) for x in sums(*arguments, columns=columns, **options)
)
assert float(losses.PairwiseLogisticLoss()(np.zeros((0, 700)), np.zeros((0, 700)))) == 0
scores = generator.normal(size=(1, 700)).astype("float32")
labels = generator.integers(0, 4, (1, 700)).astype("float32")
step = jax.jit(jax.value_and_grad(lambda s, y: losses.PairwiseLogisticLoss()(y, s)))
value, gradient = step(scores, labels)
z = scores[0].astype(float)[:, None] - scores[0]
counts = labels[0][:, None] > labels[0]
slopes = counts / (1 + np.exp(z))
np.testing.assert_allclose(value, np.sum(counts * np.logaddexp(0, -z)), rtol=2e-6)
np.testing.assert_allclose(gradient[0], slopes.sum(0) - slopes.sum(1), atol=5e-4)  # of up to 300
platforms = ("cpu", "cuda", "tpu")
assert jax.export.export(step, platforms=platforms)(scores, labels).platforms == platforms
print("trained")
"""


def test_fit_and_evaluate_on_jax() -> None:
    pytest.importorskip("jax")
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert "trained" in result.stdout
