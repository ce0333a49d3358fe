"""Protocol buffers of TensorFlow Serving and TF-Ranking by their public field numbers.

Neither of the two packages is needed to write them, or to say how they are read.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

# ExampleListWithContext of TF-Ranking, as a FileDescriptorSet that `tf.io.decode_proto` takes:
# message L { repeated bytes examples = 1; optional bytes context = 2; }. Bytes and messages are the
# same on the wire.
LIST_MESSAGE = "L"
# The feature of an Example that holds all numbers, where features have no names.
DENSE = "features"


def list_descriptor() -> str:
    """The descriptor of `ExampleListWithContext` for `tf.io.decode_proto`."""
    repeated, optional, bytes_type = 3, 1, 12

    def field(name: str, number: int, label: int) -> bytes:
        return _bytes(
            2,
            _bytes(1, name.encode())
            + _number(3, number)
            + _number(4, label)
            + _number(5, bytes_type),
        )

    message = _bytes(1, LIST_MESSAGE.encode())
    message += field("examples", 1, repeated) + field("context", 2, optional)
    file = _bytes(1, b"l.proto") + _bytes(4, message)
    return "bytes://" + _bytes(1, file).decode("latin-1")


def prediction_log(model: str, signature: str, inputs: Mapping[str, Any]) -> bytes:
    """A `PredictionLog` that holds a `PredictRequest`: what a server warms up with."""
    return _bytes(6, _bytes(1, predict_request(model, signature, inputs)))


def predict_request(model: str, signature: str, inputs: Mapping[str, Any]) -> bytes:
    """A serialised `PredictRequest`."""
    import tensorflow as tf

    message = _bytes(1, _bytes(1, model.encode()) + _bytes(3, signature.encode()))
    for name, value in inputs.items():
        tensor = tf.make_tensor_proto(value).SerializeToString()
        message += _bytes(2, _bytes(1, name.encode()) + _bytes(2, tensor))
    return message


def example(features: Mapping[str, Any]) -> bytes:
    """A serialised `tf.train.Example` of float features."""
    import tensorflow as tf

    return tf.train.Example(
        features=tf.train.Features(
            feature={
                name: tf.train.Feature(float_list=tf.train.FloatList(value=np.ravel(value)))
                for name, value in features.items()
            }
        )
    ).SerializeToString()


def example_list(examples: list[bytes], context: bytes = b"") -> bytes:
    """A serialised `ExampleListWithContext`."""
    return b"".join(_bytes(1, part) for part in examples) + (_bytes(2, context) if context else b"")


def rest_body(signature: str, inputs: Mapping[str, Any]) -> str:
    """The JSON body of a request to the REST interface; bytes are written in base 64."""
    import base64

    def plain(value: Any) -> Any:
        if isinstance(value, bytes):
            return {"b64": base64.b64encode(value).decode()}
        if isinstance(value, np.ndarray):
            value = readable(value)
        return [plain(part) for part in value] if isinstance(value, list) else value

    contents = {name: plain(value) for name, value in inputs.items()}
    return json.dumps({"signature_name": signature, "inputs": contents})


def readable(array: np.ndarray) -> Any:
    """The numbers of an array as lists, without the digits that float32 does not have."""
    if array.dtype == np.float32:
        array = np.array([float(str(x)) for x in array.ravel()]).reshape(array.shape)
    return array.tolist()


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])
