"""Training a ranker: data, network, loss and metrics to a folder that holds all of the run.

RUN/config.json     what is needed to repeat the run
RUN/metrics.json    results by split, and the history of the epochs
RUN/model.keras     the model of the best epoch
RUN/curves.svg      the metrics by epoch
RUN/loss.svg        the loss by epoch
RUN/state/          where an interrupted run goes on
RUN/tensorboard/    the same for TensorBoard, where asked for
RUN/learning-rates/ a run for each, where there were several to choose from
"""

import importlib.metadata
import inspect
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfrankloss import charts, losses, metrics, models
from tfrankloss.data.batches import BatchPlan
from tfrankloss.data.ranking_data import RankingData
from tfrankloss.data.transforms import Standardize
from tfrankloss.evaluation import Evaluation, evaluate
from tfrankloss.files import writing
from tfrankloss.losses.base import SampledLoss
from tfrankloss.losses.pointwise import GradedLoss
from tfrankloss.options import check_choice, check_integer, check_positive, find
from tfrankloss.progress import Progress, printer

DEFAULT_METRICS = ("ndcg@1", "ndcg@5", "ndcg@10")
OPTIMIZERS = ("adam", "adamw", "adagrad", "sgd", "rmsprop")
POLICIES = (None, "mixed_float16", "mixed_bfloat16")
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
        model: name of the network, one of `models.MODELS`.
        model_options: further arguments of the network; the transform may also be `"standardize"`,
            by the training data.
        metrics: names of the metrics that are measured after each epoch.
        monitor: the metric that decides which epoch is the best, and when to stop; by default the
            last of `metrics`.
        epochs: most epochs.
        patience: epochs without a better value after which training stops.
        optimizer: name of the optimizer.
        learning_rate: of the optimizer; or several, which are all tried and of which the validation
            data choose the best.
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
    epochs: int = 50
    patience: int = 5
    optimizer: str = "adam"
    learning_rate: float | Sequence[float] = 1e-3
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
        check_choice("model", self.model, tuple(models.MODELS))
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
        key = (self.loss, keras.backend.backend(), _json(options))
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
    def watched(self) -> str:
        """The name of the metric that decides."""
        return self.monitor or (self.metrics[-1] if self.metrics else "")


@dataclass(frozen=True)
class Trained:
    """What `train` returns.

    Attributes:
        model: the model of the best epoch.
        options: how it was trained, with the learning rate that was chosen.
        best_epoch: number of that epoch, from 1.
        history: loss, metrics and seconds of each epoch.
        evaluations: the metrics of the best epoch by split, `"vali"` and `"test"`.
        folder: where all of it is, or None.
    """

    model: keras.Model
    options: TrainingOptions
    best_epoch: int
    history: list[dict[str, float]]
    evaluations: dict[str, Evaluation]
    folder: Path | None = None


def train(
    data: RankingData | Mapping[str, RankingData],
    validation: RankingData | None = None,
    test: RankingData | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool | Callable[[str], None] = True,
    notes: Mapping[str, Any] | None = None,
    **options: Any,
) -> Trained:
    """Trains a network until a metric on validation data gets no better.

    Args:
        data: the training data, or a dictionary of `"train"`, `"vali"` and perhaps `"test"`, as
            `load_letor` reads a folder.
        validation: data to choose the best epoch by.
        test: data to measure at the end.
        out: folder for the model, the configuration and the results; it must be new, or hold an
            interrupted run to `resume`.
        resume: whether to go on with the run in `out`: the result is that of a run which was not
            interrupted. A folder without a run is begun.
        progress: whether to print a line per epoch (and, in a terminal, how far it is), or a
            function that takes the lines.
        notes: what else to keep in `config.json`, such as where the data come from.
        **options: see `TrainingOptions`.

    >>> from tfrankloss import data
    >>> train_data, validation = data.synthetic(60, 5, 10).split([0.5, 0.5])
    >>> trained = train(
    ...     train_data, validation, loss="softmax", model="linear", epochs=2, progress=False
    ... )
    >>> trained.best_epoch in (1, 2)
    True
    """
    known = {x.name for x in fields(TrainingOptions)}
    for name in options:
        check_choice("The name of an option", name, tuple(sorted(known)))
    chosen = TrainingOptions(**options)
    splits = _splits(data, validation, test)
    folder = None if out is None else Path(out)
    if folder is None and chosen.tensorboard:
        raise ValueError("tensorboard=True needs a folder. Received: out=None")
    state = _State() if folder is None else _begin(folder, chosen, splits, resume)
    # Built before the folder is made: a mistake leaves nothing behind.
    model = _model(folder, state, chosen, splits)
    if folder is not None:
        _write_config(folder, chosen, splits, notes)
    if isinstance(chosen.learning_rate, Sequence):
        best, chosen, state = _best_learning_rate(chosen, splits, folder, progress)
    else:
        best = _fit(model, chosen, splits, state, folder, progress)
    evaluations = {
        name: _evaluate(best, split, chosen) for name, split in splits.items() if name != "train"
    }
    if folder is not None:
        _write_results(folder, chosen, state, evaluations)
    return Trained(best, chosen, state.best_epoch, state.history, evaluations, folder)


def predict_scores(model: keras.Model, data: RankingData) -> np.ndarray:
    """`[documents]`: what a trained model ranks by.

    Where it gives a number per grade, the loss it was trained with says what that means.
    """
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


@dataclass
class _State:
    """Where a run is. Everything but the weights."""

    epoch: int = 0
    best: float = float("nan")
    best_epoch: int = 0
    file: str = ""  # of the model and its optimizer
    history: list[dict[str, float]] = field(default_factory=list)


def _splits(
    data: RankingData | Mapping[str, RankingData],
    validation: RankingData | None,
    test: RankingData | None,
) -> dict[str, RankingData]:
    if isinstance(data, RankingData):
        given = {"train": data, "vali": validation, "test": test}
        splits = {name: split for name, split in given.items() if split is not None}
    elif isinstance(data, Mapping):
        splits = dict(data)
    else:
        raise ValueError(
            "data must be RankingData, or a dictionary of them by split, as "
            f"tfrankloss.data.load_letor reads them. Received: data={data!r}"
        )
    for name in ("train", "vali"):
        if name not in splits or not len(splits[name]):
            raise ValueError(
                f"Training needs the splits 'train' and 'vali'. Received: {list(splits)}, without "
                f"queries for {name!r}"
            )
    for name, split in splits.items():
        if not (split.labels > 0).any():
            raise ValueError(
                f"There is nothing to learn or to measure: all labels of {name!r} are 0"
            )
        if split.num_features != splits["train"].num_features:
            raise ValueError(
                "All splits must have the same number of features. Received: "
                f"{ {key: value.num_features for key, value in splits.items()} }"
            )
    return splits


def _begin(
    folder: Path, options: TrainingOptions, splits: Mapping[str, RankingData], resume: bool
) -> _State:
    """Where the run in a folder stopped, if it is the same run."""
    config = _config(options, splits)
    path = folder / "config.json"
    if path.exists():
        if not resume:
            raise ValueError(
                f"The folder holds a run already: resume it, or name a new one. Received: {folder}"
            )
        known = json.loads(path.read_text())
        for part in ("options", "data"):
            changed = [
                key
                for key in {**known[part], **config[part]}
                if _json(known[part].get(key)) != _json(config[part].get(key))
            ]
            changed = [key for key in changed if key not in ("epochs", "patience")]
            if changed:
                raise ValueError(
                    f"A run goes on as it began. Received: other {part} than those of {path}: "
                    f"{', '.join(sorted(changed))}"
                )
        if known["backend"] != config["backend"]:
            raise ValueError(
                f"A run goes on as it began. Received: backend {config['backend']!r} for a run "
                f"with {known['backend']!r}"
            )
    saved = folder / "state" / "state.json"
    return _State(**json.loads(saved.read_text())) if saved.exists() else _State()


def _config(options: TrainingOptions, splits: Mapping[str, RankingData]) -> dict[str, Any]:
    return {
        "options": asdict(options),
        "data": {
            name: {"digest": split.digest(), "contents": repr(split)}
            for name, split in splits.items()
        },
        "versions": library_versions(),
        "backend": keras.backend.backend(),
        "python": sys.version.split()[0],
    }


def _write_config(
    folder: Path,
    options: TrainingOptions,
    splits: Mapping[str, RankingData],
    notes: Mapping[str, Any] | None = None,
) -> None:
    """Makes the folder; the configuration of a run that goes on is that of its begin."""
    (folder / "state").mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    config = {**_config(options, splits), "notes": dict(notes or {})}
    if path.exists():
        known = json.loads(path.read_text())
        config = {**known, "options": config["options"]}  # more epochs, perhaps
    with writing(path) as partial:
        partial.write_text(_json(config, indent=2))


def library_versions() -> dict[str, str]:
    """The versions that a run or an exported model was made with."""
    import tensorflow as tf  # whatever the name of its distribution

    from tfrankloss import __version__

    found = {
        "tfrankloss": __version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
        "tensorflow": tf.__version__,
    }
    if keras.backend.backend() == "jax":
        found["jax"] = importlib.metadata.version("jax")
    return found


def _json(value: Any, indent: int | None = None) -> str:
    """JSON, also of layers."""
    return json.dumps(value, indent=indent, default=keras.saving.serialize_keras_object)


def _check_type(name: str, value: Any, kind: Any, wanted: str) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"{name} must be {wanted}. Received: {name}={value!r}")


def _best_learning_rate(
    options: TrainingOptions,
    splits: Mapping[str, RankingData],
    folder: Path | None,
    progress: bool | Callable[[str], None],
) -> tuple[keras.Model, TrainingOptions, _State]:
    """A run with each learning rate; the best model, how it was trained, and its history."""
    sign = _sign(options)
    best: Any = ()
    for rate in options.learning_rates:
        printer(progress)(f"learning rate {rate:g}:")
        one = replace(options, learning_rate=rate)
        place = None if folder is None else folder / "learning-rates" / f"{rate:g}"
        state = _State() if place is None else _begin(place, one, splits, resume=True)
        try:
            model = _model(place, state, one, splits)
            if place is not None:
                _write_config(place, one, splits)
            model = _fit(model, one, splits, state, place, progress)
        except FloatingPointError as error:
            printer(progress)(str(error))
            continue
        if not best or sign * state.best > best[0]:
            best = (sign * state.best, model, one, state)
    if not best:
        raise FloatingPointError(
            f"No learning rate keeps the loss finite. Received: {options.learning_rate}"
        )
    _, model, one, state = best
    if folder is not None:
        with writing(folder / "model.keras") as partial:
            shutil.copyfile(
                folder / "learning-rates" / f"{one.learning_rate:g}" / "model.keras", partial
            )
    return model, one, state


def _sign(options: TrainingOptions) -> float:
    """The sign that makes a higher value of the watched metric a better one."""
    return -1.0 if metrics.get(options.watched)._direction == "down" else 1.0


def _model(
    folder: Path | None,
    state: _State,
    options: TrainingOptions,
    splits: Mapping[str, RankingData],
) -> keras.Model:
    """A new model, or that of the interrupted run with its optimizer."""
    if folder is not None and state.file:
        return keras.saving.load_model(folder / "state" / state.file)
    before = keras.config.dtype_policy()
    try:
        if options.mixed_precision:
            keras.config.set_dtype_policy(options.mixed_precision)
        keras.utils.set_random_seed(options.seed)
        loss = options.make_loss(1 + max(int(split.labels.max()) for split in splits.values()))
        arguments = dict(options.model_options)
        if loss.outputs > 1:
            name = "outputs" if options.model == "feedforward" else "num_grades"
            arguments.setdefault(name, loss.outputs)
        if arguments.get("transform") == "standardize":
            arguments["transform"] = Standardize.fit(splits["train"])
        model = models.get(options.model, splits["train"].num_features, **arguments)
    except TypeError as error:
        raise ValueError(
            f"The model {options.model!r} cannot be made with the options "
            f"{options.model_options}: {error}"
        ) from error
    finally:
        keras.config.set_dtype_policy(before)
    optimizer = keras.optimizers.get(
        {
            "class_name": options.optimizer,
            "config": {"learning_rate": options.learning_rates[0]},
        }
    )
    jit = "auto" if options.jit is None else options.jit
    model.compile(optimizer=optimizer, loss=loss, jit_compile=jit)
    return model


def _fit(
    model: keras.Model,
    options: TrainingOptions,
    splits: Mapping[str, RankingData],
    state: _State,
    folder: Path | None,
    progress: bool | Callable[[str], None],
) -> keras.Model:
    """Epoch by epoch; returns the best model."""
    data = splits["train"]
    data = data.discard_without_relevant() if options.discard_without_relevant else data
    sign = _sign(options)
    best_weights = None
    write_for_tensorboard = _tensorboard_writer(options, folder)
    while state.epoch < options.epochs and state.epoch - state.best_epoch < options.patience:
        start = time.perf_counter()
        dataset = data.to_dataset(**options.batch_plan(state.epoch))
        _seed_dropout(model, options.seed, state.epoch)
        batches = int(dataset.cardinality())
        with Progress(f"epoch {state.epoch + 1}", batches, "batches", progress is True) as bar:
            fitted = model.fit(
                dataset,
                epochs=state.epoch + 1,
                initial_epoch=state.epoch,
                shuffle=False,
                verbose=0,
                callbacks=[_BatchCounter(bar)],
            )
        loss = float(fitted.history["loss"][-1])
        _check_finite(f"The loss of epoch {state.epoch + 1}", loss, options)
        entry = {"loss": loss, **_evaluate(model, splits["vali"], options).means}
        entry["seconds"] = time.perf_counter() - start
        state.epoch += 1
        state.history.append(entry)
        value = entry[options.watched]
        better = not state.best_epoch or sign * value > sign * state.best
        if better:
            state.best, state.best_epoch = value, state.epoch
            best_weights = model.get_weights() if folder is None else None
        if folder is not None:
            _save(model, state, folder, better)
            _draw(state, options, folder)
            write_for_tensorboard(entry, state.epoch)
        shown = ", ".join(f"{name} {entry[name]:.4f}" for name in ("loss", *options.metrics))
        printer(progress)(
            f"epoch {state.epoch}/{options.epochs}: {shown} ({entry['seconds']:.1f} s)"
            f"{' *' if better else ''}"
        )
    if folder is not None:
        return keras.saving.load_model(folder / "model.keras")
    if best_weights is not None:
        model.set_weights(best_weights)
    return model


class _BatchCounter(keras.callbacks.Callback):
    """Moves a bar with every batch."""

    def __init__(self, bar: Progress) -> None:
        super().__init__()
        self._bar = bar

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keras calls it behind every batch."""
        self._bar.update(batch + 1)


def _tensorboard_writer(
    options: TrainingOptions, folder: Path | None
) -> Callable[[Mapping[str, float], int], None]:
    if folder is None or not options.tensorboard:
        return lambda entry, epoch: None
    import tensorflow as tf

    writer = tf.summary.create_file_writer(str(folder / "tensorboard"))
    # What `tf.summary.scalar` writes; that one asks for the whole of TensorBoard.
    scalar = tf.compat.v1.SummaryMetadata(data_class="DATA_CLASS_SCALAR")
    scalar.plugin_data.plugin_name = "scalars"

    def write(entry: Mapping[str, float], epoch: int) -> None:
        with writer.as_default(step=epoch):
            for name, value in entry.items():
                tf.summary.write(name, tf.constant(value, tf.float32), metadata=scalar)
        writer.flush()

    return write


def _draw(state: _State, options: TrainingOptions, folder: Path) -> None:
    """The history so far as pictures."""
    marked = dict.fromkeys(options.metrics, state.best_epoch)
    curves = {name: [entry[name] for entry in state.history] for name in options.metrics}
    pictures = {
        "curves.svg": charts.line_chart(f"{options.loss}: validation", curves, marked=marked),
        "loss.svg": charts.line_chart(
            f"{options.loss}: loss", {"training": [entry["loss"] for entry in state.history]}
        ),
    }
    for name, picture in pictures.items():
        with writing(folder / name) as partial:
            partial.write_text(picture)


def _seed_dropout(model: keras.Model, seed: int, epoch: int) -> None:
    """Starts the random numbers of the layers anew: a saved model does not hold their state."""
    weights = {id(x) for x in model.weights}
    states = [x for x in model.variables if id(x) not in weights]
    for number, state in enumerate(states):
        state.assign(np.random.SeedSequence((seed, epoch, number)).generate_state(2))


def _save(model: keras.Model, state: _State, folder: Path, better: bool) -> None:
    """Saves so that a kill at any moment leaves the last complete epoch."""
    before = state.file
    state.file = f"epoch-{state.epoch}.keras"
    targets = [folder / "state" / state.file] + ([folder / "model.keras"] if better else [])
    for rest in (folder / "state").glob("*.keras"):  # of kills
        if rest.name not in (before, state.file):
            rest.unlink(missing_ok=True)
    for target in targets:
        with writing(target) as partial:
            model.save(partial.with_suffix(".keras"))
            partial.with_suffix(".keras").replace(partial)
    with writing(folder / "state" / "state.json") as partial:
        partial.write_text(json.dumps(asdict(state)))
    if before:
        (folder / "state" / before).unlink(missing_ok=True)


def _evaluate(model: keras.Model, data: RankingData, options: TrainingOptions) -> Evaluation:
    scores = predict_scores(model, data)
    _check_finite("A score", scores, options)
    return evaluate_scores(scores, data, options.metrics)


def _check_finite(what: str, numbers: Any, options: TrainingOptions) -> None:
    if not np.isfinite(numbers).all():
        raise FloatingPointError(
            f"{what} is not finite: take a smaller learning rate or transform the features. "
            f"Received: learning_rate={options.learning_rate}"
        )


def _write_results(
    folder: Path,
    options: TrainingOptions,
    state: _State,
    evaluations: Mapping[str, Evaluation],
) -> None:
    _draw(state, options, folder)
    results = {
        "learning_rate": options.learning_rate,
        "best_epoch": state.best_epoch,
        "metrics": {name: evaluation.means for name, evaluation in evaluations.items()},
        "history": state.history,
    }
    with writing(folder / "metrics.json") as partial:
        partial.write_text(json.dumps(results, indent=2))
