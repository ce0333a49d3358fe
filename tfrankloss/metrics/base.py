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

    def __init__(self, name: str, dtype: Any, members: int | None = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self.__dict__["_kernels"] = {}
        shape = (2,) if members is None else (2, members)
        self.total = self.add_variable(shape, initializer="zeros", name="total")
        self.count = self.add_variable(shape, initializer="zeros", name="count")

    def _members(self) -> "list[RankingMetric]":
        """The metrics. (Not an attribute, which Keras would follow around when it saves.)"""
        raise NotImplementedError

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds a batch; the arguments are those of a loss, see `RankingMetric`."""
        state = (ops.copy(self.total), ops.copy(self.count))
        total, count = self._call(self._added, y_true, y_pred, sample_weight, state)
        self.total.assign(total)
        self.count.assign(count)

    def result(self) -> Any:
        """The mean so far."""
        return divide_no_nan(self.total[0] + self.total[1], self.count[0] + self.count[1])

    def per_list(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tuple[Array, Array]:
        """The value and the weight of each list; a list that does not count weighs 0.

        `[batch]` each, or `[metrics, batch]` for several metrics.
        """
        return self._call(self._per_list, y_true, y_pred, sample_weight)

    def _call(
        self,
        function: Any,
        y_true: Any,
        y_pred: Any,
        sample_weight: Any,
        state: tuple[Array, ...] = (),
    ) -> Any:
        members = self._members()
        labels_rank = 3 if members[0].subtopics else 2
        received = lists.receive(y_true, y_pred, sample_weight, labels_rank=labels_rank)
        # An option may change between steps; its program must follow.
        key = (function.__name__, *(member._version for member in members))
        if key not in self._kernels:
            self._kernels[key] = backend.compiled(function)
        weighted = received.document_weights is not None
        batch = lists.clean(received)
        # Padding has no place in an order: its scores need not be cleaned, which takes a twentieth
        # of the time.
        scores = ops.cast(received.scores, batch.scores.dtype)
        orders = orders_of(members, batch._replace(scores=scores), weighted)
        values, weights = self._kernels[key](*state, *received, *orders.values())
        return ops.stop_gradient(values), ops.stop_gradient(weights)

    def _added(self, total: Array, count: Array, *arguments: Array | None) -> tuple[Array, Array]:
        """The state with a batch added to it: in the kernel, as it is a dozen operations."""
        values, weights = self._per_list(*arguments)
        values = ops.where(weights != 0, values * weights, 0.0)
        return _add(total, ops.sum(values, axis=-1)), _add(count, ops.sum(weights, axis=-1))

    def _per_list(self, *arguments: Array | None) -> tuple[Array, Array]:
        members = self._members()
        received = Received(*arguments[: len(Received._fields)])
        orders = dict(zip(_rules(members), arguments[len(received) :], strict=True))
        weighted = received.document_weights is not None
        batch = lists.clean(received)
        results = measure(members, batch, orders, weighted, received.list_weights)
        if members == [self]:
            return results[0]
        values, weights = zip(*results, strict=True)
        return ops.stack(values), ops.stack(weights)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return configuration(self, dtype=keras.backend.standardize_dtype(self.dtype))

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "MeanOverLists":
        """Makes the metric again from `get_config()`."""
        return cls(**arguments_from(config))


def _add(state: Array, amount: Array) -> Array:
    """Adds to the first entry what fits and to the second what that loses to rounding."""
    amount = ops.cast(amount, state.dtype)
    old, lost = state[0], state[1]
    new = old + amount
    kept = new - old
    lost = lost + ((old - (new - kept)) + (amount - kept))
    return ops.stack([new, lost])


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
      that document contributes (also in the ideal order). In `fit`, Keras hands weights to
      `weighted_metrics` only.

    A list with a score that is not a number has the value NaN, so that a broken model shows.

    Args:
        ties: what the order of equal scores is: that of their `"position"` in the list; `"average"`
            for the expected value over all orders, exactly; `"worst"` or `"best"`, the labels of
            equal scores from low to high or from high to low (not with weights of documents).
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
    _version = 0  # changes with every option

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
        super().__init__(name=name or default, dtype=dtype)
        self.ties = ties
        self.no_relevant = no_relevant

    def measure(self, ranked: Ranked) -> Measured:
        """The value of each list, and whether there is anything to find in it."""
        raise NotImplementedError("A subclass of RankingMetric defines measure.")

    def _members(self) -> "list[RankingMetric]":
        return [self]

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        self.__dict__["_version"] = self._version + 1


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


def orders_of(metrics: Sequence[RankingMetric], batch: Lists, weighted: bool) -> dict[str, Array]:
    """The order of the documents by each rule for ties that the metrics have."""
    for metric in metrics:
        if weighted and metric.ties in ("worst", "best"):
            raise ValueError(
                "With a weight per document it is not defined which order of equal scores is the "
                f"worst or the best. Received: ties={metric.ties!r} in {metric.name!r} and weights "
                "of documents; take ties='average' or weights of lists"
            )
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
    broken = ops.any(batch.scores != batch.scores, axis=1)
    results = []
    for metric in metrics:
        values, relevant = metric.measure(ranked[metric.ties])
        relevant = ops.logical_and(relevant, real)
        values = ops.where(broken, float("nan"), values)
        instead = 1.0 if metric.no_relevant == "one" else 0.0
        counts = relevant if metric.no_relevant == "discard" else real
        weights = ops.cast(counts, values.dtype)
        if list_weights is not None:
            given = ops.cast(list_weights, values.dtype)
            weights = ops.where(counts, given, 0.0)
        results.append((ops.where(relevant, values, instead), weights))
    return results
