"""Worker for the same formulas in plain PyTorch, run eagerly."""

from functools import partial
from typing import Any

from benchmarks.lists import Batch
from benchmarks.workers.protocol import Step, StepMaker, serve


def start() -> tuple[StepMaker, dict[str, str]]:
    """Imports the library; see ``protocol.serve``."""
    import torch

    from benchmarks.workers import pytorch_formulas

    names = {**vars(pytorch_formulas), "partial": partial}

    def make_step(expression: str, batch: Batch, xla: bool) -> Step:
        del xla
        loss = eval(expression, names)
        labels = torch.from_numpy(batch.labels)
        scores = torch.from_numpy(batch.scores).requires_grad_()

        def step() -> tuple[Any, Any]:
            value = loss(scores, labels)
            (gradient,) = torch.autograd.grad(value, scores)
            return value.detach(), gradient

        return step

    return make_step, {"PyTorch": torch.__version__}


if __name__ == "__main__":
    serve("pytorch", start)
