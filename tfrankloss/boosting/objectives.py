"""Objectives and metrics with the signatures that LightGBM and XGBoost call."""

import functools
import threading
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
# Data sets whose batches an objective keeps: cross validation asks for its folds in turn.
REMEMBERED = 16


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

    (`lightgbm.cv` tells only its own objectives from those of single documents: hand it folds that
    keep queries together, `folds=sklearn.model_selection.GroupKFold(5)`.)

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
    return _LightGBMObjective(loss, normalize, newton, curvature_floor)


def lightgbm_metric(*metrics: str | RankingMetric) -> Callable[..., list[tuple[str, float, bool]]]:
    """Metrics of this package for `feval` of `lightgbm.train` and `eval_metric` of `LGBMRanker`.

    LightGBM measures its own beside them, under the same names, unless its parameter `metric` is
    `"None"`. The weight of a document multiplies what it contributes, see `RankingMetric`.

    Args:
        *metrics: names such as `"ndcg@10"`, or metrics with options of their own.

    >>> metric = lightgbm_metric("mrr")
    >>> metric(np.array([1.0, 0.0]), np.array([0.1, 0.2]), None, np.array([2]))
    [('mrr', 0.5, True)]
    """
    return _LightGBMMetric(metrics)


def xgboost_objective(
    loss: RankingLoss | str,
    *,
    normalize: bool = False,
    newton: bool = False,
    curvature_floor: float = 0.0,
) -> Objective:
    """A loss as the objective of XGBoost: `xgboost.train(..., obj=objective)`.

    The `DMatrix` knows its groups and, if any, a weight per list (XGBoost has none per document).
    See `lightgbm_objective` for the arguments, and `xgboost_ranker` for an estimator: XGBoost's
    `XGBRanker` takes no objective of one's own.

    The curvature of a whole list may be below 1: XGBoost's default `min_child_weight` of 1 asks for
    many lists in a leaf, and 0.001, as LightGBM has it, fits better.
    """
    return _XGBoostObjective(loss, normalize, newton, curvature_floor)


def xgboost_metric(*metrics: str | RankingMetric) -> "_XGBoostMetric":
    """Metrics of this package for `xgboost.train(..., custom_metric=metric)`.

    To stop early by one that is better if higher, `maximize=True` must be given. Weights, which
    XGBoost has per list, are those of the mean.

    Args:
        *metrics: names such as `"ndcg@10"`, or metrics with options of their own.
    """
    return _XGBoostMetric(metrics)


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
    or `eval_qid`, and `verbose`, and nothing else that `XGBRanker.fit` does; all other methods are
    those of `XGBRanker`.

    Args:
        loss: see `lightgbm_objective`, as `normalize`, `newton` and `curvature_floor`.
        metrics: names of metrics for `eval_set`; the last one decides when to stop early.
        **arguments: further ones of `XGBRanker`, such as `n_estimators` and `max_depth`.
    """
    return _ranker_class()(
        loss=loss,
        metrics=metrics,
        normalize=normalize,
        newton=newton,
        curvature_floor=curvature_floor,
        **arguments,
    )


@functools.cache
def _ranker_class() -> Any:
    xgboost = needs("xgboost", "boosting")

    class LossRanker(xgboost.XGBRanker):  # type: ignore[name-defined]
        def __init__(
            self,
            *,
            loss: RankingLoss | str = "lambdarank",
            metrics: tuple[str | RankingMetric, ...] = (),
            normalize: bool = False,
            newton: bool = False,
            curvature_floor: float = 0.0,
            **arguments: Any,
        ) -> None:
            if given := {"eval_metric", "callbacks"} & {x for x, y in arguments.items() if y}:
                raise ValueError(
                    "xgboost_ranker takes metrics=('ndcg@5',) instead. "
                    f"Received: {', '.join(sorted(given))}"
                )
            if arguments.get("objective", "rank:ndcg") != "rank:ndcg":
                raise ValueError(
                    "xgboost_ranker takes loss='softmax' or another one instead. "
                    f"Received: objective={arguments['objective']!r}"
                )
            if isinstance(metrics, str):
                raise ValueError(f"metrics must be names in a tuple. Received: metrics={metrics!r}")
            if metrics:
                _Metric(tuple(metrics))  # says what is wrong
            super().__init__(**arguments)
            self.loss, self.metrics = loss, metrics
            self.normalize, self.newton = normalize, newton
            self.curvature_floor = curvature_floor
            if self.early_stopping_rounds and not metrics:
                raise ValueError("early_stopping_rounds needs metrics. Received: metrics=()")
            self._objective()  # says what is wrong

        def _objective(self) -> Objective:
            return _XGBoostObjective(self.loss, self.normalize, self.newton, self.curvature_floor)

        def __reduce__(self) -> Any:
            return _restored_ranker, (self.__dict__,)

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
                    features,
                    labels,
                    group=group,
                    qid=qid,
                    weight=weight,
                    missing=self.missing,
                    enable_categorical=self.enable_categorical,
                    feature_types=self.feature_types,
                    nthread=self.n_jobs,
                )

            none = [None] * len(eval_set or [])
            sets = zip(eval_set or [], eval_group or none, eval_qid or none, strict=True)
            evals = [
                (matrix(features, labels, sizes, ids, None), f"validation_{number}")
                for number, ((features, labels), sizes, ids) in enumerate(sets)
            ]
            ours = ("objective", "loss", "metrics", "normalize", "newton", "curvature_floor")
            parameters = {x: y for x, y in self.get_xgb_params().items() if x not in ours}
            metric = _XGBoostMetric(tuple(self.metrics)) if self.metrics else None
            results: dict[str, Any] = {}
            self._Booster = xgboost.train(
                {**parameters, "disable_default_eval_metric": True},
                matrix(X, y, group, qid, sample_weight),
                self.get_num_boosting_rounds(),
                evals=evals,
                obj=self._objective(),
                custom_metric=metric,
                maximize=None if metric is None else list(metric.better_up.values())[-1],
                early_stopping_rounds=self.early_stopping_rounds,
                evals_result=results,
                verbose_eval=verbose,
            )
            self.evals_result_ = results
            return self

    return LossRanker


def _restored_ranker(state: dict[str, Any]) -> Any:
    ranker = object.__new__(_ranker_class())
    ranker.__dict__.update(state)
    return ranker


def _same(first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(first, second, strict=True))


class _Objective:
    """Derivatives of the data that were last asked for: boosters ask at every round.

    Objects of a class, not functions, so that estimators that hold them can be pickled.
    """

    def __init__(self, *options: Any) -> None:
        self._options = options
        self._loss = TreeLoss(*options)
        self._known: list[tuple[tuple[Any, ...], DocumentDerivatives]] = []
        self._lock = threading.Lock()

    def __deepcopy__(self, memory: Any) -> "_Objective":
        return self  # libraries copy their parameters; programs need not be compiled again

    def __reduce__(self) -> Any:
        return type(self), self._options

    def derivatives(
        self, scores: Any, labels: np.ndarray, lengths: np.ndarray, weights: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        given = (labels, lengths, None if weights is None else np.asarray(weights))
        with self._lock:
            of_lists = next((found for known, found in self._known if _same(known, given)), None)
            if of_lists is None:
                of_lists = DocumentDerivatives(self._loss, *given)
                kept = tuple(None if x is None else x.copy() for x in given)
                self._known = [(kept, of_lists), *self._known[: REMEMBERED - 1]]
        return of_lists(np.asarray(scores))


class _LightGBMObjective(_Objective):
    # LightGBM counts the parameters: to a function of four it hands labels, scores, weights and
    # groups where it runs as LGBMRanker, and scores and the dataset otherwise.
    def __call__(
        self, first: Any, second: Any, weight: Any = None, group: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        if hasattr(second, "get_group"):
            return self.derivatives(first, *_lightgbm_lists(second))
        return self.derivatives(second, np.asarray(first), _lengths(group), weight)


class _XGBoostObjective(_Objective):
    def __call__(self, scores: Any, matrix: Any) -> tuple[np.ndarray, np.ndarray]:
        return self.derivatives(scores, *_xgboost_lists(matrix))


class _Metric:
    """The means of metrics over the lists."""

    def __init__(self, metrics: tuple[str | RankingMetric, ...]) -> None:
        if not metrics:
            raise ValueError("There must be at least one metric, such as 'ndcg@10'.")
        self._metrics = [known_metrics.get(metric) for metric in metrics]
        self.better_up = {metric.name: metric._direction == "up" for metric in self._metrics}

    def means(
        self, scores: Any, labels: np.ndarray, lengths: np.ndarray, weights: Any = None
    ) -> dict[str, float]:
        lists = np.repeat(np.arange(len(lengths)), lengths)
        of_lists = weights is not None and len(weights) == len(lengths) != len(labels)
        found = evaluate(labels, scores, lists, self._metrics, None if of_lists else weights)
        if not of_lists:
            return found.means
        given = np.asarray(weights)[lengths > 0]
        return {
            name: float(np.nansum(given * values) / given[~np.isnan(values)].sum())
            for name, values in found.per_query.items()
        }


class _LightGBMMetric(_Metric):
    def __call__(
        self, first: Any, second: Any, weight: Any = None, group: Any = None
    ) -> list[tuple[str, float, bool]]:
        if hasattr(second, "get_group"):
            means = self.means(first, *_lightgbm_lists(second))
        else:
            means = self.means(second, np.asarray(first), _lengths(group), weight)
        return [(name, value, self.better_up[name]) for name, value in means.items()]


class _XGBoostMetric(_Metric):
    def __call__(self, scores: Any, matrix: Any) -> list[tuple[str, float]]:
        return list(self.means(scores, *_xgboost_lists(matrix)).items())


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
