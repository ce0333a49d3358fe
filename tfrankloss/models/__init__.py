"""Functions that make ranking networks as plain Keras models.

>>> from tfrankloss import models
>>> model = models.feedforward(num_features=20, hidden=(32, 16), dropout=0.1)
>>> model.output_shape
(None, None)
"""

from tfrankloss.models.layers import (
    DocumentBatchNorm,
    FeatureNoise,
    FeatureTowers,
    ListAttention,
    ListScores,
    RealDocuments,
)
from tfrankloss.models.networks import (
    MODELS,
    SIGIR2022_DROPPED,
    SIGIR2022_KEPT,
    classification,
    feedforward,
    gam,
    get,
    linear,
    ranknet,
    self_attention,
    sub_scores,
)

__all__ = [
    "MODELS",
    "SIGIR2022_DROPPED",
    "SIGIR2022_KEPT",
    "DocumentBatchNorm",
    "FeatureNoise",
    "FeatureTowers",
    "ListAttention",
    "ListScores",
    "RealDocuments",
    "classification",
    "feedforward",
    "gam",
    "get",
    "linear",
    "ranknet",
    "self_attention",
    "sub_scores",
]
