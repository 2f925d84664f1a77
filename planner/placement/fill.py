"""Filling to a limit: degrees chosen while placing, none higher than a slot's room demands.

The load target gives every sequence its degree before anything is placed; a fine quantum then
splits sequences that would have fitted whole. Here sequences come heaviest first, and each takes
the lowest degree whose least loaded block stays under a limit, somewhat above the least mean
load. Splitting costs rank-work, so this spends it only where nothing else fits. What fits nowhere
goes where it exceeds the limit least; repair takes care of it.

Source: our own derivation.
"""

import numpy as np

from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.compiled import compiled
from hydraplan.planner.placement.block_tree import block_max, num_blocks
from hydraplan.planner.placement.forest import Forest, bar, change, least_loaded
from hydraplan.planner.placement.heap import drop_top, push
from hydraplan.planner.placement.repair import Options, rows_bound

MAX_QUERIES = 64
"""Queries of a placement, a sequence on average, before it gives up."""


@compiled
def fill(
    forest: Forest,
    options: Options,
    order: IntArray,
    floor: IntArray,
    limit_s: float,
    level: IntArray,
    microbatch: IntArray,
    node: IntArray,
    load_s: FloatArray,
    rows: IntArray,
) -> tuple[bool, int]:
    """Place every sequence and fill its row of the last five arrays, rows as an upper bound.

    Args:
        floor: Lowest level of each sequence.
        limit_s: Load that no slot should exceed, fixed cost excluded.

    Returns:
        Whether the cap left room for all, and the number of queries.
    """
    num_microbatches, lanes = forest.added.shape
    levels = len(options.degrees)
    start = np.zeros(levels + 1, np.int64)
    for k in range(levels):
        start[k + 1] = start[k] + num_blocks(forest.num_ranks, k) * num_microbatches
    waiting = np.zeros(levels, np.int64)
    keys = np.empty(start[levels])
    items = np.empty(start[levels], np.int64)
    queries, most_queries = 0, len(order) * MAX_QUERIES
    for i in order:
        best_s, to_m, to_node, to_level = np.inf, -1, -1, -1
        for k in range(floor[i], levels):
            cost_s = options.load_s[options.bucket[i], k]
            if cost_s >= best_s or cost_s == np.inf:
                continue
            needs = min(rows_bound(options, i, k), options.cap_tokens)
            while waiting[k] > 0 and -keys[start[k]] >= needs:
                item = items[start[k]]
                bar(forest, item // lanes, item % lanes, k, False)
                drop_top(keys, items, start[k], waiting[k])
                waiting[k] -= 1
            while queries < most_queries:
                queries += 1
                m, at, load = least_loaded(forest, k)
                done_s = load + cost_s * forest.slow[at]
                if done_s >= best_s:
                    break
                held = block_max(forest.rows_added, forest.rows_highest, m, at)
                free = options.cap_tokens - held
                if free >= needs:
                    best_s, to_m, to_node, to_level = done_s, m, at, k
                    break
                bar(forest, m, at, k, True)
                push(keys, items, start[k], waiting[k], -free, m * lanes + at)
                waiting[k] += 1
            if best_s <= limit_s:
                break
        if to_m < 0:
            return False, queries
        level[i], microbatch[i], node[i] = to_level, to_m, to_node
        load_s[i] = options.load_s[options.bucket[i], to_level]
        rows[i] = min(rows_bound(options, i, to_level), options.cap_tokens)
        change(forest, to_m, to_node, load_s[i], rows[i])
    for k in range(levels):
        for at in range(start[k], start[k] + waiting[k]):
            bar(forest, items[at] // lanes, items[at] % lanes, k, False)
    return True, queries
