"""Law 5: what cannot be honoured raises, and the message holds what was received."""

import re
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.laws.cases import FIRST_CASES, Case
from tfrankloss import losses, metrics

LABELS = np.array([[1.0, 0.0, 2.0], [0.0, 1.0, 0.0]], dtype=np.float32)
SCORES = np.array([[0.3, 0.1, 0.2], [0.5, 0.4, 0.6]], dtype=np.float32)

BAD_OPTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("lambdarank", {"topn": 0}, "topn=0"),
    ("lambdarank", {"topn": -2}, "topn=-2"),
    ("lambdarank", {"topn": True}, "topn=True"),
    ("lambdarank", {"topn": 2.5}, "topn=2.5"),
    ("lambdarank", {"metric": "auc"}, "'auc'"),
    ("lambdarank", {"metric": "precision"}, "topn=None"),
    ("lambdarank", {"metric": "map", "gain": "linear"}, "gain='linear'"),
    ("lambdarank", {"metric": "err", "discount": "linear"}, "discount='linear'"),
    ("lambdarank", {"ranking": "uniform"}, "'uniform'"),
    ("lambdarank", {"gain": "quadratic"}, "'quadratic'"),
    ("lambdarank", {"discount": "log3"}, "'log3'"),
    ("lambdarank", {"samples": 0}, "samples=0"),
    ("lambdarank", {"noise_scale": 0}, "noise_scale=0"),
    ("lambdarank", {"seed": -1}, "seed=-1"),
    ("lambdarank", {"pair_reduction": "median"}, "'median'"),
    ("lambdarank", {"cutoff": "truncated"}, "cutoff"),
    ("ndcg_loss1", {"cutoff": "corrected"}, "'corrected'"),
    ("ndcg_loss1", {"topn": 0}, "topn=0"),
    ("ndcg_loss2", {"cutoff": "hard"}, "'hard'"),
    ("ndcg_loss2", {"topn": False}, "topn=False"),
    ("ndcg_loss2_plus_plus", {"cutoff": "corrected"}, "'corrected'"),
    ("ndcg_loss2_plus_plus", {"mu": -1.0}, "mu=-1.0"),
    ("arp_loss1", {"topn": 3}, "topn"),
    ("lambda_loss", {"weight": "gain"}, "'gain'"),
    ("pairwise_logistic", {"sigma": 0}, "sigma=0"),
    ("pairwise_logistic", {"sigma": -1}, "sigma=-1"),
    ("pairwise_logistic", {"sigma": float("nan")}, "sigma=nan"),
    ("pairwise_logistic", {"sigma": float("inf")}, "sigma=inf"),
    ("pairwise_logistic", {"sigma": "1"}, "sigma='1'"),
    ("pairwise_hinge", {"topn": 3}, "topn"),
    ("pairwise_squared", {"sigma": 2.0}, "sigma"),
    ("softmax", {"temperature": 0.0}, "temperature=0.0"),
    ("softmax", {"topn": 5}, "topn"),
    ("listnet", {"topk": 4}, "topk=4"),
    ("listnet", {"topk": 0}, "topk=0"),
    ("listnet", {"topk": True}, "topk=True"),
    ("listnet", {"label_distribution": "uniform"}, "'uniform'"),
    ("list_mle", {"ties": "label"}, "'label'"),
    ("xendcg", {"gamma": 2}, "gamma=2"),
    ("xendcg", {"gamma": -0.5}, "gamma=-0.5"),
    ("xendcg", {"gamma": True}, "gamma=True"),
    ("xendcg", {"gamma": "normal"}, "'normal'"),
    ("xendcg", {"epsilon": -1.0}, "epsilon=-1.0"),
    ("xendcg", {"seed": 1.5}, "seed=1.5"),
    ("unique_softmax", {"gain": "cubic"}, "'cubic'"),
    ("poly1_softmax", {"epsilon": -2.0}, "epsilon=-2.0"),
    ("calibrated_softmax", {"virtual_label": 0.0}, "virtual_label=0.0"),
    ("approx_ndcg", {"temperature": -0.1}, "temperature=-0.1"),
    ("approx_ndcg", {"topn": 0}, "topn=0"),
    ("approx_mrr", {"gain": "linear"}, "gain"),
    ("soft_ndcg", {"noise_scale": 0.0}, "noise_scale=0.0"),
    ("soft_ndcg", {"topn": 0}, "topn=0"),
    ("gumbel_approx_ndcg", {"samples": 0}, "samples=0"),
    ("gumbel_approx_ndcg", {"beta": -1.0}, "beta=-1.0"),
    ("gumbel", {"loss": "sofmax"}, "'sofmax'"),
    ("gumbel", {"loss": 3}, "loss=3"),
    ("gumbel", {"loss": "ordinal"}, "ordinal"),
    ("pointwise_squared", {"num_grades": 1}, "num_grades=1"),
    ("pointwise_softmax", {"num_grades": 0}, "num_grades=0"),
    ("pointwise_softmax", {"num_grades": 3, "gamma": 0}, "gamma=0"),
    ("ordinal", {"num_grades": 2.0}, "num_grades=2.0"),
]


@pytest.mark.parametrize(
    ("name", "options", "received"), BAD_OPTIONS, ids=[f"{x[0]}-{x[1]}" for x in BAD_OPTIONS]
)
def test_bad_options(name: str, options: dict[str, Any], received: str) -> None:
    with pytest.raises((ValueError, TypeError), match=re.escape(received)):
        losses.LOSSES[name](**options)
    with pytest.raises(ValueError, match=re.escape(received)):
        losses.get(name, **options)


@pytest.mark.parametrize("case", FIRST_CASES)
def test_unknown_options_of_every_class(case: Case) -> None:
    with pytest.raises(ValueError, match="'average'"):
        case.fresh(reduction="average")
    with pytest.raises(ValueError, match="sum_over_batch_size"):
        case.fresh(reduction="sum_over_batch_size")
    with pytest.raises(TypeError, match="tempo"):
        case.fresh(tempo=1)
    # No loss has options that it takes in silence and does not keep.
    loss = case.fresh()
    assert all(hasattr(loss, name) for name in loss.get_config())


@pytest.mark.parametrize("case", FIRST_CASES)
def test_wrong_shapes_in_every_class(case: Case) -> None:
    loss = case.build()
    scores = SCORES if loss.outputs == 1 else np.zeros((2, 3, loss.outputs), np.float32)
    with pytest.raises(ValueError, match=r"y_true.*\(2,\)"):
        loss(LABELS[:, 0], scores)
    with pytest.raises(ValueError, match=r"y_pred.*\(2, 4"):
        loss(LABELS, np.concatenate([scores, scores[:, :1]], axis=1))
    with pytest.raises(ValueError, match=r"y_pred.*\(1, 3"):
        loss(LABELS, scores[:1])
    with pytest.raises(ValueError, match=r"y_pred.*\(2,\)|y_pred.*\(2, 3\)"):
        loss(LABELS, SCORES[:, 0] if loss.outputs == 1 else SCORES)
    with pytest.raises(ValueError, match=r"y_pred.*\(2, 3, 2\)"):
        loss(LABELS, np.zeros((2, 3, 2), np.float32))


@pytest.mark.parametrize(
    "weights",
    (np.ones(3), np.ones((2, 2)), np.ones((3, 2)), np.ones((1, 3)), np.ones((2, 3, 2)), 2.0),
    ids=lambda x: str(np.shape(x)),
)
def test_wrong_shapes_of_weights(weights: Any) -> None:
    with pytest.raises(
        ValueError,
        match=re.escape("sample_weight must have"),
    ) as raised:
        losses.SoftmaxLoss()(LABELS, SCORES, weights)
    assert str(np.shape(weights)) in str(raised.value)


def test_wrong_dictionaries() -> None:
    loss = losses.SoftmaxLoss()
    with pytest.raises(ValueError, match="target"):
        loss({"target": LABELS}, SCORES)
    with pytest.raises(ValueError, match="weights"):
        loss({"labels": LABELS, "weights": LABELS}, SCORES)
    with pytest.raises(ValueError, match=r"mask.*\(2, 2\)"):
        loss({"labels": LABELS, "mask": LABELS[:, :2] >= 0}, SCORES)
    with pytest.raises(ValueError, match=r"mask.*\(2,\)"):
        loss({"labels": LABELS, "mask": [True, True]}, SCORES)


def test_wrong_ragged_lists() -> None:
    loss = losses.SoftmaxLoss()
    labels = tf.ragged.constant([[1.0, 0.0, 2.0], [1.0]])
    scores = tf.ragged.constant([[0.1, 0.2], [0.3, 0.4]])
    with pytest.raises(ValueError, match=r"\[3, 1\].*\[2, 2\]"):
        loss(labels, scores)

    @tf.function
    def inside_a_function(labels: Any, scores: Any) -> Any:
        return loss(labels, scores)

    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="different lengths"):
        inside_a_function(labels, scores)


DYNAMIC = tf.TensorSpec([None, None], tf.float32)


@pytest.mark.parametrize("jit_compile", (False, True), ids=("plain", "compiled"))
def test_wrong_lengths_that_are_known_only_when_run(jit_compile: bool) -> None:
    """Lists of unknown length are padded, which must not hide that they do not fit together."""
    loss = losses.SoftmaxLoss()

    @tf.function(input_signature=[DYNAMIC, DYNAMIC], jit_compile=jit_compile)
    def inside_a_function(labels: Any, scores: Any) -> Any:
        return loss(labels, scores)

    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        inside_a_function(tf.constant(LABELS), tf.constant(SCORES[:, :2]))


def test_wrong_weights_that_are_known_only_when_run() -> None:
    loss = losses.SoftmaxLoss()

    @tf.function(input_signature=[DYNAMIC, DYNAMIC, DYNAMIC])
    def inside_a_function(labels: Any, scores: Any, weights: Any) -> Any:
        return loss(labels, scores, weights)

    labels, scores = tf.constant(LABELS), tf.constant(SCORES)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        inside_a_function(labels, scores, tf.ones((2, 2)))


def test_weights_of_lists_that_are_known_only_when_run() -> None:
    """`[batch, 1]` is a weight per list, also where the 1 is not known when it is traced."""
    loss = losses.SoftmaxLoss()

    @tf.function(input_signature=[DYNAMIC, DYNAMIC, DYNAMIC])
    def inside_a_function(labels: Any, scores: Any, weights: Any) -> Any:
        return loss(labels, scores, weights)

    labels, scores = tf.constant(LABELS), tf.constant(SCORES)
    weights = tf.constant([[2.0], [0.5]])
    expected = loss(labels, scores, weights)
    try:
        result = inside_a_function(labels, scores, weights)
    except (ValueError, tf.errors.InvalidArgumentError):
        return  # refused in words, not taken for something else
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_names() -> None:
    with pytest.raises(ValueError, match="ndcg_los2") as raised:
        losses.get("ndcg_los2")
    message = str(raised.value)
    assert "Did you mean 'ndcg_loss2'?" in message
    assert all(name in message for name in losses.LOSSES)
    with pytest.raises(ValueError, match="softmax@5"):
        losses.get("softmax@5")
    for name in ("ndcg_loss2@", "ndcg_loss2@0", "ndcg_loss2@-1", "ndcg_loss2@five", "ndcg@2@3"):
        with pytest.raises(ValueError, match=re.escape(repr(name))):
            losses.get(name)
    for other in (None, 5, ["softmax"]):
        with pytest.raises(ValueError, match=re.escape(repr(other))):
            losses.get(other)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="options"):
        losses.get(losses.SoftmaxLoss(), temperature=2.0)


def test_both_cutoffs_of_a_name() -> None:
    with pytest.raises(ValueError, match=r"@5|topn"):
        losses.get("ndcg_loss2@5", topn=3)


def test_lists_of_one_document() -> None:
    """Features `[documents, features]` and labels `[documents, 1]`: loss 0 and NDCG 1 for ever."""
    labels, scores = np.ones((3, 1), "float32"), np.zeros((3, 1), "float32")
    for compares in (losses.SoftmaxLoss(), losses.NDCGLoss2(topn=5), metrics.NDCG(topn=5)):
        with pytest.warns(UserWarning, match=r"one document.*\(3, 1\).*group the rows of a query"):
            compares(labels, scores)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", loss=losses.SoftmaxLoss())
    with pytest.warns(UserWarning, match="Every list holds one document"):
        model.fit(np.ones((4, 2), "float32"), np.ones((4, 1), "float32"), verbose=0)


def test_lists_of_one_document_that_mean_something(recwarn: pytest.WarningsRecorder) -> None:
    labels, scores = np.ones((3, 1), "float32"), np.zeros((3, 1), "float32")
    losses.PointwiseSquaredLoss()(labels, scores)
    losses.CalibratedSoftmaxLoss()(labels, scores)
    losses.SoftmaxLoss()(labels[:1], scores[:1])  # a short list in a loop over single lists
    assert not [x for x in recwarn if "one document" in str(x.message)]
