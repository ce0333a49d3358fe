"""Worker for Rax; a step is always compiled, because JAX has no other way to run fast."""

import itertools
from functools import partial
from typing import Any

from benchmarks.lists import Batch
from benchmarks.workers.protocol import Step, StepMaker, serve


def start() -> tuple[StepMaker, dict[str, str]]:
    """Imports the library; see ``protocol.serve``."""
    import jax
    import jax.numpy as jnp
    import rax

    names = {"jnp": jnp, "partial": partial, "rax": rax}

    def make_step(expression: str, batch: Batch, xla: bool) -> Step:
        del xla
        loss = eval(expression, names)
        labels, scores = jnp.asarray(batch.labels), jnp.asarray(batch.scores)
        padded = bool((batch.labels < 0).any())
        draws_noise = "gumbel" in expression

        @jax.jit
        @jax.value_and_grad
        def value_and_gradient(scores: Any, labels: Any, step_number: int) -> Any:
            arguments = {}
            if padded:
                arguments["where"] = labels >= 0
            if draws_noise:
                arguments["key"] = jax.random.fold_in(jax.random.PRNGKey(0), step_number)
            return loss(scores, labels, **arguments)

        step_numbers = itertools.count()
        return lambda: jax.block_until_ready(value_and_gradient(scores, labels, next(step_numbers)))

    return make_step, {"Rax": rax.__version__, "JAX": jax.__version__}


if __name__ == "__main__":
    serve("rax", start)
