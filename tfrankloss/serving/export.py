"""Writing a SavedModel for a server."""

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfrankloss.losses import RankingLoss
from tfrankloss.options import check_integer
from tfrankloss.serving import messages, requests
from tfrankloss.training import library_versions

SIGNATURES = (
    "serving_default",
    "predict_masked",
    "rank",
    "rank_masked",
    "score_documents",
    "predict_examples",
    "predict_elwc",
)
CARD = "model_card.json"
# What is being written begins with this, which no server takes for a version.
PARTIAL = ".export-"


def export(
    model: keras.Model,
    path: str | os.PathLike[str],
    *,
    version: int | None = None,
    top_k: int | None = None,
    warmup: bool = True,
    feature_names: Sequence[str] | None = None,
    card: Mapping[str, Any] | None = None,
) -> Path:
    """Writes `path/<version>/`, a SavedModel that TensorFlow Serving loads and that holds it all.

    The folder of the version appears when it is complete. Signatures, with features `[B, L, F]` as
    the model was trained on them (transforms are inside of the model):

    - `serving_default`: `features` to `scores [B, L]`;
    - `predict_masked`: `features` and `mask [B, L]` to `scores`, minus infinity in padding;
    - `rank`: `features` to `order [B, k]`, places in the list from the best on, and their `scores`;
      of equal scores the first in the list comes first;
    - `rank_masked`: the same with `mask`; behind the last document the place is -1;
    - `score_documents`: the `features [N, F]` of one list to `scores [N]`;
    - `predict_examples`: `examples [N]`, serialised `tf.train.Example`, the documents of one list;
    - `predict_elwc`: `examples [B]`, serialised `ExampleListWithContext` of TF-Ranking's clients.

    A feature that is not finite, or that an Example does not have, is an error of the request;
    further features of an Example are ignored. An empty list has no scores.

    Args:
        model: takes `{"features", "mask"}` or features alone, and gives scores `[B, L]` or
            `[B, L, 1]`, or a number per grade if it was compiled with a loss that ranks by them.
        path: folder of all versions, which is made if it is not there.
        version: number of the version; by default the next one.
        top_k: how many documents `rank` returns; by default all.
        warmup: whether to add requests that a server sends to itself when it loads the model.
        feature_names: the names that features have in an Example; by default an Example has one
            feature, `"features"`, with all numbers.
        card: what else to note in `model_card.json`.

    Returns the folder of the version.

    >>> import tempfile
    >>> from tfrankloss import models
    >>> folder = export(models.linear(3), tempfile.mkdtemp(), top_k=10)
    >>> folder.name
    '1'
    """
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "A SavedModel is written with Keras on TensorFlow: load the saved model in a process "
            f"with KERAS_BACKEND=tensorflow. Received: backend {keras.backend.backend()!r}"
        )
    from tfrankloss.serving.signatures import Signatures, features_input

    if version is not None:
        check_integer("version", version, minimum=1)
    if top_k is not None:
        check_integer("top_k", top_k, minimum=1)
    _check_model(model)
    width = int(features_input(model).shape[-1])
    _check_names(feature_names, width)
    root = Path(path)
    root.mkdir(parents=True, exist_ok=True)
    if version is not None and (root / str(version)).exists():
        raise FileExistsError(f"A version is never overwritten. Received: {root / str(version)}")
    partial = root / f"{PARTIAL}{secrets.token_hex(8)}"
    try:
        signatures = Signatures(model, top_k, feature_names)
        archive = keras.export.ExportArchive()
        archive.track(model)
        for name, (function, inputs) in signatures.functions().items():
            archive.add_endpoint(name, function, inputs)
        archive.write_out(str(partial), verbose=False)
        examples = requests.example_inputs(width, feature_names)
        if warmup:
            _write_warmup(partial, root.name, examples)
        contents = {
            "loss": _loss(model),
            "weights": _digest(model),
            "num_features": width,
            "feature_names": None if feature_names is None else list(feature_names),
            "top_k": top_k,
            "versions": library_versions(),
            "signatures": {
                name: {
                    "inputs": {
                        spec.name: {"dtype": spec.dtype.name, "shape": spec.shape.as_list()}
                        for spec in inputs
                    },
                    "example_request": json.loads(messages.rest_body(name, examples[name])),
                }
                for name, (_, inputs) in signatures.functions().items()
            },
            **(card or {}),
        }
        (partial / CARD).write_text(json.dumps(contents, indent=2))
        return _publish(partial, root, version)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def export_run(run: str | os.PathLike[str], path: str | os.PathLike[str], **options: Any) -> Path:
    """Exports the best model of a folder that `tfrankloss.train` wrote, with its results.

    Args:
        run: the folder.
        path: see `export`, as the other arguments.
    """
    folder = Path(run)
    file = folder / "model.keras"
    if not file.is_file():
        raise FileNotFoundError(f"There is no trained model. Received: {folder}")
    card = {}
    for name in ("config", "metrics"):
        source = folder / f"{name}.json"
        if source.is_file():
            card[name] = json.loads(source.read_text())
    return export(keras.saving.load_model(file), path, card=card, **options)


def _check_model(model: keras.Model) -> None:
    given = model.input
    names = set(given) if isinstance(given, dict) else {"features"}
    if "features" not in names or names - {"features", "mask"}:
        raise ValueError(
            "The model must take 'features' and may take 'mask', as those of tfrankloss.models do. "
            f"Received: {sorted(names)}"
        )
    outputs = model.output_shape
    if isinstance(outputs, dict | list) or len(outputs) not in (2, 3):
        raise ValueError(
            "The model must give scores [batch, list] or [batch, list, outputs]. "
            f"Received: {outputs}"
        )
    if len(outputs) == 3 and outputs[2] != 1:
        loss = model.loss if getattr(model, "compiled", False) else None
        if not isinstance(loss, RankingLoss) or loss.outputs != outputs[2]:
            raise ValueError(
                f"The model gives {outputs[2]} numbers per document: compile it with the loss that "
                f"says what to rank by. Received: loss={loss!r}"
            )


def _check_names(names: Sequence[str] | None, width: int) -> None:
    if names is None:
        return
    if isinstance(names, str) or len(set(names)) != len(names) or len(names) != width:
        raise ValueError(
            f"feature_names must be {width} different names, one for each column of the features. "
            f"Received: feature_names={names!r}"
        )


def _loss(model: keras.Model) -> Any:
    loss = getattr(model, "loss", None)
    if isinstance(loss, RankingLoss):
        return {"class": type(loss).__name__, "config": loss.get_config()}
    return None if loss is None else str(loss)


def _digest(model: keras.Model) -> str:
    """Tells two trained models apart."""
    digest = hashlib.sha256()
    for weight in model.get_weights():
        digest.update(np.ascontiguousarray(weight).tobytes())
    return digest.hexdigest()


def _write_warmup(folder: Path, model: str, examples: Mapping[str, Mapping[str, Any]]) -> None:
    import tensorflow as tf

    (folder / "assets.extra").mkdir()
    with tf.io.TFRecordWriter(str(folder / "assets.extra" / "tf_serving_warmup_requests")) as file:
        for signature, inputs in examples.items():
            file.write(messages.prediction_log(model, signature, inputs))


def _publish(partial: Path, root: Path, version: int | None) -> Path:
    """Gives the finished folder its number; a folder that holds files is never replaced."""
    while True:
        number = _next_version(root) if version is None else version
        target = root / str(number)
        try:
            os.rename(partial, target)
            return target
        except OSError:
            if not target.exists():
                raise
            if version is not None:
                raise FileExistsError(
                    f"A version is never overwritten. Received: {target}"
                ) from None


def _next_version(root: Path) -> int:
    numbers = [int(x.name) for x in root.iterdir() if re.fullmatch("[0-9]+", x.name)]
    return max(numbers, default=0) + 1
