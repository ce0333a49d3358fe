"""The one list of losses that all laws are tested on: every public class, and its main options."""

import dataclasses
import functools
from typing import Any

import keras
from keras import ops

from tfrankloss import losses, metrics
from tfrankloss.core.ranked import TIES

# Enough for the highest label of the laws, so that graded losses run through all of them, too.
NUM_GRADES = 32
SEED = 7


@keras.saving.register_keras_serializable(package="laws")
def gain_difference_by_rank(high: Any, low: Any) -> Any:
    """A weight for `LambdaLoss` that uses gains and ranks; registered, so that it can be saved."""
    return ops.abs(high.gain - low.gain) / ops.minimum(high.rank, low.rank)


@dataclasses.dataclass(frozen=True)
class Case:
    """A loss with options."""

    name: str  # key in LOSSES
    options: tuple[tuple[str, Any], ...]
    first: bool  # the first case of its class, for laws that are too slow for all of them

    @property
    def identifier(self) -> str:
        shown = [
            f"{name}={getattr(value, '__name__', value)}"
            for name, value in self.options
            if name not in ("seed", "weight")
        ]
        return "-".join([self.name, *shown])

    @property
    def noisy(self) -> bool:
        """Whether the loss draws noise."""
        return "seed" in dict(self.options)

    def build(self, reduction: str = "none") -> losses.RankingLoss:
        """The loss; the same object every time, so that a kernel is compiled once per shape."""
        return _build(self, reduction)

    def fresh(self, **options: Any) -> losses.RankingLoss:
        """A new loss with further options."""
        return losses.LOSSES[self.name](**{**dict(self.options), **options})


@functools.cache
def _build(case: Case, reduction: str) -> losses.RankingLoss:
    return case.fresh(reduction=reduction)


# For each class its options, the plainest first.
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "pointwise_squared": [{}, {"num_grades": NUM_GRADES}],
    "pointwise_sigmoid": [{}],
    "pointwise_softmax": [{"num_grades": NUM_GRADES}, {"num_grades": NUM_GRADES, "gamma": 2.0}],
    "ordinal": [{"num_grades": NUM_GRADES}],
    "pairwise_hinge": [{}, {"sigma": 0.5}],
    "pairwise_exponential": [{}],
    "pairwise_logistic": [{}, {"sigma": 2.0, "pair_reduction": "mean"}],
    "pairwise_soft_zero_one": [{}],
    "pairwise_squared": [{}, {"pair_reduction": "mean"}],
    "ranknet": [{}, {"pair_reduction": "mean"}],
    "lambdarank": [
        {},
        {"topn": 3},
        {"metric": "dcg"},
        {"metric": "precision", "topn": 3},
        {"metric": "mrr"},
        {"metric": "mrr", "topn": 3},
        {"metric": "map"},
        {"metric": "map", "topn": 3},
        {"metric": "err"},
        {"metric": "err", "topn": 3},
        {"ranking": "gaussian", "seed": SEED},
        {"topn": 3, "ranking": "plackett_luce", "seed": SEED},
        {"pair_reduction": "mean"},
    ],
    "arp_loss1": [{}, {"pair_reduction": "mean"}],
    "arp_loss2": [{}],
    "ndcg_loss1": [{}, {"topn": 3, "cutoff": "truncated"}],
    "ndcg_loss2": [
        {},
        {"topn": 3},
        {"topn": 3, "cutoff": "truncated"},
        {"topn": 3, "gain": "linear", "discount": "linear"},
        {"ranking": "plackett_luce", "seed": SEED},
        {"topn": 3, "ranking": "gaussian", "samples": 2, "seed": SEED},
    ],
    "ndcg_loss2_plus_plus": [{}, {"mu": 1.0, "topn": 3}],
    "lambda_loss": [
        {"weight": gain_difference_by_rank},
        {"weight": gain_difference_by_rank, "topn": 3},
    ],
    "softmax": [{}, {"temperature": 2.0}],
    "listnet": [
        {},
        {"label_distribution": "normalized"},
        {"topk": 2},
        {"topk": 3},
        {"label_distribution": "normalized", "topk": 2},
    ],
    "list_mle": [{}, {"ties": "random", "seed": SEED}, {"temperature": 2.0}],
    "position_aware_list_mle": [{}, {"ties": "random", "seed": SEED}],
    "xendcg": [{"seed": SEED}, {"gamma": 0.5}, {"gamma": 0.5, "epsilon": 0.1}],
    "unique_softmax": [{}, {"gain": "linear", "temperature": 2.0}],
    "poly1_softmax": [{}, {"epsilon": 2.0}],
    "calibrated_softmax": [{}],
    "approx_ndcg": [{}, {"topn": 3}, {"temperature": 1.0}],
    "approx_dcg": [{}, {"topn": 3}],
    "approx_mrr": [{}, {"topn": 3}],
    "approx_map": [{}, {"topn": 3}],
    "soft_ndcg": [{}, {"topn": 3}],
    "gumbel_approx_ndcg": [{"seed": SEED}, {"topn": 3, "samples": 2, "seed": SEED}],
    "gumbel": [
        {"loss": "softmax", "seed": SEED},
        {"loss": "ndcg_loss2@3", "samples": 2, "seed": SEED},
    ],
}

CASES = [
    Case(name, tuple(options.items()), first=number == 0)
    for name, variants in OPTIONS.items()
    for number, options in enumerate(variants)
]
FIRST_CASES = [case for case in CASES if case.first]
NOISY_CASES = [case for case in CASES if case.noisy]
# Programs that differ much from each other, for comparisons that compile once more for every case.
PROGRAMS = [
    case
    for case in CASES
    if case.identifier
    in (
        "pointwise_softmax-num_grades=32",
        "pairwise_logistic-sigma=2.0-pair_reduction=mean",
        "lambdarank-topn=3-ranking=plackett_luce",
        "lambdarank-metric=err-topn=3",
        "ndcg_loss2-topn=3",
        "listnet-topk=3",
        "list_mle-ties=random",
        "approx_ndcg-topn=3",
        "soft_ndcg-topn=3",
        "gumbel-loss=ndcg_loss2@3-samples=2",
    )
]


def metric_under_all_rules(name: str) -> metrics.RankingMetrics:
    """A metric with each of the rules for ties."""
    return metrics.RankingMetrics(
        [metrics.METRICS[name](ties=ties, name=ties) for ties in TIES], name=name
    )
