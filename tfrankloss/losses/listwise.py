"""Listwise losses: distances between distributions over the documents or orders of a list."""

from collections.abc import Callable
from typing import Any

from keras import ops

from tfrankloss.core import backend, distributions, noise, ranks, tails
from tfrankloss.core.backend import Array
from tfrankloss.core.blocks import Documents, prefix_scan
from tfrankloss.core.lists import Derivatives, Lists, positions
from tfrankloss.losses.base import RankingLoss, SampledLoss
from tfrankloss.options import (
    check_choice,
    check_function,
    check_not_negative,
    check_positive,
    register,
)

LABEL_DISTRIBUTIONS = ("softmax", "normalized")
TIES = ("position", "random")
MAX_TOPK = 3
MAX_PERMUTATIONS = 1 << 24


class ListwiseLoss(RankingLoss):
    """A loss on the softmax or Plackett-Luce distribution of `s_i / temperature`.

    Args:
        temperature: divides the scores; above 1 the distribution is flatter.
        reduction: see `RankingLoss`, as the other arguments.
    """

    def __init__(self, *, temperature: float = 1.0, **arguments: Any) -> None:
        super().__init__(**arguments)
        check_positive("temperature", temperature)
        self.temperature = temperature


class CrossEntropyLoss(ListwiseLoss):
    """`-sum_i t_i log rho_i` for targets `t` and `rho_i = e^s_i / (sum_j e^s_j + epsilon)`.

    The gradient by the tempered scores is `T rho - t` with the sum T of the targets, the Hessian
    `T (diag(rho) - rho rho')`.

    Args:
        temperature: see `ListwiseLoss`, as the other arguments.
    """

    curved = True
    epsilon = 0.0

    def targets(self, lists: Lists) -> Array:
        """`[batch, list]`: the targets, with the weights of the documents."""
        raise NotImplementedError("A subclass of CrossEntropyLoss defines targets.")

    def value_and_gradient(self, lists: Lists) -> tuple[Array, Array]:
        targets, softmax = self.targets(lists), self.softmax(lists)
        total = ops.sum(targets, axis=1)
        gradient = (total[:, None] * softmax.shares - targets) / self.temperature
        return softmax.cross_entropy(targets, total), gradient

    def curvature(self, lists: Lists) -> Array:
        softmax = self.softmax(lists)
        total = ops.sum(self.targets(lists), axis=1, keepdims=True)
        return total * softmax.shares * softmax.rest() / self.temperature**2

    def softmax(self, lists: Lists) -> distributions.Softmax:
        """`rho` of each list."""
        return distributions.Softmax(lists.scores, lists.mask, self.temperature, self.epsilon)

    def newton_derivatives(self, lists: Lists) -> Derivatives:
        """Derivatives whose quotient is the step `H^-1 gradient`, to the second order.

        `H^-1` is about `(I + S + S^2) D^-1` with the diagonal `D` of H and `S_ij = rho_j /
        (1 - rho_i)` off the diagonal (Bruch, WWW 2021, Sect. 4.3). The curvature is D, and the
        gradient D times the step, in time linear in the length of the list.
        """
        values, gradient = self.value_and_gradient(lists)
        softmax = self.softmax(lists)
        rho, rest = softmax.shares, softmax.rest()
        curvature = self.curvature(lists)

        def from_others(x: Array) -> Array:
            """`sum_{i != k} x_i`."""
            return ops.where(lists.mask, ops.sum(x, axis=1, keepdims=True) - x, 0.0 * x)

        # Multiplied by D from the left, S x is rho_k sum_{i != k} rho_i x_i.
        once = rho * from_others(ranks.divide_no_nan(gradient, rest))
        twice = rho * from_others(ranks.divide_no_nan(once, rest))
        return Derivatives(values, gradient + once + twice, curvature)


@register
class SoftmaxLoss(CrossEntropyLoss):
    """Softmax cross entropy with the labels as they are.

    `-sum_i y_i log softmax(s)_i` (SIGIR 2022, Eq 7). Lists with larger labels weigh more; for
    labels that sum to 1 see `ListNetLoss`.

    Args:
        temperature: divides the scores.
        reduction: see `RankingLoss`, as the other arguments.

    >>> loss = SoftmaxLoss()
    >>> round(float(loss([[1.0, 0.0]], [[0.6, 0.8]])), 4)  # log(1 + e^0.2)
    0.7981
    """

    def targets(self, lists: Lists) -> Array:
        return lists.weights * lists.labels


@register
class ListNetLoss(CrossEntropyLoss):
    """Cross entropy between the top-k distributions of the labels and of the scores.

    `-sum_i P_y(i) log softmax(s)_i` for k = 1, where `P_y` is `softmax(y)` (Cao et al., 2007;
    Bruch, WWW 2021, Eqs 2-3) or `y_i / sum_j y_j` (Bruch et al., ICTIR 2019, Eqs 6-7); the latter
    bounds MRR and NDCG of binary labels (ICTIR 2019, Theorems 1-3). For k = 2, 3 the sum goes over
    all ordered k-subsets with their Plackett-Luce probabilities; it takes n^k memory. A list of
    fewer than k documents counts with all of them. A subset that has probability 0 under the
    labels counts nothing.

    Args:
        label_distribution: `"softmax"` or `"normalized"`.
        topk: 1, 2 or 3.
        temperature: divides the scores.
        reduction: see `RankingLoss`, as the other arguments.

    >>> loss = ListNetLoss(label_distribution="normalized")
    >>> round(float(loss([[2.0, 0.0]], [[0.6, 0.8]])), 4)  # log(1 + e^0.2)
    0.7981
    """

    def __init__(
        self, label_distribution: str = "softmax", topk: int = 1, **arguments: Any
    ) -> None:
        super().__init__(**arguments)
        check_choice("label_distribution", label_distribution, LABEL_DISTRIBUTIONS)
        if topk not in range(1, MAX_TOPK + 1) or isinstance(topk, bool):
            raise ValueError(f"topk must be 1, 2 or {MAX_TOPK}. Received: topk={topk!r}")
        self.label_distribution = label_distribution
        self.topk = topk
        self.curved = topk == 1

    def targets(self, lists: Lists) -> Array:
        return lists.weights * self._label_probabilities(lists.labels, lists.mask)

    def value_and_gradient(self, lists: Lists) -> tuple[Array, Array]:
        if self.topk == 1:
            return super().value_and_gradient(lists)
        return RankingLoss.value_and_gradient(self, lists)  # by automatic derivatives

    def per_list(self, lists: Lists) -> Array:
        size = lists.scores.shape[1]
        if size is not None and size**self.topk > MAX_PERMUTATIONS:
            raise ValueError(
                f"topk={self.topk} of a list of {size} documents has {size}^{self.topk} ordered "
                f"subsets; at most {MAX_PERMUTATIONS} are in reach: "
                f"{round(MAX_PERMUTATIONS ** (1 / self.topk))} documents for this topk."
            )
        count = ops.sum(ops.cast(lists.mask, "int32"), axis=1)
        left = lists.mask  # [batch, ..., list]: documents that are left after those before them
        joint, cost, result = None, None, None
        for place in range(self.topk):
            shape = (-1,) + (1,) * place + (ops.shape(lists.scores)[1],)
            labels, scores, weights = (
                ops.reshape(x, shape) for x in (lists.labels, lists.scores, lists.weights)
            )
            chosen = self._label_probabilities(ops.where(left, labels, 0.0 * labels), left)
            scores = scores + ops.zeros_like(chosen)
            here = -weights * distributions.log_softmax(scores, left, self.temperature)
            joint = chosen if joint is None else joint[..., None] * chosen
            cost = here if cost is None else cost[..., None] + here
            value = ops.sum(ops.reshape(joint * cost, (ops.shape(count)[0], -1)), axis=1)
            result = value if result is None else ops.where(count > place, value, result)
            if place + 1 < self.topk:
                index = ops.arange(ops.shape(lists.scores)[1])
                left = ops.logical_and(left[..., None, :], index[:, None] != index[None, :])
        return result

    def _label_probabilities(self, labels: Array, mask: Array) -> Array:
        if self.label_distribution == "softmax":
            return distributions.softmax(labels, mask)
        return distributions.normalized(labels)


class SortedListwiseLoss(ListwiseLoss):
    """A listwise loss of lists in the order of their labels, from high to low.

    Args:
        temperature: see `ListwiseLoss`, as the other arguments.
    """

    def sorted(self, lists: Lists) -> tuple[ranks.Order, Lists]:
        """The order by label, equal labels by position, and the lists in it."""
        order, ordered = ranks.sorted_lists(lists.labels, lists)
        return order, ordered

    def value_and_gradient(self, lists: Lists) -> tuple[Array, Array]:
        order, ordered = self.sorted(lists)
        values, gradient = self.sorted_value_and_gradient(ordered)
        return values, order.unsort(gradient)

    def sorted_value_and_gradient(self, lists: Lists) -> tuple[Array, Array]:
        """What `value_and_gradient` returns, of lists in this order."""
        raise NotImplementedError("A subclass of SortedListwiseLoss defines it.")


class PlackettLuceLoss(SortedListwiseLoss, SampledLoss):
    """Minus the log-likelihood of the order of the labels under the Plackett-Luce model.

    Args:
        ties: how documents with equal labels are ordered: `"position"`, as they stand, or
            `"random"`, anew at every step.
        seed: seed of the random order.
        temperature: see `ListwiseLoss`, as the other arguments.
    """

    curved = True

    def __init__(self, ties: str = "position", *, seed: int | None = None, **arguments: Any):
        super().__init__(seed=seed, **arguments)
        check_choice("ties", ties, TIES)
        self.ties = ties

    def sorted(self, lists: Lists) -> tuple[ranks.Order, Lists]:
        if self.ties == "position":
            return super().sorted(lists)
        draws = ops.cast(noise.uniform(lists, self._drawn_seed), lists.scores.dtype)[0]
        shuffled, lists = ranks.sorted_lists(draws, lists)
        order, ordered = super().sorted(lists)
        return shuffled.then(order), ordered

    def sorted_value_and_gradient(self, lists: Lists) -> tuple[Array, Array]:
        weights = lists.weights * self.position_weights(lists)
        sums, shares = self.sums_and_shares(lists)
        costs = ops.where(lists.mask, weights * sums.cost(lists.scores), 0.0)
        return costs, (shares(weights, 1) - weights) / self.temperature

    def curvature(self, lists: Lists) -> Array:
        # That of sum_r w_r log sum_{k >= r} e^s_k is sum_{r <= k} w_r p_rk (1 - p_rk), with the
        # shares p_rk = e^s_k / sum_{k >= r} e^s_k.
        order, ordered = self.sorted(lists)
        weights = ordered.weights * self.position_weights(ordered)
        _, shares = self.sums_and_shares(ordered)
        bend = ops.maximum(shares(weights, 1) - shares(weights, 2), 0.0)
        return order.unsort(bend) / self.temperature**2

    def sums_and_shares(self, lists: Lists) -> tuple[tails.LogSum, Callable[[Array, int], Array]]:
        """The normalisers of the model, when the documents before each are taken.

        And the sum of a document's shares of them, to some power, with weights.
        """
        scale = 1.0 / self.temperature
        if backend.on_accelerator():
            documents = lists.scores, lists.mask
            sums = tails.of_pairs(*documents, scale, _not_before)
            return sums, lambda weights, power: tails.shares_of_pairs(
                *documents, sums, weights, _not_before, power
            )
        ends = tails.Ends(lists.scores, lists.mask, scale)
        sums = ends.sums()
        return sums, lambda weights, power: ends.shares(sums, weights, power=power)

    def position_weights(self, lists: Lists) -> Array:
        """The weight of each position of the ideal order."""
        return ops.ones_like(lists.scores)


@register
class ListMLELoss(PlackettLuceLoss):
    """ListMLE: the likelihood of the ideal order.

    `sum_r [log sum_{q >= r} e^s_(q) - s_(r)]` with documents in the order of their labels
    (Xia et al., 2008; Oosterhuis, Learning to Rank, Eq 47 for the model).

    Args:
        ties: `"position"` or `"random"`, the order of equal labels.
        seed: seed of the random order.
        temperature: divides the scores.
        reduction: see `RankingLoss`, as the other arguments.

    >>> loss = ListMLELoss()
    >>> round(float(loss([[1.0, 0.0]], [[0.6, 0.8]])), 4)  # log(1 + e^0.2)
    0.7981
    """


@register
class PositionAwareListMLELoss(PlackettLuceLoss):
    """Position-aware ListMLE: the top of the ideal order weighs more.

    As `ListMLELoss`, with position r weighted by `(2^(n - r) - 1) / sum_q (2^(n - q) - 1)` (Lan et
    al., 2014; divided by the sum, because `2^n` overflows).

    Args:
        ties: `"position"` or `"random"`, the order of equal labels.
        seed: seed of the random order.
        temperature: divides the scores.
        reduction: see `RankingLoss`, as the other arguments.

    >>> loss = PositionAwareListMLELoss()
    >>> round(float(loss([[1.0, 0.0]], [[0.6, 0.8]])), 4)  # log(1 + e^0.2)
    0.7981
    """

    def position_weights(self, lists: Lists) -> Array:
        count = ops.sum(ops.cast(lists.mask, lists.scores.dtype), axis=1, keepdims=True)
        weights = ranks.power_of_two(-ranks.rank_numbers(lists.scores))
        weights = weights - ranks.power_of_two(-count)
        return distributions.normalized(ops.where(lists.mask, weights, ops.zeros_like(weights)))


@register
class XENDCGLoss(CrossEntropyLoss, SampledLoss):
    """XE-NDCG: a convex bound on NDCG for graded labels.

    `-sum_i phi_i log rho_i` with `phi_i = (2^y_i - gamma_i) / sum_j (2^y_j - gamma_j)` and
    `rho_i = e^s_i / (sum_j e^s_j + epsilon)` (Bruch, WWW 2021, Eqs 10, 13). Without
    weights and at temperature 1 its gradient is `rho - phi`.

    Args:
        gamma: `"uniform"` draws each `gamma_i` from [0, 1] afresh at every step; or one number in
            [0, 1] for all.
        epsilon: added to the normaliser, which makes the Hessian positive definite.
        seed: seed of the draws.
        temperature: divides the scores.
        reduction: see `RankingLoss`, as the other arguments.

    >>> loss = XENDCGLoss(gamma=1.0)
    >>> round(float(loss([[1.0, 0.0]], [[0.6, 0.8]])), 4)  # log(1 + e^0.2)
    0.7981
    """

    def __init__(
        self,
        gamma: str | float = "uniform",
        epsilon: float = 0.0,
        *,
        seed: int | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(seed=seed, **arguments)
        number = isinstance(gamma, (int, float)) and not isinstance(gamma, bool)
        if gamma != "uniform" and not (number and 0 <= gamma <= 1):  # type: ignore[operator]
            raise ValueError(
                f"gamma must be 'uniform' or a number in [0, 1]. Received: gamma={gamma!r}"
            )
        check_not_negative("epsilon", epsilon)
        self.gamma = gamma
        self.epsilon = epsilon

    def targets(self, lists: Lists) -> Array:
        return lists.weights * self.label_distribution(lists)

    def label_distribution(self, lists: Lists) -> Array:
        """`phi_i`, all divided by 2 to the highest label so that none overflows."""
        gamma: Any = self.gamma
        if gamma == "uniform":
            gamma = ops.cast(noise.uniform(lists, self._drawn_seed), lists.scores.dtype)[0]
        highest = ops.max(lists.labels, axis=1, keepdims=True)
        # 2^y - gamma is (2^y - 1) + (1 - gamma), which does not cancel for small labels.
        gains = ranks.scaled_gains(lists.labels, lists.mask, highest=highest)
        values = gains + (1.0 - gamma) * ranks.power_of_two(-highest)
        return distributions.normalized(ops.where(lists.mask, values, ops.zeros_like(values)))


@register
class UniqueSoftmaxLoss(SortedListwiseLoss):
    """Softmax of each document against those with lower labels only.

    `-sum_i G(y_i) log(e^s_i / (e^s_i + sum_{j: y_j < y_i} e^s_j))` (Zhu and Klabjan, 2020), by one
    sort and cumulative sums.

    Args:
        gain: `"exponential"` for `2^y - 1`, `"linear"` for `y`, or a function of the labels.
        temperature: divides the scores.
        reduction: see `RankingLoss`, as the other arguments.

    >>> loss = UniqueSoftmaxLoss()
    >>> round(float(loss([[1.0, 0.0]], [[0.6, 0.8]])), 4)  # log(1 + e^0.2)
    0.7981
    """

    def __init__(self, *, gain: ranks.Gain = "exponential", **arguments: Any) -> None:
        super().__init__(**arguments)
        check_function("gain", gain, ranks.GAINS)
        self.gain = gain

    def value_and_gradient(self, lists: Lists) -> tuple[Array, Array]:
        if not backend.on_accelerator():
            return super().value_and_gradient(lists)
        # All pairs are cheaper than the sort.
        targets = self.targets(lists)
        counts = {"counts": _is_lower_or_itself, "label": lists.labels}
        sums = tails.of_pairs(lists.scores, lists.mask, 1.0 / self.temperature, **counts)
        shares = tails.shares_of_pairs(lists.scores, lists.mask, sums, targets, **counts)
        return self._costs_and_gradient(lists, targets, sums, shares)

    def targets(self, lists: Lists) -> Array:
        """`[batch, list]`: the weighted gains."""
        return lists.weights * ranks.gains(lists.labels, lists.mask, self.gain)

    def sorted_value_and_gradient(self, lists: Lists) -> tuple[Array, Array]:
        scores, mask, scale = lists.scores, lists.mask, 1.0 / self.temperature
        targets = self.targets(lists)
        first, lower = _label_bounds(lists)  # of each label, and of the next lower one
        exists = lower < ops.shape(scores)[1]
        ends = tails.Ends(scores, mask, scale)
        rest, below = ends.sums(), ops.where(exists, lower, 0 * lower)
        rest = tails.LogSum(_at(rest.highest, below), _at(rest.total, below), scale)
        joined = rest.with_itself(scores)
        sums = tails.LogSum(
            ops.where(exists, joined.highest, scores), ops.where(exists, joined.total, 1.0), scale
        )
        own = targets / sums.total * ops.exp(scale * (scores - sums.highest))
        # From all documents with a higher label: those before the first one of its own.
        others = ends.shares(sums, targets, last=ops.maximum(first - 1, 0))
        shares = ops.where(mask, own, 0.0) + ops.where(first > 0, others, 0.0)
        return self._costs_and_gradient(lists, targets, sums, shares)

    def _costs_and_gradient(
        self, lists: Lists, targets: Array, sums: tails.LogSum, shares: Array
    ) -> tuple[Array, Array]:
        costs = ops.where(lists.mask, targets * sums.cost(lists.scores), 0.0)
        return costs, (shares - targets) / self.temperature


@register
class Poly1SoftmaxLoss(ListwiseLoss):
    """Softmax cross entropy plus the first polynomial term of PolyLoss.

    `-sum_i y_i log softmax(s)_i + epsilon (1 - sum_i (y_i / sum_j y_j) softmax(s)_i)` (Leng et al.,
    2022).

    Args:
        epsilon: weight of the polynomial term.
        temperature: divides the scores.
        reduction: see `RankingLoss`, as the other arguments.

    >>> loss = Poly1SoftmaxLoss(epsilon=1.0)
    >>> round(float(loss([[1.0, 0.0]], [[0.6, 0.8]])), 4)  # log(1 + e^0.2) + 1 - 1/(1 + e^0.2)
    1.348
    """

    def __init__(self, epsilon: float = 1.0, **arguments: Any) -> None:
        super().__init__(**arguments)
        check_not_negative("epsilon", epsilon)
        self.epsilon = epsilon

    def value_and_gradient(self, lists: Lists) -> tuple[Array, Array]:
        targets = lists.weights * lists.labels
        softmax = distributions.Softmax(lists.scores, lists.mask, self.temperature)
        total = ops.sum(targets, axis=1)
        relevant = total > 0
        share = ops.where(relevant, 1.0 / ops.where(relevant, total, 1.0), 0.0)
        agreement = share * softmax.expectation(targets)
        values = softmax.cross_entropy(targets, total)
        values = values + self.epsilon * (ops.cast(relevant, values.dtype) - agreement)
        pull = targets * share[:, None] - agreement[:, None]
        gradient = softmax.shares * (total[:, None] - self.epsilon * pull) - targets
        return values, gradient / self.temperature


@register
class CalibratedSoftmaxLoss(ListwiseLoss):
    """Softmax cross entropy with a virtual document that anchors the scores at 0.

    The softmax loss of the list and one more document of score 0 and label `virtual_label`
    (Yan et al., KDD 2022), so that scores of different lists share a scale.

    Args:
        virtual_label: label of the virtual document, above 0.
        temperature: divides the scores.
        reduction: see `RankingLoss`, as the other arguments.

    >>> loss = CalibratedSoftmaxLoss(virtual_label=1.0)
    >>> round(float(loss([[1.0]], [[0.0]])), 4)  # 2 log 2
    1.3863
    """

    compares = False  # with the virtual document alone, if there is no other

    def __init__(self, virtual_label: float = 1.0, **arguments: Any) -> None:
        super().__init__(**arguments)
        check_positive("virtual_label", virtual_label)
        self.virtual_label = virtual_label

    def value_and_gradient(self, lists: Lists) -> tuple[Array, Array]:
        targets = lists.weights * lists.labels
        # The virtual document adds e^0.
        softmax = distributions.Softmax(lists.scores, lists.mask, self.temperature, epsilon=1.0)
        total = ops.sum(targets, axis=1)
        values = softmax.cross_entropy(targets, total) + self.virtual_label * softmax.normalizer
        gradient = (total + self.virtual_label)[:, None] * softmax.shares - targets
        return values, gradient / self.temperature


def _label_bounds(lists: Lists) -> tuple[Array, Array]:
    """For lists sorted by label: the first position of a document's label, and of the next lower.

    The latter is the length of the list where there is none.
    """
    labels, mask = lists.labels, lists.mask
    size = ops.shape(labels)[1]
    index = positions(labels)
    changes = ops.logical_and(labels[:, 1:] != labels[:, :-1], mask[:, 1:])
    starts = ops.where(changes, index[:, 1:], 0 * index[:, 1:])
    starts = ops.pad(starts, ((0, 0), (1, 0)))
    ends = ops.where(changes, index[:, 1:], size + 0 * index[:, 1:])
    ends = ops.concatenate([ends, size + 0 * index[:, :1]], axis=1)
    # ends[r] speaks of position r + 1, so the minimum from r on is the next start after r. One scan
    # for both: the other one from the end, with the signs changed.
    first, lower = prefix_scan(
        lambda a, b: tuple(map(ops.maximum, a, b)),
        (starts, -ops.flip(ends, axis=1)),
        (0, -(2**31 - 1)),
    )
    return first, -ops.flip(lower, axis=1)


def _at(x: Array, positions: Array) -> Array:
    return ops.take_along_axis(x, positions, axis=1)


def _not_before(document: Documents, other: Documents) -> Array:
    return other.index >= document.index


def _is_lower_or_itself(document: Documents, other: Documents) -> Array:
    return ops.logical_or(other.label < document.label, other.index == document.index)
