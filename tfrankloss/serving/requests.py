"""Requests as a client writes them."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfrankloss.options import check_choice
from tfrankloss.serving import messages

Inputs = dict[str, dict[str, Any]]

CARD = "model_card.json"


def versions(root: Path) -> list[int]:
    """The numbers of the versions in a folder."""
    return [int(x.name) for x in root.glob("*") if x.name.isascii() and x.name.isdigit()]


class ExampleRequest(NamedTuple):
    """The same request in two forms.

    Attributes:
        rest: the JSON body of a POST request.
        grpc: Python code that sends it with `tensorflow-serving-api`.
    """

    rest: str
    grpc: str

    def __str__(self) -> str:
        return f"{self.rest}\n\n{self.grpc}"


def example_inputs(width: int, feature_names: Sequence[str] | None) -> Inputs:
    """The inputs of a small request to each signature: one list of two documents."""
    features = np.round(np.linspace(0.0, 1.0, 2 * width), 3).reshape(1, 2, width)
    mask = np.ones((1, 2), bool)
    if feature_names is None:
        examples = [messages.example({messages.DENSE: row}) for row in features[0]]
    else:
        examples = [
            messages.example(dict(zip(feature_names, row, strict=True))) for row in features[0]
        ]
    features = features.astype(np.float32)
    return {
        "serving_default": {"features": features},
        "predict_masked": {"features": features, "mask": mask},
        "rank": {"features": features},
        "rank_masked": {"features": features, "mask": mask},
        "score_documents": {"features": features[0]},
        "predict_examples": {"examples": examples},
        "predict_elwc": {"examples": [messages.example_list(examples)]},
        "tensorflow/serving/predict": {"inputs": [messages.example_list(examples)]},
        "tensorflow/serving/regress": {"inputs": examples},
    }


def example_request(
    path: str | os.PathLike[str], signature: str = "serving_default"
) -> ExampleRequest:
    """A request to an exported model, for the REST interface and for gRPC.

    Args:
        path: the folder of a version, or that of all versions, of which the last is taken.
        signature: name of the signature.

    >>> import tempfile
    >>> from tfrankloss import models, serving
    >>> folder = serving.export(models.linear(2), tempfile.mkdtemp())
    >>> serving.example_request(folder, "score_documents").rest
    '{"signature_name": "score_documents", "inputs": {"features": [[0.0, 0.333], [0.667, 1.0]]}}'
    """
    folder = Path(path).resolve()
    if not (folder / CARD).is_file():
        numbers = versions(folder)
        if not numbers:
            raise FileNotFoundError(f"There is no exported model. Received: {path}")
        folder = folder / str(max(numbers))
    card = json.loads((folder / CARD).read_text())
    check_choice("signature", signature, tuple(card["signatures"]))
    body = card["signatures"][signature]["example_request"]
    return ExampleRequest(json.dumps(body), _grpc(folder.parent.name, signature, card))


def _grpc(model: str, signature: str, card: Any) -> str:
    inputs = example_inputs(card["num_features"], card["feature_names"])[signature]
    lines = [
        "import grpc",
        "import tensorflow as tf",
        "from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc",
        "",
        "request = predict_pb2.PredictRequest()",
        f'request.model_spec.name = "{model}"',
        f'request.model_spec.signature_name = "{signature}"',
    ]
    for name, value in inputs.items():
        text = repr(messages.readable(value) if isinstance(value, np.ndarray) else value)
        kind = card["signatures"][signature]["inputs"][name]["dtype"]
        lines.append(
            f'request.inputs["{name}"].CopyFrom(tf.make_tensor_proto({text}, dtype="{kind}"))'
        )
    lines += [
        'channel = grpc.insecure_channel("localhost:8500")',
        "stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)",
        "print(stub.Predict(request))",
    ]
    return "\n".join(lines)
