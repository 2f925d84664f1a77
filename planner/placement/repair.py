"""Hot-slot repair: move or re-degree sequences of the fullest slot until it is not far off.

The fullest slot sets the pace of its microbatch. Each of its sequences may go to the least loaded
block of its own degree, or of the next lower or higher one, or double in place (spill to its
buddy). The move that leaves the lowest peak is taken, as long as that is below the present one;
then the next fullest slot is looked at. Everything is asked of the min-max forest, so a step costs
the sequences of one slot times O(log), whatever the size of the pool.

Source: our own derivation.
"""

from typing import NamedTuple

import numpy as np

from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.compiled import compiled
from hydraplan.planner.placement.block_tree import block_max
from hydraplan.planner.placement.forest import Forest, change, least_loaded


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
    levels = len(options.degrees)
    head = np.full((num_microbatches, 2 * width), -1)
    after = np.full(len(level), -1)
    for i in range(len(level)):
        after[i] = head[microbatch[i], node[i]]
        head[microbatch[i], node[i]] = i
    peaks = np.full(forest.leads.shape[1], -np.inf)
    for m in range(num_microbatches):
        _peak(peaks, forest, m)
    moves = looked = 0
    while moves < max_steps and peaks[1] > stop_s:
        hot = 1
        while hot < len(peaks) // 2:
            hot = 2 * hot if peaks[2 * hot] >= peaks[2 * hot + 1] else 2 * hot + 1
        m = hot - len(peaks) // 2
        lane = 1
        while lane < width:
            left, right = forest.highest[m, 2 * lane], forest.highest[m, 2 * lane + 1]
            lane = 2 * lane if left >= right else 2 * lane + 1
        best_s, who, to_m, to_node, to_level = peaks[1] * (1 - 1e-9), -1, 0, 0, 0
        at = lane
        while at > 0:
            i = head[m, at]
            while i >= 0:
                looked += 1
                k = level[i]
                for target in range(max(0, k - 1), min(levels, k + 2)):
                    cost_s = options.load_s[options.bucket[i], target]
                    if target == k:
                        cost_s = load_s[i]
                    if cost_s >= best_s:
                        continue
                    room = options.cap_tokens - _rows_at(options, i, target, k, rows)
                    new_m, new_node, load = least_loaded(forest, target)
                    left = peaks[1] - load_s[i] * forest.slow[at]
                    peak = max(load + cost_s * forest.slow[new_node], left)
                    if peak < best_s and not _overlap(new_m, new_node, m, at):
                        held = block_max(forest.rows_added, forest.rows_highest, new_m, new_node)
                        if held <= room:
                            best_s, who = peak, i
                            to_m, to_node, to_level = new_m, new_node, target
                    if target == k + 1 and at > 1 and forest.barred[m, at >> 1] == 0:
                        mine = block_max(forest.added, forest.highest, m, at)
                        mine -= load_s[i] * forest.slow[at]
                        buddy = block_max(forest.added, forest.highest, m, at ^ 1)
                        peak = max(mine, buddy) + cost_s * forest.slow[at >> 1]
                        if peak < best_s:
                            held = block_max(forest.rows_added, forest.rows_highest, m, at ^ 1)
                            if held <= room:
                                best_s, who = peak, i
                                to_m, to_node, to_level = m, at >> 1, target
                i = after[i]
            at >>= 1
        if who < 0:
            break
        change(forest, microbatch[who], node[who], -load_s[who], -rows[who])
        _unlink(head, after, microbatch[who], node[who], who)
        _peak(peaks, forest, microbatch[who])
        if to_level != level[who]:
            rows[who] = _rows_at(options, who, to_level, level[who], rows)
            load_s[who] = options.load_s[options.bucket[who], to_level]
        microbatch[who], node[who], level[who] = to_m, to_node, to_level
        after[who] = head[to_m, to_node]
        head[to_m, to_node] = who
        change(forest, to_m, to_node, load_s[who], rows[who])
        _peak(peaks, forest, to_m)
        moves += 1
    return moves, looked


@compiled
def _rows_at(options: Options, i: int, target: int, level: int, rows: IntArray) -> int:
    """Rows of the fullest member at a level; at another than its own, no fewer than that."""
    if target == level:
        return rows[i]  # type: ignore[no-any-return]
    mean = -(-options.length_tokens[i] // options.degrees[target])
    return mean if target == 0 else mean + 2  # type: ignore[no-any-return]


@compiled
def _overlap(m: int, node: int, other_m: int, other: int) -> bool:
    """Whether two blocks share a lane."""
    if m != other_m:
        return False
    while node > other:
        node >>= 1
    while other > node:
        other >>= 1
    return node == other


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
