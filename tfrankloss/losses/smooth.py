"""Smooth metrics: the metric itself, with ranks that are smooth functions of the scores.

The soft rank of document i is `p_i = 1 + sum_{j != i} sigmoid((s_j - s_i) / temperature)` (Qin, Liu
and Li, 2010; SIGIR 2022, Eq 8, where j = i must be left out). A cutoff K becomes the factor
`sigmoid((K + 1/2 - p_i) / temperature)`. The losses are minus the metric, in [-1, 0] where the
metric is in [0, 1].
"""

from collections.abc import Callable
from typing import Any

from keras import ops

from tfrankloss.core import gaussian_ranks, noise, ranks, soft_ranks
from tfrankloss.core.backend import Array
from tfrankloss.core.lists import Lists, mean_over_repeats
from tfrankloss.losses.base import RankingLoss, SampledLoss
from tfrankloss.options import (
    check_function,
    check_integer,
    check_not_negative,
    check_positive,
    check_topn,
    register,
)


class ApproxLoss(RankingLoss):
    """Minus a metric of soft ranks.

    Args:
        temperature: of the soft ranks: the smaller, the closer to the metric and the harder to
            optimise.
        topn: cutoff of the metric, or None for the whole list.
        reduction: see `RankingLoss`, as the other arguments.
    """

    def __init__(self, temperature: float = 0.1, topn: int | None = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        check_positive("temperature", temperature)
        check_topn(topn)
        self.temperature = temperature
        self.topn = topn

    def soft_ranks(self, lists: Lists) -> Array:
        """`p_i`, between 1 and the length of the list."""
        return 1.0 + soft_ranks.soft_counts(lists.scores, lists.mask, self.temperature)

    def within_cutoff(self, soft_ranks: Array) -> Array:
        """The smooth `[p_i <= topn]`."""
        if self.topn is None:
            return ops.ones_like(soft_ranks)
        return ops.sigmoid((self.topn + 0.5 - soft_ranks) / self.temperature)


@register
class ApproxDCGLoss(ApproxLoss):
    """Minus the smooth DCG: `-sum_i G(y_i) / D(p_i)` (SIGIR 2022, Eqs 2, 8).

    Args:
        temperature: of the soft ranks.
        topn: cutoff of DCG, or None for the whole list.
        gain: `"exponential"` for `2^y - 1`, `"linear"` for `y`, or a function of the labels.
        discount: `"log2"` for `log2(1 + r)`, `"linear"` for `r`, or a function of the ranks.
        reduction: see `RankingLoss`, as the other arguments.

    >>> loss = ApproxDCGLoss()
    >>> round(float(loss([[2.0, 0.0]], [[9.0, 1.0]])), 4)
    -3.0
    """

    def __init__(
        self,
        temperature: float = 0.1,
        topn: int | None = None,
        *,
        gain: ranks.Gain = "exponential",
        discount: ranks.Discount = "log2",
        **arguments: Any,
    ) -> None:
        super().__init__(temperature, topn, **arguments)
        check_function("gain", gain, ranks.GAINS)
        check_function("discount", discount, ranks.DISCOUNTS)
        self.gain = gain
        self.discount = discount

    def gains(self, lists: Lists) -> Array:
        """`[batch, list]`: the gain of each document."""
        return ranks.gains(lists.labels, lists.mask, self.gain)

    def per_list(self, lists: Lists) -> Array:
        soft = self.soft_ranks(lists)
        credit = self.within_cutoff(soft) / ranks.divisors(soft, self.discount)
        return -ops.sum(lists.weights * self.gains(lists) * credit, axis=1)


@register
class ApproxNDCGLoss(ApproxDCGLoss):
    """Minus the smooth NDCG: `-sum_i G_i / D(p_i)`, gains divided by the maximal DCG.

    SIGIR 2022, Eqs 3, 8; Qin, Liu and Li, 2010.

    Args:
        temperature: of the soft ranks.
        topn: cutoff of NDCG, or None for the whole list.
        gain: `"exponential"` for `2^y - 1`, `"linear"` for `y`, or a function of the labels.
        discount: `"log2"` for `log2(1 + r)`, `"linear"` for `r`, or a function of the ranks.
        reduction: see `RankingLoss`, as the other arguments.

    >>> loss = ApproxNDCGLoss()
    >>> round(float(loss([[2.0, 0.0]], [[9.0, 1.0]])), 4)
    -1.0
    """

    def gains(self, lists: Lists) -> Array:
        return ranks.normalized_gains(lists.labels, lists.mask, self.gain, self.discount, self.topn)


@register
class ApproxMRRLoss(ApproxLoss):
    """Minus the smooth reciprocal rank: `-max_{y_i > 0} 1 / p_i`.

    Args:
        temperature: of the soft ranks.
        topn: cutoff, or None for the whole list.
        reduction: see `RankingLoss`, as the other arguments.

    >>> loss = ApproxMRRLoss()
    >>> round(float(loss([[1.0, 0.0]], [[1.0, 9.0]])), 4)
    -0.5
    """

    def per_list(self, lists: Lists) -> Array:
        soft = self.soft_ranks(lists)
        credit = lists.weights * self.within_cutoff(soft) / soft
        relevant = ops.logical_and(lists.labels > 0, lists.mask)
        return -ops.max(ops.where(relevant, credit, ops.zeros_like(credit)), axis=1)


@register
class ApproxMAPLoss(ApproxLoss):
    """Minus the smooth average precision.

    `-(1 / R) sum_{y_i > 0} (1 + sum_{j != i, y_j > 0} sigmoid((s_j - s_i) / temperature)) / p_i`
    over R relevant documents (Qin, Liu and Li, 2010).

    Args:
        temperature: of the soft ranks.
        topn: cutoff, or None for the whole list.
        reduction: see `RankingLoss`, as the other arguments.

    >>> loss = ApproxMAPLoss()
    >>> round(float(loss([[1.0, 0.0, 1.0]], [[9.0, 5.0, 1.0]])), 4)  # -(1 + 2/3) / 2
    -0.8333
    """

    def per_list(self, lists: Lists) -> Array:
        relevant = ops.cast(ops.logical_and(lists.labels > 0, lists.mask), lists.scores.dtype)
        above, relevant_above = ops.unstack(
            soft_ranks.soft_counts(lists.scores, lists.mask, self.temperature, relevant)
        )
        soft = 1.0 + above
        precision = (1.0 + relevant_above) / soft
        terms = lists.weights * relevant * self.within_cutoff(soft) * precision
        return -ranks.divide_no_nan(ops.sum(terms, axis=1), ops.sum(relevant, axis=1))


@register
class SoftNDCGLoss(RankingLoss):
    """Minus the expected NDCG when every score is the mean of a Gaussian (SoftRank).

    `-sum_i G_i E[1 / D(r_i)]`, where document j is above i with probability
    `Phi((s_j - s_i) / (sqrt(2) noise_scale))`, independently of the other documents (Taylor et al.,
    2008; CIKM 2018, Sect. 4.1.2). It takes O(n^2) time for n documents; a cutoff K takes O(n^2 K),
    and a function of yours as the `discount` O(n^3).

    Args:
        noise_scale: standard deviation of each score.
        topn: cutoff of NDCG, or None for the whole list.
        gain: `"exponential"` for `2^y - 1`, `"linear"` for `y`, or a function of the labels.
        discount: `"log2"` for `log2(1 + r)`, `"linear"` for `r`, or a function of the ranks.
        reduction: see `RankingLoss`, as the other arguments.

    >>> loss = SoftNDCGLoss(noise_scale=1.0)
    >>> round(float(loss([[1.0, 0.0]], [[0.5, 0.5]])), 4)  # -(1 + 1/log2(3)) / 2
    -0.8155
    """

    def __init__(
        self,
        noise_scale: float = 1.0,
        topn: int | None = None,
        *,
        gain: ranks.Gain = "exponential",
        discount: ranks.Discount = "log2",
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        check_positive("noise_scale", noise_scale)
        check_topn(topn)
        check_function("gain", gain, ranks.GAINS)
        check_function("discount", discount, ranks.DISCOUNTS)
        self.noise_scale = noise_scale
        self.topn = topn
        self.gain = gain
        self.discount = discount

    def per_list(self, lists: Lists) -> Array:
        expected = gaussian_ranks.expected_inverse_discounts(
            lists.scores, lists.mask, self.noise_scale, self.discount, self.topn
        )
        gains = ranks.normalized_gains(
            lists.labels, lists.mask, self.gain, self.discount, self.topn
        )
        return -ops.sum(lists.weights * gains * expected, axis=1)


@register
class GumbelApproxNDCGLoss(ApproxNDCGLoss, SampledLoss):
    """ApproxNDCG of scores with Gumbel noise, averaged over samples.

    `ApproxNDCG(s + beta g)`, `g_i ~ Gumbel(0, 1)` (SIGIR 2022, Eqs 9-10; Bruch et al., 2019). The
    noise keeps the loss from getting stuck where all soft ranks are settled.

    Args:
        samples: noisy copies of each list.
        beta: scale of the noise.
        temperature: of the soft ranks.
        seed: seed of the noise, which is drawn afresh at every step.
        topn, gain, discount: see `ApproxNDCGLoss`.
        reduction: see `RankingLoss`, as the other arguments.

    >>> loss = GumbelApproxNDCGLoss(seed=1)
    >>> -1 < float(loss([[2.0, 0.0]], [[0.0, 1.0]])) < -0.63
    True
    """

    def __init__(
        self,
        samples: int = 8,
        beta: float = 1.0,
        temperature: float = 0.1,
        seed: int | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(temperature, seed=seed, **arguments)
        check_integer("samples", samples, minimum=1)
        check_not_negative("beta", beta)
        self.samples = samples
        self.beta = beta

    def value_and_gradient(self, lists: Lists) -> tuple[Array, Array]:
        return _average_over_noise(super().value_and_gradient, lists, self)


@register
class GumbelLoss(SampledLoss):
    """Any loss of this package on scores with Gumbel noise, averaged over samples.

    `loss(s + beta g)`, `g_i ~ Gumbel(0, 1)` (Bruch et al., 2019; SIGIR 2022, Eq 9).

    Args:
        loss: a loss of this package with one score per document, or its name. Its own reduction is
            not used.
        samples: noisy copies of each list.
        beta: scale of the noise.
        seed: seed of the noise, which is drawn afresh at every step.
        reduction: see `RankingLoss`, as the other arguments.

    >>> from tfrankloss.losses import SoftmaxLoss
    >>> loss = GumbelLoss(SoftmaxLoss(), samples=4, seed=1)
    >>> float(loss([[1.0, 0.0]], [[0.6, 0.8]])) > 0
    True
    """

    def __init__(
        self,
        loss: RankingLoss | str,
        samples: int = 8,
        beta: float = 1.0,
        seed: int | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(seed=seed, **arguments)
        if isinstance(loss, str):
            from tfrankloss.losses import get  # here, because that module imports this one

            loss = get(loss)
        if not isinstance(loss, RankingLoss) or loss.outputs != 1:
            raise ValueError(
                "loss must be a loss of tfrankloss with one score per document, or its name. "
                f"Received: loss={loss!r}"
            )
        check_integer("samples", samples, minimum=1)
        check_not_negative("beta", beta)
        self.loss = loss
        self.samples = samples
        self.beta = beta

    def value_and_gradient(self, lists: Lists) -> tuple[Array, Array]:
        return _average_over_noise(self.loss.value_and_gradient, lists, self)


def _average_over_noise(
    value_and_gradient: Callable[[Lists], tuple[Array, Array]],
    lists: Lists,
    loss: GumbelLoss | GumbelApproxNDCGLoss,
) -> tuple[Array, Array]:
    draws = noise.gumbel(lists, loss._drawn_seed, loss.samples)
    values, gradient = value_and_gradient(noise.perturbed(lists, draws, loss.beta))
    return mean_over_repeats(values, loss.samples), mean_over_repeats(gradient, loss.samples)
