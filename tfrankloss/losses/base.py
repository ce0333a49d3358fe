"""What every ranking loss shares: inputs, compilation, reduction, saving."""

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from tfrankloss.core import backend, lists, noise, ranks
from tfrankloss.core.backend import Array
from tfrankloss.core.lists import Derivatives, Lists
from tfrankloss.options import (
    ShowsArguments,
    arguments_from,
    check_choice,
    check_integer,
    configuration,
    snake_case,
)

REDUCTIONS = ("mean", "sum", "none")


class RankingLoss(ShowsArguments, keras.losses.Loss):
    """Base class of all losses of this package.

    A subclass says what one list costs: either `per_list`, in differentiable `keras.ops`, or
    `value_and_gradient`, where the gradient has a closed form. Masking, types, weights, compilation
    and reduction happen here.

    Called as `loss(y_true, y_pred, sample_weight=None)`:

    - `y_true`: labels `[batch, list]`, dense or `tf.RaggedTensor`; a label below 0 or NaN is
      padding. Or a dictionary `{"labels": ..., "mask": ...}` with a mask that is True for real
      documents.
    - `y_pred`: scores `[batch, list]` or `[batch, list, 1]`, dense or ragged. A Keras mask that a
      model attached to it counts, too. A document with the score -inf was filtered out: the loss is
      that of the others, and it gets no gradient (metrics rank it last).
    - `sample_weight`: `[batch]` or `[batch, 1]`, a weight per list, or `[batch, list]`, a weight
      per document, such as an inverse propensity. In a pair the weight of the preferred document
      counts.

    Args:
        reduction: `"mean"`, over the lists that hold at least one document (with list weights, the
            weighted mean), `"sum"`, or `"none"` for one value per list. Under a strategy of
            `tf.distribute`, mean and sum are those of all replicas' lists.
        name: name of the loss.
        dtype: type to compute in. By default float64 for float64 scores, otherwise float32, also
            where the scores are in half precision.

    Options may be changed between calls (a temperature, say), but not inside of a `fit` that is
    already traced. The gradient is a closed form; second derivatives are not available.
    """

    outputs = 1
    # Whether the documents of a list are compared with each other.
    compares = True
    # Whether there is a closed form of the diagonal curvature, and whether that is above 0.
    curved = False
    strictly_convex = True

    def __init__(
        self, *, reduction: str | None = "mean", name: str | None = None, dtype: Any = None
    ) -> None:
        reduction = "none" if reduction is None else reduction
        check_choice("reduction", reduction, REDUCTIONS)
        super().__init__(
            name=name or snake_case(type(self).__name__),
            # Keras would not take our "mean": it counts empty lists. It is never asked to reduce.
            reduction="none" if reduction == "none" else "sum",
        )
        self.reduction = reduction
        self.compute_dtype = None if dtype is None else _compute_dtype(dtype)
        self._kernels: dict[str, Callable[..., Any]] = {}

    def per_list(self, lists: Lists) -> Array:
        """`[batch]`: the loss of each list, in differentiable operations."""
        raise NotImplementedError("A subclass of RankingLoss defines per_list.")

    def value_and_gradient(self, lists: Lists) -> tuple[Array, Array]:
        """The loss `[batch]` of each list and its gradient with respect to the scores.

        Or the terms of the loss, `[batch, list]` in any order and 0 in padding: they are summed
        over documents and lists in one reduction.
        """
        return backend.value_and_gradient(
            lambda scores: self.per_list(lists._replace(scores=scores)), lists.scores
        )

    def curvature(self, lists: Lists) -> Array:
        """`[batch, list]`: the second derivative of a list's loss by each document's own score."""
        raise NotImplementedError(f"{type(self).__name__} has no closed form of its curvature.")

    def derivatives(self, lists: Lists, curvature: bool = False) -> Derivatives:
        """Values `[batch]`, gradient `[batch, list]` and, where asked for, diagonal curvature."""
        values, gradient = self.value_and_gradient(lists)
        bend = self.curvature(lists) if curvature else None
        return Derivatives(values, gradient, bend).summed()

    def ranking_scores(self, y_pred: Array) -> Array:
        """What to sort documents by, `[...]`, from what the model gives them, `[..., outputs]`.

        For all losses whose models give one number per document, that number.
        """
        return y_pred

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Array:
        with keras.name_scope(self.name):
            received = lists.receive(
                y_true, y_pred, sample_weight, self.outputs, compared=self.compares
            )
            return self._reduced(received, self.reduction)

    def call(self, y_true: Any, y_pred: Any) -> Array:
        """One value per list, `[batch]`, without weights."""
        received = lists.receive(y_true, y_pred, None, self.outputs, compared=self.compares)
        return self._reduced(received, "none")

    def _reduced(self, received: lists.Received, reduction: str) -> Array:
        """The loss, differentiable in the scores."""
        replicas = 1 if reduction == "none" else backend.replicas()
        kind = reduction if replicas == 1 else "parts"
        if kind not in self._kernels:
            self._kernels[kind] = backend.compiled(functools.partial(self._run, kind))
        kernel = self._kernels[kind]

        def value_and_gradient(scores: Array) -> tuple[Array, Array]:
            value, gradient = kernel(*received._replace(scores=scores))
            if replicas > 1:
                return _over_replicas(value, gradient, reduction, replicas)
            return value, gradient

        return backend.with_gradient(value_and_gradient, received.scores)

    def _run(self, reduction: str, *received: Array | None) -> tuple[Array, Array]:
        """The kernel: the reduced loss and its gradient (of each list's own value for "none").

        For "parts", `[2]`: the sum of the lists and their weight, of which a mean is made.

        All of the work is in here, because an operation outside of it takes as long as the whole
        loss of a small batch.
        """
        arguments = lists.Received(*received)
        batch = lists.clean(arguments, self.compute_dtype, filtered=False)
        values, gradient = self.value_and_gradient(batch)
        # (A sum, because XLA for TPU fuses it with others, and does not fuse a logical reduction.)
        real = ops.sum(ops.cast(batch.mask, batch.scores.dtype), axis=1) > 0
        document = batch.mask if len(gradient.shape) == 2 else batch.mask[:, :, None]
        if reduction == "none" and len(values.shape) == 2:
            values = ops.sum(values, axis=1)
        counts = ops.reshape(real, (-1,) + (1,) * (len(values.shape) - 1))
        values = ops.where(counts, values, ops.zeros_like(values))
        gradient = ops.where(document, gradient, ops.zeros_like(gradient))
        factors = list_factors(real, arguments.list_weights, values.dtype)
        total = ops.sum(factors)
        if reduction == "mean":
            factors = ranks.divide_no_nan(factors, total)
        values = values * ops.reshape(factors, (-1,) + (1,) * (len(values.shape) - 1))
        gradient = gradient * ops.reshape(factors, (-1,) + (1,) * (len(gradient.shape) - 1))
        if reduction == "none":
            return values, gradient
        value = ops.sum(values)
        return (ops.stack([value, total]) if reduction == "parts" else value), gradient

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name != "_kernels":  # an option may change between steps; its program must follow
            super().__setattr__("_kernels", {})

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return configuration(self, dtype=self.compute_dtype)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "RankingLoss":
        """Makes the loss again from `get_config()`."""
        return cls(**arguments_from(config))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kernels": {}}  # a compiled program cannot be copied


class SampledLoss(RankingLoss):
    """A loss with noise that is drawn afresh at every step, reproducible from `seed`."""

    def __init__(self, *, seed: int | None = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        if seed is not None:
            check_integer("seed", seed, minimum=0)
        self.seed = seed

    @functools.cached_property
    def _drawn_seed(self) -> int:
        """`seed`, or one from Python's generator, drawn when the first noise is."""
        return noise.pick_seed(self.seed)


def list_factors(real: Array, weights: Array | None, dtype: str) -> Array:
    """`[batch]`: the weight of each list; 0 for lists without documents."""
    factors = ops.cast(real, dtype)
    if weights is not None:
        factors = ops.where(real, ops.cast(weights, dtype), ops.zeros_like(factors))
    return factors


def _over_replicas(
    parts: Array, gradient: Array, reduction: str, replicas: int
) -> tuple[Array, Array]:
    """The loss of the lists of all replicas, from the `parts` of this one.

    The optimizer adds up the gradients of the replicas, so that each has the gradient of its own
    lists. Values are the share of one replica: Keras shows them times the number of replicas.
    """
    total, weight = ops.unstack(backend.sum_over_replicas(parts))
    if reduction == "mean":
        factor = ranks.divide_no_nan(ops.ones_like(weight), weight)
        total, gradient = total * factor, gradient * factor
    return total / replicas, gradient


def _compute_dtype(dtype: Any) -> str:
    """The type to compute in: float32 or float64, float32 for half precision and its policies."""
    name = keras.backend.standardize_dtype(getattr(dtype, "compute_dtype", dtype))
    if name not in ("float16", "bfloat16", "float32", "float64"):
        raise ValueError(f"dtype must be a floating point type. Received: dtype={dtype!r}")
    return "float64" if name == "float64" else "float32"
