"""Worker that compiles for a TPU and a GPU on a machine that has neither, and reads off the cost.

| request | reply |
|---|---|
| (start) | ``{"library", "versions"}`` |
| ``{"program", "name", "batch", "width", "device", "dump"}`` | the fields of ``programs.Cost``, |
| | ``"temporary_bytes"`` and ``"compile_seconds"`` |

``program`` is one of ``PROGRAMS``, ``name`` that of a loss of the registry where the program is
one, ``device`` one of ``DEVICES``, and ``dump`` a file for the program's text, or null.
"""

import functools
import os
import sysconfig
import time
import types
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.programs import Program
from benchmarks.registry import JAX_FORMULAS, LOSSES, rax_as_it_stands
from benchmarks.workers.metrics import NAMES
from benchmarks.workers.protocol import Answer, serve_answers

NVCC = Path(sysconfig.get_path("purelib"), "nvidia", "cuda_nvcc")
SETTINGS = {
    "KERAS_BACKEND": "jax",
    # libtpu must neither look for the machine it runs on nor for other ones.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    # Where there is no TPU, processes may share the library.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",
    # The plugin must load without the libraries of CUDA; of them the compiler needs the assembler.
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    "XLA_FLAGS": f"--xla_gpu_cuda_data_dir={NVCC}",
}
A100 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 167936
  threads_per_core_limit: 2048
  core_count: 108
  fpus_per_core: 64
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 1555000000000
  l2_cache_size: 41943040
  clock_rate_ghz: 1.41
  device_memory_size: 42331013120
  shared_memory_per_block_optin: 166912
  cuda_compute_capability { major: 8 minor: 0 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 1 patch: 0 }
device_description_str: "NVIDIA A100-SXM4-40GB"
"""
# What `get_topology_desc` takes.
DEVICES: dict[str, dict[str, str]] = {
    "tpu": {"platform": "tpu", "topology_name": "v5e:2x2"},
    "gpu": {
        "platform": "cuda",
        "topology_name": "",
        "target_config": A100,
        "topology": "1x1x1",
    },
}
FEATURES = 136


class Source(NamedTuple):
    """What is compiled: a function, its arguments as shapes and types, and which it may reuse."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    donated: tuple[int, ...] = ()


def start() -> tuple[Answer, dict[str, str]]:
    """Imports the libraries; see ``protocol.serve_answers``."""
    os.environ.update(SETTINGS)
    import jax
    import keras

    # Rax decorates its transformations with `jax.util.wraps`, which newer JAX no longer has. This
    # stands in for it; no arithmetic depends on it.
    if not hasattr(jax, "util"):
        jax.util = types.SimpleNamespace(wraps=lambda function, **_: functools.wraps(function))
    import libtpu
    import rax

    import tfrankloss

    versions = {
        "tfrankloss": tfrankloss.__version__,
        "Keras": keras.__version__,
        "Rax": rax.__version__,
        "JAX": jax.__version__,
        "libtpu": libtpu.__version__,
    }
    return compile_program, versions


def compile_program(request: dict[str, Any]) -> dict[str, Any]:
    """Compiles what is asked for and estimates its cost."""
    import jax
    from jax.sharding import SingleDeviceSharding

    source = PROGRAMS[request["program"]](request["name"], request["batch"], request["width"])
    placed = SingleDeviceSharding(device(request["device"]))
    program = jax.jit(
        source.function,
        in_shardings=placed,
        out_shardings=placed,
        donate_argnums=source.donated,
    )
    begin = time.perf_counter()
    compiled = program.lower(*source.arguments).compile()
    seconds = time.perf_counter() - begin
    text = compiled.as_text()
    if request.get("dump"):
        Path(request["dump"]).write_text(text, encoding="utf-8")
    memory = compiled.memory_analysis()
    jax.clear_caches()
    return {
        **asdict(Program(text).cost(request["device"])),
        "temporary_bytes": memory.temp_size_in_bytes,
        "compile_seconds": seconds,
    }


@functools.cache
def device(name: str) -> Any:
    """A device that programs can be compiled for, not run on."""
    from jax.experimental import topologies

    return topologies.get_topology_desc(**DEVICES[name]).devices[0]


# --- losses


def ours(name: str, batch: int, width: int, scores_type: str = "float32") -> Source:
    """Value and gradient of one of our losses."""
    from keras import ops

    from tfrankloss import losses

    loss = eval(LOSSES[name].ours.expression, {"losses": losses, "ops": ops})
    return _value_and_gradient(loss, name, batch, width, scores_type)


def rax_default(name: str, batch: int, width: int) -> Source:
    """Value and gradient of a loss of Rax with its default reduction and without a mask."""
    loss = _rax(rax_as_it_stands(LOSSES[name]))
    return _value_and_gradient(lambda labels, scores: loss(scores, labels), name, batch, width)


def rax_same_numbers(name: str, batch: int, width: int) -> Source:
    """The same, summed as ours is, and with padding left out."""
    loss = _rax(LOSSES[name].formula("rax").expression)

    def masked(labels: Any, scores: Any) -> Any:
        return loss(scores, labels, where=labels >= 0)

    return _value_and_gradient(masked, name, batch, width)


def plain(name: str, batch: int, width: int) -> Source:
    """Value and gradient of a formula written out in `jax.numpy`."""
    from benchmarks.workers import jax_formulas

    loss = eval(JAX_FORMULAS[name], {**vars(jax_formulas), "partial": partial})
    return _value_and_gradient(loss, name, batch, width)


def _rax(expression: str) -> Callable[..., Any]:
    """A loss of Rax; its noise, if it draws any, has a constant seed, as ours has."""
    import jax
    import rax

    loss = eval(expression, {"jnp": jax.numpy, "partial": partial, "rax": rax})
    return partial(loss, key=jax.random.PRNGKey(0)) if "gumbel" in expression else loss


def _value_and_gradient(
    loss: Callable[..., Any], name: str, batch: int, width: int, scores_type: str = "float32"
) -> Source:
    import jax

    outputs = (LOSSES[name].outputs,) if LOSSES[name].outputs else ()
    labels = jax.ShapeDtypeStruct((batch, width), "float32")
    scores = jax.ShapeDtypeStruct((batch, width, *outputs), scores_type)
    return Source(jax.value_and_grad(loss, argnums=1), (labels, scores))


# --- what stands around a loss


def training_step(name: str, batch: int, width: int) -> Source:
    """Forward, loss, backward and update of the network of the LambdaLoss@K paper with Adam."""
    from keras import ops

    from tfrankloss import losses

    loss = eval(LOSSES[name].ours.expression, {"losses": losses, "ops": ops})
    return _step(loss, batch, width)


def training_step_without_loss(name: str, batch: int, width: int) -> Source:
    """The same with the mean of the scores for a loss."""
    del name
    from keras import ops

    return _step(lambda labels, scores: ops.mean(scores), batch, width)


def _step(loss: Callable[..., Any], batch: int, width: int) -> Source:
    import jax
    import keras

    from tfrankloss import models

    model = models.feedforward(FEATURES)
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)

    def step(weights: Any, others: Any, moments: Any, inputs: Any, labels: Any) -> Any:
        def value_and_others(weights: Any) -> Any:
            scores, updated = model.stateless_call(weights, others, inputs, training=True)
            return loss(labels, scores), updated

        differentiated = jax.value_and_grad(value_and_others, has_aux=True)
        (value, updated), gradient = differentiated(weights)
        return value, *optimizer.stateless_apply(moments, gradient, weights), updated

    inputs = {
        "features": jax.ShapeDtypeStruct((batch, width, FEATURES), "float32"),
        "mask": jax.ShapeDtypeStruct((batch, width), "bool"),
    }
    labels = jax.ShapeDtypeStruct((batch, width), "float32")
    held = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
    # `fit` lets a step write its new weights over the old ones.
    return Source(step, (*map(_types, held), inputs, labels), donated=(0, 1, 2))


def metrics(name: str, batch: int, width: int) -> Source:
    """One update of eight metrics."""
    del name
    import jax

    from tfrankloss.metrics import RankingMetrics

    array = jax.ShapeDtypeStruct((batch, width), "float32")
    together = RankingMetrics(list(NAMES))
    return Source(
        together.stateless_update_state, (_types(together.variables), array, array), donated=(0,)
    )


def _types(variables: Any) -> list[Any]:
    """Shapes and types in the place of Keras variables."""
    import jax

    return [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in variables]


PROGRAMS: dict[str, Callable[[str, int, int], Source]] = {
    "ours": ours,
    "ours_bfloat16": partial(ours, scores_type="bfloat16"),
    "rax": rax_default,
    "rax_same_numbers": rax_same_numbers,
    "plain": plain,
    "training_step": training_step,
    "training_step_without_loss": training_step_without_loss,
    "metrics": metrics,
}


if __name__ == "__main__":
    serve_answers("accelerators", start)
