"""Objectives and metrics with the signatures that LightGBM and XGBoost call."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tfrankloss import metrics as known_metrics
from tfrankloss.boosting.derivatives import DocumentDerivatives, TreeLoss
from tfrankloss.evaluation import evaluate
from tfrankloss.losses.base import RankingLoss
from tfrankloss.metrics import RankingMetric
from tfrankloss.options import needs

Objective = Callable[..., tuple[np.ndarray, np.ndarray]]


def lightgbm_objective(
    loss: RankingLoss | str,
    *,
    normalize: bool = False,
    newton: bool = False,
    curvature_floor: float = 0.0,
) -> Objective:
    """A loss as the objective of LightGBM.

    For `lightgbm.train({"objective": objective}, dataset)` and `LGBMRanker(objective=objective)`;
    the dataset knows its groups. Labels may be any numbers from 0 on, and lists of any length. A
    weight per document means what it means to the loss.

    A leaf's step is `-sum(gradient) / (sum(curvature) + lambda_l2)` over its documents. Each list
    counts with its own loss; `reduction` of the loss has no part in it.

    Args:
        loss: a loss with a curvature, or its name, such as `"ndcg_loss2@10"`.
        normalize: for LambdaRank and its kin, what LightGBM calls `lambdarank_norm`: pairs of close
            scores count more, and lists with large forces less.
        newton: for cross entropies, whether a document's step is the approximate `H^-1 gradient` of
            its list (Bruch, WWW 2021, Sect. 4.3), as LightGBM's `rank_xendcg` has it, instead of
            the quotient of gradient and diagonal curvature.
        curvature_floor: the least curvature of a document; needed by losses that are not strictly
            convex. LightGBM leaves out splits with less than `min_sum_hessian_in_leaf`.

    >>> objective = lightgbm_objective("ndcg_loss2@5")
    >>> labels, scores = np.array([1.0, 0.0]), np.zeros(2)
    >>> gradient, curvature = objective(labels, scores, None, np.array([2]))  # one list of two
    >>> [round(float(x), 3) for x in gradient]  # 1 / ln(2) (1 - 1/log2(3)) / 2
    [-0.266, 0.266]
    """
    derivatives = _Derivatives(TreeLoss(loss, normalize, newton, curvature_floor))

    # LightGBM counts the parameters: to a function of four it hands labels, scores, weights and
    # groups where it runs as LGBMRanker, and scores and the dataset otherwise.
    def objective(
        first: Any, second: Any, weight: Any = None, group: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        if hasattr(second, "get_group"):
            return derivatives(first, *_lightgbm_lists(second))
        return derivatives(second, np.asarray(first), _lengths(group), weight)

    return objective


def lightgbm_metric(*metrics: str | RankingMetric) -> Callable[..., list[tuple[str, float, bool]]]:
    """Metrics of this package for `feval` of `lightgbm.train` and `eval_metric` of `LGBMRanker`.

    LightGBM measures its own beside them, under the same names, unless its parameter `metric` is
    `"None"`.

    Args:
        *metrics: names such as `"ndcg@10"`, or metrics with options of their own.

    >>> metric = lightgbm_metric("mrr")
    >>> metric(np.array([1.0, 0.0]), np.array([0.1, 0.2]), None, np.array([2]))
    [('mrr', 0.5, True)]
    """
    measured = _Measured(metrics)

    def metric(
        first: Any, second: Any, weight: Any = None, group: Any = None
    ) -> list[tuple[str, float, bool]]:
        if hasattr(second, "get_group"):
            labels, lengths, weights = _lightgbm_lists(second)
            means = measured(labels, first, lengths, weights)
        else:
            means = measured(np.asarray(first), second, _lengths(group), weight)
        return [(name, value, measured.better_up[name]) for name, value in means.items()]

    return metric


def xgboost_objective(
    loss: RankingLoss | str,
    *,
    normalize: bool = False,
    newton: bool = False,
    curvature_floor: float = 0.0,
) -> Objective:
    """A loss as the objective of XGBoost: `xgboost.train(..., obj=objective)`.

    The `DMatrix` knows its groups. See `lightgbm_objective` for the arguments, and `xgboost_ranker`
    for an estimator: XGBoost's `XGBRanker` takes no objective of one's own.
    """
    derivatives = _Derivatives(TreeLoss(loss, normalize, newton, curvature_floor))

    def objective(scores: Any, matrix: Any) -> tuple[np.ndarray, np.ndarray]:
        return derivatives(scores, *_xgboost_lists(matrix))

    return objective


def xgboost_metric(*metrics: str | RankingMetric) -> Callable[[Any, Any], list[tuple[str, float]]]:
    """Metrics of this package for `xgboost.train(..., custom_metric=metric)`.

    To stop early by one that is better if higher, `maximize=True` must be given.

    Args:
        *metrics: names such as `"ndcg@10"`, or metrics with options of their own.
    """
    measured = _Measured(metrics)

    def metric(scores: Any, matrix: Any) -> list[tuple[str, float]]:
        labels, lengths, weights = _xgboost_lists(matrix)
        return list(measured(labels, scores, lengths, weights).items())

    return metric


def xgboost_ranker(
    loss: RankingLoss | str,
    *,
    metrics: tuple[str | RankingMetric, ...] = (),
    normalize: bool = False,
    newton: bool = False,
    curvature_floor: float = 0.0,
    **arguments: Any,
) -> Any:
    """An `xgboost.XGBRanker` that is trained with a loss of this package.

    `fit` takes `X`, `y`, `group` or `qid`, `sample_weight` (per list), `eval_set` with `eval_group`
    or `eval_qid`, and `verbose`; everything else is that of `XGBRanker`.

    Args:
        loss: see `lightgbm_objective`, as `normalize`, `newton` and `curvature_floor`.
        metrics: names of metrics for `eval_set`; the last one decides when to stop early.
        **arguments: further ones of `XGBRanker`, such as `n_estimators` and `max_depth`.
    """
    xgboost = needs("xgboost", "boosting")
    objective = xgboost_objective(
        loss, normalize=normalize, newton=newton, curvature_floor=curvature_floor
    )
    if given := {"objective", "eval_metric", "callbacks"} & set(arguments):
        raise ValueError(f"loss and metrics stand in their place. Received: {sorted(given)}")
    measured = _Measured(metrics) if metrics else None

    class LossRanker(xgboost.XGBRanker):  # type: ignore[name-defined]
        def fit(
            self,
            X: Any,  # noqa: N803, the name of all estimators
            y: Any,
            *,
            group: Any = None,
            qid: Any = None,
            sample_weight: Any = None,
            eval_set: Any = None,
            eval_group: Any = None,
            eval_qid: Any = None,
            verbose: Any = False,
        ) -> Any:
            def matrix(features: Any, labels: Any, group: Any, qid: Any, weight: Any) -> Any:
                return xgboost.DMatrix(
                    features, labels, group=group, qid=qid, weight=weight, missing=self.missing
                )

            none = [None] * len(eval_set or [])
            sets = zip(eval_set or [], eval_group or none, eval_qid or none, strict=True)
            evals = [
                (matrix(features, labels, sizes, ids, None), f"validation_{number}")
                for number, ((features, labels), sizes, ids) in enumerate(sets)
            ]
            parameters = self.get_xgb_params()
            parameters.pop("objective")
            parameters["disable_default_eval_metric"] = True
            results: dict[str, Any] = {}
            self._Booster = xgboost.train(
                parameters,
                matrix(X, y, group, qid, sample_weight),
                self.get_num_boosting_rounds(),
                evals=evals,
                obj=objective,
                custom_metric=xgboost_metric(*metrics) if metrics else None,
                maximize=None if measured is None else list(measured.better_up.values())[-1],
                early_stopping_rounds=self.early_stopping_rounds,
                evals_result=results,
                verbose_eval=verbose,
            )
            self.evals_result_ = results
            return self

    return LossRanker(**arguments)


class _Derivatives:
    """Derivatives of the data that were last asked for: a booster asks at every round."""

    def __init__(self, loss: TreeLoss) -> None:
        self._loss = loss
        self._known: tuple[Any, ...] | None = None

    def __call__(
        self, scores: Any, labels: np.ndarray, lengths: np.ndarray, weights: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        given = (labels, lengths, weights)
        if self._known is None or not all(
            np.array_equal(x, y) for x, y in zip(self._known, given, strict=True)
        ):
            self._of_lists = DocumentDerivatives(self._loss, *given)
            self._known = tuple(None if x is None else x.copy() for x in given)
        return self._of_lists(np.asarray(scores))


class _Measured:
    """The means of metrics over the lists."""

    def __init__(self, metrics: tuple[str | RankingMetric, ...]) -> None:
        if not metrics:
            raise ValueError("There must be at least one metric, such as 'ndcg@10'.")
        self._metrics = [known_metrics.get(metric) for metric in metrics]
        self.better_up = {metric.name: metric._direction == "up" for metric in self._metrics}

    def __call__(
        self, labels: np.ndarray, scores: Any, lengths: np.ndarray, weights: Any = None
    ) -> dict[str, float]:
        lists = np.repeat(np.arange(len(lengths)), lengths)
        if weights is not None and len(weights) == len(lengths) != len(labels):
            weights = np.repeat(weights, lengths)
        return evaluate(labels, scores, lists, self._metrics, weights).means


def _lightgbm_lists(dataset: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    return dataset.get_label(), _lengths(dataset.get_group()), dataset.get_weight()


def _xgboost_lists(matrix: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    weights = matrix.get_weight()
    splits = matrix.get_uint_info("group_ptr")
    lengths = _lengths(np.diff(splits.astype(np.int64)) if len(splits) else None)
    return matrix.get_label(), lengths, weights if len(weights) else None


def _lengths(group: Any) -> np.ndarray:
    if group is None:
        raise ValueError(
            "The data must say which documents belong together: give `group`, the sizes of the "
            "lists. Received: group=None"
        )
    return np.asarray(group, np.int64)
