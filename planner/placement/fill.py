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
from hydraplan.planner.placement.block_tree import block_max
from hydraplan.planner.placement.forest import Forest, change, least_loaded
from hydraplan.planner.placement.repair import Options, rows_bound
from hydraplan.planner.placement.waiting import (
    MAX_QUERIES,
    Waiting,
    call_up,
    call_up_all,
    let_wait,
    nobody_waits,
)


@compiled
def _first_with_room(
    forest: Forest,
    level: int,
    cost_s: float,
    needs: int,
    cap_tokens: int,
    at_most_s: float,
    waiting: Waiting,
    asked: int,
    most_queries: int,
) -> tuple[tuple[float, int, int], int]:
    """When the least loaded block with room would be done, its microbatch and node; -1 if none.

    Blocks without room on the way are barred and wait. Stops where nothing is done by `at_most_s`.
    """
    while asked < most_queries:
        asked += 1
        m, node, load = least_loaded(forest, level)
        done_s = load + cost_s * forest.slow[node]
        if done_s > at_most_s or load == np.inf:
            break
        held = block_max(forest.rows_added, forest.rows_highest, m, node)
        if held + needs <= cap_tokens:
            return (done_s, m, node), asked
        let_wait(forest, waiting, level, m, node, cap_tokens - held)
    return (np.inf, -1, -1), asked


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
    waiting, levels = nobody_waits(forest), len(options.degrees)
    asked, most_queries, fastest = 0, len(order) * MAX_QUERIES, forest.slow[0]
    for i in order:
        costs_s = options.load_s[options.bucket[i]]
        found = (np.inf, -1, -1)
        to_level, likely, likely_s = -1, -1, np.inf
        for k in range(floor[i], levels):  # the lowest level that stays under the limit
            if costs_s[k] == np.inf:
                continue
            needs = min(rows_bound(options, i, k), options.cap_tokens)
            call_up(forest, waiting, k, needs)
            hoped_s = forest.leads[k, 1] + costs_s[k] * fastest
            if hoped_s <= limit_s:
                here, asked = _first_with_room(
                    forest, k, costs_s[k], needs, options.cap_tokens, limit_s, waiting,
                    asked, most_queries,
                )  # fmt: skip
                if here[1] >= 0 and here[0] <= limit_s:
                    found, to_level = here, k
                    break
                hoped_s = forest.leads[k, 1] + costs_s[k] * fastest
            if hoped_s < likely_s:
                likely, likely_s = k, hoped_s
        if to_level < 0:  # none does: the level that exceeds it least, the likely one first
            for step in range(-1, levels - floor[i]):
                k = likely if step < 0 else floor[i] + step
                hoped_s = forest.leads[k, 1] + costs_s[k] * fastest if k >= 0 else np.inf
                if hoped_s < found[0] or (hoped_s == found[0] and k < to_level):
                    needs = min(rows_bound(options, i, k), options.cap_tokens)
                    here, asked = _first_with_room(
                        forest, k, costs_s[k], needs, options.cap_tokens, found[0], waiting,
                        asked, most_queries,
                    )  # fmt: skip
                    closer = here[0] < found[0] or (here[0] == found[0] and k < to_level)
                    if here[1] >= 0 and closer:
                        found, to_level = here, k
        _, to_m, to_node = found
        if to_m < 0:
            return False, asked
        level[i], microbatch[i], node[i] = to_level, to_m, to_node
        load_s[i] = options.load_s[options.bucket[i], to_level]
        rows[i] = min(rows_bound(options, i, to_level), options.cap_tokens)
        change(forest, to_m, to_node, load_s[i], rows[i])
    call_up_all(forest, waiting)
    return True, asked
