"""Boosted trees with the losses of this library, beside the objectives that they have of their own.

    python -m benchmarks.boosting           # time per round
    python -m benchmarks.boosting FOLDER    # how well they rank

Time: 200,000 documents in lists of very different lengths, 136 features, 31 leaves; one booster for
each objective, a round of each in turn, after a first one that is not timed. "In the objective" is
the share of a round that gradient and curvature take.

FOLDER holds the parts S1.txt to S5.txt of a LETOR data set such as MQ2008, folds as in
`benchmarks.quality`, or rank.train and rank.test. All objectives get the same trees (15 leaves,
learning rate 0.05, the same seed), and stop by NDCG@10 on validation data, or after 100 rounds
where there are none. XE-NDCG draws at random: beside LightGBM's own, figures are the mean of three
seeds on folds, of 25 on one test file. Both LightGBM and XGBoost must be installed:
`pip install ".[boosting]"`.
"""

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.quality import read_folds

ROUNDS, PATIENCE = 500, 50
# Objectives of LightGBM, and ours for the same formula.
SAME: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "LambdaRank": ({"objective": "lambdarank", "lambdarank_norm": False}, "lambdarank", {}),
    "LambdaRank, normalised": ({"objective": "lambdarank"}, "lambdarank", {"normalize": True}),
    "XE-NDCG": ({"objective": "rank_xendcg"}, "xendcg", {"newton": True}),
}
PAPERS: dict[str, tuple[str, dict[str, Any]]] = {
    "LambdaMART": ("lambdarank", {}),
    "ListNet": ("listnet", {"label_distribution": "normalized"}),
    "XE-NDCG-MART": ("xendcg", {}),
    "XE-NDCG-MART, Newton": ("xendcg", {}),
    "NDCG-Loss2": ("ndcg_loss2", {}),
    "NDCG-Loss2++, mu = 5": ("ndcg_loss2_plus_plus", {"mu": 5.0}),
    "ARP-Loss1": ("arp_loss1", {}),
    "ARP-Loss2": ("arp_loss2", {}),
}
METRICS = ["ndcg@1", "ndcg@5", "ndcg@10"]


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.boosting", description=__doc__.splitlines()[0]
    )
    parser.add_argument("data", nargs="?", help="a folder of LETOR files; none to measure time")
    parser.add_argument("--documents", type=int, default=200_000, help="to measure time with")
    parser.add_argument("--rounds", type=int, default=15, help="to measure time with")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--update-readme", action="store_true", help="put the tables there")
    options = parser.parse_args()
    import lightgbm
    import xgboost

    if options.data is None:
        name, (records, lines) = "boosting", measure_time(options.documents, options.rounds)
    elif Path(options.data, "rank.train").exists():
        name, (records, lines) = "boosting-rank", measure_pair(Path(options.data))
    else:
        name, (records, lines) = "boosting-quality", measure_folds(Path(options.data))
    versions = {"lightgbm": {"lightgbm": lightgbm.__version__}}
    versions["xgboost"] = {"xgboost": xgboost.__version__}
    run = report.describe_run("benchmarks.boosting", versions)
    if options.data is not None:
        run["command"] = "python -m benchmarks.boosting FOLDER"
    text = "\n".join([*report.run_lines(run), *lines])
    report.write(options.output, name, run, [records], text)
    print("\n" + text)
    if options.update_readme:
        report.update_readme(name, text)


# --- time


def measure_time(documents: int, rounds: int) -> tuple[dict[str, Any], list[str]]:
    """Seconds of a round by objective."""
    import lightgbm

    from tfrankloss.data import RankingData, synthetic

    parts, seed = [synthetic(max(10, documents // 120), seed=0)], 0
    while sum(part.num_documents for part in parts) < documents:
        seed += 1
        parts.append(synthetic(max(10, documents // 1200), seed=seed))
    data = RankingData.concat(parts)
    print(data, flush=True)
    runs = {}
    for title, (built_in, loss, arguments) in {**SAME, **TRUNCATED}.items():
        runs[f"{title}, LightGBM's own"] = (built_in, None)
        runs[f"{title}, tfrankloss"] = ({}, Timed(objective(loss, {}, arguments)))
    for title in ("NDCG-Loss2@5", "softmax"):
        loss = title.lower().replace("-", "_")
        runs[f"{title}, tfrankloss"] = ({}, Timed(objective(loss, {}, {})))
    boosters = {}
    for name, (parameters, _) in runs.items():
        train = lightgbm.Dataset(data.features, data.labels, group=data.lengths)
        parameters = {"objective": "none", **parameters, "num_leaves": 31, "verbose": -1}
        parameters["lambdarank_truncation_level"] = parameters.get(
            "lambdarank_truncation_level", int(data.lengths.max())
        )
        boosters[name] = lightgbm.Booster(parameters, train)
    records: dict[str, Any] = {name: {"seconds": [], "objective": []} for name in runs}
    for number in range(rounds + 1):
        for name, booster in boosters.items():
            function = runs[name][1]
            start = time.perf_counter()
            booster.update(fobj=function)
            seconds = time.perf_counter() - start
            if number:
                records[name]["seconds"].append(seconds)
                records[name]["objective"].append(0.0 if function is None else function.seconds)
            else:
                records[name]["first"] = seconds
        print(f"round {number} of {rounds}", flush=True)
    return records, time_table(records)


class Timed:
    """An objective that keeps how long its last call took."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function, self.seconds = function, 0.0

    def __call__(self, scores: np.ndarray, dataset: Any) -> Any:
        """Gradient and curvature."""
        start = time.perf_counter()
        result = self._function(scores, dataset)
        self.seconds = time.perf_counter() - start
        return result


# With LightGBM's default, which leaves out the pairs that are wholly below rank 30.
TRUNCATED: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "LambdaRank, truncated at 30": (
        {"objective": "lambdarank", "lambdarank_norm": False, "lambdarank_truncation_level": 30},
        "lambdarank@30",
        {},
    ),
}


def time_table(records: Mapping[str, Any]) -> list[str]:
    """Milliseconds of a round, beside the objective of LightGBM where it has one."""
    rows = []
    for name, record in records.items():
        own = records.get(f"{name.rpartition(', ')[0]}, LightGBM's own")
        ratios = None if own is None else np.divide(record["seconds"], own["seconds"])
        share = median(np.divide(record["objective"], record["seconds"]).tolist())
        rows.append(
            [
                name,
                f"{1e3 * median(record['seconds']):.0f}",
                "–" if ratios is None else f"{np.median(ratios):.2f}",
                f"{share:.0%}" if any(record["objective"]) else "–",
                f"{record['first']:.1f}",
            ]
        )
    header = ["objective", "ms per round", "÷ LightGBM's own", "in the objective"]
    return report.markdown_table([*header, "first round, s"], rows)


# --- quality


def objective(
    loss: str, loss_options: Mapping[str, Any], arguments: Mapping[str, Any], seed: int = 0
) -> Any:
    """An objective of LightGBM; what a loss draws at random is the same in every run."""
    from tfrankloss import boosting, losses

    seeded = {"seed": seed} if loss == "xendcg" else {}
    return boosting.lightgbm_objective(losses.get(loss, **seeded, **loss_options), **arguments)


def measure_folds(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Our objectives beside those of LightGBM, and the comparison of the papers."""
    folds = read_folds(folder)
    found = measure_same(folds)
    papers: dict[str, dict[str, Any]] = {}
    for library, scores in (("LightGBM", lightgbm_scores), ("XGBoost", xgboost_scores)):
        papers[library] = {}
        for title, (loss, loss_options) in PAPERS.items():
            made = objective(loss, loss_options, {"newton": True} if "Newton" in title else {})
            papers[library][title] = _over_folds(folds, scores, {"objective": made})
            print(library, title, papers[library][title].means, flush=True)
    lines = [*same_table(found), ""]
    for library, evaluations in papers.items():
        lines += [f"With {library}; p-values of paired t-tests against LambdaMART:", ""]
        lines += [*papers_table(evaluations), ""]
    records = {
        "same": {name: x.means for name, x in found.items()},
        "papers": {
            library: {title: x.means for title, x in evaluations.items()}
            for library, evaluations in papers.items()
        },
    }
    return records, lines


def measure_pair(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Our objectives beside those of LightGBM on a training and a test file, 100 rounds."""
    from tfrankloss.data import load_letor

    splits = {
        name: load_letor(folder / f"rank.{name}", cache=False).discard_without_relevant()
        for name in ("train", "test")
    }
    width = max(split.num_features for split in splits.values())
    splits = {
        name: split.map_features(
            lambda x, missing=width - split.num_features: np.pad(x, ((0, 0), (0, missing)))
        )
        for name, split in splits.items()
    }
    found = measure_same([splits])
    return {name: x.means for name, x in found.items()}, same_table(found)


def measure_same(folds: Any) -> dict[str, Any]:
    """Our objectives beside those of LightGBM."""
    found = {}
    for title, (built_in, loss, arguments) in SAME.items():
        own, ours = [], []
        seeds = 1 if loss != "xendcg" else 3 if len(folds) > 1 else 25
        for seed in range(seeds):
            parameters = {**built_in, "objective_seed": seed}
            own.append(_over_folds(folds, lightgbm_scores, parameters))
            parameters = {"objective": objective(loss, {}, arguments, seed)}
            ours.append(_over_folds(folds, lightgbm_scores, parameters))
        found[f"{title}, LightGBM's own"] = _mean(own)
        found[f"{title}, tfrankloss"] = _mean(ours)
        print({name: x.means["ndcg@10"] for name, x in found.items()}, flush=True)
    return found


def _mean(evaluations: list[Any]) -> Any:
    """The mean of several runs on the same queries."""
    per_query = {
        metric: np.mean([x.per_query[metric] for x in evaluations], axis=0) for metric in METRICS
    }
    means = {metric: float(np.nanmean(values)) for metric, values in per_query.items()}
    return replace(evaluations[0], means=means, per_query=per_query)


def _over_folds(folds: Any, scores: Callable[..., np.ndarray], parameters: Any) -> Any:
    """The test queries of all folds."""
    import tfrankloss

    labels, predicted, queries = [], [], []
    for number, fold in enumerate(folds):
        test = fold["test"]
        labels.append(test.labels)
        predicted.append(scores(fold, parameters))
        queries += [f"{number} {query}" for query in np.repeat(np.arange(len(test)), test.lengths)]
    return tfrankloss.evaluate(
        np.concatenate(labels), np.concatenate(predicted), np.array(queries), METRICS
    )


def lightgbm_scores(fold: Mapping[str, Any], parameters: Mapping[str, Any]) -> np.ndarray:
    """The scores of the test documents."""
    import lightgbm

    from tfrankloss.boosting import lightgbm_metric

    def dataset(split: str, reference: Any = None) -> Any:
        data = fold[split]
        return lightgbm.Dataset(data.features, data.labels, group=data.lengths, reference=reference)

    train = dataset("train")
    shared = {"learning_rate": 0.05, "num_leaves": 15, "verbose": -1, "seed": 0, "metric": "None"}
    # Little data: threads would wait for each other.
    shared |= {"lambdarank_truncation_level": 10_000, "deterministic": True, "num_threads": 1}
    stopped = "vali" in fold
    booster = lightgbm.train(
        {**shared, **parameters},
        train,
        ROUNDS if stopped else 100,
        valid_sets=[dataset("vali", train)] if stopped else None,
        feval=lightgbm_metric("ndcg@10") if stopped else None,
        callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)] if stopped else None,
    )
    return booster.predict(fold["test"].features)


def xgboost_scores(fold: Mapping[str, Any], parameters: Mapping[str, Any]) -> np.ndarray:
    """The scores of the test documents."""
    import xgboost

    from tfrankloss.boosting import xgboost_metric

    def matrix(split: str) -> Any:
        return xgboost.DMatrix(fold[split].features, fold[split].labels, group=fold[split].lengths)

    train = matrix("train")
    function = parameters["objective"]
    shared = {"learning_rate": 0.05, "max_leaves": 15, "grow_policy": "lossguide", "seed": 0}
    shared |= {"max_depth": 0, "disable_default_eval_metric": True, "base_score": 0.0}
    # As small as LightGBM's: the derivatives of a list are far below 1.
    shared |= {"min_child_weight": 1e-3, "lambda": 0.0, "nthread": 1}
    lengths = fold["train"].lengths
    booster = xgboost.train(
        shared,
        train,
        ROUNDS,
        evals=[(matrix("vali"), "vali")],
        obj=lambda scores, _: function(fold["train"].labels, scores, None, lengths),
        custom_metric=xgboost_metric("ndcg@10"),
        maximize=True,
        early_stopping_rounds=PATIENCE,
        verbose_eval=False,
    )
    best = (0, booster.best_iteration + 1)
    return booster.predict(matrix("test"), iteration_range=best)


def same_table(found: Mapping[str, Any]) -> list[str]:
    """Each of our objectives below the one of LightGBM."""
    rows = []
    for name, evaluation in found.items():
        own = found[f"{name.rpartition(', ')[0]}, LightGBM's own"]
        points = 100 * (evaluation.means["ndcg@10"] - own.means["ndcg@10"])
        shown = [f"{evaluation.means[metric]:.4f}" for metric in METRICS]
        rows.append([name, *shown, "–" if evaluation is own else f"{points:+.2f}"])
    return report.markdown_table(["objective", *METRICS, "points of ndcg@10"], rows)


def papers_table(evaluations: Mapping[str, Any]) -> list[str]:
    """The losses of the papers."""
    baseline = next(iter(evaluations.values()))
    rows = []
    for title, evaluation in evaluations.items():
        cells = [title, *(f"{evaluation.means[metric]:.4f}" for metric in METRICS)]
        same = evaluation is baseline
        p_value = None if same else evaluation.compare(baseline)["ndcg@10"].p_value
        rows.append([*cells, "–" if p_value is None else f"{p_value:.3f}"])
    return report.markdown_table(["loss", *METRICS, "p of ndcg@10"], rows)


if __name__ == "__main__":
    main()
