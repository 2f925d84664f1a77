"""Placement on the min-max forest: the policy of HyDra's lazy heaps, with exact queries.

Sequences come in descending cost; each goes to the least loaded block of its degree. A block whose
rows leave no room waits for a sequence small enough (`waiting`). Where ranks differ in speed,
blocks with a slow lane are compared with the next ones by when they would be done.

Source: the policy is HyDra's; the forest is ours.
"""

from collections.abc import Sequence

import numpy as np

from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.compiled import compiled
from hydraplan.planner.placement.block_tree import block_max
from hydraplan.planner.placement.forest import Forest, bar, change, least_loaded, new_forest
from hydraplan.planner.placement.waiting import (
    MAX_QUERIES,
    call_up,
    call_up_all,
    let_wait,
    nobody_waits,
)

MAX_COMPARED = 64
"""Blocks with a slow lane that one sequence compares."""


def place_forest(
    load_s: FloatArray,
    rows: IntArray,
    level: IntArray,
    num_ranks: int,
    num_microbatches: int,
    cap_tokens: int,
    slow: FloatArray | None = None,
    spared: Sequence[int] = (),
) -> tuple[Forest, IntArray, IntArray] | None:
    """Place sequences; at most `cap_tokens` rows in every slot.

    Args:
        load_s: Seconds each sequence adds to every member, shape (num_sequences,).
        rows: Rows of its fullest member.
        level: Level of its degree.
        slow: Slowness of every lane, shape (num_ranks,); None where all are nominal.
        spared: Lanes that get nothing where another place is legal (`spared`).

    Returns:
        The forest as filled, microbatch and node of each sequence; None where the cap got in
        the way.
    """
    order = np.lexsort((-level, -load_s))
    forest = new_forest(num_ranks, num_microbatches, slow, spared=spared)
    microbatch, node = np.full(len(level), -1), np.full(len(level), -1)
    complete, _ = place(forest, order, load_s, rows, level, cap_tokens, microbatch, node)
    return (forest, microbatch, node) if complete else None


@compiled
def place(
    forest: Forest,
    order: IntArray,
    load_s: FloatArray,
    rows: IntArray,
    level: IntArray,
    cap_tokens: int,
    microbatch_of: IntArray,
    node_of: IntArray,
) -> tuple[bool, int]:
    """Fill `microbatch_of` and `node_of`; return completeness and the number of queries."""
    waiting, lanes = nobody_waits(forest), forest.added.shape[1]
    compared = np.empty(MAX_COMPARED, np.int64)
    fastest = forest.slow[0]
    queries, most_queries = 0, len(order) * MAX_QUERIES
    for i in order:
        k = level[i]
        call_up(forest, waiting, k, rows[i])
        count = 0
        best_s, to_m, to_node = np.inf, -1, -1
        while queries < most_queries:
            queries += 1
            m, node, load = least_loaded(forest, k)
            if load + load_s[i] * fastest >= best_s or load == np.inf:
                break
            free = cap_tokens - block_max(forest.rows_added, forest.rows_highest, m, node)
            if free < rows[i]:
                let_wait(forest, waiting, k, m, node, free)
                continue
            done_s = load + load_s[i] * forest.slow[node]
            if done_s < best_s:
                best_s, to_m, to_node = done_s, m, node
            if forest.slow[node] == fastest or count == MAX_COMPARED:
                break
            bar(forest, m, node, k, True)
            compared[count] = m * lanes + node
            count += 1
        for j in range(count):
            bar(forest, compared[j] // lanes, compared[j] % lanes, k, False)
        if to_m < 0:
            return False, queries
        microbatch_of[i], node_of[i] = to_m, to_node
        change(forest, to_m, to_node, load_s[i], rows[i])
    call_up_all(forest, waiting)
    return True, queries
