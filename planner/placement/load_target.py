"""HyDra's load target: the one load L that every slot should carry, in closed form.

Balance turns the target into an equation. If each of R * M slots carries L, then

    sum over sequences of T(l, d(L)) = R * M * L,

where d(L) is the degree whose cost is at most L and T its rank-work. The right side rises
with L. The left side does not, as long as rank-work never falls with the degree; then they
cross once. (A kernel that wastes less on short chunks can make it fall a little; bisection
still ends at a crossing.) Three ways there:

1. no overhead, T = w (one-rank work): L = W / (R M);
2. affine overhead, T(d) = w + e (d - 1), first order in e / L: a quadratic;
3. the cost table with power-of-two degrees: bisection, started from 2. This is the truth.

Source: HyDra's abstract states that balance makes the target closed-form; all three formulas
are our own derivation.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.placement.cost_table import CostTable
from hydraplan.planner.placement.degrees import choose_levels

TOLERANCE = 1e-6
"""Relative width at which the bisection stops."""


def without_overhead(work_s: FloatArray, num_slots: int) -> float:
    """Target in seconds if splitting cost nothing: the mean work of a slot."""
    return float(work_s.sum()) / num_slots


def quadratic(
    work_s: FloatArray, overhead_s: FloatArray, num_slots: int, theta: float = 1.0
) -> float:
    """Target in seconds under affine overhead e per further rank.

    With W = sum w over all, and E = sum e, S = sum e w over the sequences longer than
    theta * L: L = ((W - E) + sqrt((W - E)^2 + 4 R M S / theta)) / (2 R M). The sequences longer
    than theta * L are a prefix of the order by work, found by bisection on prefix sums.

    Args:
        work_s: One-rank work of each sequence, seconds, shape (num_sequences,).
        overhead_s: Rank-work each further rank adds, seconds, same shape.
        num_slots: R * M.
        theta: Largest share of L that one sequence may add to a slot.
    """
    order = np.argsort(-work_s, kind="stable")
    w, e = work_s[order], overhead_s[order]
    total = float(w.sum())
    sum_e = np.concatenate([[0.0], np.cumsum(e)])
    sum_ew = np.concatenate([[0.0], np.cumsum(e * w)])

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
    """Slope e of each sequence's rank-work between degree 1 and the degree the target asks.

    Sequences that the cap forbids at degree 1 are measured from their memory floor.
    """
    i = np.arange(len(table.floor))
    asked = choose_levels(table, np.isfinite(table.load_s), load_target_s)
    degree, floor_degree = 2.0**asked, 2.0**table.floor
    work = table.rank_work_s
    rise = work[i, asked] - work[i, table.floor]
    slope = rise / np.maximum(1.0, degree - floor_degree)
    result: FloatArray = np.maximum(0.0, slope)
    return result


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """The target, and the degrees it asks for.

    `load_target_s`: the crossing L, seconds per slot, fixed cost of a microbatch excluded.
    `level`: log2 of each sequence's degree at L, shape (num_sequences,).
    `rank_work_s`: what these degrees consume in total, seconds; at most R * M * L, and below it
    by less than the step of one degree.
    """

    load_target_s: float
    level: IntArray
    rank_work_s: float


def solve(table: CostTable, allowed: NDArray[np.bool_], num_slots: int, theta: float) -> LoadTarget:
    """The crossing on the cost table, by bisection from the quadratic start.

    Args:
        allowed: Which levels the guard permits, from `degrees.allowed_levels`.
        theta: Quantum: no sequence may add more than theta * L to a slot, where it can help it.
    """
    i = np.arange(len(table.floor))
    work = table.rank_work_s

    def consumed(target: float) -> tuple[float, IntArray]:
        level = choose_levels(table, allowed, theta * target)
        return float(work[i, level].sum()), level

    base = work[i, table.floor]
    start = without_overhead(base, num_slots)
    start = quadratic(base, affine_overhead(table, theta * start), num_slots, theta)
    low, high = start, start
    while low > 0 and consumed(low)[0] <= num_slots * low:
        low /= 1.25
    while consumed(high)[0] > num_slots * high:
        high *= 1.25
    while high - low > TOLERANCE * high:
        middle = (low + high) / 2
        if consumed(middle)[0] > num_slots * middle:
            low = middle
        else:
            high = middle
    total, level = consumed(high)
    return LoadTarget(high, level, total)
