"""Times a step of a plain `fit` on the CPU, without XLA around the step, against one with it.

    python -m benchmarks.fit --losses softmax,pairwise_logistic

A linear model of 136 features, so that the loss has a large share of the step, SGD, and one batch
over and over from `tf.data`. `compile(jit_compile=False)` is what Keras does on a CPU where it is
not told otherwise; the losses then compile themselves. An epoch per round after a first one that is
not timed, rounds interleaved, medians, also of the ratios.
"""

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks import report
from benchmarks.lists import Batch, Shape, make_batch
from benchmarks.options import chosen, shapes
from benchmarks.registry import LOSSES, Loss

FEATURES = 136
STEPS = 200
MODES = {"with XLA": True, "without": False}


def main() -> None:
    """Times every loss and shape that the command line asks for."""
    options = parse_arguments()
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import keras
    import tensorflow as tf

    import tfrankloss

    versions = {
        "tfrankloss": tfrankloss.__version__,
        "Keras": keras.__version__,
        "TensorFlow": tf.__version__,
    }
    run = report.describe_run("benchmarks.fit", {"ours": versions})
    records: list[report.Record] = []
    work = [(name, shape, options.rounds) for shape in options.shapes for name in options.losses]
    # A process for each: compiled programs are never given back, and a process has room for some
    # hundred of them.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for record in pool.imap(measure, work):
            records.append(record)
            print(" | ".join(cells(record)), flush=True)
            text = "\n".join([*report.run_lines(run), *table(records)])
            report.write(options.output, "fit", run, records, text)
    print("\n" + text)
    if options.update_readme:
        report.update_readme("fit", text)


def parse_arguments() -> argparse.Namespace:
    """The command line; lists are separated by commas."""
    parser = argparse.ArgumentParser(prog="benchmarks.fit", description=__doc__.splitlines()[0])
    parser.add_argument("--losses", default=",".join(LOSSES), help=", ".join(LOSSES))
    parser.add_argument("--shapes", default="32x200,8x1000", help="batch x list")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--update-readme", action="store_true", help="put the table there")
    options = parser.parse_args()
    options.losses = chosen(parser, "--losses", options.losses, LOSSES)
    options.shapes = shapes(parser, options.shapes)
    return options


def measure(work: tuple[str, Shape, int]) -> report.Record:
    """Milliseconds per step of each of the rounds, by the mode, of a loss and a shape."""
    name, shape, rounds = work
    loss = LOSSES[name]
    batch = make_batch(shape, 0, loss.labels, loss.outputs)
    fits = {mode: new_fit(loss, batch, xla) for mode, xla in MODES.items()}
    times: dict[str, list[float]] = {mode: [] for mode in MODES}
    for number in range(rounds + 1):
        for mode, fit in fits.items():
            milliseconds = fit()
            if number:
                times[mode].append(milliseconds)
    return {"title": loss.title, "shape": str(shape), "milliseconds": times}


def new_fit(loss: Loss, batch: Batch, xla: bool) -> Callable[[], float]:
    """A function that trains a new model for an epoch and returns the milliseconds of a step."""
    import keras
    import tensorflow as tf

    from tfrankloss import losses

    # How far the scores are apart counts: both modes start from the same ones, and keep them with a
    # rate of 0.
    keras.utils.set_random_seed(0)
    size = batch.labels.shape[1]
    features = np.random.default_rng(1).standard_normal((*batch.labels.shape, FEATURES))
    inputs = keras.Input((size, FEATURES))
    scores = keras.layers.Dense(loss.outputs or 1)(inputs)
    if not loss.outputs:
        scores = keras.layers.Reshape((size,))(scores)
    model = keras.Model(inputs, scores)
    made = eval(loss.ours.expression, {"losses": losses, "ops": keras.ops})
    model.compile(keras.optimizers.SGD(0.0), made, jit_compile=xla)
    pair = (tf.constant(features, tf.float32), tf.constant(batch.labels))
    data = tf.data.Dataset.from_tensors(pair).repeat()
    # From the end of the first step to that of the last: to start and to end an epoch takes longer
    # than a step, and at times 100 ms longer.
    ends: list[float] = []
    clock = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda step, logs: ends.append(time.perf_counter())
    )

    def fit() -> float:
        ends.clear()
        model.fit(data, steps_per_epoch=STEPS, verbose=0, shuffle=False, callbacks=[clock])
        return 1e3 * (ends[-1] - ends[0]) / (len(ends) - 1)

    return fit


def table(records: list[report.Record]) -> list[str]:
    """A row per loss and shape."""
    header = ("loss", "batch × list", *(f"{mode}, ms" for mode in MODES), "without ÷ with")
    return report.markdown_table(header, map(cells, records))


def cells(record: report.Record) -> list[str]:
    """The medians, and that of the ratios."""
    times = record["milliseconds"]
    ratios = [plain / xla for xla, plain in zip(*times.values(), strict=True)]
    figures = [*(median(times[mode]) for mode in MODES), median(ratios)]
    return [record["title"], record["shape"], *map(report.number, figures)]


if __name__ == "__main__":
    main()
