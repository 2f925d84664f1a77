"""The fewest microbatches in order: what is left to do where even runs break the cap.

One microbatch after the other takes what it can hold: of the window it stands in the longest
rows that still fit, then of the next window, once nothing of this one is left. What the cap forbids
is tried with less. If more microbatches are wanted than come out, the heaviest are split.

Source: first-fit decreasing, standard; by windows it is our own.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush

import numpy as np

from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.compiled import compiled
from hydraplan.planner.placement.place import Placement

LESS = 0.98
"""Share of what did not fit that is tried next."""

Fitted = tuple[IntArray, Placement]
"""Rows of one microbatch, and where they lie."""
Fit = Callable[[IntArray], Placement | None]
"""Place rows as one microbatch."""


def fewest_runs(fit: Fit, length_tokens: IntArray, window: IntArray, capacity: int) -> list[Fitted]:
    """Microbatches in order, as few as first fit needs.

    Args:
        fit: Must hold any single row.
        window: Window of each row, ascending; no row may overtake one of an earlier window.
        capacity: Tokens that a microbatch holds at the most.
    """
    order = np.lexsort((-length_tokens, window))
    length, window = length_tokens[order], window[order]
    found: list[Fitted] = []
    waiting = np.ones(len(order), bool)
    first = 0
    while first < len(order):
        room, placed = capacity, None
        while placed is None:
            taken = _first_fit(length, window, waiting, first, room)
            rows = np.sort(order[taken])
            placed = fit(rows)
            total = int(length[taken].sum())
            room = min(total - 1, int(LESS * total))
            assert placed is not None or len(taken) > 1
        found.append((rows, placed))
        waiting[taken] = False
        first += int(waiting[first:].argmax()) if waiting[first:].any() else len(order) - first
    return found


@compiled
def _first_fit(
    length: IntArray, window: IntArray, waiting: IntArray, first: int, room: int
) -> IntArray:
    """Rows that one microbatch takes, beginning with the first that waits."""
    taken = [first]
    left, blocked = room - length[first], -1
    for i in range(first + 1, len(length)):
        if blocked >= 0 and window[i] != blocked:
            break
        if not waiting[i]:
            continue
        if length[i] <= left:
            taken.append(i)
            left -= length[i]
        else:
            blocked = window[i]
    return np.array(taken)


def split_heaviest(fit: Fit, found: list[Fitted], work_s: FloatArray, count: int) -> list[Fitted]:
    """The same with `count` microbatches, or as many as there are rows; the heaviest are halved."""
    heap = [_entry((i,), rows, placed, work_s) for i, (rows, placed) in enumerate(found)]
    done: list[tuple[tuple[int, ...], Fitted]] = []
    heapify(heap)
    while heap and len(heap) + len(done) < count:
        _, key, rows, whole = heappop(heap)
        halves = _halves(rows, work_s) if len(rows) > 1 else []
        fitted = [placed for placed in map(fit, halves) if placed is not None]
        if len(fitted) < 2:
            done.append((key, (rows, whole)))
            continue
        for side, (half, placed) in enumerate(zip(halves, fitted, strict=True)):
            heappush(heap, _entry((*key, side), half, placed, work_s))
    done += [(key, (rows, placed)) for _, key, rows, placed in heap]
    return [fitted for _, fitted in sorted(done, key=lambda entry: entry[0])]


def _entry(
    key: tuple[int, ...], rows: IntArray, placed: Placement, work_s: FloatArray
) -> tuple[float, tuple[int, ...], IntArray, Placement]:
    """Heaviest first; keys are unique and ascend in order of execution."""
    return -float(work_s[rows].sum()), key, rows, placed


def _halves(rows: IntArray, work_s: FloatArray) -> list[IntArray]:
    """In two at half of the work; `rows` ascend."""
    total_s = np.cumsum(work_s[rows])
    at = int(np.abs(total_s[:-1] - total_s[-1] / 2).argmin()) + 1
    return [rows[:at], rows[at:]]
