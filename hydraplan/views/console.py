"""The one place that writes to stdout and stderr.

stdout carries data: one JSON object under `--json`, else text and tables. Notes and progress
go to stderr, progress as a bar or, off a terminal, as a line now and then. Everything reads
without colour and at 80 columns; rich itself honours NO_COLOR and FORCE_COLOR. Knows nothing of
plans.
"""

import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import PurePath
from textwrap import wrap
from time import monotonic
from typing import TypeVar

from rich.cells import cell_len
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from hydraplan.errors import printable

T = TypeVar("T")

SCHEMA_VERSION = 1
"""First entry of every object that a command prints under `--json`."""

GAP, NARROW_GAP = 3, 2
"""Columns of space between two columns of a table; and where room is short."""

PIPE_WIDTH, LEAST_CELLS = 80, 24
"""Columns of a chart where there is no terminal; cells of its lines at the least."""

WIDEST = 10_000
"""Columns of anything at the most, whatever COLUMNS says."""

LINES = 24
"""Lines that rich is told of; nothing we print depends on them."""

LINE_S = 30.0
"""Seconds from one line of progress to the next, where stderr is no terminal."""

ROUNDING = 1e-15
"""What sums of times and shares that cancel may leave; a table says 0."""

LEAST_TEXT_WIDTH = 8
"""A column of text is not folded below this."""


def emit_json(payload: Mapping[str, object]) -> None:
    """Print one JSON object, `schema_version` first; what is not finite becomes null."""
    plain = {"schema_version": SCHEMA_VERSION, **payload}
    print(json.dumps(_plain(plain), indent=2, allow_nan=False))


def emit(text: str = "") -> None:
    """Print lines of text to stdout, wrapped on words; other control characters are escaped.

    In a file or a pipe a line stays whole, unless COLUMNS says how wide it may be.
    """
    room = _width(sys.maxsize)
    for line in map(printable, text.split("\n")):
        draw(wrap(line, room, break_long_words=False, break_on_hyphens=False) or [""])


def cells(names_width: int) -> int:
    """Cells of a chart's line that fit beside names of that width."""
    return max(LEAST_CELLS, _width(PIPE_WIDTH) - names_width)


def _width(otherwise: int) -> int:
    """Columns of the terminal, or those in COLUMNS; `otherwise` in a file or a pipe.

    COLUMNS that is no whole number from 1 on says nothing, as in shells.
    """
    text = os.environ.get("COLUMNS", "").lstrip("0")
    if text.isascii() and text.isdigit():
        return min(int(text[: len(str(WIDEST)) + 1]), WIDEST)
    if not sys.stdout.isatty():
        return otherwise
    return min(shutil.get_terminal_size((PIPE_WIDTH, 0)).columns, WIDEST)


def _rich(*, stderr: bool = False, highlight: bool = True) -> Console:
    """A console of rich that is told its size, so that it does not read COLUMNS in its own way."""
    return Console(stderr=stderr, highlight=highlight, width=_width(PIPE_WIDTH), height=LINES)


def draw(lines: Iterable[str]) -> None:
    """Print lines whose columns have their places: escaped, never wrapped."""
    for line in lines:
        print(printable(line))


def paint(lines: Iterable[Text]) -> None:
    """Print lines of our own whose columns have their places, in colour where stdout takes it."""
    console = _rich(highlight=False)
    for line in lines:
        console.print(line, soft_wrap=True)


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
    numeric = [bool(rows) and all(_is_number(row[i]) for row in rows) for i in range(len(columns))]
    texts = [[printable(cell(row[i])) for row in rows] for i in range(len(columns))]
    whole = [[name] for name in columns]
    stacked = [name.split() if n else [name] for name, n in zip(columns, numeric, strict=True)]
    for heads, gap in ((whole, GAP), (stacked, GAP), (stacked, NARROW_GAP)):
        widths = [max(map(cell_len, [*h, *t])) for h, t in zip(heads, texts, strict=True)]
        room = _width(PIPE_WIDTH) - gap * (len(columns) - 1)
        if sum(widths) <= room:
            break
    widths = _narrowed(widths, numeric, room)

    def line(parts: Sequence[str]) -> str:
        padded = []
        for part, width, right in zip(parts, widths, numeric, strict=True):
            space = " " * (width - cell_len(part))
            padded.append(space + part if right else part + space)
        return (" " * gap).join(padded).rstrip()

    if title:
        emit(title)
    height = max(map(len, heads))
    draw(line(parts) for parts in zip(*([""] * (height - len(h)) + h for h in heads), strict=True))
    draw(["-" * (sum(widths) + gap * (len(columns) - 1))])
    for row in zip(*texts, strict=True):
        folded = [wrap(text, width) or [""] for text, width in zip(row, widths, strict=True)]
        draw(map(line, zip_longest(*folded, fillvalue="")))
    if caption:
        emit(caption)


def _narrowed(widths: list[int], numeric: Sequence[bool], room: int) -> list[int]:
    """The widths with those of text, the widest first, made smaller until all fit, if they can."""
    widths = widths.copy()
    while sum(widths) > room:
        text = [i for i, number in enumerate(numeric) if not number]
        widest = max(text, key=lambda i: widths[i], default=None)
        if widest is None or widths[widest] <= LEAST_TEXT_WIDTH:
            break
        widths[widest] -= 1
    return widths


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
        value = 0.0 if abs(value) < ROUNDING else value
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    return str(value)


@contextmanager
def progress(text: str, total: float | None = None) -> Iterator[Callable[[float], None]]:
    """Tell on stderr how far the block is; yields a function that advances it by a step.

    Off a terminal a line comes every `LINE_S`, so what is done sooner says nothing.
    """
    if not sys.stderr.isatty():
        yield _told_now_and_then(text, total)
        return
    bar = Progress(console=_rich(stderr=True), transient=True, auto_refresh=False)
    with bar:  # which has no thread then: the block may fork
        task = bar.add_task(text, total=total)
        yield lambda step: bar.update(task, advance=step, refresh=True)


def _told_now_and_then(text: str, total: float | None) -> Callable[[float], None]:
    done, told_s = 0.0, monotonic()
    of = "" if total is None else f" of {total:,.0f}"

    def advance(step: float) -> None:
        nonlocal done, told_s
        done += step
        if (now_s := monotonic()) - told_s >= LINE_S:
            told_s = now_s
            note(f"{text}: {done:,.0f}{of}")

    return advance


def counted(items: Iterable[T], advance: Callable[[float], None]) -> Iterator[T]:
    """The same items, advancing a progress bar after each."""
    for item in items:
        yield item
        advance(1)


def _is_number(value: object) -> bool:
    value = _plain(value)
    if isinstance(value, str):
        return value.endswith("%")
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
