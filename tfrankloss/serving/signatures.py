"""The signatures of an exported ranker, as TensorFlow functions."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfrankloss.serving import messages

Tensor = Any

# A NaN that no client sends by chance marks what an Example does not have.
MISSING_BITS = 0x7FC0ABCD
MISSING = float(np.array([MISSING_BITS], np.uint32).view(np.float32)[0])


class Signatures:
    """The functions that a server offers.

    Args:
        model: takes `{"features": [B, L, F], "mask": [B, L]}`, or features alone.
        top_k: how many documents the ranking signatures return; None for all.
        feature_names: names of the features in an `Example`, in the order of the model's columns;
            None for one feature `"features"` that holds all of them.
    """

    def __init__(
        self, model: keras.Model, top_k: int | None, feature_names: Sequence[str] | None
    ) -> None:
        self._model = model
        self._top_k = top_k
        self._names = None if feature_names is None else list(feature_names)
        self._takes_mask = isinstance(model.input, dict) and "mask" in model.input
        self.width = int(features_input(model).shape[-1])

    def functions(self) -> dict[str, tuple[Callable[..., Any], list[tf.TensorSpec]]]:
        """Functions and what they take, by the name of the signature."""
        features = tf.TensorSpec((None, None, self.width), tf.float32, "features")
        mask = tf.TensorSpec((None, None), tf.bool, "mask")
        documents = tf.TensorSpec((None, self.width), tf.float32, "features")
        examples = tf.TensorSpec((None,), tf.string, "examples")
        inputs = tf.TensorSpec((None,), tf.string, "inputs")
        return {
            "serving_default": (self.predict, [features]),
            "predict_masked": (self.predict_masked, [features, mask]),
            "rank": (self.rank, [features]),
            "rank_masked": (self.rank_masked, [features, mask]),
            "score_documents": (self.score_documents, [documents]),
            "predict_examples": (self.predict_examples, [examples]),
            "predict_elwc": (self.predict_elwc, [examples]),
            "tensorflow/serving/predict": (self.predict_as_tf_ranking, [inputs]),
            "tensorflow/serving/regress": (self.regress_as_tf_ranking, [inputs]),
        }

    def predict(self, features: Tensor) -> dict[str, Tensor]:
        """Scores `[B, L]` of lists without padding."""
        return {"scores": self._scores(features, tf.ones(tf.shape(features)[:2], tf.bool))}

    def predict_masked(self, features: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Scores `[B, L]`, minus infinity in padding."""
        return {"scores": self._scores(features, _same_lists(features, mask))}

    def rank(self, features: Tensor) -> dict[str, Tensor]:
        """The places `[B, k]` of the documents in their lists, best first, and their scores."""
        return self._ranked(self.predict(features)["scores"])

    def rank_masked(self, features: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """As `rank`; behind the last document the place is -1 and the score minus infinity."""
        return self._ranked(self.predict_masked(features, mask)["scores"])

    def score_documents(self, features: Tensor) -> dict[str, Tensor]:
        """Scores `[N]` of the documents `[N, F]` of one list."""
        return {"scores": self.predict(features[None])["scores"][0]}

    def predict_examples(self, examples: Tensor) -> dict[str, Tensor]:
        """Scores `[N]` of the documents of one list, each a serialised `Example`."""
        return self.score_documents(self._complete(self._parsed(examples)))

    def predict_elwc(self, examples: Tensor) -> dict[str, Tensor]:
        """Scores `[B, L]` of serialised `ExampleListWithContext`, minus infinity in padding.

        Where features have names, one that a document does not have is taken from the context.
        """
        sizes, (documents, contexts) = tf.io.decode_proto(
            examples,
            messages.LIST_MESSAGE,
            ["examples", "context"],
            [tf.string, tf.string],
            descriptor_source=messages.list_descriptor(),
        )
        mask = tf.sequence_mask(sizes[:, 0], tf.shape(documents)[1])
        rows = self._parsed(tf.boolean_mask(documents, mask))
        if self._names is not None:
            has_context = sizes[:, 1:] > 0
            context = tf.where(has_context, contexts, tf.fill(tf.shape(has_context), ""))
            of_lists = self._parsed(tf.reshape(context[:, :1], (-1,)))
            of_rows = tf.gather(of_lists, tf.where(mask)[:, 0])
            rows = tf.where(_is_missing(rows), of_rows, rows)
        rows = self._complete(rows)
        shape = tf.concat([tf.shape(documents), [self.width]], axis=0)
        features = tf.scatter_nd(tf.where(mask), rows, tf.cast(shape, tf.int64))
        features = tf.ensure_shape(features, (None, None, self.width))
        return {"scores": self._scores(features, mask)}

    def predict_as_tf_ranking(self, inputs: Tensor) -> dict[str, Tensor]:
        """`predict_elwc` under the names that TF-Ranking's exports have."""
        return {"outputs": self.predict_elwc(inputs)["scores"]}

    def regress_as_tf_ranking(self, inputs: Tensor) -> dict[str, Tensor]:
        """Scores `[N]` of Examples, each a list of its own, as TF-Ranking's exports have them."""
        rows = self._complete(self._parsed(inputs))
        return {"outputs": self.predict(rows[:, None])["scores"][:, 0]}

    def _parsed(self, examples: Tensor) -> Tensor:
        """The features `[N, F]` of serialised Examples; `MISSING` for a name that is not there."""
        if self._names is None:
            form = {messages.DENSE: tf.io.FixedLenFeature((self.width,), tf.float32)}
            return tf.io.parse_example(examples, form)[messages.DENSE]
        form = {name: tf.io.FixedLenFeature((), tf.float32, MISSING) for name in self._names}
        columns = tf.io.parse_example(examples, form)
        return tf.stack([columns[name] for name in self._names], axis=1)

    def _complete(self, rows: Tensor) -> Tensor:
        if self._names is None:
            return rows
        missing = tf.reduce_any(_is_missing(rows), axis=0)
        named = tf.strings.reduce_join(tf.boolean_mask(self._names, missing), separator=", ")
        message = ["Every example must have all features. Missing:", named]
        with tf.control_dependencies([tf.debugging.Assert(~tf.reduce_any(missing), message)]):
            return tf.identity(rows)

    def _scores(self, features: Tensor, mask: Tensor) -> Tensor:
        # A server does not compare the shape of a request with that of the signature.
        features = tf.ensure_shape(features, (None, None, self.width), name="features")
        inside = tf.math.is_finite(features) | ~mask[:, :, None]
        broken = tf.reduce_any(~inside, axis=(0, 1))
        message = [
            "features must be finite numbers. NaN or infinity in the columns:",
            tf.where(broken)[:, 0],
        ]
        checked = tf.debugging.Assert(tf.reduce_all(inside), message, summarize=100)
        with tf.control_dependencies([checked]):
            features = tf.where(mask[:, :, None], features, tf.zeros_like(features))
        inputs: Any = features
        if isinstance(self._model.input, dict):
            inputs = {"features": features, **({"mask": mask} if self._takes_mask else {})}
        scores = tf.cast(self._model(inputs, training=False), tf.float32)
        if len(scores.shape) == 3 and scores.shape[2] == 1:
            scores = scores[:, :, 0]
        elif len(scores.shape) == 3:
            scores = self._model.loss.ranking_scores(scores)
        finite = tf.reduce_all(tf.math.is_finite(scores) | ~mask)
        message = ["The model's score of these features is not a finite number."]
        with tf.control_dependencies([tf.debugging.Assert(finite, message)]):
            return tf.where(mask, scores, -float("inf"))

    def _ranked(self, scores: Tensor) -> dict[str, Tensor]:
        size = tf.shape(scores)[1]
        count = size if self._top_k is None else tf.minimum(self._top_k, size)
        # Of equal scores the first in the list comes first.
        best, order = tf.math.top_k(scores, count)
        return {"order": tf.where(best > -float("inf"), order, -1), "scores": best}


def features_input(model: keras.Model) -> Any:
    """The input of the features."""
    given = model.input
    return given["features"] if isinstance(given, dict) else given


def _is_missing(x: Tensor) -> Tensor:
    return tf.equal(tf.bitcast(x, tf.int32), MISSING_BITS)


def _same_lists(features: Tensor, mask: Tensor) -> Tensor:
    mask = tf.ensure_shape(mask, (None, None), name="mask")
    same = tf.reduce_all(tf.equal(tf.shape(features)[:2], tf.shape(mask)))
    message = [
        "mask must have the shape [batch, list] of the features. Received:",
        tf.shape(mask),
        tf.shape(features),
    ]
    with tf.control_dependencies([tf.debugging.Assert(same, message)]):
        return tf.identity(mask)
