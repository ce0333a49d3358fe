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

import importlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from keras import ops

from tfrankloss import config
from tfrankloss.core.backend import LIST_SIZES
from tfrankloss.core.lists import Lists
from tfrankloss.metrics import RankingMetric, RankingMetrics
from tfrankloss.metrics.base import measure, orders_of
from tfrankloss.options import check_fraction, check_integer

DEFAULT_METRICS = ("ndcg@1", "ndcg@5", "ndcg@10", "mrr", "map")
# Lists of similar length are measured together, up to this many documents at once.
BATCH_DOCUMENTS = 1 << 20


@dataclass(frozen=True)
class Comparison:
    """What changes from one ranking to another, for one metric."""

    difference: float  # mean over the queries
    p_value: float  # of the paired t-test, two-sided
    wins: int  # queries that got better
    losses: int
    ties: int


@dataclass(frozen=True)
class Evaluation:
    """Metrics of a test set.

    Attributes:
        means: the mean over the queries that count, by name of the metric; NaN if none does.
        per_query: the value of each query, `[queries]`, by name; NaN where a query does not count.
        query_ids: the queries, in the order in which they were first seen.
    """

    means: dict[str, float]
    per_query: dict[str, np.ndarray] = field(repr=False)
    query_ids: np.ndarray = field(repr=False)

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
        intervals = {}
        for name, values in self.per_query.items():
            values = values[~np.isnan(values)]
            if not len(values):
                intervals[name] = (np.nan, np.nan)
                continue
            # The draws are those of this metric alone: they do not depend on the other metrics.
            random = np.random.default_rng(seed)
            means = [
                values[random.integers(len(values), size=len(values))].mean()
                for _ in range(samples)
            ]
            low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
            intervals[name] = (float(low), float(high))
        return intervals

    def compare(self, other: "Evaluation") -> dict[str, Comparison]:
        """This ranking against `other` (the baseline) on the same queries, by name of the metric.

        Needs SciPy for the paired t-test.
        """
        stats = _needs("scipy.stats", "evaluate")
        shared = [name for name in self.per_query if name in other.per_query]
        if not shared:
            raise ValueError(
                f"The evaluations share no metric. Received: {list(self.per_query)} and "
                f"{list(other.per_query)}"
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
            varied = len(difference) > 1 and np.ptp(difference) > 0
            p_value = stats.ttest_1samp(difference, 0.0).pvalue if varied else np.nan
            if len(difference) and not difference.any():
                p_value = 1.0
            comparisons[name] = Comparison(
                difference=float(difference.mean()) if len(difference) else np.nan,
                p_value=float(p_value),
                wins=int((difference > 0).sum()),
                losses=int((difference < 0).sum()),
                ties=int((difference == 0).sum()),
            )
        return comparisons

    def to_pandas(self) -> Any:
        """The table per query as a pandas frame, one column per metric."""
        pandas = _needs("pandas", "evaluate")
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
    parts = RankingMetrics(metrics).metrics
    labels, scores, query_ids = np.asarray(labels), np.asarray(scores), np.asarray(query_ids)
    rank = 2 if parts[0].subtopics else 1
    _check_arrays(labels, scores, query_ids, rank)
    labels, scores = labels.astype(np.float64), scores.astype(np.float64)
    given = _checked_weights(weights, len(scores))
    _check_numbers(labels, scores, query_ids)

    order, starts = _group(query_ids)
    sizes = np.diff(starts)
    values = np.empty((len(parts), len(sizes)))
    with config.without_xla():  # to compile programs that run a few times would take longer
        for queries, size in _batches(sizes):
            inside = np.arange(size)[None, :] < sizes[queries, None]
            rows = order[np.minimum(starts[queries, None] + np.arange(size), len(order) - 1)]
            padding = ~inside if rank == 1 else ~inside[:, :, None]
            batch = Lists(
                scores=np.where(inside, scores[rows], 0.0),
                labels=np.where(padding, 0.0, labels[rows]),
                mask=inside,
                weights=inside.astype(np.float64) if given is None else given[rows] * inside,
            )
            batch = Lists(*(ops.convert_to_tensor(x) for x in batch))
            orders = orders_of(parts, batch)
            results = measure(parts, batch, orders, given is not None)
            for part, (value, counts) in enumerate(results):
                counted = ops.convert_to_numpy(counts) > 0
                values[part, queries] = np.where(counted, ops.convert_to_numpy(value), np.nan)

    names = [part.name for part in parts]
    per_query = dict(zip(names, values, strict=True))
    means = {
        name: float(np.nanmean(x)) if np.isfinite(x).any() else float("nan")
        for name, x in per_query.items()
    }
    return Evaluation(means, per_query, query_ids[order[starts[:-1]]])


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
        document_ids: `[documents]`; by default the number of each row.
        tag: name of the run.
    """
    scores, query_ids = np.asarray(scores), np.asarray(query_ids)
    _check_arrays(scores, scores, query_ids, 1)
    _check_numbers(None, scores, query_ids)
    documents = _document_names(document_ids, query_ids)
    queries = _words("query_ids", query_ids)
    _words("tag", np.asarray([tag]))
    order, starts = _group(query_ids)

    def lines() -> Iterator[str]:
        for start, end in zip(starts[:-1], starts[1:], strict=True):
            rows = order[start:end]
            rows = rows[np.argsort(-scores[rows].astype(np.float64), kind="stable")]
            for rank, row in enumerate(rows, start=1):
                score = float(scores[row])
                yield f"{queries[row]} Q0 {documents[row]} {rank} {score!r} {tag}\n"

    _write(path, lines())


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
    labels, query_ids = np.asarray(labels), np.asarray(query_ids)
    _check_arrays(labels, labels, query_ids, 1)
    _check_numbers(labels, labels, query_ids)
    broken = np.flatnonzero(labels != np.floor(labels))
    if len(broken):
        raise ValueError(
            "trec_eval takes whole numbers as labels. "
            f"Received: labels[{broken[0]}]={labels[broken[0]]!r}"
        )
    documents = _document_names(document_ids, query_ids)
    queries = _words("query_ids", query_ids)
    rows = range(len(labels))
    _write(path, (f"{queries[row]} 0 {documents[row]} {int(labels[row])}\n" for row in rows))


def _group(query_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows query by query, in the order in which queries are first seen, and where each starts."""
    changes = np.flatnonzero(query_ids[1:] != query_ids[:-1]) + 1
    starts = np.concatenate([[0], changes, [len(query_ids)]])
    runs = query_ids[starts[:-1]]
    names, first, inverse = np.unique(runs, return_index=True, return_inverse=True)
    if len(names) == len(runs):
        return np.arange(len(query_ids)), starts
    seen = np.argsort(np.argsort(first))  # the place of each name in the order of appearance
    number = np.repeat(seen[inverse.ravel()], np.diff(starts))
    order = np.argsort(number, kind="stable")
    return order, np.concatenate([[0], np.cumsum(np.bincount(number))])


def _batches(sizes: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
    """Queries of similar length, and the length of the longest of them."""
    similar = np.searchsorted(LIST_SIZES, sizes)
    for number in np.unique(similar):
        queries = np.flatnonzero(similar == number)
        size = int(sizes[queries].max())
        count = max(1, BATCH_DOCUMENTS // size)
        for start in range(0, len(queries), count):
            yield queries[start : start + count], size


def _check_arrays(labels: np.ndarray, scores: np.ndarray, query_ids: np.ndarray, rank: int) -> None:
    if scores.ndim == 2 and scores.shape[1] == 1:
        raise ValueError(
            f"scores must be one number per document. Received: shape {scores.shape}; "
            "flatten it with scores[:, 0]"
        )
    expected = {1: "[documents]", 2: "[documents, subtopics]"}[rank]
    shapes = f"labels {labels.shape}, scores {scores.shape}, query_ids {query_ids.shape}"
    if labels.ndim != rank or scores.ndim != 1 or query_ids.ndim != 1:
        raise ValueError(
            f"labels must have the shape {expected}, scores and query_ids [documents]. "
            f"Received: {shapes}"
        )
    if not len(labels) == len(scores) == len(query_ids):
        raise ValueError(
            f"labels, scores and query_ids must have the same length. Received: {shapes}"
        )
    if not len(scores):
        raise ValueError("There are no documents. Received: empty arrays")
    for name, x in (("labels", labels), ("scores", scores)):
        if x.dtype.kind not in "fiub":
            raise ValueError(f"{name} must be numbers. Received: an array of {x.dtype}")


def _check_numbers(labels: np.ndarray | None, scores: np.ndarray, query_ids: np.ndarray) -> None:
    if labels is not None:
        wrong = ~((labels >= 0) & (labels < np.inf))
        _check_none("labels must be finite and at least 0", "labels", labels, wrong, query_ids)
    _check_none("scores must not be NaN", "scores", scores, np.isnan(scores), query_ids)


def _check_none(
    rule: str, name: str, x: np.ndarray, wrong: np.ndarray, query_ids: np.ndarray
) -> None:
    if wrong.any():
        places = np.argwhere(wrong)
        index = tuple(places[0].tolist())
        raise ValueError(
            f"{rule}. Received: {name}[{', '.join(map(str, index))}]={x[index].item()!r}, of query "
            f"{query_ids[index[0]].item()!r} ({len(places)} such entries in all)"
        )


def _checked_weights(weights: Any, count: int) -> np.ndarray | None:
    if weights is None:
        return None
    array = np.asarray(weights, dtype=np.float64)
    if array.shape != (count,):
        raise ValueError(
            f"weights must have the shape [documents], here ({count},). "
            f"Received: shape {array.shape}"
        )
    wrong = np.flatnonzero(~((array >= 0) & (array < np.inf)))
    if len(wrong):
        raise ValueError(
            "weights must be finite and at least 0. "
            f"Received: weights[{wrong[0]}]={array[wrong[0]].item()!r}"
        )
    return array


def _document_names(document_ids: Any, query_ids: np.ndarray) -> list[str]:
    if document_ids is None:
        return [str(row) for row in range(len(query_ids))]
    document_ids = np.asarray(document_ids)
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
        if not word or word.split() != [word]:
            raise ValueError(
                f"trec_eval separates columns by spaces: {name} must be words without them. "
                f"Received: {name}[{row}]={word!r}"
            )
    return words


def _write(path: str | os.PathLike[str], lines: Iterator[str]) -> None:
    """Writes beside the target and renames, so that no half of a file is taken for a whole."""
    target = Path(path)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with open(unfinished, "w", encoding="utf-8") as file:
            file.writelines(lines)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


def _needs(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f'{module.partition(".")[0]} is needed here: pip install "tfrankloss[{extra}]"'
        ) from error
