"""The list of cases is complete."""

import keras
import pytest

from tests.laws.cases import CASES, OPTIONS, PROGRAMS
from tfrankloss import losses


@pytest.mark.parametrize("name", losses.LOSSES)
def test_every_class_has_a_case(name: str) -> None:
    assert OPTIONS.get(name), f"Add the options of {losses.LOSSES[name].__name__} to OPTIONS."


def test_every_case_is_a_class() -> None:
    assert set(OPTIONS) <= set(losses.LOSSES)


def test_cases_have_names_of_their_own() -> None:
    identifiers = [case.identifier for case in CASES]
    assert len(set(identifiers)) == len(identifiers)


def test_chosen_programs_are_found() -> None:
    assert len(PROGRAMS) == 10


def test_every_public_class_is_listed_by_name() -> None:
    """All but the base classes, which are public for their documentation and for subclassing."""
    public = [getattr(losses, name) for name in losses.__all__]
    classes = {x for x in public if isinstance(x, type) and issubclass(x, keras.losses.Loss)}
    registered = {x for x in classes if keras.saving.get_registered_name(x).startswith("tfr")}
    assert registered == set(losses.LOSSES.values())
    assert all(x.__subclasses__() for x in classes - registered)
