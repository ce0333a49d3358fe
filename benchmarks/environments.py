"""One virtual environment per peer, made on first use and kept for later runs.

They live in ``~/.cache/tfrankloss-benchmarks`` (or where ``TFRANKLOSS_BENCHMARK_CACHE`` says). The
packages come from wherever ``pip`` is configured to look; to get a CPU build of PyTorch on Linux,
point pip's own settings (``PIP_INDEX_URL`` and the like) at an index that serves it, or the default
one brings the CUDA libraries along, which cost disk space and change nothing here.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

CACHE_VARIABLE = "TFRANKLOSS_BENCHMARK_CACHE"
INSTALL_SECONDS = 1800


@dataclass(frozen=True)
class Peer:
    """A library to compare with: its worker module and what its environment holds."""

    worker: str
    requirements: tuple[str, ...]
    newest_python: tuple[int, int] | None = None


PEERS = {
    "tensorflow_ranking": Peer(
        "tensorflow_ranking",
        ("tensorflow-ranking==0.5.5", "tensorflow-cpu==2.15.1", "numpy<2"),
        newest_python=(3, 11),
    ),
    "keras_rs": Peer("keras_rs", ("keras-rs==0.4.0", "keras==3.15.1", "tensorflow-cpu==2.21.0")),
    # The newest JAX on which all of Rax works: 0.7 took away what its transformations call.
    "rax": Peer("rax", ("rax==0.4.0", "jax==0.6.2", "jaxlib==0.6.2"), newest_python=(3, 13)),
    # For the losses that work there, because which of the two is faster depends on the loss.
    "rax_newest_jax": Peer("rax", ("rax==0.4.0", "jax==0.10.2", "jaxlib==0.10.2")),
    "pytorch": Peer("pytorch", ("torch==2.13.0", "numpy")),
}
# Peers of the metrics, of the readers and of whole rankers, and environments of other benchmarks.
OTHER_PEERS = {
    "pytrec_eval": Peer("evaluation", ("pytrec-eval-terrier", "numpy")),
    "pytrec_eval_dictionaries": Peer("evaluation", ("pytrec-eval-terrier", "numpy")),
    "scikit_learn": Peer("evaluation", ("scikit-learn", "numpy")),
    "lightgbm": Peer("boosting", ("lightgbm==4.7.0", "numpy")),
    "xgboost": Peer("reading", ("xgboost-cpu", "numpy")),
    "tensorflow_datasets": Peer(
        "reading", ("tensorflow-datasets", "tensorflow-cpu", "importlib_resources")
    ),
    # The compilers for TPU and GPU, which need neither. Keras runs this library from the checkout.
    "accelerators": Peer(
        "accelerators",
        (
            "rax==0.4.0",
            "jax==0.10.2",
            "jaxlib==0.10.2",
            "libtpu==0.0.51",
            "jax-cuda12-plugin==0.10.2",
            "jax-cuda12-pjrt==0.10.2",
            "nvidia-cuda-nvcc-cu12",
            "keras==3.15.1",
            "numpy",
        ),
    ),
}


class InstallationError(RuntimeError):
    """A peer cannot be installed here; the message says why."""


def cache_folder() -> Path:
    """Where the environments are kept."""
    default = Path.home() / ".cache" / "tfrankloss-benchmarks"
    return Path(os.environ.get(CACHE_VARIABLE, default))


def worker_module(library: str) -> str:
    """The module that runs a library, for ``python -m``."""
    worker = library if library.startswith("ours") else PEERS[library].worker
    return f"benchmarks.workers.{worker}"


def python_for(library: str) -> str:
    """The interpreter that runs a library; makes the environment of a peer on first use."""
    if library.startswith("ours"):
        return sys.executable
    peer = {**PEERS, **OTHER_PEERS}[library]
    folder = cache_folder() / library
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    stamp = folder / "requirements.txt"
    wanted = "\n".join(peer.requirements) + "\n"
    if not (stamp.exists() and stamp.read_text() == wanted):
        print(f"Making the environment of {library}: {', '.join(peer.requirements)}", flush=True)
        _make_environment(peer, folder, python)
        stamp.write_text(wanted)
    return str(python)


def _make_environment(peer: Peer, folder: Path, python: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _run([_base_python(peer), "-m", "venv", str(folder)])
    _run([str(python), "-m", "pip", "install", "--quiet", *peer.requirements])


def _base_python(peer: Peer) -> str:
    """The interpreter that runs this, or an older one where the peer needs it."""
    if peer.newest_python is None or sys.version_info[:2] <= peer.newest_python:
        return sys.executable
    for minor in range(peer.newest_python[1], 9, -1):
        found = shutil.which(f"python3.{minor}")
        if found:
            return found
    newest = ".".join(map(str, peer.newest_python))
    raise InstallationError(f"needs Python {newest} or older, and none was found")


def _run(command: list[str]) -> None:
    """Runs one step of the installation; the reason of a failure is its last line of errors."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallationError(f"cannot be installed: {type(error).__name__}") from error
    if result.returncode:
        lines = (result.stderr + result.stdout).strip().splitlines()
        errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no message"]
        raise InstallationError(f"cannot be installed: {errors[-1][:200]}")
