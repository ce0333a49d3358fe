"""The one door: `y_true`, `y_pred` and `sample_weight` come in, clean lists go out.

`receive` looks at shapes only and runs outside of the compiled kernel; `clean` runs inside of it.
Padding is decided here and nowhere else. Behind the door a padded document has score 0, label 0 and
weight 0, so that no NaN or infinity of the input reaches any formula.
"""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras
from keras import ops

from tfrankloss.core import backend
from tfrankloss.core.backend import Array


class Received(NamedTuple):
    """Inputs of known rank, not yet cleaned."""

    labels: Array  # [batch, list], or [batch, list, subtopics]
    scores: Array  # [batch, list] or [batch, list, outputs]
    mask: Array | None  # [batch, list], True for real documents
    document_weights: Array | None  # [batch, list]
    list_weights: Array | None  # [batch]


class Lists(NamedTuple):
    """Clean lists: every entry is finite if the real documents' are, padding holds zeros."""

    scores: Array  # [batch, list] or [batch, list, outputs]
    labels: Array  # [batch, list], or [batch, list, subtopics]
    mask: Array  # [batch, list]
    weights: Array  # [batch, list]
    weighted: bool = True  # False where every document has the weight 1

    def map(self, function: Callable[[Array], Array]) -> "Lists":
        """The lists with a function applied to every array."""
        arrays = {name: function(getattr(self, name)) for name in LIST_ARRAYS}
        return self._replace(**arrays)

    def repeat(self, times: int) -> "Lists":
        """All lists, `times` times over."""
        return self.map(lambda x: repeat_lists(x, times))


LIST_ARRAYS = ("scores", "labels", "mask", "weights")


class Derivatives(NamedTuple):
    """The value of each list, and its derivatives by the score of each document.

    Inside of the engine the values may still be terms, of which documents and lists are summed in
    one reduction.
    """

    values: Array  # [batch], or terms [batch, list] in any order
    gradient: Array  # [batch, list]
    curvature: Array | None = None  # [batch, list], the second derivatives, where asked for

    def times(self, factor: Array) -> "Derivatives":
        """All of them multiplied by a number per list, `[batch]`."""

        def product(x: Array | None) -> Array | None:
            return None if x is None else (factor if len(x.shape) == 1 else factor[:, None]) * x

        return Derivatives(*map(product, self))

    def summed(self) -> "Derivatives":
        """With one value per list."""
        if len(self.values.shape) == 1:
            return self
        return self._replace(values=ops.sum(self.values, axis=1))


def receive(
    y_true: Any,
    y_pred: Any,
    sample_weight: Any = None,
    outputs: int = 1,
    labels_rank: int = 2,
    compared: bool = True,
) -> Received:
    """Brings the arguments of a Keras loss or metric into one form, or says why it cannot.

    Args:
        y_true: labels `[batch, list]` (or `[batch, list, 1]`), dense or ragged, or a dictionary
            `{"labels": ..., "mask": ...}`. A label below 0 or NaN marks padding.
        y_pred: scores `[batch, list]` or `[batch, list, 1]`, dense or ragged;
            `[batch, list, outputs]` where the model gives several numbers per document. A Keras
            mask that is attached to it marks padding, too.
        sample_weight: `[batch]` or `[batch, 1]`, a weight per list, or `[batch, list]`, a weight
            per document. The rank decides: `[batch]` is never spread along a list.
        outputs: numbers per document in `y_pred`.
        labels_rank: 3 for labels `[batch, list, subtopics]`; then a document is padding if all of
            its labels are below 0 or NaN.
        compared: whether the documents of a list are compared with each other: then a list of one
            is a likely mistake, of which a warning tells.
    """
    masks = [backend.keras_mask(y_pred)]
    if isinstance(y_true, Mapping):
        y_true = dict(y_true)
        labels, mask = y_true.pop("labels", None), y_true.pop("mask", None)
        if labels is None or y_true:
            raise ValueError(
                "y_true as a dictionary must have the key 'labels' and may have 'mask'. "
                f"Received keys: {sorted([*y_true, *([] if labels is None else ['labels'])])}"
            )
        y_true = labels
        masks.append(mask)

    if backend.is_ragged(y_true) and backend.is_ragged(y_pred):
        y_true = backend.same_row_lengths(y_true, y_pred)
    y_true, masks = _dense(y_true, masks, fill=-1)
    y_pred, masks = _dense(y_pred, masks, fill=0)
    labels = _labels(ops.convert_to_tensor(y_true), labels_rank)
    scores = ops.convert_to_tensor(y_pred)
    _check_rank_is_known("y_pred", scores)
    if outputs == 1:
        scores = _squeeze("y_pred", scores, rank=2)
    elif len(scores.shape) != 3 or scores.shape[2] not in (outputs, None):
        raise ValueError(
            f"y_pred must have the shape [batch, list, {outputs}], one number per grade. "
            f"Received: shape {tuple(scores.shape)}"
        )
    if not keras.backend.is_float_dtype(scores.dtype):
        scores = ops.cast(scores, keras.backend.floatx())
    _check_same_lists("y_pred", scores, labels)
    if compared:
        _warn_of_single_documents(labels)

    mask = None
    for part in masks:
        if part is not None:
            part = _squeeze("mask", ops.cast(part, "bool"), rank=2)
            _check_same_lists("mask", part, labels)
            mask = part if mask is None else ops.logical_and(mask, part)

    document_weights = list_weights = None
    if sample_weight is not None:
        document_weights, list_weights = _weights(sample_weight, labels)
    return _pad(Received(labels, scores, mask, document_weights, list_weights))


def _warn_of_single_documents(labels: Array) -> None:
    """Warns where the shape says that every list holds one document, a likely mistake."""
    if labels.shape[1] == 1 and labels.shape[0] != 1:
        warnings.warn(
            "Every list holds one document: there is no order to learn or to measure. "
            f"Received: y_true of shape {tuple(labels.shape)}. If a row of your data is a "
            "document, group the rows of a query into a list, [batch, list, features], as "
            "tfrankloss.data.RankingData does.",
            stacklevel=4,
        )


def clean(received: Received, dtype: str | None = None, filtered: bool = True) -> Lists:
    """Separates documents from padding and casts everything to the type to compute in.

    Half precision computes in float32, float64 in float64, unless `dtype` says otherwise. Without
    `filtered`, a document whose score is -inf is padding, too.
    """
    dtype = dtype or compute_dtype(received.scores)
    labels = ops.cast(received.labels, dtype)
    labeled = labels >= 0  # False for NaN
    mask = labeled if len(labels.shape) == 2 else ops.any(labeled, axis=2)
    if received.mask is not None:
        mask = ops.logical_and(mask, received.mask)
    if not filtered and len(received.scores.shape) == 2:
        mask = ops.logical_and(mask, received.scores != -float("inf"))
    known = mask if len(labels.shape) == 2 else ops.logical_and(labeled, mask[:, :, None])
    labels = ops.where(known, labels, ops.zeros_like(labels))
    scores = ops.cast(received.scores, dtype)
    score_mask = mask if len(scores.shape) == 2 else ops.expand_dims(mask, -1)
    scores = ops.where(score_mask, scores, ops.zeros_like(scores))
    weights = ops.cast(mask, dtype)
    if received.document_weights is not None:
        given = ops.cast(received.document_weights, dtype)
        weights = ops.where(mask, given, ops.zeros_like(given))
    return Lists(scores, labels, mask, weights, received.document_weights is not None)


def compute_dtype(scores: Array) -> str:
    """float64 for float64 scores, float32 for everything else."""
    return "float64" if keras.backend.standardize_dtype(scores.dtype) == "float64" else "float32"


def positions(x: Array) -> Array:
    """`[batch, list]` int32: 0, 1, 2, ... for each list."""
    return ops.zeros_like(x, dtype="int32") + ops.arange(ops.shape(x)[1], dtype="int32")


def grades(labels: Array, mask: Array) -> Array:
    """The labels, with NaN in padding: it compares as neither higher nor lower than any label."""
    return ops.where(mask, labels, ops.full_like(labels, float("nan")))


def score_range(scores: Array, mask: Array) -> tuple[Array, Array]:
    """The middle of the scores of each list, `[batch, 1]`, and the widest range of all lists."""
    infinity = ops.full_like(scores, float("inf"))
    low = ops.min(ops.where(mask, scores, infinity), axis=1, keepdims=True, initial=float("inf"))
    high = ops.max(ops.where(mask, scores, -infinity), axis=1, keepdims=True, initial=-float("inf"))
    some = low <= high
    low, high = ops.where(some, low, 0.0), ops.where(some, high, 0.0)
    return low + 0.5 * (high - low), ops.max(high - low, initial=0.0)


def repeat_lists(x: Array, times: int) -> Array:
    """`[times * batch, ...]`: the whole batch again and again.

    (Each list several times in a row would be `ops.repeat`, but XLA for CPU does not come to an end
    with a program that fuses it with exponentials.)
    """
    return x if times == 1 else ops.tile(x, (times,) + (1,) * (len(x.shape) - 1))


def mean_over_repeats(x: Array, times: int) -> Array:
    """The mean of each list's results `[times * batch, ...]` over its repetitions."""
    if times == 1:
        return x
    return ops.mean(ops.reshape(x, (times, -1, *ops.shape(x)[1:])), axis=0)


def _dense(x: Any, masks: list[Any], fill: float) -> tuple[Any, list[Any]]:
    if not backend.is_ragged(x):
        return x, masks
    dense, mask = backend.ragged_to_dense(x, fill)
    return dense, [*masks, mask]


def _labels(labels: Array, rank: int) -> Array:
    if rank == 2:
        return _squeeze("y_true", labels, rank=2)
    _check_rank_is_known("y_true", labels)
    if len(labels.shape) != 3 or labels.shape[2] is None:
        raise ValueError(
            "y_true must have the shape [batch, list, subtopics] with a known number of subtopics. "
            f"Received: shape {tuple(labels.shape)}"
        )
    return labels


def _squeeze(name: str, x: Array, rank: int) -> Array:
    _check_rank_is_known(name, x)
    if len(x.shape) == rank + 1 and x.shape[-1] == 1:
        return ops.squeeze(x, -1)
    if len(x.shape) != rank:
        raise ValueError(
            f"{name} must have the shape [batch, list] or [batch, list, 1]. "
            f"Received: shape {tuple(x.shape)}"
        )
    return x


def _check_rank_is_known(name: str, x: Array) -> None:
    """A TensorFlow program may be traced with a tensor of unknown rank, which has no meaning here.

    `model.fit` does so when it gets sample weights of one rank first and of another rank later.
    """
    if getattr(x.shape, "rank", 0) is None:
        raise ValueError(
            f"The rank of {name} must be known when the program is traced. Received: shape "
            "<unknown>. Set the shape in the dataset; to change the rank of the weights, compile "
            "the model again."
        )


def _check_same_lists(name: str, x: Array, labels: Array) -> None:
    for given, expected in zip(x.shape[:2], labels.shape[:2], strict=True):
        if given is not None and expected is not None and given != expected:
            raise ValueError(
                f"{name} and y_true must agree in [batch, list]. "
                f"Received: {name} of shape {tuple(x.shape)}, y_true of shape {tuple(labels.shape)}"
            )


def _weights(sample_weight: Any, labels: Array) -> tuple[Array | None, Array | None]:
    """Splits `sample_weight` into weights of documents and weights of lists."""
    if backend.is_ragged(sample_weight):
        sample_weight, _ = backend.ragged_to_dense(sample_weight, 0)
    weight = ops.convert_to_tensor(sample_weight)
    _check_rank_is_known("sample_weight", weight)
    if len(weight.shape) == 3:
        weight = _squeeze("sample_weight", weight, rank=2)
    rank, batch, size = len(weight.shape), labels.shape[0], labels.shape[1]
    agrees = rank in (1, 2) and (weight.shape[0] is None or batch in (weight.shape[0], None))
    if agrees and rank == 1:
        return None, weight
    if agrees and weight.shape[1] == 1:
        return None, ops.squeeze(weight, -1)
    if agrees and weight.shape[1] is None:
        return _weights_of_unknown_size(weight, labels)
    if agrees and size in (weight.shape[1], None):
        return weight, None
    raise ValueError(
        "sample_weight must have the shape [batch] or [batch, 1] (a weight per list) or "
        f"[batch, list] (a weight per document), here batch={batch} and list={size}. "
        f"Received: shape {tuple(weight.shape)}"
    )


def _weights_of_unknown_size(weight: Array, labels: Array) -> tuple[Array, Array]:
    """Decides when the program runs whether `[batch, ?]` is a weight per list or per document."""
    per_list = ops.shape(weight)[1] == 1
    documents = weight + ops.zeros(ops.shape(labels)[:2], dtype=weight.dtype)
    return (
        ops.where(per_list, ops.ones_like(documents), documents),
        ops.where(per_list, weight[:, 0], ops.ones_like(weight[:, 0])),
    )


def _pad(received: Received) -> Received:
    size = backend.padded_list_size(received.labels)
    if size is None:
        return received
    labels = received.labels
    if not keras.backend.is_float_dtype(labels.dtype):
        labels = ops.cast(labels, "float32")  # unsigned and boolean labels have no -1

    def pad(name: str, x: Array | None, fill: Any) -> Array | None:
        if x is None:
            return None
        return backend.pad_lists(backend.same_lists(name, x, labels), size, fill)

    return Received(
        backend.pad_lists(labels, size, -1),
        pad("y_pred", received.scores, 0),
        pad("the mask", received.mask, False),
        pad("sample_weight", received.document_weights, 0),
        received.list_weights,
    )
