"""Pictures as SVG text: learning curves, and means with their intervals.

A run leaves pictures wherever it runs, so they need no plotting library.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape

# Told apart also by those who do not see all colours (Okabe and Ito, 2008).
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#b8a500")
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 640, 320, 64, 36, 44
ROW = 24


def line_chart(
    title: str,
    series: Mapping[str, Sequence[float]],
    x_label: str = "epoch",
    marked: Mapping[str, int] | None = None,
) -> str:
    """Lines of numbers over 1, 2, 3, ... with their names.

    Args:
        title: stands above.
        series: the numbers by name; those that are not finite are left out.
        x_label: what is counted.
        marked: for some names, the number whose point is marked.

    >>> line_chart("loss", {"train": [2.0, 1.0]}).count("<polyline")
    1
    """
    points = {
        name: [(x, y) for x, y in enumerate(values, start=1) if math.isfinite(y)]
        for name, values in series.items()
    }
    heights = [y for line in points.values() for _, y in line] or [0.0]
    longest = max((x for line in points.values() for x, _ in line), default=1)
    ticks = _ticks(min(heights), max(heights))
    low, high = min(ticks[0], min(heights)), max(ticks[-1], max(heights))
    legend = 12 + max((7 * len(name) for name in series), default=0) + 30
    width = WIDTH + legend

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - 1) / max(longest - 1, 1)
        up = (y - low) / (high - low)
        return LEFT + across * (WIDTH - LEFT - 12), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    parts = [_text(LEFT, 22, title, weight="bold")]
    for tick in ticks:
        _, y = place(1, tick)
        parts.append(_line(LEFT, y, WIDTH - 12, y))
        parts.append(_text(LEFT - 8, y + 4, f"{tick:.6g}", anchor="end"))
    for tick in sorted({round(x) for x in _ticks(1, longest) if 1 <= x <= longest} | {1, longest}):
        parts.append(_text(place(tick, low)[0], HEIGHT - BOTTOM + 18, str(tick), anchor="middle"))
    parts.append(_text((LEFT + WIDTH) / 2, HEIGHT - 8, x_label, anchor="middle"))
    for number, (name, line) in enumerate(points.items()):
        color = COLORS[number % len(COLORS)]
        places = [place(*point) for point in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        for (x, _), (across, down) in zip(line, places, strict=True):
            if len(line) == 1 or (marked or {}).get(name) == x:
                parts.append(f'<circle cx="{across:.1f}" cy="{down:.1f}" r="4" fill="{color}"/>')
        y = TOP + 18 * number
        parts.append(_line(WIDTH + 4, y, WIDTH + 24, y, color, 3))
        parts.append(_text(WIDTH + 30, y + 4, name))
    return _picture(width, max(HEIGHT, TOP + 18 * len(points)), parts)


def interval_chart(title: str, rows: Mapping[str, tuple[float, float, float]]) -> str:
    """A point and an interval per row.

    Args:
        title: stands above.
        rows: by name, the mean and the ends of its interval.

    >>> interval_chart("ndcg", {"softmax": (0.5, 0.4, 0.6)}).count("<circle")
    1
    """
    rows = {name: row for name, row in rows.items() if all(math.isfinite(x) for x in row)}
    left = 24 + max((7 * len(name) for name in rows), default=0)
    numbers = [x for row in rows.values() for x in row] or [0.0]
    ticks = _ticks(min(numbers), max(numbers))
    low, high = min(ticks[0], min(numbers)), max(ticks[-1], max(numbers))
    bottom = TOP + ROW * len(rows)

    def place(x: float) -> float:
        return left + (x - low) / (high - low) * (WIDTH - left - 24)

    parts = [_text(left, 22, title, weight="bold")]
    for tick in ticks:
        parts.append(_line(place(tick), TOP, place(tick), bottom))
        parts.append(_text(place(tick), bottom + 16, f"{tick:.6g}", anchor="middle"))
    for number, (name, (mean, start, end)) in enumerate(rows.items()):
        y = TOP + ROW * (number + 0.5)
        parts.append(_text(left - 8, y + 4, name, anchor="end"))
        parts.append(_line(place(start), y, place(end), y, COLORS[0], 2))
        parts.append(f'<circle cx="{place(mean):.1f}" cy="{y:.1f}" r="4" fill="{COLORS[0]}"/>')
    return _picture(WIDTH, bottom + 28, parts)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers, about five of them, that span the two."""
    if high - low < 1e-12 * max(abs(low), abs(high), 1.0):
        low, high = low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * number for number in range(first, last + 1)]


def _picture(width: float, height: float, parts: Sequence[str]) -> str:
    inside = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{inside}\n</svg>\n'
    )


def _text(x: float, y: float, text: str, anchor: str = "start", weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" '
        f'fill="#333">{escape(text)}</text>'
    )


def _line(
    x1: float, y1: float, x2: float, y2: float, color: str = "#ddd", thickness: int = 1
) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" '
        f'stroke-width="{thickness}"/>'
    )
