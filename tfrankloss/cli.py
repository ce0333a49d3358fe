"""The command line: reads arguments, calls the library, prints."""

import argparse
import difflib
import importlib
import json
import shlex
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from tfrankloss import __version__
from tfrankloss.charts import line_chart
from tfrankloss.comparison import compare
from tfrankloss.data import (
    RankingData,
    Records,
    load_letor,
    open_records,
    synthetic,
    write_records,
)
from tfrankloss.data.records import is_records
from tfrankloss.evaluation import evaluate, to_trec_run
from tfrankloss.files import writing
from tfrankloss.losses import LOSSES
from tfrankloss.models import MODELS
from tfrankloss.serving import example_request, export_run
from tfrankloss.training import (
    ENGINES,
    OPTIMIZERS,
    TREES,
    Trained,
    TrainingOptions,
    engine_errors,
    evaluate_scores,
    join_cluster,
    load_model,
    num_features,
    predict_scores,
    train,
)

TFDS = ("mslr_web", "istella", "yahoo_ltrc")
DATA = (
    "a LETOR file, a folder with train.txt, vali.txt and test.txt (also compressed or in a zip "
    "file), a folder of `convert`, a name of TensorFlow Datasets such as mslr_web/30k_fold1, or "
    "'synthetic'"
)


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong with an argument in one line."""

    def error(self, message: str) -> NoReturn:
        """Prints the mistake and ends."""
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")

    def option_strings(self) -> list[str]:
        """All options, as they are written."""
        return list(self._option_string_actions)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command; a mistake of the user is one line and exit code 2."""
    parser = make_parser()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        command = options.parser
        close = difflib.get_close_matches(unknown[0], command.option_strings(), n=1)
        hint = f", did you mean {close[0]}?" if close else ""
        command.error(f"unknown arguments: {' '.join(unknown)}{hint}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=UserWarning)
        warnings.filterwarnings("always", module="tfrankloss")
        warnings.showwarning = lambda message, *_: print(f"tfrankloss: {message}", file=sys.stderr)
        try:
            options.run_command(options)
        except KeyboardInterrupt:
            if getattr(options, "resume", None) is not None:
                print("\nInterrupted; --resume goes on.", file=sys.stderr)
            sys.exit(130)
        except (ValueError, OSError, ImportError, FloatingPointError) as error:
            text = " ".join(str(error).split())
            print(f"tfrankloss {options.command}: error: {text}", file=sys.stderr)
            sys.exit(2)


def make_parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    parser = OneLineParser(
        prog="tfrankloss",
        description="Learning to rank on Keras 3: train, evaluate and use a ranker from a file.",
        epilog="tfrankloss COMMAND --help describes the options of a command.",
    )
    parser.add_argument("--version", action="version", version=f"tfrankloss {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    demo = commands.add_parser(
        "demo", help="train on built-in synthetic data and show that it learnt"
    )
    demo.add_argument("--fast", action="store_true", help="less data, for a first look")
    demo.add_argument("--out", type=Path, default=Path("tfrankloss-demo"), help="folder to make")
    demo.set_defaults(run_command=run_demo, parser=demo)

    training = commands.add_parser("train", help="train a ranker and save it with its results")
    training.add_argument("data", help=DATA)
    training.add_argument("--out", type=Path, required=True, help="folder of the run")
    training.add_argument(
        "--validation", help="a LETOR file or records, where DATA has no validation data"
    )
    training.add_argument(
        "--validation-fraction",
        type=float,
        help="share of the queries of a single file that are held back for validation",
    )
    training.add_argument("--resume", action="store_true", help="go on with the run in --out")
    training.add_argument(
        "--distribute",
        choices=ENGINES,
        help="train with the hosts of a cluster, on each of which this command is given: those of "
        "TF_CONFIG, or of KERAS_DISTRIBUTION_JOB_ADDRESSES and the like",
    )
    add_training_options(training)
    training.set_defaults(run_command=run_train, parser=training)

    evaluation = commands.add_parser("evaluate", help="measure a trained ranker on data")
    evaluation.add_argument("model", type=Path, help="folder of a run, or the file of its model")
    evaluation.add_argument("data", help=DATA)
    evaluation.add_argument("--split", help="of data with several splits; default test")
    evaluation.add_argument(
        "--metrics", type=names, default=list(TrainingOptions.metrics), help="such as ndcg@10,mrr"
    )
    evaluation.set_defaults(run_command=run_evaluate, parser=evaluation)

    ranking = commands.add_parser("rank", help="score documents with a trained ranker")
    ranking.add_argument("model", type=Path, help="folder of a run, or the file of its model")
    ranking.add_argument("data", help=DATA)
    ranking.add_argument("--out", type=Path, required=True, help="file to write")
    ranking.add_argument("--split", help="of data with several splits; default test")
    ranking.add_argument("--trec", action="store_true", help="as a run file of trec_eval")
    ranking.set_defaults(run_command=run_rank, parser=ranking)

    exporting = commands.add_parser("export", help="write a trained ranker for TensorFlow Serving")
    exporting.add_argument("run", type=Path, help="folder of a run")
    exporting.add_argument("path", type=Path, help="folder of the versions")
    exporting.add_argument("--version", type=int, help="default the next number")
    exporting.add_argument("--top-k", type=int, help="documents that `rank` returns; default all")
    exporting.add_argument("--feature-names", type=names, help="in an Example, by column: a,b,...")
    exporting.add_argument("--no-warmup", action="store_true", help="without warm-up requests")
    exporting.set_defaults(run_command=run_export, parser=exporting)

    conversion = commands.add_parser(
        "convert", help="write LETOR files as record files, for data larger than memory"
    )
    conversion.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="LETOR files, also compressed, or patterns of them; or one folder with train.txt, "
        "vali.txt and test.txt",
    )
    conversion.add_argument("--to", choices=["records"], required=True, help="what to write")
    conversion.add_argument("--out", required=True, help="folder to make")
    conversion.add_argument(
        "--shards", type=int, default=16, help="number of record files; default 16"
    )
    conversion.add_argument(
        "--on-error",
        choices=["raise", "skip"],
        default="raise",
        help="a line that cannot be read ends the conversion, or goes to rejected.jsonl",
    )
    conversion.add_argument("--num-features", type=int, help="default the highest index")
    conversion.add_argument(
        "--missing-value", type=float, default=0.0, help="of features that are not there; default 0"
    )
    conversion.add_argument(
        "--allow-nonfinite", action="store_true", help="take nan and inf for features"
    )
    conversion.add_argument(
        "--first-index", type=int, choices=[0, 1], help="default as the files have it"
    )
    conversion.add_argument(
        "--runner",
        help="convert with Apache Beam, by this runner: DirectRunner, DataflowRunner, FlinkRunner, "
        "SparkRunner, ...; the files are the same",
    )
    conversion.add_argument(
        "--runner-options",
        type=shlex.split,
        default=[],
        help="arguments of the pipeline: --runner-options='--project=p --region=r'",
    )
    conversion.set_defaults(run_command=run_convert, parser=conversion)

    comparison = commands.add_parser(
        "compare", help="train with several losses and compare what they reach"
    )
    comparison.add_argument(
        "data", help=f"{DATA}; or a folder of such folders, Fold1, Fold2, ...; or one file to split"
    )
    comparison.add_argument(
        "--losses",
        type=names,
        required=True,
        help="such as softmax,lambdarank; lightgbm:lambdarank or xgboost:softmax for trees with "
        "default options beside a network",
    )
    comparison.add_argument("--baseline", help="compare with this loss; default the first")
    comparison.add_argument("--folds", type=int, help="parts of one file; default 5")
    comparison.add_argument("--seeds", type=int, default=1, help="runs of each loss on each fold")
    comparison.add_argument("--out", type=Path, required=True, help="folder of page and runs")
    comparison.add_argument("--resume", action="store_true", help="go on with what is in --out")
    add_training_options(comparison, one_loss=False)
    comparison.set_defaults(run_command=run_compare, parser=comparison)
    return parser


def add_training_options(parser: argparse.ArgumentParser, one_loss: bool = True) -> None:
    """The fields of `TrainingOptions`, and a file that holds them."""
    parser.add_argument(
        "--config", type=Path, help="a TOML or JSON file with these options; those given here win"
    )
    if one_loss:
        parser.add_argument("--loss", help=f"default ndcg_loss2@5; one of {', '.join(LOSSES)}")
        parser.add_argument(
            "--loss-options", type=json_object, help='arguments of the loss as JSON: {"sigma": 2}'
        )
    parser.add_argument(
        "--model", help=f"default feedforward; one of {', '.join((*MODELS, *TREES))}"
    )
    parser.add_argument(
        "--model-options",
        type=json_object,
        help="arguments of the network, or parameters of the trees, as JSON, such as "
        '\'{"hidden": [64, 32], "dropout": 0.1}\' or \'{"num_leaves": 15}\'',
    )
    parser.add_argument("--metrics", type=names, help="default ndcg@1,ndcg@5,ndcg@10")
    parser.add_argument("--monitor", help="metric that decides; default the last of --metrics")
    parser.add_argument("--epochs", type=int, help="most epochs; default 50, of trees 500 rounds")
    parser.add_argument(
        "--patience", type=int, help="epochs without a better value; default 5, of trees 50 rounds"
    )
    parser.add_argument("--optimizer", help=f"default adam; one of {', '.join(OPTIMIZERS)}")
    parser.add_argument(
        "--learning-rate",
        type=rates,
        help="default 0.001, of trees 0.1; of several, such as 0.01,0.001, validation data choose",
    )
    parser.add_argument("--batch-size", type=int, help="lists per batch; default 128")
    parser.add_argument("--max-documents", type=int, help="documents per batch instead")
    parser.add_argument("--list-size", type=int, help="cut or pad all lists to this size")
    parser.add_argument(
        "--keep-without-relevant",
        dest="discard_without_relevant",
        action="store_false",
        default=None,
        help="train also on queries without a relevant document",
    )
    parser.add_argument("--seed", type=int, help="default 0")
    parser.add_argument("--jit", action="store_true", default=None, help="XLA for the whole step")
    parser.add_argument("--mixed-precision", help="mixed_float16 or mixed_bfloat16")
    parser.add_argument(
        "--tensorboard", action="store_true", default=None, help="write logs for TensorBoard"
    )


def names(text: str) -> list[str]:
    """Names that are separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def rates(text: str) -> float | list[float]:
    """A number, or several that are separated by commas."""
    try:
        numbers = [float(number) for number in names(text)]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a number, or several with commas. Received: {text!r}"
        ) from None
    return numbers[0] if len(numbers) == 1 else numbers


def json_object(text: str) -> dict[str, Any]:
    """Options as JSON."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(
            f"must be JSON, such as '{{\"num_leaves\": 15}}' ({error}). Received: {text!r}"
        ) from None
    if not isinstance(content, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object. Received: {text!r}")
    return content


def training_options(options: argparse.Namespace) -> dict[str, Any]:
    """What the file and the command line say, by field of `TrainingOptions`."""
    known = set(TrainingOptions.__dataclass_fields__)
    chosen: dict[str, Any] = {}
    begun = options.out / "config.json"
    if options.config is not None:
        chosen = read_config(options.config)
        for name in set(chosen) - known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ValueError(
                f"{options.config} has an unknown option {name!r}.{hint} Known are: "
                f"{', '.join(sorted(known))}"
            )
    elif options.resume and begun.is_file():
        chosen = read_config(begun)  # a run goes on with its own options
    given = {name: value for name, value in vars(options).items() if value is not None}
    return chosen | {name: value for name, value in given.items() if name in known}


def read_config(path: Path) -> dict[str, Any]:
    """A table of options."""
    if path.suffix == ".json":
        try:
            content = json.loads(path.read_text())
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}: {error}") from None
        if not isinstance(content, dict):
            raise ValueError(f"{path} must hold an object with options. Received: {content!r}")
        return content.get("options", content)  # the config.json of a run will do
    if sys.version_info < (3, 11):
        raise ValueError(f"TOML files need Python 3.11: write JSON. Received: {path}")
    toml = importlib.import_module("tomllib")
    try:
        return toml.loads(path.read_text())
    except toml.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from None


def read_data(name: str, num_features: int | None = None) -> Any:
    """The data behind an argument, by split where there are several, in memory or as records.

    A file that lacks the last features may have `num_features` of them.
    """
    if name == "synthetic":
        return {
            split: synthetic(queries, seed=seed)
            for seed, (split, queries) in enumerate(
                {"train": 800, "vali": 200, "test": 200}.items()
            )
        }
    if name.split("/")[0] in TFDS and not Path(name).exists():
        return {split: RankingData.from_tfds(name, split) for split in ("train", "vali", "test")}
    if is_records(name):
        return open_records(name)
    data = load_letor(name)
    if isinstance(data, RankingData) and data.num_features < (num_features or 0):
        return load_letor(name, num_features=num_features)
    return data


def in_memory(data: RankingData | Records) -> RankingData:
    """The data, loaded where they are records."""
    return data.to_ranking_data() if isinstance(data, Records) else data


def one_split(name: str, split: str | None, model: Any) -> RankingData:
    """A single file, or one split of several, with the features that a model takes."""
    width = num_features(model)
    data = read_data(name, num_features=width)
    if not isinstance(data, dict):
        if split is not None:
            raise ValueError(f"{name} is a single file. Received: --split {split}")
        found = data
    elif (split or "test") not in data:
        raise ValueError(
            f"{name} has the splits {', '.join(data)}. Received: --split {split or 'test'}"
        )
    else:
        found = data[split or "test"]
    found = in_memory(found)
    if width != found.num_features:
        raise ValueError(
            f"The model takes {width} features. Received: data with {found.num_features}"
        )
    return found


def run_train(options: argparse.Namespace) -> None:
    """`tfrankloss train`."""
    cluster = joined(options.distribute)  # before anything is computed
    # Paths may differ from host to host.
    own = ("data", "validation", "out", "config", "run_command", "parser")
    for name, value in vars(options).items():
        if name not in own:
            cluster.check_same(f"--{name.replace('_', '-')}", repr(value))
    chosen, options.validation, options.validation_fraction = cluster.agree(
        lambda: asked_for(options)
    )
    TrainingOptions(**chosen)  # before a long reading of data
    data = with_validation(
        read_data(options.data), options, chosen.get("seed", TrainingOptions.seed)
    )
    if cluster.chief:
        for name, split in data.items():
            print(f"{name}: {split}")
    sources = {name: getattr(options, name) for name in ("data", "validation")}
    try:
        trained = train(
            data,
            out=options.out,
            resume=options.resume,
            notes={**sources, "validation_fraction": options.validation_fraction},
            distribute=options.distribute,
            **chosen,
        )
    except engine_errors() as error:
        if cluster.workers == 1:
            raise
        sys.exit(
            f"tfrankloss train: a worker of the cluster does not answer: end all of them, and give "
            f"each its command again with --resume; finished epochs are kept. Received: {error}"
        )
    if cluster.chief:
        print_results(trained)
        print(f"The model and all about the run: {options.out}")


def joined(engine: str | None) -> Any:
    """The cluster, which may take long to come together."""
    if engine is None:
        return join_cluster(None)
    print(f"Waiting for all workers of the cluster of {engine}.", flush=True)
    # The engine waits outside of Python, where an interrupt would not be noticed.
    noticed = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        cluster = join_cluster(engine)
    finally:
        signal.signal(signal.SIGINT, noticed)
    if not cluster.chief:
        print(f"This is worker {cluster.worker}; worker 0 says how it goes.", flush=True)
    return cluster


def asked_for(options: argparse.Namespace) -> tuple[dict[str, Any], str | None, float | None]:
    """The options of `train`, and what is held back, of this command or of the run to resume."""
    if options.out.exists() and not options.out.is_dir():
        raise ValueError(f"--out must be a folder. Received: {options.out}")
    validation, fraction = options.validation, options.validation_fraction
    begun = options.out / "config.json"
    if options.resume and begun.is_file() and not validation:
        notes = json.loads(begun.read_text()).get("notes", {})
        validation = notes.get("validation")
        fraction = notes.get("validation_fraction") if fraction is None else fraction
    return training_options(options), validation, fraction


def with_validation(data: Any, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """The splits of the data, with validation data of another file or of the training data."""
    others: dict[str, Any] = {}
    if isinstance(data, dict):
        if "train" not in data:
            return data  # the training says so
        if "vali" in data:
            if options.validation or options.validation_fraction:
                raise ValueError(f"{options.data} has its own splits: {', '.join(data)}")
            return data
        others = {name: split for name, split in data.items() if name != "train"}
        data = data["train"]
    if options.validation and options.validation_fraction:
        raise ValueError("Give either --validation or --validation-fraction. Received: both")
    if options.validation:
        validation = read_data(options.validation)
        if isinstance(validation, dict):
            validation = validation["vali"]
        splits = {"train": data, "vali": validation, **others}
        if any(isinstance(split, Records) for split in splits.values()):
            return splits  # with as many features, or the training says so
        width = max(split.num_features for split in splits.values())
        return {name: widened(split, width) for name, split in splits.items()}
    share = options.validation_fraction
    if share is None:
        fraction = "" if isinstance(data, Records) else " or --validation-fraction 0.2"
        raise ValueError(
            f"{options.data} has no validation data, by which the best epoch is chosen: "
            f"give --validation FILE{fraction}"
        )
    if not 0 < share < 1:
        raise ValueError(f"--validation-fraction must be between 0 and 1. Received: {share}")
    if isinstance(data, Records):
        raise ValueError(
            f"{options.data} holds records, of which no part is held back: give --validation. "
            f"Received: --validation-fraction {share}"
        )
    kept, held = data.split([1 - share, share], seed=seed)
    return {"train": kept, "vali": held, **others}


def widened(data: RankingData, width: int) -> RankingData:
    """Data with columns of 0 for features that only the other file has."""
    extra = width - data.num_features
    return data.map_features(lambda x: np.pad(x, ((0, 0), (0, extra)))) if extra else data


def print_results(trained: Trained) -> None:
    """The metrics by split as a table."""
    print(
        f"learning rate: {trained.options.learning_rate:g}, best epoch by "
        f"{trained.options.watched}: {trained.best_epoch} of {len(trained.history)}"
    )
    for name, evaluation in trained.evaluations.items():
        intervals = evaluation.confidence_intervals()
        for metric, mean in evaluation.means.items():
            low, high = intervals[metric]
            print(f"{name:<5} {metric:<10} {mean:.4f}  95 %: [{low:.4f}, {high:.4f}]")


def run_evaluate(options: argparse.Namespace) -> None:
    """`tfrankloss evaluate`."""
    model = load_model(options.model)
    data = one_split(options.data, options.split, model)
    print(evaluate_scores(predict_scores(model, data), data, options.metrics))


def run_rank(options: argparse.Namespace) -> None:
    """`tfrankloss rank`."""
    model = load_model(options.model)
    data = one_split(options.data, options.split, model)
    scores = predict_scores(model, data)
    queries = data.query_of_documents
    documents = data.document_ids
    if options.trec:
        to_trec_run(options.out, scores, queries, documents)
    else:
        numbers = np.concatenate([np.arange(length) for length in data.lengths])
        shown = numbers if documents is None else documents
        with writing(options.out) as partial, open(partial, "w", encoding="utf-8") as file:
            file.write("query\tdocument\tscore\n")
            for query, document, score in zip(queries, shown, scores.tolist(), strict=True):
                file.write(f"{query}\t{document}\t{score:.9g}\n")
    print(f"{len(scores)} documents of {len(data)} queries: {options.out}")


def run_compare(options: argparse.Namespace) -> None:
    """`tfrankloss compare`."""
    chosen = training_options(options)
    compared = compare(
        read_folds(options.data),
        options.losses,
        baseline=options.baseline,
        folds=options.folds,
        seeds=options.seeds,
        out=options.out,
        resume=options.resume,
        **chosen,
    )
    print(f"\n{compared}")
    print(f"The page: {options.out / 'comparison.html'}")


def read_folds(name: str) -> Any:
    """The folds of a folder that has them, or the data."""
    folders = sorted(Path(name).glob("[Ff]old*")) if Path(name).is_dir() else []
    if not folders:
        data = read_data(name)
        if isinstance(data, dict):
            return {split: in_memory(part) for split, part in data.items()}
        return in_memory(data)
    return [load_letor(folder) for folder in folders]


def run_convert(options: argparse.Namespace) -> None:
    """`tfrankloss convert`."""
    start = time.perf_counter()
    names = ["shards", "on_error", "num_features", "missing_value", "allow_nonfinite"]
    names += ["first_index", "runner", "runner_options"]
    write_records(
        options.inputs[0] if len(options.inputs) == 1 else options.inputs,
        options.out,
        **{name: getattr(options, name) for name in names},
    )
    written = open_records(options.out)
    splits = {"": written} if isinstance(written, Records) else written
    for name, records in splits.items():
        lines = records.schema["lines"]
        counts = ", ".join(f"{lines[kind]} {kind}" for kind in ("documents", "rejected", "blank"))
        print(f"{name + ': ' if name else ''}{records}; {lines['read']} lines: {counts}")
    print(f"{time.perf_counter() - start:.0f} seconds: {options.out}")


def run_export(options: argparse.Namespace) -> None:
    """`tfrankloss export`."""
    folder = export_run(
        options.run,
        options.path,
        version=options.version,
        top_k=options.top_k,
        feature_names=options.feature_names,
        warmup=not options.no_warmup,
    )
    print(f"Exported: {folder}")
    print("Serve it, and ask for the order of two documents:")
    volume = shlex.quote(f"{folder.parent}:/models/ranker")
    print(f"  docker run -p 8501:8501 -v {volume} \\")
    print("    -e MODEL_NAME=ranker tensorflow/serving")
    request = folder / "request.json"
    with writing(request) as partial:
        partial.write_text(example_request(folder, "rank").rest + "\n")
    print(f"  curl localhost:8501/v1/models/ranker:predict -d @{shlex.quote(str(request))}")


def run_demo(options: argparse.Namespace) -> None:
    """`tfrankloss demo`."""
    start = time.perf_counter()
    queries, epochs = (200, 6) if options.fast else (800, 15)
    print("Synthetic data: made up to look like those of a web search engine.")
    data = {
        split: synthetic(count, num_features=20, mean_documents=40, seed=seed)
        for seed, (split, count) in enumerate(
            {"train": queries, "vali": queries // 4, "test": queries // 2}.items()
        )
    }
    for name, split in data.items():
        print(f"  {name}: {split}")
    shared: dict[str, Any] = {
        "model_options": {"hidden": (64, 32), "dropout": 0.1, "batch_norm_momentum": 0.9},
        "batch_size": 32,
        "list_size": 64,  # one shape, one program to compile
        "epochs": epochs,
        "learning_rate": 3e-3,
    }
    test = data["test"]
    random = np.random.default_rng(0).random(test.num_documents)
    metrics = list(TrainingOptions.metrics)
    results = {"random order": evaluate(test.labels, random, test.query_of_documents, metrics)}
    runs = {"pointwise squared": "pointwise_squared", "NDCG-Loss2@5": "ndcg_loss2@5"}
    curves = {}
    for title, loss in runs.items():
        print(f"\n{title}:")
        out = options.out / loss.replace("@", "_at_")
        trained = train(data, out=out, resume=True, loss=loss, **shared)
        results[title] = trained.evaluations["test"]
        curves[title] = [entry["ndcg@5"] for entry in trained.history]
    print("\nOn test data:")
    print(" " * 20 + "".join(f"{name:>10}" for name in metrics))
    for title, evaluation in results.items():
        print(f"{title:<20}" + "".join(f"{evaluation.means[name]:10.4f}" for name in metrics))
    run = options.out / "ndcg_loss2_at_5"
    picture = options.out / "learning-curves.svg"
    with writing(picture) as partial:
        partial.write_text(line_chart("ndcg@5 on validation data", curves))
    print(f"\n{time.perf_counter() - start:.0f} seconds. The model: {run / 'model.keras'}")
    print(f"Learning curves: {picture}")
    print("Next, your own LETOR file:")
    print("  tfrankloss train FILE --validation-fraction 0.2 --out RUN")
    print("  tfrankloss evaluate RUN TEST_FILE")
    print("  tfrankloss rank RUN TEST_FILE --out scores.tsv")
    print("  tfrankloss compare FILE --losses softmax,lambdarank,ndcg_loss2@5 --out COMPARISON")
