"""What every ranking loss shares: inputs, compilation, reduction, saving."""

import functools
import inspect
import numbers
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from tfrankloss.core import backend, lists, noise, ranks
from tfrankloss.core.backend import Array
from tfrankloss.core.lists import Lists

REDUCTIONS = ("mean", "sum", "none")

register = keras.saving.register_keras_serializable(package="tfrankloss")


def constructor_arguments(cls: type) -> list[str]:
    """Names of the arguments that `cls` and the classes above it take, most general last."""
    return [parameter.name for parameter in _parameters(cls)]


def _parameters(cls: type) -> list[inspect.Parameter]:
    found: dict[str, inspect.Parameter] = {}
    constructors = [parent for parent in cls.__mro__ if "__init__" in vars(parent)]
    first = constructors[0]
    for parent in constructors:
        own = list(inspect.signature(vars(parent)["__init__"]).parameters.values())[1:]
        for parameter in own:
            if parameter.kind is not parameter.VAR_KEYWORD:
                # A class passes what it does not know itself on by name.
                kind = parameter.kind if parent is first else parameter.KEYWORD_ONLY
                found.setdefault(parameter.name, parameter.replace(kind=kind))
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in own):
            break
    positional = [p for p in found.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    return positional + [p for p in found.values() if p.kind is p.KEYWORD_ONLY]


class ClassSignature:
    """The signature of a class that its instances do not have: they are callable, too."""

    def __init__(self, signature: inspect.Signature) -> None:
        self.signature = signature

    def __get__(self, instance: Any, owner: type) -> inspect.Signature:
        if instance is not None:
            raise AttributeError("__signature__")
        return self.signature


class RankingLoss(keras.losses.Loss):
    """Base class of all losses of this package.

    A subclass says what one list costs: either `per_list`, in differentiable `keras.ops`, or
    `value_and_gradient`, where the gradient has a closed form. Masking, types, weights, compilation
    and reduction happen here.

    Called as `loss(y_true, y_pred, sample_weight=None)`:

    - `y_true`: labels `[batch, list]`, dense or `tf.RaggedTensor`; a label below 0 or NaN is
      padding. Or a dictionary `{"labels": ..., "mask": ...}` with a mask that is True for real
      documents.
    - `y_pred`: scores `[batch, list]` or `[batch, list, 1]`, dense or ragged. A Keras mask that a
      model attached to it counts, too.
    - `sample_weight`: `[batch]` or `[batch, 1]`, a weight per list, or `[batch, list]`, a weight
      per document, such as an inverse propensity. In a pair the weight of the preferred document
      counts.

    Args:
        reduction: `"mean"`, over the lists that hold at least one document (with list weights, the
            weighted mean), `"sum"`, or `"none"` for one value per list.
        name: name of the loss.
        dtype: type to compute in. By default float64 for float64 scores, otherwise float32, also
            where the scores are in half precision.

    Options may be changed between calls (a temperature, say), but not inside of a `fit` that is
    already traced. The gradient is a closed form; second derivatives are not available.
    """

    outputs = 1

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        # What `help` and completion show: the arguments of the class and of those above it.
        cls.__signature__ = ClassSignature(inspect.Signature(_parameters(cls)))

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
        self._kernel: Callable[..., Any] | None = None

    def per_list(self, lists: Lists) -> Array:
        """`[batch]`: the loss of each list, in differentiable operations."""
        raise NotImplementedError("A subclass of RankingLoss defines per_list.")

    def value_and_gradient(self, lists: Lists) -> tuple[Array, Array]:
        """The loss `[batch]` of each list and its gradient with respect to the scores."""
        return backend.value_and_gradient(
            lambda scores: self.per_list(lists._replace(scores=scores)), lists.scores
        )

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Array:
        with keras.name_scope(self.name):
            received = lists.receive(y_true, y_pred, sample_weight, self.outputs)
            real = lists.has_documents(received)
            return reduce_lists(self._values(received), real, received.list_weights, self.reduction)

    def call(self, y_true: Any, y_pred: Any) -> Array:
        """One value per list, `[batch]`, without weights."""
        return self._values(lists.receive(y_true, y_pred, None, self.outputs))

    def _values(self, received: lists.Received) -> Array:
        """The loss of each list, differentiable in the scores."""
        if self._kernel is None:
            self._kernel = backend.compiled(self._run)
        kernel, labels, mask = self._kernel, received.labels, received.mask
        weights = received.document_weights
        return backend.with_gradient(
            lambda scores: kernel(labels, scores, mask, weights), received.scores
        )

    def _run(
        self, labels: Array, scores: Array, mask: Array | None, weights: Array | None
    ) -> tuple[Array, Array]:
        batch = lists.clean(lists.Received(labels, scores, mask, weights, None), self.compute_dtype)
        values, gradient = self.value_and_gradient(batch)
        real = ops.any(batch.mask, axis=1)
        document = batch.mask if len(gradient.shape) == 2 else batch.mask[:, :, None]
        return (
            ops.where(real, values, ops.zeros_like(values)),
            ops.where(document, gradient, ops.zeros_like(gradient)),
        )

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name != "_kernel":  # an option may change between steps; its program must follow
            super().__setattr__("_kernel", None)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        config = {}
        for name in constructor_arguments(type(self)):
            value = self.compute_dtype if name == "dtype" else getattr(self, name)
            value = value.item() if isinstance(value, np.generic) else value
            plain = value is None or isinstance(value, (bool, int, float, str))
            config[name] = value if plain else keras.saving.serialize_keras_object(value)
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "RankingLoss":
        """Makes the loss again from `get_config()`."""
        return cls(
            **{
                name: keras.saving.deserialize_keras_object(value)
                if isinstance(value, dict)
                else value
                for name, value in config.items()
            }
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kernel": None}  # a compiled program cannot be copied


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


def reduce_lists(values: Array, real: Array, weights: Array | None, reduction: str) -> Array:
    """Reduces one value per list; lists without documents do not count."""
    count = ops.cast(real, values.dtype)
    if weights is not None:
        count = ops.where(real, ops.cast(weights, values.dtype), ops.zeros_like(values))
        values = values * count
    if reduction == "none":
        return values
    total = ops.sum(values)
    return total if reduction == "sum" else ranks.divide_no_nan(total, ops.sum(count))


def _compute_dtype(dtype: Any) -> str:
    """The type to compute in: float32 or float64, float32 for half precision and its policies."""
    name = keras.backend.standardize_dtype(getattr(dtype, "compute_dtype", dtype))
    if name not in ("float16", "bfloat16", "float32", "float64"):
        raise ValueError(f"dtype must be a floating point type. Received: dtype={dtype!r}")
    return "float64" if name == "float64" else "float32"


def snake_case(name: str) -> str:
    """`PairwiseHingeLoss` becomes `pairwise_hinge_loss`, `NDCGLoss2` becomes `ndcg_loss2`."""
    result = ""
    for previous, character, following in zip(" " + name, name, name[1:] + " ", strict=False):
        starts = character.isupper() and (previous.islower() or following.islower())
        result += ("_" if starts and result else "") + character.lower()
    return result


def check_choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Raises unless `value` is one of the allowed names."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}. Received: {name}={value!r}")


def check_positive(name: str, value: Any) -> None:
    """Raises unless `value` is a finite number above 0."""
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not 0 < value < float("inf"):
        raise ValueError(f"{name} must be a number above 0. Received: {name}={value!r}")


def check_not_negative(name: str, value: Any) -> None:
    """Raises unless `value` is a finite number of at least 0."""
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not 0 <= value < float("inf"):
        raise ValueError(f"{name} must be a number of at least 0. Received: {name}={value!r}")


def check_integer(name: str, value: Any, minimum: int) -> None:
    """Raises unless `value` is an integer of at least `minimum`."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < minimum:
        raise ValueError(
            f"{name} must be an integer of at least {minimum}. Received: {name}={value!r}"
        )


def check_topn(topn: Any) -> None:
    """Raises unless `topn` is None or a positive integer."""
    if topn is not None:
        check_integer("topn", topn, minimum=1)


def check_function(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Raises unless `value` is a callable or one of the allowed names."""
    if not callable(value) and value not in allowed:
        raise ValueError(
            f"{name} must be one of {', '.join(allowed)} or a function. Received: {name}={value!r}"
        )
