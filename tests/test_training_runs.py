"""`train`: learns, stops, resumes after a kill as if nothing had happened."""

import json
import multiprocessing
import os
import random
import signal
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfrankloss
from tfrankloss import training
from tfrankloss.data import RankingData, Standardize, synthetic
from tfrankloss.training import folder as folder_of_run
from tfrankloss.training import networks

OPTIONS: dict[str, Any] = {
    "loss": "softmax",
    "model_options": {"hidden": (8,), "dropout": 0.3, "batch_norm_momentum": 0.9},
    "batch_size": 16,
    "list_size": 16,
    "epochs": 4,
    "patience": 10,
    "metrics": ("ndcg@5", "mrr"),
}
PLAIN = {"tensorboard": False}


def splits() -> dict[str, RankingData]:
    parts = synthetic(120, 12, 10, seed=1).split([0.6, 0.2, 0.2])
    return dict(zip(("train", "vali", "test"), parts))


def test_a_run(tmp_path: Path) -> None:
    lines: list[str] = []
    run = tfrankloss.train(splits(), out=tmp_path / "run", progress=lines.append, **OPTIONS)
    assert len(lines) == len(run.history) == 4
    best = max(run.history, key=lambda entry: entry["mrr"])
    assert run.history[run.best_epoch - 1] == best
    results = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert results["metrics"]["vali"]["mrr"] == pytest.approx(best["mrr"], abs=1e-9)
    assert set(results["metrics"]) == {"vali", "test"}
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["options"]["loss"] == "softmax"
    model = keras.saving.load_model(tmp_path / "run" / "model.keras")
    test = splits()["test"]
    result = tfrankloss.evaluate(
        test.labels, test.predict(model), test.query_of_documents, metrics=["mrr"]
    )
    assert result.means["mrr"] == pytest.approx(results["metrics"]["test"]["mrr"], abs=1e-9)
    assert sorted(x.name for x in (tmp_path / "run").iterdir()) == [
        "config.json",
        "curves.svg",
        "loss.svg",
        "metrics.json",
        "model.keras",
        "state",
    ]
    with pytest.raises(ValueError, match="holds a run already"):
        tfrankloss.train(splits(), out=tmp_path / "run", **OPTIONS)
    with pytest.raises(ValueError, match="goes on as it began.*loss"):
        changed = {**OPTIONS, "loss": "list_mle"}
        tfrankloss.train(splits(), out=tmp_path / "run", resume=True, **changed)


def test_same_seed_same_result() -> None:
    first = tfrankloss.train(splits(), progress=False, **{**OPTIONS, "epochs": 2})
    second = tfrankloss.train(splits(), progress=False, **{**OPTIONS, "epochs": 2})
    for mine, other in zip(first.model.get_weights(), second.model.get_weights()):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


def test_early_stopping() -> None:
    options = {**OPTIONS, "epochs": 50, "patience": 2, "learning_rate": 1e-12}
    run = tfrankloss.train(splits(), progress=False, **options)
    assert len(run.history) <= run.best_epoch + 2


def _run_until_killed(folder: str, moment: str) -> None:
    """Kills itself in the second epoch, or while the files of the second epoch are written."""

    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    epochs: list[int] = []
    seed_dropout, writing, save = networks.seed_dropout, folder_of_run.writing, keras.Model.save

    def seed(model: keras.Model, seed: int, epoch: int, stream: int) -> None:
        epochs.append(epoch)
        seed_dropout(model, seed, epoch, stream)
        if moment == "epoch" and epoch == 1:
            fit = model.fit
            stop = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: kill())
            model.fit = lambda *args, **kwargs: fit(*args, **{**kwargs, "callbacks": [stop]})

    def save_half(model: keras.Model, path: Path) -> None:
        save(model, path)
        if moment == "model" and epochs[-1] == 1:
            path.write_bytes(path.read_bytes()[:100])
            kill()

    def write(target: Path) -> Any:
        if moment == "state" and target.name == "state.json" and epochs[-1] == 1:
            kill()
        return writing(target)

    networks.seed_dropout = seed
    folder_of_run.writing = write
    keras.Model.save = save_half
    tfrankloss.train(splits(), out=folder, resume=True, progress=False, **OPTIONS)


def test_resume_after_kills(tmp_path: Path) -> None:
    """Killed in an epoch, inside of a model file and before the state: no epoch is lost."""
    expected = tfrankloss.train(splits(), out=tmp_path / "whole", progress=False, **OPTIONS)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tfrankloss", "tests.test_training_runs"])
    for moment in ("epoch", "model", "state"):
        worker = context.Process(target=_run_until_killed, args=(str(tmp_path / "killed"), moment))
        worker.start()
        worker.join()
        assert worker.exitcode == -signal.SIGKILL
        state = json.loads((tmp_path / "killed" / "state" / "state.json").read_text())
        assert state["epoch"] == 1
    resumed = tfrankloss.train(
        splits(), out=tmp_path / "killed", resume=True, progress=False, **OPTIONS
    )
    check_same(resumed, expected)


def check_same(resumed: Any, expected: Any) -> None:
    assert len(resumed.history) == 4
    for mine, other in zip(resumed.history, expected.history):
        for name in ("loss", "ndcg@5", "mrr"):
            assert mine[name] == pytest.approx(other[name], rel=1e-4)
    for mine, other in zip(resumed.model.get_weights(), expected.model.get_weights()):
        np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("loss", "options"),
    [
        ("xendcg", {}),
        pytest.param("lambdarank", {"ranking": "plackett_luce"}, marks=pytest.mark.slow),
    ],
)
def test_resume_draws_the_same_noise(loss: str, options: dict[str, Any], tmp_path: Path) -> None:
    chosen = {**OPTIONS, "loss": loss, "loss_options": options}
    expected = tfrankloss.train(splits(), progress=False, **chosen)
    out = tmp_path / "run"
    tfrankloss.train(splits(), out=out, progress=False, **{**chosen, "epochs": 2})
    random.seed(99)  # as another process has it
    resumed = tfrankloss.train(splits(), out=out, resume=True, progress=False, **chosen)
    check_same(resumed, expected)


def test_other_data_are_another_run(tmp_path: Path) -> None:
    options = {**OPTIONS, "epochs": 1, "model": "linear", "model_options": {}}
    parts = splits()
    tfrankloss.train(parts, out=tmp_path / "run", progress=False, **options)
    changed = parts["train"].map_features(lambda x: x + 1)
    with pytest.raises(ValueError, match="other data.*train"):
        tfrankloss.train({**parts, "train": changed}, out=tmp_path / "run", resume=True, **options)


def test_any_spelling_of_names() -> None:
    options = {**OPTIONS, "metrics": ["NDCG@5", "MRR"], "monitor": "Mrr", "epochs": 1}
    run = tfrankloss.train(splits(), progress=False, **options)
    assert set(run.evaluations["vali"].means) == {"ndcg@5", "mrr"}
    graded = {**options, "loss": "PointwiseSoftmaxLoss"}
    assert len(tfrankloss.train(splits(), progress=False, **graded).model.output_shape) == 3


def test_lists_of_the_same_query_stay_apart() -> None:
    part = splits()["test"]
    twice = RankingData.concat([part, part])
    scores = np.concatenate([part.labels, -part.labels])
    found = training.evaluate_scores(scores, twice, ["mrr"])
    assert len(found.per_query["mrr"]) == 2 * len(part)
    assert (found.query_ids == twice.query_ids).all()


def test_standardize(tmp_path: Path) -> None:
    options = {**OPTIONS, "epochs": 1}
    options["model_options"] = {**OPTIONS["model_options"], "transform": "standardize"}
    tfrankloss.train(splits(), out=tmp_path / "run", progress=False, **options)
    model = keras.saving.load_model(tmp_path / "run" / "model.keras")
    (layer,) = [x for x in model.layers if isinstance(x, Standardize)]
    features = splits()["train"].features
    np.testing.assert_allclose(layer(features).numpy().mean(axis=0), 0, atol=1e-3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"loss": "ndcg_los2"}, "ndcg_los2"),
        ({"model": "forest"}, "model"),
        ({"metrics": ("ndgc@5",)}, "ndgc"),
        ({"monitor": "map"}, "monitor"),
        ({"optimizer": "newton"}, "optimizer"),
        ({"epochs": 0}, "epochs"),
        ({"learning_rate": -1}, "learning_rate"),
        ({"mixed_precision": "float8"}, "mixed_precision"),
        ({"learning_rate": ()}, "learning_rate"),
        ({"learning_rate": (0.1, -1)}, "learning_rate"),
        ({"tensorboard": True}, "needs a folder"),
    ],
)
def test_wrong_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tfrankloss.train(splits(), **options)


def test_wrong_data() -> None:
    parts = splits()
    with pytest.raises(ValueError, match="'train' and 'vali'"):
        tfrankloss.train(parts["train"])
    zero = RankingData.from_arrays(np.zeros((3, 12)), [0, 0, 0], [1, 1, 1])
    with pytest.raises(ValueError, match="all labels of 'vali' are 0"):
        tfrankloss.train(parts["train"], zero)
    other = RankingData.from_arrays(np.zeros((3, 2)), [0, 1, 0], [1, 1, 1])
    with pytest.raises(ValueError, match="same number of features"):
        tfrankloss.train(parts["train"], other)


def test_the_best_of_several_learning_rates(tmp_path: Path) -> None:
    """The validation metric decides; a rate at which the loss explodes is no reason to stop."""
    lines: list[str] = []
    options = {**OPTIONS, "model": "linear", "model_options": {}, "epochs": 2, "tensorboard": True}
    rates = (1e-6, 0.1, 1e38)
    parts = splits()
    run = tfrankloss.train(
        parts, out=tmp_path / "run", progress=lines.append, learning_rate=rates, **options
    )
    assert any("is not finite" in line for line in lines)
    single = [
        tfrankloss.train(parts, progress=False, learning_rate=rate, **{**options, **PLAIN})
        for rate in rates[:2]
    ]
    best = max(single, key=lambda one: one.evaluations["vali"].means["mrr"])
    assert run.options.learning_rate == best.options.learning_rate
    assert run.evaluations["test"].means == pytest.approx(best.evaluations["test"].means, rel=1e-4)
    results = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert results["learning_rate"] == best.options.learning_rate
    model = keras.saving.load_model(tmp_path / "run" / "model.keras")
    for mine, other in zip(model.get_weights(), best.model.get_weights()):
        np.testing.assert_allclose(mine, other, rtol=1e-4)
    assert "<polyline" in (tmp_path / "run" / "curves.svg").read_text()

    # TensorBoard's format, read as TensorBoard does.
    folder = tmp_path / "run" / "learning-rates" / f"{best.options.learning_rate:g}" / "tensorboard"
    (events,) = folder.iterdir()
    written = [
        (event.step, value.tag, float(tf.make_ndarray(value.tensor)))
        for record in tf.data.TFRecordDataset(str(events))
        for event in [tf.compat.v1.Event.FromString(record.numpy())]
        for value in event.summary.value
    ]
    expected = [entry["mrr"] for entry in run.history]
    assert [value for _, tag, value in written if tag == "mrr"] == pytest.approx(expected)
    assert {step for step, _, _ in written} == {1, 2}


@pytest.mark.parametrize("loss", ["pointwise_softmax", "ordinal"])
def test_losses_of_grades(loss: str) -> None:
    """The network gives a number per grade of the data; the ranking is that of the grades."""
    options = {**OPTIONS, "epochs": 1, "loss": loss}
    parts = splits()
    run = tfrankloss.train(parts, progress=False, **options)
    grades = 1 + int(max(part.labels.max() for part in parts.values()))
    assert run.model.output_shape[-1] == grades
    outputs = parts["test"].predict(run.model).astype(float)
    if loss == "ordinal":
        scores = (1 / (1 + np.exp(-outputs))).sum(axis=1)
    else:
        powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        scores = (powers / powers.sum(axis=1, keepdims=True)) @ np.arange(grades)
    expected = tfrankloss.evaluate(
        parts["test"].labels, scores, parts["test"].query_of_documents, metrics=["mrr"]
    )
    assert run.evaluations["test"].means["mrr"] == pytest.approx(expected.means["mrr"])
    with pytest.raises(ValueError, match="model must be one of"):
        tfrankloss.train(parts, **{**options, "model": "linear", "model_options": {}})
