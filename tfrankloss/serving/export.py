"""Writing a SavedModel for a server."""

import hashlib
import json
import os
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
from tfrankloss.training import FILES, TREES, library_versions

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
    - `predict_elwc`: `examples [B]`, serialised `ExampleListWithContext`, to `scores [B, L]`;
    - `tensorflow/serving/predict` and `tensorflow/serving/regress`, `inputs` to `outputs`, as the
      exports of TF-Ranking have them: lists with context, and Examples that are a list each.

    Features of an Example are float lists. With `feature_names`, one that a document of a list with
    context does not have is taken from the context. A feature that is not finite or not there, or a
    score that is not finite, is an error of the request; further features of an Example are
    ignored. An empty list has no scores, or only those of padding where others are longer.

    Args:
        model: takes `{"features", "mask"}` or features alone, and gives scores `[B, L]` or
            `[B, L, 1]`, or a number per grade if it was compiled with a loss that ranks by them.
        path: folder of all versions, which is made if it is not there.
        version: number of the version; by default the next one.
        top_k: how many documents `rank` returns; by default all.
        warmup: whether to add requests that a server sends to itself when it loads the model.
        feature_names: the names that features have in an Example; by default an Example has one
            feature, `"features"`, with all numbers.

    Returns the folder of the version.

    >>> import tempfile
    >>> from tfrankloss import models
    >>> folder = export(models.linear(3), tempfile.mkdtemp(), top_k=10)
    >>> folder.name
    '1'
    """
    return _export(model, path, version, top_k, warmup, feature_names, {})


def export_run(
    run: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    version: int | None = None,
    top_k: int | None = None,
    warmup: bool = True,
    feature_names: Sequence[str] | None = None,
) -> Path:
    """Exports the best model of a folder that `tfrankloss.train` wrote, and notes its results.

    Args:
        run: the folder.
        path: see `export`, as the other arguments.
    """
    folder = Path(run)
    file = folder / "model.keras"
    if not file.is_file():
        for name in (FILES[model] for model in TREES):
            if (folder / name).is_file():
                raise ValueError(
                    "TensorFlow Serving takes networks; trees are served by their own library, "
                    f"from {folder / name}"
                )
        raise FileNotFoundError(f"There is no trained model. Received: {folder}")
    notes: dict[str, Any] = {}
    for name in ("config", "metrics"):
        source = folder / f"{name}.json"
        if source.is_file():
            notes[name] = json.loads(source.read_text())
    notes = {
        "metrics": notes.get("metrics", {}).get("metrics"),
        "data": notes.get("config", {}).get("data"),
        "training": notes.get("config"),
    }
    model = keras.saving.load_model(file)
    return _export(model, path, version, top_k, warmup, feature_names, notes)


def _export(
    model: keras.Model,
    path: str | os.PathLike[str],
    version: int | None,
    top_k: int | None,
    warmup: bool,
    feature_names: Sequence[str] | None,
    notes: Mapping[str, Any],
) -> Path:
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "A SavedModel is written with Keras on TensorFlow: load the saved model in a process "
            f"with KERAS_BACKEND=tensorflow. Received: backend {keras.backend.backend()!r}"
        )
    if "://" in str(path):
        raise ValueError(f"Export to a local folder and copy it. Received: path={str(path)!r}")
    if version is not None:
        check_integer("version", version, minimum=1)
    if top_k is not None:
        check_integer("top_k", top_k, minimum=1)
    width = _check_model(model)
    _check_names(feature_names, width)
    _check_padding(model, width)
    root = Path(path).resolve()
    root.mkdir(parents=True, exist_ok=True)
    if version is not None and (root / str(version)).exists():
        raise FileExistsError(f"A version is never overwritten. Received: {root / str(version)}")
    partial = root / f"{PARTIAL}{secrets.token_hex(8)}"
    try:
        examples = requests.example_inputs(width, feature_names)
        schema = _write(model, partial, top_k, feature_names, examples)
        if warmup:
            _write_warmup(partial, root.name, examples)
        card = {
            "loss": _loss(model),
            "weights": _digest(model),
            "num_features": width,
            "feature_names": None if feature_names is None else list(feature_names),
            "top_k": top_k,
            "versions": library_versions(),
            **notes,
            "signatures": {
                name: {
                    **schema[name],
                    "example_request": json.loads(messages.rest_body(name, examples[name])),
                }
                for name in schema
            },
        }
        (partial / requests.CARD).write_text(json.dumps(card, indent=2, default=str))
        return _publish(partial, root, version)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(
    model: keras.Model,
    folder: Path,
    top_k: int | None,
    feature_names: Sequence[str] | None,
    examples: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Writes the SavedModel, reads it again and asks it; returns what signatures take and give."""
    import tensorflow as tf

    from tfrankloss.serving.signatures import Signatures

    module = tf.Module()
    module.kept = [variable.value for variable in model.variables]
    functions = {
        name: tf.function(function, input_signature=inputs, autograph=False)
        for name, (function, inputs) in Signatures(model, top_k, feature_names).functions().items()
    }
    tf.saved_model.save(module, str(folder), signatures=functions)
    loaded = tf.saved_model.load(str(folder))
    schema = {}
    for name, inputs in examples.items():
        signature = loaded.signatures[name]
        answers = signature(**{key: tf.constant(value) for key, value in inputs.items()})
        if name == "serving_default":
            _compare(model, inputs["features"], answers["scores"].numpy())
        schema[name] = {
            kind: {
                key: {"dtype": spec.dtype.name, "shape": spec.shape.as_list()}
                for key, spec in specs.items()
            }
            for kind, specs in (
                ("inputs", signature.structured_input_signature[1]),
                ("outputs", signature.structured_outputs),
            )
        }
    return schema


def _compare(model: keras.Model, features: np.ndarray, answers: np.ndarray) -> None:
    """The model that was trained is the model that answers."""
    expected = _scores(model, features)
    if not np.allclose(answers, expected, rtol=1e-4, atol=1e-4):
        raise RuntimeError(
            f"The exported model gives other scores: {answers.tolist()} instead of "
            f"{expected.tolist()}"
        )


def _scores(model: keras.Model, features: np.ndarray) -> np.ndarray:
    """What the model ranks lists without padding by."""
    inputs: Any = features
    if isinstance(model.input, dict):
        inputs = {"features": features, "mask": np.ones(features.shape[:2], bool)}
        inputs = {name: inputs[name] for name in model.input}
    outputs = model(inputs, training=False)
    if len(outputs.shape) == 3:
        single = outputs.shape[2] == 1
        outputs = outputs[:, :, 0] if single else model.loss.ranking_scores(outputs)
    return np.asarray(keras.ops.convert_to_numpy(outputs), np.float32)


def _check_model(model: keras.Model) -> int:
    """The number of features of a model that can be served."""
    wanted = (
        "The model must take features [batch, list, features] of any list size, alone or in a "
        "dictionary with 'mask', and give scores [batch, list] or [batch, list, outputs], as those "
        "of tfrankloss.models do. Received: "
    )
    try:
        given, outputs = model.input, model.output_shape
    except (AttributeError, ValueError) as error:
        raise ValueError(f"{wanted}a model without known inputs ({error})") from error
    names = set(given) if isinstance(given, dict) else {"features"}
    if isinstance(given, list | tuple) or "features" not in names or names - {"features", "mask"}:
        raise ValueError(f"{wanted}inputs {sorted(names) if isinstance(given, dict) else given}")
    shape = tuple((given["features"] if isinstance(given, dict) else given).shape)
    if len(shape) != 3 or shape[:2] != (None, None) or shape[2] is None:
        raise ValueError(f"{wanted}features of shape {shape}")
    if not isinstance(outputs, tuple) or len(outputs) not in (2, 3) or outputs[1] is not None:
        raise ValueError(f"{wanted}scores of shape {outputs}")
    if len(outputs) == 3 and outputs[2] != 1:
        loss = model.loss if getattr(model, "compiled", False) else None
        if not isinstance(loss, RankingLoss) or loss.outputs != outputs[2]:
            raise ValueError(
                f"The model gives {outputs[2]} numbers per document: compile it with the loss that "
                f"says what to rank by. Received: loss={loss!r}"
            )
    return int(shape[2])


def _check_padding(model: keras.Model, width: int) -> None:
    """A model without a mask must score a document whatever stands beside it."""
    if isinstance(model.input, dict) and "mask" in model.input:
        return
    features = np.random.default_rng(0).random((1, 5, width), np.float32)
    padded = np.pad(features, ((0, 0), (0, 2), (0, 0)))
    if not np.allclose(_scores(model, features), _scores(model, padded)[:, :5], atol=1e-4):
        raise ValueError(
            "The scores depend on the other documents of the list: the model must take 'mask', or "
            "padding would change them"
        )


def _check_names(names: Sequence[str] | None, width: int) -> None:
    if names is None:
        return
    words = not isinstance(names, str) and all(isinstance(x, str) and x for x in names)
    if not words or len(set(names)) != len(names) or len(names) != width:
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
        number = max(requests.versions(root), default=0) + 1 if version is None else version
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
