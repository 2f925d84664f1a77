"""A chart of characters: the load of slots, never wider than `width` characters."""

import numpy as np
from numpy.typing import NDArray

from hydraplan.model import FloatArray

SHADES = " .:-=+*#%@"
"""Ten shades, from nothing to the most."""


HEAT_WIDTH, HEAT_HEIGHT = 64, 32
"""Columns of the map in 80 columns; rows."""

LANES_WIDTH = 16
"""Columns of the names of the lanes, and room, at the most."""


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
