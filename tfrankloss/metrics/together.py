"""Many metrics as one."""

from collections.abc import Mapping, Sequence
from typing import Any

from tfrankloss.core.backend import Array
from tfrankloss.metrics.base import MeanOverLists, RankingMetric
from tfrankloss.metrics.ranking import METRICS
from tfrankloss.options import make, register


@register
class RankingMetrics(MeanOverLists):
    """Many metrics as one Keras metric: lists are masked and sorted once for all of them.

    `fit` and `evaluate` log each under its own name. (To stop early by one of them, give
    `keras.callbacks.EarlyStopping` the `mode`: Keras does not see what is better. In a model of
    several outputs, give the metrics of each output names of their own.)

    Args:
        metrics: names such as `"ndcg@10"`, or metrics. All of them take labels of the same shape.
        name: name of the whole.
        dtype: type of the results, see `RankingMetric`.

    >>> from tfrankloss.metrics import ARP
    >>> metric = RankingMetrics(["ndcg@10", "mrr", ARP(ties="average")])
    >>> metric.update_state([[0.0, 2.0, 1.0]], [[0.3, 0.2, 0.1]])
    >>> {name: round(float(value), 4) for name, value in metric.result().items()}
    {'ndcg@10': 0.659, 'mrr': 0.5, 'arp': 2.3333}
    """

    def __init__(
        self,
        metrics: Sequence[str | RankingMetric],
        *,
        name: str = "ranking_metrics",
        dtype: Any = None,
    ) -> None:
        if isinstance(metrics, str) or not isinstance(metrics, Sequence) or not metrics:
            raise ValueError(
                "metrics must be a list of at least one metric or name, such as ['ndcg@10', 'mrr']."
                f" Received: metrics={metrics!r}"
            )
        parts = [get(metric) for metric in metrics]
        names = [part.name for part in parts]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(
                f"Each metric needs a name of its own (argument name). Received twice: {repeated}"
            )
        if len({part.subtopics for part in parts}) > 1:
            raise ValueError(
                "Metrics of labels [batch, list] and of labels [batch, list, subtopics] cannot be "
                f"taken together. Received: {names}"
            )
        super().__init__(name=name, dtype=dtype, members=len(parts))
        # Keras must not track them: the state is here.
        self.__dict__["_held"] = _Held(parts)

    @property
    def metrics(self) -> list[RankingMetric]:
        """The metrics, in order."""
        return self._members()

    def _members(self) -> list[RankingMetric]:
        return self._held.metrics

    def result(self) -> dict[str, Array]:
        """The mean of each metric so far, by name."""
        means = super().result()
        return {part.name: means[number] for number, part in enumerate(self._members())}


class _Held:
    """Metrics out of the sight of Keras, which follows lists and tuples."""

    def __init__(self, metrics: list[RankingMetric]) -> None:
        self.metrics = metrics


def get(identifier: str | Mapping[str, Any] | RankingMetric, **options: Any) -> RankingMetric:
    """Makes a metric from its name; `@k` sets `topn`.

    Args:
        identifier: a name such as `"ndcg@10"`, with or without underscores; or the configuration of
            a metric, or a metric, which is returned as it is.
        **options: further arguments of the metric, such as `ties="average"`.

    >>> get("ndcg@10").topn
    10
    >>> get("rbp", persistence=0.5).persistence
    0.5
    """
    return make("metric", RankingMetric, METRICS, identifier, options, "ndcg@10")
