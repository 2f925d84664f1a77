"""Charts of the page as SVG: pure functions from figures to text, colours left to its style sheet.

Every chart has a title and a description; what it shows stands beside it in a table, too. Drawings
are stretched to the width of the page, so words stand outside of them.

Source: ours.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

from hydraplan.errors import many
from hydraplan.model import FloatArray, IntArray

SHADES = 10
"""Steps from nothing to the most."""

MOST_ROWS, MOST_COLUMNS = 128, 128
"""Cells of the heat-map down and across; of more, a cell stands for several."""

MOST_BARS = 256
"""Bars of a chart; of more lanes, a bar stands for several."""

WIDTH = 1000


def svg(name: str, title: str, desc: str, size: tuple[int, int], body: str, height: int) -> Markup:
    """A drawing of `size` units, as wide as the page and `height` pixels high."""
    return Markup(
        f'<svg id="{name}" viewBox="0 0 {size[0]} {size[1]}" width="100%" height="{height}"'
        f' preserveAspectRatio="none" role="img" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-desc">{escape(desc)}</desc>{body}</svg>'
    )


def shares_bar(name: str, title: str, parts: Sequence[tuple[str, float]], mark: float) -> Markup:
    """Shares of 1 as one bar, from the left; the class of each is its name; a line at `mark`."""
    at, body = 0.0, ""
    for key, share in parts:
        width = max(0.0, share) * WIDTH
        body += f'<rect class="{escape(key)}" x="{at:.2f}" width="{width:.2f}" height="20"/>'
        at += width
    body += f'<path class="bound" d="M{WIDTH * min(1.0, mark):.2f} 0v20"/>'
    desc = ", ".join(f"{key.replace('_', ' ')} {share:.1%}" for key, share in parts)
    return svg(name, title, desc, (WIDTH, 20), body, 26)


def grouped(values: FloatArray, most: int) -> tuple[FloatArray, list[NDArray[np.int64]]]:
    """The largest of every run of neighbours, in at most so many runs; and the runs."""
    runs = np.array_split(np.arange(len(values)), min(most, len(values)))
    return np.array([values[run].max() for run in runs]), runs


def busiest(load_s: FloatArray) -> IntArray:
    """The busiest lanes, five at the most and a quarter of all, most load first."""
    order: IntArray = np.argsort(-load_s, kind="stable")
    return order[: max(1, min(5, len(load_s) // 4))]


def lane_bars(load_s: FloatArray, old_s: FloatArray | None = None) -> tuple[Markup, list[str]]:
    """Load of every lane as a bar, a line at the mean, the old plan's as an outline.

    Args:
        load_s: Seconds, shape (lanes,).
        old_s: Those of another plan on as many lanes.

    Returns:
        The drawing, and what it leaves out.
    """
    tops, runs = grouped(load_s, MOST_BARS)
    most = max(float(load_s.max()), 0.0 if old_s is None else float(old_s.max())) or 1.0
    wide, slowest = WIDTH / len(tops), set(busiest(load_s).tolist())
    body = []
    for i, (top, run) in enumerate(zip(tops.tolist(), runs, strict=True)):
        high = 100 * top / most
        kind = "bar slow" if slowest & set(run.tolist()) else "bar"
        body.append(
            f'<rect class="{kind}" x="{i * wide:.2f}" y="{100 - high:.2f}"'
            f' width="{0.8 * wide:.2f}" height="{high:.2f}"/>'
        )
    mean = 100 - 100 * float(load_s.mean()) / most
    body.append(f'<path class="mean" d="M0 {mean:.2f}H{WIDTH}"/>')
    if old_s is not None:
        path = "".join(
            f"M{i * wide:.2f} {100 - 100 * top / most:.2f}h{0.8 * wide:.2f}"
            for i, top in enumerate(grouped(old_s, MOST_BARS)[0].tolist())
        )
        body.append(f'<path class="old" d="{path}"/>')
    desc = (
        f"{many(len(load_s), 'lane')}: least {load_s.min():.4g} s, median"
        f" {np.median(load_s):.4g} s, most {load_s.max():.4g} s"
    )
    drawing = svg("lanes-chart", "Load of every lane", desc, (WIDTH, 100), "".join(body), 160)
    return drawing, _merged(runs, "a bar", "lanes", "the busiest of them")


def heat_runs(load_s: FloatArray) -> tuple[FloatArray, list[int], list[int]]:
    """The cells of the map: the fullest slot of each, and first lanes and microbatches of cells."""
    lanes = np.array_split(np.arange(load_s.shape[0]), min(MOST_ROWS, load_s.shape[0]))
    columns = np.array_split(np.arange(load_s.shape[1]), min(MOST_COLUMNS, load_s.shape[1]))
    by_lane = np.stack([load_s[lane].max(axis=0) for lane in lanes])
    cells = np.stack([by_lane[:, column].max(axis=1) for column in columns], axis=1)
    return cells, _edges(lanes), _edges(columns)


def _edges(runs: list[NDArray[np.int64]]) -> list[int]:
    return [*(int(run[0]) for run in runs), int(runs[-1][-1]) + 1]


def heat_map(load_s: FloatArray) -> tuple[Markup, list[str]]:
    """Load of slots as shades, lanes down, microbatches across; the fullest has a frame.

    Args:
        load_s: Seconds, shape (lanes, microbatches).
    """
    cells, lanes, columns = heat_runs(load_s)
    top = float(cells.max()) or 1.0
    shade = np.minimum(SHADES - 1, (cells / top * (SHADES - 1) + 0.5).astype(int))
    body = []
    for level in range(1, SHADES):
        path = "".join(_runs_of(row == level, y) for y, row in enumerate(shade))
        if path:
            body.append(f'<path class="heat h{level}" d="{path}"/>')
    y, x = np.unravel_index(int(cells.argmax()), cells.shape)
    body.append(f'<path class="fullest" d="M{x} {y}h1v1h-1z"/>')
    lane, microbatch = np.unravel_index(int(load_s.argmax()), load_s.shape)
    desc = (
        f"{many(load_s.shape[0], 'lane')} down, {many(load_s.shape[1], 'microbatch')} across;"
        f" the fullest slot, {load_s.max():.4g} s, is lane {lane}, microbatch {microbatch};"
        f" a mean slot has {load_s.mean():.4g} s"
    )
    height = max(96, min(640, cells.shape[0] * 12))
    size = cells.shape[1], cells.shape[0]
    drawing = svg("heat-chart", "Load of every slot", desc, size, "".join(body), height)
    left_out = _edges_text(lanes, "a row", "lanes") + _edges_text(
        columns, "a column", "microbatches"
    )
    return drawing, left_out


def _runs_of(chosen: NDArray[np.bool_], y: int) -> str:
    """Runs of chosen cells of a row, each a rectangle of a path."""
    steps = np.diff(np.concatenate([[0], chosen.astype(np.int8), [0]]))
    begins, ends = np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)
    return "".join(
        f"M{a} {y}h{b - a}v1h{a - b}z" for a, b in zip(begins.tolist(), ends.tolist(), strict=True)
    )


def degree_bars(degrees: dict[int, int], old: dict[int, int] | None = None) -> list[list[object]]:
    """Rows of the histogram: degree, sequences, those of the old plan, and the drawing of a bar."""
    keys = sorted({*degrees, *(old or {})})
    most = max([*degrees.values(), *(old or {}).values()], default=1)
    rows: list[list[object]] = []
    for key in keys:
        count, before = degrees.get(key, 0), (old or {}).get(key, 0)
        mark = "" if old is None else f'<path class="old" d="M{300 * before / most:.1f} 0v10"/>'
        bar = Markup(
            '<svg class="inline" viewBox="0 0 300 10" width="300" height="10" aria-hidden="true">'
            f'<rect class="bar" width="{300 * count / most:.1f}" height="10"/>{mark}</svg>'
        )
        rows.append([key, count, *([] if old is None else [before]), bar])
    return rows


def _merged(runs: list[NDArray[np.int64]], what: str, of: str, shown: str) -> list[str]:
    most = len(runs[0])
    return [] if most == 1 else [f"{what} stands for up to {most} {of} and shows {shown}"]


def _edges_text(edges: list[int], what: str, of: str) -> list[str]:
    most = max(b - a for a, b in pairwise(edges))
    if most == 1:
        return []
    return [f"{what} of the map stands for up to {most} {of} and shows their fullest slot"]
