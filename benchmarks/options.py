"""What several command lines of the benchmarks take: names and shapes, separated by commas."""

import argparse
from collections.abc import Collection

from benchmarks.lists import Shape


def chosen(
    parser: argparse.ArgumentParser, option: str, text: str, known: Collection[str]
) -> list[str]:
    """The names in the text, all of them known; otherwise the parser's error."""
    names = [name for name in text.split(",") if name]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        parser.error(f"{option} knows {', '.join(known)}. Received: {', '.join(unknown) or text!r}")
    return names


def shapes(parser: argparse.ArgumentParser, text: str) -> list[Shape]:
    """The shapes in the text; the parser's error where one cannot be read."""
    try:
        return [Shape.parse(shape) for shape in text.split(",")]
    except ValueError:
        parser.error(f"--shapes takes batch x list, such as 32x200. Received: {text}")
