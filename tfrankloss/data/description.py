"""What data look like before anyone trains on them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tfrankloss.options import needs

if TYPE_CHECKING:
    from tfrankloss.data.ranking_data import RankingData

# A feature whose largest value is this many standard deviations above its mean is heavy-tailed.
HEAVY_TAIL = 20.0


@dataclass(frozen=True)
class Description:
    """What `RankingData.describe` says.

    Attributes:
        queries: number of queries.
        documents: number of documents.
        features: number of features.
        lengths: `[queries]`, documents per query.
        labels: the number of documents of each label, from the lowest label to the highest.
        without_relevant: number of queries without a label above 0.
        constant_features: features with the same value in all documents.
        heavy_tailed_features: features with values far beyond the others (20 standard deviations):
            take `Log1p` of them.
        not_finite_features: features that are NaN or infinite somewhere.
    """

    queries: int
    documents: int
    features: int
    lengths: np.ndarray
    labels: Mapping[float, int]
    without_relevant: int
    constant_features: list[int]
    heavy_tailed_features: list[int]
    not_finite_features: list[int]

    def __str__(self) -> str:
        lines = [f"{self.queries} queries, {self.documents} documents, {self.features} features"]
        if not self.queries:
            return lines[0]
        low, middle, high = np.quantile(self.lengths, [0.05, 0.5, 0.95]).astype(int)
        lines.append(
            f"documents per query: {self.lengths.min()} to {self.lengths.max()}, "
            f"mean {self.lengths.mean():.1f}, median {middle}, 90 % in {low} to {high}"
        )
        labels = list(self.labels.items())
        shown = labels if len(labels) <= 12 else [*labels[:6], *labels[-6:]]
        lines += [
            f"  label {label:g}: {count} ({count / self.documents:.1%})" for label, count in shown
        ]
        if len(labels) > len(shown):
            lines.append(f"  ({len(labels) - len(shown)} labels between are left out)")
        lines.append(f"queries without a relevant document: {self.without_relevant}")
        for kind in ("constant", "heavy_tailed", "not_finite"):
            numbers = getattr(self, f"{kind}_features")
            if numbers:
                more = ", ..." if len(numbers) > 15 else ""
                listed = ", ".join(map(str, numbers[:15]))
                title = f"{kind.replace('_', ' ')} features: {len(numbers)}"
                lines.append(f"{title}, columns (from 0) {listed}{more}")
        return "\n".join(lines)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Documents per query and labels as a Matplotlib figure; also written to `path`."""
        needs("matplotlib", "plots")
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 3.5), layout="constrained")
        left, right = figure.subplots(1, 2)
        left.hist(self.lengths, bins=min(50, max(1, len(np.unique(self.lengths)))))
        left.set(xlabel="documents per query", ylabel="queries")
        right.bar([f"{label:g}" for label in self.labels], list(self.labels.values()))
        right.set(xlabel="label", ylabel="documents")
        figure.suptitle(str(self).splitlines()[0])
        if path is not None:
            figure.savefig(path)
        return figure


def describe(data: "RankingData") -> Description:
    """Goes through the features once, in pieces, in float64."""
    labels, counts = np.unique(data.labels, return_counts=True)
    width = data.num_features
    low, high = np.full(width, np.inf), np.full(width, -np.inf)
    total, squares, seen = np.zeros(width), np.zeros(width), np.zeros(width)
    for rows in data.chunks():
        part = data.features[rows].astype(np.float64)
        finite = np.isfinite(part)
        low = np.minimum(low, np.where(finite, part, np.inf).min(axis=0))
        high = np.maximum(high, np.where(finite, part, -np.inf).max(axis=0))
        part = np.where(finite, part, 0.0)
        total, squares = total + part.sum(axis=0), squares + (part**2).sum(axis=0)
        seen += finite.sum(axis=0)
    mean = total / np.maximum(seen, 1)
    deviation = np.sqrt(np.maximum(squares / np.maximum(seen, 1) - mean**2, 0.0))
    heavy = (high - mean > HEAVY_TAIL * deviation) & (high > low)
    relevant = np.zeros(len(data), bool)
    if len(data):
        relevant = np.maximum.reduceat(data.labels, data.row_splits[:-1]) > 0
    return Description(
        queries=len(data),
        documents=data.num_documents,
        features=width,
        lengths=data.lengths,
        labels=dict(zip(labels.tolist(), counts.tolist(), strict=True)),
        without_relevant=int((~relevant).sum()),
        constant_features=np.flatnonzero((low == high) & (seen == data.num_documents)).tolist(),
        heavy_tailed_features=np.flatnonzero(heavy).tolist(),
        not_finite_features=np.flatnonzero(seen < data.num_documents).tolist(),
    )
