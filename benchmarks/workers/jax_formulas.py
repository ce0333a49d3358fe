"""A few losses in plain `jax.numpy`, the way a user writes them: whole pair arrays and autodiff.

Every function takes labels and scores ``[batch, list]`` without padding, and gives the mean over
the lists.
"""

import math

import jax
import jax.numpy as jnp

LOG_2 = math.log(2.0)


def differences(values: jax.Array) -> jax.Array:
    """``values_i - values_j`` for all pairs, ``[batch, list, list]``."""
    return values[:, :, None] - values[:, None, :]


def ranks(scores: jax.Array) -> jax.Array:
    """1-based ranks, highest score first."""
    return 1 + jnp.argsort(jnp.argsort(-scores, axis=1), axis=1)


def inverse_discount(rank: jax.Array) -> jax.Array:
    """``1 / log2(1 + rank)``."""
    return 1.0 / jnp.log2(1.0 + rank)


def normalized_gains(labels: jax.Array, topn: int | None = None) -> jax.Array:
    """``2^y - 1`` over the best DCG of the list."""
    gains = 2.0**labels - 1.0
    positions = jnp.arange(1, labels.shape[1] + 1)
    ideal = -jnp.sort(-gains, axis=1) * inverse_discount(positions)
    return gains / jnp.maximum(jnp.sum(ideal[:, :topn], axis=1, keepdims=True), 1e-12)


def sum_preferred(labels: jax.Array, pair_losses: jax.Array) -> jax.Array:
    """The sum over the pairs with ``y_i > y_j``, mean over the lists."""
    kept = jnp.where(differences(labels) > 0, pair_losses, 0.0)
    return jnp.mean(jnp.sum(kept, axis=(1, 2)))


def pairwise_logistic(labels: jax.Array, scores: jax.Array) -> jax.Array:
    """``log(1 + e^-(s_i - s_j))`` over the preferred pairs."""
    return sum_preferred(labels, jax.nn.softplus(-differences(scores)))


def pairwise_hinge(labels: jax.Array, scores: jax.Array) -> jax.Array:
    """``max(0, 1 - (s_i - s_j))`` over the preferred pairs."""
    return sum_preferred(labels, jax.nn.relu(1.0 - differences(scores)))


def lambdarank(labels: jax.Array, scores: jax.Array) -> jax.Array:
    """Pairs weighted by ``|G_i - G_j| |1/D_i - 1/D_j|``."""
    weights = jnp.abs(differences(normalized_gains(labels)))
    weights *= jnp.abs(differences(inverse_discount(ranks(scores))))
    return sum_preferred(labels, weights * jax.nn.softplus(-differences(scores)) / LOG_2)


def ndcg_loss2(labels: jax.Array, scores: jax.Array, topn: int) -> jax.Array:
    """Pairs weighted by ``|G_i - G_j| delta_ij``, corrected beyond the cutoff."""
    rank = ranks(scores)
    distance = jnp.abs(differences(rank))
    delta = inverse_discount(distance) - inverse_discount(distance + 1)
    delta = jnp.where(distance > 0, delta, 0.0)
    lower = jnp.maximum(rank[:, :, None], rank[:, None, :])
    delta = jnp.where(lower > topn, delta / (1.0 - inverse_discount(lower)), delta)
    weights = jnp.abs(differences(normalized_gains(labels, topn))) * delta
    return sum_preferred(labels, weights * jax.nn.softplus(-differences(scores)) / LOG_2)
