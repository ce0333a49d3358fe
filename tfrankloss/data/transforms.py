"""Transforms of features as Keras layers, so that a saved model holds what was fitted.

They take features `[..., features]` of lists or of documents, as tensors or arrays:
`data.map_features(Log1p())` changes data, `Log1p()(inputs)` is part of a model.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops

from tfrankloss.options import register

if TYPE_CHECKING:
    from tfrankloss.core.backend import Array
    from tfrankloss.data.ranking_data import RankingData
    from tfrankloss.data.records import Records


class Transform(keras.layers.Layer):
    """A layer that computes in float32 whatever the policy: raw features do not fit half types."""

    per_query = False  # whether the documents of a query must come together

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**{"dtype": "float32", "autocast": False, **arguments})
        self.supports_masking = True

    def compute_output_shape(self, input_shape: Any, *_: Any, **__: Any) -> Any:
        """The shape of the input."""
        return input_shape


@register
class Log1p(Transform):
    """`sign(x) log(1 + |x|)`, as the papers' networks take their features.

    >>> [round(float(x), 4) for x in Log1p()(np.array([-1.0, 0.0, 1.0]))]
    [-0.6931, 0.0, 0.6931]
    """

    def call(self, features: "Array") -> "Array":
        """The transformed features."""
        features = ops.cast(features, "float32")
        return ops.sign(features) * ops.log1p(ops.abs(features))


@register
class Standardize(Transform):
    """`(x - mean) / deviation` of each feature; 0 for features that are constant.

    Made by `Standardize.fit(data)`.

    Args:
        mean: `[features]`.
        deviation: `[features]`, 0 for a constant feature.

    >>> from tfrankloss.data import RankingData
    >>> data = RankingData.from_arrays([[1.0, 5.0], [3.0, 5.0]], [0, 1], [7, 7])
    >>> data.map_features(Standardize.fit(data)).features.tolist()
    [[-1.0, 0.0], [1.0, 0.0]]
    """

    def __init__(self, mean: Sequence[float], deviation: Sequence[float], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._mean, self._deviation = np.asarray(mean, float), np.asarray(deviation, float)
        if self._mean.ndim != 1 or self._mean.shape != self._deviation.shape:
            raise ValueError(
                "mean and deviation must have the shape [features]. "
                f"Received: {self._mean.shape} and {self._deviation.shape}"
            )

    @classmethod
    def fit(cls, data: "RankingData | Records", transform: Any = None) -> "Standardize":
        """Takes mean and deviation from data.

        Args:
            data: the training data; of `Records` nothing is read, their statistics tell.
            transform: what is done to the features before, such as `Log1p()`; of `Records` only
                that is known.
        """
        from tfrankloss.data.records import Records

        if isinstance(data, Records):
            return cls._of_statistics(data, transform)
        count = data.num_documents
        if not count:
            raise ValueError("There are no documents to take a mean of. Received: empty data")

        def parts() -> Iterator[np.ndarray]:
            for rows in data.chunks(per_query=getattr(transform, "per_query", False)):
                part = data.features[rows]
                yield np.asarray(part if transform is None else transform(part), np.float64)

        mean = sum(part.sum(axis=0) for part in parts()) / count
        squares = sum(((part - mean) ** 2).sum(axis=0) for part in parts()) / count
        return cls._of(mean, np.sqrt(squares))

    @classmethod
    def _of_statistics(cls, data: "Records", transform: Any) -> "Standardize":
        if transform is not None and not isinstance(transform, Log1p):
            raise ValueError(
                "Of records, the statistics of raw features and of Log1p are known. Received: "
                f"transform={transform!r}"
            )
        known = data.statistics
        kind = "" if transform is None else "log1p_"
        mean, deviation = (
            # A feature that is not finite somewhere cannot be standardized.
            np.where(
                np.equal(known["finite"], data.schema["documents"]),
                np.array(known[f"{kind}{name}"], float),
                np.nan,
            )
            for name in ("mean", "deviation")
        )
        return cls._of(mean, deviation)

    @classmethod
    def _of(cls, mean: np.ndarray, deviation: np.ndarray) -> "Standardize":
        if not np.isfinite(deviation).all():
            broken = np.flatnonzero(~np.isfinite(deviation)).tolist()
            raise ValueError(
                f"Features must be finite to be standardized. Received: not so in {broken[:10]}"
            )
        # What is constant up to the rounding of its values stays so.
        deviation[deviation <= 1e-6 * np.abs(mean)] = 0.0
        return cls(mean.tolist(), deviation.tolist())

    def compute_output_shape(self, input_shape: Any, *_: Any, **__: Any) -> Any:
        """The shape of the input, whose width is checked when a model is made, too."""
        self._check_width(input_shape[-1])
        return input_shape

    def _check_width(self, width: int) -> None:
        if width != len(self._mean):
            raise ValueError(
                f"The transform was fitted to {len(self._mean)} features. Received: {width}"
            )

    def call(self, features: "Array") -> "Array":
        """The transformed features."""
        self._check_width(features.shape[-1])
        factor = np.divide(1.0, self._deviation, where=self._deviation > 0, out=0 * self._mean)
        centered = ops.cast(features, "float32") - self._mean.astype(np.float32)
        return centered * factor.astype(np.float32)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, with what was fitted."""
        fitted = {"mean": self._mean.tolist(), "deviation": self._deviation.tolist()}
        return super().get_config() | fitted


@register
class QueryMinMax(Transform):
    """`(x - min) / (max - min)` over the documents of a list, 0 where all are equal.

    The "query-level normalisation" of LETOR. In a model it takes features `[batch, list, features]`
    and `mask`; `data.map_features(QueryMinMax())` goes query by query.

    >>> QueryMinMax()(np.array([[2.0, 7.0], [4.0, 7.0], [3.0, 7.0]])).numpy().tolist()
    [[0.0, 0.0], [1.0, 0.0], [0.5, 0.0]]
    """

    per_query = True

    def call(self, features: "Array", mask: "Array | None" = None) -> "Array":
        """The transformed features, 0 in padding."""
        features = ops.cast(features, "float32")
        inside = ops.ones_like(features, dtype="bool")
        if mask is not None:
            inside = ops.logical_and(inside, mask[..., None])
        low = ops.min(ops.where(inside, features, np.inf), axis=-2, keepdims=True)
        high = ops.max(ops.where(inside, features, -np.inf), axis=-2, keepdims=True)
        spread = high > low
        width = ops.where(spread, high - low, 1.0)
        return ops.where(ops.logical_and(inside, spread), (features - low) / width, 0.0)
