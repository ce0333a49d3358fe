"""Training boosted trees round by round with a loss of this package."""

import difflib
import inspect
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tfrankloss import boosting
from tfrankloss.data.ranking_data import RankingData
from tfrankloss.files import writing
from tfrankloss.options import needs
from tfrankloss.progress import Progress, printer
from tfrankloss.training import folder as run_folder
from tfrankloss.training.folder import State
from tfrankloss.training.options import OBJECTIVE_OPTIONS, TrainingOptions
from tfrankloss.training.scores import FILES, load_model

# Lines are printed for every so many rounds.
PRINTED = 25


class TreeTrainer:
    """Boosted trees. A run that was interrupted begins anew: it takes the same steps.

    Args:
        options: how to train; `epochs` are rounds.
        splits: the data.
        state: filled when the training ends.
        folder: where to save them, or None.
    """

    def __init__(
        self,
        options: TrainingOptions,
        splits: Mapping[str, RankingData],
        state: State,
        folder: Path | None,
    ) -> None:
        self._options, self._state, self._folder = options, state, folder
        data = splits["train"]
        data = data.discard_without_relevant() if options.discard_without_relevant else data
        self._data = {"train": data, "vali": splits["vali"]}
        self._library = needs(options.model, "boosting")
        self._parameters = {
            key: value
            for key, value in options.model_options.items()
            if key not in OBJECTIVE_OPTIONS
        }
        _check_parameters(options.model, self._library, self._parameters)

    def fit(self, progress: bool | Callable[[str], None]) -> Any:
        """Trains until the metric gets no better; returns the trees of the best round."""
        options, state = self._options, self._state
        ended = state.epoch >= options.epochs or state.epoch - state.best_epoch >= options.patience
        if state.file and ended and self._folder is not None:
            return load_model(self._folder)
        self._state.history.clear()
        write_for_tensorboard = run_folder.tensorboard_writer(self._folder, self._options)
        with Progress("rounds", self._options.epochs, "rounds", progress is True) as bar:
            self._start, self._bar, self._say = time.perf_counter(), bar, printer(progress)
            self._write = write_for_tensorboard
            train = self._lightgbm if self._options.model == "lightgbm" else self._xgboost
            booster = train()
        state.epoch = len(state.history)
        if self._folder is not None:
            name = FILES[self._options.model]
            with writing(self._folder / name) as partial:
                whole = partial.with_suffix(Path(name).suffix)
                booster.save_model(whole)
                whole.replace(partial)
            state.file = name
            run_folder.write_state(self._folder, state)
        return booster

    def _objective(self, make: Callable[..., Any]) -> Any:
        given = self._options.model_options
        chosen = {key: given[key] for key in OBJECTIVE_OPTIONS if key in given}
        return make(self._options.make_loss(), **chosen)

    def _metric_names(self) -> list[str]:
        """The metric that decides first."""
        watched = self._options.watched
        return [watched, *(name for name in self._options.metrics if name != watched)]

    def _record(self, values: Mapping[str, float]) -> bool:
        """Keeps the metrics of a round; returns whether to stop."""
        options, state = self._options, self._state
        entry = {name: values[name] for name in options.metrics}
        entry["seconds"] = time.perf_counter() - self._start
        self._start = time.perf_counter()
        state.history.append(entry)
        count = len(state.history)
        self._bar.update(count)
        self._write(entry, count)
        value = options.sign * entry[options.watched]
        if count == 1 or value > options.sign * state.best:
            state.best, state.best_epoch = entry[options.watched], count
        stop = count - state.best_epoch >= options.patience
        if stop or count % PRINTED == 0 or count == options.epochs:
            shown = ", ".join(f"{name} {entry[name]:.4f}" for name in options.metrics)
            self._say(
                f"round {count}/{options.epochs}: {shown}; best {options.watched} "
                f"{state.best:.4f} in round {state.best_epoch}"
                + (
                    f"; stopped after {options.patience} rounds without a better one"
                    if stop
                    else ""
                )
            )
        return stop

    def _lightgbm(self) -> Any:
        lightgbm = self._library
        parameters = {
            "deterministic": True,
            "force_row_wise": True,
            "verbose": -1,
            "seed": self._options.seed,
            **self._parameters,
            "learning_rate": self._options.learning_rates[0],
            "objective": self._objective(boosting.lightgbm_objective),
            "metric": "None",
        }

        def dataset(data: RankingData, weights: Any = None, reference: Any = None) -> Any:
            return lightgbm.Dataset(
                data.features,
                data.labels,
                group=data.lengths,
                weight=weights,
                reference=reference,
                params={"verbose": -1},
            )

        def callback(environment: Any) -> None:
            results = {name: value for _, name, value, *_ in environment.evaluation_result_list}
            if self._record(results):
                raise lightgbm.callback.EarlyStopException(
                    self._state.best_epoch - 1, environment.evaluation_result_list
                )

        train = dataset(self._data["train"], self._data["train"].weights)
        booster = lightgbm.train(
            parameters,
            train,
            self._options.epochs,
            valid_sets=[dataset(self._data["vali"], reference=train)],
            feval=boosting.lightgbm_metric(*self._metric_names()),
            callbacks=[callback],
        )
        text = booster.model_to_string(num_iteration=self._state.best_epoch)
        return lightgbm.Booster(model_str=text)

    def _xgboost(self) -> Any:
        xgboost = self._library
        parameters = {
            "seed": self._options.seed,
            "base_score": 0.0,
            # As LightGBM has it: the curvature of a whole list may be below 1.
            "min_child_weight": 1e-3,
            **self._parameters,
            "learning_rate": self._options.learning_rates[0],
            "disable_default_eval_metric": True,
        }

        def matrix(data: RankingData) -> Any:
            return xgboost.DMatrix(data.features, data.labels, group=data.lengths)

        measure = boosting.xgboost_metric(*self._metric_names())
        measured: dict[str, float] = {}
        record = self._record

        def metric(scores: Any, matrix: Any) -> list[tuple[str, float]]:
            measured.update(measure(scores, matrix))
            return list(measured.items())

        class Recorder(xgboost.callback.TrainingCallback):  # type: ignore[name-defined]
            def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
                return record(measured)  # the log has six digits of it

        booster = xgboost.train(
            parameters,
            matrix(self._data["train"]),
            self._options.epochs,
            evals=[(matrix(self._data["vali"]), "vali")],
            obj=self._weighted(self._objective(boosting.xgboost_objective)),
            custom_metric=metric,
            callbacks=[Recorder()],
            verbose_eval=False,
        )
        return booster[: self._state.best_epoch]

    def _weighted(self, objective: Any) -> Any:
        """An objective with the weights of documents: XGBoost has weights of lists alone."""
        data = self._data["train"]
        if data.weights is None:
            return objective
        of_lists = self._objective(boosting.lightgbm_objective)
        return lambda scores, matrix: of_lists(data.labels, scores, data.weights, data.lengths)


def _check_parameters(model: str, library: Any, given: Mapping[str, Any]) -> None:
    """Raises where a parameter is unknown or has no effect: the libraries would just go on."""
    if model == "lightgbm":
        aliases = library.basic._ConfigAliases._get_all_param_aliases()
        known = {name for names in aliases.values() for name in names}
        ours = {name for main in OURS_OF_LIGHTGBM for name in aliases.get(main, [main])}
    else:
        known = set(inspect.signature(library.XGBModel).parameters) | XGBOOST_NAMES
        known -= XGBOOST_ESTIMATOR_NAMES
        ours = OURS_OF_XGBOOST
    if taken := sorted(ours & set(given)):
        raise ValueError(
            "Loss, metrics, learning_rate, seed, epochs and patience are options of their own "
            f"(and normalize, newton, curvature_floor). Received: model_options with {taken}"
        )
    for name in sorted(set(given) - known):
        close = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(
            f"{model} has no parameter {name!r}.{hint} Received: model_options={given}"
        )
    if "dart" in (given.get(name) for name in ("boosting", "boosting_type", "boost", "booster")):
        # Later rounds change the weights of earlier trees.
        raise ValueError("The best round of DART cannot be kept. Received: booster 'dart'")


OURS_OF_LIGHTGBM = (
    "objective",
    "metric",
    "learning_rate",
    "seed",
    "num_iterations",
    "early_stopping_round",
    "sigmoid",
    "label_gain",
    "lambdarank_norm",
    "lambdarank_truncation_level",
    "objective_seed",
)
OURS_OF_XGBOOST = {
    "objective",
    "eval_metric",
    "learning_rate",
    "eta",
    "seed",
    "random_state",
    "n_estimators",
    "early_stopping_rounds",
}
# What `xgboost.train` takes and the estimator calls otherwise, or not at all.
XGBOOST_NAMES = {
    "alpha",
    "lambda",
    "min_split_loss",
    "max_cached_hist_node",
    "nthread",
    "num_parallel_tree",
    "refresh_leaf",
    "process_type",
    "updater",
}
# What only the estimator takes.
XGBOOST_ESTIMATOR_NAMES = {
    "missing",
    "enable_categorical",
    "feature_types",
    "feature_weights",
    "callbacks",
    "kwargs",
}
