"""The losses in plain PyTorch, the way a user writes them: whole pair arrays and autograd.

Every function takes scores and labels ``[batch, list]``, a label below 0 marks padding, and gives
the mean over the lists.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

LOG_2 = math.log(2.0)


# --- shared parts


def differences(values: Tensor) -> Tensor:
    """``values_i - values_j`` for all pairs, ``[batch, list, list]``."""
    return values[:, :, None] - values[:, None, :]


def valid_pairs(labels: Tensor) -> Tensor:
    """Pairs of two real documents."""
    valid = labels >= 0
    return valid[:, :, None] & valid[:, None, :]


def preferred_pairs(labels: Tensor) -> Tensor:
    """Pairs of real documents with ``y_i > y_j``."""
    return (labels[:, :, None] > labels[:, None, :]) & (labels >= 0)[:, None, :]


def mean_over_lists(values: Tensor) -> Tensor:
    """Sums everything but the batch axis and takes the mean over the batch."""
    return values.sum() / values.shape[0]


def ranks(scores: Tensor) -> Tensor:
    """1-based ranks, highest score first."""
    return scores.argsort(dim=1, descending=True, stable=True).argsort(dim=1) + 1


def inverse_discount(rank: Tensor) -> Tensor:
    """``1 / log2(1 + rank)``."""
    return 1.0 / torch.log2(1.0 + rank)


def normalized_gains(labels: Tensor, topn: int | None = None) -> Tensor:
    """``2^y - 1`` over the best DCG of the list, zero for padding."""
    gains = torch.where(labels >= 0, 2.0**labels - 1.0, 0.0)
    positions = torch.arange(1, labels.shape[1] + 1)
    ideal = gains.sort(dim=1, descending=True).values * inverse_discount(positions)
    return gains / ideal[:, :topn].sum(dim=1, keepdim=True).clamp_min(1e-12)


def masked_scores(scores: Tensor, labels: Tensor) -> Tensor:
    """Scores with minus infinity for padding."""
    return torch.where(labels >= 0, scores, -torch.inf)


def log_softmax(scores: Tensor, labels: Tensor) -> Tensor:
    """Log of the softmax over the real documents, zero for padding."""
    result = functional.log_softmax(masked_scores(scores, labels), dim=1)
    return torch.where(labels >= 0, result, 0.0)


# --- pairwise


def pairwise_logistic(scores: Tensor, labels: Tensor) -> Tensor:
    """``log(1 + e^-(s_i - s_j))`` over the preferred pairs."""
    pair_losses = functional.softplus(-differences(scores))
    return mean_over_lists(torch.where(preferred_pairs(labels), pair_losses, 0.0))


def pairwise_hinge(scores: Tensor, labels: Tensor) -> Tensor:
    """``max(0, 1 - (s_i - s_j))`` over the preferred pairs."""
    pair_losses = functional.relu(1.0 - differences(scores))
    return mean_over_lists(torch.where(preferred_pairs(labels), pair_losses, 0.0))


def pairwise_soft_zero_one(scores: Tensor, labels: Tensor) -> Tensor:
    """``1 / (1 + e^(s_i - s_j))`` over the preferred pairs."""
    pair_losses = torch.sigmoid(-differences(scores))
    return mean_over_lists(torch.where(preferred_pairs(labels), pair_losses, 0.0))


def pairwise_squared(scores: Tensor, labels: Tensor) -> Tensor:
    """``((y_i - y_j) - (s_i - s_j))^2`` over all pairs."""
    pair_losses = (differences(labels) - differences(scores)) ** 2
    return mean_over_lists(torch.where(valid_pairs(labels), pair_losses, 0.0))


# --- lambda


def lambda_loss(scores: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Weighted logistic loss to base 2 over the preferred pairs."""
    pair_losses = weights * functional.softplus(-differences(scores)) / LOG_2
    return mean_over_lists(torch.where(preferred_pairs(labels), pair_losses, 0.0))


@torch.no_grad()
def ndcg_loss2_weights(scores: Tensor, labels: Tensor, topn: int | None, truncated: bool) -> Tensor:
    """``|G_i - G_j| delta_ij``, corrected or truncated beyond a cutoff."""
    rank = ranks(masked_scores(scores, labels))
    distance = differences(rank).abs()
    delta = inverse_discount(distance) - inverse_discount(distance + 1)
    delta = torch.where(distance > 0, delta, 0.0)
    if topn is not None:
        lower = torch.maximum(rank[:, :, None], rank[:, None, :])
        upper = torch.minimum(rank[:, :, None], rank[:, None, :])
        if truncated:
            delta = torch.where(upper <= topn, delta, 0.0)
        else:
            delta = torch.where(lower > topn, delta / (1.0 - inverse_discount(lower)), delta)
    return differences(normalized_gains(labels, topn)).abs() * delta


def ndcg_loss2(
    scores: Tensor, labels: Tensor, topn: int | None = None, truncated: bool = False
) -> Tensor:
    """NDCG-Loss2 of the LambdaLoss framework."""
    return lambda_loss(scores, labels, ndcg_loss2_weights(scores, labels, topn, truncated))


@torch.no_grad()
def lambdarank_weights(scores: Tensor, labels: Tensor, topn: int | None) -> Tensor:
    """``|G_i - G_j| |1/D_i - 1/D_j|``, with no discount beyond a cutoff."""
    rank = ranks(masked_scores(scores, labels))
    discounts = inverse_discount(rank)
    if topn is not None:
        discounts = torch.where(rank <= topn, discounts, 0.0)
    return differences(normalized_gains(labels, topn)).abs() * differences(discounts).abs()


def lambdarank(scores: Tensor, labels: Tensor, topn: int | None = None) -> Tensor:
    """LambdaRank for NDCG."""
    return lambda_loss(scores, labels, lambdarank_weights(scores, labels, topn))


def arp_loss2(scores: Tensor, labels: Tensor) -> Tensor:
    """ARP-Loss2: pairs weighted by the difference of their labels."""
    return lambda_loss(scores, labels, differences(labels).abs())


@torch.no_grad()
def precision_weights(scores: Tensor, labels: Tensor, topn: int) -> Tensor:
    """``1/K`` for pairs with one document inside the first K."""
    inside = ranks(masked_scores(scores, labels)) <= topn
    return (inside[:, :, None] ^ inside[:, None, :]) / topn


def lambdarank_precision(scores: Tensor, labels: Tensor, topn: int) -> Tensor:
    """LambdaRank for Precision@K."""
    return lambda_loss(scores, labels, precision_weights(scores, labels, topn))


# --- listwise


def softmax(scores: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy ``-sum_i y_i log p_i`` with ``p`` the softmax of the scores."""
    return -mean_over_lists(labels.clamp_min(0.0) * log_softmax(scores, labels))


def listnet(scores: Tensor, labels: Tensor) -> Tensor:
    """The softmax loss with ``y / sum(y)`` as target."""
    targets = labels.clamp_min(0.0)
    targets = targets / targets.sum(dim=1, keepdim=True)
    return -mean_over_lists(targets * log_softmax(scores, labels))


def listmle(scores: Tensor, labels: Tensor) -> Tensor:
    """Negative log likelihood of the order by label under Plackett-Luce."""
    order = labels.argsort(dim=1, descending=True, stable=True)
    valid = labels.gather(1, order) >= 0
    ordered = torch.where(valid, scores.gather(1, order), -torch.inf)
    # A finite stand-in keeps the gradient of the cumulative sum over leading padding finite.
    ordered = ordered.clamp_min(-1e30)
    normalizers = ordered.flip(1).logcumsumexp(dim=1).flip(1)
    return mean_over_lists(torch.where(valid, normalizers - ordered, 0.0))


def unique_softmax(scores: Tensor, labels: Tensor) -> Tensor:
    """Each document against itself and the lower labels, weighted by its gain."""
    itself = torch.eye(labels.shape[1], dtype=torch.bool)
    rivals = torch.where(preferred_pairs(labels) | itself, scores[:, None, :], -torch.inf)
    gains = torch.where(labels >= 0, 2.0**labels - 1.0, 0.0)
    return mean_over_lists(gains * (rivals.logsumexp(dim=2) - scores))


def poly1_softmax(scores: Tensor, labels: Tensor, epsilon: float = 1.0) -> Tensor:
    """The softmax loss plus epsilon times the probability that misses the target."""
    targets = labels.clamp_min(0.0)
    log_probabilities = log_softmax(scores, labels)
    shares = targets / targets.sum(dim=1, keepdim=True)
    hit = (shares * log_probabilities.exp()).sum(dim=1)
    cross_entropy = -(targets * log_probabilities).sum(dim=1)
    return (cross_entropy + epsilon * (1.0 - hit)).mean()


def calibrated_softmax(scores: Tensor, labels: Tensor, virtual_label: float = 1.0) -> Tensor:
    """The softmax loss with one more document of score 0."""
    extended_scores = functional.pad(scores, (0, 1), value=0.0)
    extended_labels = functional.pad(labels, (0, 1), value=virtual_label)
    return softmax(extended_scores, extended_labels)


# --- smooth metrics


def soft_ranks(scores: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """``1/2 + sum_j sigmoid((s_j - s_i) / temperature)``; the term j = i gives the other half."""
    above = torch.sigmoid(-differences(scores) / temperature)
    return 0.5 + torch.where((labels >= 0)[:, None, :], above, 0.0).sum(dim=2)


def approx_ndcg(scores: Tensor, labels: Tensor, temperature: float = 0.1) -> Tensor:
    """Minus NDCG at the soft ranks."""
    discounts = inverse_discount(soft_ranks(scores, labels, temperature))
    return -mean_over_lists(normalized_gains(labels) * discounts)


def approx_dcg(scores: Tensor, labels: Tensor, temperature: float = 0.1) -> Tensor:
    """Minus DCG at the soft ranks."""
    gains = torch.where(labels >= 0, 2.0**labels - 1.0, 0.0)
    return -mean_over_lists(gains * inverse_discount(soft_ranks(scores, labels, temperature)))


def approx_map(scores: Tensor, labels: Tensor, temperature: float = 0.1) -> Tensor:
    """Minus average precision at the soft ranks."""
    above = torch.sigmoid(-differences(scores) / temperature)
    relevant = labels > 0
    rank = 0.5 + torch.where((labels >= 0)[:, None, :], above, 0.0).sum(dim=2)
    relevant_rank = 0.5 + torch.where(relevant[:, None, :], above, 0.0).sum(dim=2)
    precisions = torch.where(relevant, relevant_rank / rank, 0.0)
    return -(precisions.sum(dim=1) / relevant.sum(dim=1)).mean()


def gumbel_approx_ndcg(
    scores: Tensor, labels: Tensor, temperature: float = 0.1, samples: int = 8
) -> Tensor:
    """ApproxNDCG of scores with Gumbel noise, mean over the samples."""
    uniform = torch.rand(samples, *scores.shape).clamp(1e-20, 1.0 - 1e-7)
    noisy_scores = scores - torch.log(-torch.log(uniform))
    repeated_labels = labels.expand(samples, *labels.shape)
    return approx_ndcg(noisy_scores.flatten(0, 1), repeated_labels.flatten(0, 1), temperature)


def approx_mrr(scores: Tensor, labels: Tensor, temperature: float = 0.1) -> Tensor:
    """Minus the best reciprocal soft rank of a relevant document."""
    reciprocal = 1.0 / soft_ranks(scores, labels, temperature)
    return -torch.where(labels > 0, reciprocal, 0.0).amax(dim=1).mean()


# --- pointwise


def pointwise_sigmoid(scores: Tensor, labels: Tensor) -> Tensor:
    """Sigmoid cross entropy with the target ``min(y, 1)``."""
    targets = labels.clamp(0.0, 1.0)
    losses = functional.binary_cross_entropy_with_logits(scores, targets, reduction="none")
    return mean_over_lists(torch.where(labels >= 0, losses, 0.0))


def pointwise_squared(scores: Tensor, labels: Tensor) -> Tensor:
    """``(y_i - s_i)^2``."""
    return mean_over_lists(torch.where(labels >= 0, (labels - scores) ** 2, 0.0))


def ordinal(scores: Tensor, labels: Tensor) -> Tensor:
    """Scores ``[batch, list, grades]``: output g is the logit of ``P(y > g)``."""
    targets = (labels[:, :, None] > torch.arange(scores.shape[2])).float()
    losses = functional.binary_cross_entropy_with_logits(scores, targets, reduction="none")
    return mean_over_lists(torch.where((labels >= 0)[:, :, None], losses, 0.0))
