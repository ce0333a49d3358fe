"""Brings the notebooks into the form in which they are kept: `python -m colab.tidy`.

Without outputs, with the same first two cells (the badge that opens the notebook in Colab, and the
installation), and as JSON whose lines stay the same where a cell stays the same.
"""

import json
import sys
from pathlib import Path
from typing import Any

# The one place that names the public repository: put its owner here, and run this again.
REPOSITORY = "https://github.com/OWNER/tfrankloss"
FOLDER = Path(__file__).parent
BADGE = "https://colab.research.google.com/assets/colab-badge.svg"
INSTALL = """\
# Where tfrankloss is missing: from the checkout around this notebook, or from its repository.
import importlib.util
import pathlib

if importlib.util.find_spec("tfrankloss") is None:
    checkout = pathlib.Path.cwd().parent
    here = (checkout / "tfrankloss").is_dir()
    source = checkout.as_uri() if here else "git+{repository}"
    %pip install --quiet "tfrankloss[boosting,evaluate,plots] @ {source}"
    importlib.invalidate_caches()
    if importlib.util.find_spec("tfrankloss") is None:
        raise RuntimeError(f"tfrankloss could not be installed from {source}")
"""
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def notebooks() -> list[Path]:
    """All notebooks, in the order of their numbers."""
    return sorted(FOLDER.glob("*.ipynb"))


def tidy(name: str, notebook: dict[str, Any]) -> dict[str, Any]:
    """The form in which a notebook is kept.

    Args:
        name: of its file.
        notebook: as JSON has it.
    """
    own = [cell for cell in notebook["cells"] if cell.get("id") not in ("badge", "install")]
    # Colab's addresses have "github" where those of the repository have "github.com".
    colab = REPOSITORY.replace("https://github.com/", "https://colab.research.google.com/github/")
    badge = f"[![Open in Colab]({BADGE})]({colab}/blob/main/colab/{name})"
    install = INSTALL.replace("{repository}", REPOSITORY)
    first = [
        {"cell_type": "markdown", "id": "badge", "source": badge},
        {"cell_type": "code", "id": "install", "source": install.strip()},
    ]
    cells = [_cell(number, cell) for number, cell in enumerate(first + own)]
    names = [cell["id"] for cell in cells]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"Cells of a notebook must have different ids. Received: {twice} twice")
    return {"cells": cells, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}


def _cell(number: int, cell: dict[str, Any]) -> dict[str, Any]:
    tags = cell.get("metadata", {}).get("tags")
    text = cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])
    kept = {
        "cell_type": cell["cell_type"],
        "id": cell.get("id", f"cell-{number}"),
        "metadata": {"tags": tags} if tags else {},
        "source": text.strip().splitlines(keepends=True),
    }
    if kept["cell_type"] == "code":
        kept.update(execution_count=None, outputs=[])
    return dict(sorted(kept.items()))


def text_of(notebook: dict[str, Any]) -> str:
    """The notebook as its file has it."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Writes the notebooks that are not in order."""
    for path in notebooks():
        before = path.read_text(encoding="utf-8")
        after = text_of(tidy(path.name, json.loads(before)))
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"tidied {path.name}")


if __name__ == "__main__":
    sys.exit(main())
