"""Comparing losses: folds, significance, the page and its pictures."""

import json
import math
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import tfrankloss
from tfrankloss import charts
from tfrankloss.comparison import LossComparison, _folds, _joined
from tfrankloss.data import RankingData, synthetic

FAST: dict[str, Any] = {"model": "linear", "epochs": 1, "list_size": 16, "metrics": ["ndcg@5"]}
SVG = "{http://www.w3.org/2000/svg}"


def three_splits(seed: int = 0) -> dict[str, RankingData]:
    parts = synthetic(60, 5, 8, seed=seed).split([0.5, 0.2, 0.3])
    return dict(zip(("train", "vali", "test"), parts))


def test_folds_use_every_query_once_for_the_test() -> None:
    data = synthetic(23, 3, 5)
    folds = [make() for make in _folds(data, 4)]
    assert len(folds) == 4
    tested = np.concatenate([fold["test"].query_ids for fold in folds])
    assert sorted(tested) == sorted(data.query_ids)
    for fold in folds:
        parts = [set(fold[name].query_ids.tolist()) for name in ("train", "vali", "test")]
        assert sum(len(part) for part in parts) == len(set.union(*parts)) == 23


def test_a_comparison(tmp_path: Path) -> None:
    """Means and significance against SciPy on the values of each query; a second call resumes."""
    folds = [three_splits(1), three_splits(2)]
    lines: list[str] = []
    arguments: dict[str, Any] = {"out": tmp_path / "out", "progress": lines.append}
    losses = {"first": {"loss": "softmax"}, "other": {"loss": "softmax", "learning_rate": 0.1}}
    compared = tfrankloss.compare(folds, losses, baseline="other", **arguments, **FAST)
    assert len(lines) == 4
    assert "other, fold 2, seed 0" in lines[-1]
    assert "; 1 run left, " in lines[-2]
    assert "left" not in lines[-1]
    first, other = (compared.evaluations[title].per_query["ndcg@5"] for title in losses)
    assert len(first) == sum(len(fold["test"]) for fold in folds)
    assert compared.evaluations["first"].means["ndcg@5"] == pytest.approx(np.nanmean(first))
    both = ~np.isnan(first) & ~np.isnan(other)
    found = compared.differences["first"]["ndcg@5"]
    assert found.p_value == pytest.approx(stats.ttest_rel(first[both], other[both]).pvalue)
    runs = tmp_path / "out" / "runs" / "first"
    assert sorted(path.name for path in runs.iterdir()) == ["fold-1-seed-0", "fold-2-seed-0"]
    results = json.loads((runs / "fold-2-seed-0" / "metrics.json").read_text())
    of_fold = first[len(folds[0]["test"]) :]
    assert np.nanmean(of_fold) == pytest.approx(results["metrics"]["test"]["ndcg@5"])

    page = ElementTree.fromstring(
        (tmp_path / "out" / "comparison.html")
        .read_text()
        .replace("<!doctype html>", "")
        .replace('<meta charset="utf-8">', "")
    )
    cells = [cell.text for cell in page.iter("td")]
    assert cells[0] == "first" and f"{np.nanmean(first):.4f}" == cells[1]
    assert len(list(page.iter(f"{SVG}svg"))) == 2
    numbers = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert numbers["losses"]["first"]["ndcg@5"]["mean"] == pytest.approx(np.nanmean(first))
    assert f"{np.nanmean(other):.4f}" in str(compared)

    with pytest.raises(ValueError, match="holds a comparison already"):
        tfrankloss.compare(folds, losses, **arguments, **FAST)
    model = runs / "fold-1-seed-0" / "model.keras"
    written = model.stat().st_mtime_ns
    again = tfrankloss.compare(folds, losses, baseline="other", resume=True, **arguments, **FAST)
    assert model.stat().st_mtime_ns == written
    np.testing.assert_allclose(again.evaluations["first"].per_query["ndcg@5"], first, rtol=1e-6)


def test_marks_the_best_and_many_comparisons() -> None:
    """Also of a metric of which less is better; Holm's p-values by hand."""
    queries = np.repeat(np.arange(40), 3)
    labels = np.tile([1.0, 0.0, 0.0], 40)
    good, bad = np.tile([2.0, 1.0, 0.0], 40), np.tile([0.0, 1.0, 2.0], 40)
    good[:3], bad[:3] = (0.0, 2.0, 1.0), (1.0, 2.0, 0.0)  # not all differences are the same
    evaluations = {
        title: tfrankloss.evaluate(labels, scores, queries, metrics=["mrr", "arp"])
        for title, scores in (("good", good), ("bad", bad), ("same", bad))
    }
    differences = {
        title: evaluations[title].compare(evaluations["bad"]) for title in ("good", "same")
    }
    compared = LossComparison(evaluations, "bad", differences, {}, {}, "mrr")
    assert [compared.mark("good", metric) for metric in ("mrr", "arp")] == ["+", "+"]
    assert [compared.best(metric) for metric in ("mrr", "arp")] == ["good", "good"]
    assert compared.mark("same", "mrr") == compared.mark("bad", "mrr") == ""
    turned = {"bad": evaluations["bad"].compare(evaluations["good"])}
    compared = LossComparison(evaluations, "good", turned, {}, {}, "mrr")
    assert [compared.mark("bad", metric) for metric in ("mrr", "arp")] == ["-", "-"]

    numbers = {"a": {"x": 0.01, "y": 0.04}, "b": {"x": 0.03, "y": 0.005}}
    made = {
        title: {
            metric: replace(differences["good"]["mrr"], p_value=p_value)
            for metric, p_value in metrics.items()
        }
        for title, metrics in numbers.items()
    }
    adjusted = LossComparison(evaluations, "bad", made, {}, {}, "mrr").adjusted
    assert adjusted == {
        "a": pytest.approx({"x": 0.03, "y": 0.06}),
        "b": pytest.approx({"x": 0.06, "y": 0.02}),
    }


def test_a_loss_that_diverges_does_not_end_the_others() -> None:
    lines: list[str] = []
    losses = {
        "fine": {"loss": "softmax"},
        "broken": {"loss": "softmax", "learning_rate": 1e38},
        "other": {"loss": "softmax", "learning_rate": 0.1},
    }
    compared = tfrankloss.compare(three_splits(), losses, progress=lines.append, **FAST)
    assert list(compared.evaluations) == ["fine", "other"]
    assert "not finite" in compared.failed["broken"]
    assert "broken" in str(compared) and "not finite" in compared.to_html()


def test_folds_and_seeds_are_joined() -> None:
    """Values of a query are the mean over the seeds; queries of all folds count alike."""
    labels, queries = np.array([1, 0, 1, 0]), np.array([7, 7, 8, 8])
    right, wrong, half = (
        tfrankloss.evaluate(labels, scores, queries, metrics=["mrr"])
        for scores in ([1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 0, 1])
    )
    joined = _joined([[right, wrong], [half, half]])
    np.testing.assert_allclose(joined.per_query["mrr"], [0.75, 0.75, 1.0, 0.5])
    assert joined.means["mrr"] == pytest.approx(0.75)
    assert joined.query_ids.tolist() == ["1/7", "1/8", "2/7", "2/8"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"losses": "softmax"}, "list of names"),
        ({"losses": ["softmax"]}, "at least two"),
        ({"losses": ["softmax", "softmax"]}, "at least two"),
        ({"losses": ["softmax", "sofmax"]}, "Did you mean 'softmax'"),
        ({"baseline": "ranknet"}, "baseline"),
        ({"folds": 2}, "folds"),
        ({"folds": 1000}, "60 queries"),
        ({"seeds": 0}, "seeds"),
        ({"data": {"train": None, "test": None}}, "'train', 'vali' and 'test'"),
        ({"data": [three_splits()], "folds": 5}, "1 folds of their own"),
        ({"losses": {"a": {"metrics": ["mrr"]}, "b": {}}}, "the same metrics"),
        ({"losses": {"a@b": {}, "a_at_b": {}}}, "the same folder"),
        ({"losses": ["softmax", "ordinal"]}, "number per grade"),
    ],
)
def test_mistakes(arguments: dict[str, Any], words: str) -> None:
    given = {"data": synthetic(60, 3, 5), "losses": ["softmax", "list_mle"], **FAST, **arguments}
    with pytest.raises(ValueError, match=words):
        tfrankloss.compare(**given)


def points(picture: str, number: int = 0) -> list[tuple[float, float]]:
    line = list(ElementTree.fromstring(picture).iter(f"{SVG}polyline"))[number].get("points")
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in (line or "").split())]


def test_line_chart() -> None:
    picture = charts.line_chart("a < b", {"one": [1.0, 3.0, 2.0], "two & more": [2.0, 2.0]})
    first = points(picture)
    assert first[0][0] < first[1][0] < first[2][0]
    assert first[1][1] < first[2][1] < first[0][1]  # up is a smaller number
    assert first[2][1] == points(picture, 1)[0][1]
    texts = [text.text for text in ElementTree.fromstring(picture).iter(f"{SVG}text")]
    assert {"a < b", "one", "two & more", "epoch"} <= set(texts)


@pytest.mark.parametrize("values", [[], [1.0], [0.0, 0.0], [1e-9, 1e9], [float("nan"), 2.0]])
def test_charts_of_few_or_odd_numbers(values: list[float]) -> None:
    finite = [x for x in values if math.isfinite(x)]
    assert len(points(charts.line_chart("title", {"name": values}))) == len(finite)
    rows = {str(number): (x, x, x) for number, x in enumerate(values)}
    picture = ElementTree.fromstring(charts.interval_chart("title", rows))
    assert len(list(picture.iter(f"{SVG}circle"))) == len(finite)


def test_interval_chart() -> None:
    picture = charts.interval_chart("title", {"low": (0.2, 0.1, 0.3), "high": (0.8, 0.7, 0.9)})
    circles = list(ElementTree.fromstring(picture).iter(f"{SVG}circle"))
    low, high = (float(circle.get("cx") or 0) for circle in circles)
    assert low < high
