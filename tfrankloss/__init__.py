"""Learning to rank on Keras 3: the losses of the papers, right, fast and simple to use.

>>> import keras
>>> import tfrankloss
>>> loss = tfrankloss.losses.NDCGLoss2(topn=5)
>>> round(float(loss([[2.0, 0.0, 1.0]], [[0.1, 0.3, 0.2]])), 3)
0.452
"""

from tfrankloss import config, data, losses, metrics, models, serving
from tfrankloss.comparison import LossComparison, compare
from tfrankloss.evaluation import Evaluation, evaluate, to_trec_qrels, to_trec_run
from tfrankloss.training import Trained, TrainingOptions, train

__all__ = [
    "Evaluation",
    "LossComparison",
    "Trained",
    "TrainingOptions",
    "__version__",
    "compare",
    "config",
    "data",
    "evaluate",
    "losses",
    "metrics",
    "models",
    "serving",
    "to_trec_qrels",
    "to_trec_run",
    "train",
]
__version__ = "0.1.0"
