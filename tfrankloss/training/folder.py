"""The folder of a run: what was asked for, where it stopped, and what came out.

RUN/config.json     what is needed to repeat the run
RUN/metrics.json    results by split, and the history of the epochs
RUN/model.keras     the model of the best epoch; model.txt of LightGBM, model.ubj of XGBoost
RUN/curves.svg      the metrics by epoch
RUN/loss.svg        the loss by epoch
RUN/state/          where an interrupted run goes on
RUN/tensorboard/    the same for TensorBoard, where asked for
RUN/learning-rates/ a run for each, where there were several to choose from
"""

import importlib.metadata
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from tfrankloss import charts, models
from tfrankloss.data.ranking_data import RankingData
from tfrankloss.evaluation import Evaluation
from tfrankloss.files import writing

if TYPE_CHECKING:
    from tfrankloss.training.options import TrainingOptions


@dataclass
class State:
    """Where a run is. Everything but the weights."""

    epoch: int = 0
    best: float = float("nan")
    best_epoch: int = 0
    file: str = ""  # of the model and its optimizer
    history: list[dict[str, float]] = field(default_factory=list)


def begin(
    folder: Path, options: "TrainingOptions", splits: Mapping[str, RankingData], resume: bool
) -> State:
    """Where the run in a folder stopped, if it is the same run."""
    config = _config(options, splits)
    path = folder / "config.json"
    if path.exists():
        if not resume:
            raise ValueError(
                "The folder holds a run already: resume it (resume=True, --resume), or name a new "
                f"one. Received: {folder}"
            )
        known = json.loads(path.read_text())
        for part in ("options", "data"):
            changed = [
                key
                for key in {**known[part], **config[part]}
                if to_json(known[part].get(key)) != to_json(config[part].get(key))
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
    return State(**json.loads(saved.read_text())) if saved.exists() else State()


def write_config(
    folder: Path,
    options: "TrainingOptions",
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
        partial.write_text(to_json(config, indent=2))


def write_state(folder: Path, state: State) -> None:
    """Keeps where the run is."""
    with writing(folder / "state" / "state.json") as partial:
        partial.write_text(json.dumps(asdict(state)))


def write_results(
    folder: Path,
    options: "TrainingOptions",
    state: State,
    evaluations: Mapping[str, Evaluation],
) -> None:
    """The metrics of the best epoch, and the history as pictures."""
    draw(folder, options, state)
    results = {
        "learning_rate": options.learning_rate,
        "best_epoch": state.best_epoch,
        "metrics": {name: evaluation.means for name, evaluation in evaluations.items()},
        "history": state.history,
    }
    with writing(folder / "metrics.json") as partial:
        partial.write_text(json.dumps(results, indent=2))


def draw(folder: Path, options: "TrainingOptions", state: State) -> None:
    """The history so far as pictures."""
    marked = dict.fromkeys(options.metrics, state.best_epoch)
    curves = {name: [entry[name] for entry in state.history] for name in options.metrics}
    pictures = {
        "curves.svg": charts.line_chart(f"{options.loss}: validation", curves, marked=marked)
    }
    if all("loss" in entry for entry in state.history):
        training = [entry["loss"] for entry in state.history]
        pictures["loss.svg"] = charts.line_chart(f"{options.loss}: loss", {"training": training})
    for name, picture in pictures.items():
        with writing(folder / name) as partial:
            partial.write_text(picture)


def tensorboard_writer(
    folder: Path | None, options: "TrainingOptions"
) -> Callable[[Mapping[str, float], int], None]:
    """A function that writes the entry of an epoch for TensorBoard, where asked for."""
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


def _tree_version(model: str) -> dict[str, str]:
    try:
        return {model: importlib.metadata.version(model)} if model not in models.MODELS else {}
    except importlib.metadata.PackageNotFoundError:  # a distribution of another name
        return {}


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON, also of layers."""
    return json.dumps(value, indent=indent, default=keras.saving.serialize_keras_object)


def _config(options: "TrainingOptions", splits: Mapping[str, RankingData]) -> dict[str, Any]:
    return {
        "options": asdict(options),
        "data": {
            name: {"digest": split.digest(), "contents": repr(split)}
            for name, split in splits.items()
        },
        "versions": {**library_versions(), **_tree_version(options.model)},
        "backend": keras.backend.backend(),
        "python": sys.version.split()[0],
    }
