"""Ranking networks as plain Keras models: `{"features", "mask"}` to scores `[batch, list]`.

Univariate models score each document by itself, so that the same document gets the same score in
every list; only `self_attention` looks at the others.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from tfrankloss.core.backend import Array
from tfrankloss.data.transforms import Log1p, QueryMinMax
from tfrankloss.models.layers import (
    DocumentBatchNorm,
    FeatureNoise,
    FeatureTowers,
    ListAttention,
    ListScores,
    RealDocuments,
)
from tfrankloss.options import check_choice, check_fraction, check_integer

Transform = Any  # a name of `TRANSFORMS`, None, a layer or several
TRANSFORMS: dict[str, type[keras.layers.Layer]] = {"log1p": Log1p, "query_min_max": QueryMinMax}

# The SIGIR 2022 paper gives "dropout" of 0.5, 0.5 and 0.8 and does not say whether that is dropped
# or kept. Both readings, as arguments of `feedforward`.
SIGIR2022_DROPPED: dict[str, Any] = {"dropout": (0.5, 0.5, 0.8)}
SIGIR2022_KEPT: dict[str, Any] = {"dropout": (0.5, 0.5, 0.2)}


def feedforward(
    num_features: int,
    hidden: Sequence[int] = (1024, 512, 256),
    dropout: float | Sequence[float] = (0.5, 0.5, 0.8),
    batch_norm_momentum: float | None = 0.999,
    transform: Transform = "log1p",
    activation: str = "relu",
    input_batch_norm: bool = True,
    noise: float = 0.0,
    outputs: int | None = None,
) -> keras.Model:
    """The network of the LambdaLoss@K paper (SIGIR 2022, Sect. 6): dense layers on each document.

    The paper says: hidden layers of 1024, 512 and 256 units, dropout "set to 0.5, 0.5, and 0.8",
    batch normalisation of momentum 0.999, and learning rates of 0.01, 0.1, 1 and 10. It leaves open
    whether 0.8 is the rate that is dropped (`SIGIR2022_DROPPED`, the default here) or kept
    (`SIGIR2022_KEPT`), the optimiser (rates up to 10 suggest Adagrad or plain gradient descent),
    the activation, and the order of a layer's parts. Here a layer is dense, batch normalisation,
    activation, dropout, with batch normalisation of the input, as TF-Ranking builds it.

    Args:
        num_features: number of features.
        hidden: units of the hidden layers.
        dropout: the rate that is dropped behind each hidden layer, or one for all.
        batch_norm_momentum: of all batch normalisations, whose statistics padding does not enter;
            None for none of them.
        transform: of the features: `"log1p"`, `"query_min_max"`, None, or one or several layers,
            such as `Standardize.fit(data)`.
        activation: of the hidden layers.
        input_batch_norm: whether to normalise the transformed features, too.
        noise: deviation of Gaussian noise on them while the model trains.
        outputs: None for scores `[batch, list]`, or how many numbers each document gets.

    >>> model = feedforward(136)
    >>> model.count_params()
    804385
    """
    features, mask, x = _inputs(num_features, transform, noise)
    rows, real = RealDocuments(name="documents")(x, mask)
    if batch_norm_momentum is not None and input_batch_norm:
        rows = _batch_norm(batch_norm_momentum, "input_batch_norm")(rows, mask=real)
    rows = _tower(rows, real, hidden, dropout, batch_norm_momentum, activation)
    return _model("feedforward", features, mask, _list_scores(rows, mask, outputs))


def linear(num_features: int, transform: Transform = None) -> keras.Model:
    """`w x + b`; with the pairwise hinge loss a ranking SVM (Herbrich et al. 2000, Joachims 2002).

    Args:
        num_features: number of features.
        transform: see `feedforward`. Weights are comparable if the features are standardised.

    >>> linear(3).count_params()
    4
    """
    features, mask, x = _inputs(num_features, transform)
    rows, _ = RealDocuments(name="documents")(x, mask)
    return _model("linear", features, mask, _list_scores(rows, mask))


def ranknet(
    num_features: int,
    hidden: Sequence[int] = (10,),
    transform: Transform = "log1p",
    activation: str = "tanh",
) -> keras.Model:
    """The small network of RankNet (Burges et al. 2005), for the pairwise logistic loss.

    Args:
        num_features: number of features.
        hidden: units of the hidden layers; the paper has one of 10.
        transform: see `feedforward`.
        activation: of the hidden layers.

    >>> ranknet(20).count_params()
    221
    """
    features, mask, x = _inputs(num_features, transform)
    rows, real = RealDocuments(name="documents")(x, mask)
    rows = _tower(rows, real, hidden, 0.0, None, activation)
    return _model("ranknet", features, mask, _list_scores(rows, mask))


def self_attention(
    num_features: int,
    hidden: Sequence[int] = (256, 128, 64),
    heads: int = 4,
    head_units: int = 32,
    layers: int = 2,
    dropout: float = 0.1,
    batch_norm_momentum: float | None = 0.99,
    transform: Transform = "log1p",
    activation: str = "relu",
    noise: float = 0.1,
) -> keras.Model:
    """DASALC: documents of a list see each other (Qin et al., ICLR 2021).

    `s_i = score((1 + a_i) * h_i)`: `h_i` is what a network says of document `i` by itself, `a_i`
    what self-attention over the list says ("latent cross"); Gaussian noise on the transformed
    features is the data augmentation.

    Args:
        num_features: number of features.
        hidden: units of the network of single documents; the last is also that of the attention.
        heads: of each attention layer.
        head_units: units of a head.
        layers: number of attention layers.
        dropout: rate in both parts.
        batch_norm_momentum: see `feedforward`.
        transform: see `feedforward`.
        activation: of the hidden layers.
        noise: deviation of the noise.

    >>> self_attention(5, hidden=(8,), heads=1, head_units=4, layers=1).output_shape
    (None, None)
    """
    check_integer("num_features", num_features, minimum=1)
    check_integer("layers", layers, minimum=1)
    if not hidden:
        raise ValueError(f"self_attention needs a hidden layer. Received: hidden={hidden!r}")
    features, mask, x = _inputs(num_features, transform, noise)
    rows, real = RealDocuments(name="documents")(x, mask)
    if batch_norm_momentum is not None:
        rows = _batch_norm(batch_norm_momentum, "input_batch_norm")(rows, mask=real)
    single = _tower(rows, real, hidden, dropout, batch_norm_momentum, activation)
    others = keras.layers.Dense(hidden[-1], name="to_attention")(rows)
    others = ListScores(name="lists")(others, mask)
    for number in range(layers):
        attention = ListAttention(heads, head_units, dropout, name=f"attention_{number + 1}")
        others = attention(others, mask=mask)
    attended, _ = RealDocuments(name="attended_documents")(others, mask)
    crossed = single + single * attended
    return _model("self_attention", features, mask, _list_scores(crossed, mask))


def gam(
    num_features: int,
    hidden: Sequence[int] = (16, 8),
    transform: Transform = "log1p",
    activation: str = "relu",
    batch_norm_momentum: float | None = 0.99,
) -> keras.Model:
    """A generalized additive model: `s_i = sum_f g_f(x_if)` (Zhuang et al., WSDM 2021).

    What each feature adds to a score can be looked at: `sub_scores(model)`.

    Args:
        num_features: number of features.
        hidden: units of the hidden layers of each feature.
        transform: see `feedforward`.
        activation: of the hidden layers.
        batch_norm_momentum: of the normalisation of the features; None for none.

    >>> gam(3, hidden=(4,), batch_norm_momentum=None).count_params()  # 3 (1 4 + 4 + 4 1 + 1)
    39
    """
    features, mask, x = _inputs(num_features, transform)
    rows, real = RealDocuments(name="documents")(x, mask)
    if batch_norm_momentum is not None:
        rows = _batch_norm(batch_norm_momentum, "input_batch_norm")(rows, mask=real)
    rows = FeatureTowers(hidden, activation, name="towers")(rows)
    parts = ListScores(name="sub_scores", dtype=_precise())(rows, mask)
    return _model("gam", features, mask, ops.sum(parts, axis=-1))


def sub_scores(model: keras.Model) -> keras.Model:
    """The model that gives what each feature adds, `[batch, list, features]`, of a `gam`."""
    names = [layer.name for layer in model.layers]
    if "sub_scores" not in names:
        raise ValueError(f"Only a model made by gam has sub-scores. Received: {model.name!r}")
    return keras.Model(model.input, model.get_layer("sub_scores").output, name="sub_scores")


def classification(num_features: int, num_grades: int = 5, **arguments: Any) -> keras.Model:
    """`feedforward` with an output per grade, for `PointwiseSoftmaxLoss` and `OrdinalLoss`.

    Args:
        num_features: number of features.
        num_grades: number of grades; the model returns logits `[batch, list, num_grades]`.
        **arguments: further ones of `feedforward`.

    >>> classification(7, num_grades=5, hidden=(8,), dropout=0.5).output_shape
    (None, None, 5)
    """
    check_integer("num_grades", num_grades, minimum=2)
    return feedforward(num_features, outputs=num_grades, **arguments)


def _inputs(num_features: int, transform: Transform, noise: float = 0.0) -> tuple[Any, Any, Any]:
    """The two inputs, and the features as the network takes them."""
    check_integer("num_features", num_features, minimum=1)
    # Raw features may be too large for half types: they are transformed in float32.
    features = keras.Input((None, num_features), name="features", dtype="float32")
    mask = keras.Input((None,), name="mask", dtype="bool")
    if isinstance(transform, str):
        if transform not in TRANSFORMS:
            raise ValueError(
                f"transform must be one of {', '.join(TRANSFORMS)}, None, or one or several "
                f"layers. Received: transform={transform!r}"
            )
        transform = TRANSFORMS[transform](name=transform)
    x = features
    layers = [transform] if isinstance(transform, keras.layers.Layer) else transform or []
    for layer in layers:
        x = layer(x, mask=mask) if isinstance(layer, QueryMinMax) else layer(x)
    return features, mask, FeatureNoise(noise, name="noise")(x) if noise else x


def _batch_norm(momentum: float, name: str) -> keras.layers.Layer:
    check_fraction("batch_norm_momentum", momentum)
    # That of the input may see raw features, which are too large for half types.
    dtype = _precise() if name == "input_batch_norm" else None
    return DocumentBatchNorm(momentum=momentum, name=name, dtype=dtype)


def _tower(
    rows: Array,
    real: Array,
    hidden: Sequence[int],
    dropout: float | Sequence[float],
    momentum: float | None,
    activation: str,
) -> Array:
    """Hidden layers: dense, batch normalisation, activation, dropout."""
    rates = [dropout] * len(hidden) if isinstance(dropout, int | float) else list(dropout)
    if len(rates) != len(hidden):
        raise ValueError(
            "dropout must be one rate or one for each hidden layer (the default is that of the "
            "paper's three layers), such as dropout=0.1. "
            f"Received: dropout={dropout!r} for hidden={tuple(hidden)!r}"
        )
    for number, (units, rate) in enumerate(zip(hidden, rates, strict=True), start=1):
        check_integer("hidden", units, minimum=1)
        rows = keras.layers.Dense(units, name=f"dense_{number}")(rows)
        if momentum is not None:
            rows = _batch_norm(momentum, f"batch_norm_{number}")(rows, mask=real)
        rows = keras.layers.Activation(activation, name=f"{activation}_{number}")(rows)
        if rate:
            check_fraction("dropout", rate)
            rows = keras.layers.Dropout(rate, name=f"dropout_{number}")(rows)
    return rows


def _list_scores(rows: Array, mask: Array, outputs: int | None = None) -> Array:
    """The last layer."""
    rows = keras.layers.Dense(outputs or 1, dtype=_precise(), name="output")(rows)
    rows = rows if outputs else ops.squeeze(rows, axis=-1)
    return ListScores(name="scores", dtype=_precise())(rows, mask)


def _precise() -> str:
    """The type of scores: losses want more than half precision, whatever the policy."""
    return "float64" if keras.config.dtype_policy().compute_dtype == "float64" else "float32"


def _model(name: str, features: Array, mask: Array, scores: Array) -> keras.Model:
    return keras.Model({"features": features, "mask": mask}, scores, name=name)


MODELS: dict[str, Callable[..., keras.Model]] = {
    function.__name__: function
    for function in (feedforward, linear, ranknet, self_attention, gam, classification)
}


def get(name: str, num_features: int, **options: Any) -> keras.Model:
    """Makes a model from its name.

    Args:
        name: one of `MODELS`.
        num_features: number of features.
        **options: further arguments of that function.

    >>> get("ranknet", 20, hidden=(5,)).count_params()
    111
    """
    check_choice("model", name, tuple(MODELS))
    return MODELS[name](num_features, **options)
