"""Makes the pictures of the README: `python -m colab.gallery`."""

import sys
from pathlib import Path

import keras
import numpy as np

import tfrankloss
from tfrankloss import losses, plots

FOLDER = Path(__file__).parent / "images"
DPI = 70


def main() -> None:
    """Writes three small PNG files."""
    tfrankloss.config.disable_xla()  # each loss is asked once
    FOLDER.mkdir(exist_ok=True)
    pictures = {"surfaces": surfaces(), "forces": forces(), "bounds": bounds()}
    for name, figure in pictures.items():
        path = FOLDER / f"{name}.png"
        # Without the version of Matplotlib the same picture is the same file.
        figure.savefig(path, dpi=DPI, metadata={"Software": None})
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


def surfaces() -> object:
    """NDCG's steps, and two losses over the same scores."""
    chosen = {"softmax": "softmax", "NDCG-Loss2": "ndcg_loss2"}
    return plots.surfaces([2, 1, 0, 0], chosen, scores=[0.8, -0.8])


def forces() -> object:
    """What losses do to one list with relevant documents at the ranks 3 and 9."""
    chosen = {
        "RankNet": "pairwise_logistic",
        "LambdaRank": "lambdarank",
        "NDCG-Loss2@1": "ndcg_loss2@1",
        "NDCG-Loss2@5": "ndcg_loss2@5",
    }
    return plots.forces([0, 0, 1, 0, 0, 0, 0, 0, 1, 0], np.linspace(1.5, -1.5, 10).tolist(), chosen)


def bounds() -> object:
    """ListNet against MRR and NDCG on random lists of binary labels."""
    generator = np.random.default_rng(1)
    count, size = 2000, 10
    share, skill, spread = generator.uniform(0, [[0.4], [3.0], [1.0]], size=(3, count))[..., None]
    labels = (generator.random((count, size)) < share).astype("float32")
    labels[np.arange(count), generator.integers(size, size=count)] = 1.0
    scores = generator.normal(size=(count, size)) + skill * labels
    scores = (np.exp(5 * spread - 3) * scores).astype("float32")
    loss = losses.ListNetLoss("normalized", reduction="none")
    values = keras.ops.convert_to_numpy(loss(labels, scores))
    lists = np.repeat(np.arange(count), size)
    result = tfrankloss.evaluate(labels.ravel(), scores.ravel(), lists, ["mrr", "ndcg"])
    figure, axes = plots.panels(2)
    for name, place in zip(("mrr", "ndcg"), axes, strict=True):
        plots.bounds(values, result.per_query[name], "ListNet", name.upper(), axes=place)
        place.set_xlim(0, 6)
    return figure


if __name__ == "__main__":
    sys.exit(main())
