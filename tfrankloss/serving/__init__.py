"""Export to TensorFlow Serving: the model that trained is the model that answers.

`export(model, path)` writes a folder that a server loads as it is. Clients send raw features as
plain tensors, as `tf.train.Example` or as the `ExampleListWithContext` of TF-Ranking's clients, and
get the scores of `model.predict`, or the order of the documents. The SavedModel needs neither this
library nor Keras.
"""

from tfrankloss.serving.export import export, export_run
from tfrankloss.serving.requests import ExampleRequest, example_request

__all__ = ["ExampleRequest", "example_request", "export", "export_run"]
