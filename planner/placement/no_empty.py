"""No microbatch without a sequence: where placement left some empty, others are parted.

Frameworks cannot run a microbatch that holds nothing on any rank. For every empty one another is
parted in two, the one that adds least to the sum of all microbatches' fullest slots, which is about
what a pipeline takes. Sequences keep degree and ranks, so each part holds what was there before, or
less: no slot grows, the cap still holds. Microbatches keep their order, the parts of one follow
each other.

What it does not do: place again, or fill single slots; a lane of a microbatch may hold nothing.

Source: our own.
"""

from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hydraplan.model import FloatArray, IntArray


class Blocks(NamedTuple):
    """Where sequences lie in a microbatch, whichever it is; arrays of shape (num_sequences,).

    `load_s`: seconds on each member of the group. `slow`: slowness of every lane, (num_ranks,).
    """

    first_rank: IntArray
    degree: IntArray
    load_s: FloatArray
    slow: FloatArray


class Parting(NamedTuple):
    """A microbatch as it would be parted; less is better."""

    added_s: float
    minus_peak_s: float
    microbatch: int
    parts: tuple[list[int], list[int]]


def without_empty(
    microbatch: IntArray, blocks: Blocks, num_microbatches: int, order_kept: bool
) -> IntArray:
    """Microbatch of each sequence, none empty unless there are fewer sequences, (num_sequences,).

    Args:
        order_kept: Sequences are numbered in an order that microbatches keep to: one is parted
            between two of them, not anywhere.
    """
    held = np.bincount(microbatch, minlength=num_microbatches)
    missing = min(num_microbatches, len(microbatch)) - int(np.count_nonzero(held))
    if not missing:
        return microbatch
    rows_of = np.split(np.argsort(microbatch, kind="stable"), np.cumsum(held)[:-1])
    whole = [(m, rows.tolist()) for m, rows in enumerate(rows_of) if len(rows)]
    alone = [(m, rows) for m, rows in whole if len(rows) == 1]
    heap = [_parting(m, rows, blocks, order_kept) for m, rows in whole if len(rows) > 1]
    heapify(heap)
    for _ in range(missing):
        best = heappop(heap)
        for rows in best.parts:
            if len(rows) > 1:
                heappush(heap, _parting(best.microbatch, rows, blocks, order_kept))
            else:
                alone.append((best.microbatch, rows))
    left = [(parting.microbatch, sorted(parting.parts[0] + parting.parts[1])) for parting in heap]
    result = np.empty_like(microbatch)
    for number, (_, rows) in enumerate(sorted(alone + left)):
        result[rows] = number
    return result


def _parting(microbatch: int, rows: list[int], blocks: Blocks, order_kept: bool) -> Parting:
    """The best way found to part two or more rows, which ascend."""
    second = _cut(rows, blocks) if order_kept else _spread(rows, blocks)
    at = np.array(rows)
    parts = at[~second].tolist(), at[second].tolist()
    first_s, second_s, peak_s = (_running_peak_s(part, blocks)[-1] for part in (*parts, rows))
    return Parting(float(first_s + second_s - peak_s), -float(peak_s), microbatch, parts)


def _spread(rows: list[int], blocks: Blocks) -> NDArray[np.bool_]:
    """Which of the rows go to the second part, at least one and not all.

    Costliest first, each where the fullest slot rises least, else where it is lower; the last one
    goes there if nothing else does.
    """
    lane_s = np.zeros((2, len(blocks.slow)))
    second = np.zeros(len(rows), bool)
    order = np.argsort(-blocks.load_s[rows], kind="stable").tolist()
    for i in order:
        lanes, added_s = _member_s(blocks, rows[i])
        peak_s = lane_s.max(axis=1)
        risen_s = np.maximum(peak_s, (lane_s[:, lanes] + added_s).max(axis=1))
        second[i] = bool(np.lexsort((risen_s, risen_s - peak_s))[0])
        lane_s[int(second[i]), lanes] += added_s
    second[order[-1]] |= not second.any()
    return second


def _cut(rows: list[int], blocks: Blocks) -> NDArray[np.bool_]:
    """The same for rows cut between two of them: where both peaks add up to the least."""
    ahead_s = _running_peak_s(rows, blocks)[:-1]
    behind_s = _running_peak_s(rows[::-1], blocks)[-2::-1]
    at = np.lexsort((np.maximum(ahead_s, behind_s), ahead_s + behind_s))[0]
    second: NDArray[np.bool_] = np.arange(len(rows)) > at
    return second


def _running_peak_s(rows: list[int], blocks: Blocks) -> FloatArray:
    """Fullest slot after each of the rows, seconds."""
    lane_s, peak_s = np.zeros(len(blocks.slow)), np.zeros(len(rows))
    for i, row in enumerate(rows):
        lanes, added_s = _member_s(blocks, row)
        lane_s[lanes] += added_s
        peak_s[i] = lane_s.max()
    return peak_s


def _member_s(blocks: Blocks, row: int) -> tuple[slice, FloatArray]:
    """Lanes of a sequence, and what it adds to each, seconds."""
    lanes = slice(int(blocks.first_rank[row]), int(blocks.first_rank[row] + blocks.degree[row]))
    return lanes, blocks.load_s[row] * blocks.slow[lanes]
