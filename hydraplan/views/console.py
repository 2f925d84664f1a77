"""The one place that writes to stdout and stderr.

stdout carries data: one JSON object under `--json`, else text and tables. Notes and progress
go to stderr, progress only where that is a terminal. Everything reads without colour and at
80 columns; rich itself honours NO_COLOR, FORCE_COLOR and COLUMNS. Knows nothing of plans.
"""

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from typing import TypeVar

from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from hydraplan.errors import printable

T = TypeVar("T")

SCHEMA_VERSION = 1
"""First entry of every object that a command prints under `--json`."""

WIDEST = 400
"""Characters of the widest line of a table that goes to a file or a pipe."""

GAP = 3
"""Columns of space between two columns of a table."""

LEAST_TEXT_WIDTH = 8
"""A column of text is not folded below this."""


def emit_json(payload: Mapping[str, object]) -> None:
    """Print one JSON object, `schema_version` first; what is not finite becomes null."""
    plain = {"schema_version": SCHEMA_VERSION, **payload}
    print(json.dumps(_plain(plain), indent=2, allow_nan=False))


def emit(text: str = "") -> None:
    """Print lines of text to stdout; other control characters are escaped."""
    print("\n".join(map(printable, text.split("\n"))))


def note(text: str) -> None:
    """Print a line for people to stderr."""
    print(printable(text), file=sys.stderr)


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "", caption: str = ""
) -> None:
    """Print a table to stdout: numbers to the right and whole, text folded if it must be.

    Where not even the numbers fit, the table is wider than the terminal: nothing is cut off.

    Args:
        columns: Heads, one a column; where room is short, the words of a head are stacked.
        rows: Values, formatted by `cell`; a column is numeric if all its values are.
        title: A line above the table.
        caption: A line below the table.
    """
    console = Console(highlight=False)
    texts = [[cell(row[i]) for row in rows] for i in range(len(columns))]
    numeric = [bool(rows) and all(_is_number(row[i]) for row in rows) for i in range(len(columns))]
    widest = [max(map(len, [name, *column])) for name, column in zip(columns, texts, strict=True)]
    is_narrow = sum(widest) + GAP * len(columns) > console.width
    heads = [
        name.split() if is_narrow and stacks else [name]
        for name, stacks in zip(columns, numeric, strict=True)
    ]
    height = max(map(len, heads))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    least_width = 0
    for i, head in enumerate(heads):
        table.add_column(
            Text("\n".join([""] * (height - len(head)) + head)),
            justify="right" if numeric[i] else "left",
            overflow="fold",
            no_wrap=numeric[i],
        )
        width = max(map(len, [*head, *texts[i]]))
        least_width += GAP + (width if numeric[i] else min(width, LEAST_TEXT_WIDTH))
    for row in zip(*texts, strict=True):
        table.add_row(*map(Text, row))
    if title:
        emit(title)
    console.width = max(console.width, least_width)
    with console.capture() as drawn:
        console.print(table)
    emit("\n".join(line.rstrip() for line in drawn.get().splitlines()))
    if caption:
        emit(caption)


def cell(value: object) -> str:
    """Text of a value in a table: 12,345 and 0.1235 and 1.2e-05; a dash where there is none."""
    value = _plain(value)
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    return str(value)


@contextmanager
def progress(text: str, total: float | None = None) -> Iterator[Callable[[float], None]]:
    """Show a bar on stderr while the block runs; yields a function that advances it by a step."""
    if not sys.stderr.isatty():
        yield lambda step: None
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=total)
        yield lambda step: bar.advance(task, step)


def counted(items: Iterable[T], advance: Callable[[float], None]) -> Iterator[T]:
    """The same items, advancing a progress bar after each."""
    for item in items:
        yield item
        advance(1)


def _is_number(value: object) -> bool:
    value = _plain(value)
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _plain(value: object) -> object:
    """The value in JSON's own types: numpy becomes Python, NaN and infinities become None."""
    tolist = getattr(value, "tolist", None)
    if tolist is not None:
        value = tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, PurePath) else value
