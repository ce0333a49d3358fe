"""Metrics of a whole test set in plain arrays, with what a paper reports beside the mean.

>>> labels = [2, 0, 1, 0, 1]
>>> scores = [0.9, 0.5, 0.1, 0.2, 0.7]
>>> queries = ["a", "a", "a", "b", "b"]
>>> result = evaluate(labels, scores, queries, metrics=["ndcg@10", "mrr"])
>>> result.means["mrr"]
1.0
>>> result.per_query["ndcg@10"].round(4).tolist()
[0.9639, 1.0]
"""

import functools
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from keras import ops

from tfrankloss import config
from tfrankloss import metrics as known_metrics
from tfrankloss.core import backend
from tfrankloss.core.lists import LIST_ARRAYS, Lists
from tfrankloss.data.ranking_data import group
from tfrankloss.files import writing
from tfrankloss.metrics import RankingMetric, RankingMetrics
from tfrankloss.metrics.base import measure, orders_of
from tfrankloss.options import check_fraction, check_integer, needs

DEFAULT_METRICS = ("ndcg@1", "ndcg@5", "ndcg@10", "mrr", "map")
# Lists of similar length are measured together, up to this many documents at once.
BATCH_DOCUMENTS = 1 << 18
# Values of a query that are closer than this are the same.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Comparison:
    """What changes from a baseline to another ranking, for one metric.

    Attributes:
        difference: mean of this ranking minus that of the baseline, over the queries that count in
            both.
        interval: where the difference lies with 95 %, by bootstrap over the queries.
        p_value: of the paired t-test, two-sided.
        wins: queries that got better.
        losses: queries that got worse.
        ties: queries that stayed the same (up to rounding).
    """

    difference: float
    interval: tuple[float, float]
    p_value: float
    wins: int
    losses: int
    ties: int

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"{self.difference:+.4f} [{low:+.4f}, {high:+.4f}], p = {self.p_value:.3g}, "
            f"{self.wins} wins, {self.losses} losses, {self.ties} ties"
        )


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Metrics of a test set.

    Attributes:
        means: the mean over the queries that count, by name of the metric; NaN if none does.
        per_query: the value of each query, `[queries]`, by name; NaN where a query does not count.
        query_ids: the queries, in the order in which they were first seen.
        metrics: the metrics by name, with their options.
    """

    means: dict[str, float]
    per_query: dict[str, np.ndarray] = field(repr=False)
    query_ids: np.ndarray = field(repr=False)
    metrics: dict[str, RankingMetric] = field(repr=False)

    def confidence_intervals(
        self, level: float = 0.95, samples: int = 1000, seed: int = 0
    ) -> dict[str, tuple[float, float]]:
        """Bootstrap intervals of the means: queries are drawn with replacement.

        Args:
            level: how often the interval should hold the mean.
            samples: number of draws.
            seed: the same seed gives the same intervals.
        """
        check_fraction("level", level)
        check_integer("samples", samples, minimum=1)
        return {
            name: _bootstrap(values[~np.isnan(values)], level, samples, seed)
            for name, values in self.per_query.items()
        }

    def compare(self, other: "Evaluation") -> dict[str, Comparison]:
        """This ranking against `other` (the baseline) on the same queries, by name of the metric.

        Metrics that only one of them has are left out. Needs SciPy for the paired t-test.
        """
        stats = needs("scipy.stats", "evaluate")
        shared = [name for name in self.per_query if name in other.per_query]
        if not shared:
            raise ValueError(
                f"The evaluations share no metric. Received: {list(self.per_query)} and "
                f"{list(other.per_query)}"
            )
        for name in shared:
            mine, others = (x.metrics[name].get_config() for x in (self, other))
            if mine != others:
                changed = {key: (mine.get(key), others.get(key)) for key in mine}
                changed = {key: pair for key, pair in changed.items() if pair[0] != pair[1]}
                raise ValueError(
                    f"The options of the metric {name!r} differ, so that its values cannot be "
                    f"compared. Received: {changed}"
                )
        places = {query: place for place, query in enumerate(other.query_ids.tolist())}
        missing = [query for query in self.query_ids.tolist() if query not in places]
        if missing or len(places) != len(self.query_ids):
            raise ValueError(
                "Only evaluations of the same queries can be compared. Received: "
                f"{len(self.query_ids)} and {len(places)} queries; {len(missing)} of the first are "
                f"not in the second, such as {missing[:3]}"
            )
        order = [places[query] for query in self.query_ids.tolist()]
        comparisons = {}
        for name in shared:
            difference = self.per_query[name] - other.per_query[name][order]
            difference = difference[~np.isnan(difference)]
            difference[np.abs(difference) < ROUNDING] = 0.0
            better = -difference if self.metrics[name]._direction == "down" else difference
            varied = len(difference) > 1 and np.ptp(difference) > 0
            p_value = stats.ttest_1samp(difference, 0.0).pvalue if varied else np.nan
            if len(difference) and not difference.any():
                p_value = 1.0
            comparisons[name] = Comparison(
                difference=float(difference.mean()) if len(difference) else np.nan,
                interval=_bootstrap(difference, 0.95, 1000, seed=0),
                p_value=float(p_value),
                wins=int((better > 0).sum()),
                losses=int((better < 0).sum()),
                ties=int((difference == 0).sum()),
            )
        return comparisons

    def to_pandas(self) -> Any:
        """The table per query as a pandas frame, one column per metric."""
        pandas = needs("pandas", "evaluate")
        return pandas.DataFrame(self.per_query, index=pandas.Index(self.query_ids, name="query_id"))

    def __str__(self) -> str:
        width = max(len(name) for name in self.means)
        counts = {name: int((~np.isnan(x)).sum()) for name, x in self.per_query.items()}
        return "\n".join(
            f"{name:<{width}}  {mean:.4f}  ({counts[name]} of {len(self.query_ids)} queries)"
            for name, mean in self.means.items()
        )


def evaluate(
    labels: Any,
    scores: Any,
    query_ids: Any,
    metrics: Sequence[str | RankingMetric] = DEFAULT_METRICS,
    weights: Any = None,
) -> Evaluation:
    """Ranks the documents of each query by their scores and measures the rankings, in float64.

    (On JAX in float32, unless its 64-bit types are enabled.)

    Args:
        labels: `[documents]`, at least 0; or `[documents, subtopics]` for metrics of subtopics.
        scores: `[documents]`.
        query_ids: `[documents]`, numbers or strings, in any order: documents of a query need not
            stand together.
        metrics: names such as `"ndcg@10"`, or metrics with options of their own.
        weights: `[documents]`, the weight of each document, see `RankingMetric`.

    See also: `Evaluation`, for confidence intervals and the comparison of two rankings.

    >>> evaluate([1, 0], [0.1, 0.2], [7, 7], metrics=["mrr"]).means
    {'mrr': 0.5}
    """
    if isinstance(metrics, list | tuple):
        metrics = [_metric(x) if isinstance(x, str) else x for x in metrics]
    parts = RankingMetrics(metrics).metrics
    rank = 2 if parts[0].subtopics else 1
    query_ids = _checked_ids("query_ids", query_ids)
    labels = _checked_numbers("labels", labels, query_ids, rank)
    scores = _checked_numbers("scores", scores, query_ids)
    if weights is not None:
        weights = _checked_numbers("weights", weights, query_ids)

    weighted = weights is not None
    order, starts, queries_seen = group(query_ids)
    sizes = np.diff(starts)
    values = np.empty((len(parts), len(sizes)))
    versions = tuple(part._version for part in parts)
    measurement = _measurement(tuple(parts), versions, weighted, labels.shape[1:])

    def measure_batch(batch: tuple[np.ndarray, int]) -> None:
        queries, size = batch
        inside = np.arange(size)[None, :] < sizes[queries, None]
        rows = (starts[queries, None] + np.arange(size))[inside]
        rows = rows if order is None else order[rows]
        lists = [_padded(x, rows, inside) for x in (scores, labels)]
        lists += [inside, _padded(weights, rows, inside) if weighted else np.ones((1, 1))]
        tensors = [ops.convert_to_tensor(x) for x in lists]
        values[:, queries] = ops.convert_to_numpy(measurement(*tensors))

    # To compile programs that run a few times would take longer than to run them. Two threads: one
    # prepares lists while the other measures.
    with config.without_xla(), ThreadPoolExecutor(2) as threads:
        deque(threads.map(measure_batch, _batches(sizes)), maxlen=0)

    names = [part.name for part in parts]
    per_query = dict(zip(names, values, strict=True))
    by_name = dict(zip(names, parts, strict=True))
    return Evaluation(means(per_query), per_query, queries_seen, by_name)


def means(per_query: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The mean of each metric over the queries that count; NaN if none does."""
    return {
        name: float(np.nanmean(x)) if np.isfinite(x).any() else float("nan")
        for name, x in per_query.items()
    }


def to_trec_run(
    path: str | os.PathLike[str],
    scores: Any,
    query_ids: Any,
    document_ids: Any = None,
    tag: str = "tfrankloss",
) -> None:
    """Writes a ranking as a run file of trec_eval: `query Q0 document rank score tag`.

    trec_eval ranks by the scores and takes equal scores in its own order, by the names of the
    documents from high to low.

    Args:
        path: the file. It appears when it is complete.
        scores: `[documents]`.
        query_ids: `[documents]`.
        document_ids: `[documents]`; by default the number of each row, so that the rows of the
            labels must be in the same order.
        tag: name of the run.
    """
    query_ids = _checked_ids("query_ids", query_ids)
    scores = _checked_numbers("scores", scores, query_ids)
    documents = _document_names(document_ids, query_ids)
    queries = _words("query_ids", query_ids)
    _words("tag", np.asarray([tag]))
    order, starts, _ = group(query_ids)

    def lines() -> Iterator[str]:
        for start, end in zip(starts[:-1], starts[1:], strict=True):
            rows = np.arange(start, end) if order is None else order[start:end]
            rows = rows[np.argsort(-scores[rows], kind="stable")]
            for rank, row in enumerate(rows, start=1):
                score = float(scores[row])
                yield f"{queries[row]} Q0 {documents[row]} {rank} {score!r} {tag}\n"

    with writing(path) as partial, open(partial, "w", encoding="utf-8") as file:
        file.writelines(lines())


def to_trec_qrels(
    path: str | os.PathLike[str], labels: Any, query_ids: Any, document_ids: Any = None
) -> None:
    """Writes labels as a qrels file of trec_eval: `query 0 document label`.

    Args:
        path: the file. It appears when it is complete.
        labels: `[documents]`, whole numbers.
        query_ids: `[documents]`.
        document_ids: `[documents]`; by default the number of each row.
    """
    query_ids = _checked_ids("query_ids", query_ids)
    labels = _checked_numbers("labels", labels, query_ids)
    broken = np.flatnonzero(labels != np.floor(labels))
    if len(broken):
        raise ValueError(
            "trec_eval takes whole numbers as labels. "
            f"Received: labels[{broken[0]}]={labels[broken[0]].item()!r}"
        )
    documents = _document_names(document_ids, query_ids)
    queries = _words("query_ids", query_ids)
    rows = range(len(labels))
    with writing(path) as partial, open(partial, "w", encoding="utf-8") as file:
        file.writelines(f"{queries[row]} 0 {documents[row]} {int(labels[row])}\n" for row in rows)


@functools.lru_cache(maxsize=64)
def _metric(name: str) -> RankingMetric:
    """The same metric for the same name, so that its graph is traced once."""
    return known_metrics.get(name)


@functools.lru_cache(maxsize=16)
def _measurement(
    parts: tuple[RankingMetric, ...],
    versions: tuple[int, ...],
    weighted: bool,
    subtopics: tuple[int, ...],
) -> Callable[..., Any]:
    """What measures lists: scores, labels, mask, weights -> `[metrics, batch]`, NaN as `no value`.

    Args:
        parts: the metrics.
        versions: of their options: a graph that was traced for others must not be used.
        weighted: whether documents have weights.
        subtopics: the shape of the labels of one document.
    """

    def values(*lists: Any) -> Any:
        batch = Lists(*lists)
        results = measure(parts, batch, orders_of(parts, batch, weighted), weighted)
        return ops.stack([ops.where(counts > 0, value, np.nan) for value, counts in results])

    shapes = dict.fromkeys(LIST_ARRAYS, (None, None)) | {"labels": (None, None, *subtopics)}
    types = dict.fromkeys(LIST_ARRAYS, "float64") | {"mask": "bool"}
    return backend.graph(values, [(shapes[name], types[name]) for name in LIST_ARRAYS])


def _bootstrap(values: np.ndarray, level: float, samples: int, seed: int) -> tuple[float, float]:
    """The interval of the mean of values that are drawn with replacement."""
    if not len(values):
        return float("nan"), float("nan")
    random = np.random.default_rng(seed)
    means = [values[random.integers(len(values), size=len(values))].mean() for _ in range(samples)]
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _batches(sizes: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
    """Queries of similar length, and the length of the longest, up to a multiple of `ROW_BLOCK`.

    Where the size of lists is not known to the graph, sums over pairs visit whole blocks of rows.
    The graph serves all sizes: there may be as many as keep padding low.
    """
    longest_first = np.argsort(-sizes, kind="stable")
    start = 0
    while start < len(sizes):
        size = -(-int(sizes[longest_first[start]]) // backend.ROW_BLOCK) * backend.ROW_BLOCK
        count = max(1, BATCH_DOCUMENTS // size)
        yield longest_first[start : start + count], size
        start += count


def _padded(x: np.ndarray, rows: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Rows of `x` as lists, with 0 where `inside` is not."""
    lists = np.zeros(inside.shape + x.shape[1:])
    lists[inside] = x[rows]
    return lists


def _checked_ids(name: str, ids: Any) -> np.ndarray:
    array = np.asarray(ids)
    if array.ndim != 1:
        raise ValueError(f"{name} must have the shape [documents]. Received: shape {array.shape}")
    if not len(array):
        raise ValueError("There are no documents. Received: empty arrays")
    missing = np.zeros(0, int)
    if array.dtype.kind == "f":
        missing = np.flatnonzero(np.isnan(array))
    elif array.dtype.kind == "O":
        missing = np.flatnonzero([value is None or value != value for value in array])
    if len(missing):
        raise ValueError(
            f"{name} must not be missing. Received: {name}[{missing[0]}]={array[missing[0]]!r} "
            f"({len(missing)} such entries in all)"
        )
    return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array


def _checked_numbers(name: str, x: Any, query_ids: np.ndarray, rank: int = 1) -> np.ndarray:
    """`x` in float64: scores that are numbers, others that are finite and not below 0."""
    array = np.asarray(x)
    try:
        array = array.astype(np.float64, copy=False)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be numbers. Received: an array of {array.dtype}") from None
    expected = {1: "[documents]", 2: "[documents, subtopics]"}[rank]
    if array.ndim != rank:
        hint = ""
        if array.ndim > rank:
            hint = "; take the documents out of padded lists, such as labels[real] and scores[real]"
            hint += " with real = labels >= 0"
        if array.ndim == 2 and array.shape[1] == 1:
            hint = f"; flatten it with {name}[:, 0]"
        raise ValueError(
            f"{name} must have the shape {expected}. Received: shape {array.shape}{hint}"
        )
    if len(array) != len(query_ids):
        raise ValueError(
            f"{name} and query_ids must have the same length. "
            f"Received: {name} {array.shape}, query_ids {query_ids.shape}"
        )
    if name == "scores":
        rule, wrong = "scores must not be NaN", np.isnan(array)
    else:
        rule, wrong = f"{name} must be finite and at least 0", ~((array >= 0) & (array < np.inf))
    if wrong.any():
        places = np.argwhere(wrong)
        index = tuple(places[0].tolist())
        raise ValueError(
            f"{rule}. Received: {name}[{', '.join(map(str, index))}]={array[index].item():g}, of "
            f"query {query_ids[index[0] : index[0] + 1].tolist()[0]!r} "
            f"({len(places)} such entries in all)"
        )
    return array


def _document_names(document_ids: Any, query_ids: np.ndarray) -> list[str]:
    if document_ids is None:
        return [str(row) for row in range(len(query_ids))]
    document_ids = _checked_ids("document_ids", document_ids)
    if document_ids.shape != query_ids.shape:
        raise ValueError(
            "document_ids and query_ids must have the same length. "
            f"Received: shapes {document_ids.shape} and {query_ids.shape}"
        )
    names = _words("document_ids", document_ids)
    seen: dict[tuple[Any, str], int] = {}
    for row, key in enumerate(zip(query_ids.tolist(), names, strict=True)):
        if key in seen:
            raise ValueError(
                "A document may stand in a query once. Received: document "
                f"{key[1]!r} of query {key[0]!r} in the rows {seen[key]} and {row}"
            )
        seen[key] = row
    return names


def _words(name: str, values: np.ndarray) -> list[str]:
    words = [str(value) for value in values.tolist()]
    for row, word in enumerate(words):
        if not word:
            raise ValueError(f"{name} must not be empty. Received: {name}[{row}]=''")
        if word.split() != [word]:
            raise ValueError(
                f"trec_eval separates columns by spaces: {name} must be words without them. "
                f"Received: {name}[{row}]={word!r}"
            )
    return words
