"""The command line as a user drives it, on a small LETOR file in a temporary folder."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfrankloss import cli
from tfrankloss.data import RankingData, synthetic
from tfrankloss.training import distribution

FAST = ["--loss", "softmax", "--model", "linear", "--epochs", "2", "--list-size", "16"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    data = synthetic(60, 5, 8, seed=3)
    ids = [f"d{number}" for number in range(data.num_documents)]
    data = RankingData.from_arrays(
        data.features, data.labels, data.query_of_documents, document_ids=ids
    )
    data.to_letor("all.txt")
    Path("split").mkdir()
    for name, part in zip(("train", "vali", "test"), data.split([0.6, 0.2, 0.2])):
        part.to_letor(f"split/{name}.txt")
    return tmp_path


def fails(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of an error."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert "Traceback" not in "".join(lines)
    return lines[-1]


def test_train_evaluate_rank(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["train", "split", "--out", "run", *FAST])
    shown = capsys.readouterr().out
    assert "epoch 2/2" in shown
    assert "test  ndcg@10" in shown
    results = json.loads(Path("run/metrics.json").read_text())
    cli.main(["evaluate", "run", "split", "--metrics", "ndcg@10"])
    shown = capsys.readouterr().out
    assert f"ndcg@10  {results['metrics']['test']['ndcg@10']:.4f}" in shown
    cli.main(["rank", "run", "split/test.txt", "--out", "scores.tsv"])
    lines = Path("scores.tsv").read_text().splitlines()
    assert lines[0] == "query\tdocument\tscore"
    assert lines[1].split("\t")[1].startswith("d")
    cli.main(["rank", "run", "split", "--out", "scores.run", "--trec"])
    trec = [line.split() for line in Path("scores.run").read_text().splitlines()]
    assert len(trec) == len(lines) - 1
    by_document = {line.split("\t")[1]: float(line.split("\t")[2]) for line in lines[1:]}
    for words in trec:
        assert float(words[4]) == pytest.approx(by_document[words[2]], rel=1e-6)
    cli.main(["export", "run", "ranker", "--top-k", "3", "--version", "4"])
    assert "curl localhost:8501/v1/models/ranker:predict" in capsys.readouterr().out
    request = json.loads(Path("ranker/4/request.json").read_text())
    assert np.shape(request["inputs"]["features"])[2] == 5
    card = json.loads(Path("ranker/4/model_card.json").read_text())
    assert (card["top_k"], card["metrics"]) == (3, results["metrics"])
    assert "never overwritten" in fails(["export", "run", "ranker", "--version", "4"], capsys)
    assert "no trained model" in fails(["export", "absent", "ranker"], capsys)


def test_one_file_and_configuration(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.json").write_text(json.dumps({"loss": "softmax", "model": "linear", "list_size": 16}))
    arguments = ["train", "all.txt", "--validation-fraction", "0.25", "--config", "run.json"]
    cli.main([*arguments, "--epochs", "1", "--out", "run"])
    assert "epoch 1/1" in capsys.readouterr().out
    config = json.loads(Path("run/config.json").read_text())["options"]
    assert (config["loss"], config["epochs"]) == ("softmax", 1)
    cli.main(["train", "all.txt", "--epochs", "2", "--out", "run", "--resume"])
    assert "epoch 2/2" in capsys.readouterr().out
    repeated = ["train", "all.txt", "--validation-fraction", "0.25", "--config", "run/config.json"]
    cli.main([*repeated, "--epochs", "1", "--out", "again"])
    first, again = (
        json.loads(Path(run, "metrics.json").read_text())["history"][0] for run in ("run", "again")
    )
    assert again["loss"] == pytest.approx(first["loss"], rel=1e-5)
    cli.main(["train", "split/train.txt", "--validation", "split/vali.txt", "--out", "b", *FAST])
    if sys.version_info >= (3, 11):
        Path("run.toml").write_text('loss = "softmax"\nmodel = "linear"\nepochs = 1\n')
        cli.main(["train", "split", "--config", "run.toml", "--out", "c"])
        config = json.loads(Path("c/config.json").read_text())
        assert (config["options"]["model"], config["options"]["epochs"]) == ("linear", 1)
        assert config["notes"]["data"] == "split"
    assert json.loads(Path("b/config.json").read_text())["notes"]["validation"] == "split/vali.txt"


def test_a_folder_without_validation_data(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("split/vali.txt").rename("held.txt")
    arguments = ["train", "split", "--out", "run", *FAST]
    line = fails(arguments, capsys)
    assert "split has no validation data" in line and "--validation-fraction" in line
    cli.main([*arguments, "--validation", "held.txt"])
    assert set(json.loads(Path("run/metrics.json").read_text())["metrics"]) == {"vali", "test"}
    cli.main(["convert", "all.txt", "--to", "records", "--shards", "1", "--out", "records"])
    capsys.readouterr()
    line = fails(["train", "records", "--out", "other", *FAST], capsys)
    assert "--validation FILE" in line and "fraction" not in line


def test_a_worker_that_dies(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = distribution.Alone()
    cluster.workers = 2

    def train(*_: Any, **__: Any) -> None:
        raise tf.errors.UnavailableError(None, None, "Connection reset by peer")

    monkeypatch.setattr(cli, "joined", lambda engine: cluster)
    monkeypatch.setattr(cli, "train", train)
    with pytest.raises(SystemExit, match="--resume.*Connection reset by peer"):
        cli.main(["train", "split", "--out", "run", *FAST])


def test_compare(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("folds").mkdir()
    Path("split").rename("folds/Fold1")
    options = ["--model", "linear", "--epochs", "1", "--list-size", "16", "--metrics", "ndcg@5"]
    arguments = ["compare", "folds", "--losses", "softmax,list_mle", *options, "--out", "out"]
    cli.main([*arguments, "--baseline", "list_mle"])
    shown = capsys.readouterr().out
    assert "list_mle, fold 1" in shown
    assert "differ from list_mle" in shown
    assert "<svg" in Path("out/comparison.html").read_text()
    assert "holds a comparison already" in fails(arguments, capsys)
    assert "at least two" in fails([*arguments[:3], "softmax", "--out", "b"], capsys)
    assert "1 folds of their own" in fails([*arguments, "--folds", "5", "--out", "b"], capsys)
    assert not Path("b").exists()


def test_options_of_the_training(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A loss of grades under XLA in half precision, with two learning rates."""
    arguments = ["train", "split", "--out", "run", "--loss", "pointwise_softmax"]
    arguments += ["--loss-options", '{"gamma": 0.5}']
    arguments += ["--model-options", '{"hidden": [4], "dropout": 0}']
    arguments += ["--epochs", "1", "--list-size", "16", "--max-documents", "256"]
    arguments += ["--jit", "--mixed-precision", "mixed_bfloat16", "--learning-rate", "0.1,0.01"]
    cli.main(arguments)
    assert "learning rate: 0." in capsys.readouterr().out
    model = keras.saving.load_model("run/model.keras")
    assert (model.loss.gamma, model.jit_compile) == (0.5, True)
    assert "mixed_bfloat16" in {layer.dtype_policy.name for layer in model.layers}
    cli.main(["evaluate", "run", "split", "--metrics", "mrr"])
    cli.main(["rank", "run", "split", "--out", "scores.tsv"])
    lines = Path("scores.tsv").read_text().splitlines()[1:]
    scores = [float(line.split("\t")[2]) for line in lines]
    assert 0 <= min(scores) <= max(scores) <= 4  # expected grades


def test_mistakes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = ["train", "split", "--out", "run"]
    assert "Did you mean 'ndcg_loss2@5'?" in fails([*train, "--loss", "ndcg_los@5"], capsys)
    assert fails([*train, "--loss", "lambda_loss"], capsys).startswith(
        "tfrankloss train: error: LambdaLoss@K of SIGIR 2022 is 'ndcg_loss2@K'."
    )
    line = fails([*train, "--epocs", "3"], capsys)
    assert "--epocs 3, did you mean --epochs? (see tfrankloss train --help)" in line
    assert "absent.txt" in fails(["train", "absent.txt", "--out", "run"], capsys)
    line = fails(["train", "all.txt", "--out", "run"], capsys)
    assert "--validation FILE or --validation-fraction" in line
    zero = RankingData.from_arrays(np.ones((4, 5)), np.zeros(4), [1, 1, 2, 2])
    zero.to_letor("zero.txt")
    line = fails(["train", "zero.txt", "--validation", "all.txt", "--out", "run"], capsys)
    assert "all labels of 'train' are 0" in line
    Path("bad.txt").write_text("1 qid:1 1:1\nx qid:1 1:2\n")
    line = fails(["train", "bad.txt", "--validation-fraction", "0.5", "--out", "run"], capsys)
    assert "bad.txt, line 2, column 1" in line
    assert "no trained model" in fails(["evaluate", "absent", "split"], capsys)
    assert "epochs" in fails([*train, "--epochs", "0"], capsys)
    Path("wrong.json").write_text('{"lose": 1}')
    assert "lose" in fails([*train, "--config", "wrong.json"], capsys)
    assert "--validation-fraction must be" in fails(
        ["train", "all.txt", "--validation-fraction", "2", "--out", "run"], capsys
    )
    assert not Path("run").exists()
    cli.main([*train, *FAST])
    assert "holds a run already" in fails([*train, *FAST], capsys)
    synthetic(5, 8, 5).to_letor("wide.txt")
    assert "takes 5 features" in fails(["evaluate", "run", "wide.txt"], capsys)
    # The last features of a file may be missing in all of its lines.
    synthetic(5, 3, 5).to_letor("narrow.txt")
    cli.main(["evaluate", "run", "narrow.txt"])
    assert "train, vali, test" in fails(["evaluate", "run", "split", "--split", "dev"], capsys)
    assert "single file" in fails(["evaluate", "run", "all.txt", "--split", "dev"], capsys)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--model-options", '{"hiden": [4]}'], "hidden, dropout"),
        (["--model-options", '{"hidden": 64}'], "cannot be made"),
        (["--model-options", "{broken"], "--model-options"),
        (["--loss-options", "[1]"], "--loss-options"),
        (["--config", "list.json"], "list.json"),
        (["--config", "options.json"], "model_options"),
        (["--batch-size", "0"], "batch_size"),
        (["--batch-size", "4", "--max-documents", "64"], "max_documents"),
        (["--list-size", "0"], "list_size"),
        (["--learning-rate", "abc"], "--learning-rate: must be a number"),
        (["--config", "broken.toml"], "broken.toml"),
        (["--config", "typo.json"], "Did you mean 'learning_rate'"),
        (["--learning-rate", "0.1,0.1"], "different"),
        (["--mixed-precision", "foo"], "mixed_precision"),
    ],
)
def test_a_mistake_leaves_nothing_behind(
    options: list[str], words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("list.json").write_text("[1]")
    Path("options.json").write_text('{"model_options": 3}')
    Path("broken.toml").write_text('loss = "softmax')
    Path("typo.json").write_text('{"leaning_rate": 3}')
    assert words in fails(["train", "split", "--out", "run", *options], capsys)
    assert not Path("run").exists()


def test_module_and_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tfrankloss", "train", "--help"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module("tfrankloss", run_name="__main__")
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    for option in ("--loss", "--max-documents", "--resume", "--mixed-precision", "--config"):
        assert option in shown


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A ranking loss beats a pointwise one, and both beat a random order."""
    cli.main(["demo", "--fast", "--out", str(tmp_path / "demo")])
    shown = capsys.readouterr().out
    rows = {}
    for name in ("random order", "pointwise squared", "NDCG-Loss2@5"):
        (line,) = [x for x in shown.splitlines() if x.startswith(name) and "." in x]
        rows[name] = [float(x) for x in line[20:].split()]
    for random, pointwise, ranking in zip(*rows.values()):
        assert random < pointwise < ranking
    assert (tmp_path / "demo" / "ndcg_loss2_at_5" / "model.keras").is_file()
    assert (tmp_path / "demo" / "learning-curves.svg").read_text().count("<polyline") == 2
