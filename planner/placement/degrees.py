"""HyDra's degrees: each sequence gets the smallest degree that meets the load target.

A degree is bounded below by memory (the cap), chosen by load (cost at most theta * L), and
guarded by rank-work: a degree that consumes more than 1 + eta times the rank time of the
memory floor is not worth its balance.

Source: degrees from load rather than memory are HyDra's idea; theta and eta are ours.
"""

import numpy as np
from numpy.typing import NDArray

from hydraplan.model import IntArray
from hydraplan.planner.placement.cost_table import CostTable


def allowed_levels(table: CostTable, eta: float) -> NDArray[np.bool_]:
    """Levels worth considering, shape (num_sequences, num_levels).

    A level is allowed if the cap permits it, it is cheaper per rank than every lower allowed
    level (degrees are clipped where the cost stops falling), and its rank-work is at most
    1 + eta times that of the memory floor. The floor itself is always allowed.
    """
    i = np.arange(len(table.floor))
    work = table.rank_work_s
    guard = work <= (1 + eta) * work[i, table.floor][:, None]
    possible = np.isfinite(table.load_s) & guard
    possible[i, table.floor] = True
    load = np.where(possible, table.load_s, np.inf)
    cheapest_below = np.minimum.accumulate(load, axis=1)[:, :-1]
    possible[:, 1:] &= load[:, 1:] < cheapest_below
    possible[i, table.floor] = True
    return possible


def choose_levels(table: CostTable, allowed: NDArray[np.bool_], limit_s: float) -> IntArray:
    """Lowest allowed level with a cost of at most `limit_s`; the cheapest where none has.

    Returns log2 of the degree, shape (num_sequences,).
    """
    load = np.where(allowed, table.load_s, np.inf)
    meets = load <= limit_s
    level: IntArray = np.where(meets.any(axis=1), meets.argmax(axis=1), load.argmin(axis=1))
    return level.astype(np.int64)
