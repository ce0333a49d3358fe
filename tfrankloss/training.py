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
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfrankloss import charts, losses, metrics, models
from tfrankloss.data.ranking_data import RankingData
from tfrankloss.evaluation import Evaluation, evaluate
from tfrankloss.files import writing
from tfrankloss.losses.pointwise import GradedLoss
from tfrankloss.options import check_choice, check_integer, check_positive
from tfrankloss.progress import Progress, printer

DEFAULT_METRICS = ("ndcg@1", "ndcg@5", "ndcg@10")
OPTIMIZERS = ("adam", "adamw", "adagrad", "sgd", "rmsprop")
POLICIES = (None, "mixed_float16", "mixed_bfloat16")
GRADED = tuple(name for name, loss in losses.LOSSES.items() if issubclass(loss, GradedLoss))


@dataclass(frozen=True)
class TrainingOptions:
    """How a ranker is trained; the arguments of `train`, all of which JSON can hold.

    Attributes:
        loss: name of the loss, such as `"ndcg_loss2@5"`. One that needs a number per grade gets it
            from the network, if that is `"feedforward"`; `num_grades` is by default that of the
            labels.
        loss_options: further arguments of the loss.
        model: name of the network, one of `models.MODELS`.
        model_options: further arguments of the network.
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
        jit: whether XLA compiles the whole training step.
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
    jit: bool = False
    mixed_precision: str | None = None
    tensorboard: bool = False

    def __post_init__(self) -> None:
        self.make_loss()
        for name in self.metrics:
            metrics.get(name)
        check_choice("monitor", self.watched, tuple(self.metrics))
        check_choice("model", self.model, tuple(models.MODELS))
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_choice("mixed_precision", self.mixed_precision, POLICIES)
        check_integer("epochs", self.epochs, minimum=1)
        check_integer("patience", self.patience, minimum=1)
        check_integer("seed", self.seed, minimum=0)
        if isinstance(self.learning_rate, Sequence) and not self.learning_rate:
            raise ValueError("learning_rate must be a number or several. Received: none")
        for rate in self.learning_rates:
            check_positive("learning_rate", rate)

    def make_loss(self, num_grades: int = 2) -> losses.RankingLoss:
        """The loss, for labels of so many grades."""
        options = dict(self.loss_options)
        if self.loss in GRADED:
            options.setdefault("num_grades", num_grades)
        return losses.get(self.loss, **options)

    @property
    def learning_rates(self) -> list[float]:
        """The learning rates to choose from, or the only one."""
        rates = self.learning_rate
        return list(rates) if isinstance(rates, Sequence) else [rates]

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
        **options: see `TrainingOptions`.

    >>> from tfrankloss import data
    >>> train_data, validation = data.synthetic(60, 5, 10).split([0.5, 0.5])
    >>> trained = train(
    ...     train_data, validation, loss="softmax", model="linear", epochs=2, progress=False
    ... )
    >>> trained.best_epoch in (1, 2)
    True
    """
    chosen = TrainingOptions(**options)
    splits = _splits(data, validation, test)
    folder = None if out is None else Path(out)
    if folder is None and chosen.tensorboard:
        raise ValueError("tensorboard=True needs a folder. Received: out=None")
    state = _State() if folder is None else _begin(folder, chosen, splits, resume)
    if isinstance(chosen.learning_rate, Sequence):
        best, chosen, state = _best_learning_rate(chosen, splits, folder, progress)
    else:
        best = _run(chosen, splits, state, folder, progress)
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
    else:
        splits = dict(data)
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
    """Makes the folder of a run, or finds where it stopped."""
    config = {
        "options": asdict(options),
        "data": {name: repr(split) for name, split in splits.items()},
        "versions": {
            name: importlib.metadata.version(name) for name in ("keras", "numpy", "tensorflow")
        },
        "backend": keras.backend.backend(),
        "python": sys.version.split()[0],
    }
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
                if json.dumps(known[part].get(key)) != json.dumps(config[part].get(key))
            ]
            changed = [key for key in changed if key not in ("epochs", "patience")]
            if changed:
                raise ValueError(
                    f"A run goes on as it began. Received: other {part} than those of {path}: "
                    f"{', '.join(sorted(changed))}"
                )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "state").mkdir(exist_ok=True)
    with writing(path) as partial:
        partial.write_text(json.dumps(config, indent=2))
    saved = folder / "state" / "state.json"
    if not saved.exists():
        return _State()
    return _State(**json.loads(saved.read_text()))


def _best_learning_rate(
    options: TrainingOptions,
    splits: Mapping[str, RankingData],
    folder: Path | None,
    progress: bool | Callable[[str], None],
) -> tuple[keras.Model, TrainingOptions, _State]:
    """A run with each learning rate; the best model, how it was trained, and its history."""
    worse = _worse(options)
    results = []
    for rate in options.learning_rates:
        printer(progress)(f"learning rate {rate:g}:")
        one = replace(options, learning_rate=rate)
        place = None if folder is None else folder / "learning-rates" / f"{rate:g}"
        state = _State() if place is None else _begin(place, one, splits, resume=True)
        try:
            model = _run(one, splits, state, place, progress)
        except FloatingPointError as error:
            printer(progress)(str(error))
            continue
        results.append((worse * state.best, model, one, state))
    if not results:
        raise FloatingPointError(
            f"No learning rate keeps the loss finite. Received: {options.learning_rate}"
        )
    _, model, one, state = max(results, key=lambda result: result[0])
    if folder is not None:
        with writing(folder / "model.keras") as partial:
            shutil.copyfile(
                folder / "learning-rates" / f"{one.learning_rate:g}" / "model.keras", partial
            )
    return model, one, state


def _worse(options: TrainingOptions) -> float:
    """The sign that makes a higher value of the watched metric a better one."""
    return -1.0 if metrics.get(options.watched)._direction == "down" else 1.0


def _run(
    options: TrainingOptions,
    splits: Mapping[str, RankingData],
    state: _State,
    folder: Path | None,
    progress: bool | Callable[[str], None],
) -> keras.Model:
    """Trains, or goes on; returns the best model."""
    before = keras.config.dtype_policy()
    if options.mixed_precision:
        keras.config.set_dtype_policy(options.mixed_precision)
    try:
        model = _model(folder, state, options, splits)
        return _fit(model, options, splits, state, folder, progress)
    finally:
        keras.config.set_dtype_policy(before)


def _model(
    folder: Path | None,
    state: _State,
    options: TrainingOptions,
    splits: Mapping[str, RankingData],
) -> keras.Model:
    """A new model, or that of the interrupted run with its optimizer."""
    if folder is not None and state.file:
        return keras.saving.load_model(folder / "state" / state.file)
    keras.utils.set_random_seed(options.seed)
    arguments = dict(options.model_options)
    loss = options.make_loss(1 + max(int(split.labels.max()) for split in splits.values()))
    if loss.outputs > 1:
        check_choice("model", options.model, ("feedforward", "classification"))
        name = "outputs" if options.model == "feedforward" else "num_grades"
        arguments.setdefault(name, loss.outputs)
    model = models.get(options.model, splits["train"].num_features, **arguments)
    optimizer = keras.optimizers.get(
        {"class_name": options.optimizer, "config": {"learning_rate": options.learning_rate}}
    )
    model.compile(optimizer=optimizer, loss=loss, jit_compile=options.jit)
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
    worse = _worse(options)
    best_weights = None
    write_for_tensorboard = _tensorboard_writer(options, folder)
    while state.epoch < options.epochs and state.epoch - state.best_epoch < options.patience:
        start = time.perf_counter()
        dataset = data.to_dataset(
            batch_size=options.batch_size,
            max_documents=options.max_documents,
            list_size=options.list_size,
            seed=options.seed,
            first_epoch=state.epoch,
        )
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
        better = not state.best_epoch or worse * value > worse * state.best
        if better:
            state.best, state.best_epoch = value, state.epoch
            best_weights = model.get_weights()
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
    return evaluate(data.labels, scores, data.query_of_documents, metrics=list(options.metrics))


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
