"""How well every loss ranks: on LETOR data beside boosted trees, and on synthetic data.

    python -m benchmarks.quality FOLDER
    python -m benchmarks.quality synthetic

FOLDER holds the parts S1.txt to S5.txt of a LETOR data set such as MQ2008. Fold i trains on the
parts i, i + 1 and i + 2, validates on i + 3 and tests on i + 4, counted cyclically. Queries without
a relevant document are discarded. Network and learning rate are chosen by the validation data, with
the softmax loss, and are then those of all losses; test data are looked at once.

On synthetic data the options are the defaults of `tfrankloss.train`, and the seed changes the
network and the data.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.client import Worker
from benchmarks.metrics import start, stop

METRICS = ["ndcg@1", "ndcg@5", "ndcg@10"]
NETWORKS: dict[str, dict[str, Any]] = {
    "linear": {"model": "linear"},
    "32": {"hidden": [32], "dropout": 0.2},
    "64-32": {"hidden": [64, 32], "dropout": 0.3},
}
LEARNING_RATES = (1e-3, 1e-2)
CHOOSING_LOSS = "softmax"
OBJECTIVES = ("lambdarank", "rank_xendcg")
ORDER = ("pointwise_squared", "pairwise_logistic", "lambdarank", "ndcg_loss2@5", "softmax")


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(prog="benchmarks.quality", description=__doc__.splitlines()[0])
    parser.add_argument("data", help="a folder with S1.txt to S5.txt, or 'synthetic'")
    parser.add_argument("--losses", help="names separated by commas; default all")
    parser.add_argument("--seeds", type=int, default=5, help="of synthetic data")
    parser.add_argument("--queries", type=int, default=400, help="of synthetic data to learn from")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--update-readme", action="store_true", help="put the table there")
    options = parser.parse_args()
    if options.data == "synthetic":
        name, records, lines, versions = "synthetic", *measure_synthetic(options), {}
    else:
        name, records, lines, versions = "quality", *measure_folds(options)
    run = report.describe_run("benchmarks.quality", versions)
    text = "\n".join([*report.run_lines(run), "", *lines])
    report.write(options.output, name, run, [records], text)
    print("\n" + text)
    if options.update_readme:
        report.update_readme(name, text)


def measure_folds(
    options: argparse.Namespace,
) -> tuple[dict[str, Any], list[str], dict[str, dict[str, str]]]:
    """Every loss on the five folds, and LightGBM."""
    import tfrankloss
    from tfrankloss.losses import LOSSES

    folds = read_folds(Path(options.data))
    names = options.losses.split(",") if options.losses else all_losses(LOSSES)
    for name in names:
        tfrankloss.TrainingOptions(loss=name)  # a wrong name shows before hours of training
    network, rate, validated = choose(folds)
    print(f"Chosen: network {network}, learning rate {rate:g}", flush=True)
    compared = tfrankloss.compare(
        folds,
        names,
        out=options.output / "quality",
        resume=True,
        learning_rate=rate,
        **SHARED,
        **settings(network),
    )
    means = {name: evaluation.means for name, evaluation in compared.evaluations.items()}
    workers = start("boosting", ("lightgbm",))
    for worker in workers.values():
        for objective in OBJECTIVES:
            means[f"LightGBM {objective}"] = boosted(worker, folds, objective)
    stop(workers.values())
    records = {"network": network, "rate": rate, "validation": validated, "means": means}
    rows = [
        [name, *(f"{values[metric]:.4f}" for metric in METRICS)]
        for name, values in sorted(means.items(), key=lambda row: -row[1]["ndcg@10"])
    ]
    lines = [
        "Validation NDCG@10 by network and learning rate: "
        + "; ".join(f"{title} {value:.4f}" for title, value in validated.items())
        + f". Chosen: {network}, {rate:g}.",
        "",
        *report.markdown_table(["test, mean of all queries", *METRICS], rows),
    ]
    return records, lines, {name: worker.versions for name, worker in workers.items()}


SHARED: dict[str, Any] = {
    "metrics": METRICS,
    "epochs": 40,
    "patience": 6,
    "batch_size": 16,
    "list_size": 128,  # the longest list, and one program to compile
}


def all_losses(known: Mapping[str, Any]) -> list[str]:
    """All losses but those that are made of a function or of another loss; some also cut at 10."""
    names = [name for name in known if name not in ("lambda_loss", "gumbel")]
    return [*names, *(f"{name}@10" for name in ("lambdarank", "ndcg_loss1", "ndcg_loss2"))]


def settings(network: str) -> dict[str, Any]:
    """The options of `train` for a network."""
    chosen = NETWORKS[network]
    if "model" in chosen:
        return dict(chosen)
    # The features are scaled to [0, 1] in each query already.
    return {"model_options": {**chosen, "batch_norm_momentum": 0.9, "transform": None}}


def read_folds(folder: Path) -> list[dict[str, Any]]:
    """The five folds, without queries that have no relevant document."""
    from tfrankloss.data import RankingData, load_letor

    parts = [
        load_letor(folder / f"S{number}.txt", cache=False).discard_without_relevant()
        for number in range(1, 6)
    ]
    return [
        {
            "train": RankingData.concat([parts[(fold + i) % 5] for i in range(3)]),
            "vali": parts[(fold + 3) % 5],
            "test": parts[(fold + 4) % 5],
        }
        for fold in range(5)
    ]


def choose(folds: Sequence[Mapping[str, Any]]) -> tuple[str, float, dict[str, float]]:
    """The network and the learning rate of the best mean validation NDCG@10."""
    import tfrankloss

    validated: dict[tuple[str, float], float] = {}
    for network in NETWORKS:
        for rate in LEARNING_RATES:
            values = [
                tfrankloss.train(
                    fold["train"],
                    fold["vali"],
                    loss=CHOOSING_LOSS,
                    learning_rate=rate,
                    progress=False,
                    **SHARED,
                    **settings(network),
                )
                .evaluations["vali"]
                .means["ndcg@10"]
                for fold in folds
            ]
            validated[network, rate] = float(np.mean(values))
            print(f"{network}, {rate:g}: validation {validated[network, rate]:.4f}", flush=True)
    network, rate = max(validated, key=validated.__getitem__)
    titles = {f"{name}, {given:g}": value for (name, given), value in validated.items()}
    return network, rate, titles


def boosted(worker: Worker, folds: Sequence[Mapping[str, Any]], objective: str) -> dict[str, float]:
    """Mean test metrics of boosted trees over all queries."""
    import tfrankloss

    values: dict[str, list[np.ndarray]] = {metric: [] for metric in METRICS}
    with tempfile.TemporaryDirectory() as folder:
        for fold in folds:
            path = Path(folder, "fold.npz")
            arrays = {}
            for name, split in fold.items():
                arrays |= {
                    f"{name}_features": split.features,
                    f"{name}_labels": split.labels,
                    f"{name}_sizes": split.lengths,
                }
            np.savez(path, **arrays)
            reply = worker.ask({"path": str(path), "objective": objective})
            test = fold["test"]
            found = tfrankloss.evaluate(
                test.labels, reply["scores"], test.query_of_documents, metrics=METRICS
            )
            for metric in METRICS:
                values[metric].append(found.per_query[metric])
    return {metric: float(np.concatenate(parts).mean()) for metric, parts in values.items()}


def measure_synthetic(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Test NDCG@5 of a few losses at default options over several seeds."""
    from scipy import stats

    import tfrankloss
    from tfrankloss.data import synthetic

    names = options.losses.split(",") if options.losses else list(ORDER)
    path = options.output / "synthetic-runs.json"
    found: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
    options.output.mkdir(parents=True, exist_ok=True)
    for seed in range(options.seeds):
        counts = {"train": options.queries, "vali": 200, "test": 200}
        data = {
            split: synthetic(count, seed=10 * seed + number)
            for number, (split, count) in enumerate(counts.items())
        }
        test = data["test"]
        random = np.random.default_rng(seed).random(test.num_documents)
        order = tfrankloss.evaluate(test.labels, random, test.query_of_documents, ["ndcg@5"])
        found[f"random order/{options.queries}/{seed}"] = order.means["ndcg@5"]
        for name in names:
            key = f"{name}/{options.queries}/{seed}"
            if key not in found:
                run = tfrankloss.train(data, loss=name, seed=seed, progress=False)
                found[key] = run.evaluations["test"].means["ndcg@5"]
                path.write_text(json.dumps(found))
            print(f"{key}: {found[key]:.4f}", flush=True)
    rows, records = [], {}
    for name in ("random order", *names):
        values = np.array(
            [found[f"{name}/{options.queries}/{seed}"] for seed in range(options.seeds)]
        )
        half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
        records[name] = {"mean": values.mean(), "half_interval": half, "values": values.tolist()}
        rows.append([name, f"{values.mean():.4f}", f"± {half:.4f}"])
    head = [f"{options.seeds} seeds", "test NDCG@5", "95 % interval"]
    return records, report.markdown_table(head, rows)


if __name__ == "__main__":
    main()
