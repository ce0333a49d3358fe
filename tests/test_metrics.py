"""Every metric against its definition, under every rule for ties, and against other libraries."""

import copy
import math
import pickle
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import metric_oracles
from tfrankloss import config, metrics
from tfrankloss.core.ranked import TIES

SUBTOPICS = 3

# Options of each metric that change its formula, the plainest first.
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "ndcg": [{}, {"topn": 3}, {"topn": 2, "gain": "linear", "discount": "linear"}],
    "dcg": [{}, {"topn": 3, "gain": "linear"}],
    "mrr": [{}, {"topn": 2}, {"relevance_threshold": 2}],
    "map": [{}, {"topn": 3}, {"relevance_threshold": 2}],
    "precision": [{}, {"topn": 3}, {"topn": 3, "relevance_threshold": 2}],
    "recall": [{}, {"topn": 3}, {"topn": 2, "relevance_threshold": 2}],
    "hit_rate": [{}, {"topn": 2}, {"topn": 1, "relevance_threshold": 2}],
    "arp": [{}, {"normalize": False}],
    "err": [{}, {"topn": 3, "highest_label": 2}],
    "rbp": [{}, {"persistence": 0.5, "topn": 3}, {"relevance_threshold": 2}],
    "ordered_pair_accuracy": [{}],
    "alpha_ndcg": [{}, {"topn": 3, "alpha": 0.8, "discount": "linear"}],
    "precision_ia": [{}, {"topn": 3}],
    "ndcg_cost": [{}, {"topn": 3}],
    "lambda_rank_metric": [{}, {"topn": 3, "gain": "linear"}],
}
CASES = [
    pytest.param(name, options, id="-".join([name, *(f"{k}={v}" for k, v in options.items())]))
    for name, variants in OPTIONS.items()
    for options in variants
]
FIRST_CASES = [(name, variants[0]) for name, variants in OPTIONS.items()]


@pytest.fixture(autouse=True)
def without_xla(request: pytest.FixtureRequest) -> Any:
    """Compiling takes seconds; what is compiled is compared in tests of its own."""
    with config.without_xla():
        yield


def make_lists(name: str, seed: int = 0, ties: bool = True) -> tuple[np.ndarray, ...]:
    """Lists of 1 to 6 documents with many equal scores; one without a relevant document."""
    generator = np.random.default_rng(seed)
    shape = (8, 6, SUBTOPICS) if metrics.METRICS[name].subtopics else (8, 6)
    labels = generator.integers(0, 4, shape).astype("float64")
    labels[generator.random(shape) < 0.3] = 0
    labels[2] = 0
    for row, length in enumerate((6, 6, 5, 4, 6, 3, 2, 1)):
        labels[row, length:] = -1
    scores = generator.choice([0.5, 1.0, 1.5] if ties else 100, (8, 6), replace=True)
    if not ties:
        scores = generator.permuted(np.tile(np.arange(6.0), (8, 1)), axis=1)
    weights = generator.uniform(0.5, 2.0, (8, 6))
    return labels, scores.astype("float64"), weights


def expected_values(
    name: str, lists: tuple[np.ndarray, ...], ties: str, **options: Any
) -> tuple[np.ndarray, np.ndarray]:
    results = []
    for labels, scores, weights in zip(*lists):
        real = (labels if labels.ndim == 1 else labels.max(axis=1)) >= 0
        results.append(
            metric_oracles.measure(
                name, labels[real].tolist(), scores[real], weights[real], ties, **options
            )
        )
    values, relevant = zip(*results)
    return np.array(values), np.array(relevant)


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize(("name", "options"), CASES)
def test_equals_the_definition(name: str, options: dict[str, Any], ties: str) -> None:
    lists = make_lists(name)
    if ties in ("worst", "best"):  # not defined with weights of documents
        lists = *lists[:2], np.ones_like(lists[2])
    expected, relevant = expected_values(name, lists, ties, **options)
    metric = metrics.METRICS[name](ties=ties, **options)
    lists = lists[:2] if ties in ("worst", "best") else lists
    values, counts = metric.per_list(*(tf.constant(x) for x in lists))
    np.testing.assert_array_equal(counts, relevant)
    np.testing.assert_allclose(values[relevant], expected[relevant], rtol=1e-12, atol=1e-14)

    metric.update_state(*lists)
    np.testing.assert_allclose(metric.result(), expected[relevant].mean(), rtol=1e-6)


@pytest.mark.parametrize("no_relevant", ["discard", "zero", "one"])
@pytest.mark.parametrize(("name", "options"), FIRST_CASES)
def test_lists_without_relevant_documents(
    name: str, options: dict[str, Any], no_relevant: str
) -> None:
    labels, scores, _ = make_lists(name, ties=False)
    expected, relevant = expected_values(name, (labels, scores, np.ones_like(scores)), "position")
    assert not relevant[2] and relevant.sum() > 3
    if no_relevant != "discard":
        expected = np.where(relevant, expected, 0.0 if no_relevant == "zero" else 1.0)
        relevant[:] = True
    empty = np.full_like(labels[:1], -1)
    metric = metrics.METRICS[name](no_relevant=no_relevant)
    # A list without any document never counts.
    metric.update_state(np.concatenate([labels, empty]), np.concatenate([scores, scores[:1]]))
    np.testing.assert_allclose(metric.result(), expected[relevant].mean(), rtol=1e-6)


@pytest.mark.parametrize(("name", "options"), FIRST_CASES)
def test_weights_of_lists(name: str, options: dict[str, Any]) -> None:
    labels, scores, weights = make_lists(name)
    metric = metrics.METRICS[name](ties="average", **options)
    values, counts = (np.asarray(x) for x in metric.per_list(labels, scores))
    given = weights[:, 0] * counts
    for sample_weight in (weights[:, 0], weights[:, :1]):
        metric.reset_state()
        metric.update_state(labels, scores, sample_weight)
        np.testing.assert_allclose(metric.result(), (given * values).sum() / given.sum(), rtol=1e-6)


# --------------------------------------------------------------------------------- the laws


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize(("name", "options"), FIRST_CASES)
def test_padding_and_order_of_documents(name: str, options: dict[str, Any], ties: str) -> None:
    """Wider padding, garbage in it and, without ties, another order of the documents."""
    labels, scores, weights = make_lists(name, ties=ties != "position")
    metric = metrics.METRICS[name](ties=ties, **options)
    weighted = ties not in ("worst", "best")
    expected, counts = metric.per_list(labels, scores, weights if weighted else None)

    generator = np.random.default_rng(1)
    width = 9
    order = np.argsort(generator.random((8, width)), axis=1)

    def wider(x: np.ndarray, fill: float) -> np.ndarray:
        padded = np.full((8, width, *x.shape[2:]), float(fill))
        padded[:, :6] = x
        return np.stack([row[places] for row, places in zip(padded, order)])

    real = labels if labels.ndim == 2 else labels.max(axis=2)
    garbage = np.where(real >= 0, scores, np.nan)
    values, again = metric.per_list(
        wider(labels, -1), wider(garbage, np.inf), wider(weights, 7) if weighted else None
    )
    np.testing.assert_array_equal(again, counts)
    np.testing.assert_allclose(values, expected, rtol=1e-12)


@pytest.mark.parametrize(("name", "options"), FIRST_CASES)
def test_any_split_into_batches(name: str, options: dict[str, Any]) -> None:
    parts = [make_lists(name, seed) for seed in range(10)]
    labels, scores, weights = (np.concatenate(x).astype("float32") for x in zip(*parts))
    data = labels, scores, weights[:, 0]
    specs = [tf.TensorSpec([None, *x.shape[1:]]) for x in data]
    metric = metrics.METRICS[name](**options)
    update = tf.function(metric.update_state, input_signature=specs)
    results = []
    for batch in (len(labels), 7, 1):
        metric.reset_state()
        for start in range(0, len(labels), batch):
            update(*(x[start : start + batch] for x in data))
        results.append(float(metric.result()))
    np.testing.assert_allclose(results[1:], results[0], rtol=1e-6)


def test_a_long_sum_keeps_its_digits() -> None:
    """One list at a time, where a sum in float32 would be off by 1e-5 and more."""
    values = np.random.default_rng(0).random(20_000).astype("float32")

    @tf.function(jit_compile=True)  # as in the kernel: the compiler must not take the rest for 0
    def add(values: Any) -> Any:
        state = tf.zeros(2)
        for value in values:
            state = metrics.base._add(state, value)
        return state

    total = add(tf.constant(values)).numpy().astype(float).sum()
    np.testing.assert_allclose(total, values.astype(float).sum(), rtol=1e-7)


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize(("name", "options"), FIRST_CASES)
def test_finite(name: str, options: dict[str, Any], ties: str) -> None:
    subtopics = metrics.METRICS[name].subtopics
    labels = np.array([[31.0, 0.0, 31.0, 5.0], [0.0, 31.0, 0.0, 0.0]])
    labels = np.repeat(labels[:, :, None], SUBTOPICS, axis=2) if subtopics else labels
    for scores in ([[1e4, -1e4, 1e4, 0.0]] * 2, [[0.0] * 4] * 2, [[-1e4] * 4] * 2):
        for dtype in ("float16", "bfloat16", "float32", "float64"):
            metric = metrics.METRICS[name](ties=ties, **options)
            metric.update_state(labels, tf.cast(scores, dtype))
            assert np.isfinite(float(metric.result())), (scores, dtype)


@pytest.mark.parametrize("ties", TIES)
def test_100000_documents(ties: str) -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 5, (1, 100_000)).astype("float32")
    scores = generator.integers(0, 1000, (1, 100_000)).astype("float32")
    together = metrics.RankingMetrics(
        [
            metrics.get(name, ties=ties)
            for name in ("ndcg", "mrr", "map", "arp", "precision", "rbp", "err")
        ]
    )
    together.update_state(labels, scores)
    results = {name: float(value) for name, value in together.result().items()}
    assert np.isfinite(list(results.values())).all()
    assert results["precision"] == pytest.approx((labels > 0).mean(), rel=1e-6)
    # Scores that know nothing: the mean rank of what is relevant is the middle.
    if ties == "average":
        assert results["arp"] == pytest.approx(50_000, rel=0.01)
        assert results["ndcg"] == pytest.approx(random_ndcg(labels[0]), rel=0.01)


def random_ndcg(labels: np.ndarray) -> float:
    gains, credit = 2.0**labels - 1, 1 / np.log2(np.arange(2, len(labels) + 2))
    return gains.mean() * credit.sum() / (np.sort(gains)[::-1] * credit).sum()


@pytest.mark.parametrize(("name", "options"), FIRST_CASES)
def test_a_constant_scorer_scores_the_same_at_every_call(
    name: str, options: dict[str, Any]
) -> None:
    labels, scores, _ = make_lists(name)
    metric = metrics.METRICS[name](ties="average", **options)
    results = []
    for _ in range(3):
        metric.reset_state()
        metric.update_state(labels, np.zeros_like(scores))
        results.append(float(metric.result()))
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize(("name", "options"), FIRST_CASES)
def test_ragged_masks_and_graphs(name: str, options: dict[str, Any]) -> None:
    labels, scores, weights = (x.astype("float32") for x in make_lists(name))
    mask = (labels if labels.ndim == 2 else labels.max(axis=2)) >= 0
    metric = metrics.METRICS[name](ties="average", **options)

    def result(*arguments: Any) -> float:
        metric.reset_state()
        metric.update_state(*arguments)
        return float(metric.result())

    expected = result(labels, scores, weights)
    # Rounded to float32, which equal scores survive.
    lengths = mask.sum(axis=1)
    ragged = [tf.RaggedTensor.from_tensor(x, lengths) for x in (labels, scores, weights)]
    assert result(*ragged) == pytest.approx(expected, rel=1e-6)
    hidden = np.where(labels >= 0, labels, 2.0)
    assert result({"labels": hidden, "mask": mask}, scores, weights) == pytest.approx(expected)
    masked = tf.constant(scores[:, :, None])
    masked._keras_mask = tf.constant(mask)
    assert result(hidden, masked, weights) == pytest.approx(expected)

    specs = [
        tf.TensorSpec([None, None, *x.shape[2:]], tf.float32) for x in (labels, scores, weights)
    ]
    dynamic = tf.function(metric.update_state, input_signature=specs)
    metric.reset_state()
    dynamic(labels, scores, weights)
    assert float(metric.result()) == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), FIRST_CASES)
def test_xla(name: str, options: dict[str, Any]) -> None:
    """All rules for ties in one program."""
    lists = [x.astype("float32") for x in make_lists(name)[:2]]
    parts = [metrics.METRICS[name](ties=ties, name=ties, **options) for ties in TIES]
    expected, _ = metrics.RankingMetrics(parts).per_list(*lists)
    config.enable_xla()
    try:
        values, _ = metrics.RankingMetrics(parts).per_list(*lists)
    finally:
        config.disable_xla()
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_round_trip(name: str, options: dict[str, Any]) -> None:
    metric = metrics.METRICS[name](ties="average", no_relevant="zero", **options)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(metric))
    assert type(again) is type(metric)
    assert again.get_config() == metric.get_config()
    assert metric.get_config() == {
        **metric.get_config(),
        **options,
        "ties": "average",
        "no_relevant": "zero",
    }
    for copied in (copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        assert copied.get_config() == metric.get_config()


def test_a_model_may_hold_metrics(tmp_path: Any) -> None:
    model = Watched()
    model(np.ones((1, 2, 3)))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(np.ones((1, 2, 3))), model(np.ones((1, 2, 3))))


@keras.saving.register_keras_serializable(package="tests")
class Watched(keras.Model):
    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.dense = keras.layers.Dense(1)
        self.single = metrics.NDCG(3)
        self.many = metrics.RankingMetrics(["mrr", "arp"])

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)


@pytest.mark.parametrize("xla", (False, True))
def test_scores_that_are_not_finite(xla: bool) -> None:
    """Infinite scores are the highest and the lowest; one that is no number spoils its list."""
    if xla:
        config.enable_xla()
    try:
        metric = metrics.MRR()
        metric.update_state([[-1.0, 1.0, 0.0]], [[0.0, -np.inf, 1.0]])
        assert float(metric.result()) == 0.5
        metric.reset_state()
        metric.update_state([[-1.0, 1.0, 0.0]], [[np.nan, np.inf, 1.0]])
        assert float(metric.result()) == 1.0
        metric.update_state([[1.0, 0.0, 0.0]], [[np.nan, 1.0, 1.0]])
        assert np.isnan(float(metric.result()))
    finally:
        config.disable_xla()


def test_an_option_of_a_part_may_change() -> None:
    part = metrics.NDCG(3, name="x")
    together, data = (
        metrics.RankingMetrics([part]),
        ([[1.0, 0.0, 2.0, 0.0]], [[1.0, 2.0, 3.0, 3.0]]),
    )
    together.update_state(*data)
    part.ties, part.topn = "average", 1
    together.reset_state()
    together.update_state(*data)
    assert float(together.result()["x"]) == pytest.approx(0.5)


def test_a_metric_of_ones_own_among_others() -> None:
    class Mine(metrics.CutoffMetric):
        def measure(self, ranked: metrics.Ranked) -> metrics.Measured:
            ideal = ranked.max_dcg("exponential", "log2", None)
            dcg = tf.reduce_sum(ranked.gains("exponential") / tf.math.log(1 + ranked.rank), axis=1)
            return metrics.Measured(dcg * math.log(2) / ideal, ideal > 0)

    together = metrics.RankingMetrics([Mine(), "ndcg@1", "ndcg"])
    together.update_state([[1.0, 0.0, 2.0, 1.0, 2.0]], [[1.0, 2.0, 3.0, 3.0, 0.0]])
    results = together.result()
    assert float(results["mine"]) == pytest.approx(float(results["ndcg"]), rel=1e-6)


@pytest.mark.parametrize(("name", "options"), FIRST_CASES)
def test_documents_without_weight_are_not_relevant(name: str, options: dict[str, Any]) -> None:
    labels = np.array([[1.0, 0.0]])
    if metrics.METRICS[name].subtopics:
        labels = labels[:, :, None]
    _, counts = metrics.METRICS[name](**options).per_list(labels, [[1.0, 0.0]], [[0.0, 0.0]])
    assert float(counts[0]) == 0


@pytest.mark.parametrize("shape", ((0, 3), (2, 0)))
def test_empty_batches(shape: tuple[int, int]) -> None:
    metric = metrics.RankingMetrics(["ndcg@3", "ndcg", "mrr", "map", "err", "arp", "rbp"])
    metric.update_state(np.zeros(shape), np.zeros(shape))
    assert all(float(value) == 0 for value in metric.result().values())


# --------------------------------------------------------------------------------- together


def test_many_metrics_equal_each_alone() -> None:
    labels, scores, weights = make_lists("ndcg")
    names = ["ndcg@1", "ndcg@3", "ndcg", "mrr", "map@3", "precision@2", "err", "arp"]
    together = metrics.RankingMetrics(names)
    together.update_state(labels, scores, weights)
    for name, value in together.result().items():
        alone = metrics.get(name)
        alone.update_state(labels, scores, weights)
        assert float(value) == pytest.approx(float(alone.result()), rel=1e-6), name
    assert list(together.result()) == names


def test_through_fit_and_back_from_disk(tmp_path: Any) -> None:
    generator = np.random.default_rng(0)
    features = generator.normal(size=(24, 5, 3)).astype("float32")
    labels = (features[:, :, 0] > 0).astype("float32")
    labels[::2, 3:] = -1
    model = keras.Sequential([keras.layers.Dense(1)])
    together = metrics.RankingMetrics(["ndcg@1", "mrr", metrics.ARP(ties="average")])
    model.compile("adam", "mse", metrics=[metrics.NDCG(topn=3), together])
    history = model.fit(
        features, labels, epochs=2, verbose=0, validation_data=(features, labels), batch_size=7
    ).history
    for name in ("ndcg@3", "ndcg@1", "mrr", "arp"):
        assert name in history and f"val_{name}" in history, history.keys()
    scores = model.predict(features, verbose=0)
    alone = metrics.NDCG(topn=3)
    alone.update_state(labels, scores)
    assert history["val_ndcg@3"][-1] == pytest.approx(float(alone.result()), rel=1e-5)

    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    evaluated = loaded.evaluate(features, labels, verbose=0, return_dict=True)
    assert evaluated["ndcg@3"] == pytest.approx(float(alone.result()), rel=1e-5)
    assert evaluated["arp"] == pytest.approx(history["val_arp"][-1], rel=1e-5)


def test_early_stopping_knows_what_is_better() -> None:
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=[metrics.ARP(), metrics.MRR()])
    callbacks = [keras.callbacks.EarlyStopping(monitor=name) for name in ("arp", "mrr")]
    model.fit(np.ones((2, 3, 1)), np.ones((2, 3)), callbacks=callbacks, verbose=0)
    assert not callbacks[0]._is_improvement(2.0, 1.0)
    assert callbacks[1]._is_improvement(2.0, 1.0)


# ---------------------------------------------------------------------------- other libraries


def test_alpha_ndcg_of_a_worked_example() -> None:
    """Two subtopics: d1 covers both, d2 the first, d3 the second; ranked d2, d1, d3."""
    labels = [[[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]]]
    metric = metrics.AlphaNDCG(alpha=0.5)
    metric.update_state(labels, [[0.2, 0.3, 0.1]])
    gained = 1 + (0.5 + 1) / math.log2(3) + 0.5 / math.log2(4)
    ideal = 2 + 0.5 / math.log2(3) + 0.5 / math.log2(4)
    assert float(metric.result()) == pytest.approx(gained / ideal, rel=1e-6)


# ---------------------------------------------------------------------------- wrong arguments


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: metrics.NDCG(topn=0), ["topn", "0", "at least 1"]),
        (lambda: metrics.NDCG(topn=2.5), ["topn", "2.5"]),
        (lambda: metrics.NDCG(gain="squared"), ["gain", "squared", "exponential"]),
        (lambda: metrics.MRR(ties="random"), ["ties", "random", "average"]),
        (lambda: metrics.MRR(no_relevant="two"), ["no_relevant", "two", "discard"]),
        (lambda: metrics.MRR(relevance_threshold=0), ["relevance_threshold", "above 0"]),
        (lambda: metrics.RBP(persistence=1.0), ["persistence", "1.0"]),
        (lambda: metrics.ERR(highest_label=0), ["highest_label"]),
        (lambda: metrics.AlphaNDCG(alpha=2), ["alpha", "2"]),
        (lambda: metrics.get("ncdg@10"), ["ncdg@10", "Did you mean 'ndcg@10'?"]),
        (lambda: metrics.get("ndcg@x"), ["ndcg@x", "integer"]),
        (lambda: metrics.get("arp@3"), ["arp", "topn", "normalize"]),
        (lambda: metrics.get(3), ["3", "ndcg@10"]),
        (lambda: metrics.RankingMetrics([]), ["at least one"]),
        (lambda: metrics.RankingMetrics("ndcg"), ["list", "ndcg"]),
        (lambda: metrics.RankingMetrics(["mrr", "mrr"]), ["name", "mrr"]),
        (lambda: metrics.RankingMetrics(["mrr", "alpha_ndcg"]), ["subtopics", "alpha_ndcg"]),
        (
            lambda: metrics.NDCG().update_state([[1.0, 0.0]], [[0.1, 0.2, 0.3]]),
            ["y_pred", "(1, 3)", "(1, 2)"],
        ),
        (lambda: metrics.ARP(normalize="no"), ["normalize", "no"]),
        (
            lambda: metrics.MRR(ties="best").update_state([[1, 0]], [[0.1, 1]], [[2.0, 1]]),
            ["ties='best'", "mrr", "weights"],
        ),
        (
            lambda: metrics.AlphaNDCG().update_state([[1.0, 0.0]], [[0.1, 0.2]]),
            ["subtopics", "(1, 2)"],
        ),
    ],
)
def test_wrong_arguments(make: Any, words: list[str]) -> None:
    with pytest.raises(ValueError) as error:
        make()
    for word in words:
        assert word in str(error.value)


def test_every_metric_is_in_the_tests() -> None:
    public = {
        value
        for value in vars(metrics).values()
        if isinstance(value, type)
        and issubclass(value, metrics.RankingMetric)
        and value.measure is not metrics.RankingMetric.measure
    }
    assert public == set(metrics.METRICS.values())
    assert set(OPTIONS) == set(metrics.METRICS) == set(metric_oracles.ORACLES)
