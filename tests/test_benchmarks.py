"""What the benchmarks write they can read again."""

import pytest

from benchmarks.lists import Shape


@pytest.mark.parametrize("text", ["32x200", "8 × 1000", "ragged", "RAGGED64", "32 × 627 ragged"])
def test_shapes_are_read_as_they_are_printed(text: str) -> None:
    shape = Shape.parse(text)
    assert Shape.parse(str(shape)) == shape
    assert shape.ragged == ("ragged" in text.lower())
