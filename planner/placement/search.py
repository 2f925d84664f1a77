"""The points HyDra tries, best first: numbers of microbatches with two ways to choose degrees.

* Before placing: quantum theta and guard eta. A point costs one solve of the load target, which
  says what it promises: fill, mean load, and a price for theta, since a slot may end up to
  theta * L above the mean, less what repair takes back.
* While placing: slots are filled to a limit, the load target without quantum and some slack
  (`fill`). It promises fill and the limit.
* The same, microbatches tapered (`taper`). It promises what one lane with these loads takes.
"""

from dataclasses import dataclass, replace
from math import isnan, nan

import numpy as np

from hydraplan.model import FloatArray, Search
from hydraplan.planner.pipeline.fast_run import one_lane_s
from hydraplan.planner.placement.degrees import Guard, guard
from hydraplan.planner.placement.draft import Request
from hydraplan.planner.placement.load_target import LoadTarget, solve
from hydraplan.planner.placement.taper import best_shape, shapes
from hydraplan.planner.placement.window import (
    best_count,
    counts_over,
    counts_to_try,
    least_imbalance,
)

BUDGET = 110_000
"""Sequences plus slots that the placements of one round may add up to."""
LEAST, MOST = 3, 48
"""Placements of one round, whatever the budget says."""
LEAST_RUN, MOST_RUN = 2, 8
"""Placements that are sized exactly and run: of large batches, and of those that can afford it."""
THETAS = (0.5, 0.25, 0.125)
"""Largest share of the target that one sequence may add to a slot."""
ETAS = (0.03, 0.05, 0.1)
"""Largest extra rank-work that a degree may cost over the memory floor."""
SLACKS = (0.02, 0.04, 0.07, 0.1)
"""How far above the load target slots may be filled, as a share of it."""
TAPERS, TAPER_SLACKS = (0.04, 0.08, 0.15, 0.3), (0.07, 0.1, 0.04)
"""Least share of a tapered microbatch; slack, the likeliest first."""
TAPER_COUNTS = (0.8, 1.0, 1.25)
"""Numbers of tapered microbatches over that of even ones."""
FINE_SLACKS = (0.01, 0.03, 0.055)
FINE_THETAS, FINE_ETAS = (0.25, 0.125, 0.0625), (0.1, 0.3)
"""What is tried where nothing was balanced."""
EVEN, THETA_PRICE = 1.03, 1 / 8
"""The fullest slot over the mean: at fine quanta, and what a quantum of 1 adds. Fitted by eye."""
BALANCED = 1.05
"""Slot imbalance up to which a placement counts as balanced. Our choice, a project target."""


@dataclass(frozen=True, slots=True)
class Point:
    """One point of the search, and the time it promises before it is placed.

    `can_balance`: no pigeonhole argument forbids a slot imbalance of `BALANCED`. `limit_s` is
    the limit where slots are filled, `slack` what it has over the target; NaN otherwise. `shape`
    is the share of that limit which each microbatch may take, from the least one, `taper`, to 1;
    None where all take all. The
    target then is that of theta 1 and eta 0: it says what filling starts from, not the degrees.
    """

    promise_s: float
    num_microbatches: int
    theta: float
    eta: float
    target: LoadTarget
    can_balance: bool
    slack: float = nan
    limit_s: float = nan
    taper: float = nan
    shape: FloatArray | None = None


def first_points(request: Request) -> list[Point]:
    """Points at the counts that promise the least time."""
    counts = _most_promising(request, first_counts(request))
    filling = _filling_points(request, counts, SLACKS)
    return sorted([*filling, *_points(request, counts, THETAS, ETAS)], key=_order)


def num_placements(request: Request, counts: list[int]) -> int:
    """How many placements of up to so many microbatches a round may make."""
    return min(MOST, max(LEAST, _affordable(request, counts)))


def num_finalists(request: Request, counts: list[int]) -> int:
    """How many of them may be sized exactly and run."""
    return min(MOST_RUN, max(LEAST_RUN, _affordable(request, counts) // 8))


def _affordable(request: Request, counts: list[int]) -> int:
    return BUDGET // (len(request.sequences) + request.cost.ranks * max(counts, default=0))


def _most_promising(request: Request, counts: list[int]) -> list[int]:
    """One more than there will be placements, by what a medium quantum promises there."""
    guarded = guard(request.table, ETAS[1])
    found = [point_at(request, guarded, count, THETAS[1], ETAS[1]) for count in counts]
    by_promise = sorted(found, key=lambda p: (uneven(request, p), _order(p)))
    return sorted(p.num_microbatches for p in by_promise[: num_placements(request, counts) + 1])


def uneven(request: Request, point: Point) -> bool:
    """Whether balance is open to the batch, and not to this point."""
    return not request.window.is_empty and not point.can_balance


def finer_points(request: Request) -> list[Point]:
    """Points of fine quanta all over an open window, as far as balance is possible there."""
    if request.window.is_empty:
        return []
    counts = first_counts(request)
    if request.microbatches is None:
        counts = request.allowed(counts + counts_over(request.window))
    filling = _filling_points(request, counts, FINE_SLACKS)
    points = [*filling, *_points(request, counts, FINE_THETAS, FINE_ETAS)]
    return sorted((p for p in points if p.can_balance), key=_order)


def first_counts(request: Request) -> list[int]:
    """Numbers of microbatches of the first round."""
    if request.microbatches is not None:
        return [request.microbatches] if request.microbatches >= request.window.memory else []
    best = best_count(request.table, request.window, request.cost.ranks, request.cost.pp)
    return request.allowed(counts_to_try(best, request.window, len(request.sequences)))


def _points(
    request: Request, counts: list[int], thetas: tuple[float, ...], etas: tuple[float, ...]
) -> list[Point]:
    """All points at these counts; equal degrees at equal M only once."""
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
    return points


def _order(point: Point) -> tuple[float, int]:
    return point.promise_s, point.num_microbatches


def _filling_points(request: Request, counts: list[int], slacks: tuple[float, ...]) -> list[Point]:
    """Points that fill slots to a limit; they sort the whole batch by themselves."""
    if request.reorder != "batch":
        return []
    whole = guard(request.table, 0.0)
    starts = [point_at(request, whole, count, 1.0, 0.0) for count in counts]
    return [_filling(request, start, slack) for start in starts for slack in slacks]


def filling_point(request: Request, count: int, slack: float) -> Point:
    """One such point."""
    whole = guard(request.table, 0.0)
    return _filling(request, point_at(request, whole, count, 1.0, 0.0), slack)


def _filling(request: Request, start: Point, slack: float) -> Point:
    """The limit, and what it promises; `start` is the target without quantum."""
    table, target_s = request.table, start.target.load_target_s
    limit_s = (1 + slack) * max(target_s, table.floor_s)
    promise_s = (start.num_microbatches + request.fill_slots) * (limit_s + table.fixed_s)
    can_balance = table.floor_s <= BALANCED * target_s
    return replace(
        start, promise_s=promise_s, theta=nan, eta=nan, can_balance=can_balance, slack=slack,
        limit_s=limit_s,
    )  # fmt: skip


def tapered_points(request: Request, even: int) -> list[Point]:
    """Tapered points around the best number of even microbatches; by promise, slack by slack.

    None where `may_taper` says so.
    """
    if not may_taper(request):
        return []
    counts = [even]
    if request.microbatches is None:
        around = [max(request.window.memory, round(even * c)) for c in TAPER_COUNTS]
        counts = request.allowed(around)
    shapes_of = [(c, taper, _shape(request, c, taper)) for c in counts for taper in TAPERS]
    points = []
    for slack in TAPER_SLACKS:
        points += sorted((_tapered(request, *known, slack) for known in shapes_of), key=_order)
    return points


def may_taper(request: Request) -> bool:
    """Whether tapered microbatches were asked for, and are open to a pipeline of these options.

    Not where rows keep their order, or microbatches another one than they were built in.
    """
    movable = request.reorder == "batch" and "as-built" in request.orders
    return request.tapered and movable and request.cost.pp > 1


def tapered_point(request: Request, count: int, taper: float, slack: float) -> Point:
    """One such point."""
    return _tapered(request, count, taper, _shape(request, count, taper), slack)


def _shape(request: Request, count: int, taper: float) -> FloatArray:
    """The fastest of the shapes whose heaviest microbatch the cap may hold."""
    cost, table = request.cost, request.table
    forward_share = float(request.profile[0].sum() / request.profile.sum())
    tried = shapes(count, cost.pp, taper, forward_share)
    roomy = tried.sum(axis=1) >= request.window.memory
    even = solve(table, guard(table, 0.0), cost.ranks * count, 1.0)
    schedule = request.schedule(cost.pp, count)
    return best_shape(
        tried[roomy], even.rank_work_s / cost.ranks, table.fixed_s,
        lambda load_s: one_lane_s(request.profile, load_s, schedule, cost.route),
    )  # fmt: skip


def _tapered(request: Request, count: int, taper: float, shape: FloatArray, slack: float) -> Point:
    """Slots filled to a limit that each microbatch has its share of; one lane says how long."""
    table = request.table
    target = solve(table, guard(table, 0.0), request.cost.ranks * float(shape.sum()), 1.0)
    limit_s = (1 + slack) * max(target.load_target_s, table.floor_s)
    load_s = (limit_s * shape + table.fixed_s)[None]
    schedule = request.schedule(request.cost.pp, count)
    run_s = one_lane_s(request.profile, load_s, schedule, request.cost.route)
    promise_s = float(run_s[0])
    return Point(promise_s, count, nan, nan, target, False, slack, limit_s, taper, shape)


def point_at(request: Request, guarded: Guard, count: int, theta: float, eta: float) -> Point:
    """Solve the target and estimate the iteration, both on nominal lanes."""
    cost, table = request.cost, request.table
    target = solve(table, guarded, cost.ranks * count, theta)
    slot_s = target.rank_work_s / (cost.ranks * count) + table.fixed_s
    promise_s = (count + request.fill_slots) * slot_s * (EVEN + THETA_PRICE * theta**2)
    load_s = table.load_s[np.arange(len(target.level)), target.level]
    pieces = table.count * table.degrees[target.level]
    least = least_imbalance(load_s, pieces, table.fixed_s, cost.ranks * count)
    return Point(promise_s, count, theta, eta, target, least <= BALANCED)


def point_again(request: Request, search: Search, count: int) -> Point:
    """The point that a search says its load-driven plan was found at, at this many microbatches."""
    if not isnan(search.taper):
        return tapered_point(request, count, search.taper, search.slack)
    if not isnan(search.slack):
        return filling_point(request, count, search.slack)
    return point_at(request, guard(request.table, search.eta), count, search.theta, search.eta)


def stated_target_s(request: Request, point: Point) -> float:
    """The target as a plan states it: the fixed cost included, on lanes as fast as they are."""
    return (point.target.load_target_s + request.table.fixed_s) * request.cost.mean_slow
