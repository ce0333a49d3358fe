"""What a server and its clients see of an exported model."""

import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import json_format

import tfrankloss
from tfrankloss import losses, models, serving
from tfrankloss.data import Standardize, synthetic
from tfrankloss.serving import messages

WIDTH = 5
NAMES = ["bm25", "length", "clicks", "age", "links"]


def compiled(model: keras.Model, loss: Any = "softmax") -> keras.Model:
    model.compile("adam", loss=losses.get(loss) if isinstance(loss, str) else loss)
    return model


def make_model(name: str) -> keras.Model:
    """A network of each kind, with weights and statistics that are not those of the start."""
    keras.utils.set_random_seed(0)
    data = synthetic(20, WIDTH, 8)
    if name == "feedforward":
        transform = Standardize.fit(data)
        model = models.feedforward(WIDTH, (8,), 0.1, batch_norm_momentum=0.5, transform=transform)
    elif name == "self_attention":
        model = models.self_attention(WIDTH, (8,), 2, 4, 1)
    elif name == "gam":
        model = models.gam(WIDTH)
    else:
        model = models.classification(WIDTH, 5, hidden=(8,), dropout=0.1)
    loss = losses.PointwiseSoftmaxLoss(5) if name == "classification" else losses.SoftmaxLoss()
    compiled(model, loss).fit(
        data.to_dataset(batch_size=10, list_size=16), epochs=1, shuffle=False, verbose=0
    )
    return model


def expected_scores(model: keras.Model, features: np.ndarray) -> np.ndarray:
    """The scores of `model.predict`; of grades, the expected one."""
    mask = np.ones(features.shape[:2], bool)
    scores = model.predict({"features": features, "mask": mask}, verbose=0).astype(float)
    if scores.ndim == 2:
        return scores
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (powers / powers.sum(axis=-1, keepdims=True)) @ np.arange(scores.shape[-1])


def examples_of(features: np.ndarray) -> list[bytes]:
    return [messages.example({"features": row}) for row in features]


# A program without this library and without Keras.
SECOND_PROCESS = """
import importlib.machinery
import sys

find = importlib.machinery.PathFinder.find_spec

def find_others(name, path=None, target=None):
    absent = name.partition(".")[0] in ("tfrankloss", "keras", "tf_keras")
    return None if absent else find(name, path, target)

importlib.machinery.PathFinder.find_spec = find_others
import numpy as np
import tensorflow as tf

folder, requests, answers = sys.argv[1:]
loaded = tf.saved_model.load(folder).signatures
results = {}
with np.load(requests, allow_pickle=True) as arrays:
    for key in {name.rsplit("/", 1)[0] for name in arrays}:
        inputs = {
            name.rsplit("/", 1)[1]: tf.constant(
                list(arrays[name]) if arrays[name].dtype == object else arrays[name]
            )
            for name in arrays if name.rsplit("/", 1)[0] == key
        }
        signature = key.split("/")[0].replace("tensorflow-serving-", "tensorflow/serving/")
        for name, value in loaded[signature](**inputs).items():
            results[f"{key}/{name}"] = value.numpy()
np.savez(answers, **results)
assert not {"tfrankloss", "keras", "tf_keras"} & set(sys.modules)
"""


def answer(folder: Path, requests: dict[str, Any], tmp_path: Path) -> dict[str, np.ndarray]:
    np.savez(tmp_path / "requests.npz", **requests)
    paths = [str(folder), str(tmp_path / "requests.npz"), str(tmp_path / "answers.npz")]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", SECOND_PROCESS, *paths],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    with np.load(tmp_path / "answers.npz") as arrays:
        return dict(arrays)


@pytest.mark.parametrize(
    "name",
    [
        "feedforward",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("classification", "self_attention", "gam")
        ),
    ],
)
def test_scores_in_a_second_process(name: str, tmp_path: Path) -> None:
    """Every signature; lists of 1, 7 and 2,000 documents, batches of 1 and 33, with padding."""
    model = make_model(name)
    folder = serving.export(model, tmp_path / "ranker", top_k=4)
    generator = np.random.default_rng(0)
    requests: dict[str, Any] = {}
    expected: dict[str, np.ndarray] = {}
    for batch, size in itertools.product((1, 33), (1, 7, 2000)):
        features = generator.normal(size=(batch, size, WIDTH)).astype(np.float32)
        scores = expected_scores(model, features)
        key = f"{batch}x{size}"
        requests[f"serving_default/{key}/features"] = features
        requests[f"rank/{key}/features"] = features
        requests[f"score_documents/{key}/features"] = features[0]
        requests[f"predict_examples/{key}/examples"] = np.array(examples_of(features[0]), object)
        lists = [messages.example_list(examples_of(rows)) for rows in features]
        requests[f"predict_elwc/{key}/examples"] = np.array(lists, object)
        requests[f"tensorflow-serving-predict/{key}/inputs"] = np.array(lists, object)
        padded = np.concatenate([features, np.full((batch, 3, WIDTH), np.nan, np.float32)], axis=1)
        mask = np.arange(size + 3)[None, :] < np.full((batch, 1), size)
        for signature in ("predict_masked", "rank_masked"):
            requests |= {
                f"{signature}/{key}/features": padded,
                f"{signature}/{key}/mask": mask,
            }
        for signature in ("serving_default", "predict_elwc"):
            expected[f"{signature}/{key}/scores"] = scores
        expected[f"tensorflow-serving-predict/{key}/outputs"] = scores
        for signature in ("score_documents", "predict_examples"):
            expected[f"{signature}/{key}/scores"] = scores[0]
        unlimited = np.full((batch, 3), -np.inf)
        expected[f"predict_masked/{key}/scores"] = np.concatenate([scores, unlimited], axis=1)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :4]
        best = np.take_along_axis(scores, order, axis=1)
        expected[f"rank/{key}/scores"] = best
        expected[f"rank/{key}/order"] = order
        places = max(min(4, size + 3) - order.shape[1], 0)
        expected[f"rank_masked/{key}/scores"] = np.pad(
            best, ((0, 0), (0, places)), constant_values=-np.inf
        )
        expected[f"rank_masked/{key}/order"] = np.pad(
            order, ((0, 0), (0, places)), constant_values=-1
        )
    # Lists of different lengths, with holes, in one batch: each as if it were alone.
    features = generator.normal(size=(6, 9, WIDTH)).astype(np.float32)
    mask = generator.random((6, 9)) < 0.6
    mask[0] = False
    requests |= {"predict_masked/holes/features": features, "predict_masked/holes/mask": mask}
    holes = np.full((6, 9), -np.inf)
    for row in range(1, 6):
        holes[row, mask[row]] = expected_scores(model, features[row, mask[row]][None])[0]
    expected["predict_masked/holes/scores"] = holes
    # Examples that are lists of their own.
    requests["tensorflow-serving-regress/flat/inputs"] = np.array(examples_of(features[0]), object)
    alone = expected_scores(model, features[0][:, None])[:, 0]
    expected["tensorflow-serving-regress/flat/outputs"] = alone
    answers = answer(folder, requests, tmp_path)
    for key, value in expected.items():
        if key.endswith("order") and "2000" in key:
            continue  # rounding may turn neighbours around
        np.testing.assert_allclose(answers[key], value, rtol=1e-5, atol=1e-5, err_msg=key)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = compiled(models.linear(WIDTH))
    model.set_weights([np.array([[1.0], [-2.0], [3.0], [9.0], [-5.0]]), np.array([0.5])])
    return serving.export(model, tmp_path_factory.mktemp("ranker"), feature_names=NAMES)


def test_equal_scores_keep_their_order(exported: Path) -> None:
    loaded = tf.saved_model.load(str(exported)).signatures
    features = np.random.default_rng(0).integers(0, 2, (1, 1000, 1)).repeat(WIDTH, axis=2)
    given = tf.constant(features.astype(np.float32))
    scores = loaded["serving_default"](features=given)["scores"].numpy()
    assert len(set(scores[0].tolist())) == 2
    order = loaded["rank"](features=given)["order"].numpy()
    np.testing.assert_array_equal(order, np.argsort(-scores, axis=1, kind="stable"))


def test_features_by_name_and_in_the_context(exported: Path) -> None:
    """Names come in any order; what a list has in its context is that of all documents."""
    loaded = tf.saved_model.load(str(exported)).signatures
    rows = np.random.default_rng(0).normal(size=(3, WIDTH)).astype(np.float32)
    rows[:, 3] = rows[0, 3]
    expected = loaded["score_documents"](features=tf.constant(rows))["scores"].numpy()
    named = [dict(zip(NAMES[::-1], row[::-1])) for row in rows]
    examples = [messages.example({**row, "unknown": 7.0}) for row in named]
    answers = loaded["predict_examples"](examples=tf.constant(examples))["scores"].numpy()
    np.testing.assert_allclose(answers, expected, rtol=1e-6)
    context = messages.example({"age": rows[0, 3]})
    short = [{name: x for name, x in row.items() if name != "age"} for row in named]
    lists = [
        messages.example_list([messages.example(row) for row in short], context),
        messages.example_list([messages.example(named[1])]),
        b"",
    ]
    answers = loaded["predict_elwc"](examples=tf.constant(lists))["scores"].numpy()
    np.testing.assert_allclose(answers[0], expected, rtol=1e-6)
    np.testing.assert_allclose(answers[1], [expected[1], -np.inf, -np.inf], rtol=1e-6)
    assert (answers[2] == -np.inf).all()


def test_lists_as_the_public_message_has_them() -> None:
    """ExampleListWithContext built from its definition, read by our descriptor."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="elwc.proto", package="public")
    file.dependency.append("tensorflow/core/example/example.proto")
    message = file.message_type.add(name="ExampleListWithContext")
    kind = descriptor_pb2.FieldDescriptorProto
    for name, number, label in (
        ("examples", 1, kind.LABEL_REPEATED),
        ("context", 2, kind.LABEL_OPTIONAL),
    ):
        message.field.add(
            name=name,
            number=number,
            label=label,
            type=kind.TYPE_MESSAGE,
            type_name=".tensorflow.Example",
        )
    pool = descriptor_pool.Default()
    pool.Add(file) if hasattr(pool, "Add") else pool.AddSerializedFile(file.SerializeToString())
    ExampleList = message_factory.GetMessageClass(
        pool.FindMessageTypeByName("public.ExampleListWithContext")
    )
    built = ExampleList()
    for number in (1.0, 2.0):
        example = tf.train.Example.FromString(messages.example({"x": number}))
        built.examples.add().CopyFrom(example)
    built.context.CopyFrom(tf.train.Example.FromString(messages.example({"y": 3.0})))
    parts = [part.SerializeToString() for part in built.examples]
    assert messages.example_list(parts, built.context.SerializeToString()) == (
        built.SerializeToString()
    )
    sizes, (examples, contexts) = tf.io.decode_proto(
        [built.SerializeToString()],
        messages.LIST_MESSAGE,
        ["examples", "context"],
        [tf.string, tf.string],
        descriptor_source=messages.list_descriptor(),
    )
    assert sizes.numpy().tolist() == [[2, 1]]
    assert examples.numpy().tolist() == [parts]
    assert contexts.numpy().tolist() == [[built.context.SerializeToString()]]


@pytest.mark.parametrize(
    ("signature", "inputs", "words"),
    [
        ("serving_default", {"features": np.zeros((1, 2, 4))}, r"1,2,4.*\?,\?,5"),
        ("serving_default", {"features": [[[0, 0, np.nan, 0, 0]]]}, r"finite.*columns.*\[2\]"),
        ("score_documents", {"features": [[0, np.inf, 0, 0, 0]]}, r"finite.*columns.*\[1\]"),
        (
            "predict_masked",
            {"features": np.zeros((1, 2, WIDTH)), "mask": np.ones((1, 3), bool)},
            "mask must have the shape",
        ),
        (
            "predict_examples",
            {"examples": [messages.example({"bm25": 1.0, "clicks": 2.0})]},
            "Missing:.*length, age, links",
        ),
        ("predict_examples", {"examples": [b"\x08junk"]}, "[Pp]ars"),
        (
            "predict_examples",
            {"examples": [messages.example({**dict.fromkeys(NAMES, 1.0), "age": np.nan})]},
            r"finite.*columns.*\[3\]",
        ),
        (
            "predict_elwc",
            {
                "examples": [
                    messages.example_list(
                        [messages.example({**dict.fromkeys(NAMES, 1.0), "age": np.nan})],
                        messages.example({"age": 1.0}),
                    )
                ]
            },
            r"finite.*columns.*\[3\]",
        ),
        (
            "predict_masked",
            {"features": np.zeros((1, 2, WIDTH)), "mask": np.ones(2, bool)},
            "mask",
        ),
        ("rank", {"features": np.full((1, 2, WIDTH), 3e38)}, "score of these features"),
        (
            "predict_elwc",
            {"examples": [messages.example_list([messages.example({"bm25": 1.0})])]},
            "Missing:.*length, clicks, age, links",
        ),
    ],
)
def test_wrong_requests(signature: str, inputs: dict[str, Any], words: str, exported: Path) -> None:
    """An error that names the input."""
    function = tf.saved_model.load(str(exported)).signatures[signature]
    given = {
        name: tf.constant(value, {"mask": tf.bool, "examples": tf.string}.get(name, tf.float32))
        for name, value in inputs.items()
    }
    with pytest.raises((tf.errors.OpError, TypeError, ValueError), match=f"(?s){words}"):
        function(**given)


def test_empty_lists_have_no_scores(exported: Path) -> None:
    loaded = tf.saved_model.load(str(exported)).signatures
    empty = tf.zeros((2, 0, WIDTH))
    assert loaded["serving_default"](features=empty)["scores"].shape == (2, 0)
    assert loaded["rank"](features=empty)["order"].shape == (2, 0)
    assert loaded["score_documents"](features=empty[0])["scores"].shape == (0,)
    assert loaded["predict_examples"](examples=tf.constant([], tf.string))["scores"].shape == (0,)
    answers = loaded["predict_elwc"](examples=tf.constant([b"", b""]))["scores"].numpy()
    assert (answers == -np.inf).all()


def test_requests_of_the_serving_api(exported: Path) -> None:
    """The warm-up records, and a REST body, map onto the signatures by name, type and shape."""
    from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

    loaded = tf.saved_model.load(str(exported)).signatures
    file = exported / "assets.extra" / "tf_serving_warmup_requests"
    requests = {}
    for record in tf.data.TFRecordDataset(str(file)):
        log = prediction_log_pb2.PredictionLog.FromString(record.numpy())
        assert log.WhichOneof("log_type") == "predict_log"
        request = log.predict_log.request
        requests[request.model_spec.signature_name] = request
    assert set(requests) == {name for name in loaded if not name.startswith("__")}
    card = json.loads((exported / "model_card.json").read_text())
    assert card["loss"]["class"] == "SoftmaxLoss"
    assert card["signatures"]["rank"]["outputs"]["order"] == {
        "dtype": "int32",
        "shape": [None, None],
    }
    for name, request in requests.items():
        wanted = loaded[name].structured_input_signature[1]
        assert set(request.inputs) == set(wanted)
        inputs = {key: tf.constant(tf.make_ndarray(x)) for key, x in request.inputs.items()}
        for key, value in inputs.items():
            assert wanted[key].dtype == value.dtype
            assert wanted[key].shape.is_compatible_with(value.shape)
        results = loaded[name](**inputs)
        assert all(np.isfinite(x.numpy()).all() for x in results.values())
        assert request.model_spec.name == exported.parent.name

        shown = serving.example_request(exported.parent, name)
        body = json.loads(shown.rest)
        assert body["signature_name"] == name
        code, last = shown.grpc.split("channel = ")
        code = "\n".join(line for line in code.splitlines() if not line.startswith("import grpc"))
        code = code.replace(", prediction_service_pb2_grpc", "")
        space: dict[str, Any] = {}
        exec(code, space)
        same = json_format.MessageToDict(
            predict_pb2.PredictRequest.FromString(request.SerializeToString())
        )
        assert json_format.MessageToDict(space["request"]) == same
        for key, value in body["inputs"].items():
            if key == "features":
                np.testing.assert_allclose(value, inputs[key].numpy(), rtol=1e-6)


def test_saved_model_cli(exported: Path, tmp_path: Path) -> None:
    tool = Path(sys.executable).with_name("saved_model_cli")
    command = [str(tool), "run", "--dir", str(exported), "--tag_set", "serve"]
    command += ["--signature_def", "rank"]
    np.save(tmp_path / "features.npy", np.zeros((1, 3, WIDTH), np.float32))
    command += ["--inputs", f"features={tmp_path / 'features.npy'}"]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-1000:]
    assert "[[0 1 2]]" in done.stdout
    command = [str(tool), "show", "--dir", str(exported), "--all"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and "inputs['features']" in done.stdout


def test_versions(tmp_path: Path) -> None:
    model = models.linear(2)
    assert serving.export(model, tmp_path / "a" / "b", version=7, warmup=False).name == "7"
    assert serving.export(model, tmp_path / "a" / "b", warmup=False).name == "8"
    before = (tmp_path / "a" / "b" / "7" / "model_card.json").read_bytes()
    with pytest.raises(FileExistsError, match="never overwritten"):
        serving.export(model, tmp_path / "a" / "b", version=7)
    assert (tmp_path / "a" / "b" / "7" / "model_card.json").read_bytes() == before
    assert sorted(os.listdir(tmp_path / "a" / "b")) == ["7", "8"]
    (tmp_path / "a" / "b" / "1.old").mkdir()
    assert '"ranker"' not in serving.example_request(tmp_path / "a" / "b").grpc
    assert 'model_spec.name = "b"' in serving.example_request(tmp_path / "a" / "b").grpc
    assert not (tmp_path / "a" / "b" / "8" / "assets.extra").exists()


def _export(root: str, barrier: Any, kill: str) -> None:
    """Exports; kills itself when the model is written, before the rename, or right behind it."""
    space = serving.export.__globals__

    def stop(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    if kill == "rename":
        rename = os.rename

        def rename_and_stop(*arguments: Any) -> None:
            rename(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)

        os.rename = rename_and_stop
    elif kill:
        assert kill in space
        space[kill] = stop
    else:
        barrier.wait(120)
    serving.export(models.linear(2), root)


@pytest.mark.slow
def test_exports_at_once_and_killed(tmp_path: Path) -> None:
    """Ten at once are ten versions; one that is killed is none, or complete."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tfrankloss", "tests.test_serving"])
    barrier = context.Barrier(10)
    for number, kill in enumerate(("_compare", "_publish", "rename"), start=1):
        killed = context.Process(target=_export, args=(str(tmp_path), barrier, kill))
        killed.start()
        killed.join()
        assert killed.exitcode == -signal.SIGKILL
        names = sorted(x.name for x in tmp_path.iterdir())
        assert [name for name in names if name.isdigit()] == ([] if number < 3 else ["1"])
    # What was killed behind the rename is complete.
    whole = serving.export(models.linear(2), tmp_path / "whole")
    expected = sorted(str(x.relative_to(whole)) for x in whole.rglob("*"))
    first = tmp_path / "1"
    assert sorted(str(x.relative_to(first)) for x in first.rglob("*")) == expected
    workers = [
        context.Process(target=_export, args=(str(tmp_path), barrier, "")) for _ in range(10)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    numbers = sorted(int(x.name) for x in tmp_path.iterdir() if x.name.isdigit())
    assert numbers == list(range(1, 12))
    for number in numbers:
        tf.saved_model.load(str(tmp_path / str(number)))


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (lambda: models.linear(2), {"version": 0}, "version"),
        (lambda: models.linear(2), {"top_k": 0}, "top_k"),
        (lambda: models.linear(2), {"feature_names": ["a"]}, "2 different names"),
        (lambda: models.linear(2), {"feature_names": ["a", "a"]}, "2 different names"),
        (lambda: models.classification(2, 5), {}, "5 numbers per document"),
        (
            lambda: keras.Model(x := keras.Input((2, 3)), keras.layers.Reshape((2, 3, 1, 1))(x)),
            {},
            "any list size",
        ),
        (
            lambda: keras.Model(
                x := keras.Input((None, 2)),
                keras.ops.sum(x - keras.ops.mean(x, axis=1, keepdims=True), axis=-1),
            ),
            {},
            "must take 'mask'",
        ),
        (
            lambda: keras.Model([x := keras.Input((None, 2)), keras.Input((None,))], x),
            {},
            "Received: inputs",
        ),
        (lambda: models.linear(2), {"feature_names": [1, 2]}, "2 different names"),
        (lambda: keras.Sequential([keras.layers.Dense(1)]), {}, "without known inputs"),
    ],
)
def test_what_cannot_be_exported(
    make: Any, options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=words):
        serving.export(make(), tmp_path / "ranker", **options)
    assert not (tmp_path / "ranker").exists() or not list((tmp_path / "ranker").iterdir())


def test_a_plain_keras_model(tmp_path: Path) -> None:
    """Features alone, and scores [batch, list, 1]."""
    inputs = keras.Input((None, 3))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    folder = serving.export(model, tmp_path, warmup=False)
    features = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)
    predict = tf.saved_model.load(str(folder)).signatures["serving_default"]
    answers = predict(features=tf.constant(features))["scores"].numpy()
    np.testing.assert_allclose(answers, model.predict(features, verbose=0)[:, :, 0], rtol=1e-5)


def test_a_run(tmp_path: Path) -> None:
    parts = synthetic(30, 3, 6).split([0.5, 0.5])
    tfrankloss.train(
        *parts, loss="softmax", model="linear", epochs=1, out=tmp_path / "run", progress=False
    )
    folder = serving.export_run(tmp_path / "run", tmp_path / "ranker")
    card = json.loads((folder / "model_card.json").read_text())
    assert card["training"]["options"]["loss"] == "softmax"
    assert "ndcg@10" in card["metrics"]["vali"]
    assert card["data"]["train"]["digest"] == parts[0].digest()
    with pytest.raises(FileNotFoundError, match="no trained model"):
        serving.export_run(tmp_path / "absent", tmp_path / "ranker")
    with pytest.raises(FileNotFoundError, match="no exported model"):
        serving.example_request(tmp_path / "run")
