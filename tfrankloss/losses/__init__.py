"""Every ranking loss, as a Keras loss.

`LOSSES` lists them all by name; `get("ndcg_loss2@5")` makes one from its name.
"""

from typing import Any

from tfrankloss.losses.base import RankingLoss
from tfrankloss.losses.lambdas import (
    ARPLoss1,
    ARPLoss2,
    CutoffLoss,
    GainLoss,
    LambdaLoss,
    LambdaRankLoss,
    NDCGLoss1,
    NDCGLoss2,
    NDCGLoss2PlusPlus,
    RankWeightedLoss,
)
from tfrankloss.losses.listwise import (
    CalibratedSoftmaxLoss,
    ListMLELoss,
    ListNetLoss,
    ListwiseLoss,
    Poly1SoftmaxLoss,
    PositionAwareListMLELoss,
    SoftmaxLoss,
    UniqueSoftmaxLoss,
    XENDCGLoss,
)
from tfrankloss.losses.pairwise import (
    PairLoss,
    PairwiseExponentialLoss,
    PairwiseHingeLoss,
    PairwiseLogisticLoss,
    PairwiseSoftZeroOneLoss,
    PairwiseSquaredLoss,
    RankNetLoss,
)
from tfrankloss.losses.pointwise import (
    OrdinalLoss,
    PointwiseSigmoidLoss,
    PointwiseSoftmaxLoss,
    PointwiseSquaredLoss,
)
from tfrankloss.losses.smooth import (
    ApproxDCGLoss,
    ApproxMAPLoss,
    ApproxMRRLoss,
    ApproxNDCGLoss,
    GumbelApproxNDCGLoss,
    GumbelLoss,
    SoftNDCGLoss,
)
from tfrankloss.options import make

LOSSES: dict[str, type[RankingLoss]] = {
    "pointwise_squared": PointwiseSquaredLoss,
    "pointwise_sigmoid": PointwiseSigmoidLoss,
    "pointwise_softmax": PointwiseSoftmaxLoss,
    "ordinal": OrdinalLoss,
    "pairwise_hinge": PairwiseHingeLoss,
    "pairwise_exponential": PairwiseExponentialLoss,
    "pairwise_logistic": PairwiseLogisticLoss,
    "pairwise_soft_zero_one": PairwiseSoftZeroOneLoss,
    "pairwise_squared": PairwiseSquaredLoss,
    "ranknet": RankNetLoss,
    "lambdarank": LambdaRankLoss,
    "arp_loss1": ARPLoss1,
    "arp_loss2": ARPLoss2,
    "ndcg_loss1": NDCGLoss1,
    "ndcg_loss2": NDCGLoss2,
    "ndcg_loss2_plus_plus": NDCGLoss2PlusPlus,
    "lambda_loss": LambdaLoss,
    "softmax": SoftmaxLoss,
    "listnet": ListNetLoss,
    "list_mle": ListMLELoss,
    "position_aware_list_mle": PositionAwareListMLELoss,
    "xendcg": XENDCGLoss,
    "unique_softmax": UniqueSoftmaxLoss,
    "poly1_softmax": Poly1SoftmaxLoss,
    "calibrated_softmax": CalibratedSoftmaxLoss,
    "approx_ndcg": ApproxNDCGLoss,
    "approx_dcg": ApproxDCGLoss,
    "approx_mrr": ApproxMRRLoss,
    "approx_map": ApproxMAPLoss,
    "soft_ndcg": SoftNDCGLoss,
    "gumbel_approx_ndcg": GumbelApproxNDCGLoss,
    "gumbel": GumbelLoss,
}

__all__ = [
    "LOSSES",
    "CutoffLoss",
    "GainLoss",
    "ListwiseLoss",
    "PairLoss",
    "RankWeightedLoss",
    "RankingLoss",
    "get",
    *(loss.__name__ for loss in LOSSES.values()),
]


def get(identifier: str | dict[str, Any] | RankingLoss, **options: Any) -> RankingLoss:
    """Makes a loss from its name; `@k` sets `topn`.

    Args:
        identifier: a name such as `"ndcg_loss2@5"`, with or without underscores and the word
            "loss"; or the configuration of a loss, or a loss, which is returned as it is.
        **options: further arguments of the loss, such as `metric="map"`.

    >>> get("ndcg_loss2@5").topn
    5
    >>> get("lambdarank@10", metric="map").metric
    'map'
    """
    hints = {"lambda_loss": "LambdaLoss@K of SIGIR 2022 is 'ndcg_loss2@K'."}
    return make("loss", RankingLoss, LOSSES, identifier, options, "ndcg_loss2@5", hints)
