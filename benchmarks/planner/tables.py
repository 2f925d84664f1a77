"""What every benchmark prints and writes: Markdown tables on stdout, all cells as one JSON file.

Each file says which commit and command made it, and that its times are simulated.
"""

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Cell = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """A title, the columns in order, and how many digits floats keep."""

    title: str
    columns: Sequence[str]
    digits: int = 3
    rows: list[Cell] = field(default_factory=list)

    def of(self, rows: Sequence[Cell]) -> "Table":
        """The same table with rows."""
        return Table(self.title, self.columns, self.digits, list(rows))

    def markdown(self) -> str:
        """As Markdown, title first."""
        lines = [f"**{self.title}**", "", "| " + " | ".join(self.columns) + " |"]
        lines.append("|" + "---|" * len(self.columns))
        for row in self.rows:
            texts = [self._text(row.get(name)) for name in self.columns]
            lines.append("| " + " | ".join(texts) + " |")
        return "\n".join(lines)

    def _text(self, value: object) -> str:
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return "-"
        if isinstance(value, float):
            return f"{value:.{self.digits}f}"
        if isinstance(value, int) and not isinstance(value, bool):
            return f"{value:,}"
        return str(value)


def reported(path: Path | None, result: Cell, tables: Sequence[Table]) -> None:
    """Print the tables; write the result with where it comes from, if a path is given."""
    for table in tables:
        print(table.markdown(), end="\n\n", flush=True)
    if path is None:
        return
    about = {
        "schema_version": 1,
        "command": " ".join(["python", *map(str, sys.argv)]),
        "commit": _commit(),
        "times": "simulated, noise-free, analytic profile of h100-sxm; CPU seconds are real",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_plain(about | result), indent=1) + "\n")


def _plain(value: Any) -> Any:
    """NaN and infinity as null, as JSON knows neither; numbers of numpy as plain ones."""
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return round(value, 9) if math.isfinite(value) else None
    return value


def _commit() -> str:
    """Short commit of the tree, with a plus where tracked files differ from it."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True)
        return done.stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "-s", "-uno") else "")


def progress(text: str) -> None:
    """One line to stderr."""
    print(text, file=sys.stderr, flush=True)
