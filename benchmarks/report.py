"""Tables, plots and the README from the records of a run."""

import datetime
import json
import os
import platform
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.registry import LIBRARIES, LOSSES, OURS

README = Path(__file__).resolve().parent / "README.md"
Record = dict[str, Any]


# --- where and how a run was made


def describe_run(module: str, versions: dict[str, dict[str, str]]) -> Record:
    """Machine, versions, date and command, as the JSON file and the README show them."""
    return {
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "memory_gigabytes": memory_gigabytes(),
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
        },
        "versions": versions,
        "date": datetime.date.today().isoformat(),
        "command": shlex.join(["python", "-m", module, *sys.argv[1:]]),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as information:
            for line in information:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def memory_gigabytes() -> float | None:
    """The memory of the machine, where the system tells."""
    try:
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    except (ValueError, OSError, AttributeError):
        return None


def run_lines(run: Record) -> list[str]:
    """The description of a run as Markdown."""
    machine = run["machine"]
    memory = f", {machine['memory_gigabytes']} GB" if machine["memory_gigabytes"] else ""
    versions = "; ".join(
        f"{LIBRARIES.get(library, library)}: "
        + ", ".join(f"{name} {number}" for name, number in found.items())
        for library, found in run["versions"].items()
    )
    return [
        f"- Machine: {machine['processor']}, {machine['cores']} cores{memory},"
        f" {machine['system']}, Python {machine['python']}",
        *([f"- Versions: {versions}"] if versions else []),
        f"- Date: {run['date']}",
        f"- Command: `{run['command']}`",
        "",
    ]


# --- Markdown


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table whose first two columns are text and whose other columns are numbers."""
    rule = ["---", "---", *["---:"] * (len(header) - 2)]
    return [_line(header), _line(rule), *(_line(row) for row in rows)]


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def number(value: float | None) -> str:
    """Three significant digits without an exponent; a dash for nothing."""
    if value is None:
        return "–"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def losses_markdown(run: Record, records: list[Record], libraries: list[str]) -> str:
    """The whole report of ``benchmarks.losses``."""
    lines = run_lines(run)
    for library, reason in run["unavailable"].items():
        lines += [f"**{LIBRARIES[library]} was not measured: {reason}.**", ""]
    notes: dict[str, str] = {}
    for xla in (True, False):
        chosen = [record for record in records if record["xla"] == xla]
        if chosen:
            lines += [f"### {'With' if xla else 'Without'} XLA around the step", ""]
            lines += [*_losses_table(chosen, records, libraries, notes), ""]
    if notes:
        lines += [f"{mark} {note}  " for note, mark in notes.items()]
    return "\n".join(lines).rstrip() + "\n"


def _losses_table(
    chosen: list[Record], records: list[Record], libraries: list[str], notes: dict[str, str]
) -> list[str]:
    with_xla = chosen[0]["xla"]
    names = {**LIBRARIES, "ours": "ours", "ours_jax": "ours on JAX"}
    header = ["loss", "batch × list", *(f"{names[library]}, ms" for library in libraries)]
    header += [f"fastest peer ÷ {names[ours]}" for ours in OURS]
    header += ["ours, extra MB", "leanest peer, extra MB"]
    if not with_xla:
        header.append("ours ÷ with XLA")
    rows = []
    for record in sorted(chosen, key=_place):
        results = record["libraries"]
        row = [record["title"], record["shape"]]
        row += [_time_cell(results.get(library), notes) for library in libraries]
        row += [number(record["ratios"].get(ours)) for ours in OURS]
        row.append(number(results.get("ours", {}).get("extra_megabytes")))
        row.append(number(min(_peer_figures(results, "extra_megabytes"), default=None)))
        if not with_xla:
            row.append(number(_against_xla(record, records)))
        rows.append(row)
    return markdown_table(header, rows)


def _place(record: Record) -> tuple[int, bool, int]:
    """Losses as in the registry, whichever were measured first; then by the size of the lists."""
    _, _, width, *ragged = record["shape"].split()
    return list(LOSSES).index(record["loss"]), bool(ragged), int(width)


def _time_cell(result: Record | None, notes: dict[str, str]) -> str:
    """Milliseconds with the marks of its notes, or a mark that says why there is no figure."""
    if result is None:
        return "–"
    cell = number(result.get("milliseconds")) if "milliseconds" in result else ""
    for note in filter(None, (result.get("error"), result.get("disagreement"))):
        mark = notes.setdefault(note, f"[{len(notes) + 1}]")
        cell = f"{cell} {mark}".strip()
    return cell


def _peer_figures(results: Record, figure: str) -> list[float]:
    return [
        result[figure]
        for library, result in results.items()
        if library not in OURS and figure in result
    ]


def _against_xla(record: Record, records: list[Record]) -> float | None:
    """Our time without XLA over our time with it, where both were measured."""
    for other in records:
        same = other["loss"] == record["loss"] and other["shape"] == record["shape"]
        if same and other["xla"] and not record["xla"]:
            times = [
                each["libraries"].get("ours", {}).get("milliseconds") for each in (record, other)
            ]
            return times[0] / times[1] if all(times) else None
    return None


def growth_markdown(run: Record, records: list[Record], sizes: list[int]) -> str:
    """The whole report of ``benchmarks.growth``: milliseconds and extra megabytes per size."""
    header = ["loss", "", *(f"n = {size:,}" for size in sizes)]
    rows = []
    for record in records:
        points = {point["size"]: point for point in record["points"]}
        rows.append(
            [record["title"], "ms", *(_growth_cell(points, n, "milliseconds") for n in sizes)]
        )
        rows.append(["", "MB", *(_growth_cell(points, n, "extra_megabytes") for n in sizes)])
    stops = [f"- {record['title']}: {record['stopped']}" for record in records if record["stopped"]]
    lines = run_lines(run) + markdown_table(header, rows)
    if stops:
        lines += ["", "Where a loss stopped growing:", "", *stops]
    return "\n".join(lines) + "\n"


def _growth_cell(points: dict[int, Record], size: int, figure: str) -> str:
    return number(points[size][figure]) if size in points else ""


# --- files


def write(folder: Path, name: str, run: Record, records: list[Record], text: str) -> None:
    """Writes ``name.json`` and ``name.md`` into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps({"run": run, "records": records}, indent=1, ensure_ascii=False)
    (folder / f"{name}.json").write_text(content + "\n", encoding="utf-8")
    (folder / f"{name}.md").write_text(text, encoding="utf-8")


def read(folder: Path, name: str) -> list[Record]:
    """The records that ``write`` left in the folder."""
    path = folder / f"{name}.json"
    if not path.exists():
        raise SystemExit(f"There is no run to go on with: {path} does not exist.")
    return list(json.loads(path.read_text(encoding="utf-8"))["records"])


def update_readme(section: str, text: str) -> None:
    """Replaces what stands between the two marks of a section of the README."""
    begin, end = f"<!-- begin {section} -->", f"<!-- end {section} -->"
    content = README.read_text(encoding="utf-8")
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not pattern.search(content):
        raise ValueError(f"{README.name} has no section between {begin} and {end}.")
    replacement = f"{begin}\n{text.strip()}\n{end}"
    README.write_text(pattern.sub(lambda _: replacement, content), encoding="utf-8")


def _marker(library: str) -> dict[str, Any]:
    """Ours are black diamonds, hollow on JAX."""
    if library not in OURS:
        return {"alpha": 0.8}
    return {
        "marker": "D",
        "edgecolors": "black",
        "facecolors": "black" if library == "ours" else "none",
    }


def plot_losses(folder: Path, records: list[Record], libraries: list[str]) -> None:
    """One panel per shape, one dot per loss and library, on a logarithmic axis."""
    try:
        import matplotlib
    except ImportError:
        print("No plot: matplotlib is not installed.")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    chosen = [record for record in records if record["xla"]] or records
    shapes = list(dict.fromkeys(record["shape"] for record in chosen))
    titles = list(dict.fromkeys(record["title"] for record in chosen))[::-1]
    figure, panels = pyplot.subplots(
        1,
        len(shapes),
        figsize=(3 + 3.2 * len(shapes), 1.5 + 0.28 * len(titles)),
        sharey=True,
        squeeze=False,
    )
    for panel, shape in zip(panels[0], shapes, strict=True):
        for library in libraries:
            points = [
                (record["libraries"][library]["milliseconds"], titles.index(record["title"]))
                for record in chosen
                if record["shape"] == shape
                and "milliseconds" in record["libraries"].get(library, {})
            ]
            times, heights = zip(*points, strict=True) if points else ((), ())
            marker = _marker(library)
            panel.scatter(times, heights, label=LIBRARIES[library], zorder=3, **marker)
        panel.set(xscale="log", title=shape, xlabel="milliseconds, forward + gradient")
        panel.set_yticks(range(len(titles)), titles)
        panel.grid(alpha=0.3)
    handles, names = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=3, frameon=False)
    figure.set_layout_engine("constrained")
    figure.savefig(folder / "losses.png", dpi=120)
    pyplot.close(figure)
    print(f"Plot: {folder / 'losses.png'}")
