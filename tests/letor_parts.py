"""Many small LETOR files whose queries are scattered and some of whose lines are broken."""

import gzip
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

BROKEN = (
    ("x qid:3 1:1", 1, "x", "a label, such as 2 or 0.5 is needed here"),
    ("1 qid:3 1:", 11, "1:", "a number is needed here"),
    ("1 qid: 1:2", 3, "qid:", "a query id must follow qid:"),
    ("-1 qid:4 1:2", 1, "-1", "labels must be at least 0 (lists are padded with -1)"),
    ("2 1:0.5", 1, "a line without qid:", "either all lines have qid: or none has"),
)


class Document(NamedTuple):
    """What a good line says."""

    label: float
    query: str
    values: dict[int, float]
    name: str


class Parts(NamedTuple):
    """Files, and what is in them."""

    files: list[Path]
    documents: list[Document]  # in the order of files and lines
    rejected: list[dict[str, Any]]  # as `rejected.jsonl` has it
    blank: int

    def lists(self) -> dict[str, list[Document]]:
        """The documents of each query in their order."""
        found: dict[str, list[Document]] = {}
        for document in self.documents:
            found.setdefault(document.query, []).append(document)
        return found


def write_parts(
    folder: Path, count: int, seed: int = 0, queries: int = 30, width: int = 5
) -> Parts:
    """Writes files of a dozen lines, every tenth compressed, one without any good line."""
    generator = np.random.default_rng(seed)
    parts = Parts([], [], [], 0)
    blank = 0
    for number in range(count):
        path = folder / f"part-{number:03d}.txt{'.gz' if number % 10 == 3 else ''}"
        lines: list[str] = []
        # The first line is good: it says that the file names its queries.
        for place in range(1 + int(generator.integers(4, 16))):
            kind = (
                "good"
                if place == 0
                else generator.choice(["good", "bad", "blank"], p=[0.8, 0.12, 0.08])
            )
            if number == count // 2:
                kind = "bad"
            if kind == "blank":
                lines.append("")
                blank += 1
            elif kind == "bad":
                # Only a file that names its queries has a line without to complain about.
                text, column, received, expected = BROKEN[
                    int(generator.integers(5 if place else 4)) % (4 if number == count // 2 else 5)
                ]
                lines.append(text)
                parts.rejected.append(
                    {
                        "file": str(path),
                        "line": len(lines),
                        "column": column,
                        "received": received,
                        "reason": expected,
                    }
                )
            else:
                indices = np.flatnonzero(generator.random(width) < 0.7) + 1
                values = {int(i): float(np.float32(generator.normal())) for i in indices}
                label = float(generator.integers(0, 3))
                document = Document(
                    label, str(generator.integers(queries)), values, f"d{number}-{place}"
                )
                parts.documents.append(document)
                pairs = " ".join(f"{i}:{np.float32(x)!s}" for i, x in values.items())
                lines.append(f"{label:g} qid:{document.query} {pairs} # docid = {document.name}")
        text = "".join(line + "\n" for line in lines).encode()
        path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)
        parts.files.append(path)
    return parts._replace(blank=blank)
