"""Training a network epoch by epoch; a kill at any moment loses no finished epoch."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import keras
import numpy as np

from tfrankloss import models
from tfrankloss.core import backend
from tfrankloss.data.batches import filled_up, own_errors
from tfrankloss.data.ranking_data import RankingData
from tfrankloss.data.transforms import Standardize
from tfrankloss.files import writing
from tfrankloss.progress import Progress, printer
from tfrankloss.training import folder as run_folder
from tfrankloss.training.distribution import Alone
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
        cluster: the workers that train it together.
    """

    def __init__(
        self,
        options: TrainingOptions,
        splits: Mapping[str, RankingData],
        state: State,
        folder: Path | None,
        cluster: Alone,
    ) -> None:
        self._options, self._splits, self._state, self._folder = options, splits, state, folder
        self._cluster = cluster
        with cluster.scope():
            if folder is not None and state.file:
                with cluster.file_of_chief(folder / "state" / state.file) as path:
                    self._model = keras.saving.load_model(path)
            else:
                self._model = _new_model(options, splits)

    def fit(self, progress: bool | Callable[[str], None]) -> keras.Model:
        """Trains until the metric gets no better; returns the best model."""
        options, state, folder = self._options, self._state, self._folder
        cluster = self._cluster
        data = self._splits["train"]
        data = data.discard_without_relevant() if options.discard_without_relevant else data
        sign = options.sign
        best_weights = None
        written = folder if cluster.chief else None
        write_for_tensorboard = run_folder.tensorboard_writer(written, options)
        while state.epoch < options.epochs and state.epoch - state.best_epoch < options.patience:
            start = time.perf_counter()
            loss = self._epoch(data, progress)
            measured = evaluate_model(self._model, self._splits["vali"], options, cluster)
            entry = {"loss": loss, **measured.means, "seconds": time.perf_counter() - start}
            entry = cluster.agree(partial(dict, entry))
            state.epoch += 1
            state.history.append(entry)
            value = entry[options.watched]
            better = not state.best_epoch or sign * value > sign * state.best
            if better:
                state.best, state.best_epoch = value, state.epoch
                best_weights = self._model.get_weights() if folder is None else None
            if written is not None:
                _save(self._model, state, written, better)
                run_folder.draw(written, options, state)
                write_for_tensorboard(entry, state.epoch)
            shown = ", ".join(f"{name} {entry[name]:.4f}" for name in ("loss", *options.metrics))
            printer(progress)(
                f"epoch {state.epoch}/{options.epochs}: {shown} ({entry['seconds']:.1f} s)"
                f"{' *' if better else ''}"
            )
        if folder is not None:
            with cluster.file_of_chief(folder / "model.keras") as path:
                return keras.saving.load_model(path)
        if best_weights is not None:
            self._model.set_weights(best_weights)
        return cluster.local(self._model)

    def _epoch(self, data: RankingData, progress: bool | Callable[[str], None]) -> float:
        """Trains on all lists once; returns the loss."""
        options, epoch, cluster = self._options, self._state.epoch, self._cluster
        plan = {
            **options.batch_plan(epoch),
            "replicas": cluster.replicas,
            "worker": cluster.worker,
            "workers": cluster.workers,
        }
        dataset = data.to_dataset(**plan)
        own = int(dataset.cardinality())
        if backend.NAME == "jax":
            # There `fit` looks at a first batch before it begins. In a dataset without end that is
            # no epoch: what begins anew begins with this one.
            dataset = data.to_dataset(**plan, repeat=True).take(own)
        # Of records each worker has its own; some have fewer batches than others.
        batches = max(int(number) for number in cluster.gather(str(own).encode()))
        dataset = filled_up(dataset, batches)
        seed_dropout(self._model, options.seed, epoch, cluster.dropout_stream)
        with (
            Progress(f"epoch {epoch + 1}", batches, "batches", progress is True) as bar,
            own_errors(),
        ):
            loss = cluster.fit(self._model, dataset, bar.update)
        check_finite(f"The loss of epoch {epoch + 1}", loss, options)
        return loss


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


def seed_dropout(model: keras.Model, seed: int, epoch: int, stream: int = 0) -> None:
    """Starts the random numbers of the layers anew: a saved model does not hold their state."""
    streams = (stream,) if stream else ()
    weights = {id(x) for x in model.weights}
    states = [x for x in model.variables if id(x) not in weights]
    for number, state in enumerate(states):
        state.assign(np.random.SeedSequence((seed, epoch, number, *streams)).generate_state(2))


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
