"""How a ranker is trained: the options, all of which JSON can hold."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras

from tfrankloss import boosting, losses, metrics, models
from tfrankloss.data.batches import BatchPlan
from tfrankloss.losses.base import SampledLoss
from tfrankloss.losses.pointwise import GradedLoss
from tfrankloss.options import check_choice, check_integer, check_positive, find
from tfrankloss.training.folder import to_json
from tfrankloss.training.scores import DEFAULT_METRICS

TREES = ("lightgbm", "xgboost")
# Arguments of the objectives of trees, which stand among the parameters of the trees.
OBJECTIVE_OPTIONS = ("normalize", "newton", "curvature_floor")
OF_NETWORKS = ("optimizer", "batch_size", "max_documents", "list_size", "jit", "mixed_precision")
OPTIMIZERS = ("adam", "adamw", "adagrad", "sgd", "rmsprop")
POLICIES = (None, "mixed_float16", "mixed_bfloat16")
# By default a number that depends on the model: networks, trees.
_BY_MODEL: Any = None
_DEFAULTS = {"epochs": (50, 500), "patience": (5, 50), "learning_rate": (1e-3, 0.1)}
# Losses that were made, by name and options: their programs are compiled once.
_LOSSES: dict[tuple[str, ...], losses.RankingLoss] = {}


@dataclass(frozen=True)
class TrainingOptions:
    """How a ranker is trained; the arguments of `train`, all of which JSON can hold.

    Attributes:
        loss: name of the loss, such as `"ndcg_loss2@5"`. One that needs a number per grade gets it
            from the network, if that is `"feedforward"`; `num_grades` is by default that of the
            labels.
        loss_options: further arguments of the loss.
        model: name of the network, one of `models.MODELS`; or `"lightgbm"` or `"xgboost"` for
            boosted trees.
        model_options: further arguments of the network; the transform may also be `"standardize"`,
            by the training data. Of trees their parameters, such as `num_leaves`, and the arguments
            of `boosting.lightgbm_objective`.
        metrics: names of the metrics that are measured after each epoch.
        monitor: the metric that decides which epoch is the best, and when to stop; by default the
            last of `metrics`.
        epochs: most epochs, by default 50; of trees the rounds, by default 500.
        patience: epochs without a better value after which training stops, by default 5; of trees
            50 rounds.
        optimizer: name of the optimizer, as the options of batches and of precision for networks.
        learning_rate: of the optimizer, by default 0.001, or of trees, by default 0.1; or several,
            which are all tried and of which the validation data choose the best.
        batch_size: lists per batch.
        max_documents: documents per batch, in place of `batch_size`.
        list_size: see `RankingData.to_dataset`.
        discard_without_relevant: whether to train without queries that have no relevant document.
        seed: of weights, batches and dropout.
        jit: whether XLA compiles the whole training step; by default as Keras decides.
        mixed_precision: None, `"mixed_float16"` or `"mixed_bfloat16"`.
        tensorboard: whether to write the history for TensorBoard, too.
    """

    loss: str = "ndcg_loss2@5"
    loss_options: Mapping[str, Any] = field(default_factory=dict)
    model: str = "feedforward"
    model_options: Mapping[str, Any] = field(default_factory=dict)
    metrics: Sequence[str] = DEFAULT_METRICS
    monitor: str | None = None
    epochs: int = _BY_MODEL
    patience: int = _BY_MODEL
    optimizer: str = "adam"
    learning_rate: float | Sequence[float] = _BY_MODEL
    batch_size: int | None = None
    max_documents: int | None = None
    list_size: int | None = None
    discard_without_relevant: bool = True
    seed: int = 0
    jit: bool | None = None
    mixed_precision: str | None = None
    tensorboard: bool = False

    def __post_init__(self) -> None:
        for name in ("loss_options", "model_options"):
            _check_type(name, getattr(self, name), Mapping, "a mapping of arguments")
        for name in ("jit", "discard_without_relevant", "tensorboard"):
            value = getattr(self, name)
            _check_type(name, value, bool | None if name == "jit" else bool, "True or False")
        names = [] if isinstance(self.metrics, str) else list(self.metrics)
        if not names or not all(isinstance(name, str) for name in names):
            raise ValueError(
                "metrics must be a list of at least one name, such as ['ndcg@10']. "
                f"Received: metrics={self.metrics!r}"
            )
        # Names as results have them, whatever the spelling.
        object.__setattr__(self, "metrics", [metrics.get(name).name for name in self.metrics])
        if self.monitor is not None:
            object.__setattr__(self, "monitor", metrics.get(self.monitor).name)
        check_choice("monitor", self.watched, tuple(self.metrics))
        check_choice("model", self.model, (*models.MODELS, *TREES))
        for name, defaults in _DEFAULTS.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, defaults[self.model in TREES])
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_choice("mixed_precision", self.mixed_precision, POLICIES)
        check_integer("epochs", self.epochs, minimum=1)
        check_integer("patience", self.patience, minimum=1)
        self.batch_plan(0)
        rates = self.learning_rates
        for rate in rates:
            check_positive("learning_rate", rate)
        if not rates or len({f"{rate:g}" for rate in rates}) < len(rates):
            raise ValueError(
                "learning_rate must be a number, or several different ones. "
                f"Received: learning_rate={self.learning_rate!r}"
            )
        self._check_model()

    def _check_model(self) -> None:
        loss = self.make_loss()
        if self.model in TREES:
            self._check_trees(loss)
            return
        taken = inspect.signature(models.MODELS[self.model]).parameters
        if not any(x.kind is inspect.Parameter.VAR_KEYWORD for x in taken.values()):
            unknown = sorted(set(self.model_options) - set(taken))
            if unknown:
                raise ValueError(
                    f"The model {self.model!r} takes {', '.join(list(taken)[1:])}. "
                    f"Received: model_options with {unknown}"
                )
        graded = self.model in ("feedforward", "classification")
        if loss.outputs > 1 and not graded:
            raise ValueError(
                f"The loss {self.loss!r} needs a number per grade: model must be one of "
                f"('feedforward', 'classification'). Received: model={self.model!r}"
            )

    def _check_trees(self, loss: losses.RankingLoss) -> None:
        for option in OF_NETWORKS:
            if getattr(self, option) != getattr(TrainingOptions, option):
                raise ValueError(
                    f"{option} is for networks. Received: {option}={getattr(self, option)!r} for "
                    f"model={self.model!r}"
                )
        given = {
            key: self.model_options[key] for key in OBJECTIVE_OPTIONS if key in self.model_options
        }
        boosting.lightgbm_objective(loss, **given)  # says what is wrong

    def make_loss(self, num_grades: int = 2) -> losses.RankingLoss:
        """The loss, for labels of so many grades; the same object for the same options.

        What the loss compiled for one run serves the next one.
        """
        options = dict(self.loss_options)
        kind = losses.LOSSES[find("loss", losses.LOSSES, self.loss)]
        if issubclass(kind, GradedLoss):
            options.setdefault("num_grades", num_grades)
        if issubclass(kind, SampledLoss):
            options.setdefault("seed", self.seed)  # a resumed run draws the same noise
        key = (self.loss, keras.backend.backend(), to_json(options))
        if key not in _LOSSES:
            _LOSSES[key] = losses.get(self.loss, **options)
        return _LOSSES[key]

    def batch_plan(self, epoch: int) -> dict[str, Any]:
        """The arguments of `RankingData.to_dataset` for an epoch."""
        arguments: dict[str, Any] = {
            "batch_size": self.batch_size,
            "max_documents": self.max_documents,
            "list_size": self.list_size,
            "seed": self.seed,
            "first_epoch": epoch,
        }
        BatchPlan(**arguments)  # says what is wrong
        return arguments

    @property
    def learning_rates(self) -> list[float]:
        """The learning rates to choose from, or the only one."""
        rates = self.learning_rate
        return list(rates) if isinstance(rates, list | tuple) else [rates]  # type: ignore[list-item]

    @property
    def sign(self) -> float:
        """The sign that makes a higher value of the watched metric a better one."""
        return -1.0 if metrics.get(self.watched)._direction == "down" else 1.0

    @property
    def watched(self) -> str:
        """The name of the metric that decides."""
        return self.monitor or (self.metrics[-1] if self.metrics else "")


def _check_type(name: str, value: Any, kind: Any, wanted: str) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"{name} must be {wanted}. Received: {name}={value!r}")
