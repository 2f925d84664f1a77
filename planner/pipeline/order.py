"""Order of the microbatches: placement decides who shares one, this decides which comes first."""

import numpy as np

from hydraplan.model import FloatArray, IntArray, Schedule
from hydraplan.planner.pipeline.one_lane import ends_s, one_lane, side_by_side
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.slots import SlotTimes

ORDERS = ("as-built", "long-first", "sandwich")
"""Orders that need no more than a look at the loads; a placement is tried in all of them."""
SEARCHED = "searched"
ALL_ORDERS = (*ORDERS, SEARCHED)
"""Names that `--microbatch-order` takes besides `auto`."""

ROUNDS, NEIGHBOURS = 32, 32
"""Of the search: rounds, and orders tried side by side in each; their product is what it costs."""


def microbatch_order(name: str, load_s: FloatArray) -> IntArray:
    """Microbatches in execution order; entry i is the one that runs i-th.

    Args:
        name: `as-built` keeps the placement's order, `long-first` sorts by the busiest slot
            descending, `sandwich` puts light ones at both ends and heavy ones in the middle.
        load_s: Load of every slot, seconds, shape (lanes, microbatches).
    """
    busiest = load_s.max(axis=0)
    count = len(busiest)
    descending: IntArray = np.argsort(-busiest, kind="stable").astype(np.int64)
    if name == "as-built":
        return np.arange(count, dtype=np.int64)
    if name == "long-first":
        return descending
    assert name == "sandwich", name
    ascending = descending[::-1]
    return np.concatenate([ascending[0::2], ascending[1::2][::-1]])


def searched_order(times: SlotTimes, schedule: Schedule) -> IntArray:
    """A good order for a schedule, found by local search on one lane; deterministic.

    It starts from the best of the named orders. Each round tries `NEIGHBOURS` orders that differ
    by one microbatch put elsewhere, by two that change places, or by a stretch turned round,
    all side by side as lanes of one run, and moves to the fastest if that is faster.

    Source: our choice; any local search on permutations would do.
    """
    lane, rng = one_lane(times), np.random.default_rng(0)
    start = np.stack([microbatch_order(name, times.load_s) for name in ORDERS])
    known_s = _ends_s(lane, schedule, start)
    best: IntArray = start[known_s.argmin()]
    best_s = float(known_s.min())
    if len(best) < 2:
        return best
    for _ in range(ROUNDS):
        near = np.stack([neighbour(best, rng) for _ in range(NEIGHBOURS)])
        near_s = _ends_s(lane, schedule, near)
        if near_s.min() < best_s:
            best, best_s = near[near_s.argmin()], float(near_s.min())
    return best


def _ends_s(lane: SlotTimes, schedule: Schedule, orders: IntArray) -> FloatArray:
    slots = side_by_side(lane, orders)
    return ends_s(slots, simulate(slots, schedule).end_s)


def neighbour(order: IntArray, rng: np.random.Generator) -> IntArray:
    """One microbatch moved, two exchanged, or a stretch reversed, each as often."""
    low, high = sorted(rng.choice(len(order), 2, replace=False).tolist())
    kind, result = int(rng.integers(3)), order.copy()
    if kind == 0:
        step = 1 if rng.integers(2) else -1
        result[low : high + 1] = np.roll(order[low : high + 1], step)
    elif kind == 1:
        result[low], result[high] = order[high], order[low]
    else:
        result[low : high + 1] = order[low : high + 1][::-1]
    return result
