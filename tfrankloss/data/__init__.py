"""Ranking data: LETOR files, arrays, frames and synthetic queries, and batches of them.

>>> from tfrankloss import data
>>> queries = data.RankingData.from_arrays([[0.1], [0.2], [0.3]], [0, 1, 2], ["a", "a", "b"])
>>> len(queries)
2
"""

from tfrankloss.data.experiments import (
    add_negatives,
    binarize,
    cascade_clicks,
    perturb_labels,
    position_biased_clicks,
)
from tfrankloss.data.letor import LetorFormatError
from tfrankloss.data.ranking_data import RankingData
from tfrankloss.data.reader import load_letor
from tfrankloss.data.record_writer import write_records
from tfrankloss.data.records import Records, open_records
from tfrankloss.data.synthetic import synthetic
from tfrankloss.data.transforms import Log1p, QueryMinMax, Standardize

__all__ = [
    "LetorFormatError",
    "Log1p",
    "QueryMinMax",
    "RankingData",
    "Records",
    "Standardize",
    "add_negatives",
    "binarize",
    "cascade_clicks",
    "load_letor",
    "open_records",
    "perturb_labels",
    "position_biased_clicks",
    "synthetic",
    "write_records",
]
