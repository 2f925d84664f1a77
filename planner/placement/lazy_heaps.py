"""HyDra's lazy heaps: put each sequence on the least loaded block of its degree, no scans.

Sequences come in descending cost. Every degree has one heap over all its aligned blocks in
all microbatches, keyed by the load of the block's fullest lane. Placing a sequence changes the
load of many blocks of other degrees; their keys are left stale. Loads only grow, so a stale
key is a lower bound: when it comes to the top it is looked up again, and only if it is current
is it used. A lookup and an update cost O(log R) in the block tree.

A heap starts with the whole pool of each microbatch and opens a block into its halves only when
it comes to the top, keyed until then by what all its lanes carry: neither setting up nor a wide
sequence, which makes every block below it stale at once, costs the size of the pool.

Where the cap forbids the top block it is set aside for this sequence; a block that cannot hold
even the smallest sequence of its degree is dropped for good, opened or not.

Source: "lazy heaps, not scans of the pool" is HyDra's abstract; keys, trees, opening and the rule
for the cap are ours.
"""

import numpy as np

from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.compiled import compiled
from hydraplan.planner.placement.block_tree import (
    Tree,
    add_to_block,
    block_max,
    carried,
    new_tree,
    num_blocks,
)
from hydraplan.planner.placement.heap import Keys, drop_top, push, sift_down

MAX_SET_ASIDE = 64
"""Blocks set aside for one sequence before the placement gives up (lazy split follows)."""


def place_lazy_heaps(
    load_s: FloatArray,
    rows: IntArray,
    level: IntArray,
    num_ranks: int,
    num_microbatches: int,
    cap_tokens: int,
) -> tuple[IntArray, IntArray] | None:
    """Place sequences; at most `cap_tokens` rows in every slot.

    Args:
        load_s: Seconds each sequence adds to every member, shape (num_sequences,).
        rows: Rows of its fullest member.
        level: Level of its degree.

    Returns:
        Microbatch and first rank of each sequence, or None where the cap got in the way.
    """
    order = np.lexsort((-level, -load_s))
    added_s, highest_s = new_tree(num_microbatches, num_ranks)
    added_rows, highest_rows = new_tree(num_microbatches, num_ranks)
    levels = (num_ranks - 1).bit_length() + 1
    smallest = np.full(levels, np.iinfo(np.int64).max)
    np.minimum.at(smallest, level, rows)
    node, microbatch = np.full(len(level), -1), np.full(len(level), -1)
    complete, _ = _place(
        load_s[order], rows[order], level[order], smallest, num_ranks, num_microbatches,
        cap_tokens, added_s, highest_s, added_rows, highest_rows, node, microbatch,
    )  # fmt: skip
    if not complete:
        return None
    width = added_s.shape[1] // 2
    block = node - (width >> level[order])
    first_rank = np.empty(len(level), np.int64)
    placed_in = np.empty(len(level), np.int64)
    first_rank[order] = block << level[order]
    placed_in[order] = microbatch
    return placed_in, first_rank


@compiled
def _place(
    load_s: FloatArray,
    rows: IntArray,
    level: IntArray,
    smallest: IntArray,
    num_ranks: int,
    num_microbatches: int,
    cap_tokens: int,
    added_s: Tree,
    highest_s: Tree,
    added_rows: Tree,
    highest_rows: Tree,
    node_of: IntArray,
    microbatch_of: IntArray,
) -> tuple[bool, int]:
    """Fill `node_of` and `microbatch_of`; return completeness and heap entries touched."""
    width = added_s.shape[1] // 2
    levels = len(smallest)
    start = np.zeros(levels + 1, np.int64)
    for k in range(levels):
        start[k + 1] = start[k] + num_blocks(num_ranks, k) * num_microbatches
    size = np.full(levels, num_microbatches)
    keys = np.empty(start[levels])
    items = np.empty(start[levels], np.int64)
    for k in range(levels):
        for m in range(num_microbatches):
            keys[start[k] + m] = 0.0
            items[start[k] + m] = m * levels + levels - 1
    aside_keys = np.empty(MAX_SET_ASIDE)
    aside_items = np.empty(MAX_SET_ASIDE, np.int64)
    touched = 0
    for i in range(len(load_s)):
        k = level[i]
        at = start[k]
        aside = 0
        done = False
        while size[k] > 0:
            touched += 1
            m, node, height = _block(items[at], levels, num_microbatches, width)
            if height == k:
                current = block_max(added_s, highest_s, m, node)
                free = cap_tokens - block_max(added_rows, highest_rows, m, node)
            else:
                current = carried(added_s, m, node)
                free = cap_tokens - carried(added_rows, m, node)
            if current > keys[at]:
                keys[at] = current
                sift_down(keys, items, at, size[k])
                continue
            if free >= rows[i]:
                if height > k:
                    size[k] = _open(
                        keys, items, at, size[k], k, levels, num_microbatches, num_ranks, width
                    )
                    continue
                add_to_block(added_s, highest_s, m, node, load_s[i])
                add_to_block(added_rows, highest_rows, m, node, rows[i])
                node_of[i], microbatch_of[i] = node, m
                done = True
                break
            if free >= smallest[k]:
                if aside == MAX_SET_ASIDE:
                    break
                aside_keys[aside], aside_items[aside] = keys[at], items[at]
                aside += 1
            drop_top(keys, items, at, size[k])
            size[k] -= 1
        for j in range(aside):
            push(keys, items, at, size[k], aside_keys[j], aside_items[j])
            size[k] += 1
        if not done:
            return False, touched
    return True, touched


@compiled
def _block(item: int, levels: int, num_microbatches: int, width: int) -> tuple[int, int, int]:
    """Microbatch, node and height of an item.

    Items order blocks of equal keys: by first lane, then by microbatch. Each microbatch counts its
    lanes from another end of every block, so that wide sequences do not all start on lane 0.
    """
    height = item % levels
    m = item // levels % num_microbatches
    lane = item // levels // num_microbatches
    return m, (width + (lane ^ _mirror(m, width))) >> height, height


@compiled
def _mirror(m: int, width: int) -> int:
    """The lowest bits of m in reverse, as many as lanes have: which halves change sides."""
    reverse = 0
    while width > 1:
        reverse = 2 * reverse + m % 2
        m //= 2
        width //= 2
    return reverse


@compiled
def _open(
    keys: Keys,
    items: IntArray,
    at: int,
    size: int,
    level: int,
    levels: int,
    num_microbatches: int,
    num_ranks: int,
    width: int,
) -> int:
    """Put the halves of the top block in its place, as far as the pool reaches; the new size."""
    key, first = keys[at], items[at] - 1
    second = first + (1 << (items[at] % levels - 1)) * num_microbatches * levels
    drop_top(keys, items, at, size)
    size -= 1
    for half in (first, second):
        _, node, height = _block(half, levels, num_microbatches, width)
        if (node << height) - width + (1 << level) <= num_ranks:
            push(keys, items, at, size, key, half)
            size += 1
    return size
