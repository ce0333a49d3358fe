"""Gradient and diagonal curvature of a loss for documents one below the other.

Trees ask for both at every round, for the same lists. So the lists are put into padded batches
once, few shapes and little padding, and a round is a gather, a compiled program per shape, and a
scatter.
"""

import functools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from tfrankloss import losses
from tfrankloss.core import backend
from tfrankloss.core.lists import Derivatives, Received, clean
from tfrankloss.losses.base import RankingLoss
from tfrankloss.losses.lambdas import RankWeightedLoss
from tfrankloss.losses.listwise import CrossEntropyLoss
from tfrankloss.losses.pairwise import PairLoss
from tfrankloss.options import check_not_negative

# Places of a batch, padding included. Sums over pairs go over its arrays again and again: they stay
# in the cache of a core. Other losses go over them once: few programs to start are better.
PAIR_BATCH, OTHER_BATCH = 1 << 15, 1 << 17
# The share of all pairs that padding may add for the sake of one program less.
MERGED_SHARE = 0.02


class TreeLoss:
    """A loss as trees see it: compiled derivatives of padded lists.

    Args:
        loss: a loss with a curvature, or its name.
        normalize: whether to normalise as LightGBM's `lambdarank_norm` does, for losses of pairs
            that know the ranks.
        newton: whether the gradient is such that a leaf's step is the approximate `H^-1 gradient`,
            for cross entropies.
        curvature_floor: the least curvature of a document.
    """

    def __init__(
        self, loss: RankingLoss | str, normalize: bool, newton: bool, curvature_floor: float
    ) -> None:
        self.loss = losses.get(loss)
        self.normalize, self.newton, self.curvature_floor = normalize, newton, curvature_floor
        check_not_negative("curvature_floor", curvature_floor)
        name = type(self.loss).__name__
        if not self.loss.curved or self.loss.outputs > 1:
            options = " with these options" if type(self.loss).curved else ""
            raise ValueError(
                f"{name} has no curvature{options}, which trees need. Losses that have one: "
                f"{', '.join(curved_losses())}"
            )
        if not self.loss.strictly_convex and not curvature_floor:
            raise ValueError(
                f"The curvature of {name} may be 0 or below, where trees divide by it: "
                "give curvature_floor. Received: curvature_floor=0"
            )
        if normalize and not isinstance(self.loss, RankWeightedLoss):
            raise ValueError(
                "normalize=True is for LambdaRank and the other losses of pairs with ranks. "
                f"Received: {name}"
            )
        if newton and not isinstance(self.loss, CrossEntropyLoss):
            raise ValueError(
                f"newton=True is for cross entropies (softmax, ListNet, XE-NDCG). Received: {name}"
            )

    def __call__(self, batch: "Batch", scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gradient and curvature of the scores `[batch, list]` of a batch."""
        # Kept with the loss: what one booster compiled serves the next one, and an option of the
        # loss may change.
        key = f"trees {self.normalize} {self.newton} {self.curvature_floor}"
        kernels = self.loss._kernels
        if key not in kernels:
            kernels.setdefault(key, backend.compiled(self._run))
        parts = kernels[key](batch.labels, ops.convert_to_tensor(scores), batch.weights)
        gradient, curvature = (ops.convert_to_numpy(part) for part in parts)
        return gradient, curvature

    def _run(self, labels: Any, scores: Any, weights: Any) -> tuple[Any, Any]:
        lists = clean(Received(labels, scores, None, weights, None), self.loss.compute_dtype)
        found = self._derivatives(lists)
        curvature = found.curvature
        if self.curvature_floor:
            curvature = ops.maximum(curvature, self.curvature_floor)
        return found.gradient, curvature

    def _derivatives(self, lists: Any) -> Derivatives:
        if self.newton:
            return self.loss.newton_derivatives(lists)
        if self.normalize:
            return self.loss.normalized_derivatives(lists)
        return self.loss.derivatives(lists, curvature=True)


class Batch(NamedTuple):
    """Lists of about the same length."""

    labels: Any  # [batch, list], -1 in padding
    weights: Any  # [batch, list] or None
    places: slice  # of the batch among the places of all batches


class DocumentDerivatives:
    """Gradient and curvature of all documents of a data set.

    Args:
        loss: what to derive.
        labels: `[documents]`, list by list.
        lengths: `[lists]`, their documents.
        weights: `[documents]`, `[lists]` or None.
    """

    def __init__(
        self,
        loss: TreeLoss,
        labels: np.ndarray,
        lengths: np.ndarray,
        weights: np.ndarray | None = None,
    ) -> None:
        self._loss = loss
        self._dtype = loss.loss.compute_dtype or "float32"
        self._documents = len(labels)
        _check(labels, lengths, weights)
        if weights is not None and len(weights) == len(lengths) != len(labels):
            weights = np.repeat(weights, lengths)
        # The last entry is that of list -1, which is empty.
        starts = np.concatenate([[0], np.cumsum(lengths)])
        lengths = np.concatenate([lengths, [0]])
        self._batches: list[Batch] = []
        document_at, begin = [], 0
        most = PAIR_BATCH if isinstance(loss.loss, PairLoss) else OTHER_BATCH
        for size, lists in _batches(lengths[:-1], most):
            real = np.arange(size) < lengths[lists, None]
            rows = np.where(real, starts[lists, None] + np.arange(size), -1)
            places = slice(begin, begin + rows.size)
            self._batches.append(self._batch(labels, weights, rows, places))
            document_at.append(rows.ravel())
            begin = places.stop
        # The document at each place of all batches, the first one in padding; and the reverse.
        rows = np.concatenate([np.empty(0, np.int64), *document_at])
        self._document_at = np.maximum(rows, 0)
        self._place_of = np.empty(len(labels), np.int64)
        self._place_of[rows[rows >= 0]] = np.flatnonzero(rows >= 0)

    def __call__(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gradient and curvature `[documents]` at scores `[documents]`."""
        if len(scores) != self._documents:
            raise ValueError(
                f"There must be a score for each of the {self._documents} documents. "
                f"Received: {len(scores)}"
            )
        padded = np.take(scores.astype(self._dtype), self._document_at)
        results = np.empty((2, len(padded)), self._dtype)

        def fill(batch: Batch) -> None:
            parts = self._loss(batch, padded[batch.places].reshape(batch.labels.shape))
            for result, part in zip(results, parts, strict=True):
                result[batch.places] = part.ravel()

        # A program of XLA is one thread's work for the most part.
        list(_threads().map(fill, self._batches))
        gradient, curvature = (np.take(result, self._place_of) for result in results)
        return gradient, curvature

    def _batch(
        self, labels: np.ndarray, weights: np.ndarray | None, rows: np.ndarray, places: slice
    ) -> Batch:
        padded = np.where(rows >= 0, labels[rows], -1.0)
        return Batch(
            ops.convert_to_tensor(padded, self._dtype),
            None if weights is None else ops.convert_to_tensor(weights[rows], self._dtype),
            places,
        )


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count() or 1)


def curved_losses() -> list[str]:
    """The names of the losses that have a curvature."""
    return [name for name, kind in losses.LOSSES.items() if kind.curved]


def _batches(lengths: np.ndarray, most_places: int) -> list[tuple[int, np.ndarray]]:
    """The padded size of each batch and the numbers of its lists, -1 for none; long lists first.

    All batches of a size have one shape, and the number of their lists is round, so that other data
    find programs for most of theirs.
    """
    padded = _padded_sizes(lengths)
    result = []
    for size in np.unique(padded[lengths > 0])[::-1].tolist():
        lists = np.flatnonzero((padded == size) & (lengths > 0))
        count = -(-len(lists) * size // most_places)
        per_batch = _round_up(-(-len(lists) // count))
        for start in range(0, len(lists), per_batch):
            batch = np.full(per_batch, -1)
            part = lists[start : start + per_batch]
            batch[: len(part)] = part
            result.append((size, batch))
    return result


def _padded_sizes(lengths: np.ndarray) -> np.ndarray:
    """The size that each list is padded to.

    Lists of a size which take little time join those of the next: a program takes seconds to
    compile.
    """
    sizes = np.array(backend.LIST_SIZES)
    padded = sizes[np.searchsorted(sizes, lengths)]
    used, counts = np.unique(padded[lengths > 0], return_counts=True)
    time = float((counts * used.astype(float) ** 2).sum())  # of pairs; for others it is less
    for i in range(len(used) - 1):
        if counts[i] * float(used[i + 1] ** 2 - used[i] ** 2) < MERGED_SHARE * time:
            padded[padded == used[i]] = used[i + 1]
            counts[i + 1] += counts[i]
    return padded


def _round_up(number: int) -> int:
    """The next number whose binary digits are all 0 behind the first four."""
    step = 1 << max(0, number.bit_length() - 4)
    return -(-number // step) * step


def _check(labels: np.ndarray, lengths: np.ndarray, weights: np.ndarray | None) -> None:
    if lengths.sum() != len(labels):
        raise ValueError(
            "The list sizes (group) must add up to the number of documents. "
            f"Received: {lengths.sum()} and {len(labels)} documents"
        )
    wrong = np.flatnonzero(~(labels >= 0) | ~np.isfinite(labels))
    if len(wrong):
        raise ValueError(
            "Labels must be at least 0 and finite. "
            f"Received: {labels[wrong[0]]} for document {wrong[0]}"
        )
    if weights is not None:
        if len(weights) not in (len(labels), len(lengths)):
            raise ValueError(
                f"There must be a weight for each of the {len(labels)} documents or of the "
                f"{len(lengths)} lists. Received: {len(weights)}"
            )
        if not (np.isfinite(weights) & (weights >= 0)).all():
            raise ValueError("Weights must be at least 0 and finite.")
