"""The few operations that TensorFlow and JAX do not share through ``keras.ops``.

Everything that names a backend lives here: compilation of a kernel, automatic derivatives inside a
kernel, the bits of a floating point number, ragged tensors, sums over the replicas of a
distribution strategy, and padding of lists whose length is not known when the program is traced.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from tfrankloss import config

Array = Any  # A tensor of whichever backend Keras runs on.

NAME = keras.backend.backend()

if NAME == "tensorflow":
    import tensorflow as tf
    from tensorflow.compiler.tf2xla.python import xla as xla_operations
    from tensorflow.python.ops import control_flow_util
elif NAME == "jax":
    import jax
else:
    raise ImportError(
        "tfrankloss runs on the Keras backends 'tensorflow' and 'jax'. "
        f"Received: {NAME!r} (set KERAS_BACKEND before Keras is imported)"
    )

# Lists of unknown length are padded up to the next of these sizes (1, 1.5, 2, 3, 4, 6, ... times a
# power of two, all multiples of ROW_BLOCK), so that XLA compiles a dozen programs instead of one
# per length.
ROW_BLOCK = 16
LIST_SIZES = [16, 32, 48] + [size << shift for shift in range(18) for size in (64, 96)]


class _Traced(threading.local):
    """What is known about the program that this thread is tracing."""

    plan: str | None = None  # None outside of a kernel
    xla = False  # whether TensorFlow hands the program to XLA


_traced = _Traced()


@contextlib.contextmanager
def _tracing(plan: str, xla: bool) -> Iterator[None]:
    before = _traced.plan, _traced.xla
    _traced.plan, _traced.xla = plan, xla
    try:
        yield
    finally:
        _traced.plan, _traced.xla = before


def on_accelerator() -> bool:
    """Whether the program that is being traced is for a GPU or TPU."""
    return (_traced.plan or _plan_of_devices()) == "accelerator"


def _plan_of_devices() -> str:
    """The plan that the configuration names, or that of the devices of this process."""
    if config.plan() != "auto":
        return config.plan()
    if NAME == "jax":
        return "cpu" if jax.default_backend() == "cpu" else "accelerator"
    found = any(device.device_type in ("GPU", "TPU") for device in tf.config.list_logical_devices())
    return "accelerator" if found else "cpu"


def compiled(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `kernel` compiled with XLA, unless `tfrankloss.config` says otherwise at the call.

    On JAX the plan is chosen where the program is lowered, so that one exported program may serve
    several platforms. On TensorFlow it follows the devices, and lists of known and of unknown size
    get programs of their own: one that was traced for lists of unknown size takes lists that are
    padded to one of `LIST_SIZES`, and TensorFlow would hand it lists of any known size, too.
    """
    programs: dict[tuple[str, bool, bool], Callable[..., Any]] = {}

    def program_for(*arguments: Any) -> Callable[..., Any]:
        sizes = [x.shape[1] for x in arguments if x is not None and len(x.shape) > 1]
        plan = config.plan() if NAME == "jax" else _plan_of_devices()
        key = plan, config.xla_enabled(), None in sizes
        if key not in programs:
            make = _jax_program if NAME == "jax" else _tensorflow_program
            programs[key] = make(kernel, *key[:2])
        return programs[key]

    # AutoGraph would try to translate this function of a loss inside of a `tf.function`.
    if NAME == "tensorflow":
        program_for = tf.autograph.experimental.do_not_convert(program_for)
    return lambda *arguments: program_for(*arguments)(*arguments)


def _planned(kernel: Callable[..., Any], plan: str, xla: bool) -> Callable[..., Any]:
    """The kernel traced by a plan."""

    def traced(*arguments: Any) -> Any:
        with _tracing(plan, xla):
            return kernel(*arguments)

    return traced


def _tensorflow_program(kernel: Callable[..., Any], plan: str, xla: bool) -> Callable[..., Any]:
    planned = _planned(kernel, plan, xla)
    return tf.function(planned, jit_compile=True, autograph=False) if xla else planned


def _jax_program(kernel: Callable[..., Any], plan: str, xla: bool) -> Callable[..., Any]:
    if plan == "auto":
        on_cpu, elsewhere = (_planned(kernel, name, xla) for name in ("cpu", "accelerator"))

        def program(*arguments: Any) -> Any:
            return jax.lax.platform_dependent(*arguments, cpu=on_cpu, default=elsewhere)

    else:
        program = _planned(kernel, plan, xla)
    return jax.jit(program) if xla else program


def graph(
    function: Callable[..., Any], arguments: Sequence[tuple[tuple[int | None, ...], str]]
) -> Callable[..., Any]:
    """Returns `function` as one TensorFlow graph for all sizes; on JAX as it is.

    What a graph saves over single operations is the time between them, not XLA's passes.

    Args:
        function: of arrays.
        arguments: the shape and the type of each array, None for a size that is not known.
    """
    if NAME != "tensorflow":
        return function
    signature = [tf.TensorSpec(shape, dtype) for shape, dtype in arguments]
    return tf.function(function, input_signature=signature, autograph=False)


def value_and_gradient(function: Callable[[Array], Array], x: Array) -> tuple[Array, Array]:
    """Values `[batch]` of `function` at `x`, and the gradient of each with respect to its own list.

    The value of a list may depend on that list alone, so the gradient of the sum holds them all.
    """
    if NAME == "tensorflow":
        with tf.GradientTape() as tape:
            tape.watch(x)
            values = function(x)
        return values, tape.gradient(values, x, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    def total(x: Array) -> tuple[Array, Array]:
        values = function(x)
        return values.sum(), values

    gradient, values = jax.grad(total, has_aux=True)(x)
    return values, gradient


def with_gradient(kernel: Callable[[Array], tuple[Array, Array]], x: Array) -> Array:
    """The first result of `kernel(x)` as a function of `x` whose gradient is the second.

    The gradient is a constant: second derivatives are zero.
    """

    @ops.custom_gradient
    def call(x: Array) -> Any:
        # TensorFlow would otherwise trace a gradient of the kernel that nobody uses.
        values, gradient = kernel(ops.stop_gradient(x))
        dtype = keras.backend.standardize_dtype(x.dtype)
        if dtype == "float16":
            # A list's own gradient stays finite. Its product with the upstream gradient may still
            # overflow: that is how a loss scaling optimizer learns that its scale is too large.
            gradient = ops.clip(gradient, -65504.0, 65504.0)

        def backward(*upstreams: Array, upstream: Array | None = None) -> Array:
            upstream = upstreams[0] if upstream is None else upstream
            if len(values.shape) == 1:  # one value per list
                upstream = ops.reshape(upstream, (-1,) + (1,) * (len(gradient.shape) - 1))
            return ops.cast(upstream * gradient, dtype)

        return values, backward

    return call(x)


def replicas() -> int:
    """How many copies of this program train together, each on its part of a batch.

    Those of the `tf.distribute` strategy that runs it. A program of JAX sees the whole batch,
    however many devices compute it: there it is always 1.
    """
    if NAME != "tensorflow" or tf.distribute.in_cross_replica_context():
        return 1
    return tf.distribute.get_strategy().num_replicas_in_sync


def sum_over_replicas(x: Array) -> Array:
    """The sum of `x` over all replicas, in each of them; differentiable."""
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, x)


def shapes_must_be_static() -> bool:
    """Whether the program that is being traced must know all sizes: on JAX, and inside XLA."""
    if NAME != "tensorflow":
        return True
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def pack(x: Array, mask: Array) -> Array:
    """The entries of `x [batch, list, ...]` whose mask is True, one below the other."""
    return tf.gather_nd(x, tf.where(mask))


def unpack(x: Array, mask: Array) -> Array:
    """Puts what `pack` took back to its places in `[batch, list, ...]`, with 0 elsewhere."""
    shape = tf.concat([tf.shape(mask), tf.shape(x)[1:]], axis=0)
    shape = tf.cast(shape, tf.int64)
    return tf.ensure_shape(tf.scatter_nd(tf.where(mask), x, shape), [*mask.shape, *x.shape[1:]])


def keras_mask(x: Any) -> Array | None:
    """The mask that a Keras layer attached to `x`; on a JAX tracer it is not an attribute."""
    mask = getattr(x, "_keras_mask", None)
    if mask is None and hasattr(keras, "src"):
        lookup = getattr(keras.src.backend, "get_keras_mask", None)
        mask = None if lookup is None else lookup(x)
    return mask


def float_bits(x: Array) -> Array:
    """The bits of float32 numbers as uint32."""
    if NAME == "tensorflow":
        return tf.bitcast(x, tf.uint32)
    return jax.lax.bitcast_convert_type(x, "uint32")


def ordered_integers(x: Array) -> Array:
    """Whole numbers that compare as the floating point numbers `x` do; none of these is -0.0."""
    dtype = keras.backend.standardize_dtype(x.dtype).replace("float", "int")
    bits = tf.bitcast(x, dtype) if NAME == "tensorflow" else jax.lax.bitcast_convert_type(x, dtype)
    largest = np.iinfo(dtype).max  # all bits but the sign: they grow away from 0 on both sides
    return ops.where(bits < 0, ops.bitwise_xor(bits, largest), bits)


def sort_together(*arrays: Array, keys: int = 1) -> tuple[Array, ...]:
    """The arrays `[batch, list]` in the order of the first of them, from low to high.

    One sort that moves everything: on a TPU a gather costs more than a sort, and on a GPU it is
    one program more to launch. Not stable: stability would cost one more array. Not differentiable
    on TensorFlow.

    Args:
        arrays: the keys, and what is carried along.
        keys: 1, or 2 where the second array, the numbers 0, 1, 2, ..., decides between equal ones.
    """
    if NAME == "jax":
        return tuple(jax.lax.sort(arrays, dimension=1, is_stable=False, num_keys=keys))
    if not _traced.xla:
        order = tf.argsort(arrays[0], axis=1, stable=True)
        return tuple(tf.gather(x, order, batch_dims=1) for x in arrays)

    def comes_first(*pairs: Array) -> Array:
        above = pairs[0] < pairs[1]
        if keys == 1:
            return above
        return tf.logical_or(above, tf.logical_and(pairs[0] == pairs[1], pairs[2] < pairs[3]))

    signature = [tf.TensorSpec([], x.dtype) for x in arrays for _ in range(2)]
    comparator = tf.function(comes_first, input_signature=signature, autograph=False)
    return tuple(
        xla_operations.variadic_sort(
            list(arrays), 1, is_stable=False, comparator=comparator.get_concrete_function()
        )
    )


def kept(x: Array) -> Array:
    """`x` as an array of its own, which XLA does not compute again wherever it is used."""
    if NAME == "jax":
        return jax.lax.optimization_barrier(x)
    return xla_operations.optimization_barrier(x)[0] if _traced.xla else x


def is_ragged(x: Any) -> bool:
    """Whether `x` is a `tf.RaggedTensor` (which JAX programs may be handed, too)."""
    return type(x).__name__ == "RaggedTensor" and hasattr(x, "row_splits")


def ragged_to_dense(x: Any, fill: float) -> tuple[Array, Array]:
    """Pads a ragged `[batch, (list), ...]` with `fill`; returns it and the mask of real entries."""
    lengths = x.row_lengths()
    dense = x.to_tensor(fill)
    if NAME == "jax":
        dense, lengths = ops.convert_to_tensor(dense.numpy()), lengths.numpy()
    lengths = ops.cast(lengths, "int32")
    positions = ops.arange(ops.shape(dense)[1], dtype="int32")
    return dense, positions[None, :] < lengths[:, None]


def same_row_lengths(first: Any, second: Any) -> Any:
    """`first`, or an error where two ragged tensors do not hold the same lists."""
    message = "y_true and y_pred are ragged and their lists have different lengths."
    if NAME == "tensorflow" and not tf.executing_eagerly():
        check = tf.debugging.assert_equal(first.row_lengths(), second.row_lengths(), message)
        with tf.control_dependencies([] if check is None else [check]):
            # Whatever is made of the lists waits for the check.
            splits = tf.identity(first.row_splits)
        return tf.RaggedTensor.from_row_splits(first.values, splits, validate=False)
    if first.row_lengths().numpy().tolist() != second.row_lengths().numpy().tolist():
        raise ValueError(
            f"{message} Received: y_true.row_lengths()={first.row_lengths().numpy().tolist()}, "
            f"y_pred.row_lengths()={second.row_lengths().numpy().tolist()}"
        )
    return first


def padded_list_size(x: Array) -> Array | None:
    """The size to which the lists of `x` must be padded, or None where they stay as they are.

    A program with static shapes is compiled for them anyway. Padding is for TensorFlow programs
    with a dynamic list dimension and for eager calls, which see a new length at every step.
    """
    if NAME != "tensorflow":
        return None
    if x.shape[1] is not None and not (tf.executing_eagerly() and config.xla_enabled()):
        return None
    length = tf.shape(x)[1]
    sizes = tf.constant(LIST_SIZES, dtype=length.dtype)
    return tf.reduce_min(tf.where(sizes >= length, sizes, LIST_SIZES[-1]))


def same_lists(name: str, x: Array, labels: Array) -> Array:
    """`x`, or an error when the program runs if its `[batch, list]` is not that of `labels`.

    Where XLA compiles the whole program it drops the assertion, and the reshape fails instead.
    """
    shape = tf.shape(labels)[:2]
    message = f"y_true and {name} hold lists of different lengths."
    check = tf.debugging.assert_equal(tf.shape(x)[:2], shape, message)
    with tf.control_dependencies([] if check is None else [check]):
        return tf.reshape(x, tf.concat([shape, tf.shape(x)[2:]], axis=0))


def pad_lists(x: Array, size: Array, fill: Any) -> Array:
    """Pads the second dimension of a TensorFlow tensor to `size` with `fill`."""
    paddings = [[0, 0], [0, size - tf.shape(x)[1]]] + [[0, 0]] * (len(x.shape) - 2)
    return tf.pad(x, paddings, constant_values=tf.cast(fill, x.dtype))
