"""Slow spells: times in which a rank works at less than its own speed, or not at all.

A rank's speed is a step function of time, so an op that runs into a spell is stretched by just
the part that lies inside, and beginning later never means ending earlier. Spells of one rank may
overlap; their speeds multiply.
"""

from typing import NamedTuple

import numpy as np

from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.compiled import compiled


class Spells(NamedTuple):
    """All spells, sorted by rank; arrays of shape (spells,).

    Those of lane l of stage s are `first[k] .. first[k + 1] - 1` with k = s * lanes + l; `first` is
    empty where there are none at all. `source`: who caused it, as its maker numbers causes.
    `end_s` may be infinite where `speed`, the share of the rank's own, is above zero.
    """

    first: IntArray
    begin_s: FloatArray
    end_s: FloatArray
    speed: FloatArray
    source: IntArray


def sorted_spells(
    num_ranks: int,
    rank: IntArray,
    begin_s: FloatArray,
    end_s: FloatArray,
    speed: FloatArray,
    source: IntArray,
) -> Spells:
    """Spells in the order of ranks, those of a rank in the order given.

    Args:
        rank: stage * lanes + lane of every spell, below `num_ranks`.
    """
    if not len(rank):
        none = np.zeros(0, np.int64)
        return Spells(none, np.zeros(0), np.zeros(0), np.zeros(0), none)
    order = np.argsort(rank, kind="stable")
    first = np.searchsorted(rank[order], np.arange(num_ranks + 1)).astype(np.int64)
    return Spells(first, begin_s[order], end_s[order], speed[order], source[order])


NONE = sorted_spells(
    0, np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0, np.int64)
)


@compiled
def stretched_s(
    begin_s: float, work_s: float, first: int, stop: int, spells: Spells, lost_s: FloatArray
) -> float:
    """Seconds that work takes from `begin_s` on, if spells `first .. stop - 1` are its rank's.

    What each spell costs is added to `lost_s`, shape (spells,): where several overlap, each takes
    its share of the speed that those before it leave.
    """
    left_s, taken_s, now_s = work_s, 0.0, begin_s
    while True:
        speed, until_s = 1.0, np.inf
        for i in range(first, stop):
            if spells.begin_s[i] > now_s:
                until_s = min(until_s, spells.begin_s[i])
            elif spells.end_s[i] > now_s:
                until_s = min(until_s, spells.end_s[i])
                speed *= spells.speed[i]
        done = speed > 0 and now_s + left_s / speed <= until_s
        piece_s = left_s / speed if done else until_s - now_s
        taken_s += piece_s
        before = 1.0
        for i in range(first, stop):
            if spells.begin_s[i] <= now_s < spells.end_s[i]:
                lost_s[i] += piece_s * before * (1.0 - spells.speed[i])
                before *= spells.speed[i]
        if done:
            return taken_s
        left_s -= piece_s * speed
        now_s = until_s
