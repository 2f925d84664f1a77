"""Lanes that get nothing where another place is legal, since others would only wait for them.

A lane that is slow gets less, but whatever is split over it and others takes as long as it takes.
Spared, it is in no block of a degree that has blocks without it. A degree that has none, such as
the whole pool, is left to sequences that no lower one holds.

A lane is seen to be well again by what its ops take, in empty slots too, as far as these cost
anything. Where they do not, it keeps the shortest sequence.

Source: ours.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hydraplan.cost import CostModel
from hydraplan.model import IntArray, Sequences
from hydraplan.planner.placement.block_tree import num_blocks
from hydraplan.planner.placement.cost_table import CostTable
from hydraplan.slots import slot_times


def spared_blocks(num_ranks: int, level: int, spared: Sequence[int]) -> IntArray:
    """Aligned blocks of a level with a spared lane, ascending; all of them may have one."""
    blocks = np.unique(np.array(spared, np.int64) >> level)
    return blocks[blocks < num_blocks(num_ranks, level)]


def is_closed(num_ranks: int, level: int, spared: Sequence[int]) -> bool:
    """Whether every block of a level has a spared lane."""
    return len(spared_blocks(num_ranks, level, spared)) == num_blocks(num_ranks, level)


def open_levels(table: CostTable, num_ranks: int, spared: Sequence[int]) -> CostTable:
    """The table without levels whose every block has a spared lane, except for what needs them."""
    levels = range(table.num_levels)
    closed = np.array([is_closed(num_ranks, level, spared) for level in levels])
    above = np.arange(table.num_levels) > table.floor[:, None]
    load_s = np.where(closed & above, np.inf, table.load_s)
    return replace(table, load_s=load_s, floor_s=float(load_s.min(axis=1).max()))


def with_something(
    cost: CostModel, placed: Sequences, count: int, spared: Sequence[int]
) -> Sequences:
    """The placement; a lane that would take no time at all gets the shortest unsplit sequence."""
    load_s = slot_times(cost, placed, count).load_s.sum(axis=1)
    alone = np.flatnonzero(placed.degree == 1)
    shortest = alone[np.argsort(placed.length_tokens[alone], kind="stable")]
    idle = [lane for lane in spared if load_s[lane] == 0][: len(shortest)]
    first_rank = placed.first_rank.copy()
    first_rank[shortest[: len(idle)]] = idle
    return replace(placed, first_rank=first_rank)
