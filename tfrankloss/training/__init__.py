"""Training a ranker: data, model, loss and metrics to a folder that holds all of the run.

See `folder` for what is in there, `networks` and `trees` for the two kinds of models.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from tfrankloss.data.ranking_data import RankingData
from tfrankloss.data.records import Records
from tfrankloss.evaluation import Evaluation
from tfrankloss.files import writing
from tfrankloss.options import check_choice
from tfrankloss.progress import printer
from tfrankloss.training import folder as run_folder
from tfrankloss.training.distribution import ENGINES, Alone, engine_errors, join_cluster
from tfrankloss.training.folder import State, library_versions
from tfrankloss.training.networks import NetworkTrainer
from tfrankloss.training.options import OPTIMIZERS, TREES, TrainingOptions
from tfrankloss.training.scores import (
    DEFAULT_METRICS,
    FILES,
    evaluate_model,
    evaluate_scores,
    load_model,
    num_features,
    predict_scores,
)
from tfrankloss.training.trees import TreeTrainer

__all__ = [
    "DEFAULT_METRICS",
    "ENGINES",
    "FILES",
    "OPTIMIZERS",
    "TREES",
    "Trained",
    "TrainingOptions",
    "evaluate_scores",
    "engine_errors",
    "join_cluster",
    "library_versions",
    "load_model",
    "num_features",
    "predict_scores",
    "train",
]


@dataclass(frozen=True)
class Trained:
    """What `train` returns.

    Attributes:
        model: the model of the best epoch: a Keras model, or the booster of LightGBM or XGBoost.
        options: how it was trained, with the learning rate that was chosen.
        best_epoch: number of that epoch, from 1.
        history: loss, metrics and seconds of each epoch.
        evaluations: the metrics of the best epoch by split, `"vali"` and `"test"`.
        folder: where all of it is, or None.
    """

    model: Any
    options: TrainingOptions
    best_epoch: int
    history: list[dict[str, float]]
    evaluations: dict[str, Evaluation]
    folder: Path | None = None


def train(
    data: RankingData | Records | Mapping[str, RankingData | Records],
    validation: RankingData | Records | None = None,
    test: RankingData | Records | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool | Callable[[str], None] = True,
    notes: Mapping[str, Any] | None = None,
    distribute: str | None = None,
    **options: Any,
) -> Trained:
    """Trains a network or boosted trees until a metric on validation data gets no better.

    Args:
        data: the training data, or a dictionary of `"train"`, `"vali"` and perhaps `"test"`, as
            `load_letor` reads a folder. A network reads `Records` while it trains; those of other
            splits, and all that trees learn from, are loaded into memory.
        validation: data to choose the best epoch by.
        test: data to measure at the end.
        out: folder for the model, the configuration and the results; it must be new, or hold an
            interrupted run to `resume`.
        resume: whether to go on with the run in `out`: the result is that of a run which was not
            interrupted. A folder without a run is begun.
        progress: whether to print a line per epoch (and, in a terminal, how far it is), or a
            function that takes the lines.
        notes: what else to keep in `config.json`, such as where the data come from.
        distribute: `"tensorflow"` or `"jax"` to train a network on all devices of this host, or of
            the hosts of a cluster, each of which calls this with the same arguments: see
            `join_cluster`. The result is that of one host. Only the chief, the first of them,
            writes `out` and prints.
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
    cluster = join_cluster(distribute)
    cluster.check_same("answer whether there is a folder (out)", str(out is None))
    chosen = TrainingOptions(**options)
    splits = _splits(data, validation, test, chosen)
    folder = None if out is None else Path(out)
    if distribute is not None:
        progress = _begin_together(cluster, chosen, splits, progress)
        notes = {**(notes or {}), "distribute": distribute, "workers": cluster.workers}
    if folder is not None and isinstance(splits["train"], Records):
        cluster.agree(lambda: _check_workers(folder, cluster.workers))
    if folder is None and chosen.tensorboard:
        raise ValueError("tensorboard=True needs a folder. Received: out=None")
    state = _state(folder, chosen, splits, resume, cluster)
    # Built before the folder is made: a mistake leaves nothing behind.
    trainer = _trainer(chosen, splits, state, folder, cluster)
    if folder is not None and cluster.chief:
        run_folder.write_config(folder, chosen, splits, notes)
    if isinstance(chosen.learning_rate, Sequence):
        best, chosen, state = _best_learning_rate(chosen, splits, folder, progress, cluster)
    else:
        best = trainer.fit(progress)
    # Each worker now has the model for itself.
    evaluations = {
        name: evaluate_model(best, split, chosen, cluster)
        for name, split in splits.items()
        if name != "train"
    }
    if folder is not None and cluster.chief:
        run_folder.write_results(folder, chosen, state, evaluations)
    cluster.gather(b"")  # none ends before all is written
    return Trained(best, chosen, state.best_epoch, state.history, evaluations, folder)


def _splits(data: Any, validation: Any, test: Any, options: TrainingOptions) -> dict[str, Any]:
    """The data by split; `Records` only of the training data of a network."""
    if isinstance(data, RankingData | Records):
        given = {"train": data, "vali": validation, "test": test}
        splits = {name: split for name, split in given.items() if split is not None}
    elif isinstance(data, Mapping):
        splits = dict(data)
    else:
        raise ValueError(
            "data must be RankingData or Records, or a dictionary of them by split, as "
            f"tfrankloss.data.load_letor reads them. Received: data={data!r}"
        )
    for name in ("train", "vali"):
        if name not in splits or not len(splits[name]):
            raise ValueError(
                f"Training needs the splits 'train' and 'vali'. Received: {list(splits)}, without "
                f"queries for {name!r}"
            )
    for name, split in splits.items():
        if isinstance(split, Records) and (name != "train" or options.model in TREES):
            splits[name] = split.to_ranking_data()
        if not split.max_label > 0:
            raise ValueError(
                f"There is nothing to learn or to measure: all labels of {name!r} are 0"
            )
        if split.num_features != splits["train"].num_features:
            raise ValueError(
                "All splits must have the same number of features. Received: "
                f"{ {key: value.num_features for key, value in splits.items()} }"
            )
    return splits


def _trainer(
    options: TrainingOptions,
    splits: Mapping[str, RankingData],
    state: State,
    folder: Path | None,
    cluster: Alone,
) -> NetworkTrainer | TreeTrainer:
    if options.model in TREES:
        return TreeTrainer(options, splits, state, folder)
    return NetworkTrainer(options, splits, state, folder, cluster)


def _state(
    folder: Path | None,
    options: TrainingOptions,
    splits: Mapping[str, RankingData],
    resume: bool,
    cluster: Alone,
) -> State:
    """Where the run in a folder stopped, as the chief sees it."""
    if folder is None:
        return State()
    begin = run_folder.begin
    return State(**cluster.agree(lambda: asdict(begin(folder, options, splits, resume))))


def _begin_together(
    cluster: Alone,
    options: TrainingOptions,
    splits: Mapping[str, RankingData],
    progress: bool | Callable[[str], None],
) -> bool | Callable[[str], None]:
    """Checks what the workers of a cluster were given; returns what shows progress."""
    if options.model in TREES:
        raise ValueError(f"distribute is for networks. Received: model={options.model!r}")
    cluster.check_same("options", run_folder.to_json(asdict(options)))
    cluster.check(options.jit, options.mixed_precision)
    apart = isinstance(splits["train"], Records) and cluster.workers > 1
    if apart and cluster.same_shapes and options.list_size is None:
        raise ValueError(
            "From records each worker reads lists of its own, which on JAX must all be padded to "
            "one size: give list_size. Received: list_size=None"
        )
    if apart:
        records = splits["train"]
        if options.discard_without_relevant:
            records = records.discard_without_relevant()
        records.shard(cluster.worker, cluster.workers)  # says what is wrong before anything is made
    cluster.check_same("data", "".join(f"{x} {split.digest()}" for x, split in splits.items()))
    if not cluster.chief:
        return False
    printer(progress)(f"{cluster.workers} workers with {cluster.replicas} devices")
    return progress


def _check_workers(folder: Path, workers: int) -> None:
    """Raises where a run from records, in which workers have files of their own, has others now."""
    config = folder / "config.json"
    if config.exists():
        before = json.loads(config.read_text()).get("notes", {}).get("workers", 1)
        if before != workers:
            raise ValueError(
                f"A run from records goes on with as many workers as it began with, {before}. "
                f"Received: {workers}"
            )


def _best_learning_rate(
    options: TrainingOptions,
    splits: Mapping[str, RankingData],
    folder: Path | None,
    progress: bool | Callable[[str], None],
    cluster: Alone,
) -> tuple[Any, TrainingOptions, State]:
    """A run with each learning rate; the best model, how it was trained, and its history."""
    sign = options.sign
    best: Any = ()
    for rate in options.learning_rates:
        printer(progress)(f"learning rate {rate:g}:")
        one = replace(options, learning_rate=rate)
        place = None if folder is None else folder / "learning-rates" / f"{rate:g}"
        state = _state(place, one, splits, True, cluster)
        try:
            trainer = _trainer(one, splits, state, place, cluster)
            if place is not None and cluster.chief:
                run_folder.write_config(place, one, splits)
            model = trainer.fit(progress)
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
    if folder is not None and cluster.chief:
        name = FILES.get(options.model, FILES["network"])
        with writing(folder / name) as partial:
            shutil.copyfile(folder / "learning-rates" / f"{one.learning_rate:g}" / name, partial)
    return model, one, state
