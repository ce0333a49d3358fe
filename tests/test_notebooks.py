import ast
import copy
import json
import re

import nbclient
import nbformat
import pytest

from colab import tidy

NOTEBOOKS = tidy.notebooks()
README = (tidy.FOLDER / "README.md").read_text(encoding="utf-8")
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_cells(notebook, tag=None):
    return [
        cell
        for cell in notebook["cells"]
        if cell["cell_type"] == "code" and (tag is None or tag in cell["metadata"].get("tags", []))
    ]


def execute(notebook, folder):
    """Runs all cells in a new kernel and in a folder of their own; raises where a cell does."""
    place = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources=place).execute()
    return notebook


def ends_with_a_figure(source):
    """Whether the last expression of a cell is a figure, which the reader should see."""
    python = [line for line in source.splitlines() if not line.lstrip().startswith("%")]
    last = ast.parse("\n".join(python)).body[-1]
    return isinstance(last, ast.Expr) and bool(re.match(r"plots\.|figure$", ast.unparse(last)))


@pytest.mark.notebook
@each_notebook
def test_runs_from_top_to_bottom_and_its_claims_hold(path, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tidy.FOLDER.parent))
    executed = execute(nbformat.read(path, as_version=4), tmp_path)
    for cell in code_cells(executed):
        drawn = any("image/png" in output.get("data", {}) for output in cell["outputs"])
        assert drawn or not ends_with_a_figure(cell["source"]), cell["source"]
        errors = [x["text"] for x in cell["outputs"] if x.get("name") == "stderr"]
        assert not any("Warning" in text for text in errors), (cell["source"], errors)


@pytest.mark.notebook
@pytest.mark.parametrize("claim", ["assert 2 < 1", "plots.nothing()"])
def test_what_does_not_hold_is_noticed(claim, tmp_path):
    cells = [nbformat.v4.new_code_cell("x = 1"), nbformat.v4.new_code_cell(claim)]
    with pytest.raises(nbclient.exceptions.CellExecutionError):
        execute(nbformat.v4.new_notebook(cells=cells), tmp_path)


def test_there_are_notebooks_and_the_readme_lists_each():
    assert [path.name[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04", "05", "06"]
    for path in NOTEBOOKS:
        assert f"({path.name})" in README, path.name
    assert set(re.findall(r"\((\d\w+\.ipynb)\)", README)) == {path.name for path in NOTEBOOKS}


@each_notebook
def test_is_kept_tidy(path):
    kept = path.read_text(encoding="utf-8")
    notebook = json.loads(kept)
    assert kept == tidy.text_of(tidy.tidy(path.name, notebook)), "run: python -m colab.tidy"
    nbformat.validate(notebook)


@each_notebook
def test_has_claims_seeds_and_a_title(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    claims = code_cells(notebook, "claim")
    assert claims
    for cell in claims:
        assert "assert " in "".join(cell["source"])
    code = "\n".join("".join(cell["source"]) for cell in code_cells(notebook))
    assert "set_random_seed(" in code
    badge, install, title = notebook["cells"][:3]
    assert f"/blob/main/colab/{path.name})" in badge["source"][0]
    assert "find_spec" in "".join(install["source"])
    assert title["source"][0].startswith("# ")


def test_tidying_removes_what_running_leaves():
    notebook = json.loads(NOTEBOOKS[0].read_text(encoding="utf-8"))
    run = copy.deepcopy(notebook)
    for cell in code_cells(run):
        cell["execution_count"] = 7
        cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["1\n"]}]
        cell["metadata"]["execution"] = {"iopub.status.busy": "now"}
    run["metadata"]["widgets"] = {}
    assert tidy.tidy(NOTEBOOKS[0].name, run) == notebook


def test_cells_with_the_same_id_are_an_error():
    cell = {"cell_type": "code", "id": "same", "metadata": {}, "source": "1"}
    with pytest.raises(ValueError, match="different ids.*same"):
        tidy.tidy("x.ipynb", {"cells": [cell, cell]})


def test_the_readme_shows_three_small_pictures():
    readme = (tidy.FOLDER.parent / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"\(colab/images/(\w+\.png)\)", readme)
    assert len(shown) == 3
    assert set(shown) == {path.name for path in (tidy.FOLDER / "images").iterdir()}
    for name in shown:
        assert (tidy.FOLDER / "images" / name).stat().st_size < 60_000, name
