"""Expected discounts of SoftRank's ranks, against the rank distributions in NumPy and float64."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from tests import oracles
from tfrankloss.core import gaussian_ranks

Array = np.ndarray
DISCOUNTS = {"log2": lambda rank: np.log2(1.0 + rank), "linear": lambda rank: rank}


def oracle(scores: Array, noise_scale: float, discount: str, topn: int | None = None) -> Array:
    worth = 1.0 / DISCOUNTS[discount](np.arange(1.0, len(scores) + 1.0))
    worth[len(scores) if topn is None else topn :] = 0.0
    return np.array(
        [oracles.rank_distribution(scores, i, noise_scale) @ worth for i in range(len(scores))]
    )


def expected(scores: Array, upstream: Array, **arguments: Any) -> tuple[Array, Array]:
    """Expectations for one list and two documents of padding, and their gradient."""
    padded = np.pad(scores, (0, 2))[None].astype("float32")
    mask = np.arange(len(scores) + 2)[None] < len(scores)
    variable = tf.Variable(padded)

    @tf.function(jit_compile=True)
    def run() -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            found = gaussian_ranks.expected_inverse_discounts(variable, mask, **arguments)
            total = tf.reduce_sum(found * np.pad(upstream, (0, 2)).astype("float32"))
        return found, tape.gradient(total, variable)

    found, gradient = (x.numpy()[0] for x in run())
    assert (gradient[len(scores) :] == 0.0).all()
    return found[: len(scores)], gradient[: len(scores)]


@pytest.mark.parametrize("topn", [None, 5])
@pytest.mark.parametrize("discount", ["log2", "linear"])
def test_values_and_gradients(discount: str, topn: int | None) -> None:
    generator = np.random.default_rng(3)
    scores, upstream, direction = generator.normal(size=(3, 45))
    scores = scores.astype("float32").astype("float64")
    arguments = {"noise_scale": 0.3, "discount": discount, "topn": topn}
    found, gradient = expected(scores, upstream, **arguments)
    np.testing.assert_allclose(found, oracle(scores, **arguments), rtol=3e-6, atol=1e-9)
    step = 1e-5 * direction
    ahead, behind = (oracle(scores + way * step, **arguments) for way in (1.0, -1.0))
    slope = (ahead - behind) @ upstream / 2e-5
    assert gradient @ direction == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize("size", [1, 2, 17, 300, 5000, gaussian_ranks.MOST_RANKS])
@pytest.mark.parametrize("discount", ["log2", "linear"])
def test_powers_are_the_discounts(discount: str, size: int) -> None:
    weights, falls = (x.astype("float64") for x in gaussian_ranks._powers(discount, size))
    rank = np.unique(np.linspace(1, size, 7000).round())
    found = (1.0 - falls) ** (rank[:, None] - 1.0) @ weights
    np.testing.assert_allclose(found, 1.0 / DISCOUNTS[discount](rank), rtol=1e-6)


def test_documents_far_below_do_not_add_up() -> None:
    """The error function of float32 leaves each of them a chance of 9e-8 to be above."""
    scores = np.concatenate([[100.0], np.linspace(-1.0, 1.0, 3000)])
    found, _ = expected(scores, np.ones_like(scores), noise_scale=1.0)
    assert found[0] == pytest.approx(1.0, abs=1e-6)


def test_a_function_of_the_user_gives_the_same_as_the_name() -> None:
    scores, upstream = np.random.default_rng(4).normal(size=(2, 30))
    by_name = expected(scores, upstream, noise_scale=1.0, discount="log2")
    by_function = expected(
        scores, upstream, noise_scale=1.0, discount=lambda rank: ops.log2(1.0 + rank)
    )
    for one, other in zip(by_name, by_function):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_lists_of_unknown_length() -> None:
    scores, upstream = np.random.default_rng(5).normal(size=(2, 30))
    known, _ = expected(scores, upstream, noise_scale=1.0)
    padded = np.pad(scores, (0, 2))[None].astype("float32")

    @tf.function(
        jit_compile=True,
        input_signature=[tf.TensorSpec([None, None]), tf.TensorSpec([None, None], tf.bool)],
    )
    def run(scores: Any, mask: Any) -> Any:
        return gaussian_ranks.expected_inverse_discounts(scores, mask, 1.0)

    found = run(padded, np.arange(32)[None] < 30).numpy()[0, :30]
    np.testing.assert_allclose(found, known, rtol=3e-6)
