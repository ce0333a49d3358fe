"""All cases on JAX, written to a file: `KERAS_BACKEND=jax python -m tests.laws.jax_worker FILE`.

For each case: the values and the gradient of the common batch, called directly and under `jax.jit`,
by the plan of this device and by that of accelerators, and whether value and gradient lower for the
three platforms.
"""

import sys
import traceback
from typing import Any

PLATFORMS = ("cpu", "cuda", "tpu")


def main(target: str) -> None:
    import jax
    import numpy as np

    from tests.laws import batches
    from tests.laws.cases import CASES, PROGRAMS, metric_under_all_rules
    from tfrankloss import config
    from tfrankloss.metrics import METRICS

    results: dict[str, Any] = {}
    for case in CASES:
        loss = case.build()

        def program(labels: Any, scores: Any, weights: Any, loss: Any = loss) -> Any:
            def total(scores: Any) -> Any:
                values = loss(labels, scores, weights)
                return values.sum(), values

            gradient, values = jax.grad(total, has_aux=True)(scores)
            return values, gradient

        batch = batches.common(loss.outputs)
        compiled = jax.jit(program)
        ways = {"jit": compiled}
        if case in PROGRAMS:  # compiles its kernel by itself, once more
            ways["direct"] = program
        # Another function, because JAX keeps the program of one that it knows.
        ways["accelerator"] = jax.jit(lambda *arguments, program=program: program(*arguments))
        for way, function in ways.items():
            plan = "accelerator" if way == "accelerator" else "auto"
            try:
                with config.using_plan(plan):
                    values, gradient = function(*batch)
                results[f"{case.identifier}/{way}/values"] = np.asarray(values)
                results[f"{case.identifier}/{way}/gradient"] = np.asarray(gradient)
            except Exception:
                results[f"{case.identifier}/{way}/error"] = np.array(traceback.format_exc())
        results[f"{case.identifier}/export"] = np.array(lowering_error(compiled, batch))
    for name in METRICS:
        metric, batch = metric_under_all_rules(name), batches.of_metric(name)
        compiled = jax.jit(lambda *arguments, metric=metric: metric.per_list(*arguments)[0])
        try:
            results[f"{name}/values"] = np.asarray(compiled(*batch))
        except Exception:
            results[f"{name}/error"] = np.array(traceback.format_exc())
        results[f"{name}/export"] = np.array(lowering_error(compiled, batch))
    np.savez(target, **results)


def lowering_error(compiled: Any, batch: Any) -> str:
    """Why a program does not lower for all platforms; nothing if it does."""
    import jax

    try:
        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in batch]
        exported = jax.export.export(compiled, platforms=PLATFORMS)(*shapes)
    except Exception:
        return traceback.format_exc()
    return "" if exported.platforms == PLATFORMS else str(exported.platforms)


if __name__ == "__main__":
    main(sys.argv[1])
