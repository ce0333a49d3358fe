"""Law 1: padding, its contents, the batch and the order of the documents change nothing."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from tests.laws import batches
from tests.laws.batches import Array, Batch
from tests.laws.cases import CASES, FIRST_CASES, Case
from tests.laws.running import Result, assert_same, run

WIDER = 11


def scatter(batch: Batch, places: Array, width: int, shift: int = 0) -> Batch:
    """Each row's entries at `places` [batch, list] of a wider row; garbage everywhere else."""
    size, outputs = len(batch.labels), batch.scores.shape[2:]
    labels = np.resize(np.roll(batches.PADDING_LABELS, shift), (size, width))
    garbage = np.resize(np.roll(batches.GARBAGE_SCORES, shift), (size, width, *outputs))
    result = Batch(labels, garbage, np.full((size, width), np.nan)).astype("float32")
    for row in range(size):
        real = batch.mask[row]
        for given, target in zip(batch, result, strict=True):
            target[row, places[row, real]] = given[row, real]
    return result


def gather(result: Result, batch: Batch, places: Array) -> Result:
    """The result of scattered lists in the order of the original ones, 0 in padding."""
    gradient = np.zeros(batch.scores.shape, result.gradient.dtype)
    for row in range(len(places)):
        real = batch.mask[row]
        gradient[row, real] = result.gradient[row, places[row, real]]
    return Result(result.values, gradient)


def permutations(batch: Batch, width: int, seed: int) -> Array:
    generator = np.random.default_rng(seed)
    return np.stack([generator.permutation(width)[: batch.labels.shape[1]] for _ in batch.labels])


def in_place(batch: Batch) -> Array:
    return np.tile(np.arange(batch.labels.shape[1]), (len(batch.labels), 1))


@pytest.mark.parametrize("case", CASES)
def test_width_contents_order_and_batch(case: Case) -> None:
    """One batch holds wider lists, permuted lists with padding in between, and an empty list."""
    loss = case.build()
    batch = batches.distinct(loss.outputs)
    expected = run(loss, batch)
    assert np.abs(expected.values[:2]).min() > 0  # otherwise nothing is compared

    places = [in_place(batch), permutations(batch, WIDER, 3), permutations(batch, WIDER, 4)]
    copies = [scatter(batch, p, WIDER, shift) for shift, p in enumerate(places)]
    empty = scatter(batch.rows([0]), places[0][:1], WIDER)
    empty.labels[:] = -1
    together = Batch(*(np.concatenate(x) for x in zip(*copies, empty, strict=True)))
    result = run(loss, together)

    assert np.all(result.gradient[~together.mask] == 0)
    assert result.values[-1] == 0
    for number, place in enumerate(places):
        rows = slice(3 * number, 3 * number + 3)
        part = Result(result.values[rows], result.gradient[rows])
        assert_same(gather(part, batch, place), expected)

    # The mean is made of sums over documents, wherever they stand.
    mean = run(case.build("mean"), together)
    np.testing.assert_allclose(mean.values, np.mean(result.values[:-1]), rtol=1e-5, atol=1e-6)
    number_of_lists = len(result.values) - 1  # without the empty one
    np.testing.assert_allclose(
        number_of_lists * mean.gradient, result.gradient, rtol=1e-5, atol=1e-6
    )

    alone = run(loss, batch.rows([1]))
    assert_same(alone, Result(expected.values[1:2], expected.gradient[1:2]))


@pytest.mark.parametrize("case", CASES)
def test_an_empty_list_leaves_the_mean_alone(case: Case) -> None:
    batch = batches.distinct(case.build().outputs)
    lists = run(case.build(), batch)
    longer = batch.rows([0, 1, 2, 1])
    longer.labels[3] = np.nan
    longer.scores[3] = np.nan
    result = run(case.build("mean"), longer)
    np.testing.assert_allclose(result.values, lists.values.mean(), rtol=1e-5)
    assert_same(
        Result(lists.values, 3.0 * result.gradient[:3]), lists
    )  # each list has a third of the mean
    assert np.all(result.gradient[3] == 0)


@pytest.mark.parametrize("case", FIRST_CASES)
def test_a_batch_of_empty_lists_costs_nothing(case: Case) -> None:
    loss = case.build("mean")
    batch = batches.distinct(loss.outputs).rows([0, 1])
    batch.labels[:] = -1
    batch.scores[:] = np.nan
    result = run(loss, batch)
    assert result.values == 0
    assert np.all(result.gradient == 0)


CHEAP = [
    case
    for case in CASES
    if case.identifier
    in ("softmax", "pairwise_squared", "approx_dcg", "ndcg_loss2-topn=3", "gumbel-loss=softmax")
]


@pytest.mark.parametrize("case", CHEAP)
@hypothesis.settings(max_examples=12, deadline=None, derandomize=True)
@hypothesis.given(data=strategies.data())
def test_any_list_in_any_place(case: Case, data: strategies.DataObject) -> None:
    """Lists of any length, with labels and scores that differ, in any order and any width."""
    count = data.draw(strategies.integers(1, 6), label="documents")
    width = data.draw(strategies.integers(count, 20), label="width")
    scores = data.draw(
        strategies.lists(strategies.integers(-40, 40), min_size=count, max_size=count, unique=True),
        label="scores",
    )
    labels = data.draw(strategies.permutations(range(count)), label="labels")
    places = data.draw(strategies.permutations(range(width)), label="places")
    loss = case.build()
    batch = batches.stack([(labels, np.array(scores) / 8.0)], loss.outputs, width=count)
    where = np.array([places[:count]])
    result = run(loss, scatter(batch, where, width, shift=1))
    assert_same(gather(result, batch, where), run(loss, batch))
