"""Synthetic queries with the difficulties of those of a web search engine."""

from collections.abc import Callable

import numpy as np

from tfrankloss.data.ranking_data import RankingData, splits_of
from tfrankloss.options import check_integer, check_not_negative, check_positive

# The shares of the labels 0 to 4, about those of Web30K.
LABEL_SHARES = (0.52, 0.32, 0.13, 0.02, 0.01)
# Relevance depends on at most this many features, the first ones.
SIGNALS = 12
# Each block of as many further features copies them, with this correlation.
LIKENESS = (0.9, 0.5, 0.7, 0.0)
# Standard deviations: of the logarithm of a list's length; of what makes all documents of a query
# more relevant, in units of what the features say.
SPREAD_OF_LENGTHS, SPREAD_OF_QUERIES = 0.55, 0.7

# From a standard normal value s to a feature. Features take turns in kind; m, from 0 to 1, gives
# each a magnitude of its own.
KINDS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "log-normal": lambda s, m: 10 ** (4 * m) * np.exp(1.5 * s),
    "score": lambda s, m: 10 ** (2 * m) * (s - 0.5),
    "count": lambda s, m: np.floor(10 ** (1 + 2 * m) * np.exp(1.2 * s)),
    "sparse": lambda s, m: 10 ** (3 * m) * np.maximum(s - 0.6, 0) ** 2,
    "share": lambda s, m: 1 / (1 + np.exp(-2 * s)),
    "query": lambda s, m: np.floor(3 * np.exp(0.6 * s)),
}


def synthetic(
    num_queries: int = 1000,
    num_features: int = 136,
    mean_documents: float = 120,
    noise: float = 0.7,
    seed: int = 0,
) -> RankingData:
    """Makes up queries, documents and labels: data to try things on, not to report results of.

    Nothing here was ever searched for by anyone. The data are made to have what makes Web30K
    difficult, without a download:

    - Lists have log-normal lengths, from 1 to ten times the mean.
    - The labels 0 to 4 have the shares 52, 32, 13, 2 and 1 percent. Some queries have many relevant
      documents, others few or none, whatever their features.
    - Features are of all magnitudes up to millions: log-normal values, counts, scores of both
      signs, sparse ones, shares from 0 to 1, and ones that are the same in all documents of a
      query, or nearly. For a network, take the logarithm.
    - Relevance depends on the first twelve features only, by thresholds, ranges and interactions.
      Given that many, a small network ranks clearly better than a linear model, and boosted trees
      better than the network. Further features are noisy copies of the twelve, or mere noise.

    How relevance depends on the features does not change with the seed: train on the data of one
    seed and test on those of another. Queries are numbered from 1.

    Args:
        num_queries: number of queries.
        num_features: number of features.
        mean_documents: mean length of the lists, about.
        noise: standard deviation of the part of relevance that no feature tells, in units of the
            part that features tell.
        seed: the same seed gives the same bits.

    >>> data = synthetic(num_queries=100, num_features=20, mean_documents=40)
    >>> data.features.shape == (data.num_documents, 20)
    True
    >>> np.unique(data.labels).tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0]
    """
    check_integer("num_queries", num_queries, minimum=1)
    check_integer("num_features", num_features, minimum=1)
    check_positive("mean_documents", mean_documents)
    check_not_negative("noise", noise)
    check_integer("seed", seed, minimum=0)
    generator = np.random.default_rng(seed)
    lengths = _lengths(generator, num_queries, mean_documents)
    signals = _signals(generator, lengths, num_features)
    relevance = _relevance(signals)
    spread = relevance.std()
    of_queries = SPREAD_OF_QUERIES * generator.standard_normal(num_queries)
    of_documents = noise * generator.standard_normal(len(relevance))
    relevance += spread * (np.repeat(of_queries, lengths) + of_documents)
    bounds = np.quantile(relevance, np.cumsum(LABEL_SHARES)[:-1])
    return RankingData(
        features=_features(signals),
        labels=np.searchsorted(bounds, relevance).astype(np.float32),
        row_splits=splits_of(lengths),
        query_ids=np.arange(1, num_queries + 1),
    )


def _lengths(generator: np.random.Generator, num_queries: int, mean: float) -> np.ndarray:
    normal = generator.standard_normal(num_queries)
    lengths = mean * np.exp(SPREAD_OF_LENGTHS * normal - SPREAD_OF_LENGTHS**2 / 2)
    return np.clip(np.rint(lengths), 1, np.ceil(10 * mean)).astype(np.int64)


def _signals(generator: np.random.Generator, lengths: np.ndarray, width: int) -> np.ndarray:
    """`[documents, features]`, each standard normal over all documents: features without units."""
    # The share of the variance that is between queries: all or nearly all for features of queries.
    between = np.full(width, 0.3, np.float32)
    between[list(KINDS).index("query") :: len(KINDS)] = 1.0
    between[SIGNALS - 1 :: SIGNALS] = 0.98
    signals = generator.standard_normal((lengths.sum(), width), dtype=np.float32)
    signals *= np.sqrt(1 - between)
    of_queries = generator.standard_normal((len(lengths), width), dtype=np.float32)
    signals += np.repeat(np.sqrt(between) * of_queries, lengths, axis=0)
    for block, start in enumerate(range(SIGNALS, width, SIGNALS)):
        copies = signals[:, start : start + SIGNALS]
        likeness = LIKENESS[block % len(LIKENESS)]
        copies *= (1 - likeness**2) ** 0.5
        copies += likeness * signals[:, : copies.shape[1]]
    return signals


def _relevance(signals: np.ndarray) -> np.ndarray:
    """`[documents]`, on no particular scale. Where there are few features, they are read twice."""
    s = [signals[:, i % signals.shape[1]].astype(np.float64) for i in range(SIGNALS)]
    return (
        0.3 * s[0]
        + 1.0 * (s[0] > 0.3) * (s[2] > 0.0)
        + 0.8 * (s[6] < 0.5) * (s[7] > 0.0)
        + 0.6 * (s[9] > 1.0) * (s[11] > 0.0)
        # Too little is as bad as too much: a linear model sees next to nothing of these.
        + 1.2 * (np.abs(s[1]) < 0.7)
        + 1.2 * (np.abs(s[4] - 0.3) < 0.6)
        # What speaks for a document in one case speaks against it in the other.
        + 0.6 * np.sign(s[3] - 0.8) * np.sign(s[10])
        + 1.2 * np.where(s[5] > 0.0, s[8] > 0.0, s[8] < 0.0)
    )


def _features(signals: np.ndarray) -> np.ndarray:
    """The signals in the units of features, in place: there may be many."""
    # Multiples of the golden ratio, modulo 1, fill the range evenly, however many there are.
    magnitude = ((0.618034 * np.arange(signals.shape[1])) % 1).astype(np.float32)
    for number, kind in enumerate(KINDS.values()):
        columns = slice(number, None, len(KINDS))
        signals[:, columns] = kind(signals[:, columns], magnitude[columns])
    return signals
