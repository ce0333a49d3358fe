"""What a trained model says of data, be it a network or trees."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from tfrankloss import losses
from tfrankloss.data.ranking_data import RankingData
from tfrankloss.evaluation import Evaluation, evaluate, means
from tfrankloss.options import needs
from tfrankloss.training.distribution import Alone

if TYPE_CHECKING:
    from tfrankloss.training.options import TrainingOptions

DEFAULT_METRICS = ("ndcg@1", "ndcg@5", "ndcg@10")
FILES = {"network": "model.keras", "lightgbm": "model.txt", "xgboost": "model.ubj"}


def load_model(path: Path) -> Any:
    """The model of a run's folder, or of a file: a Keras model or a booster."""
    found = [path / name for name in FILES.values()] if path.is_dir() else [path]
    found = [file for file in found if file.is_file()]
    if not found:
        raise FileNotFoundError(f"There is no trained model. Received: {path}")
    file = found[0]
    if file.suffix == ".keras":
        return keras.saving.load_model(file)
    if file.suffix == ".txt":
        return needs("lightgbm", "boosting").Booster(model_file=file)
    booster = needs("xgboost", "boosting").Booster()
    booster.load_model(file)
    return booster


def num_features(model: Any) -> int:
    """The number of features that a model takes."""
    if isinstance(model, keras.Model):
        return model.input["features"].shape[-1]
    of_booster = getattr(model, "num_features", None) or model.num_feature
    return int(of_booster())


def predict_scores(model: Any, data: RankingData) -> np.ndarray:
    """`[documents]`: what a trained model ranks by.

    Where it gives a number per grade, the loss it was trained with says what that means.
    """
    if not isinstance(model, keras.Model):
        return _booster_scores(model, data.features)
    outputs = data.predict(model)
    if outputs.ndim == 1:
        return outputs
    if not isinstance(model.loss, losses.RankingLoss):
        raise ValueError(
            f"The model gives {outputs.shape[1]} numbers per document, and no loss of this library "
            f"that says what to rank by. Received: loss={model.loss!r}"
        )
    return keras.ops.convert_to_numpy(model.loss.ranking_scores(outputs))


def evaluate_scores(
    scores: np.ndarray, data: RankingData, names: Sequence[str] = DEFAULT_METRICS
) -> Evaluation:
    """The metrics of scores `[documents]`; lists of the same query id stay lists of their own."""
    lists = np.repeat(np.arange(len(data)), data.lengths)
    result = evaluate(data.labels, scores, lists, metrics=list(names))
    return replace(result, query_ids=data.query_ids)


def evaluate_model(
    model: Any, data: RankingData, options: "TrainingOptions", cluster: Alone
) -> Evaluation:
    """The metrics of a model that is being trained; each worker measures its part of the lists."""
    # Of as many documents as the others, and a view of the data.
    inner = np.linspace(0, data.num_documents, cluster.workers + 1)[1:-1]
    ends = [0, *np.searchsorted(data.row_splits[:-1], inner).tolist(), len(data)]
    first, last = ends[cluster.worker :][:2]
    mine = data[first:last] if last > first else data[:1]  # more workers than lists
    scores = predict_scores(cluster.local(model), mine)
    # One worker must not stop while the others go on.
    broken = any(cluster.gather(b"" if np.isfinite(scores).all() else b"!"))
    check_finite("A score", np.nan if broken else 0.0, options)
    found = evaluate_scores(scores, mine, options.metrics)
    per_query = {
        name: np.concatenate(
            [np.frombuffer(x) for x in cluster.gather(values[: last - first].tobytes())]
        )
        for name, values in found.per_query.items()
    }
    return replace(found, means=means(per_query), per_query=per_query, query_ids=data.query_ids)


def check_finite(what: str, numbers: Any, options: "TrainingOptions") -> None:
    """Raises where training has gone astray."""
    if not np.isfinite(numbers).all():
        raise FloatingPointError(
            f"{what} is not finite: take a smaller learning rate or transform the features. "
            f"Received: learning_rate={options.learning_rate}"
        )


def _booster_scores(booster: Any, features: np.ndarray) -> np.ndarray:
    if type(booster).__module__.startswith("lightgbm"):
        return booster.predict(features)
    return booster.predict(needs("xgboost", "boosting").DMatrix(features))
