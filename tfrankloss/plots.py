"""Pictures of losses and of results, for notebooks and papers: Matplotlib figures.

>>> from tfrankloss import plots
>>> figure = plots.intervals({"softmax": (0.5, 0.4, 0.6)}, label="NDCG@5")
>>> figure.axes[0].get_xlabel()
'NDCG@5'

Each function returns a `matplotlib.figure.Figure`: in a notebook it is shown as the last expression
of a cell (after `%matplotlib inline`, which Colab does by itself), and `figure.savefig("name.png")`
writes it. Those that draw one picture also take `axes` to draw into; `panels` makes some side by
side. (A run that must leave pictures without Matplotlib writes SVG, see `charts`.)
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from keras import ops

from tfrankloss import losses as known_losses
from tfrankloss import metrics as known_metrics
from tfrankloss.charts import COLORS
from tfrankloss.comparison import SIGNIFICANCE, LossComparison
from tfrankloss.core import backend
from tfrankloss.evaluation import evaluate
from tfrankloss.losses import RankingLoss
from tfrankloss.metrics import RankingMetric
from tfrankloss.options import check_choice, check_integer, check_positive, needs
from tfrankloss.training import Trained

__all__ = [
    "bounds",
    "comparison",
    "forces",
    "interval_lines",
    "intervals",
    "learning_curves",
    "panels",
    "surfaces",
]

# A mean and the ends of its interval.
Interval = tuple[float, float, float]
# Series differ in shape, too: a black-and-white print keeps them apart.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":")
# Inches of one picture.
PANEL = (4.8, 3.6)
# Where the documents stand in a picture of forces, whose arrows go from -1 to 1.
BELOW = -1.35


def panels(
    columns: int, rows: int = 1, size: tuple[float, float] = PANEL, **options: Any
) -> tuple[Any, list[Any]]:
    """A figure with places for several pictures.

    Args:
        columns: pictures side by side.
        rows: pictures one below the other.
        size: width and height of each, in inches.
        **options: of `Figure.subplots`, such as `sharey=True`.

    Returns:
        The figure, and its axes row by row.

    >>> figure, (left, right) = panels(2)
    >>> left.get_figure() is figure
    True
    """
    check_integer("columns", columns, minimum=1)
    check_integer("rows", rows, minimum=1)
    needs("matplotlib", "plots")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(columns * size[0], rows * size[1]), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False, **options).flat)


def surfaces(
    labels: Sequence[float],
    losses: Mapping[str, RankingLoss | str],
    metric: str | RankingMetric = "ndcg",
    scores: Sequence[float] | None = None,
    reach: float = 3.0,
    steps: int = 61,
) -> Any:
    """Losses over the scores of the first two documents of a list, and the steps of a metric.

    The metric is the first picture. Its steps are drawn into the others as white lines: losses fall
    where the metric is flat, and only those that know the ranks jump where it does.

    Args:
        labels: of the documents, `[list]`.
        losses: the losses, or their names, by title.
        metric: the metric, or its name.
        scores: of the third document and the following, which stay as they are; by default 0.
        reach: both scores go from `-reach` to `reach`.
        steps: number of values of each of them.

    >>> figure = surfaces([1, 0], {"logistic": "pairwise_logistic"}, steps=5)
    >>> [axes.get_title() for axes in figure.axes if axes.get_title()]
    ['ndcg', 'logistic']
    """
    check_positive("reach", reach)
    check_integer("steps", steps, minimum=2)
    given = np.asarray(labels, np.float32)
    rest = np.zeros(max(given.size - 2, 0)) if scores is None else np.asarray(scores, float)
    if given.ndim != 1 or len(given) < 2 or rest.shape != (len(given) - 2,) or not given.any():
        raise ValueError(
            "labels must be those of one list of two documents or more, one of them relevant, and "
            "scores those of the third and the following. "
            f"Received: labels={labels!r}, scores={scores!r}"
        )
    places = np.linspace(-reach, reach, steps)
    first, second = np.meshgrid(places, places)
    lists = np.stack([first, second, *(np.full_like(first, score) for score in rest)], axis=-1)
    lists = lists.reshape(-1, len(given)).astype(np.float32)
    every = np.broadcast_to(given, lists.shape).copy()

    measured = known_metrics.get(metric)
    if measured.name in losses:
        raise ValueError(
            f"A loss must not have the title of the metric. Received: {measured.name!r}"
        )
    pictures = {measured.name: _metric_values(measured, every, lists)}
    for title, loss in _some(losses):
        value, _ = _value_and_gradient(known_losses.get(loss), every, lists)
        pictures[title] = value
    columns = min(4, len(pictures))
    figure, axes = panels(columns, -(-len(pictures) // columns), size=(3.7, 3.3))
    for place in axes[len(pictures) :]:
        place.set_visible(False)
    ground = pictures[measured.name].reshape(first.shape)
    levels = np.unique(ground.round(6))
    edges = (levels[1:] + levels[:-1]) / 2
    for (title, values), place in zip(pictures.items(), axes, strict=False):
        heights = values.reshape(first.shape)
        if title == measured.name:
            drawn = place.pcolormesh(first, second, heights, cmap="cividis", shading="nearest")
        else:
            drawn = place.contourf(first, second, heights, levels=16, cmap="cividis_r")
            if len(edges):
                place.contour(first, second, ground, edges, colors="white", linewidths=0.6)
        figure.colorbar(drawn, ax=place)
        place.set(title=title, xlabel=_score_label(0, given), ylabel=_score_label(1, given))
        place.set_aspect("equal")
    return figure


def forces(
    labels: Sequence[float], scores: Sequence[float], losses: Mapping[str, RankingLoss | str]
) -> Any:
    """Where losses push the documents of one list: an arrow per document, minus its gradient.

    Documents stand in the order of their scores, with their labels in the circles. Losses differ in
    scale, so the longest arrow of each has length 1.

    Args:
        labels: of the documents, `[list]`.
        scores: of the documents, `[list]`.
        losses: the losses, or their names, by title.

    >>> figure = forces([1, 0], [0.0, 0.5], {"logistic": "pairwise_logistic"})
    >>> figure.axes[0].get_title()
    'logistic'
    """
    given, ranked = np.asarray(labels, np.float32), np.asarray(scores, np.float32)
    if given.ndim != 1 or given.shape != ranked.shape or not len(given):
        raise ValueError(
            "labels and scores must be those of one list. "
            f"Received: labels={labels!r}, scores={scores!r}"
        )
    chosen = _some(losses)
    order = np.argsort(-ranked, kind="stable")
    given, ranked = given[order], ranked[order]
    height = max(given.max(), 1.0)
    columns = min(2, len(losses))
    size = (1.0 + 0.42 * len(given), 2.7)
    figure, axes = panels(columns, -(-len(losses) // columns), size=size, sharey=True)
    for place in axes[len(losses) :]:
        place.set_visible(False)
    ranks = np.arange(1, len(given) + 1)
    for (title, loss), place in zip(chosen, axes, strict=False):
        _, gradient = _value_and_gradient(known_losses.get(loss), given[None], ranked[None])
        force = -gradient[0] / max(np.abs(gradient).max(), np.finfo(np.float32).tiny)
        for rank, label, length in zip(ranks, given, force, strict=True):
            if abs(length) > 0.005:
                color = COLORS[2] if length > 0 else COLORS[1]
                style = "-|>" if abs(length) > 0.12 else "-"  # a head is longer than a short arrow
                arrow = {"arrowstyle": style, "color": color, "linewidth": 2, "shrinkA": 0}
                place.annotate("", (rank, length), (rank, 0), arrowprops={**arrow, "shrinkB": 0})
            shade = 0.92 - 0.6 * label / height
            circle = {"markersize": 13, "markeredgecolor": "black", "zorder": 4}
            place.plot([rank], [BELOW], "o", color=str(shade), **circle)
            ink = "black" if shade > 0.55 else "white"
            centred = {"ha": "center", "va": "center", "fontsize": 8, "zorder": 5}
            place.text(rank, BELOW - 0.01, f"{label:g}", color=ink, **centred)
        place.set(title=title, xlabel="rank (label in the circle)", ylim=(BELOW - 0.25, 1.15))
        place.set_xticks(ranks)
        place.set_xlim(0.4, len(ranks) + 0.6)
        place.axhline(0, color="#999", linewidth=0.8, zorder=0)
        _finished(place)
    for place in axes[::columns]:
        place.set_ylabel("force (longest = 1)")
    return figure


def bounds(
    losses: Sequence[float],
    metrics: Sequence[float],
    loss_label: str,
    metric_label: str,
    title: str | None = None,
    axes: Any = None,
) -> Any:
    """Values of a loss against minus the logarithm of a metric, one point per list.

    Where the loss is a bound, all points lie under the diagonal.

    Args:
        losses: of the lists, `[lists]`.
        metrics: of the same lists, above 0.
        loss_label: name of the loss.
        metric_label: name of the metric.
        title: stands above.
        axes: where to draw; by default a new figure.

    >>> bounds([0.5, 1.0], [0.9, 0.4], "ListNet", "NDCG").axes[0].get_ylabel()
    '\N{MINUS SIGN}log NDCG'
    """
    across, measured = np.asarray(losses, float), np.asarray(metrics, float)
    if across.ndim != 1 or across.shape != measured.shape or not (measured > 0).all():
        raise ValueError(
            "losses and metrics must be of the same lists, and metrics above 0. Received: shapes "
            f"{across.shape} and {measured.shape}, least metric {measured.min(initial=math.inf):g}"
        )
    axes, up = _axes(axes), -np.log(measured)
    axes.scatter(across, up, s=7, alpha=0.35, color=COLORS[0], linewidths=0, rasterized=True)
    end = 1.05 * max(across.max(initial=0.1), up.max(initial=0.1))
    axes.plot([0, end], [0, end], color=COLORS[1], linewidth=2, label="the two are equal")
    axes.set(xlabel=loss_label, ylabel=f"\N{MINUS SIGN}log {metric_label}", title=title)
    axes.set_xlim(0, 1.05 * across.max(initial=0.1))
    highest = up.max(initial=0.1)
    axes.set_ylim(min(up.min(initial=0.0), 0.0) - 0.04 * highest, 1.1 * highest)
    return _finished(axes, legend=True)


def learning_curves(
    runs: Mapping[str, Any],
    metric: str = "loss",
    title: str | None = None,
    axes: Any = None,
) -> Any:
    """A metric over the epochs of several runs; the best epoch is marked where it is known.

    Args:
        runs: by name, what `train` or Keras' `fit` returned, or the history of one of them, or just
            a number per epoch (as in `LossComparison.curves`).
        metric: as the history names it: `"ndcg@5"` of `train`, `"val_ndcg@5"` of `fit`, `"loss"`.
        title: stands above.
        axes: where to draw; by default a new figure.

    >>> history = [{"loss": 2.0, "ndcg@5": 0.3}, {"loss": 1.0, "ndcg@5": 0.4}]
    >>> figure = learning_curves({"softmax": history, "listnet": [0.2, 0.5]}, "ndcg@5")
    >>> [line.get_ydata().tolist() for line in figure.axes[0].lines]
    [[0.3, 0.4], [0.2, 0.5]]
    """
    axes = _axes(axes)
    for (name, run), (color, marker, dashes) in zip(_some(runs), _styles(), strict=False):
        values = _history(name, run, metric)
        epochs = np.arange(1, len(values) + 1)
        few = len(values) <= 15
        axes.plot(epochs, values, dashes, color=color, label=name, marker=marker if few else "")
        if isinstance(run, Trained):
            best = run.best_epoch
            axes.plot([best], [values[best - 1]], marker, color=color, markersize=11)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="epoch", ylabel=metric, title=title)
    return _finished(axes, legend=True)


def intervals(
    rows: Mapping[str, Interval],
    label: str,
    marks: Mapping[str, str] | None = None,
    title: str | None = None,
    axes: Any = None,
) -> Any:
    """A point with its confidence interval per row, and marks of significance.

    Args:
        rows: by name, the mean and the ends of its interval; the first row stands on top.
        label: what is measured, below the axis.
        marks: for some rows `"+"`, which is drawn as a triangle upwards (significantly better), or
            `"-"`, downwards (worse), as `LossComparison.mark` says; `""` is no mark.
        title: stands above.
        axes: where to draw; by default a new figure.

    >>> rows = {"softmax": (0.5, 0.4, 0.6), "listnet": (0.7, 0.65, 0.75)}
    >>> figure = intervals(rows, "NDCG@5", marks={"listnet": "+"})
    >>> [text.get_text() for text in figure.axes[0].get_yticklabels()]
    ['softmax', 'listnet \N{BLACK UP-POINTING TRIANGLE}']
    """
    signs = {"+": " \N{BLACK UP-POINTING TRIANGLE}", "-": " \N{BLACK DOWN-POINTING TRIANGLE}"}
    signs[""] = ""
    marks = dict(marks or {})
    for name, mark in marks.items():
        check_choice("A row of marks", name, tuple(rows))
        check_choice("A mark", mark, tuple(signs))
    axes = _axes(axes)
    for place, (name, (mean, low, high)) in enumerate(_some(rows)):
        color = {"+": COLORS[2], "-": COLORS[1]}.get(marks.get(name, ""), COLORS[0])
        axes.plot([low, high], [place, place], color=color, linewidth=2.5)
        axes.plot([mean], [place], "o", color=color, markersize=7)
    names = [name + signs[marks.get(name, "")] for name in rows]
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set(xlabel=label, title=title)
    return _finished(axes)


def comparison(compared: LossComparison, metrics: Sequence[str] | None = None) -> Any:
    """The means of a comparison with 95 % intervals, one picture per metric.

    Triangles mark what differs significantly from the baseline (paired t-test).

    Args:
        compared: what `compare` returned.
        metrics: some of its metrics; by default all.

    >>> import tfrankloss
    >>> data = tfrankloss.data.synthetic(30, 5, 8)
    >>> compared = tfrankloss.compare(
    ...     data, ["softmax", "listnet"], folds=3, model="linear", epochs=1, progress=False
    ... )
    >>> len(comparison(compared, ["ndcg@5", "ndcg@10"]).axes)
    2
    """
    chosen = compared.metrics if metrics is None else list(metrics)
    for metric in chosen:
        check_choice("A metric", metric, tuple(compared.metrics))
    found = {
        title: evaluation.confidence_intervals()
        for title, evaluation in compared.evaluations.items()
    }
    height = 1.2 + 0.36 * len(found)
    figure, places = panels(len(chosen), size=(4.2, height))
    for metric, axes in zip(chosen, places, strict=True):
        intervals(
            {
                title: (evaluation.means[metric], *found[title][metric])
                for title, evaluation in compared.evaluations.items()
            },
            f"test {metric}, mean and 95 % interval",
            {title: compared.mark(title, metric) for title in found},
            axes=axes,
        )
    figure.suptitle(
        "\N{BLACK UP-POINTING TRIANGLE} better, \N{BLACK DOWN-POINTING TRIANGLE} worse than "
        f"{compared.baseline} (paired t-test, p < {SIGNIFICANCE}), {compared.queries} queries",
        fontsize=10,
    )
    return figure


def interval_lines(
    places: Sequence[float],
    series: Mapping[str, Sequence[float | Interval]],
    x_label: str,
    y_label: str,
    log_x: bool = False,
    title: str | None = None,
    axes: Any = None,
) -> Any:
    """Lines over a setting that was varied, such as a learning rate, with intervals as bands.

    Args:
        places: the values of the setting.
        series: by name, for each of them a number, or a mean and the ends of its interval.
        x_label: what was varied.
        y_label: what was measured.
        log_x: whether the axis of the setting is logarithmic.
        title: stands above.
        axes: where to draw; by default a new figure.

    >>> figure = interval_lines(
    ...     [0.01, 0.1], {"softmax": [(0.5, 0.4, 0.6), (0.7, 0.6, 0.8)]}, "rate", "NDCG", log_x=True
    ... )
    >>> figure.axes[0].lines[0].get_ydata().tolist()
    [0.5, 0.7]
    """
    axes = _axes(axes)
    for (name, values), (color, marker, dashes) in zip(_some(series), _styles(), strict=False):
        if len(values) != len(places):
            raise ValueError(
                f"A series must have a value for each of the {len(places)} places. "
                f"Received: {name!r} with {len(values)}"
            )
        rows = np.array([np.broadcast_to(value, 3) for value in values], float)
        axes.plot(places, rows[:, 0], dashes, color=color, marker=marker, label=name)
        axes.fill_between(places, rows[:, 1], rows[:, 2], color=color, alpha=0.15, linewidth=0)
    if log_x:
        axes.set_xscale("log")
    axes.set(xlabel=x_label, ylabel=y_label, title=title)
    return _finished(axes, legend=True)


def _value_and_gradient(
    loss: RankingLoss, labels: np.ndarray, scores: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The value of each list, and its gradient, whatever the reduction of the loss is."""
    one_per_list = type(loss).from_config({**loss.get_config(), "reduction": "none"})
    found = backend.value_and_gradient(
        lambda x: one_per_list(labels, x), ops.convert_to_tensor(scores)
    )
    value, gradient = (ops.convert_to_numpy(part) for part in found)
    return value, gradient


def _metric_values(metric: RankingMetric, labels: np.ndarray, scores: np.ndarray) -> np.ndarray:
    queries = np.repeat(np.arange(len(labels)), labels.shape[1])
    return evaluate(labels.ravel(), scores.ravel(), queries, [metric]).per_query[metric.name]


def _score_label(number: int, labels: np.ndarray) -> str:
    return f"score of document {number + 1} (label {labels[number]:g})"


def _history(name: str, run: Any, metric: str) -> list[float]:
    """A number per epoch of whatever describes a run."""
    history = getattr(run, "history", run)
    if isinstance(history, Mapping):
        check_choice(f"The metric of {name!r}", metric, tuple(history))
        return [float(value) for value in history[metric]]
    values = []
    for entry in history:
        if isinstance(entry, Mapping):
            check_choice(f"The metric of {name!r}", metric, tuple(entry))
            entry = entry[metric]
        values.append(float(entry) if math.isfinite(entry) else math.nan)
    return values


def _some(given: Mapping[str, Any]) -> list[tuple[str, Any]]:
    if not isinstance(given, Mapping) or not given:
        raise ValueError(f"What to draw must be a dictionary of names. Received: {given!r}")
    return list(given.items())


def _styles() -> Any:
    """Colour, marker and dashes of one series after the other."""
    return zip(*map(itertools.cycle, (COLORS, MARKERS, DASHES)), strict=True)


def _axes(axes: Any) -> Any:
    return panels(1)[1][0] if axes is None else axes


def _finished(axes: Any, legend: bool = False) -> Any:
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if legend:
        axes.legend(fontsize=9, framealpha=0.9)
    return axes.get_figure()
