"""Ops of every stage over time, as a chart that reads without colour too.

A stage has a line for forwards, one for backwards, and one for weight gradients where some run
apart. A cell shows what the stage does in the middle of the cell's time: the microbatch's last
digit, as a letter for the chunks after the first; a dot where it idles. Colour tells the kind of an
op, which its line tells as well.
"""

from collections.abc import Sequence
from itertools import groupby
from textwrap import wrap

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from hydraplan.model import FloatArray, Schedule

GANTT_WIDTH = 72
"""Cells of a line in 80 columns."""

NAMES_WIDTH = 8
"""Columns of the names before the cells, at the most."""

SYMBOLS = ("0123456789", "abcdefghij", "klmnopqrst", "ABCDEFGHIJ", "KLMNOPQRST")
"""Last digit of a microbatch, by chunk; chunks beyond these take the symbols of earlier ones."""

IDLE = "."

STYLES = {"F": "blue", "B": "green", "W": "yellow", IDLE: "bright_black"}
"""Colour of every line, and of idle cells."""

AXIS_PARTS = 4

MOST_STAGES = 64
"""Stages that are drawn; of more, so many spread evenly from the first to the last."""


def gantt(
    schedule: Schedule,
    start_s: Sequence[FloatArray],
    end_s: Sequence[FloatArray],
    width: int = GANTT_WIDTH,
    unit: str = " s",
) -> list[Text]:
    """Lines of the chart, a time axis below them.

    First lines, no wider than the chart, say what is not drawn: stages beyond `MOST_STAGES`, ops
    that fall between two middles.

    Args:
        schedule: Op order of every stage.
        start_s: When every op starts, one array a stage, shape (ops,), seconds.
        end_s: When it ends.
        width: Cells of a line.
        unit: What follows a time.
    """
    end = max(float(e.max()) for e in end_s)
    middles = (np.arange(width) + 0.5) * (end / width)
    drawn = np.linspace(0, len(schedule) - 1, min(len(schedule), MOST_STAGES)).round().astype(int)
    starts, ends = (np.concatenate([of[s] for s in drawn]) for of in (start_s, end_s))
    unseen = np.searchsorted(middles, starts) == np.searchsorted(middles, ends)
    left_out = []
    if len(drawn) < len(schedule):
        left_out.append(
            f"drawn are {len(drawn)} of {len(schedule)} stages, from the first to the last"
        )
    if unseen.any():
        left_out.append(
            f"1 column = {end / width:.3g}{unit}, drawn is its middle: {unseen.sum()} of"
            f" {len(unseen)} shorter ops are not"
        )
    kinds = _kinds(schedule)
    margin = max(3, len(str(len(schedule) - 1)))
    lines = [Text(line) for text in left_out for line in wrap(text, margin + 3 + width)]
    for stage in drawn.tolist():
        cells: dict[str, NDArray[np.str_]] = {kind: np.full(width, IDLE) for kind in kinds}
        for op, start, stop in zip(schedule[stage], start_s[stage], end_s[stage], strict=True):
            inside = slice(*np.searchsorted(middles, (start, stop)))
            symbols = SYMBOLS[op.chunk % len(SYMBOLS)]
            cells[op.kind[0]][inside] = symbols[op.microbatch % 10]
        for kind in kinds:
            name = str(stage) if kind == kinds[0] else ""
            lines.append(_line(f"{name:>{margin}} {kind} ", kind, "".join(cells[kind])))
    return lines + [Text(" " * (margin + 3) + line) for line in _axis(end, width, unit)]


def legend(schedule: Schedule) -> str:
    """What the symbols and the lines of the chart stand for, on a line each."""
    chunks = min(1 + max(op.chunk for ops in schedule for op in ops), len(SYMBOLS))
    letters = ", ".join(f"{c}: {SYMBOLS[c][0]}-{SYMBOLS[c][-1]}" for c in range(1, chunks))
    kinds = {op.kind for ops in schedule for op in ops}
    backward = "B backward (both gradients at once)"
    if "B" in kinds:
        backward = f"B input gradient{' or both gradients at once' if 'BW' in kinds else ''}"
    backward += ", W weight gradient" if "W" in kinds else ""
    return (
        f"last digit of the microbatch{f'; chunk {letters}' if letters else ''}"
        f"\nF forward, {backward}, '{IDLE}' idle"
    )


def _kinds(schedule: Schedule) -> str:
    return "FBW" if any(op.kind == "W" for ops in schedule for op in ops) else "FB"


def _line(name: str, kind: str, cells: str) -> Text:
    line = Text(name)
    for idles, run in groupby(cells, lambda cell: cell == IDLE):
        line.append("".join(run), style=STYLES[IDLE if idles else kind])
    return line


def _axis(end: float, width: int, unit: str) -> list[str]:
    """A ruler, and below it the time at the start, at every part and at the end."""
    marks = [round(part * (width - 1) / AXIS_PARTS) for part in range(AXIS_PARTS + 1)]
    ruler = "".join("+" if column in marks else "-" for column in range(width))
    texts = [f"{end * part / AXIS_PARTS:.3g}" for part in range(AXIS_PARTS + 1)]
    numbers = [" "] * (width + 1)
    for mark, text in zip(marks[:-1], texts[:-1], strict=True):
        if mark + len(text) < width - len(texts[-1] + unit) - 1 and numbers[mark] == " ":
            numbers[mark : mark + len(text)] = text
    last = texts[-1] + unit
    numbers[max(0, width - len(last)) :] = last
    return [ruler, "".join(numbers)]
