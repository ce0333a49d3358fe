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

from tfrankloss.charts import COLORS
from tfrankloss.comparison import SIGNIFICANCE, LossComparison
from tfrankloss.options import check_choice, check_integer, needs
from tfrankloss.training import Trained

__all__ = [
    "comparison",
    "interval_lines",
    "intervals",
    "learning_curves",
    "panels",
]

# A mean and the ends of its interval.
Interval = tuple[float, float, float]
# Series differ in shape, too: a black-and-white print keeps them apart.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":")
# Inches of one picture.
PANEL = (4.8, 3.6)


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
    figure, places = panels(len(chosen), size=(4.2, height), sharey=False)
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
