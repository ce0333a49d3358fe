"""Training a network epoch by epoch; a kill at any moment loses no finished epoch."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfrankloss import models
from tfrankloss.data.ranking_data import RankingData
from tfrankloss.data.transforms import Standardize
from tfrankloss.files import writing
from tfrankloss.progress import Progress, printer
from tfrankloss.training import folder as run_folder
from tfrankloss.training.folder import State
from tfrankloss.training.options import TrainingOptions
from tfrankloss.training.scores import check_finite, evaluate_model


class NetworkTrainer:
    """A compiled network, new or that of an interrupted run.

    Args:
        options: how to train.
        splits: the data.
        state: where the run is; moves on while it trains.
        folder: where to save it, or None.
    """

    def __init__(
        self,
        options: TrainingOptions,
        splits: Mapping[str, RankingData],
        state: State,
        folder: Path | None,
    ) -> None:
        self._options, self._splits, self._state, self._folder = options, splits, state, folder
        if folder is not None and state.file:
            self._model = keras.saving.load_model(folder / "state" / state.file)
        else:
            self._model = _new_model(options, splits)

    def fit(self, progress: bool | Callable[[str], None]) -> keras.Model:
        """Trains until the metric gets no better; returns the best model."""
        options, state, folder = self._options, self._state, self._folder
        data = self._splits["train"]
        data = data.discard_without_relevant() if options.discard_without_relevant else data
        sign = options.sign
        best_weights = None
        write_for_tensorboard = run_folder.tensorboard_writer(folder, options)
        while state.epoch < options.epochs and state.epoch - state.best_epoch < options.patience:
            start = time.perf_counter()
            loss = self._epoch(data, progress)
            entry = {
                "loss": loss,
                **evaluate_model(self._model, self._splits["vali"], options).means,
            }
            entry["seconds"] = time.perf_counter() - start
            state.epoch += 1
            state.history.append(entry)
            value = entry[options.watched]
            better = not state.best_epoch or sign * value > sign * state.best
            if better:
                state.best, state.best_epoch = value, state.epoch
                best_weights = self._model.get_weights() if folder is None else None
            if folder is not None:
                _save(self._model, state, folder, better)
                run_folder.draw(folder, options, state)
                write_for_tensorboard(entry, state.epoch)
            shown = ", ".join(f"{name} {entry[name]:.4f}" for name in ("loss", *options.metrics))
            printer(progress)(
                f"epoch {state.epoch}/{options.epochs}: {shown} ({entry['seconds']:.1f} s)"
                f"{' *' if better else ''}"
            )
        if folder is not None:
            return keras.saving.load_model(folder / "model.keras")
        if best_weights is not None:
            self._model.set_weights(best_weights)
        return self._model

    def _epoch(self, data: RankingData, progress: bool | Callable[[str], None]) -> float:
        """Trains on all lists once; returns the loss."""
        options, epoch = self._options, self._state.epoch
        dataset = data.to_dataset(**options.batch_plan(epoch))
        seed_dropout(self._model, options.seed, epoch)
        batches = int(dataset.cardinality())
        with Progress(f"epoch {epoch + 1}", batches, "batches", progress is True) as bar:
            fitted = self._model.fit(
                dataset,
                epochs=epoch + 1,
                initial_epoch=epoch,
                shuffle=False,
                verbose=0,
                callbacks=[_BatchCounter(bar)],
            )
        loss = float(fitted.history["loss"][-1])
        check_finite(f"The loss of epoch {epoch + 1}", loss, options)
        return loss


class _BatchCounter(keras.callbacks.Callback):
    """Moves a bar with every batch."""

    def __init__(self, bar: Progress) -> None:
        super().__init__()
        self._bar = bar

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keras calls it behind every batch."""
        self._bar.update(batch + 1)


def _new_model(options: TrainingOptions, splits: Mapping[str, RankingData]) -> keras.Model:
    before = keras.config.dtype_policy()
    try:
        if options.mixed_precision:
            keras.config.set_dtype_policy(options.mixed_precision)
        keras.utils.set_random_seed(options.seed)
        loss = options.make_loss(1 + max(int(split.max_label) for split in splits.values()))
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


def seed_dropout(model: keras.Model, seed: int, epoch: int) -> None:
    """Starts the random numbers of the layers anew: a saved model does not hold their state."""
    weights = {id(x) for x in model.weights}
    states = [x for x in model.variables if id(x) not in weights]
    for number, state in enumerate(states):
        state.assign(np.random.SeedSequence((seed, epoch, number)).generate_state(2))


def _save(model: keras.Model, state: State, folder: Path, better: bool) -> None:
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
    run_folder.write_state(folder, state)
    if before:
        (folder / "state" / before).unlink(missing_ok=True)
