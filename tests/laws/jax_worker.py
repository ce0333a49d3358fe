"""All cases on JAX, written to a file: `KERAS_BACKEND=jax python -m tests.laws.jax_worker FILE`.

For each case: the values and the gradient of the common batch, called directly and under `jax.jit`,
and whether value and gradient lower for the three platforms.
"""

import sys
import traceback
from typing import Any

PLATFORMS = ("cpu", "cuda", "tpu")


def main(target: str) -> None:
    import jax
    import numpy as np

    from tests.laws import batches
    from tests.laws.cases import CASES, PROGRAMS

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
        for way, function in ways.items():
            try:
                values, gradient = function(*batch)
                results[f"{case.identifier}/{way}/values"] = np.asarray(values)
                results[f"{case.identifier}/{way}/gradient"] = np.asarray(gradient)
            except Exception:
                results[f"{case.identifier}/{way}/error"] = np.array(traceback.format_exc())
        try:
            shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in batch]
            exported = jax.export.export(compiled, platforms=PLATFORMS)(*shapes)
            message = "" if exported.platforms == PLATFORMS else str(exported.platforms)
        except Exception:
            message = traceback.format_exc()
        results[f"{case.identifier}/export"] = np.array(message)
    np.savez(target, **results)


if __name__ == "__main__":
    main(sys.argv[1])
