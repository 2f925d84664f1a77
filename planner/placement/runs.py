"""Cut a batch into runs of consecutive rows: about equal work, none beyond a capacity.

The least possible largest work of a run comes first, by bisection over greedy cuts. Within it, and
as long as the rest can still be cut, each run ends where the work that is left, shared out evenly,
would end it.

Source: min-max partition of a sequence, standard; ending runs at even shares is our choice.
"""

import numpy as np

from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.compiled import compiled

CLOSE = 1e-3
"""Relative width at which the bisection for the largest run stops."""


def cut(work_s: FloatArray, held: FloatArray, count: int, capacity: float) -> IntArray | None:
    """Bounds of the runs, from 0 to the number of rows; None if they cannot hold all rows.

    There are `count` of them, or as many as rows. A single row always counts as fitting.

    Args:
        work_s: Work of each row, shape (num_rows,).
        held: What it takes of the capacity, same shape.
        count: Number of runs.
        capacity: What a run holds at the most.
    """
    work, room = (np.concatenate([[0.0], np.cumsum(column)]) for column in (work_s, held))
    count = min(count, len(work_s))
    low, high = max(float(work_s.max()), float(work[-1]) / count), float(work[-1])
    bounds = _cut(work, room, count, capacity, low, high)
    return bounds if len(bounds) else None


@compiled
def _cut(
    work: FloatArray, room: FloatArray, count: int, capacity: float, low: float, high: float
) -> IntArray:
    """As `cut`, on prefix sums; `low` and `high` enclose the largest work of a run."""
    rows = len(work) - 1
    if _num_runs(work, room, high, capacity, count) > count:
        return np.zeros(0, np.int64)
    if _num_runs(work, room, low, capacity, count) <= count:
        high = low
    while high - low > CLOSE * high:
        middle = (low + high) / 2
        if _num_runs(work, room, middle, capacity, count) > count:
            low = middle
        else:
            high = middle
    earliest = np.full(count + 1, rows, np.int64)  # where the last so many runs may begin
    for last in range(1, count + 1):
        earliest[last] = _begin(work, room, earliest[last - 1], high, capacity)
    bounds = np.zeros(count + 1, np.int64)
    for i in range(1, count + 1):
        start, after = bounds[i - 1], count - i
        share = (work[rows] - work[start]) / (after + 1)
        end = _within(work, start, share)
        if end < rows and work[end + 1] - work[start] - share < share - work[end] + work[start]:
            end += 1
        end = min(end, _end(work, room, start, high, capacity), rows - after)
        bounds[i] = max(end, earliest[after], start + 1)
    return bounds


@compiled
def _num_runs(
    work: FloatArray, room: FloatArray, most_s: float, capacity: float, enough: int
) -> int:
    """How many runs a greedy cut makes; stops beyond `enough`."""
    start, count = 0, 0
    while start < len(work) - 1 and count <= enough:
        start = _end(work, room, start, most_s, capacity)
        count += 1
    return count


@compiled
def _end(work: FloatArray, room: FloatArray, start: int, most_s: float, capacity: float) -> int:
    """Last possible end of a run that begins there."""
    return max(start + 1, min(_within(work, start, most_s), _within(room, start, capacity)))


@compiled
def _begin(work: FloatArray, room: FloatArray, stop: int, most_s: float, capacity: float) -> int:
    """First possible begin of a run that ends there; 0 at the front."""
    low, high = 0, max(0, stop - 1)
    while low < high:
        middle = (low + high) // 2
        if _within(work, middle, most_s) >= stop and _within(room, middle, capacity) >= stop:
            high = middle
        else:
            low = middle + 1
    return high


@compiled
def _within(total: FloatArray, start: int, most: float) -> int:
    """Last index whose prefix sum is at most so much above that of `start`."""
    limit = total[start] + most * (1 + 1e-12)
    low, high = start, len(total) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if total[middle] <= limit:
            low = middle
        else:
            high = middle - 1
    return low
