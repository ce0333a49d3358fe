"""Learning to rank on Keras 3: the losses of the papers, right, fast and simple to use.

>>> import keras
>>> import tfrankloss
>>> loss = tfrankloss.losses.NDCGLoss2(topn=5)
>>> round(float(loss([[2.0, 0.0, 1.0]], [[0.1, 0.3, 0.2]])), 3)
0.452
"""

from tfrankloss import config, losses

__all__ = ["__version__", "config", "losses"]
__version__ = "0.1.0"
