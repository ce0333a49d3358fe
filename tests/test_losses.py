"""Every loss against its NumPy oracle: value and gradient, with padding, ties, weights, cutoffs.

Lists of different lengths share one batch, so that each configuration compiles one program. The
oracle sees only the real documents of a list. Its gradient is a central difference in float64 with
the weights of the pairs held constant.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from tests import oracles
from tfrankloss import config, losses
from tfrankloss.core import lists as core_lists
from tfrankloss.core import noise

LIST_SIZE = 16
GRADES = 5


class Case(NamedTuple):
    loss: losses.RankingLoss
    oracle: Callable[..., float]
    options: dict[str, Any]


def case(cls: type, oracle: Callable[..., float], **options: Any) -> Any:
    """A loss and its oracle with the same options."""
    loss = cls(**options, reduction="none")
    name = "-".join([cls.__name__, *(f"{key}={value}" for key, value in options.items())])
    return pytest.param(Case(loss, oracle, options), id=name)


def with_constant_weights(weights: Callable[..., np.ndarray]) -> Callable[..., float]:
    """The oracle of a lambda loss as a function of scores, ranks taken from `order_scores`."""

    def oracle(scores, labels, document_weights, *, sigma=1.0, order_scores=None, **options):
        matrix = weights(scores, labels, document_weights, order_scores=order_scores, **options)
        return oracles.pair_sum(matrix, scores, oracles.PHI["logistic_base2"], sigma)

    return oracle


lambdarank = with_constant_weights(oracles.lambda_weights_lambdarank)
arp_loss1 = with_constant_weights(oracles.lambda_weights_arp_loss1)
arp_loss2 = with_constant_weights(oracles.lambda_weights_arp_loss2)
ndcg_loss1 = with_constant_weights(oracles.lambda_weights_ndcg_loss1)
ndcg_loss2 = with_constant_weights(oracles.lambda_weights_ndcg_loss2)
ndcg_loss2_plus_plus = with_constant_weights(oracles.lambda_weights_ndcg_loss2_plus_plus)


def of_score_shape(oracle: Callable[..., float]) -> Callable[..., float]:
    """An oracle that reads the number of grades off the scores."""
    return lambda *arguments, num_grades, **options: oracle(*arguments, **options)


GRADED = [
    case(losses.PointwiseSquaredLoss, oracles.pointwise_squared, num_grades=GRADES),
    case(
        losses.PointwiseSoftmaxLoss,
        of_score_shape(oracles.pointwise_softmax),
        num_grades=GRADES,
        gamma=0.7,
    ),
    case(losses.OrdinalLoss, of_score_shape(oracles.ordinal), num_grades=GRADES),
]

PLAIN = [
    case(losses.PointwiseSquaredLoss, oracles.pointwise_squared),
    case(losses.PointwiseSigmoidLoss, oracles.pointwise_sigmoid),
    case(losses.PairwiseHingeLoss, oracles.pairwise_hinge, sigma=0.7),
    case(losses.PairwiseHingeLoss, oracles.pairwise_hinge, pair_reduction="mean"),
    case(losses.PairwiseExponentialLoss, oracles.pairwise_exponential, sigma=1.5),
    case(losses.PairwiseLogisticLoss, oracles.pairwise_logistic),
    case(losses.PairwiseLogisticLoss, oracles.pairwise_logistic, sigma=2.0, pair_reduction="mean"),
    case(losses.PairwiseSoftZeroOneLoss, oracles.pairwise_soft_zero_one, sigma=0.5),
    case(losses.PairwiseSquaredLoss, oracles.pairwise_squared),
    case(losses.PairwiseSquaredLoss, oracles.pairwise_squared, pair_reduction="mean"),
    case(losses.RankNetLoss, oracles.ranknet, sigma=1.5),
    case(losses.RankNetLoss, oracles.ranknet, pair_reduction="mean"),
    case(losses.SoftmaxLoss, oracles.softmax, temperature=0.5),
    case(losses.ListNetLoss, oracles.listnet, label_distribution="softmax"),
    case(losses.ListNetLoss, oracles.listnet, label_distribution="normalized", temperature=2.0),
    case(losses.ListNetLoss, oracles.listnet, label_distribution="softmax", topk=2),
    case(losses.ListNetLoss, oracles.listnet, label_distribution="normalized", topk=2),
    case(losses.ListNetLoss, oracles.listnet, label_distribution="softmax", topk=3),
    case(losses.ListMLELoss, oracles.list_mle),
    case(losses.PositionAwareListMLELoss, oracles.position_aware_list_mle, temperature=1.5),
    case(losses.XENDCGLoss, oracles.xe_ndcg, gamma=0.3),
    case(losses.XENDCGLoss, oracles.xe_ndcg, gamma=1.0, epsilon=0.5, temperature=2.0),
    case(losses.UniqueSoftmaxLoss, oracles.unique_softmax, temperature=0.5),
    case(losses.Poly1SoftmaxLoss, oracles.poly1_softmax, epsilon=2.0),
    case(losses.CalibratedSoftmaxLoss, oracles.calibrated_softmax, virtual_label=0.5),
    case(losses.ApproxNDCGLoss, oracles.approx_ndcg, temperature=0.3),
    case(losses.ApproxNDCGLoss, oracles.approx_ndcg, temperature=0.3, topn=3, gain="linear"),
    case(losses.ApproxDCGLoss, oracles.approx_dcg, temperature=0.5, discount="linear"),
    case(losses.ApproxMRRLoss, oracles.approx_mrr, temperature=0.5),
    case(losses.ApproxMAPLoss, oracles.approx_map, temperature=0.5),
    case(losses.ApproxMAPLoss, oracles.approx_map, temperature=0.5, topn=4),
    case(losses.SoftNDCGLoss, oracles.soft_ndcg, noise_scale=0.7),
    case(losses.SoftNDCGLoss, oracles.soft_ndcg, noise_scale=0.7, topn=3),
]

LAMBDA = [
    case(losses.LambdaRankLoss, lambdarank),
    case(losses.LambdaRankLoss, lambdarank, topn=3, sigma=1.5),
    case(losses.LambdaRankLoss, lambdarank, metric="dcg", gain="linear", discount="linear"),
    case(losses.LambdaRankLoss, lambdarank, metric="precision", topn=4),
    case(losses.LambdaRankLoss, lambdarank, metric="mrr"),
    case(losses.LambdaRankLoss, lambdarank, metric="mrr", topn=2),
    case(losses.LambdaRankLoss, lambdarank, metric="map"),
    case(losses.LambdaRankLoss, lambdarank, metric="map", topn=4),
    case(losses.LambdaRankLoss, lambdarank, metric="err"),
    case(losses.LambdaRankLoss, lambdarank, metric="err", topn=3),
    case(losses.ARPLoss1, arp_loss1, sigma=0.5),
    case(losses.ARPLoss2, arp_loss2, pair_reduction="mean"),
    case(losses.NDCGLoss1, ndcg_loss1),
    case(losses.NDCGLoss1, ndcg_loss1, topn=3, pair_reduction="mean"),
    case(losses.NDCGLoss2, ndcg_loss2, sigma=2.0),
    case(losses.NDCGLoss2, ndcg_loss2, topn=1),
    case(losses.NDCGLoss2, ndcg_loss2, topn=5),
    case(losses.NDCGLoss2, ndcg_loss2, topn=5, cutoff="truncated"),
    case(losses.NDCGLoss2, ndcg_loss2, gain="linear", discount="linear", normalize=False),
    case(losses.NDCGLoss2, ndcg_loss2, pair_reduction="mean"),
    case(losses.NDCGLoss2PlusPlus, ndcg_loss2_plus_plus, mu=5.0),
    case(losses.NDCGLoss2PlusPlus, ndcg_loss2_plus_plus, mu=5.0, topn=3),
]


@pytest.fixture(scope="module")
def data() -> dict[str, np.ndarray]:
    """Lists of 1 to 16 documents: graded labels with ties, tied scores, one list of zero labels."""
    generator = np.random.default_rng(7)
    lengths = [1, 2, 5, 9, 12, 16]
    labels = generator.integers(0, GRADES, (len(lengths), LIST_SIZE)).astype(float)
    labels[3] = 0
    scores = generator.normal(size=labels.shape)
    # Ties are compared by value only: no gradient is defined at a tie of hinge or of a rank.
    weights = generator.uniform(0.5, 2.0, labels.shape)
    for row, length in enumerate(lengths):
        labels[row, length:] = -1
        scores[row, length:] = np.nan
        weights[row, length:] = np.nan
    return {"labels": labels, "scores": scores, "weights": weights}


def value_and_gradient(
    loss: losses.RankingLoss, labels: np.ndarray, scores: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    scores = tf.constant(scores)
    with tf.GradientTape() as tape:
        tape.watch(scores)
        values = loss(labels, scores, weights)
    return values.numpy(), tape.gradient(values, scores).numpy()


def assert_equals_oracle(
    case: Case, labels: np.ndarray, scores: np.ndarray, weights: np.ndarray, **constants: Any
) -> None:
    values, gradient = value_and_gradient(case.loss, labels, scores, weights)
    for row in range(len(labels)):
        real = labels[row] >= 0
        mine, given = labels[row, real], weights[row, real]
        options = {**case.options}
        if constants:  # ranks come from the scores at which the gradient is taken
            options["order_scores"] = scores[row, real]

        def oracle(x, mine=mine, given=given, options=options) -> float:
            return case.oracle(x, mine, given, **options)

        expected = oracle(scores[row, real])
        np.testing.assert_allclose(values[row], expected, rtol=1e-9, atol=1e-9)
        slopes = _central_difference(oracle, scores[row, real])
        np.testing.assert_allclose(gradient[row, real], slopes, rtol=1e-5, atol=1e-6)
        assert np.all(gradient[row, ~real] == 0)


def _central_difference(oracle: Callable[..., float], scores: np.ndarray) -> np.ndarray:
    flat = scores.reshape(-1)
    slopes = oracles.central_difference(lambda x: oracle(x.reshape(scores.shape)), flat)
    return np.asarray(slopes).reshape(scores.shape)


@pytest.mark.parametrize("case", PLAIN)
def test_equals_oracle(case: Case, data: dict[str, np.ndarray]) -> None:
    assert_equals_oracle(case, **data)


@pytest.mark.parametrize("case", LAMBDA)
def test_rank_weighted_equals_oracle(case: Case, data: dict[str, np.ndarray]) -> None:
    assert_equals_oracle(case, **data, weights_are_constant=True)


@pytest.mark.parametrize("case", GRADED)
def test_graded_equals_oracle(case: Case, data: dict[str, np.ndarray]) -> None:
    scores = np.random.default_rng(3).normal(size=(*data["labels"].shape, GRADES))
    assert_equals_oracle(case, data["labels"], scores, data["weights"])


@pytest.mark.parametrize("case", LAMBDA)
def test_ties_rank_by_position(case: Case, data: dict[str, np.ndarray]) -> None:
    scores = np.round(data["scores"])
    values = case.loss(data["labels"], scores, data["weights"]).numpy()
    for row, labels in enumerate(data["labels"]):
        real = labels >= 0
        expected = case.oracle(
            scores[row, real], labels[real], data["weights"][row, real], **case.options
        )
        np.testing.assert_allclose(values[row], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("ranking", ["gaussian", "plackett_luce"])
def test_soft_assignment_averages_weights_over_drawn_orders(
    ranking: str, data: dict[str, np.ndarray]
) -> None:
    loss = losses.NDCGLoss2(
        topn=3, ranking=ranking, samples=5, noise_scale=0.5, seed=11, reduction="none"
    )
    clean = _clean(data)
    draw = noise.normal if ranking == "gaussian" else noise.gumbel
    draws = 0.5 * draw(clean, 11, 5).numpy()
    values, gradient = value_and_gradient(loss, **_named(data))
    for row, labels in enumerate(data["labels"]):
        real = labels >= 0
        scores = data["scores"][row, real]
        matrix = oracles.lambda_weights_ndcg_loss2(
            scores,
            labels[real],
            data["weights"][row, real],
            topn=3,
            order_scores=scores + draws[:, row, : real.sum()],
        )

        def oracle(x, matrix=matrix) -> float:
            return oracles.pair_sum(matrix, x, oracles.PHI["logistic_base2"], 1.0)

        np.testing.assert_allclose(values[row], oracle(scores), rtol=1e-9, atol=1e-9)
        slopes = oracles.central_difference(oracle, scores)
        np.testing.assert_allclose(gradient[row, real], slopes, rtol=1e-5, atol=1e-6)


def test_gumbel_losses_average_over_noise(data: dict[str, np.ndarray]) -> None:
    draws = noise.gumbel(_clean(data), 5, 4).numpy()
    approx = losses.GumbelApproxNDCGLoss(
        samples=4, beta=0.5, temperature=0.4, seed=5, reduction="none"
    )
    wrapped = losses.GumbelLoss(
        losses.ApproxNDCGLoss(temperature=0.4), samples=4, beta=0.5, seed=5, reduction="none"
    )
    for loss in (approx, wrapped):
        values, gradient = value_and_gradient(loss, **_named(data))
        for row, labels in enumerate(data["labels"]):
            real = labels >= 0

            def one(x, labels=labels, real=real, row=row) -> float:
                return oracles.approx_ndcg(
                    x, labels[real], data["weights"][row, real], temperature=0.4
                )

            def oracle(x, one=one, row=row, real=real) -> float:
                return oracles.mean_over_noise(one, x, draws[:, row, : real.sum()], beta=0.5)

            scores = data["scores"][row, real]
            np.testing.assert_allclose(values[row], oracle(scores), rtol=1e-7, atol=1e-9)
            slopes = oracles.central_difference(oracle, scores)
            np.testing.assert_allclose(gradient[row, real], slopes, rtol=1e-5, atol=1e-6)


def test_xe_ndcg_draws_gamma(data: dict[str, np.ndarray]) -> None:
    gamma = noise.uniform(_clean(data), 3).numpy()[0]
    loss = losses.XENDCGLoss(seed=3, reduction="none")
    values = loss(**_named(data, "y_true", "y_pred", "sample_weight")).numpy()
    for row, labels in enumerate(data["labels"]):
        real = labels >= 0
        expected = oracles.xe_ndcg(
            data["scores"][row, real],
            labels[real],
            data["weights"][row, real],
            gamma=gamma[row, real].astype(float),
        )
        np.testing.assert_allclose(values[row], expected, rtol=1e-9)


def test_lambda_loss_takes_any_weight(data: dict[str, np.ndarray]) -> None:
    loss = losses.LambdaLoss(
        weight=lambda high, low: high.gain / high.rank + low.label, reduction="none"
    )
    values = loss(**_named(data, "y_true", "y_pred", "sample_weight")).numpy()
    for row, labels in enumerate(data["labels"]):
        real = labels >= 0
        scores, mine, given = data["scores"][row, real], labels[real], data["weights"][row, real]
        gains, places = oracles.gains(mine), oracles.ranks(scores)
        expected = sum(
            given[i] * (gains[i] / places[i] + mine[j]) * np.log2(1 + np.exp(scores[j] - scores[i]))
            for i in range(len(mine))
            for j in range(len(mine))
            if mine[i] > mine[j]
        )
        np.testing.assert_allclose(values[row], expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("loss", "oracle", "shape"),
    [
        (losses.LambdaRankLoss(topn=20, reduction="none"), oracles.lambdarank, [None, None]),
        (
            losses.NDCGLoss2(topn=20, cutoff="truncated", reduction="none"),
            functools.partial(oracles.ndcg_loss2, cutoff="truncated"),
            [3, 70],
        ),
    ],
    ids=["dynamic", "static"],
)
def test_cutoff_that_spans_several_blocks(loss, oracle, shape) -> None:
    """The engine visits rows in blocks; 20 rows are more than one and not a multiple of it."""
    generator = np.random.default_rng(1)
    labels = generator.integers(0, GRADES, (3, 70)).astype(float)
    scores = generator.normal(size=labels.shape)
    weights = np.ones_like(labels)
    step = tf.function(
        lambda *arguments: value_and_gradient_in_graph(loss, *arguments),
        input_signature=[tf.TensorSpec(shape, tf.float64)] * 3,
    )
    values, gradient = (x.numpy() for x in step(labels, scores, weights))
    np.testing.assert_allclose(values[0], oracle(scores[0], labels[0], topn=20), rtol=1e-9)
    with config.without_xla():
        _, expected = value_and_gradient(loss, labels, scores, weights)
    np.testing.assert_allclose(gradient, expected, rtol=1e-9, atol=1e-12)
    # Every pair pushes its two documents apart with the same force.
    np.testing.assert_allclose(gradient.sum(axis=1), 0, atol=1e-9)


def value_and_gradient_in_graph(loss, labels, scores, weights):
    with tf.GradientTape() as tape:
        tape.watch(scores)
        values = loss(labels, scores, weights)
    return values, tape.gradient(values, scores)


def test_an_option_may_change_between_calls() -> None:
    loss = losses.ApproxNDCGLoss(temperature=0.1)
    arguments = [[1.0, 0.0, 2.0]], [[0.6, 0.8, 0.7]]
    before = float(loss(*arguments))
    loss.temperature = 5.0
    assert float(loss(*arguments)) == float(losses.ApproxNDCGLoss(temperature=5.0)(*arguments))
    assert float(loss(*arguments)) != before


def test_numpy_numbers_are_options() -> None:
    loss = losses.NDCGLoss2(topn=np.int64(5), sigma=np.float32(0.5))
    config = loss.get_config()
    assert type(config["topn"]) is int and type(config["sigma"]) is float


def test_float16_gradient_overflows_only_with_the_scale_of_the_optimizer() -> None:
    loss = losses.PairwiseSquaredLoss()
    scores = tf.constant([[60000.0, -60000.0]], tf.float16)
    with tf.GradientTape() as tape:
        tape.watch(scores)
        value = loss([[1.0, 0.0]], scores)
        scaled = 1024.0 * value
    gradient = tape.gradient(scaled, scores).numpy()
    assert np.isinf(gradient).all()  # an optimizer that scales the loss must see that


def test_mrr_like_loss_is_ndcg_loss2_with_linear_gain_and_discount() -> None:
    # One relevant document at rank 3: delta is 1/2 - 1/3 to rank 1 and 1 - 1/2 to rank 2.
    loss = losses.NDCGLoss2(gain="linear", discount="linear")
    value = float(loss([[0.0, 0.0, 1.0]], [[0.9, 0.5, 0.1]]))
    first, second = np.log2(1 + np.exp(0.8)), np.log2(1 + np.exp(0.4))
    assert value == pytest.approx((1 / 2 - 1 / 3) * first + (1 - 1 / 2) * second, rel=1e-6)


def test_curvature_is_the_derivative_of_the_gradient(data: dict[str, np.ndarray]) -> None:
    """For weights that do not depend on the scores, by differences of the closed-form gradient."""
    generator = np.random.default_rng(5)
    labels = generator.integers(0, 3, (1, 7)).astype(float)
    labels[0, 5] = -1.0
    weights = generator.uniform(0.5, 2.0, (1, 7))
    scores = generator.normal(size=(1, 7))
    for loss in (
        losses.PairwiseLogisticLoss(sigma=1.3),
        losses.PairwiseExponentialLoss(),
        losses.PairwiseSoftZeroOneLoss(),
        losses.PairwiseSquaredLoss(),
        losses.PairwiseSquaredLoss(pair_reduction="mean"),
        losses.RankNetLoss(),
        losses.ARPLoss1(),
        losses.SoftmaxLoss(temperature=0.7),
        losses.ListNetLoss(),
        losses.ListNetLoss("normalized", temperature=2.0),
        losses.XENDCGLoss(gamma=0.3, epsilon=0.5),
        losses.ListMLELoss(temperature=1.5),
        losses.PositionAwareListMLELoss(),
        losses.PointwiseSquaredLoss(),
        losses.PointwiseSigmoidLoss(),
    ):
        assert loss.curved

        def lists(x):
            parts = (tf.constant(labels), tf.constant(x), None, tf.constant(weights), None)
            return core_lists.clean(core_lists.Received(*parts))

        curvature = loss.derivatives(lists(scores), curvature=True).curvature.numpy()[0]
        for document in range(7):
            step = np.zeros_like(scores)
            step[0, document] = 1e-5
            ahead = loss.derivatives(lists(scores + step)).gradient.numpy()[0, document]
            behind = loss.derivatives(lists(scores - step)).gradient.numpy()[0, document]
            expected = 0.0 if document == 5 else (ahead - behind) / 2e-5
            assert curvature[document] == pytest.approx(expected, rel=1e-5), loss


def _clean(data: dict[str, np.ndarray]) -> core_lists.Lists:
    """The lists as a kernel sees them, so that the noise of a loss can be drawn again."""
    return core_lists.clean(core_lists.receive(data["labels"], data["scores"]))


def _named(
    data: dict[str, np.ndarray], labels="labels", scores="scores", weights="weights"
) -> dict[str, np.ndarray]:
    return {labels: data["labels"], scores: data["scores"], weights: data["weights"]}
