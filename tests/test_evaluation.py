"""`evaluate` against the metrics, against other libraries, and its errors."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfrankloss
from tests import metric_oracles
from tfrankloss import evaluate, metrics


def make_data(
    queries: int = 60, seed: int = 0, ties: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    sizes = generator.integers(1, 60, queries)
    ids = np.repeat(np.arange(queries), sizes)
    labels = generator.choice(5, len(ids), p=[0.5, 0.3, 0.1, 0.06, 0.04])
    scores = generator.random(len(ids)) + 0.2 * labels
    if ties:
        return labels, np.round(scores, 1), ids
    return labels, np.argsort(np.argsort(scores)) / len(ids), ids  # no two equal, in float32 either


def test_equals_the_definition_query_by_query() -> None:
    labels, scores, ids = make_data()
    names = ["ndcg@5", "map", "err@10", "ordered_pair_accuracy"]
    result = evaluate(labels, scores, ids, names)
    for name in names:
        kind, _, topn = name.partition("@")
        options = {"topn": int(topn)} if topn else {}
        values = []
        for place, query in enumerate(result.query_ids):
            mine = ids == query
            value, relevant = metric_oracles.measure(
                kind, labels[mine], scores[mine], np.ones(mine.sum()), "position", **options
            )
            if relevant:
                values.append(value)
                assert result.per_query[name][place] == pytest.approx(value, rel=1e-12)
            else:
                assert np.isnan(result.per_query[name][place])
        assert result.means[name] == pytest.approx(np.mean(values), rel=1e-12)


def test_documents_in_any_order() -> None:
    labels, scores, ids = make_data()
    expected = evaluate(labels, scores, ids)
    order = np.random.default_rng(1).permutation(len(ids))
    shuffled = evaluate(labels[order], scores[order], np.array([f"q{i}" for i in ids[order]]))
    places = [shuffled.query_ids.tolist().index(f"q{i}") for i in expected.query_ids]
    for name, values in expected.per_query.items():
        np.testing.assert_allclose(shuffled.per_query[name][places], values, rtol=1e-12)
    assert shuffled.query_ids[0] == f"q{ids[order][0]}"
    assert shuffled.means == pytest.approx(expected.means, rel=1e-12)


def test_weights_subtopics_and_many_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    labels, scores, ids = make_data(20)
    weights = np.random.default_rng(2).uniform(0.5, 2, len(ids))
    together = evaluate(labels, scores, ids, ["recall@5"], weights)
    monkeypatch.setattr(tfrankloss.evaluation, "BATCH_DOCUMENTS", 64)
    alone = evaluate(labels, scores, ids, ["recall@5"], weights)
    np.testing.assert_array_equal(alone.per_query["recall@5"], together.per_query["recall@5"])
    mine = ids == 3
    order = np.argsort(-scores[mine], kind="stable")
    expected, _ = metric_oracles.recall(labels[mine][order], weights[mine][order], topn=5)
    assert alone.per_query["recall@5"][3] == pytest.approx(expected)

    subtopics = np.stack([labels > 0, labels > 1], axis=1)
    result = evaluate(subtopics, scores, ids, ["alpha_ndcg@5", "precision_ia@5"])
    values, _ = metric_oracles.measure(
        "alpha_ndcg", subtopics[mine], scores[mine], np.ones(mine.sum()), "position", topn=5
    )
    assert result.per_query["alpha_ndcg@5"][3] == pytest.approx(values)


def test_pytrec_eval(tmp_path: Path) -> None:
    """1,000 queries without ties, through the files that trec_eval reads."""
    pytrec_eval = pytest.importorskip("pytrec_eval")
    labels, scores, ids = make_data(1000)
    names = np.array([f"d{i}" for i in range(len(ids))])
    tfrankloss.to_trec_run(tmp_path / "run", scores, ids, names)
    tfrankloss.to_trec_qrels(tmp_path / "qrels", labels, ids, names)
    with open(tmp_path / "qrels") as file:
        qrels = pytrec_eval.parse_qrel(file)
    with open(tmp_path / "run") as file:
        run = pytrec_eval.parse_run(file)
    ours = {
        "ndcg": metrics.NDCG(gain="linear"),
        "ndcg_cut_5": metrics.NDCG(5, gain="linear"),
        "ndcg_cut_10": metrics.NDCG(10, gain="linear"),
        "recip_rank": metrics.MRR(),
        "map": metrics.MAP(),
        "map_cut_10": metrics.MAP(10),
        "P_5": metrics.Precision(5),
        "recall_10": metrics.Recall(10),
        "success_5": metrics.HitRate(5),
    }
    wanted = {"ndcg", "ndcg_cut", "recip_rank", "map", "map_cut", "P", "recall", "success"}
    theirs = pytrec_eval.RelevanceEvaluator(qrels, wanted).evaluate(run)
    result = evaluate(labels, scores, ids, list(ours.values()))
    for name, metric in ours.items():
        values = result.per_query[metric.name] if name != "ndcg" else result.per_query["ndcg"]
        reference = np.array([theirs[str(query)][name] for query in result.query_ids])
        counted = ~np.isnan(values)
        assert counted.sum() > 900
        np.testing.assert_allclose(values[counted], reference[counted], atol=1e-6, err_msg=name)
        assert np.all(reference[~counted] == 0)


def test_scikit_learn_with_ties_averaged() -> None:
    sklearn_metrics = pytest.importorskip("sklearn.metrics")
    labels, scores, ids = make_data(100, ties=True)
    ours = [
        metrics.NDCG(7, gain="linear", ties="average"),
        metrics.DCG(7, gain="linear", ties="average"),
    ]
    result = evaluate(labels, scores, ids, ours)
    compared = 0
    for place, query in enumerate(result.query_ids):
        mine = ids == query
        if mine.sum() < 2 or not labels[mine].any():
            continue
        compared += 1
        pair = labels[None, mine], scores[None, mine]
        ndcg = sklearn_metrics.ndcg_score(*pair, k=7)
        dcg = sklearn_metrics.dcg_score(*pair, k=7)
        assert result.per_query["ndcg@7"][place] == pytest.approx(ndcg, abs=1e-6)
        assert result.per_query["dcg@7"][place] == pytest.approx(dcg, abs=1e-6)
    assert compared > 80


def test_lightgbm() -> None:
    """Its `ndcg` has exponential gains and gives 1 to a list without relevant documents."""
    lightgbm = pytest.importorskip("lightgbm")
    labels, scores, ids = make_data(200)
    # A tree may learn to pass a feature of few values on; the predictions are what counts.
    feature = np.round(scores, 2)[:, None]
    sizes = np.bincount(ids)
    data = lightgbm.Dataset(feature, labels, group=sizes)
    history: dict[str, Any] = {}
    booster = lightgbm.train(
        {"objective": "lambdarank", "metric": "ndcg", "eval_at": [5], "verbose": -1},
        data,
        num_boost_round=3,
        valid_sets=[data],
        callbacks=[lightgbm.record_evaluation(history)],
    )
    metric = metrics.NDCG(5, no_relevant="one")
    ours = evaluate(labels, booster.predict(feature), ids, [metric]).means["ndcg@5"]
    assert ours == pytest.approx(history["training"]["ndcg@5"][-1], abs=1e-6)


def test_confidence_intervals() -> None:
    labels, scores, ids = make_data(400)
    result = evaluate(labels, scores, ids, ["ndcg@10", "mrr"])
    intervals = result.confidence_intervals(level=0.9, samples=2000, seed=3)
    assert intervals == result.confidence_intervals(level=0.9, samples=2000, seed=3)
    for name, (low, high) in intervals.items():
        values = result.per_query[name][~np.isnan(result.per_query[name])]
        half = 1.645 * values.std() / math.sqrt(len(values))  # what the normal law says
        assert low == pytest.approx(values.mean() - half, abs=0.1 * half)
        assert high == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_comparison() -> None:
    stats = pytest.importorskip("scipy.stats")
    labels, scores, ids = make_data(100)
    other = np.random.default_rng(5).normal(size=len(scores))
    ours, theirs = (evaluate(labels, x, ids, ["ndcg@10"]) for x in (scores, other))
    comparison = ours.compare(theirs)["ndcg@10"]
    a, b = (x.per_query["ndcg@10"] for x in (ours, theirs))
    counted = ~np.isnan(a)
    a, b = a[counted], b[counted]
    assert comparison.difference == pytest.approx((a - b).mean())
    assert comparison.p_value == pytest.approx(stats.ttest_rel(a, b).pvalue)
    assert (comparison.wins, comparison.losses) == ((a > b).sum(), (a < b).sum())
    assert comparison.wins + comparison.losses + comparison.ties == len(a)
    half = 1.96 * (a - b).std() / math.sqrt(len(a))
    assert comparison.interval == pytest.approx(
        ((a - b).mean() - half, (a - b).mean() + half), abs=0.15 * half
    )
    assert "wins" in str(comparison) and "p = " in str(comparison)
    # The queries of the other one may stand in another order.
    order = np.argsort(-ids, kind="stable")
    turned = evaluate(labels[order], other[order], ids[order], ["ndcg@10"])
    again = ours.compare(turned)["ndcg@10"]
    assert (again.wins, again.losses) == (comparison.wins, comparison.losses)
    assert again.p_value == pytest.approx(comparison.p_value)
    same = ours.compare(ours)["ndcg@10"]
    assert (same.p_value, same.ties) == (1.0, len(a))


def test_only_the_same_metrics_are_compared() -> None:
    labels, scores, ids = make_data(10)
    plain, averaged = (
        evaluate(labels, scores, ids, [metrics.NDCG(5, ties=ties)])
        for ties in ("position", "average")
    )
    with pytest.raises(ValueError, match="ndcg@5.*ties.*position.*average"):
        plain.compare(averaged)
    with pytest.raises(ValueError, match="share no metric"):
        plain.compare(evaluate(labels, scores, ids, ["mrr"]))
    with pytest.raises(ValueError, match="same queries"):
        plain.compare(evaluate(labels, scores, ids + 1, ["ndcg@5"]))


def test_rounding_is_a_tie() -> None:
    labels, scores, ids = make_data(50, ties=True)
    metric = metrics.NDCG(10, ties="average")
    order = np.random.default_rng(0).permutation(len(ids))
    shuffled = evaluate(labels[order], scores[order], ids[order], [metric])
    same = evaluate(labels, scores, ids, [metric]).compare(shuffled)["ndcg@10"]
    assert (same.wins, same.losses, same.p_value, same.interval) == (0, 0, 1.0, (0.0, 0.0))


def test_less_may_be_better() -> None:
    labels, ids = [0, 1, 0, 0, 1], [1, 1, 1, 2, 2]
    better = evaluate(labels, [0.5, 0.4, 0.3, 0.2, 0.9], ids, ["arp"])
    worse = evaluate(labels, [0.9, 0.1, 0.3, 0.2, 0.9], ids, ["arp"])
    comparison = better.compare(worse)["arp"]
    assert (comparison.wins, comparison.losses, comparison.ties) == (1, 0, 1)
    assert comparison.difference < 0


def test_ids_of_any_kind() -> None:
    labels, scores = [1, 0, 0, 1], [0.1, 0.2, 0.3, 0.4]
    result = evaluate(labels, scores, np.array([1, "a", 1, "a"], dtype=object), ["mrr"])
    assert result.query_ids.tolist() == [1, "a"]
    assert result.means["mrr"] == pytest.approx((0.5 + 1) / 2)
    same = evaluate(labels, scores, np.array([b"1", b"a", b"1", b"a"]), ["mrr"])
    assert same.means == result.means


def test_pandas_and_text() -> None:
    pandas = pytest.importorskip("pandas")
    labels, scores, ids = make_data(10)
    result = evaluate(labels, scores, ids, ["ndcg@10", "mrr"])
    frame = result.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == ["ndcg@10", "mrr"]
    assert frame["mrr"].mean() == pytest.approx(result.means["mrr"])
    assert "ndcg@10" in str(result) and "of 10 queries" in str(result)


def test_no_query_counts() -> None:
    result = evaluate([0, 0], [0.1, 0.2], [1, 1], ["mrr"])
    assert np.isnan(result.means["mrr"])
    assert np.isnan(result.confidence_intervals(samples=10)["mrr"]).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([1, 0], [0.1], [1, 1]), ["scores and query_ids", "same length", "(2,)", "(1,)"]),
        (([1, 0], [0.1, 0.2], [1, None]), ["query_ids[1]=None"]),
        (([1, 0], [0.1, np.nan], np.array(["a", 7], object)), ["scores[1]=nan", "query 7"]),
        (([1, 0], [0.1, np.nan], [1, 7]), ["scores[1]=nan", "query 7", "NaN"]),
        (([1, -1], [0.1, 0.2], ["a", "b"]), ["labels[1]=-1,", "query 'b'", "at least 0"]),
        (([1, np.nan], [0.1, 0.2], [1, 1]), ["labels[1]=nan"]),
        (([1, 0], [[0.1], [0.2]], [1, 1]), ["(2, 1)", "scores[:, 0]"]),
        (([[1, 0], [1, -1]], [[0.1, 0.2]] * 2, [1, 2]), ["(2, 2)", "real = labels >= 0"]),
        (([], [], []), ["no documents"]),
        ((["a", "b"], [0.1, 0.2], [1, 1]), ["labels must be numbers"]),
        (([1, 0], [0.1, 0.2], [1, 1], ["ndcg", "unknown"]), ["Unknown metric: 'unknown'"]),
        (([1, 0], [0.1, 0.2], [1, 1], ["ndcg@0"]), ["ndcg@0"]),
        (([1, 0], [0.1, 0.2], [1, 1], ["mrr"], [1.0]), ["weights and query_ids", "(2,)", "(1,)"]),
        (([1, 0], [0.1, 0.2], [1, 1], ["mrr"], [1.0, -1.0]), ["weights[1]=-1,"]),
        (([1, 0], [0.1, 0.2], [1, 1], ["alpha_ndcg"]), ["[documents, subtopics]"]),
    ],
)
def test_wrong_input(arguments: tuple[Any, ...], words: list[str]) -> None:
    with pytest.raises(ValueError) as error:
        evaluate(*arguments)
    for word in words:
        assert word in str(error.value)


def test_wrong_input_of_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("kept")
    for call, words in (
        (lambda: tfrankloss.to_trec_run(path, [0.1], ["a b"]), ["query_ids[0]='a b'"]),
        (lambda: tfrankloss.to_trec_run(path, [np.nan], ["a"]), ["scores[0]=nan"]),
        (lambda: tfrankloss.to_trec_run(path, [0.1], ["a"], tag=""), ["tag"]),
        (lambda: tfrankloss.to_trec_qrels(path, [0.5], ["a"]), ["labels[0]=", "whole"]),
        (
            lambda: tfrankloss.to_trec_run(path, [0.1, 0.2], ["a", "a"], ["d", "d"]),
            ["'d'", "rows 0 and 1"],
        ),
    ):
        with pytest.raises(ValueError) as error:
            call()
        for word in words:
            assert word in str(error.value)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        tfrankloss.to_trec_run(tmp_path / "nowhere" / "file", [0.1], ["a"])
    assert path.read_text() == "kept"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_package_is_named() -> None:
    """In a process in which pandas and SciPy cannot be imported."""
    program = (
        "import sys; sys.modules['pandas'] = sys.modules['scipy'] = None\n"
        "import tfrankloss\n"
        "result = tfrankloss.evaluate([1, 0], [0.1, 0.2], [1, 1])\n"
        "for call in (result.to_pandas, lambda: result.compare(result)):\n"
        "    try: call()\n"
        "    except ImportError as error: print(error)\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert output.count('pip install "tfrankloss[evaluate]"') == 2
    assert "pandas is needed" in output and "scipy is needed" in output


def test_a_changed_option_counts_at_the_next_call() -> None:
    metric = metrics.NDCG(topn=1, gain="linear")
    arguments = ([0.0, 1.0, 3.0], [0.3, 0.2, 0.1], [1, 1, 1])
    assert evaluate(*arguments, metrics=[metric]).means == {"ndcg@1": 0.0}
    metric.topn = 2
    value = evaluate(*arguments, metrics=[metric]).means["ndcg@1"]
    assert value == pytest.approx((1 / np.log2(3)) / (3 + 1 / np.log2(3)), abs=1e-12)


@pytest.mark.slow
def test_100000_documents_in_the_other_metrics() -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 5, (1, 100_000)).astype("float32")
    scores = generator.integers(0, 1000, (1, 100_000)).astype("float32")
    order = np.argsort(-scores[0], kind="stable")
    gains = 2.0 ** labels[0, order].astype(float) - 1
    inverse = 1 / np.log2(np.arange(2, 100_002))
    ideal = np.sort(gains)[::-1] @ inverse
    relevant = labels[0, order] > 0
    above = np.cumsum(inverse) - inverse
    expected = {
        "dcg": gains @ inverse,
        "recall@10": relevant[:10].sum() / relevant.sum(),
        "hit_rate@10": 1.0,
        "ndcg_cost": gains @ (1 - inverse) / ideal,
        "lambda_rank_metric": gains @ (above - np.arange(100_000) * inverse) / ideal,
    }
    for name, value in expected.items():
        metric = metrics.get(name)
        metric.update_state(labels, scores)
        assert float(metric.result()) == pytest.approx(value, rel=3e-4), name
    metric = metrics.get("ordered_pair_accuracy")
    metric.update_state(labels, scores)
    assert float(metric.result()) == pytest.approx(0.5, abs=0.01)
    subtopics = generator.random((1, 100_000, 3)) < 0.2
    metric = metrics.get("precision_ia@20")
    metric.update_state(subtopics, scores)
    assert float(metric.result()) == pytest.approx(subtopics[0, order[:20]].mean(), rel=1e-5)
    metric = metrics.get("alpha_ndcg@10")
    metric.update_state(subtopics, scores)
    assert 0 < float(metric.result()) < 1
