"""Blocks without room, waiting for a sequence small enough: what a cap costs a placement.

A block that is least loaded but has no room is barred in the forest and waits in a heap of its
level, by its free rows. So a full block is asked for once, not once a sequence.
"""

from typing import NamedTuple

import numpy as np

from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.compiled import compiled
from hydraplan.planner.placement.block_tree import num_blocks
from hydraplan.planner.placement.forest import Forest, bar
from hydraplan.planner.placement.heap import drop_top, push

MAX_QUERIES = 64
"""Queries of a placement, a sequence on average, before it gives up: a large block that is full
would else be asked for lane by lane."""


class Waiting(NamedTuple):
    """One heap a level in common arrays: level k has `size[k]` entries from `start[k]` on."""

    start: IntArray
    size: IntArray
    keys: FloatArray
    items: IntArray


@compiled
def nobody_waits(forest: Forest) -> Waiting:
    """Empty heaps with room for every block."""
    levels = forest.leads.shape[0]
    start = np.zeros(levels + 1, np.int64)
    for k in range(levels):
        start[k + 1] = start[k] + num_blocks(forest.num_ranks, k) * len(forest.added)
    size = np.zeros(levels, np.int64)
    return Waiting(start, size, np.empty(start[levels]), np.empty(start[levels], np.int64))


@compiled
def let_wait(forest: Forest, waiting: Waiting, level: int, m: int, node: int, free: float) -> None:
    """Bar a block of a level that has only so many rows free."""
    bar(forest, m, node, level, True)
    item = m * forest.added.shape[1] + node
    push(waiting.keys, waiting.items, waiting.start[level], waiting.size[level], -free, item)
    waiting.size[level] += 1


@compiled
def call_up(forest: Forest, waiting: Waiting, level: int, needs: int) -> None:
    """Let in the blocks of a level that have so many rows free."""
    start = waiting.start[level]
    while waiting.size[level] > 0 and -waiting.keys[start] >= needs:
        _let_in(forest, level, waiting.items[start])
        drop_top(waiting.keys, waiting.items, start, waiting.size[level])
        waiting.size[level] -= 1


@compiled
def call_up_all(forest: Forest, waiting: Waiting) -> None:
    """Let in every block of every level; the heaps are of no use after it."""
    for level in range(len(waiting.size)):
        for at in range(waiting.start[level], waiting.start[level] + waiting.size[level]):
            _let_in(forest, level, waiting.items[at])


@compiled
def _let_in(forest: Forest, level: int, item: int) -> None:
    bar(forest, item // forest.added.shape[1], item % forest.added.shape[1], level, False)
