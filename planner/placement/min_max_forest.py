"""Placement on the min-max forest: the policy of HyDra's lazy heaps, with exact queries.

Sequences come in descending cost; each goes to the least loaded block of its degree. Where the
cap forbids that block it is barred for this sequence and the next best is asked for; a block
that cannot hold even the smallest sequence of its degree stays barred. Queries are bounded by the
number of sequences, or a large block that is full would be asked for lane by lane. Where ranks
differ in speed, blocks with a slow lane are compared with the next ones by when they would be done.

Source: the policy is HyDra's; the forest is ours.
"""

import numpy as np

from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.compiled import compiled
from hydraplan.planner.placement.block_tree import block_max
from hydraplan.planner.placement.forest import Forest, bar, change, least_loaded, new_forest

MAX_BARRED = 64
"""Blocks barred for one sequence before the placement gives up (lazy split follows). All queries
together are at most one more than that, times the number of sequences."""


def place_forest(
    load_s: FloatArray,
    rows: IntArray,
    level: IntArray,
    num_ranks: int,
    num_microbatches: int,
    cap_tokens: int,
    slow: FloatArray | None = None,
) -> tuple[Forest, IntArray, IntArray] | None:
    """Place sequences; at most `cap_tokens` rows in every slot.

    Args:
        load_s: Seconds each sequence adds to every member, shape (num_sequences,).
        rows: Rows of its fullest member.
        level: Level of its degree.
        slow: Slowness of every lane, shape (num_ranks,); None where all are nominal.

    Returns:
        The forest as filled, microbatch and node of each sequence; None where the cap got in
        the way.
    """
    order = np.lexsort((-level, -load_s))
    forest = new_forest(num_ranks, num_microbatches, slow)
    smallest = np.full(forest.leads.shape[0], np.iinfo(np.int64).max)
    np.minimum.at(smallest, level, rows)
    microbatch, node = np.full(len(level), -1), np.full(len(level), -1)
    complete, _ = place(forest, order, load_s, rows, level, smallest, cap_tokens, microbatch, node)
    return (forest, microbatch, node) if complete else None


@compiled
def place(
    forest: Forest,
    order: IntArray,
    load_s: FloatArray,
    rows: IntArray,
    level: IntArray,
    smallest: IntArray,
    cap_tokens: int,
    microbatch_of: IntArray,
    node_of: IntArray,
) -> tuple[bool, int]:
    """Fill `microbatch_of` and `node_of`; return completeness and the number of queries."""
    barred_m = np.empty(MAX_BARRED, np.int64)
    barred_node = np.empty(MAX_BARRED, np.int64)
    fastest = forest.slow[0]
    queries, most_queries = 0, len(order) * (MAX_BARRED + 1)
    for i in order:
        k = level[i]
        barred = 0
        best_s, to_m, to_node = np.inf, -1, -1
        while queries < most_queries:
            queries += 1
            m, node, load = least_loaded(forest, k)
            if load + load_s[i] * fastest >= best_s or load == np.inf:
                break
            free = cap_tokens - block_max(forest.rows_added, forest.rows_highest, m, node)
            if free >= rows[i] and load + load_s[i] * forest.slow[node] < best_s:
                best_s, to_m, to_node = load + load_s[i] * forest.slow[node], m, node
                if forest.slow[node] == fastest:
                    break
            bar(forest, m, node, k, True)
            if free >= smallest[k]:
                if barred == MAX_BARRED:
                    break
                barred_m[barred], barred_node[barred] = m, node
                barred += 1
        for j in range(barred):
            bar(forest, barred_m[j], barred_node[j], k, False)
        if to_m < 0:
            return False, queries
        microbatch_of[i], node_of[i] = to_m, to_node
        change(forest, to_m, to_node, load_s[i], rows[i])
    return True, queries
