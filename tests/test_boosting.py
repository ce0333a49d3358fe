"""Losses as objectives of trees: derivatives against formulas, and boosters that learn."""

import copy
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest
import xgboost
from sklearn.base import clone

from tests import oracles
from tfrankloss import boosting, losses
from tfrankloss.boosting.derivatives import DocumentDerivatives, TreeLoss, _batches
from tfrankloss.data import RankingData, synthetic
from tfrankloss.evaluation import evaluate

LENGTHS = np.array([7, 1, 20, 12, 7, 3])


def documents(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    count = LENGTHS.sum()
    return generator.integers(0, 5, count).astype(float), generator.normal(size=count)


def derivatives(
    loss: Any,
    labels: np.ndarray,
    scores: np.ndarray,
    lengths: np.ndarray = LENGTHS,
    weights: np.ndarray | None = None,
    **options: Any,
) -> tuple[np.ndarray, np.ndarray]:
    options = {"normalize": False, "newton": False, "curvature_floor": 0.0, **options}
    return DocumentDerivatives(TreeLoss(loss, **options), labels, lengths, weights)(scores)


def by_list(*arrays: np.ndarray, lengths: np.ndarray = LENGTHS) -> Any:
    splits = np.cumsum(lengths)[:-1]
    return zip(*(np.split(array, splits) for array in arrays), strict=True)


def lambdarank_of_lightgbm(
    labels: np.ndarray, scores: np.ndarray, sigma: float = 1.0, norm: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """LightGBM's definition for one list, without truncation: pair by pair, in float64."""
    order = np.argsort(-scores, kind="stable")
    rank = np.empty(len(order), int)
    rank[order] = np.arange(len(order))
    gains, discounts = 2.0**labels - 1.0, 1.0 / np.log2(2.0 + rank)
    ideal = (np.sort(gains)[::-1] / np.log2(2.0 + np.arange(len(gains)))).sum()
    gradient, curvature, total = np.zeros(len(labels)), np.zeros(len(labels)), 0.0
    for i in range(len(labels)):
        for j in range(len(labels)):
            if labels[i] <= labels[j]:
                continue
            change = (gains[i] - gains[j]) * abs(discounts[i] - discounts[j]) / ideal
            if norm and scores.max() != scores.min():
                change /= 0.01 + abs(scores[i] - scores[j])
            p = 1.0 / (1.0 + np.exp(sigma * (scores[i] - scores[j])))
            force, bend = sigma * change * p, sigma**2 * change * p * (1.0 - p)
            gradient[i] -= force
            gradient[j] += force
            curvature[[i, j]] += bend
            total += 2.0 * force
    factor = np.log2(1.0 + total) / total if norm and total > 0 else 1.0
    return factor * gradient, factor * curvature


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(("ties", "dtype"), [(False, None), (True, None), (False, "float64")])
def test_lambdarank_is_that_of_lightgbm(norm: bool, ties: bool, dtype: str | None) -> None:
    labels, scores = documents()
    scores = np.zeros_like(scores) if ties else scores
    loss = losses.LambdaRankLoss(sigma=1.7, dtype=dtype)
    found = derivatives(loss, labels, scores, normalize=norm)
    expected = [lambdarank_of_lightgbm(y, s, 1.7, norm) for y, s in by_list(labels, scores)]
    for mine, theirs in zip(found, zip(*expected, strict=True), strict=True):
        # Ours is a logarithm to base 2.
        np.testing.assert_allclose(mine * np.log(2.0), np.concatenate(theirs), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("spread", [0.0, 2.0])
def test_lambdarank_of_lightgbm_itself(spread: float, norm: bool) -> None:
    """A feature that tells all documents apart: a leaf for each, and its step is that of one."""
    generator = np.random.default_rng(1)
    labels, lengths = generator.integers(0, 4, 40).astype(float), [25, 15]
    features = generator.permutation(len(labels))[:, None].astype(float)
    scores = spread * generator.normal(size=len(labels))  # where the only round begins
    predicted = []
    shared = {
        "num_leaves": len(labels),
        "min_data_in_leaf": 1,
        "min_sum_hessian_in_leaf": 1e-9,
        "min_data_in_bin": 1,
        "learning_rate": 0.3,
        "lambdarank_norm": norm,
        "lambdarank_truncation_level": 100,
        "deterministic": True,
        "verbose": -1,
    }
    for objective in ("lambdarank", boosting.lightgbm_objective("lambdarank", normalize=norm)):
        dataset = lightgbm.Dataset(features, labels, group=lengths, init_score=scores)
        booster = lightgbm.train({**shared, "objective": objective}, dataset, 1)
        predicted.append(booster.predict(features, raw_score=True))
    np.testing.assert_allclose(predicted[1], predicted[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("loss", "weight"),
    [
        (losses.NDCGLoss2(), oracles.lambda_weights_ndcg_loss2),
        (
            losses.NDCGLoss2PlusPlus(mu=5.0),
            partial(oracles.lambda_weights_ndcg_loss2_plus_plus, mu=5.0),
        ),
    ],
    ids=["ndcg_loss2", "ndcg_loss2_plus_plus"],
)
def test_lambda_losses(loss: Any, weight: Any) -> None:
    """`h_i = sum_j w_ij p_ij (1 - p_ij) / ln 2` over the pairs that i is part of."""
    labels, scores = documents()
    found = derivatives(loss, labels, scores)
    expected: list[Any] = []
    for y, s in by_list(labels, scores):
        p = 1.0 / (1.0 + np.exp(s[:, None] - s[None, :]))
        w = weight(s, y) / np.log(2.0)
        gradient = -(w * p).sum(axis=1) + (w * p).sum(axis=0)
        bend = w * p * (1.0 - p)
        expected.append((gradient, bend.sum(axis=1) + bend.sum(axis=0)))
    for mine, theirs in zip(found, zip(*expected, strict=True), strict=True):
        np.testing.assert_allclose(mine, np.concatenate(theirs), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("newton", [False, True])
def test_xendcg_of_the_paper(newton: bool) -> None:
    labels, scores = documents()
    epsilon = 0.25
    loss = losses.XENDCGLoss(gamma=0.4, epsilon=epsilon)
    found = derivatives(loss, labels, scores, newton=newton)
    expected: list[Any] = []
    for y, s in by_list(labels, scores):
        phi = (2.0**y - 0.4) / (2.0**y - 0.4).sum()
        rho = np.exp(s) / (np.exp(s).sum() + epsilon)
        gradient, diagonal = rho - phi, rho * (1.0 - rho)
        if newton:
            matrix = rho[None, :] / (1.0 - rho[:, None]) * (1.0 - np.eye(len(y)))
            series = np.eye(len(y)) + matrix + matrix @ matrix
            gradient = diagonal * (series @ (gradient / diagonal))
        expected.append((gradient, diagonal))
    for mine, theirs in zip(found, zip(*expected, strict=True), strict=True):
        np.testing.assert_allclose(mine, np.concatenate(theirs), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("gap", [12.0, 20.0])
def test_a_document_that_has_nearly_all(gap: float) -> None:
    """1 - rho is not a difference: it would be 7 % off, or 0."""
    labels, scores = np.array([1.0, 2.0, 0.0]), np.array([gap, 0.0, -0.5])
    _, curvature = derivatives(losses.XENDCGLoss(gamma=0.4), labels, scores, np.array([3]))
    rest = (1.0 + np.exp(-0.5)) / (np.exp(gap) + 1.0 + np.exp(-0.5))
    assert curvature[0] == pytest.approx((1.0 - rest) * rest, rel=1e-4)


def test_newton_step_of_one_document_and_of_certainty() -> None:
    labels = np.array([1.0, 2.0, 0.0])
    found = derivatives(
        losses.XENDCGLoss(gamma=0.4),
        labels,
        np.array([5.0, 200.0, 0.0]),
        np.array([1, 2]),
        newton=True,
    )
    assert all(np.isfinite(part).all() for part in found)
    assert found[0][0] == 0.0 and found[1][0] == 0.0


def test_weights_and_batches() -> None:
    """A weight of 2 for a list is that list twice; what stands in other batches changes nothing."""
    labels, scores = documents()
    for normalize in (False, True):
        plain = derivatives("ndcg_loss2@5", labels, scores, normalize=normalize)
        weights = np.full(len(LENGTHS), 2.0)
        weighted = derivatives("ndcg_loss2@5", labels, scores, weights=weights, normalize=normalize)
        for one, two in zip(plain, weighted, strict=True):
            np.testing.assert_allclose(2.0 * one, two, rtol=1e-5)
    of_documents = derivatives("softmax", labels, scores, weights=np.arange(len(labels)) / 10.0)
    start = 0
    for y, s, w in by_list(labels, scores, np.arange(len(labels)) / 10.0):
        rho = np.exp(s) / np.exp(s).sum()
        expected = rho * (w * y).sum() - w * y
        np.testing.assert_allclose(
            of_documents[0][start : start + len(y)], expected, rtol=1e-4, atol=1e-5
        )
        start += len(y)


def test_each_list_is_in_one_batch() -> None:
    lengths = np.random.default_rng(0).integers(0, 3000, 700)
    lengths[3] = 20_000
    batches = _batches(lengths, 1 << 15)
    found = np.concatenate([lists[lists >= 0] for _, lists in batches])
    assert sorted(found) == np.flatnonzero(lengths).tolist()
    assert all((lengths[lists[lists >= 0]] <= size).all() for size, lists in batches)
    assert len({(size, len(lists)) for size, lists in batches}) <= 20


@pytest.fixture(scope="module")
def splits() -> dict[str, RankingData]:
    return {"train": synthetic(60, 8, 15, seed=1), "vali": synthetic(40, 8, 15, seed=2)}


def ndcg(data: RankingData, scores: np.ndarray) -> float:
    return evaluate(data.labels, scores, data.query_of_documents, ["ndcg@5"]).means["ndcg@5"]


SMALL = {"num_leaves": 7, "min_data_in_leaf": 5, "verbose": -1, "seed": 1, "deterministic": True}


@pytest.mark.parametrize("name", ["lambdarank", "xendcg", "list_mle"])
def test_lightgbm_learns(name: str, splits: dict[str, RankingData]) -> None:
    """As a function and as an estimator alike."""
    data, vali = splits["train"], splits["vali"]
    objective = boosting.lightgbm_objective(
        losses.get(name, **({"seed": 3} if name == "xendcg" else {}))
    )
    dataset = lightgbm.Dataset(data.features, data.labels, group=data.lengths)
    validation = dataset.create_valid(vali.features, vali.labels, group=vali.lengths)
    record: dict[str, Any] = {}
    booster = lightgbm.train(
        {**SMALL, "objective": objective, "metric": "None"},
        dataset,
        20,
        valid_sets=[validation],
        feval=boosting.lightgbm_metric("ndcg@5", "arp"),
        callbacks=[lightgbm.record_evaluation(record), lightgbm.early_stopping(15, verbose=False)],
    )
    learnt = ndcg(vali, booster.predict(vali.features))
    assert learnt > ndcg(vali, np.random.default_rng(0).random(vali.num_documents)) + 0.1
    best = booster.best_iteration
    assert record["valid_0"]["ndcg@5"][best - 1] == pytest.approx(learnt, abs=1e-6)
    ranker = lightgbm.LGBMRanker(
        objective=objective,
        n_estimators=20,
        metric="None",
        min_child_samples=5,
        **{key: SMALL[key] for key in ("num_leaves", "verbose", "deterministic")},
    )
    ranker.fit(
        data.features,
        data.labels,
        group=data.lengths,
        eval_set=[(vali.features, vali.labels)],
        eval_group=[vali.lengths],
        eval_metric=boosting.lightgbm_metric("ndcg@5"),
    )
    assert ranker.evals_result_["valid_0"]["ndcg@5"] == pytest.approx(
        record["valid_0"]["ndcg@5"][:20], abs=1e-6
    )


def test_what_lightgbm_refuses() -> None:
    """Labels that are real numbers or above 31, a list of more than 10,000 documents, weights."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(10_500, 3))
    labels = np.exp(features[:, 0])
    labels[0] = 40.0
    dataset = lightgbm.Dataset(
        features, labels, group=[10_400, 100], weight=generator.uniform(0.5, 2.0, len(labels))
    )
    objective = boosting.lightgbm_objective(losses.LambdaRankLoss(topn=10, gain="linear"))
    booster = lightgbm.train({**SMALL, "objective": objective}, dataset, 3)
    predicted = booster.predict(features)
    assert np.isfinite(predicted).all()
    assert np.corrcoef(predicted, features[:, 0])[0, 1] > 0.2


def test_a_booster_predicts_without_this_package(
    splits: dict[str, RankingData], tmp_path: Path
) -> None:
    data = splits["train"]
    objective = boosting.lightgbm_objective("softmax", newton=True)
    dataset = lightgbm.Dataset(data.features, data.labels, group=data.lengths)
    booster = lightgbm.train({**SMALL, "objective": objective}, dataset, 5)
    booster.save_model(tmp_path / "model.txt")
    np.save(tmp_path / "features.npy", data.features)
    program = """
import sys
sys.modules["tfrankloss"] = None
import lightgbm, numpy
booster = lightgbm.Booster(model_file="model.txt")
numpy.save("scores.npy", booster.predict(numpy.load("features.npy")))
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "scores.npy"), booster.predict(data.features))


@pytest.mark.slow
def test_xgboost_learns(splits: dict[str, RankingData], tmp_path: Path) -> None:
    data, vali = splits["train"], splits["vali"]
    matrix = xgboost.DMatrix(data.features, data.labels, group=data.lengths)
    validation = xgboost.DMatrix(vali.features, vali.labels, group=vali.lengths)
    record: dict[str, Any] = {}
    parameters = {"max_depth": 3, "disable_default_eval_metric": True, "seed": 1, "eta": 0.3}
    booster = xgboost.train(
        parameters,
        matrix,
        15,
        evals=[(validation, "vali")],
        obj=boosting.xgboost_objective("ndcg_loss2@5"),
        custom_metric=boosting.xgboost_metric("ndcg@5"),
        evals_result=record,
        maximize=True,
        verbose_eval=False,
    )
    learnt = ndcg(vali, booster.predict(validation))
    assert learnt > ndcg(vali, np.random.default_rng(0).random(vali.num_documents)) + 0.1
    assert record["vali"]["ndcg@5"][-1] == pytest.approx(learnt, abs=1e-6)

    for metric, best in (("ndcg@5", np.argmax), ("arp", np.argmin)):
        ranker = boosting.xgboost_ranker(
            "ndcg_loss2@5",
            metrics=(metric,),
            n_estimators=100,
            max_depth=3,
            learning_rate=0.3,
            random_state=1,
            early_stopping_rounds=5,
        )
        ranker.fit(
            data.features,
            data.labels,
            qid=data.query_of_documents,
            eval_set=[(vali.features, vali.labels)],
            eval_qid=[vali.query_of_documents],
        )
        values = ranker.evals_result()["validation_0"][metric]
        assert len(values) < 100
        assert ranker.best_iteration == best(values) == len(values) - 6
    ranker.save_model(tmp_path / "model.json")
    plain = xgboost.XGBRanker()
    plain.load_model(tmp_path / "model.json")
    np.testing.assert_array_equal(plain.predict(vali.features), ranker.predict(vali.features))


@pytest.mark.parametrize(
    ("loss", "options", "words"),
    [
        ("approx_ndcg", {}, "ApproxNDCGLoss has no curvature.*lambdarank.*xendcg"),
        (losses.ListNetLoss(topk=2), {}, "has no curvature"),
        (losses.PointwiseSquaredLoss(num_grades=3), {}, "has no curvature"),
        ("pairwise_hinge", {}, "curvature_floor"),
        ("pairwise_soft_zero_one", {}, "curvature_floor"),
        ("softmax", {"normalize": True}, "normalize"),
        ("lambdarank", {"newton": True}, "newton"),
        ("softmax", {"curvature_floor": -1.0}, "curvature_floor"),
        ("unknown", {}, "loss"),
    ],
)
def test_wrong_options(loss: Any, options: dict[str, Any], words: str) -> None:
    for make in (boosting.lightgbm_objective, boosting.xgboost_objective):
        with pytest.raises(ValueError, match=words):
            make(loss, **options)


def test_wrong_data() -> None:
    objective = boosting.lightgbm_objective("softmax")
    labels, scores = np.array([1.0, 0.0]), np.zeros(2)
    with pytest.raises(ValueError, match="group"):
        objective(labels, scores, None, None)
    with pytest.raises(ValueError, match="add up"):
        objective(labels, scores, None, np.array([3]))
    with pytest.raises(ValueError, match="-1.0 for document 1"):
        objective(np.array([1.0, -1.0]), scores, None, np.array([2]))
    with pytest.raises(ValueError, match="Weights"):
        objective(labels, scores, np.array([np.nan, 1.0]), np.array([2]))
    with pytest.raises(ValueError, match="score for each"):
        objective(labels, np.zeros(3), None, np.array([2]))
    with pytest.raises(ValueError, match="metric"):
        boosting.lightgbm_metric()
    with pytest.raises(ValueError, match="objective"):
        boosting.xgboost_ranker("softmax", objective="rank:pairwise")
    with pytest.raises(ValueError, match="needs metrics"):
        boosting.xgboost_ranker("softmax", early_stopping_rounds=3)
    with pytest.raises(ValueError, match="tuple"):
        boosting.xgboost_ranker("softmax", metrics="ndcg@5")
    with pytest.raises(ValueError, match="no curvature"):
        boosting.xgboost_ranker("approx_ndcg")


def test_weights_of_lists_in_a_metric(splits: dict[str, RankingData]) -> None:
    vali = splits["vali"]
    weights = np.random.default_rng(0).uniform(size=len(vali))
    matrix = xgboost.DMatrix(vali.features, vali.labels, group=vali.lengths, weight=weights)
    scores = np.random.default_rng(1).random(vali.num_documents)
    ((name, value),) = boosting.xgboost_metric("mrr")(scores, matrix)
    values = evaluate(vali.labels, scores, vali.query_of_documents, ["mrr"]).per_query["mrr"]
    counts = ~np.isnan(values)
    expected = (weights * values)[counts].sum() / weights[counts].sum()
    assert (name, value) == ("mrr", pytest.approx(expected, rel=1e-6))


def test_objectives_are_pickled_and_not_copied() -> None:
    labels, scores = documents()
    objective = boosting.lightgbm_objective(losses.XENDCGLoss(gamma=0.5), newton=True)
    assert copy.deepcopy(objective) is objective
    again = pickle.loads(pickle.dumps(objective))
    for mine, other in zip(
        objective(labels, scores, None, LENGTHS), again(labels, scores, None, LENGTHS), strict=True
    ):
        np.testing.assert_allclose(mine, other, rtol=1e-6)


def test_one_objective_for_several_data_sets() -> None:
    """As cross validation asks for its folds in turn."""
    objective = boosting.lightgbm_objective("softmax")
    results = {}
    for seed in (0, 1, 0, 1):
        labels, scores = documents(seed)
        gradient, _ = objective(labels, scores, None, LENGTHS)
        np.testing.assert_array_equal(gradient, results.setdefault(seed, gradient))
    assert not np.array_equal(results[0], results[1])


def test_an_estimator_is_copied_and_pickled(splits: dict[str, RankingData]) -> None:
    data = splits["train"]
    ranker = clone(boosting.xgboost_ranker("softmax", newton=True, n_estimators=3, max_depth=2))
    assert (ranker.get_params()["loss"], ranker.get_params()["newton"]) == ("softmax", True)
    ranker.fit(data.features, data.labels, group=data.lengths)
    again = pickle.loads(pickle.dumps(ranker))
    np.testing.assert_array_equal(again.predict(data.features), ranker.predict(data.features))


def test_a_floor_makes_every_loss_usable() -> None:
    labels, scores = documents()
    _, curvature = derivatives("pairwise_hinge", labels, scores, curvature_floor=0.5)
    assert (curvature == 0.5).all()
