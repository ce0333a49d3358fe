"""Ranking metrics, as Keras metrics: deterministic, masked, one sort for many of them.

`METRICS` lists them all by name; `get("ndcg@10")` makes one from its name.
"""

from tfrankloss.core.ranked import Ranked
from tfrankloss.metrics.base import CutoffMetric, Measured, RankingMetric
from tfrankloss.metrics.ranking import (
    ARP,
    DCG,
    ERR,
    MAP,
    METRICS,
    MRR,
    NDCG,
    RBP,
    AlphaNDCG,
    BinaryMetric,
    GainMetric,
    HitRate,
    LambdaRankMetric,
    NDCGCost,
    OrderedPairAccuracy,
    Precision,
    PrecisionIA,
    Recall,
    SubtopicMetric,
)
from tfrankloss.metrics.together import RankingMetrics, get

__all__ = [
    "NDCG",
    "DCG",
    "MRR",
    "MAP",
    "Precision",
    "Recall",
    "HitRate",
    "ARP",
    "ERR",
    "RBP",
    "OrderedPairAccuracy",
    "AlphaNDCG",
    "PrecisionIA",
    "NDCGCost",
    "LambdaRankMetric",
    "METRICS",
    "BinaryMetric",
    "CutoffMetric",
    "GainMetric",
    "Measured",
    "Ranked",
    "RankingMetric",
    "RankingMetrics",
    "SubtopicMetric",
    "get",
]
