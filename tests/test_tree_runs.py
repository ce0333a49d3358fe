"""`train`, `compare` and the command line with boosted trees."""

import json
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest

import tfrankloss
from tfrankloss import cli, comparison, training
from tfrankloss.data import RankingData, synthetic

OPTIONS: dict[str, Any] = {
    "loss": "softmax",
    "epochs": 12,
    "patience": 12,
    "metrics": ("mrr", "ndcg@5"),
}
PARAMETERS: dict[str, dict[str, Any]] = {
    "lightgbm": {"num_leaves": 4, "min_data_in_leaf": 5, "newton": True},
    "xgboost": {"max_depth": 2, "curvature_floor": 0.001},
}


def splits() -> dict[str, RankingData]:
    parts = synthetic(90, 6, 10, seed=1).split([0.6, 0.2, 0.2])
    return dict(zip(("train", "vali", "test"), parts))


@pytest.mark.parametrize("model", PARAMETERS)
def test_a_run(model: str, tmp_path: Path) -> None:
    options = {**OPTIONS, "model": model, "model_options": PARAMETERS[model]}
    run = tfrankloss.train(splits(), out=tmp_path / "run", progress=False, **options)
    assert len(run.history) == 12
    values = [entry["ndcg@5"] for entry in run.history]
    assert run.best_epoch == 1 + int(np.argmax(values))
    results = json.loads((tmp_path / "run" / "metrics.json").read_text())
    # The saved trees are those of the best round.
    assert results["metrics"]["vali"]["ndcg@5"] == pytest.approx(max(values), abs=1e-9)
    loaded = training.load_model(tmp_path / "run")
    assert training.num_features(loaded) == 6
    test = splits()["test"]
    found = training.evaluate_scores(training.predict_scores(loaded, test), test, ["ndcg@5"])
    assert found.means["ndcg@5"] == pytest.approx(results["metrics"]["test"]["ndcg@5"], abs=1e-9)
    again = tfrankloss.train(splits(), out=tmp_path / "run", resume=True, progress=False, **options)
    assert again.history == run.history
    longer = {**options, "epochs": 15, "patience": 15}
    more = tfrankloss.train(splits(), out=tmp_path / "run", resume=True, progress=False, **longer)
    assert [x["ndcg@5"] for x in more.history[:12]] == pytest.approx(values, abs=1e-9)
    assert len(more.history) == 15
    # Interrupted before it ended, it begins anew and comes to the same.
    (tmp_path / "run" / "state" / "state.json").unlink()
    again = tfrankloss.train(splits(), out=tmp_path / "run", resume=True, progress=False, **longer)
    assert [x["ndcg@5"] for x in again.history[:12]] == pytest.approx(values, abs=1e-9)


def test_stops_early_and_chooses_a_learning_rate() -> None:
    options = {**OPTIONS, "model": "lightgbm", "model_options": PARAMETERS["lightgbm"]}
    lines: list[str] = []
    run = tfrankloss.train(
        splits(),
        progress=lines.append,
        **{**options, "learning_rate": [1e-12, 0.3], "patience": 3, "epochs": 60},
    )
    assert run.options.learning_rate == 0.3
    assert len(run.history) == run.best_epoch + 3
    assert any("learning rate 0.3" in line for line in lines)
    assert any("best ndcg@5" in line for line in lines)


def test_weights_of_documents_count() -> None:
    """A document of weight 0 is as if it were not relevant."""
    parts = splits()
    train = parts["train"]
    off = RankingData.from_arrays(
        train.features,
        train.labels,
        train.query_of_documents,
        weights=np.where(train.labels > 1, 0.0, 1.0),
    )
    low = RankingData.from_arrays(
        train.features, np.where(train.labels > 1, 0.0, train.labels), train.query_of_documents
    )
    for model in PARAMETERS:
        options = {**OPTIONS, "model": model, "model_options": PARAMETERS[model], "epochs": 3}
        options["discard_without_relevant"] = False
        scores = [
            training.predict_scores(
                tfrankloss.train({**parts, "train": data}, progress=False, **options).model, train
            )
            for data in (off, low)
        ]
        np.testing.assert_allclose(*scores, rtol=1e-4, atol=1e-5)


def test_command_line(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("split").mkdir()
    for name, part in splits().items():
        part.to_letor(f"split/{name}.txt")
    few = ["--epochs", "3", "--model-options", '{"num_leaves": 4, "min_data_in_leaf": 5}']
    cli.main(["train", "split", "--out", "run", "--model", "lightgbm", "--loss", "xendcg", *few])
    results = json.loads(Path("run/metrics.json").read_text())
    cli.main(["evaluate", "run", "split", "--metrics", "ndcg@10"])
    assert f"{results['metrics']['test']['ndcg@10']:.4f}" in capsys.readouterr().out
    cli.main(["rank", "run/model.txt", "split/test.txt", "--out", "scores.tsv"])
    scores = [
        float(line.split("\t")[2]) for line in Path("scores.tsv").read_text().splitlines()[1:]
    ]
    expected = lightgbm.Booster(model_file="run/model.txt").predict(splits()["test"].features)
    np.testing.assert_allclose(scores, expected, rtol=1e-6)
    with pytest.raises(SystemExit):
        cli.main(["export", "run", "ranker"])
    assert "own library, from run/model.txt" in capsys.readouterr().err
    cli.main(
        ["compare", "split", "--losses", "softmax,lightgbm:softmax", "--model", "linear",
         "--epochs", "2", "--list-size", "16", "--out", "both"]
    )  # fmt: skip
    table = json.loads(Path("both/comparison.json").read_text())
    assert list(table["losses"]) == ["softmax", "lightgbm:softmax"]


def test_weights_of_validation_data_do_not_count() -> None:
    """As for networks: the history and the evaluation are the same metric."""
    parts = splits()
    vali = parts["vali"]
    weights = np.random.default_rng(0).uniform(size=vali.num_documents)
    parts["vali"] = RankingData.from_arrays(
        vali.features, vali.labels, vali.query_of_documents, weights=weights
    )
    options = {**OPTIONS, "model": "lightgbm", "model_options": PARAMETERS["lightgbm"]}
    run = tfrankloss.train(parts, progress=False, **{**options, "epochs": 4})
    best = max(entry["ndcg@5"] for entry in run.history)
    assert run.evaluations["vali"].means["ndcg@5"] == pytest.approx(best, abs=1e-9)


def test_names_with_models_in_a_comparison() -> None:
    names = ["feedforward:softmax", "softmax", "lightgbm:softmax"]
    runs = comparison._runs(names, {"epochs": 2, "batch_size": 4, "seed": 3})
    assert runs["feedforward:softmax"]["epochs"] == runs["softmax"]["epochs"] == 2
    assert runs["lightgbm:softmax"] == {"loss": "softmax", "model": "lightgbm", "seed": 3}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 8}, "batch_size is for networks"),
        ({"jit": True}, "jit is for networks"),
        ({"loss": "approx_ndcg"}, "no curvature"),
        ({"model_options": {"num_leafs": 4}}, "num_leafs"),
        ({"model_options": {"learning_rate": 0.1}}, "options of their own"),
        ({"model_options": {"num_boost_round": 9}}, "options of their own"),
        ({"model_options": {"boosting": "dart"}}, "dart"),
        ({"model": "xgboost", "model_options": {"max_deep": 4}}, "max_deep"),
        ({"model_options": {"normalize": True}}, "normalize"),
        ({"model": "catboost"}, "model"),
    ],
)
def test_wrong_options(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        tfrankloss.train(
            splits(), out=tmp_path / "run", **{**OPTIONS, "model": "lightgbm", **options}
        )
    assert not (tmp_path / "run").exists()
