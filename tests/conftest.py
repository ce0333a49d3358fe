"""`pytest --notebooks` runs the notebooks, and nothing else."""

from pathlib import Path

import pytest

NOTEBOOK_TESTS = Path(__file__).parent / "test_notebooks.py"


def pytest_addoption(parser):
    parser.addoption(
        "--notebooks", action="store_true", help="execute the notebooks of colab/, and nothing else"
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "notebook: executes a notebook (pytest --notebooks)")
    if config.getoption("notebooks"):
        # They are all tests of one file, which would all run one after the other.
        config.option.dist = "load" if config.getoption("numprocesses", None) else "no"
        if config.args_source is not pytest.Config.ArgsSource.ARGS:
            config.args[:] = [str(NOTEBOOK_TESTS)]


def pytest_collection_modifyitems(config, items):
    wanted = config.getoption("notebooks")
    chosen = [item for item in items if ("notebook" in item.keywords) == wanted]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen
