"""What every benchmark prints and writes: Markdown tables on stdout, all cells as one JSON file.

`--readme` also puts the tables into this folder's README, between the two comment lines that
carry the name of the script, so that no number is copied by hand. Each JSON file says which
commit and command made it, and that its times are simulated.
"""

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hydraplan

Cell = dict[str, Any]
README = Path(__file__).with_name("README.md")


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
        if hasattr(value, "item"):
            value = value.item()
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return "-"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, float):
            return f"{value:.{self.digits}f}"
        return f"{value:,}" if isinstance(value, int) else str(value)


def reported(
    path: Path | None,
    result: Cell,
    tables: Sequence[Table],
    readme: bool = False,
    page: Path = README,
) -> None:
    """Print the tables; write JSON if a path is given, and the section of the page if asked."""
    text = "\n\n".join(table.markdown() for table in tables)
    print(text, flush=True)
    about = {
        "schema_version": 1,
        "command": " ".join(["python", *map(str, sys.argv)]),
        "commit": commit(),
        "times": "simulated, noise-free, analytic profile of h100-sxm; CPU seconds are real",
    }
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(_plain(about | result), indent=1) + "\n")
    if readme:
        name = Path(sys.argv[0]).stem
        made = f"Made at commit {about['commit']}.\n\n{text}"
        page.write_text(spliced(page.read_text(), name, made))


def spliced(whole: str, section: str, text: str) -> str:
    """The text between the section's comment lines replaced."""
    before, begin, rest = whole.partition(f"<!-- {section} -->\n")
    _, end, after = rest.partition(f"<!-- end of {section} -->")
    assert end, f"README has no section {section}"
    return f"{before}{begin}{text}\n{end}{after}"


def _plain(value: Any) -> Any:
    """NaN and infinity as null, as JSON knows neither; numbers of numpy as plain ones."""
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value


def commit() -> str:
    """Short commit of the planner that ran, with a plus where tracked files differ from it.

    Empty where it does not lie in a repository, or git is not here.
    """
    here = Path(hydraplan.__file__).resolve().parent

    def git(*words: str) -> str:
        try:
            done = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True)
        except FileNotFoundError:
            return ""
        return done.stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "-s", "-uno") else "")


def progress(text: str) -> None:
    """One line to stderr."""
    print(text, file=sys.stderr, flush=True)
