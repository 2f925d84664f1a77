"""HyDra's load target: the one load L that every slot should carry, in closed form.

Balance turns the target into an equation. If each of R * M slots carries L, then

    sum over sequences of T(l, d(L)) = R * M * L,

where d(L) is the degree whose cost is at most L and T its rank-work. The right side rises
with L. The left side does not, as long as rank-work never falls with the degree; then they
cross once. (A kernel that wastes less on short chunks can make it fall a little; bisection
still ends at a crossing.) Three ways there:

1. no overhead, T = w (one-rank work): L = W / (R M);
2. affine overhead, T(d) = w + e (d - 1), first order in e / L: a quadratic;
3. the cost table with the pool's degrees: bisection on a histogram of lengths. This is the
   truth; 1 brackets it, and 2 gives the number of microbatches (`window.best_count`).

Source: HyDra's abstract states that balance makes the target closed-form; all three formulas
are our own derivation.
"""

from dataclasses import dataclass

import numpy as np

from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.compiled import compiled
from hydraplan.planner.placement.cost_table import CostTable
from hydraplan.planner.placement.degrees import (
    Guard,
    choose_levels,
    guard,
)

NO_LIMIT_S = 1e300
"""Beyond every finite load: each sequence stays at its memory floor."""
TOLERANCE = 1e-5
"""Relative width at which the bisection stops."""


def without_overhead(work_s: FloatArray, count: IntArray, num_slots: float) -> float:
    """Target in seconds if splitting cost nothing: the mean work of a slot."""
    return float(work_s @ count) / num_slots


def quadratic(
    work_s: FloatArray,
    overhead_s: FloatArray,
    count: IntArray,
    num_slots: float,
    theta: float = 1.0,
) -> float:
    """Target in seconds under affine overhead e per further rank.

    With W = sum w over all, and E = sum e, S = sum e w over the sequences longer than
    theta * L: L = ((W - E) + sqrt((W - E)^2 + 4 R M S / theta)) / (2 R M). The sequences longer
    than theta * L are a prefix of the order by work, found by bisection on prefix sums.

    Args:
        work_s: One-rank work of a sequence of each bucket, seconds, shape (num_buckets,).
        overhead_s: Rank-work each further rank adds, seconds, same shape.
        count: Sequences of each bucket.
        num_slots: R * M.
        theta: Largest share of L that one sequence may add to a slot.
    """
    order = np.argsort(-work_s, kind="stable")
    w, e, n = work_s[order], overhead_s[order], count[order]
    total = float(w @ n)
    sum_e = np.concatenate([[0.0], np.cumsum(e * n)])
    sum_ew = np.concatenate([[0.0], np.cumsum(e * w * n)])

    def target(prefix: int) -> float:
        rest = total - sum_e[prefix]
        root = np.sqrt(rest**2 + 4 * num_slots * sum_ew[prefix] / theta)
        return float(rest + root) / (2 * num_slots)

    low, high = 0, len(w)
    while low < high:
        middle = (low + high) // 2
        if w[middle] > theta * target(middle):
            low = middle + 1
        else:
            high = middle
    return target(low)


def affine_overhead(table: CostTable, load_target_s: float) -> FloatArray:
    """Slope e of a sequence's rank-work between degree 1 and the degree the target asks.

    Sequences that the cap forbids at degree 1 are measured from their memory floor.
    """
    i = np.arange(len(table.floor))
    asked = choose_levels(guard(table, np.inf), 1.0, load_target_s)
    rise = table.rank_work_s[i, asked] - table.rank_work_s[i, table.floor]
    further = table.degrees[asked] - table.degrees[table.floor]
    result: FloatArray = np.maximum(0.0, rise / np.maximum(1, further))
    return result


def quadratic_target(table: CostTable, num_slots: float, theta: float = 1.0) -> float:
    """The second closed form on a batch, overheads taken at the target without overhead."""
    base = table.rank_work_s[np.arange(len(table.floor)), table.floor]
    start = without_overhead(base, table.count, num_slots)
    overhead_s = affine_overhead(table, theta * start)
    return quadratic(base, overhead_s, table.count, num_slots, theta)


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """The target, and the degrees it asks for.

    `load_target_s`: the crossing L, seconds per slot, fixed cost of a microbatch excluded.
    `level`: level of each bucket of the table at L, shape (num_buckets,).
    `rank_work_s`: what these degrees consume in total, seconds; at most R * M * L, and below it
    by less than the step of one bucket.
    """

    load_target_s: float
    level: IntArray
    rank_work_s: float


def solve(table: CostTable, guarded: Guard, num_slots: float, theta: float) -> LoadTarget:
    """The crossing on the cost table: false position, bisection where that is slow.

    Args:
        num_slots: R * M.
        theta: Quantum: no sequence may add more than theta * L to a slot, where it can help it.
    """
    rows = guarded, table.degrees, table.count
    target = _crossing(*rows, num_slots, theta)
    level = choose_levels(guarded, theta, target)
    return LoadTarget(target, level, _consumed(*rows, theta, target))


@compiled
def _crossing(
    guarded: Guard,
    degrees: IntArray,
    count: IntArray,
    num_slots: float,
    theta: float,
) -> float:
    def over(target: float) -> float:
        """Rank-work beyond what the slots hold at that target, seconds; falls with it."""
        return _consumed(guarded, degrees, count, theta, target) - num_slots * target

    low = _consumed(guarded, degrees, count, theta, NO_LIMIT_S) / num_slots
    over_low = over(low)
    while low > 0 and over_low <= 0:
        low /= 1.25
        over_low = over(low)
    high = low + over_low / num_slots  # work falls with the target: beyond the crossing
    over_high = over(high)
    while over_high > 0:
        high *= 1.25
        over_high = over(high)
    while high - low > TOLERANCE * high:
        width, share = high - low, over_low / (over_low - over_high)
        for middle in (low + width * min(0.95, max(0.05, share)), (low + high) / 2):
            if low < middle < high and high - low > width / 2:
                over_middle = over(middle)
                if over_middle > 0:
                    low, over_low = middle, over_middle
                else:
                    high, over_high = middle, over_middle
    return high


@compiled
def _consumed(
    guarded: Guard,
    degrees: IntArray,
    count: IntArray,
    theta: float,
    target_s: float,
) -> float:
    """Rank-work in seconds of the degrees that a target asks for."""
    load_s, within, floor = guarded.load_s, guarded.within, guarded.floor
    total = 0.0
    for row in range(len(count)):  # as `degrees.choose_level`, written out: a call costs more
        best = floor[row]
        for level in range(best + 1, len(degrees)):
            if load_s[row, best] <= theta * target_s:
                break
            if load_s[row, level] < load_s[row, best] and (
                within[row, level] or load_s[row, best] > target_s
            ):
                best = level
        total += load_s[row, best] * degrees[best] * count[row]
    return total
