"""The points HyDra tries: numbers of microbatches, quanta theta and guards eta, best first.

A point costs one solve of the load target, which says what it promises: fill, mean load, and a
price for theta, since a slot may end up to theta * L above the mean, less what repair takes back.
"""

from dataclasses import dataclass

import numpy as np

from hydraplan.planner.placement.degrees import Guard, guard
from hydraplan.planner.placement.draft import Request
from hydraplan.planner.placement.load_target import LoadTarget, solve
from hydraplan.planner.placement.window import (
    best_count,
    counts_over,
    counts_to_try,
    least_imbalance,
)
from hydraplan.slots import MAX_SLOTS

THETAS = (1.0, 0.5, 0.25, 0.125)
"""Largest share of the target that one sequence may add to a slot."""
ETAS = (0.03, 0.05, 0.1)
"""Largest extra rank-work that a degree may cost over the memory floor."""
FINE_THETAS, FINE_ETAS = (0.25, 0.125, 0.0625), (0.1, 0.3)
"""What is tried where nothing was balanced."""
THETA_PRICE = 1 / 8
"""What a quantum of 1 costs over the fill and the mean load, as a share. Fitted by eye."""
BALANCED = 1.05
"""Slot imbalance up to which a placement counts as balanced. Our choice, a project target."""


@dataclass(frozen=True, slots=True)
class Point:
    """One point of the search, and the time it promises before it is placed.

    `can_balance`: no pigeonhole argument forbids a slot imbalance of `BALANCED`.
    """

    promise_s: float
    num_microbatches: int
    theta: float
    eta: float
    target: LoadTarget
    can_balance: bool


def first_points(request: Request) -> list[Point]:
    """Points at the counts that promise the least time."""
    return _points(request, first_counts(request), THETAS, ETAS)


def finer_points(request: Request) -> list[Point]:
    """Points of fine quanta all over an open window, as far as balance is possible there."""
    if request.window.is_empty:
        return []
    counts = first_counts(request)
    if request.microbatches is None:
        counts = _allowed(request, counts + counts_over(request.window))
    return [p for p in _points(request, counts, FINE_THETAS, FINE_ETAS) if p.can_balance]


def first_counts(request: Request) -> list[int]:
    """Numbers of microbatches of the first round."""
    if request.microbatches is not None:
        return [request.microbatches] if request.microbatches >= request.window.memory else []
    best = best_count(request.table, request.window, request.cost.pool_speed, request.cost.pp)
    return _allowed(request, counts_to_try(best, request.window, len(request.sequences)))


def _allowed(request: Request, counts: list[int]) -> list[int]:
    """The counts as multiples of what is wanted, without those too large to plan."""
    most = MAX_SLOTS // (request.cost.pp * request.cost.ranks)
    return sorted({m for m in map(request.whole_multiple, counts) if m <= most})


def _points(
    request: Request, counts: list[int], thetas: tuple[float, ...], etas: tuple[float, ...]
) -> list[Point]:
    """All points at these counts, most promising first; equal degrees at equal M only once."""
    points: list[Point] = []
    seen: set[bytes] = set()
    for eta in etas:
        guarded = guard(request.table, eta)
        for count in counts:
            for theta in thetas:
                point = point_at(request, guarded, count, theta, eta)
                key = count.to_bytes(8, "little") + point.target.level.tobytes()
                if key not in seen:
                    seen.add(key)
                    points.append(point)
    return sorted(points, key=lambda p: (p.promise_s, p.num_microbatches, p.theta, p.eta))


def point_at(request: Request, guarded: Guard, count: int, theta: float, eta: float) -> Point:
    """Solve the target and estimate the iteration."""
    cost, table = request.cost, request.table
    target = solve(table, guarded, cost.pool_speed * count, theta)
    slot_s = target.rank_work_s / (cost.pool_speed * count) + table.fixed_s
    promise_s = (count + cost.pp - 1) * slot_s * (1 + THETA_PRICE * theta**2)
    load_s = table.load_s[np.arange(len(target.level)), target.level]
    pieces = table.count * table.degrees[target.level]
    least = least_imbalance(load_s, pieces, table.fixed_s, cost.ranks * count)
    return Point(promise_s, count, theta, eta, target, least <= BALANCED)
