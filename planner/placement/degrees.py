"""HyDra's degrees: each sequence gets the smallest degree that meets the load target.

A degree is bounded below by memory (the cap), chosen by load (cost at most theta * L), and
guarded by rank-work: a degree that consumes more than 1 + eta times the rank time of the
memory floor is not worth its balance. Only a sequence that would exceed L itself passes the
guard, as far as it needs to.

Source: degrees from load rather than memory are HyDra's idea; theta and eta are ours.
"""

from typing import NamedTuple

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


class Guard(NamedTuple):
    """What a choice of degrees goes by: `load_s` from `falling_load_s`, `within` the guard.

    `floor`: the memory floor of every bucket.
    """

    load_s: FloatArray
    within: NDArray[np.bool_]
    floor: IntArray


def guard(table: CostTable, eta: float) -> Guard:
    """The guard of a batch at one eta."""
    return Guard(falling_load_s(table), within_guard(table, eta), table.floor)


def falling_load_s(table: CostTable) -> FloatArray:
    """Loads of the levels that pay, infinite elsewhere, shape (num_buckets, num_levels).

    A level pays if it is cheaper per rank than every lower level; degrees are clipped where the
    cost stops falling. Along the finite entries of a row the load falls strictly.
    """
    load_s = table.load_s.copy()
    cheapest_below = np.minimum.accumulate(load_s, axis=1)[:, :-1]
    load_s[:, 1:] = np.where(load_s[:, 1:] < cheapest_below, load_s[:, 1:], np.inf)
    return load_s


def within_guard(table: CostTable, eta: float) -> NDArray[np.bool_]:
    """Levels whose rank-work is at most 1 + eta times that of the memory floor."""
    i = np.arange(len(table.floor))
    work = table.rank_work_s
    within: NDArray[np.bool_] = work <= (1 + eta) * work[i, table.floor][:, None]
    return within


@compiled
def choose_level(guard: Guard, row: int, theta: float, target_s: float) -> int:
    """Lowest level that adds at most theta * L; the cheapest where none does.

    The guard `within` holds for what exceeds theta * L, not for what exceeds L.
    """
    load_s = guard.load_s[row]
    best = guard.floor[row]
    for level in range(best + 1, len(load_s)):
        if load_s[best] <= theta * target_s:
            break
        if load_s[level] < load_s[best] and (guard.within[row, level] or load_s[best] > target_s):
            best = level
    return best  # type: ignore[no-any-return]


@compiled
def choose_levels(guard: Guard, theta: float, target_s: float) -> IntArray:
    """`choose_level` of every row, shape (num_buckets,)."""
    chosen = np.zeros(len(guard.floor), np.int64)
    for row in range(len(chosen)):
        chosen[row] = choose_level(guard, row, theta, target_s)
    return chosen
