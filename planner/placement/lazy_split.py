"""Lazy split: place in descending degree, halve a block only when a smaller degree needs it.

All lanes of a block then carry the same load and the same rows, so the heap holds whole blocks
and nothing in it is ever stale. A block without room waits, in a second heap by its free rows, for
a sequence small enough. It packs tighter than the other structures and balances a little worse,
which makes it the fallback when the cap binds.

Source: our own derivation, in the spirit of a buddy allocator.
"""

import numpy as np

from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.compiled import compiled
from hydraplan.planner.placement.heap import drop_top, push

MAX_TOUCHED = 64
"""Heap entries a placement touches, a sequence on average, before it gives up."""


def place_lazy_split(
    load_s: FloatArray,
    rows: IntArray,
    level: IntArray,
    num_ranks: int,
    num_microbatches: int,
    cap_tokens: int,
) -> tuple[IntArray, IntArray] | None:
    """Place sequences; arguments and result as `place_lazy_heaps`."""
    order = np.lexsort((-load_s, -level))
    first, microbatch = np.full(len(level), -1), np.full(len(level), -1)
    pool_s, pool_rows = np.zeros(num_microbatches), np.zeros(num_microbatches, np.int64)
    whole = (num_ranks - 1).bit_length()
    pools = int((level == whole).sum()) if 1 << whole > num_ranks else 0
    done = 0
    for stop, lanes in ((pools, 1), (len(level), num_ranks)):
        part = order[done:stop]  # a pool that is no block is a single lane to its sequences
        on_level = level[part] if lanes > 1 else np.zeros_like(part)
        complete, _ = _place(
            load_s[part], rows[part], on_level, lanes, num_microbatches,
            cap_tokens, pool_s, pool_rows, first[done:stop], microbatch[done:stop],
        )  # fmt: skip
        if not complete:
            return None
        pool_s += np.bincount(microbatch[done:stop], load_s[part], num_microbatches)
        pool_rows += np.bincount(microbatch[done:stop], rows[part], num_microbatches).astype(int)
        done = stop
    first_rank, placed_in = np.empty_like(first), np.empty_like(microbatch)
    first_rank[order], placed_in[order] = first, microbatch
    return placed_in, first_rank


@compiled
def _place(
    load_s: FloatArray,
    rows: IntArray,
    level: IntArray,
    num_ranks: int,
    num_microbatches: int,
    cap_tokens: int,
    pool_s: FloatArray,
    pool_rows: IntArray,
    first_of: IntArray,
    microbatch_of: IntArray,
) -> tuple[bool, int]:
    """Fill `first_of` and `microbatch_of`; return completeness and heap entries touched.

    An item is a block, named by its first lane's slot. Every lane of microbatch m starts with
    `pool_s[m]` seconds and `pool_rows[m]` rows.
    """
    slots = num_ranks * num_microbatches
    keys = np.zeros(slots)
    items = np.zeros(slots, np.int64)
    block_level = np.zeros(slots, np.int64)
    block_rows = np.zeros(slots, np.int64)
    block_s = np.empty(slots)
    full_keys = np.empty(slots)
    full_items = np.empty(slots, np.int64)
    size = full = touched = 0
    most_touched = len(load_s) * MAX_TOUCHED
    opened = 63
    for i in range(len(load_s)):
        k = level[i]
        for whole in range(k, opened):  # the pool's own blocks, from its binary digits
            if num_ranks >> whole & 1:
                lane = num_ranks >> (whole + 1) << (whole + 1)
                for m in range(num_microbatches):
                    block_level[m * num_ranks + lane] = whole
                    block_rows[m * num_ranks + lane] = pool_rows[m]
                    push(keys, items, 0, size, pool_s[m], m * num_ranks + lane)
                    size += 1
        opened = min(opened, k)
        while full > 0 and -full_keys[0] >= rows[i]:  # room again, for one so small
            item = full_items[0]
            push(keys, items, 0, size, block_s[item], item)
            size += 1
            drop_top(full_keys, full_items, 0, full)
            full -= 1
        done = False
        while size > 0 and not done and touched < most_touched:
            touched += 1
            key, item = keys[0], items[0]
            free = cap_tokens - block_rows[item]
            drop_top(keys, items, 0, size)
            size -= 1
            if free < rows[i]:
                block_s[item] = key
                push(full_keys, full_items, 0, full, -free, item)
                full += 1
                continue
            while block_level[item] > k:
                block_level[item] -= 1
                half = item + (1 << block_level[item])
                block_level[half] = block_level[item]
                block_rows[half] = block_rows[item]
                push(keys, items, 0, size, key, half)
                size += 1
            block_rows[item] += rows[i]
            first_of[i], microbatch_of[i] = item % num_ranks, item // num_ranks
            push(keys, items, 0, size, key + load_s[i], item)
            size += 1
            done = True
        if not done:
            return False, touched
    return True, touched
