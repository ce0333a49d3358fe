"""What the benchmarks write they can read again, and what they compare says the same."""

import types
from functools import partial

import numpy as np
import pytest

from benchmarks.lists import Shape, make_batch
from benchmarks.registry import JAX_FORMULAS, LOSSES, rax_as_it_stands
from tfrankloss import losses


@pytest.mark.parametrize("text", ["32x200", "8 × 1000", "ragged", "RAGGED64", "32 × 627 ragged"])
def test_shapes_are_read_as_they_are_printed(text: str) -> None:
    shape = Shape.parse(text)
    assert Shape.parse(str(shape)) == shape
    assert shape.ragged == ("ragged" in text.lower())


def test_rax_as_it_stands_keeps_its_reduction_and_its_weights() -> None:
    names = {
        "partial": lambda name, **given: (name, given),
        "jnp": types.SimpleNamespace(sum="sum"),
    }
    rax = types.SimpleNamespace(
        pairwise_logistic_loss="logistic", labeldiff_lambdaweight="label difference"
    )
    loss = LOSSES["arp_loss2"]
    weight = {"lambdaweight_fn": "label difference"}
    summed = eval(loss.formula("rax").expression, {**names, "rax": rax})
    assert summed == ("logistic", {"reduce_fn": "sum", **weight})
    assert eval(rax_as_it_stands(loss), {**names, "rax": rax}) == ("logistic", weight)


@pytest.mark.parametrize("name", JAX_FORMULAS)
def test_formulas_in_jax_have_our_values(name: str) -> None:
    pytest.importorskip("jax")
    from benchmarks.workers import jax_formulas

    batch = make_batch(Shape(3, 12), seed=0)
    formula = eval(JAX_FORMULAS[name], {**vars(jax_formulas), "partial": partial})
    ours = eval(LOSSES[name].ours.expression, {"losses": losses})
    expected = float(ours(batch.labels, batch.scores))
    assert float(formula(*map(np.asarray, batch))) == pytest.approx(expected, rel=1e-5)
