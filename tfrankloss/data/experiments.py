"""Noise and clicks made from graded labels, as in the papers' experiments.

`add_negatives`, `perturb_labels` and `cascade_clicks` are those of Bruch, "An Alternative Cross
Entropy Loss for Learning-to-Rank" (WWW 2021), Sect. 5.4 and 5.5: change the training data so, and
test on data that are as they were.

>>> from tfrankloss.data.synthetic import synthetic
>>> data = synthetic(num_queries=50, num_features=5, mean_documents=20)
>>> noisy = perturb_labels(add_negatives(data, fraction=0.4), fraction=0.2)
>>> clicks = cascade_clicks(data, impressions=10)
>>> len(noisy), len(clicks)
(50, 500)
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfrankloss.data.ranking_data import RankingData, splits_of
from tfrankloss.options import (
    check_choice,
    check_fraction,
    check_integer,
    check_not_negative,
    check_positive,
)

# How relevant a document of label 0 to 4 is: by its gain, and where only 3 and 4 count.
RELEVANCE = {
    "graded": tuple((2.0**label - 1) / (2.0**4 - 1) for label in range(5)),
    "binary": (0.0, 0.0, 0.0, 1.0, 1.0),
}


def binarize(data: RankingData, threshold: float = 1) -> RankingData:
    """Labels 1 from the threshold on and 0 below it.

    Args:
        data: queries with their documents.
        threshold: the lowest label that becomes 1, above 0.

    >>> data = RankingData.from_arrays([[0.0], [0.0], [0.0]], [0, 1, 3], ["a", "a", "a"])
    >>> binarize(data, threshold=2).labels.tolist()
    [0.0, 0.0, 1.0]
    """
    check_positive("threshold", threshold)
    return replace(data, labels=(data.labels >= threshold).astype(np.float32))


def add_negatives(data: RankingData, fraction: float, seed: int = 0) -> RankingData:
    """Makes lists longer by documents of other queries, of label 0 (Bruch, WWW 2021, Sect. 5.4).

    For each new document one of the other queries is drawn, and then one of its documents; the same
    one may be drawn again. It keeps its features and its id, gets label 0 and, where the data have
    weights, weight 1. New documents stand behind those of the list, which stay as they are.

    Args:
        data: at least two queries with their documents.
        fraction: new documents of a query for each that it has (their number is rounded): 0.4 makes
            lists 40 % longer; more than 1 is allowed.
        seed: the same seed draws the same documents.

    >>> data = RankingData.from_arrays([[1.0], [2.0], [3.0]], [1, 2, 1], ["a", "a", "b"])
    >>> longer = add_negatives(data, fraction=0.5)  # round(0.5 * 1) = 0 of them for "b"
    >>> longer[0].features.tolist(), longer[0].labels.tolist()
    ([[1.0], [2.0], [3.0]], [1.0, 2.0, 0.0])
    """
    check_not_negative("fraction", fraction)
    check_integer("seed", seed, minimum=0)
    if len(data) < 2:
        raise ValueError(
            f"data must have at least two queries: documents come from the others. Received: {data}"
        )
    generator = np.random.default_rng(seed)
    lengths = data.lengths
    added = np.rint(fraction * lengths).astype(np.int64)
    query = np.repeat(np.arange(len(data)), added)
    other = generator.integers(len(data) - 1, size=len(query))
    other += other >= query  # leaves out the query itself
    drawn = data.row_splits[other] + generator.integers(lengths[other])
    rows = np.concatenate([np.arange(data.num_documents), drawn])
    is_new = np.arange(len(rows)) >= data.num_documents
    # Stable: the documents of a list first, in their order, then the new ones.
    order = np.argsort(np.append(_query_numbers(data), query), kind="stable")
    rows, is_new = rows[order], is_new[order]
    longer = data.take_rows(rows, splits_of(lengths + added), slice(None))
    weights = longer.weights
    if weights is not None:
        weights = np.where(is_new, np.float32(1), weights)
    return replace(longer, labels=np.where(is_new, np.float32(0), longer.labels), weights=weights)


def perturb_labels(
    data: RankingData,
    fraction: float,
    probabilities: Sequence[float] = (0.5, 0.2, 0.15, 0.1, 0.05),
    seed: int = 0,
) -> RankingData:
    """Gives some documents of each query a label drawn at random (Bruch, WWW 2021, Sect. 5.4).

    The documents are drawn without replacement, their labels independently of each other and of
    what they were; a document may draw the label that it had.

    Args:
        data: queries with their documents.
        fraction: the share of the documents of each query (their number is rounded), from 0 to 1.
        probabilities: of the labels 0, 1, ...; 1 in all.
        seed: the same seed draws the same documents and labels.

    >>> data = RankingData.from_arrays(np.zeros((4, 1)), [0, 0, 0, 0], ["a", "a", "a", "a"])
    >>> sorted(perturb_labels(data, fraction=0.5, probabilities=(0.0, 1.0)).labels.tolist())
    [0.0, 0.0, 1.0, 1.0]
    """
    check_fraction("fraction", fraction, closed=True)
    shares = _probabilities("probabilities", probabilities)
    if abs(shares.sum() - 1) > 1e-6:
        raise ValueError(
            f"probabilities must add up to 1. Received: probabilities={probabilities!r}"
        )
    check_integer("seed", seed, minimum=0)
    generator = np.random.default_rng(seed)
    query = _query_numbers(data)
    order = np.lexsort((generator.random(len(query)), query))
    place = np.arange(len(query)) - data.row_splits[query]
    chosen = order[place < np.rint(fraction * data.lengths)[query]]
    labels = data.labels.copy()
    labels[chosen] = generator.choice(len(shares), size=len(chosen), p=shares / shares.sum())
    return replace(data, labels=labels)


def cascade_clicks(
    data: RankingData,
    click_probabilities: Sequence[float] = (0.05, 0.3, 0.5, 0.7, 0.95),
    impressions: int = 10,
    seed: int = 0,
) -> RankingData:
    """Clicks of users who read a shuffled list up to the first click (Bruch, WWW 2021, Sect. 5.5).

    Each impression of a query is a list of its own: the documents are shuffled, each is clicked
    with the probability of its label, and the list ends with the first click. Its labels are 1 for
    that document and 0 for those before it. A user who clicks nothing sees the whole list, which
    stays, without a relevant document; `discard_without_relevant` leaves such lists out.

    Impression `i` of the query of id `q` has the id `"q/i"`, a string, and is list
    `number of q * impressions + i`: split data before you make clicks of them. Documents keep
    features, ids and weights.

    Args:
        data: queries with their documents, of whole labels.
        click_probabilities: of documents of the labels 0, 1, ...
        impressions: lists made of each query.
        seed: the same seed gives the same clicks.

    >>> data = RankingData.from_arrays([[1.0], [2.0]], [0, 1], ["a", "a"])
    >>> clicks = cascade_clicks(data, click_probabilities=(0.0, 1.0), impressions=4)
    >>> clicks.query_ids.tolist()
    ['a/0', 'a/1', 'a/2', 'a/3']
    >>> [impression.features[-1].tolist() for impression in clicks]  # what was clicked
    [[2.0], [2.0], [2.0], [2.0]]
    """
    table = _probabilities("click_probabilities", click_probabilities)
    click_probability = _by_label("click_probabilities", table, data.labels)
    check_integer("seed", seed, minimum=0)
    generator = np.random.default_rng(seed)
    rows, splits, ids = _impressions(data, impressions)
    number = np.repeat(np.arange(len(ids)), np.diff(splits))
    rows = rows[np.lexsort((generator.random(len(rows)), number))]
    clicked = generator.random(len(rows)) < click_probability[rows]
    before = np.cumsum(clicked) - clicked
    seen = before == before[splits[number]]  # no click in this list so far
    seen_splits = splits_of(np.bincount(number[seen], minlength=len(ids)))
    lists = data.take_rows(rows[seen], seen_splits, np.repeat(np.arange(len(data)), impressions))
    return replace(lists, labels=clicked[seen].astype(np.float32), query_ids=ids)


def position_biased_clicks(
    data: RankingData,
    ranker_scores: Any,
    eta: float = 1.0,
    relevance: str | Sequence[float] = "graded",
    noise: float = 0.1,
    impressions: int = 1,
    seed: int = 0,
) -> RankingData:
    """Clicks on the lists of a ranker, whose users look at the first documents more often.

    The document at rank `k` is examined with the propensity `(1/k)^eta`, and clicked, if examined,
    with the probability `noise + (1 - noise) relevance(label)`, all independently (Joachims et al.,
    "Unbiased Learning-to-Rank with Biased Feedback", WSDM 2017; graded relevance as in Ai et al.,
    "Unbiased Learning to Rank with Unbiased Propensity Estimation", SIGIR 2018).

    The labels that are returned are clicks, 0 or 1. The weight of a clicked document is its inverse
    propensity `k^eta`, so that the weighted sum of clicks is, in expectation, the sum of the click
    probabilities of all documents, were they all examined: a loss that is a weighted sum over the
    relevant documents, such as the softmax loss, is unbiased. The weight of a document without a
    click is 1. Nobody knows whether it was examined, and an inverse propensity would not help: in
    a loss with terms for documents without a click, such as the sigmoid cross entropy, it would
    multiply all terms of a rank alike, and their balance would stay as biased as it was. Weights
    that the data had are replaced.

    Documents keep their order, which is not that of the ranker, and their features and ids.
    Impression `i` of the query of id `q` has the id `"q/i"`, a string, and is list
    `number of q * impressions + i`: split data before you make clicks of them.

    Args:
        data: queries with their documents, of whole labels.
        ranker_scores: `[documents]`, finite; the lists that users see are sorted by them, equal
            scores in random order.
        eta: how much attention falls with the rank; with 0 there is no bias.
        relevance: `"graded"` is `(2^label - 1) / 15` and `"binary"` whether the label is 3 or 4,
            both for the labels 0 to 4; or numbers from 0 to 1 for the labels 0, 1, ...
        noise: click probability of an examined document of relevance 0.
        impressions: lists made of each query.
        seed: the same seed gives the same clicks.

    >>> data = RankingData.from_arrays([[1.0], [2.0], [3.0]], [0, 1, 1], ["a", "a", "a"])
    >>> clicks = position_biased_clicks(
    ...     data, ranker_scores=[0.3, 0.2, 0.1], relevance=(0.0, 1.0), noise=0.0, impressions=50
    ... )
    >>> np.unique(clicks.weights[clicks.labels == 1]).tolist()  # clicks at the ranks 2 and 3
    [2.0, 3.0]
    """
    scores = np.asarray(ranker_scores)
    if scores.shape != data.labels.shape or scores.dtype.kind not in "fiub":
        raise ValueError(
            f"ranker_scores must be numbers, one per document, {data.labels.shape}. "
            f"Received: {scores.dtype} {scores.shape}"
        )
    if not np.isfinite(scores).all():
        wrong = np.flatnonzero(~np.isfinite(scores))
        raise ValueError(
            "ranker_scores must be finite. Received: "
            f"ranker_scores[{wrong[0]}]={scores[wrong[0]]}, {len(wrong)} in all"
        )
    check_not_negative("eta", eta)
    check_fraction("noise", noise, closed=True)
    check_integer("seed", seed, minimum=0)
    if isinstance(relevance, str):
        check_choice("relevance", relevance, tuple(RELEVANCE))
        relevance = RELEVANCE[relevance]
    table = noise + (1 - noise) * _probabilities("relevance", relevance)
    generator = np.random.default_rng(seed)
    click_probability = _by_label("relevance", table, data.labels)
    rows, splits, ids = _impressions(data, impressions)
    number = np.repeat(np.arange(len(ids)), np.diff(splits))
    order = np.lexsort((generator.random(len(rows)), -scores.astype(np.float64)[rows], number))
    ranks = np.empty(len(rows))
    ranks[order] = np.arange(len(rows)) - splits[number] + 1
    propensities = (1 / ranks) ** eta
    clicked = generator.random(len(rows)) < propensities * click_probability[rows]
    lists = data.take_rows(rows, splits, np.repeat(np.arange(len(data)), impressions))
    return replace(
        lists,
        labels=clicked.astype(np.float32),
        query_ids=ids,
        weights=np.where(clicked, 1 / propensities, 1.0).astype(np.float32),
    )


def _query_numbers(data: RankingData) -> np.ndarray:
    """`[documents]`: the number of each document's query."""
    return np.repeat(np.arange(len(data)), data.lengths)


def _impressions(data: RankingData, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, row splits and ids of lists where each query comes `count` times."""
    check_integer("impressions", count, minimum=1)
    splits = splits_of(np.repeat(data.lengths, count))
    shift = np.repeat(data.row_splits[:-1], count) - splits[:-1]
    rows = np.arange(splits[-1]) + np.repeat(shift, np.diff(splits))
    names = data.query_ids.astype(str).tolist()
    ids = [f"{name}/{impression}" for name in names for impression in range(count)]
    return rows, splits, np.array(ids, dtype=str)


def _probabilities(name: str, values: Any) -> np.ndarray:
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.ndim != 1 or not len(array) or not ((array >= 0) & (array <= 1)).all():
        raise ValueError(
            f"{name} must be numbers from 0 to 1, one per label from 0 on. "
            f"Received: {name}={values!r}"
        )
    return array


def _by_label(name: str, table: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """`[documents]`: the entry of the table at each label."""
    wrong = labels[(labels >= len(table)) | (labels != np.floor(labels))]
    if len(wrong):
        raise ValueError(
            f"{name} must have an entry for each label, and labels must be whole numbers. "
            f"Received: {len(table)} entries of {name}, for the labels 0 to {len(table) - 1}, "
            f"and data with the label {wrong[0]:g}"
        )
    return table[labels.astype(np.int64)]
