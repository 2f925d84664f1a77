"""Charts of block characters: the load of slots, and the ops of stages over time.

Every cell also reads without colour; a chart is never wider than `width` characters.
"""

import numpy as np
from numpy.typing import NDArray

from hydraplan.model import BatchPlan, FloatArray

SHADES = " .:-=+*#%@"
"""Ten shades, from nothing to the most."""


HEAT_WIDTH, HEAT_HEIGHT = 64, 32
GANTT_WIDTH = 72


def heat_map(load_s: FloatArray, width: int = HEAT_WIDTH, height: int = HEAT_HEIGHT) -> list[str]:
    """Load of slots as shades, a row per lane (or run of lanes), a column per microbatch.

    Where there are more than fit, a cell shows the largest of those it stands for, and a first
    line says of how many.

    Args:
        load_s: Seconds, shape (lanes, microbatches).
        width: Most columns of the map.
        height: Most rows of the map.
    """
    lanes, microbatches = load_s.shape
    rows = np.array_split(np.arange(lanes), min(height, lanes))
    columns = np.array_split(np.arange(microbatches), min(width, microbatches))
    top = float(load_s.max())
    mark = len(str(lanes - 1))
    merged = [
        f"1 {line} = {_spread(parts)} {what}"
        for line, parts, what in (("row", rows, "lanes"), ("column", columns, "microbatches"))
        if len(parts[0]) > 1
    ]
    lines = [f"{', '.join(merged)}; cells show their fullest slot"] if merged else []
    for row in rows:
        cells = (load_s[np.ix_(row, column)].max() / top for column in columns)
        shades = "".join(SHADES[min(9, int(9 * share + 0.5))] for share in cells)
        lines.append(f"lane {row[0]:{mark}d} |{shades}|")
    return lines


def _spread(parts: list[NDArray[np.int64]]) -> str:
    """Sizes of parts that differ by one at most: `8`, or `1 or 2`."""
    least, most = len(parts[-1]), len(parts[0])
    return str(most) if least == most else f"{least} or {most}"


def gantt(plan: BatchPlan, width: int = GANTT_WIDTH) -> list[str]:
    """Ops of every stage over time: digits are microbatches (last digit), forward and backward.

    A cell shows what the stage's lanes do in the middle of its time: the microbatch's last
    digit, forwards on the upper line of a stage, backwards on the lower, a dot where idle. Where
    ops fall between two middles, a first line says how many are not drawn.
    """
    end = max(float(e[-1]) for e in plan.predicted_end_s)
    middles = (np.arange(width) + 0.5) * end / width
    starts, ends = map(np.concatenate, (plan.predicted_start_s, plan.predicted_end_s))
    unseen = np.searchsorted(middles, starts) == np.searchsorted(middles, ends)
    lines = []
    if unseen.any():
        lines.append(
            f"1 column = {end / width:.3g} s, drawn is its middle: {unseen.sum()} of {len(unseen)}"
            " shorter ops are not"
        )
    for stage, ops in enumerate(plan.schedule):
        upper, lower = np.full(width, "."), np.full(width, ".")
        for op, start, stop in zip(
            ops, plan.predicted_start_s[stage], plan.predicted_end_s[stage], strict=True
        ):
            line: NDArray[np.str_] = upper if op.kind == "F" else lower
            line[(middles >= start) & (middles < stop)] = str(op.microbatch % 10)
        lines.append(f"{stage:3d} F {''.join(upper)}")
        lines.append(f"    B {''.join(lower)}")
    return lines
