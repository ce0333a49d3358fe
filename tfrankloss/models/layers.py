"""Layers of ranking models that know which documents are padding."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tfrankloss.core import backend
from tfrankloss.core.backend import Array
from tfrankloss.options import check_not_negative, register


@register
class RealDocuments(keras.layers.Layer):
    """Documents `[batch, list, F]` as rows `[rows, F]`, and `[rows]`, which of them are real.

    Layers that look at one document at a time then compute nothing for padding: there is a row for
    each real document. Where sizes must be known, on JAX and where XLA compiles the whole step,
    there is one for each place of a list, and the mask says which count; `DocumentBatchNorm` minds
    it. `ListScores` puts what comes out back into lists.

    >>> import numpy as np
    >>> documents, mask = np.array([[[2.0], [3.0]]]), np.array([[True, False]])
    >>> rows, real = RealDocuments()(documents, mask)
    >>> scores = ListScores()(rows, mask)
    >>> np.array(scores).tolist()
    [[[2.0], [0.0]]]
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.supports_masking = True

    def call(self, documents: Array, mask: Array) -> tuple[Array, Array]:
        """The rows, and which of them are real."""
        mask = ops.cast(mask, "bool")
        if not backend.shapes_must_be_static():
            taken = _with_a_document(mask)
            return backend.pack(documents, taken), backend.pack(mask, taken)
        return ops.reshape(documents, (-1, documents.shape[-1])), ops.reshape(mask, (-1,))

    def compute_mask(self, inputs: Any, previous_mask: Any) -> None:
        """None: a mask of the input has another shape than the output."""

    def compute_output_spec(self, documents: Array, mask: Array) -> Any:
        """The shapes and types of both."""
        rows = keras.KerasTensor((None, documents.shape[-1]), self.compute_dtype)
        return rows, keras.KerasTensor((None,), "bool")


@register
class ListScores(keras.layers.Layer):
    """What a network says of the rows of `RealDocuments`, `[rows, ...]`, as `[batch, list, ...]`.

    Padding gets 0.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.supports_masking = True

    def call(self, rows: Array, mask: Array) -> Array:
        """The rows in their lists."""
        mask = ops.cast(mask, "bool")
        if not backend.shapes_must_be_static():
            lists = backend.unpack(rows, _with_a_document(mask))
        else:
            lists = ops.reshape(rows, (*ops.shape(mask), *rows.shape[1:]))
        real = ops.reshape(mask, (*ops.shape(mask), *(1 for _ in rows.shape[1:])))
        return ops.where(real, lists, ops.zeros_like(lists))

    def compute_mask(self, inputs: Any, previous_mask: Any) -> None:
        """None: a mask of the input has another shape than the output."""

    def compute_output_spec(self, rows: Array, mask: Array) -> Any:
        """The shape and type of the lists."""
        return keras.KerasTensor((*mask.shape, *rows.shape[1:]), self.compute_dtype)


def _with_a_document(mask: Array) -> Array:
    """The mask, with the first place of a batch that has no document at all.

    Batch normalisation has no statistics of no rows.
    """
    first = ops.reshape(ops.arange(ops.size(mask)) == 0, ops.shape(mask))
    return ops.logical_or(mask, ops.logical_and(first, ops.logical_not(ops.any(mask))))


@register
class DocumentBatchNorm(keras.layers.BatchNormalization):
    """Batch normalisation of the rows of `RealDocuments`; the mask counts where there is padding.

    Statistics of real documents alone need no mask, which would take a third of the layer's time.
    They are those of the whole batch, also where replicas of `tf.distribute` share it, or devices
    of JAX.
    """

    def call(self, inputs: Array, training: bool | None = None, mask: Array | None = None) -> Array:
        """The normalised rows."""
        # A replica may have no document at all, and a row that is none.
        masked = backend.shapes_must_be_static() or backend.replicas() > 1
        return super().call(inputs, training=training, mask=mask if masked else None)

    def _moments(self, inputs: Array, mask: Array | None) -> tuple[Array, Array]:
        if mask is None or backend.replicas() == 1:
            return super()._moments(inputs, mask)
        real = ops.cast(mask, inputs.dtype)[:, None]
        sums = ops.concatenate([ops.sum(inputs * real, axis=0), ops.sum(real, axis=0)])
        sums = backend.sum_over_replicas(sums)
        count = ops.maximum(sums[-1], 1.0)
        mean = sums[:-1] / count
        squares = ops.sum(ops.square((inputs - mean) * real), axis=0)
        return mean, backend.sum_over_replicas(squares) / count


@register
class FeatureNoise(keras.layers.GaussianNoise):
    """Gaussian noise on the features while a model trains, as data augmentation (Qin et al. 2021).

    Args:
        deviation: the standard deviation of the noise; 0 for none.
    """

    def __init__(self, deviation: float = 0.0, **arguments: Any) -> None:
        check_not_negative("deviation", deviation)
        super().__init__(deviation, **arguments)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        config = super().get_config()
        config["deviation"] = config.pop("stddev")
        return config


@register
class FeatureTowers(keras.layers.Layer):
    """A network of its own for each feature: features `[..., F]` to sub-scores `[..., F]`.

    All of them run as one product per layer.

    Args:
        hidden: units of the hidden layers of each feature.
        activation: of the hidden layers.
    """

    def __init__(
        self, hidden: Sequence[int] = (16, 8), activation: str = "relu", **arguments: Any
    ) -> None:
        super().__init__(**arguments)
        self.supports_masking = True
        self.hidden = tuple(hidden)
        self.activation = activation

    def build(self, input_shape: Any) -> None:
        """Makes the weights."""
        features = input_shape[-1]
        sizes = [1, *self.hidden, 1]
        self._layers_of_weights = []
        for number, (before, after) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
            kernel = self.add_weight(
                shape=(features, before, after),
                # Each feature is a network of its own: what counts is the size of one of them.
                initializer=keras.initializers.RandomNormal(stddev=(2.0 / before) ** 0.5),
                name=f"kernel_{number}",
            )
            bias = self.add_weight(
                shape=(features, after), initializer="zeros", name=f"bias_{number}"
            )
            self._layers_of_weights.append((kernel, bias))

    def call(self, features: Array) -> Array:
        """The sub-score of each feature."""
        x = features[..., None]
        activate = keras.activations.get(self.activation)
        for number, (kernel, bias) in enumerate(self._layers_of_weights):
            x = ops.einsum("...fi,fio->...fo", x, kernel) + bias
            if number < len(self.hidden):
                x = activate(x)
        return x[..., 0]

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shape of the features."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return super().get_config() | {"hidden": self.hidden, "activation": self.activation}


@register
class ListAttention(keras.layers.Layer):
    """Self-attention among the documents of a list `[batch, list, units]`, none to padding.

    Multi-head attention, then the residual and layer normalisation.

    Args:
        heads: number of heads.
        units: size of a head.
        dropout: rate of dropout on the attention.
    """

    def __init__(
        self, heads: int = 4, units: int = 32, dropout: float = 0.0, **arguments: Any
    ) -> None:
        super().__init__(**arguments)
        self.supports_masking = True
        self.heads, self.units, self.dropout = heads, units, dropout
        self._attention = keras.layers.MultiHeadAttention(heads, units, dropout=dropout)
        self._normalize = keras.layers.LayerNormalization()

    def build(self, input_shape: Any, *_: Any, **__: Any) -> None:
        """Makes the weights."""
        self._attention.build(input_shape, input_shape)
        self._normalize.build(input_shape)

    def call(self, documents: Array, mask: Array, training: bool = False) -> Array:
        """The documents, each with what the others of its list say."""
        mask = ops.cast(mask, "bool")
        attended = self._attention(
            documents, documents, attention_mask=mask[:, None, :], training=training
        )
        # Without any real document all weights are equal: what comes out must not be used.
        return self._normalize(documents + attended)

    def compute_output_shape(self, input_shape: Any, *_: Any, **__: Any) -> Any:
        """The shape of the input."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        arguments = {"heads": self.heads, "units": self.units, "dropout": self.dropout}
        return super().get_config() | arguments
