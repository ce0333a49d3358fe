"""Synthetic data, and noise and clicks made from labels.

Frequencies are compared with probabilities up to five standard errors of the sample.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tfrankloss import losses
from tfrankloss.data.experiments import (
    add_negatives,
    binarize,
    cascade_clicks,
    perturb_labels,
    position_biased_clicks,
)
from tfrankloss.data.ranking_data import RankingData
from tfrankloss.data.synthetic import synthetic

COLUMNS = ("features", "labels", "row_splits", "query_ids", "document_ids", "weights")


def make_data(lengths: list[int], labels: Any = None, weights: Any = None) -> RankingData:
    """Lists of these lengths; the only feature numbers the documents."""
    count = sum(lengths)
    return RankingData.from_arrays(
        features=np.arange(count)[:, None],
        labels=np.arange(count) % 5 if labels is None else labels,
        query_ids=np.repeat([f"q{i}" for i in range(len(lengths))], lengths),
        document_ids=[f"d{i}" for i in range(count)],
        weights=weights,
    )


def rows_of(data: RankingData) -> np.ndarray:
    """The documents of `make_data` that these are."""
    return data.features[:, 0].astype(int)


def same(first: RankingData, second: RankingData) -> bool:
    pairs = [(getattr(first, name), getattr(second, name)) for name in COLUMNS]
    return all((x is y is None) or np.array_equal(x, y) for x, y in pairs)


def assert_frequency(successes: Any, probability: float) -> None:
    trials = np.size(successes)
    error = math.sqrt(probability * (1 - probability) / trials)
    assert abs(np.mean(successes) - probability) <= 5 * error + 1e-12


EXPERIMENTS: dict[str, Callable[[RankingData, int], RankingData]] = {
    "add_negatives": lambda data, seed: add_negatives(data, 0.4, seed=seed),
    "perturb_labels": lambda data, seed: perturb_labels(data, 0.4, seed=seed),
    "cascade_clicks": lambda data, seed: cascade_clicks(data, seed=seed),
    "position_biased_clicks": lambda data, seed: position_biased_clicks(
        data, -rows_of(data), impressions=3, seed=seed
    ),
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_seed_decides(name: str) -> None:
    data = make_data([30, 1, 20])
    before = make_data([30, 1, 20])
    experiment = EXPERIMENTS[name]
    assert same(experiment(data, 3), experiment(data, 3))
    assert not same(experiment(data, 3), experiment(data, 4))
    assert same(data, before)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_documents_stay_themselves(name: str) -> None:
    data = make_data([30, 1, 20])
    result = EXPERIMENTS[name](data, 0)
    assert result.features.dtype == result.labels.dtype == np.float32
    assert result.document_ids is not None
    assert result.document_ids.tolist() == [f"d{row}" for row in rows_of(result)]


# Labels


def test_binarize() -> None:
    data = make_data([3, 3], labels=[0, 1, 2, 3, 4, 0.5], weights=np.arange(6))
    assert binarize(data).labels.tolist() == [0, 1, 1, 1, 1, 0]
    assert binarize(data, threshold=3).labels.tolist() == [0, 0, 0, 1, 1, 0]
    assert same(binarize(data), make_data([3, 3], [0, 1, 1, 1, 1, 0], np.arange(6)))


def test_perturbs_a_fraction_of_each_query() -> None:
    lengths = [10, 1, 7, 100]
    data = make_data(lengths, labels=np.full(118, 9))
    changed = perturb_labels(data, 0.4).labels != 9
    counts = np.add.reduceat(changed, data.row_splits[:-1])
    assert counts.tolist() == [4, 0, 3, 40]  # 0.4 * 7 = 2.8
    assert same(perturb_labels(data, 0.0), data)
    assert (perturb_labels(data, 1.0).labels <= 4).all()


def test_perturbed_labels_have_the_probabilities_whatever_they_were() -> None:
    labels = np.tile([0, 4], 10_000)
    perturbed = perturb_labels(make_data([20_000], labels=labels), 1.0).labels
    for label, probability in enumerate((0.5, 0.2, 0.15, 0.1, 0.05)):
        for was in (0, 4):
            assert_frequency(perturbed[labels == was] == label, probability)


def test_perturbs_documents_at_all_places_alike() -> None:
    data = make_data([5] * 4000, labels=np.full(20_000, 9))
    changed = (perturb_labels(data, 0.4).labels != 9).reshape(-1, 5)
    for place in range(5):
        assert_frequency(changed[:, place], 0.4)
    # Without replacement: two given documents both with 2/5 * 1/4.
    assert_frequency(changed[:, 0] & changed[:, 3], 0.1)


# Negatives


@pytest.mark.parametrize("fraction, added", [(0.0, [0, 0, 0]), (0.4, [4, 0, 2]), (2.0, [20, 2, 8])])
def test_adds_negatives_of_other_queries_behind(fraction: float, added: list[int]) -> None:
    lengths = [10, 1, 4]
    data = make_data(lengths, labels=np.arange(15) % 4 + 1, weights=np.full(15, 7))
    result = add_negatives(data, fraction)
    assert result.lengths.tolist() == [m + n for m, n in zip(lengths, added)]
    assert result.query_ids.tolist() == ["q0", "q1", "q2"]
    for query, length in enumerate(lengths):
        own, new = slice(0, length), slice(length, None)
        before, after = data[query], result[query]
        assert after.weights is not None
        assert np.array_equal(after.features[own], before.features)
        assert np.array_equal(after.labels[own], before.labels)
        assert (after.weights[own] == 7).all() and (after.weights[new] == 1).all()
        assert (after.labels[new] == 0).all()
        assert not np.isin(rows_of(after)[new], rows_of(before)).any()


def test_negatives_come_from_a_random_document_of_a_random_query() -> None:
    data = make_data([4000, 1, 3])
    added = rows_of(add_negatives(data, 1.0)[0])[4000:]
    assert_frequency(added == 4000, 1 / 2)  # the only document of one query
    for row in (4001, 4002, 4003):
        assert_frequency(added == row, 1 / 6)


# Cascade clicks


def test_cascade_by_hand() -> None:
    data = make_data([3, 2, 1], labels=[0, 2, 0, 0, 0, 1], weights=np.arange(6))
    clicks = cascade_clicks(data, click_probabilities=(0.0, 1.0, 1.0), impressions=20)
    assert clicks.query_ids.tolist() == [f"q{q}/{i}" for q in range(3) for i in range(20)]
    assert clicks.weights is not None
    assert np.array_equal(clicks.weights, rows_of(clicks))
    for number, impression in enumerate(clicks):
        rows = rows_of(impression).tolist()
        if number < 20:  # ends with document 1, and those before it are shuffled
            assert rows in ([1], [0, 1], [2, 1], [0, 2, 1], [2, 0, 1])
            assert impression.labels.tolist() == [0] * (len(rows) - 1) + [1]
        elif number < 40:  # nothing to click: the whole list
            assert sorted(rows) == [3, 4] and impression.labels.tolist() == [0, 0]
        else:
            assert rows == [5] and impression.labels.tolist() == [1]
    assert len(clicks.discard_without_relevant()) == 40


def test_cascade_stops_at_the_first_click() -> None:
    probability, length, count = 0.3, 6, 20_000
    data = make_data([length], labels=np.ones(length))
    clicks = cascade_clicks(data, click_probabilities=(0.0, probability), impressions=count)
    lengths = clicks.lengths
    for stop in range(1, length):
        assert_frequency(lengths == stop, (1 - probability) ** (stop - 1) * probability)
    clicked = np.add.reduceat(clicks.labels, clicks.row_splits[:-1])
    assert_frequency(clicked == 0, (1 - probability) ** length)
    assert (clicks.labels[clicks.row_splits[1:] - 1] == clicked).all()  # the click is the last


def test_cascade_shuffles_evenly_and_clicks_by_label() -> None:
    count = 20_000
    data = make_data([5], labels=np.arange(5))
    clicks = cascade_clicks(data, impressions=count)
    first = clicks.row_splits[:-1]
    rows, clicked = rows_of(clicks)[first], clicks.labels[first] == 1
    for label, probability in enumerate((0.05, 0.3, 0.5, 0.7, 0.95)):
        assert_frequency(rows == label, 1 / 5)
        assert_frequency(clicked[rows == label], probability)


# Position-biased clicks


def test_position_biased_clicks_by_hand() -> None:
    # Without bias and noise all relevant documents are clicked, and the weights are 1.
    data = make_data([3, 2], labels=[0, 1, 1, 1, 0], weights=np.full(5, 7))
    clicks = position_biased_clicks(data, np.zeros(5), eta=0.0, relevance=(0.0, 1.0), noise=0.0)
    assert clicks.query_ids.tolist() == ["q0/0", "q1/0"]
    assert np.array_equal(clicks.features, data.features)
    assert clicks.labels.tolist() == [0, 1, 1, 1, 0]
    assert clicks.weights is not None and clicks.weights.tolist() == [1, 1, 1, 1, 1]


@pytest.mark.parametrize("relevance", ["graded", "binary", (0.0, 0.25, 0.5, 0.5, 1.0)])
@pytest.mark.parametrize("eta, noise", [(1.0, 0.1), (0.5, 0.0), (2.0, 0.3)])
def test_clicks_and_weights_by_rank_and_label(relevance: Any, eta: float, noise: float) -> None:
    of_label: dict[str, list[float]] = {
        "graded": [0, 1 / 15, 3 / 15, 7 / 15, 1],
        "binary": [0, 0, 0, 1, 1],
    }
    expected = of_label[relevance] if isinstance(relevance, str) else relevance
    labels, ranks, count = [3, 0, 4, 1, 2], [2, 5, 3, 1, 4], 4000
    data = make_data([2, 5], labels=[0, 0, *labels])
    scores = [0.0, 0.0, *(-rank for rank in ranks)]
    clicks = position_biased_clicks(data, scores, eta, relevance, noise, count)
    ids = clicks.query_ids.tolist()
    assert ids[:2] == ["q0/0", "q0/1"] and ids[count:] == [f"q1/{i}" for i in range(count)]
    lists = clicks[count:]
    assert lists.weights is not None
    clicked = lists.labels.reshape(count, 5) == 1
    weights = lists.weights.reshape(count, 5)
    for place, (label, rank) in enumerate(zip(labels, ranks)):
        click = noise + (1 - noise) * expected[label]
        assert_frequency(clicked[:, place], rank**-eta * click)
        np.testing.assert_allclose(weights[clicked[:, place], place], rank**eta, rtol=1e-6)
        assert (weights[~clicked[:, place], place] == 1).all()


def test_equal_scores_are_shown_in_random_order() -> None:
    count = 10_000
    data = make_data([2], labels=[4, 4])
    clicks = position_biased_clicks(data, [1, 1], noise=0.0, impressions=count)
    assert_frequency(clicks.labels[::2], (1 + 1 / 2) / 2)
    assert_frequency(clicks.labels[1::2], (1 + 1 / 2) / 2)


def test_weights_make_the_softmax_loss_unbiased() -> None:
    """The mean over impressions is the loss of the labels; without weights it is not."""
    count, labels = 10_000, np.array([[0.0, 1.0, 0.0, 1.0]])
    scores = np.array([[0.3, -1.2, 0.8, 0.1]])
    data = make_data([4], labels=labels[0])
    clicks = position_biased_clicks(
        data, [4, 3, 2, 1], relevance=(0.0, 1.0), noise=0.0, impressions=count
    )
    assert clicks.weights is not None
    loss = losses.SoftmaxLoss(reduction="none")
    clicked, weights = clicks.labels.reshape(count, 4), clicks.weights.reshape(count, 4)
    many = np.repeat(scores, count, axis=0)
    weighted = np.asarray(loss(clicked, many, sample_weight=weights))
    expected = float(loss(labels, scores)[0])
    error = weighted.std() / math.sqrt(count)
    assert abs(weighted.mean() - expected) < 5 * error
    assert abs(np.asarray(loss(clicked, many)).mean() - expected) > 20 * error


# Synthetic data


def test_synthetic_is_decided_by_its_seed() -> None:
    arguments = {"num_queries": 20, "num_features": 30, "mean_documents": 10}
    assert same(synthetic(**arguments, seed=1), synthetic(**arguments, seed=1))
    assert not same(synthetic(**arguments, seed=1), synthetic(**arguments, seed=2))


def test_synthetic_looks_like_web_search() -> None:
    data = synthetic(num_queries=500, num_features=40, mean_documents=60)
    description = data.describe()
    assert data.query_ids.tolist() == list(range(1, 501))
    shares = np.bincount(data.labels.astype(int)) / data.num_documents
    np.testing.assert_allclose(shares, [0.52, 0.32, 0.13, 0.02, 0.01], atol=1e-3)
    # The standard deviation of a log-normal value is sqrt(exp(0.8^2) - 1) of its mean.
    error = 60 * math.sqrt(math.exp(0.8**2) - 1) / math.sqrt(500)
    assert abs(data.lengths.mean() - 60) < 5 * error
    assert data.lengths.min() >= 1 and data.lengths.max() <= 600
    assert np.quantile(data.lengths, 0.95) > 5 * np.quantile(data.lengths, 0.05)
    assert not description.not_finite_features and not description.constant_features
    assert len(description.heavy_tailed_features) >= 5
    magnitudes = np.abs(data.features).max(axis=0)
    assert magnitudes.min() <= 1 and magnitudes.max() > 1e5
    assert ((data.features == 0).mean(axis=0) > 0.6).sum() >= 5  # sparse
    low = np.minimum.reduceat(data.features, data.row_splits[:-1])
    high = np.maximum.reduceat(data.features, data.row_splits[:-1])
    same_in_query = ((low == high).mean(axis=0) == 1).sum()
    assert same_in_query >= 3


@pytest.mark.parametrize("num_features", [1, 2, 5, 12, 13])
def test_synthetic_with_few_features(num_features: int) -> None:
    data = synthetic(num_queries=50, num_features=num_features, mean_documents=20)
    assert data.features.shape == (data.num_documents, num_features)
    assert np.isfinite(data.features).all()
    assert set(data.labels.tolist()) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("num_queries", [1, 2])
def test_synthetic_of_next_to_nothing(num_queries: int) -> None:
    data = synthetic(num_queries=num_queries, num_features=3, mean_documents=0.1)
    assert data.lengths.tolist() == [1] * num_queries


def test_noise_is_what_features_do_not_tell() -> None:
    """Features do not depend on the noise, and labels do more, the more there is."""
    clean, little, much = (synthetic(100, 12, 20, noise=noise) for noise in (0.0, 0.2, 2.0))
    assert np.array_equal(clean.features, much.features)
    assert (little.labels != clean.labels).mean() < (much.labels != clean.labels).mean() / 2


def mean_ndcg(data: RankingData, scores: np.ndarray, topn: int = 10) -> float:
    values = []
    for start, end in zip(data.row_splits[:-1], data.row_splits[1:]):
        gains = 2 ** data.labels[start:end] - 1
        discounts = 1 / np.log2(np.arange(min(topn, end - start)) + 2)
        ranked, ideal = gains[np.argsort(-scores[start:end])], np.sort(gains)[::-1]
        if gains.any():
            values.append((ranked[:topn] @ discounts) / (ideal[:topn] @ discounts))
    return float(np.mean(values))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", [0, 1])
def test_trees_beat_a_network_and_a_network_beats_a_linear_model(seed: int) -> None:
    lightgbm = pytest.importorskip("lightgbm")
    linear_model = pytest.importorskip("sklearn.linear_model")
    neural_network = pytest.importorskip("sklearn.neural_network")
    train = synthetic(400, 24, 40, seed=2 * seed)
    test = synthetic(200, 24, 40, seed=2 * seed + 1)

    def logarithm(data: RankingData) -> np.ndarray:
        return np.sign(data.features) * np.log1p(np.abs(data.features))

    mean, deviation = logarithm(train).mean(axis=0), logarithm(train).std(axis=0)
    train_inputs, test_inputs = ((logarithm(x) - mean) / deviation for x in (train, test))
    linear = linear_model.Ridge().fit(train_inputs, train.labels)
    network = neural_network.MLPRegressor(
        hidden_layer_sizes=(32, 16), alpha=0.3, max_iter=10, batch_size=128, random_state=0
    ).fit(train_inputs, train.labels)
    trees = lightgbm.LGBMRegressor(n_estimators=100, n_jobs=1, verbose=-1)
    trees.fit(train.features, train.labels)
    by_linear = mean_ndcg(test, linear.predict(test_inputs))
    by_network = mean_ndcg(test, network.predict(test_inputs))
    by_trees = mean_ndcg(test, trees.predict(test.features))
    by_chance = mean_ndcg(test, np.random.default_rng(0).random(test.num_documents))
    assert by_chance + 0.1 < by_linear
    assert by_linear + 0.05 < by_network
    assert by_network + 0.05 < by_trees


# Errors

DATA = make_data([2, 3])


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: binarize(DATA, 0), "threshold must be a number above 0. Received: threshold=0"),
        (lambda: add_negatives(DATA, -0.1), "fraction must be .* at least 0. .*fraction=-0.1"),
        (lambda: add_negatives(DATA[0], 1.0), "two queries.*Received: RankingData.1 queries"),
        (lambda: add_negatives(DATA, 1.0, seed=-1), "seed must be an integer.*seed=-1"),
        (lambda: perturb_labels(DATA, 1.1), "fraction must be .* from 0 to 1. .*fraction=1.1"),
        (lambda: perturb_labels(DATA, 0.5, (0.5, 0.4)), "probabilities must add up to 1.*0.4"),
        (lambda: perturb_labels(DATA, 0.5, (1.5, -0.5)), "probabilities must be .* 0 to 1.*1.5"),
        (lambda: perturb_labels(DATA, 0.5, ()), "probabilities must be numbers.*\\(\\)"),
        (lambda: perturb_labels(DATA, 0.5, "half"), "probabilities must be numbers.*'half'"),  # type: ignore[arg-type]
        (lambda: cascade_clicks(DATA, (0.1, math.nan)), "click_probabilities must be .*nan"),
        (lambda: cascade_clicks(DATA, (0.1, 0.2)), "click_probabilities .*2 entries.*label 2"),
        (
            lambda: cascade_clicks(make_data([1], labels=[0.5])),
            "labels must be whole numbers.*label 0.5",
        ),
        (lambda: cascade_clicks(DATA, impressions=0), "impressions must be .* 1. .*impressions=0"),
        (lambda: position_biased_clicks(DATA, [1.0]), "ranker_scores .*one per document.*\\(1,\\)"),
        (lambda: position_biased_clicks(DATA, list("abcde")), "ranker_scores must be numbers"),
        (
            lambda: position_biased_clicks(DATA, [1, 2, math.nan, 4, 5]),
            r"finite. .*ranker_scores\[2\]=nan",
        ),
        (lambda: position_biased_clicks(DATA, np.ones(5), eta=-1), "eta must be .*eta=-1"),
        (
            lambda: position_biased_clicks(DATA, np.ones(5), relevance="grade"),
            "relevance must be one of graded, binary. Received: relevance='grade'",
        ),
        (
            lambda: position_biased_clicks(DATA, np.ones(5), relevance=(0, 1)),
            "relevance must have an entry.*2 entries.*label 2",
        ),
        (lambda: position_biased_clicks(DATA, np.ones(5), noise=2), "noise must be .*noise=2"),
        (lambda: synthetic(0), "num_queries must be .*num_queries=0"),
        (lambda: synthetic(1, 0), "num_features must be .*num_features=0"),
        (lambda: synthetic(1, 1, 0), "mean_documents must be .*mean_documents=0"),
        (lambda: synthetic(1, 1, 1, -1), "noise must be .*noise=-1"),
        (lambda: synthetic(1, 1, 1, seed=0.5), "seed must be .*seed=0.5"),  # type: ignore[arg-type]
    ],
)
def test_errors_name_the_argument(call: Callable[[], RankingData], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
