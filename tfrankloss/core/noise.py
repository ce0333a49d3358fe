"""Random numbers without state: a hash of the seed and of the list itself.

A training step needs fresh noise, under XLA, on every backend, and the same noise again when the
run is repeated. A generator inside a loss is state that the JAX trainer does not track. So the
noise of a list is computed from its scores and labels, which change at every step, and the seed.

A document draws by its rank, so that padding, the batch and the order of the documents leave its
noise alone. Documents with equal scores are told apart by position.

The hash is kept short on purpose: every `x ^ (x >> k)` doubles the paths through the expression,
and the vectoriser behind XLA walks all of them in a fused loop.
"""

import math
import random

from keras import ops

from tfrankloss.core import backend, ranks
from tfrankloss.core.backend import Array
from tfrankloss.core.lists import Lists


def pick_seed(seed: int | None) -> int:
    """`seed`, or one drawn from Python's generator, which `keras.utils.set_random_seed` seeds."""
    return random.randint(0, 2**31 - 1) if seed is None else seed


def uniform(lists: Lists, seed: int, samples: int = 1) -> Array:
    """Numbers in (0, 1) for each document: `[samples, batch, list]` float32."""
    rank = _unsigned(ranks.descending(lists.scores, lists.mask).positions)
    sample = _unsigned(ops.arange(samples))
    counter = rank * _constant(0x9E3779B1) + (sample * _constant(0x85EBCA77))[:, None, None]
    bits = _mix(counter + _key(lists, seed)[:, None])
    # 23 bits and a half: an exact float32 that is neither 0 nor 1.
    return (ops.cast(ops.right_shift(bits, _constant(9)), "float32") + 0.5) * 2.0**-23


def gumbel(lists: Lists, seed: int, samples: int) -> Array:
    """Standard Gumbel numbers `[samples, batch, list]`."""
    return -ops.log(-ops.log(uniform(lists, seed, samples)))


def normal(lists: Lists, seed: int, samples: int) -> Array:
    """Standard normal numbers `[samples, batch, list]` (Box and Muller, 1958)."""
    radius = ops.sqrt(-2.0 * ops.log(uniform(lists, seed, samples)))
    return radius * ops.cos(2.0 * math.pi * uniform(lists, seed ^ 0x5BD1E995, samples))


def perturbed(lists: Lists, noise: Array, scale: float) -> Lists:
    """Each list once per sample, with `scale` times the noise added to its scores."""
    samples = noise.shape[0]
    noise = ops.reshape(ops.cast(noise, lists.scores.dtype), (-1, ops.shape(lists.scores)[1]))
    repeated = lists.repeat(samples)
    scores = repeated.scores + scale * noise
    return repeated._replace(scores=ops.where(repeated.mask, scores, ops.zeros_like(scores)))


def _key(lists: Lists, seed: int) -> Array:
    """A hash `[batch]` of the scores and labels of each list."""
    hashes = _bits(lists.scores) * _constant(0xC2B2AE3D) + _bits(lists.labels)
    hashes = ops.bitwise_xor(hashes, ops.right_shift(hashes, _constant(15)))
    hashes = (hashes + _constant(seed)) * _constant(0x27D4EB2F)
    hashes = ops.where(lists.mask, hashes, ops.zeros_like(hashes))
    # Sums of the two halves: every backend can add up int32, and they do not depend on the order.
    low = ops.sum(ops.cast(ops.bitwise_and(hashes, _constant(0xFFFF)), "int32"), axis=1)
    high = ops.sum(ops.cast(ops.right_shift(hashes, _constant(16)), "int32"), axis=1)
    return _mix(_unsigned(low) + _unsigned(high) * _constant(0x165667B1) + _constant(seed))


def _bits(x: Array) -> Array:
    x = ops.stop_gradient(ops.cast(x, "float32"))
    return backend.float_bits(ops.where(x == 0, ops.zeros_like(x), x))  # -0.0 is 0.0


def _mix(bits: Array) -> Array:
    """Spreads every bit over all others (the finaliser of MurmurHash3)."""
    bits = ops.bitwise_xor(bits, ops.right_shift(bits, _constant(16))) * _constant(0x85EBCA6B)
    bits = ops.bitwise_xor(bits, ops.right_shift(bits, _constant(13))) * _constant(0xC2B2AE35)
    return ops.bitwise_xor(bits, ops.right_shift(bits, _constant(16)))


def _constant(number: int) -> Array:
    return ops.convert_to_tensor(number & 0xFFFFFFFF, dtype="uint32")


def _unsigned(x: Array) -> Array:
    return ops.cast(x, "uint32")
