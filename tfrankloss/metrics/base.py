"""What every metric shares: inputs, compilation, the mean over lists, saving."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
from keras import ops

from tfrankloss.core import backend, lists
from tfrankloss.core.backend import Array
from tfrankloss.core.lists import Lists, Received
from tfrankloss.core.ranked import TIES, Ranked, best_first
from tfrankloss.core.ranks import divide_no_nan
from tfrankloss.options import (
    ShowsArguments,
    arguments_from,
    check_choice,
    check_topn,
    configuration,
    snake_case,
)

NO_RELEVANT = ("discard", "zero", "one")


class Measured(NamedTuple):
    """What a metric says of each list."""

    values: Array  # [batch]
    relevant: Array  # [batch], whether there is anything to find in the list


class MeanOverLists(ShowsArguments, keras.metrics.Metric):
    """Means over lists of one or several metrics, all taken from the same sorted lists.

    The state is a sum and a weight, each in two numbers (the sum and what its rounding lost), so
    that the result is the same however the lists come in batches.
    """

    def __init__(self, parts: "Sequence[RankingMetric] | None", name: str, dtype: Any) -> None:
        super().__init__(name=name, dtype=dtype)
        # Keras must not track the parts: their state is here.
        self.__dict__["_parts"] = [self] if parts is None else list(parts)
        self.__dict__["_kernels"] = {}
        shape = (2,) if parts is None else (2, len(parts))
        self.total = self.add_variable(shape, initializer="zeros", name="total")
        self.count = self.add_variable(shape, initializer="zeros", name="count")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds a batch; the arguments are those of a loss, see `RankingMetric`."""
        total, count = self._call(self._sums, y_true, y_pred, sample_weight)
        _add(self.total, total)
        _add(self.count, count)

    def result(self) -> Any:
        """The mean so far."""
        return divide_no_nan(self.total[0] + self.total[1], self.count[0] + self.count[1])

    def per_list(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tuple[Array, Array]:
        """The value and the weight of each list, `[batch]`; a list that does not count weighs 0."""
        return self._call(self._per_list, y_true, y_pred, sample_weight)

    def _call(self, function: Any, y_true: Any, y_pred: Any, sample_weight: Any) -> Any:
        labels_rank = 3 if self._parts[0].subtopics else 2
        received = lists.receive(y_true, y_pred, sample_weight, labels_rank=labels_rank)
        name = function.__name__
        if name not in self._kernels:
            self._kernels[name] = backend.compiled(function)
        orders = orders_of(self._parts, lists.clean(received))
        values, weights = self._kernels[name](*received, *orders.values())
        return ops.stop_gradient(values), ops.stop_gradient(weights)

    def _sums(self, *arguments: Array | None) -> tuple[Array, Array]:
        values, weights = self._per_list(*arguments)
        return ops.sum(values * weights, axis=-1), ops.sum(weights, axis=-1)

    def _per_list(self, *arguments: Array | None) -> tuple[Array, Array]:
        received = Received(*arguments[: len(Received._fields)])
        orders = dict(zip(_rules(self._parts), arguments[len(received) :], strict=True))
        weighted = received.document_weights is not None
        results = measure(
            self._parts, lists.clean(received), orders, weighted, received.list_weights
        )
        if self._parts == [self]:
            return results[0]
        values, weights = zip(*results, strict=True)
        return ops.stack(values), ops.stack(weights)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        self.__dict__["_kernels"] = {}  # an option may change; its program must follow

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kernels": {}}  # a compiled program cannot be copied


def _add(variable: Any, amount: Array) -> None:
    """Adds to the first entry what fits and to the second what that loses to rounding."""
    amount = ops.cast(amount, variable.dtype)
    old, lost = variable[0], variable[1]
    new = old + amount
    kept = new - old
    lost = lost + ((old - (new - kept)) + (amount - kept))
    variable.assign(ops.stack([new, lost]))


class RankingMetric(MeanOverLists):
    """Base class of all metrics of this package.

    A subclass says what one list is worth, in `measure`. Masking, sorting, compilation and the mean
    over the lists happen here.

    Called as `metric.update_state(y_true, y_pred, sample_weight=None)`:

    - `y_true`: labels `[batch, list]`, dense or `tf.RaggedTensor`; a label below 0 or NaN is
      padding. Or a dictionary `{"labels": ..., "mask": ...}` with a mask that is True for real
      documents.
    - `y_pred`: scores `[batch, list]` or `[batch, list, 1]`, dense or ragged. A Keras mask that a
      model attached to it counts, too.
    - `sample_weight`: `[batch]` or `[batch, 1]`, the weight of each list in the mean; or
      `[batch, list]`, a weight per document, such as an inverse propensity, which multiplies what
      that document contributes (also in the ideal order).

    Args:
        ties: what the order of equal scores is: that of their `"position"` in the list; `"average"`
            for the expected value over all orders, exactly; `"worst"` or `"best"`, the labels
            (times the documents' weights) of equal scores from low to high or from high to low.
        no_relevant: what to do with a list in which there is nothing to find (no relevant document,
            no gain, no pair of different labels): `"discard"` it, as the papers do, or let it count
            as `"zero"` or as `"one"`.
        name: name of the metric; by default that of the class and its cutoff, such as `ndcg@10`.
        dtype: type of the result. The computation is in float64 for float64 scores, otherwise in
            float32.
    """

    subtopics = False  # whether labels are [batch, list, subtopics]
    topn: int | None = None
    ideal = False  # whether the metric compares with the ideal order of the gains
    _direction = "up"  # Keras reads it: what EarlyStopping takes for better

    def __init__(
        self,
        *,
        ties: str = "position",
        no_relevant: str = "discard",
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        check_choice("ties", ties, TIES)
        check_choice("no_relevant", no_relevant, NO_RELEVANT)
        default = snake_case(type(self).__name__) + (f"@{self.topn}" if self.topn else "")
        super().__init__(None, name=name or default, dtype=dtype)
        self.ties = ties
        self.no_relevant = no_relevant

    def measure(self, ranked: Ranked) -> Measured:
        """The value of each list, and whether there is anything to find in it."""
        raise NotImplementedError("A subclass of RankingMetric defines measure.")

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return configuration(self, dtype=keras.backend.standardize_dtype(self.dtype))

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "RankingMetric":
        """Makes the metric again from `get_config()`."""
        return cls(**arguments_from(config))


class CutoffMetric(RankingMetric):
    """A metric of the first documents of a list.

    Args:
        topn: the cutoff K: only the first `topn` documents count. None for all.
        ties: see `RankingMetric`, as the other arguments.
    """

    def __init__(self, topn: int | None = None, **arguments: Any) -> None:
        check_topn(topn)
        self.__dict__["topn"] = topn  # the default name needs it
        super().__init__(**arguments)


def _rules(metrics: Sequence[RankingMetric]) -> list[str]:
    return sorted({metric.ties for metric in metrics})


def orders_of(metrics: Sequence[RankingMetric], batch: Lists) -> dict[str, Array]:
    """The order of the documents by each rule for ties that the metrics have."""
    return {ties: best_first(batch, ties) for ties in _rules(metrics)}


def measure(
    metrics: Sequence[RankingMetric],
    batch: Lists,
    orders: dict[str, Array],
    weighted: bool,
    list_weights: Array | None = None,
) -> list[tuple[Array, Array]]:
    """Values and weights of each list, `[batch]`, for each metric; each list is sorted once.

    Args:
        metrics: the metrics.
        batch: clean lists.
        orders: see `orders_of`.
        weighted: whether the documents have weights other than 1.
        list_weights: `[batch]`, or None for 1.
    """
    cutoffs = [metric.topn for metric in metrics if metric.ideal]
    depth = max((topn for topn in cutoffs if topn), default=None) if all(cutoffs) else None
    ranked = {
        ties: Ranked(batch, indices, ties == "average", weighted, depth)
        for ties, indices in orders.items()
    }
    real = ops.any(batch.mask, axis=1)
    results = []
    for metric in metrics:
        values, relevant = metric.measure(ranked[metric.ties])
        relevant = ops.logical_and(relevant, real)
        instead = ops.full_like(values, 1.0 if metric.no_relevant == "one" else 0.0)
        counts = relevant if metric.no_relevant == "discard" else real
        weights = ops.cast(counts, values.dtype)
        if list_weights is not None:
            given = ops.cast(list_weights, values.dtype)
            weights = ops.where(counts, given, ops.zeros_like(given))
        results.append((ops.where(relevant, values, instead), weights))
    return results
