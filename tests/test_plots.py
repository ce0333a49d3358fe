"""Pictures hold the numbers that they were given, and wrong input says what is wrong."""

import sys

import keras
import numpy as np
import pytest

from tfrankloss import config, losses, plots


@pytest.fixture(autouse=True)
def without_xla():
    with config.without_xla():
        yield


def drawn(axes):
    return [np.asarray(line.get_ydata(), float).tolist() for line in axes.lines]


def test_learning_curves_of_keras_of_train_and_of_numbers():
    history = keras.callbacks.History()
    history.history = {"loss": [3.0, 2.0], "val_ndcg@5": [0.1, 0.2]}
    (axes,) = plots.learning_curves({"fit": history, "numbers": [1.0, np.nan]}, "loss").axes
    assert drawn(axes)[0] == [3.0, 2.0]
    assert np.isnan(drawn(axes)[1][1])
    assert axes.get_xlabel() == "epoch" and axes.get_ylabel() == "loss"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["fit", "numbers"]
    with pytest.raises(ValueError, match="metric of 'fit'.*val_ndcg@5.*'ndcg@5'"):
        plots.learning_curves({"fit": history}, "ndcg@5")


def test_intervals_are_where_they_were_given_and_marked():
    rows = {"a": (0.5, 0.4, 0.7), "b": (0.2, 0.1, 0.3), "c": (0.6, 0.5, 0.8)}
    (axes,) = plots.intervals(rows, "NDCG", {"b": "-", "c": "+"}).axes
    bars, points = axes.lines[::2], axes.lines[1::2]
    assert [tuple(bar.get_xdata()) for bar in bars] == [(0.4, 0.7), (0.1, 0.3), (0.5, 0.8)]
    assert [point.get_xdata()[0] for point in points] == [0.5, 0.2, 0.6]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a", "b ▼", "c ▲"]
    assert len({bar.get_color() for bar in bars}) == 3
    top, bottom = axes.get_ylim()[::-1]
    assert top < 0 < 2 < bottom  # the first row on top
    with pytest.raises(ValueError, match="A mark.*'\\*'"):
        plots.intervals(rows, "NDCG", {"b": "*"})
    with pytest.raises(ValueError, match="row of marks.*'d'"):
        plots.intervals(rows, "NDCG", {"d": "+"})


def test_lines_need_a_value_per_place():
    with pytest.raises(ValueError, match="each of the 2 places.*'a' with 1"):
        plots.interval_lines([1, 2], {"a": [0.5]}, "rate", "NDCG")


def test_many_series_differ():
    series = {f"loss {number}": [number, number] for number in range(8)}
    (axes,) = plots.interval_lines([1, 2], series, "rate", "NDCG").axes
    assert len({line.get_color() for line in axes.lines}) == 8
    assert len({line.get_marker() for line in axes.lines}) == 8


def test_surfaces_show_the_loss_at_each_place():
    figure = plots.surfaces([1, 0], {"logistic": "pairwise_logistic"}, reach=2.0, steps=4)
    metric, loss = figure.axes[:2]
    ndcg = metric.collections[0].get_array().reshape(4, 4)  # row: document 2, column: document 1
    expected = [[1.0 if i >= j else 1 / np.log2(3) for i in range(4)] for j in range(4)]
    np.testing.assert_allclose(ndcg, expected, rtol=1e-6)
    levels = loss.collections[0].levels
    assert levels[0] <= np.log1p(np.exp(-4)) and levels[-1] >= np.log1p(np.exp(4))
    assert loss.get_xlabel() == "score of document 1 (label 1)"


@pytest.mark.parametrize(
    "labels, scores", [([1], None), ([1, 0], [0.5]), ([[1, 0]], None), ([0, 0], None)]
)
def test_surfaces_of_what_is_no_list(labels, scores):
    with pytest.raises(ValueError, match="two documents or more"):
        plots.surfaces(labels, {"softmax": "softmax"}, scores=scores)


def test_a_loss_with_the_title_of_the_metric():
    with pytest.raises(ValueError, match="title of the metric.*'ndcg'"):
        plots.surfaces([1, 0], {"ndcg": "softmax"})


def test_forces_are_minus_the_gradient_in_the_order_of_the_scores():
    labels, scores = [0.0, 1.0, 0.0], [0.0, 1.0, 2.0]
    (axes,) = plots.forces(labels, scores, {"softmax": losses.SoftmaxLoss()}).axes
    best_first = np.exp([2.0, 1.0, 0.0])
    force = np.array([0.0, 1.0, 0.0]) - best_first / best_first.sum()
    arrows = [text for text in axes.texts if getattr(text, "arrow_patch", None) is not None]
    np.testing.assert_allclose(
        [arrow.xy[1] for arrow in arrows], force / np.abs(force).max(), rtol=1e-5
    )
    assert [text.get_text() for text in axes.texts if text.get_text()] == ["0", "1", "0"]
    with pytest.raises(ValueError, match="one list"):
        plots.forces([0, 1], [0.5], {"softmax": "softmax"})


def test_bounds_are_points_beside_the_diagonal():
    (axes,) = plots.bounds([0.5, 2.0], [1.0, 0.5], "ListNet", "NDCG").axes
    points = axes.collections[0].get_offsets()
    np.testing.assert_allclose(points, [[0.5, 0.0], [2.0, np.log(2)]], atol=1e-12)
    (diagonal,) = axes.lines
    assert list(diagonal.get_xdata()) == list(diagonal.get_ydata())
    with pytest.raises(ValueError, match="above 0.*least metric 0"):
        plots.bounds([1.0], [0.0], "ListNet", "NDCG")
    with pytest.raises(ValueError, match="same lists"):
        plots.bounds([1.0], [0.5, 0.5], "ListNet", "NDCG")


@pytest.mark.parametrize("nothing", [{}, ["softmax"]])
def test_nothing_to_draw(nothing):
    with pytest.raises(ValueError, match="dictionary of names"):
        plots.learning_curves(nothing)
    with pytest.raises(ValueError, match="dictionary of names"):
        plots.forces([1, 0], [0.0, 1.0], nothing)


def test_a_missing_matplotlib_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r'pip install "tfrankloss\[plots\]"'):
        plots.intervals({"a": (0.5, 0.4, 0.7)}, "NDCG")
