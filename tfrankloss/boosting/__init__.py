"""The losses of this package as objectives of boosted trees, and its metrics beside them.

>>> from tfrankloss import boosting, losses
>>> objective = boosting.lightgbm_objective(losses.XENDCGLoss(seed=1), newton=True)

`lightgbm.train({"objective": objective}, ...)` and `lightgbm.LGBMRanker(objective=objective)` take
it. What they train is a plain booster, which predicts without this package.
"""

from tfrankloss.boosting.objectives import (
    lightgbm_metric,
    lightgbm_objective,
    xgboost_metric,
    xgboost_objective,
    xgboost_ranker,
)

__all__ = [
    "lightgbm_metric",
    "lightgbm_objective",
    "xgboost_metric",
    "xgboost_objective",
    "xgboost_ranker",
]
