"""Hot-slot repair: move or re-degree sequences of the fullest slot until it is not far off.

The fullest slot sets the pace of its microbatch. Each of its sequences may go to the least loaded
block of its own degree, or of the next lower or higher one, trade places with a smaller one there,
or double in place (spill to its buddy). The move that leaves the lowest peak is taken, as long as
that is below the present one; then the next fullest slot is looked at. Everything is asked of the
min-max forest, so a step costs the sequences of one slot times O(log), whatever the size of the
pool.

Source: our own derivation.
"""

from typing import NamedTuple

import numpy as np

from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.compiled import compiled
from hydraplan.planner.placement.block_tree import block_max
from hydraplan.planner.placement.forest import Forest, change, least_loaded

MAX_PARTNERS = 16
"""Sequences of the least loaded block that are asked to trade places."""


class Options(NamedTuple):
    """What sequences cost at other degrees. `bucket`: row of the table of each sequence.

    `load_s`: loads of the levels that may be used, infinite elsewhere, (num_buckets, levels).
    `length_tokens`: of each sequence.
    """

    bucket: IntArray
    load_s: FloatArray
    length_tokens: IntArray
    degrees: IntArray
    cap_tokens: int


@compiled
def repair(
    forest: Forest,
    options: Options,
    microbatch: IntArray,
    node: IntArray,
    level: IntArray,
    load_s: FloatArray,
    rows: IntArray,
    stop_s: float,
    max_steps: int,
) -> tuple[int, int]:
    """Change places and levels until no slot exceeds `stop_s`, nothing helps, or steps run out.

    Arrays of the sequences are changed in place, the forest with them; `rows` of a sequence
    that was given another degree become an upper bound.

    Returns:
        Moves made, and sequences looked at.
    """
    num_microbatches, width = len(forest.highest), forest.highest.shape[1] // 2
    head = np.full((num_microbatches, 2 * width), -1)
    after = np.full(len(level), -1)
    for i in range(len(level)):
        _link(head, after, microbatch[i], node[i], i)
    peaks = np.full(forest.leads.shape[1], -np.inf)
    for m in range(num_microbatches):
        _peak(peaks, forest, m)
    moves = looked = 0
    while moves < max_steps and peaks[1] > stop_s:
        m, lane = _hottest(peaks, forest)
        best = (peaks[1] * (1 - 1e-9), -1, 0, 0, 0, -1)
        at = lane
        while at > 0:
            i = head[m, at]
            while i >= 0:
                looked += 1
                best = _best_move(forest, options, head, after, m, at, i, level, load_s, rows,
                                  peaks[1], best)  # fmt: skip
                i = after[i]
            at >>= 1
        _, who, to_m, to_node, to_level, partner = best
        if who < 0:
            break
        from_m, from_node = microbatch[who], node[who]
        _take(forest, head, after, from_m, from_node, who, load_s, rows)
        if partner >= 0:
            _take(forest, head, after, to_m, to_node, partner, load_s, rows)
            microbatch[partner], node[partner] = from_m, from_node
            _put(forest, head, after, from_m, from_node, partner, load_s, rows)
        if to_level != level[who]:
            rows[who] = _rows_at(options, who, to_level, level[who], rows)
            load_s[who] = options.load_s[options.bucket[who], to_level]
        microbatch[who], node[who], level[who] = to_m, to_node, to_level
        _put(forest, head, after, to_m, to_node, who, load_s, rows)
        _peak(peaks, forest, from_m)
        _peak(peaks, forest, to_m)
        moves += 1
    return moves, looked


@compiled
def _best_move(
    forest: Forest,
    options: Options,
    head: IntArray,
    after: IntArray,
    m: int,
    at: int,
    i: int,
    level: IntArray,
    load_s: FloatArray,
    rows: IntArray,
    peak_s: float,
    best: tuple[float, int, int, int, int, int],
) -> tuple[float, int, int, int, int, int]:
    """The better of `best` and what sequence i of block `at` can do for its slot.

    A move is (peak after it, sequence, microbatch, node, level, partner it trades with or -1).
    """
    k, slow = level[i], forest.slow[at]
    for target in range(max(0, k - 1), min(len(options.degrees), k + 2)):
        cost_s = load_s[i] if target == k else options.load_s[options.bucket[i], target]
        if cost_s == np.inf:
            continue
        needs = _rows_at(options, i, target, k, rows)
        to_m, to_node, load = least_loaded(forest, target)
        if load < best[0] and not _overlap(to_m, to_node, m, at):
            held = block_max(forest.rows_added, forest.rows_highest, to_m, to_node)
            peak = max(load + cost_s * forest.slow[to_node], peak_s - load_s[i] * slow)
            if peak < best[0] and held + needs <= options.cap_tokens:
                best = (peak, i, to_m, to_node, target, -1)
            if target == k:
                here = block_max(forest.rows_added, forest.rows_highest, m, at)
                j = head[to_m, to_node]
                for _ in range(MAX_PARTNERS):
                    if j < 0:
                        break
                    less = (load_s[i] - load_s[j]) * slow
                    peak = max(peak_s - less, load + less / slow * forest.slow[to_node])
                    fits = max(held + needs - rows[j], here + rows[j] - rows[i])
                    if peak < best[0] and fits <= options.cap_tokens:
                        best = (peak, i, to_m, to_node, target, j)
                    j = after[j]
        if target == k + 1 and at > 1 and forest.barred[m, at >> 1] == 0:
            mine = block_max(forest.added, forest.highest, m, at) - load_s[i] * slow
            buddy = block_max(forest.added, forest.highest, m, at ^ 1)
            peak = max(mine, buddy) + cost_s * forest.slow[at >> 1]
            held = block_max(forest.rows_added, forest.rows_highest, m, at) - rows[i]
            held = max(held, block_max(forest.rows_added, forest.rows_highest, m, at ^ 1))
            if peak < best[0] and held + needs <= options.cap_tokens:
                best = (peak, i, m, at >> 1, target, -1)
    return best


@compiled
def _hottest(peaks: FloatArray, forest: Forest) -> tuple[int, int]:
    """Microbatch and leaf of the fullest slot."""
    hot, width = 1, forest.highest.shape[1] // 2
    while hot < len(peaks) // 2:
        hot = 2 * hot if peaks[2 * hot] >= peaks[2 * hot + 1] else 2 * hot + 1
    m = hot - len(peaks) // 2
    lane = 1
    while lane < width:
        left, right = forest.highest[m, 2 * lane], forest.highest[m, 2 * lane + 1]
        lane = 2 * lane if left >= right else 2 * lane + 1
    return m, lane


@compiled
def _take(
    forest: Forest,
    head: IntArray,
    after: IntArray,
    m: int,
    node: int,
    i: int,
    load_s: FloatArray,
    rows: IntArray,
) -> None:
    change(forest, m, node, -load_s[i], -rows[i])
    _unlink(head, after, m, node, i)


@compiled
def _put(
    forest: Forest,
    head: IntArray,
    after: IntArray,
    m: int,
    node: int,
    i: int,
    load_s: FloatArray,
    rows: IntArray,
) -> None:
    change(forest, m, node, load_s[i], rows[i])
    _link(head, after, m, node, i)


@compiled
def rows_bound(options: Options, i: int, level: int) -> int:
    """No fewer rows than the fullest member of sequence i holds at a level."""
    mean = -(-options.length_tokens[i] // options.degrees[level])
    return mean if level == 0 else mean + 2  # type: ignore[no-any-return]


@compiled
def _rows_at(options: Options, i: int, target: int, level: int, rows: IntArray) -> int:
    """Rows of the fullest member at a level; at another than its own, no fewer than that."""
    return rows[i] if target == level else rows_bound(options, i, target)


@compiled
def _overlap(m: int, node: int, other_m: int, other: int) -> bool:
    """Whether two blocks share a lane."""
    if m != other_m:
        return False
    inner, outer = max(node, other), min(node, other)
    while inner > outer:
        inner >>= 1
    return inner == outer


@compiled
def _link(head: IntArray, after: IntArray, m: int, node: int, who: int) -> None:
    after[who] = head[m, node]
    head[m, node] = who


@compiled
def _unlink(head: IntArray, after: IntArray, m: int, node: int, who: int) -> None:
    i = head[m, node]
    if i == who:
        head[m, node] = after[who]
        return
    while after[i] != who:
        i = after[i]
    after[i] = after[who]


@compiled
def _peak(peaks: FloatArray, forest: Forest, m: int) -> None:
    """Play the tournament of the fullest slots again after microbatch m changed."""
    at = len(peaks) // 2 + m
    peaks[at] = forest.highest[m, 1]
    at >>= 1
    while at > 0:
        peaks[at] = max(peaks[2 * at], peaks[2 * at + 1])
        at >>= 1
