"""Layers of ranking models that know which documents are padding."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tfrankloss.core.backend import Array
from tfrankloss.options import check_not_negative, register


@register
class MaskScores(keras.layers.Layer):
    """Scores `[batch, list, outputs]` or `[batch, list]`, with 0 where the mask is False.

    >>> import numpy as np
    >>> scores = MaskScores()(np.array([[2.0, 3.0]]), mask=np.array([[True, False]]))
    >>> [float(score) for score in scores[0]]
    [2.0, 0.0]
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.supports_masking = True

    def call(self, scores: Array, mask: Array) -> Array:
        """The scores of real documents."""
        mask = ops.cast(mask, "bool")
        mask = mask if len(scores.shape) == 2 else mask[:, :, None]
        return ops.where(mask, scores, ops.zeros_like(scores))

    def compute_output_shape(self, scores_shape: Any, *_: Any, **__: Any) -> Any:
        """The shape of the scores."""
        return scores_shape


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
