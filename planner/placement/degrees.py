"""HyDra's degrees: each sequence gets the smallest degree that meets the load target.

A degree is bounded below by memory (the cap), chosen by load (cost at most theta * L), and
guarded by rank-work: a degree that consumes more than 1 + eta times the rank time of the
memory floor is not worth its balance.

Source: degrees from load rather than memory are HyDra's idea; theta and eta are ours.
"""

import numpy as np
from numpy.typing import NDArray

from hydraplan.layout import legal_degrees
from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.compiled import compiled
from hydraplan.planner.placement.cost_table import CostTable


def offered_levels(num_ranks: int, min_degree: int, max_groups: int | None) -> NDArray[np.bool_]:
    """Levels that a request allows at all, shape (num_levels,).

    Levels below `min_degree` are out. Under `max_groups` the lowest levels above degree 1 go
    first, since half of all aligned blocks are pairs: what remains has at most that many
    distinct rank sets, whatever the placement uses.
    """
    degrees = legal_degrees(num_ranks)
    offered = degrees >= min_degree
    groups = np.where(degrees > 1, num_ranks // degrees, 0)
    for level in range(len(degrees)):
        if max_groups is not None and groups[offered].sum() > max_groups:
            offered[level] &= degrees[level] == 1
    return offered


def guarded_load_s(table: CostTable, eta: float) -> FloatArray:
    """Loads of the levels worth considering, infinite elsewhere, (num_buckets, num_levels).

    A level is allowed if the cap permits it, it is cheaper per rank than every lower allowed
    level (degrees are clipped where the cost stops falling), and its rank-work is at most
    1 + eta times that of the memory floor. The floor itself is always allowed. Along the
    allowed levels of a row the load falls strictly.
    """
    i = np.arange(len(table.floor))
    work = table.rank_work_s
    guard = work <= (1 + eta) * work[i, table.floor][:, None]
    guard[i, table.floor] = True
    load = np.where(guard, table.load_s, np.inf)
    cheapest_below = np.minimum.accumulate(load, axis=1)[:, :-1]
    load[:, 1:] = np.where(load[:, 1:] < cheapest_below, load[:, 1:], np.inf)
    return load


@compiled
def choose_levels(load_s: FloatArray, limit_s: float) -> IntArray:
    """Lowest level with a cost of at most `limit_s`; the cheapest where none has, (rows,)."""
    count, levels = load_s.shape
    chosen = np.zeros(count, np.int64)
    for i in range(count):
        best = 0
        for level in range(levels):
            if load_s[i, level] < load_s[i, best]:
                best = level
            if load_s[i, best] <= limit_s:
                break
        chosen[i] = best
    return chosen
