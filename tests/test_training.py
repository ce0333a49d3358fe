"""Every loss trains a model through `fit`, in graph mode and compiled, and traces only once."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from tests import oracles
from tfrankloss import losses

QUERIES, LIST_SIZE, FEATURES, GRADES = 32, 12, 6, 5

OPTIONS = {
    "pointwise_softmax": {"num_grades": GRADES},
    "ordinal": {"num_grades": GRADES},
    "lambda_loss": {"weight": lambda high, low: high.gain - low.gain},
    "gumbel": {"loss": "softmax"},
    # At the start all soft ranks are far apart: a low temperature has no gradient to follow.
    "approx_mrr": {"temperature": 1.0},
    "approx_map": {"temperature": 1.0},
}


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    """Padded lists whose labels are a noisy linear function of the features."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(QUERIES, LIST_SIZE, FEATURES)).astype("float32")
    relevance = features @ np.array([2.0, -1.0, 0.5, 0.0, 0.0, 1.0])
    relevance += 0.5 * generator.normal(size=relevance.shape)
    labels = np.digitize(relevance, [-1.0, 1.0, 2.5, 4.0]).astype("float32")
    for row in range(QUERIES):
        length = generator.integers(4, LIST_SIZE + 1)
        labels[row, length:] = -1
        features[row, length:] = 1e3  # what is padded must not matter
    return features, labels


def make_model(outputs: int) -> keras.Model:
    keras.utils.set_random_seed(1)
    inputs = keras.Input((LIST_SIZE, FEATURES))
    scores = keras.layers.Dense(outputs)(inputs)
    return keras.Model(inputs, scores if outputs > 1 else keras.layers.Reshape((-1,))(scores))


def mean_ndcg(name: str, model: keras.Model, features: np.ndarray, labels: np.ndarray) -> float:
    scores = model(features).numpy()
    if name == "pointwise_softmax":
        scores = scores.argmax(axis=-1) + 1e-3 * scores[..., -1]
    elif name == "ordinal":
        scores = (1 / (1 + np.exp(-scores))).sum(axis=-1)
    return float(
        np.mean(
            [
                oracles.ndcg(scores[row, labels[row] >= 0], labels[row, labels[row] >= 0])
                for row in range(QUERIES)
            ]
        )
    )


# Compiled together with the model: one loss of each kind. The laws compile all of them alone.
RUNS = [(name, False) for name in losses.LOSSES] + [
    (name, True)
    for name in ("ordinal", "pairwise_hinge", "lambdarank", "ndcg_loss2", "list_mle", "approx_ndcg")
]


@pytest.mark.parametrize(
    ("name", "jit_compile"), RUNS, ids=[f"{name}-{'xla' if xla else 'graph'}" for name, xla in RUNS]
)
def test_fit_learns_and_traces_once(
    name: str, jit_compile: bool, data: tuple[np.ndarray, np.ndarray]
) -> None:
    features, labels = data
    loss = losses.get(name, **OPTIONS.get(name, {}))
    traces = []
    run = loss._run
    loss._run = lambda *arguments: traces.append(1) or run(*arguments)

    model = make_model(loss.outputs)
    untrained = mean_ndcg(name, model, features, labels)
    model.compile(keras.optimizers.Adam(0.05), loss=loss, jit_compile=jit_compile)
    fit = {"batch_size": QUERIES // 2, "verbose": 0, "shuffle": False}
    first = model.fit(features, labels, epochs=1, **fit).history["loss"][0]
    traced = len(traces)
    last = model.fit(features, labels, epochs=11, **fit).history["loss"][-1]

    assert last < first
    assert mean_ndcg(name, model, features, labels) > untrained
    assert len(traces) == traced  # 22 more steps, no further program


def test_lists_of_many_lengths_share_programs() -> None:
    """1,000 documents at the most, every length different: a dozen programs."""
    import tensorflow as tf

    loss = losses.PointwiseSquaredLoss()
    kernel_shapes = set()
    run = loss._run

    def count(reduction, labels, *others):
        kernel_shapes.add(tuple(labels.shape))
        return run(reduction, labels, *others)

    loss._run = count
    for length in range(5, 1001, 19):
        loss(np.zeros((2, length), "float32"), np.ones((2, length), "float32"))
    ragged = tf.RaggedTensor.from_row_lengths(tf.ones(35), [5, 30])
    loss(ragged, ragged)
    assert len(kernel_shapes) <= 12


def test_dataset_of_dynamic_list_size_trains(data: tuple[np.ndarray, np.ndarray]) -> None:
    import tensorflow as tf

    features, labels = data
    batches = [(features[:16, :size], labels[:16, :size]) for size in (5, 8, 12, 5, 8, 12)]
    signature = (
        tf.TensorSpec((None, None, FEATURES), tf.float32),
        tf.TensorSpec((None, None), tf.float32),
    )
    dataset = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)
    inputs = keras.Input((None, FEATURES))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))  # [batch, list, 1] is fine
    model.compile("sgd", loss=losses.NDCGLoss2(topn=5))
    history = model.fit(dataset, epochs=3, verbose=0).history["loss"]
    assert history[-1] < history[0]


def test_sample_weight_through_fit(data: tuple[np.ndarray, np.ndarray]) -> None:
    features, labels = data
    weights = np.random.default_rng(2).uniform(0.5, 2.0, labels.shape).astype("float32")
    loss = losses.PairwiseLogisticLoss()
    model = make_model(1)
    scores = model.predict(features, verbose=0)
    for sample_weight in (weights, weights[:, 0], weights[:, :1]):
        model.compile("sgd", loss=loss)
        value = model.evaluate(
            features, labels, sample_weight=sample_weight, batch_size=QUERIES, verbose=0
        )
        assert value == pytest.approx(float(loss(labels, scores, sample_weight)), rel=1e-5)


OTHER_NUMBERS = """
import sys
import numpy as np, tensorflow as tf
from pathlib import Path
from tfrankloss import losses

def programs():
    return {path.name.split(".")[0] for path in Path(sys.argv[1]).glob("module_*")}

for name in sys.argv[2:]:
    graded = name in ("pointwise_softmax", "ordinal")
    loss = losses.get(name, **({"num_grades": 5} if graded else {}))
    for number in range(3):
        generator = np.random.default_rng(number)
        labels = generator.integers(0, 5 - number, (1, 700)).astype("float32")
        shape = (1, 700) if loss.outputs == 1 else (1, 700, loss.outputs)
        # Scores of every size: what a loss takes another way for must be in the first program.
        scores = tf.constant(10.0**number * generator.normal(size=shape), "float32")
        before = programs()
        with tf.GradientTape() as tape:
            tape.watch(scores)
            value = loss(labels, scores)
        tape.gradient(value, scores)
        print(name, number, len(programs() - before))
"""


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["pairwise_logistic", "approx_ndcg", "ndcg_loss2@5"], id="some"),
        pytest.param(
            [name for name in losses.LOSSES if name not in ("gumbel", "lambda_loss")],
            marks=pytest.mark.slow,
            id="all",
        ),
    ],
)
def test_other_numbers_use_the_same_program(tmp_path: Path, names: list[str]) -> None:
    """XLA compiles again for other values of what it takes for a constant, without a word."""
    flags = {"XLA_FLAGS": f"--xla_dump_to={tmp_path}"}
    command = [sys.executable, "-c", OTHER_NUMBERS, str(tmp_path), *names]
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **flags})
    assert result.returncode == 0, result.stderr
    found = [line.split() for line in result.stdout.splitlines()]
    assert len(found) == 3 * len(names)
    for name, number, programs in found:
        assert (int(programs) > 0) == (number == "0"), f"{name}: {programs} programs"


LONG_LIST = """
import resource, sys
import numpy as np, tensorflow as tf
from tfrankloss import losses

def run(loss, size):
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 5, (1, size)).astype("float32")
    scores = tf.constant(generator.normal(size=(1, size)).astype("float32"))
    with tf.GradientTape() as tape:
        tape.watch(scores)
        value = loss(labels, scores)
    gradient = tape.gradient(value, scores).numpy()
    assert np.isfinite(gradient).all() and np.any(gradient != 0)

all_losses = [losses.get(name) for name in sys.argv[1:]]
for loss in all_losses:
    run(loss, 1000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for loss in all_losses:
    run(loss, 20000)
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.slow
def test_list_of_20000_documents_in_little_memory() -> None:
    """In a process of its own, because the peak of this one may lie behind it."""
    pytest.importorskip("resource")
    command = [sys.executable, "-c", LONG_LIST, "pairwise_hinge", "pairwise_logistic", "ndcg_loss2"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    megabytes = [float(line) for line in result.stdout.split()[-3:]]
    assert max(megabytes) < 256  # one array of all pairs would take 1,600
