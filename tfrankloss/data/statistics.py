"""Statistics of features that are taken list by list and put together from parts.

The order of the lists decides the last bits: the same lists in the same order give the same numbers
on one machine and on many.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

# Rows that are gone through at once: few enough for the caches of a processor.
ROWS = 512
# Documents that quantiles are taken from.
SAMPLE = 10_000
QUANTILES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)


class Moments(NamedTuple):
    """Of each feature: how many values are finite, their mean and squared distances from it."""

    finite: np.ndarray
    mean: np.ndarray
    squares: np.ndarray

    @staticmethod
    def of(values: np.ndarray, finite: np.ndarray | None) -> "Moments":
        """The moments of rows `[documents, features]`; `finite` is None where all values are."""
        values = values.astype(np.float64)  # a copy
        if finite is None:
            count = np.full(values.shape[1], float(len(values)))
        else:
            count = finite.sum(axis=0).astype(float)
            values[~finite] = 0.0
        mean = values.sum(axis=0) / np.maximum(count, 1)
        values -= mean
        if finite is not None:
            values[~finite] = 0.0
        return Moments(count, mean, np.einsum("ij,ij->j", values, values))

    def merged(self, other: "Moments") -> "Moments":
        """The moments of both (Chan, Golub and LeVeque 1979)."""
        count = self.finite + other.finite
        share = other.finite / np.maximum(count, 1)
        apart = other.mean - self.mean
        squares = self.squares + other.squares + apart**2 * self.finite * share
        return Moments(count, self.mean + apart * share, squares)

    @property
    def deviation(self) -> np.ndarray:
        """The standard deviation of each feature."""
        return np.sqrt(self.squares / np.maximum(self.finite, 1))


class Sample(NamedTuple):
    """The documents with the lowest keys: the same ones in whatever order they come."""

    keys: np.ndarray
    rows: np.ndarray


def merge_samples(samples: Iterable[Sample]) -> Sample:
    """The sample of all documents from samples of parts of them."""
    parts = list(samples)
    if not parts:
        return Sample(np.empty(0, np.uint64), np.empty((0, 0), np.float32))
    keys = np.concatenate([part.keys for part in parts])
    if len(keys) > SAMPLE:
        bound = np.partition(keys, SAMPLE - 1)[SAMPLE - 1]
        chosen = [part.keys <= bound for part in parts]
        parts = [Sample(part.keys[x], part.rows[x]) for part, x in zip(parts, chosen, strict=True)]
        keys = np.concatenate([part.keys for part in parts])
    lowest = np.argsort(keys, kind="stable")[:SAMPLE]
    return Sample(keys[lowest], np.concatenate([part.rows for part in parts])[lowest])


class FeatureStatistics:
    """Takes the lists of a record file one after the other."""

    def __init__(self, num_features: int) -> None:
        self._width = num_features
        zero = np.zeros(num_features)
        self._moments = {name: Moments(zero, zero, zero) for name in ("raw", "log1p")}
        self._low = np.full(num_features, np.inf)
        self._high = np.full(num_features, -np.inf)
        self._waiting: list[tuple[int, np.ndarray]] = []
        self._rows = 0
        self._samples = [Sample(np.empty(0, np.uint64), np.empty((0, num_features), np.float32))]
        self._bound = np.uint64(2**64 - 1)

    def add(self, key: int, features: np.ndarray) -> None:
        """Takes the documents of a query whose id has the hash `key`."""
        self._waiting.append((key, features))
        self._rows += len(features)
        if self._rows >= ROWS:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = np.concatenate([features for _, features in self._waiting])
        keys = np.concatenate([_document_keys(key, len(rows)) for key, rows in self._waiting])
        self._waiting, self._rows = [], 0
        # In float64, `log1p` would be no more exact than this, and takes twice the time.
        logarithms = np.copysign(np.log(np.abs(rows).astype(np.float64) + 1.0), rows)
        inside = np.isfinite(rows)
        finite = None if inside.all() else inside
        for name, values in (("raw", rows), ("log1p", logarithms)):
            self._moments[name] = self._moments[name].merged(Moments.of(values, finite))
        low, high = (
            rows if finite is None else np.where(finite, rows, end) for end in (np.inf, -np.inf)
        )
        self._low = np.minimum(self._low, low.min(axis=0))
        self._high = np.maximum(self._high, high.max(axis=0))
        chosen = keys <= self._bound
        if chosen.any():
            self._samples.append(Sample(keys[chosen], rows[chosen]))
        if sum(len(part.keys) for part in self._samples) > 2 * SAMPLE:
            self._samples = [merge_samples(self._samples)]
            self._bound = self._samples[0].keys[-1]

    def finish(self) -> tuple[dict[str, np.ndarray], Sample]:
        """What `merge_statistics` takes, and the sample."""
        self._flush()
        raw, logarithms = self._moments["raw"], self._moments["log1p"]
        numbers = {"minimum": self._low, "maximum": self._high}
        for name, part in (("raw", raw), ("log1p", logarithms)):
            numbers |= {f"{name}_{key}": value for key, value in part._asdict().items()}
        return numbers, merge_samples(self._samples)


def merge_statistics(parts: Iterable[Mapping[str, np.ndarray]], sample: Sample) -> dict[str, Any]:
    """The statistics of all files, in their order, as JSON holds them.

    What a feature without any finite value does not have is None.
    """
    moments: dict[str, Moments] = {}
    low: Any = np.inf
    high: Any = -np.inf
    for part in parts:
        low, high = np.minimum(low, part["minimum"]), np.maximum(high, part["maximum"])
        for name in ("raw", "log1p"):
            one = Moments(*(part[f"{name}_{key}"] for key in Moments._fields))
            moments[name] = moments[name].merged(one) if name in moments else one
    empty = moments["raw"].finite == 0

    def listed(values: np.ndarray) -> list[float | None]:
        return [None if none else value for none, value in zip(empty, values.tolist(), strict=True)]

    values = np.where(np.isfinite(sample.rows), sample.rows, np.nan).astype(np.float64)
    # A feature may be finite, but not in the sample; its ends are known.
    values = np.where(np.isnan(values).all(axis=0), np.where(empty, 0.0, low), values)
    return {
        "finite": moments["raw"].finite.astype(int).tolist(),
        "mean": listed(moments["raw"].mean),
        "deviation": listed(moments["raw"].deviation),
        "minimum": listed(low),
        "maximum": listed(high),
        "log1p_mean": listed(moments["log1p"].mean),
        "log1p_deviation": listed(moments["log1p"].deviation),
        "sampled": len(sample.keys),
        "quantiles": {
            f"{share:g}": listed(row)
            for share, row in zip(QUANTILES, np.nanquantile(values, QUANTILES, axis=0), strict=True)
        },
    }


def _document_keys(key: int, count: int) -> np.ndarray:
    """A number for each document of a query, mixed by SplitMix64."""
    mixed = np.uint64(key) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(
        0x9E3779B97F4A7C15
    )
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
