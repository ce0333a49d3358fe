"""Several losses on the same data and network, as the papers compare them.

OUT/comparison.html  the table, with pictures
OUT/comparison.json  its numbers
OUT/runs/            every run as `train` leaves it
"""

import functools
import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from tfrankloss import charts
from tfrankloss.data.ranking_data import RankingData
from tfrankloss.evaluation import Comparison, Evaluation
from tfrankloss.files import writing
from tfrankloss.options import check_choice, check_integer, needs
from tfrankloss.progress import printer
from tfrankloss.training import Trained, TrainingOptions, train

Fold = Mapping[str, RankingData]

# A difference from the baseline is called significant below this probability of chance.
SIGNIFICANCE = 0.05
# Options that mean the same for every model.
OF_ALL_MODELS = ("metrics", "monitor", "discard_without_relevant", "seed", "tensorboard")


@dataclass(frozen=True)
class LossComparison:
    """What `compare` returns.

    Attributes:
        evaluations: the test queries of all folds by title; each value is the mean over the seeds.
        baseline: the title that the others are compared with.
        differences: by title (without the baseline) and metric, the paired comparison.
        failed: by title, why a loss is not in the table: it was not finite.
        curves: by title, the validation metric of each epoch of the first run.
        monitor: the name of that metric.
        settings: what was compared: the data, the number of seeds, the options of all runs.
        folder: where all of it is, or None.
    """

    evaluations: dict[str, Evaluation]
    baseline: str
    differences: dict[str, dict[str, Comparison]]
    failed: dict[str, str]
    curves: dict[str, list[float]]
    monitor: str
    settings: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics."""
        return list(self.evaluations[self.baseline].means)

    @property
    def adjusted(self) -> dict[str, dict[str, float]]:
        """By title and metric, p-values that allow for the number of comparisons (Holm, 1979)."""
        found = sorted(
            (comparison.p_value, title, metric)
            for title, metrics in self.differences.items()
            for metric, comparison in metrics.items()
            if comparison.p_value == comparison.p_value
        )
        adjusted: dict[str, dict[str, float]] = {title: {} for title in self.differences}
        highest = 0.0
        for number, (p_value, title, metric) in enumerate(found):
            highest = max(highest, min(1.0, p_value * (len(found) - number)))
            adjusted[title][metric] = highest
        return adjusted

    def mark(self, title: str, metric: str) -> str:
        """`+` for significantly better than the baseline, `-` for worse, or nothing."""
        if title == self.baseline:
            return ""
        found = self.differences[title][metric]
        if not found.p_value < SIGNIFICANCE:
            return ""
        down = self.evaluations[title].metrics[metric]._direction == "down"
        return "+" if (found.difference > 0) != down else "-"

    @property
    def queries(self) -> int:
        """The number of test queries that count: those with something to find."""
        values = self.evaluations[self.baseline].per_query.values()
        return int((~np.isnan(next(iter(values)))).sum())

    def best(self, metric: str) -> str:
        """The title with the best mean."""
        down = self.evaluations[self.baseline].metrics[metric]._direction == "down"
        sign = -1.0 if down else 1.0
        return max(self.evaluations, key=lambda title: sign * self.evaluations[title].means[metric])

    def __str__(self) -> str:
        width = max(len(title) for title in self.evaluations) + 1
        lines = [" " * width + "".join(f"{metric:>12}" for metric in self.metrics)]
        for title, evaluation in self.evaluations.items():
            cells = (
                f"{evaluation.means[metric]:11.4f}{self.mark(title, metric) or ' '}"
                for metric in self.metrics
            )
            lines.append(f"{title:<{width}}" + "".join(cells))
        queries = self.queries
        count = len(self.differences) * len(self.metrics)
        lines.append(
            f"{queries} test queries; + and - differ from {self.baseline} (paired t-test, "
            f"p < {SIGNIFICANCE}, each of {count} comparisons by itself)"
        )
        lines += [f"{title}: {reason}" for title, reason in self.failed.items()]
        return "\n".join(lines)

    def to_html(self) -> str:
        """A page with the table and pictures, which needs nothing else."""
        return _page(self)

    def to_json(self) -> dict[str, Any]:
        """The numbers of the table."""
        rows, adjusted = {}, self.adjusted
        for title, evaluation in self.evaluations.items():
            intervals = evaluation.confidence_intervals()
            rows[title] = {
                metric: {
                    "mean": evaluation.means[metric],
                    "interval": intervals[metric],
                    **(
                        {}
                        if title == self.baseline
                        else {
                            "difference": self.differences[title][metric].difference,
                            "p_value": self.differences[title][metric].p_value,
                            "adjusted_p_value": adjusted[title].get(metric),
                            "wins": self.differences[title][metric].wins,
                            "losses": self.differences[title][metric].losses,
                        }
                    ),
                }
                for metric in self.metrics
            }
        return {
            "baseline": self.baseline,
            "queries": self.queries,
            "settings": self.settings,
            "losses": rows,
            "failed": self.failed,
        }


def compare(
    data: RankingData | Fold | Sequence[Fold],
    losses: Sequence[str] | Mapping[str, Mapping[str, Any]],
    *,
    baseline: str | None = None,
    folds: int | None = None,
    seeds: int = 1,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool | Callable[[str], None] = True,
    **options: Any,
) -> LossComparison:
    """Trains the same network with each loss and compares what they reach on test data.

    The values of every test query are paired with those of the baseline for a t-test, as in Table 1
    of the LambdaLoss@K paper (SIGIR 2022). Needs SciPy.

    Args:
        data: queries, which are split into `folds`; or splits `"train"`, `"vali"` and `"test"`; or
            several folds of such splits, as the data sets of the papers have them.
        losses: names of losses, with a model before them for trees beside networks, such as
            `"lightgbm:lambdarank"`; or titles, each with the options of `train` that are its own,
            such as `{"wide": {"loss": "softmax", "model_options": {"hidden": [512]}}}`.
        baseline: the loss that the others are compared with; by default the first.
        folds: number of parts of cross validation (default 5): each is the test data once, and the
            next one the validation data.
        seeds: number of runs of each loss on each fold, with the seeds `seed`, `seed + 1`, ...
        out: folder for a page, the numbers and all runs.
        resume: whether to go on with the comparison in `out`.
        progress: whether to print a line per run, or a function that takes it.
        **options: of all runs, see `TrainingOptions`; a name with another model before it takes
            only those that are not about the model and how it is trained.

    >>> from tfrankloss import data
    >>> compared = compare(
    ...     data.synthetic(60, 5, 10),
    ...     ["softmax", "pointwise_squared"],
    ...     folds=3,
    ...     model="linear",
    ...     epochs=1,
    ...     list_size=16,
    ...     progress=False,
    ... )
    >>> compared.baseline, list(compared.differences)
    ('softmax', ['pointwise_squared'])
    """
    needs("scipy.stats", "evaluate")  # before hours of training
    runs = _runs(losses, options)
    baseline = next(iter(runs)) if baseline is None else baseline
    check_choice("baseline", baseline, tuple(runs))
    check_integer("seeds", seeds, minimum=1)
    parts = _folds(data, folds)
    folder = None if out is None else Path(out)
    if folder is not None and (folder / "runs").exists() and not resume:
        raise ValueError(
            f"The folder holds a comparison already: resume it, or name a new one. "
            f"Received: {folder}"
        )
    say = printer(progress)
    tests: dict[str, list[list[Evaluation]]] = {title: [] for title in runs}
    curves: dict[str, list[float]] = {}
    failed: dict[str, str] = {}
    folds_seen: list[dict[str, str]] = []
    left, seconds = len(runs) * len(parts) * seeds, []
    for number, make_fold in enumerate(parts, start=1):
        fold = make_fold()
        folds_seen.append({name: repr(split) for name, split in fold.items()})
        for title, chosen in runs.items():
            tests[title].append([])
            for seed in range(seeds):
                first = chosen.get("seed", TrainingOptions.seed)
                name = f"fold-{number}-seed-{first + seed}"
                place = None if folder is None else folder / "runs" / _file_name(title) / name
                known = place is not None and (place / "metrics.json").exists()
                start = time.monotonic()
                left -= 1
                if title in failed:
                    continue
                try:
                    result = train(
                        fold,
                        out=place,
                        resume=True,
                        progress=False,
                        **{**chosen, "seed": first + seed},
                    )
                except FloatingPointError as error:
                    failed[title] = str(error)
                    say(f"{title}, fold {number}: {error}")
                    continue
                if not known:
                    seconds.append(time.monotonic() - start)
                tests[title][-1].append(result.evaluations["test"])
                monitor = result.options.watched
                curves.setdefault(title, [entry[monitor] for entry in result.history])
                say(_progress_line(title, number, result, left, seconds))
    if baseline in failed:
        raise FloatingPointError(f"The baseline {baseline!r} failed: {failed[baseline]}")
    evaluations = {
        title: _joined(of_folds) for title, of_folds in tests.items() if title not in failed
    }
    compared = LossComparison(
        evaluations=evaluations,
        baseline=baseline,
        differences={
            title: evaluation.compare(evaluations[baseline])
            for title, evaluation in evaluations.items()
            if title != baseline
        },
        failed=failed,
        curves={title: curve for title, curve in curves.items() if title not in failed},
        monitor=monitor,
        settings={"folds": folds_seen, "seeds": seeds, "runs": runs},
        folder=folder,
    )
    if folder is not None:
        contents = {
            "comparison.json": json.dumps(compared.to_json(), indent=2, default=str),
            "comparison.html": compared.to_html(),
        }
        for name, content in contents.items():
            with writing(folder / name) as partial:
                partial.write_text(content, encoding="utf-8")
    return compared


def _runs(
    losses: Sequence[str] | Mapping[str, Mapping[str, Any]], options: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """The options of each run by title."""
    if isinstance(losses, str):
        raise ValueError(f"losses must be a list of names. Received: losses={losses!r}")
    named = not isinstance(losses, Mapping)
    own: Mapping[str, Mapping[str, Any]]
    own = {name: _named(name) for name in losses} if named else losses  # type: ignore[assignment]
    if len(own) < 2 or len(own) < len(losses):
        raise ValueError(
            f"To compare takes at least two different losses. Received: losses={list(losses)}"
        )
    if len({_file_name(title) for title in own}) < len(own):
        raise ValueError(f"Two titles would have the same folder. Received: {list(own)}")
    runs, default = {}, TrainingOptions.model
    for title, chosen in own.items():
        other = named and chosen.get("model") not in (None, options.get("model", default))
        shared = {x: y for x, y in options.items() if not other or x in OF_ALL_MODELS}
        runs[title] = {**shared, **chosen}
    for chosen in runs.values():
        TrainingOptions(**chosen)  # a mistake shows before the first run
    for name in ("metrics", "monitor"):
        if len({json.dumps(chosen.get(name)) for chosen in runs.values()}) > 1:
            raise ValueError(f"All runs must have the same {name}")
    return runs


def _named(name: str) -> dict[str, Any]:
    """The options that a name stands for."""
    model, colon, loss = name.rpartition(":")
    return {"loss": loss, **({"model": model} if colon else {})}


def _folds(
    data: RankingData | Fold | Sequence[Fold], folds: int | None
) -> list[Callable[[], Fold]]:
    """Functions that make the folds: one after the other is in memory."""
    if isinstance(data, RankingData):
        count = 5 if folds is None else folds
        check_integer("folds", count, minimum=3)
        if len(data) < count:
            raise ValueError(f"There are {len(data)} queries. Received: folds={count}")
        parts = data.split([1 / count] * count)
        return [functools.partial(_fold, parts, number) for number in range(count)]
    found = [data] if isinstance(data, Mapping) else list(data)
    if folds is not None and folds != len(found):
        raise ValueError(f"The data have {len(found)} folds of their own. Received: folds={folds}")
    for fold in found:
        if not {"train", "vali", "test"} <= set(fold):
            raise ValueError(
                "Losses are compared on data with the splits 'train', 'vali' and 'test'. "
                f"Received: {sorted(fold)}"
            )
    return [functools.partial(dict, fold) for fold in found]


def _fold(parts: Sequence[RankingData], number: int) -> Fold:
    """Part `number` for the test, the next one for validation, the others to learn from."""
    following = (number + 1) % len(parts)
    others = [part for i, part in enumerate(parts) if i not in (number, following)]
    return {
        "train": RankingData.concat(others),
        "vali": parts[following],
        "test": parts[number],
    }


def _joined(tests: Sequence[Sequence[Evaluation]]) -> Evaluation:
    """The test queries of all folds, with the mean over the seeds."""
    first = tests[0][0]
    ids = [
        f"{number}/{query}"
        for number, evaluations in enumerate(tests, start=1)
        for query in evaluations[0].query_ids
    ]
    per_query = {
        metric: np.concatenate(
            [np.mean([x.per_query[metric] for x in evaluations], axis=0) for evaluations in tests]
        )
        for metric in first.means
    }
    means = {metric: float(np.nanmean(values)) for metric, values in per_query.items()}
    return Evaluation(means, per_query, np.array(ids), first.metrics)


def _progress_line(
    title: str, fold: int, result: Trained, left: int, seconds: Sequence[float]
) -> str:
    metric = result.options.watched
    value = result.evaluations["test"].means[metric]
    remaining = left * float(np.mean(seconds)) if seconds else 0.0
    time_left = f"{remaining / 60:.0f} min" if remaining > 90 else f"{remaining:.0f} s"
    return (
        f"{title}, fold {fold}, seed {result.options.seed}: test {metric} {value:.4f} after "
        f"{len(result.history)} epochs"
        + (f"; {left} run{'s' if left > 1 else ''} left, {time_left}" if left else "")
    )


def _file_name(title: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", title.replace("@", "_at_"))


STYLE = """
body { font: 15px/1.5 sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0 }
th, td { padding: .3em .8em; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left }
.best { font-weight: bold } .better { color: #00694a } .worse { color: #a33a00 }
pre { overflow-x: auto; background: #f6f6f6; padding: 1em }
small { color: #666; display: block; font-weight: normal } svg { max-width: 100%; height: auto }
"""


def _page(compared: LossComparison) -> str:
    metrics = compared.metrics
    heads = "".join(f"<th>{escape(metric)}</th>" for metric in metrics)
    rows = [
        f"<tr><td>{escape(title)}</td>"
        + "".join(_cell(compared, title, metric) for metric in metrics)
        + "</tr>"
        for title in compared.evaluations
    ]
    pictures = []
    intervals = {
        title: evaluation.confidence_intervals()
        for title, evaluation in compared.evaluations.items()
    }
    for metric in metrics:
        pictures.append(
            charts.interval_chart(
                f"test {metric}, mean and 95 % interval",
                {
                    title: (evaluation.means[metric], *intervals[title][metric])
                    for title, evaluation in compared.evaluations.items()
                },
            )
        )
    pictures.append(charts.line_chart(f"validation {compared.monitor}, first run", compared.curves))
    queries = compared.queries
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Losses compared</title>
<style>{STYLE}</style></head><body>
<h1>Losses compared</h1>
<p>{queries} test queries. Below each mean: the difference from
<b>{escape(compared.baseline)}</b>, the p-value of a paired t-test, and for how many queries the
loss is better and worse.
<span class="better">&#9650;</span> and <span class="worse">&#9660;</span>: better and worse with
p &lt; {SIGNIFICANCE}, of {len(compared.differences) * len(metrics)} comparisons (comparison.json
has p-values that allow for that). One seed leaves out how much a loss varies between seeds.</p>
{"".join(f"<p>{escape(title)}: {escape(why)}</p>" for title, why in compared.failed.items())}
<table><thead><tr><th>loss</th>{heads}</tr></thead>
<tbody>{"".join(rows)}</tbody></table>
{"".join(f"<p>{picture}</p>" for picture in pictures)}
<h2>What was compared</h2>
<pre>{escape(json.dumps(compared.settings, indent=2, default=str))}</pre>
</body></html>
"""


def _cell(compared: LossComparison, title: str, metric: str) -> str:
    mean = compared.evaluations[title].means[metric]
    best = ' class="best"' if title == compared.best(metric) else ""
    if title == compared.baseline:
        return f"<td{best}>{mean:.4f}<small>baseline</small></td>"
    found = compared.differences[title][metric]
    arrows = {
        "+": ' <span class="better">&#9650;</span>',
        "-": ' <span class="worse">&#9660;</span>',
        "": "",
    }
    return (
        f"<td{best}>{mean:.4f}{arrows[compared.mark(title, metric)]}"
        f"<small>{found.difference:+.4f}, p = {found.p_value:.2g}, "
        f"{found.wins} : {found.losses}</small></td>"
    )
