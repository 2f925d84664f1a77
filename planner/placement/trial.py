"""One point of the search, tried: placed, then sized exactly and run.

A trial is a placement and what it lets expect: the time of a single lane that always has the
fullest slot. That is cheap. A finalist is a trial whose sequences are sized exactly and that was
run on all lanes, as it is and with costs off by a few percent.
"""

from dataclasses import dataclass, replace
from math import isnan

from hydraplan.planner.pipeline.fast_run import one_lane_s
from hydraplan.planner.pipeline.order import microbatch_order
from hydraplan.planner.placement.draft import (
    Built,
    Draft,
    Request,
    Timing,
    build,
    perturbed_s,
    settled,
    timed,
)
from hydraplan.planner.placement.kept_order import place_in_order
from hydraplan.planner.placement.place import Placement, place, place_filling
from hydraplan.planner.placement.search import Point, stated_target_s
from hydraplan.planner.placement.sizing import Sized

LONG = "long-first"
"""The order in which candidates are compared where the order is open."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A point, its placement, and what that lets expect."""

    point: Point
    placement: Placement
    estimate_s: float
    imbalance: float


@dataclass(frozen=True, slots=True)
class Finalist:
    """A finalist, sized exactly and run."""

    point: Point
    built: Built
    timing: Timing
    perturbed_s: float


def trial_of(request: Request, point: Point) -> Trial | None:
    """Place one point; None if it does not fit."""
    placement = placed_at(request, point)
    return None if placement is None else judged(request, point, placement)


def judged(request: Request, point: Point, placement: Placement) -> Trial:
    """The estimate is that of a single lane that always has the fullest slot."""
    peak_s = placement.peak_s + request.table.fixed_s
    name = request.orders[0] if len(request.orders) == 1 else LONG
    order = microbatch_order(name if point.shape is None else "as-built", peak_s[None])
    schedule = request.schedule(request.cost.pp, len(peak_s))
    way = request.cost.route
    estimate_s = float(one_lane_s(request.profile, peak_s[order][None], schedule, way)[0])
    imbalance = float(peak_s.max()) / (placement.mean_s + request.table.fixed_s)
    return Trial(point, placement, estimate_s, imbalance)


def placed_at(request: Request, point: Point) -> Placement | None:
    """Choose degrees and place, before or meanwhile; None if they do not fit."""
    table = request.table
    if isnan(point.slack):
        found = request.sized(point.target.level[table.bucket])
        return placed_at_degrees(request, found, point.num_microbatches)
    length, ranks, cap = request.sequences.length_tokens, request.cost.ranks, request.cap_tokens
    limit_s = point.limit_s * request.cost.mean_slow
    lanes = request.slow, limit_s, point.shape, request.spared
    return place_filling(table, length, ranks, point.num_microbatches, cap, *lanes)


def placed_at_degrees(request: Request, found: Sized, num_microbatches: int) -> Placement | None:
    """Place sequences of known degrees as the request allows; None if they do not fit."""
    length, ranks, cap = request.sequences.length_tokens, request.cost.ranks, request.cap_tokens
    if request.reorder == "batch":
        lanes = request.slow, request.spared
        return place(found, request.table, length, ranks, num_microbatches, cap, *lanes)
    kept = place_in_order(request, found, num_microbatches)
    if request.microbatches is not None or kept is None:
        return kept
    filled = request.whole_multiple(len(kept.peak_s)) <= len(request.sequences)
    return kept if filled else None


def finalist_of(request: Request, found: Trial, orders: tuple[str, ...] = (LONG,)) -> Finalist:
    """Size a placement exactly and run it, in the best of the orders, at both costs."""
    placement = found.placement
    exact = request.sized(placement.level)
    places = placement.microbatch, placement.first_rank, len(placement.peak_s)
    return _run(request, found.point, build(request, exact, *places), orders)


def in_orders(request: Request, run: Finalist, orders: tuple[str, ...]) -> Finalist:
    """A finalist run again, in the best of these orders."""
    return _run(request, run.point, run.built, orders)


def _run(request: Request, point: Point, built: Built, orders: tuple[str, ...]) -> Finalist:
    orders = request.orders if len(request.orders) == 1 else orders
    timing = timed(request, built, orders if point.shape is None else ("as-built",))
    return Finalist(point, built, timing, perturbed_s(request, built, timing))


def drafted(request: Request, run: Finalist) -> Draft:
    """A finalist in its best order."""
    others = tuple(name for name in request.orders if name != run.timing.name)
    timing = run.timing
    if others:
        timing = min(timing, timed(request, run.built, others), key=lambda t: t.iteration_s)
    placed = settled(request, run.built, timing, "load-driven")
    point = run.point
    search = replace(
        placed.search,
        load_target_s=stated_target_s(request, point),
        theta=point.theta,
        eta=point.eta,
        slack=point.slack,
        taper=point.taper,
    )
    return replace(placed, search=search)


def best_order_s(request: Request, run: Finalist) -> float:
    """Seconds of a finalist in its best order."""
    if run.point.shape is not None:
        return time_s(run)
    return timed(request, run.built, request.orders).iteration_s


def time_s(run: Finalist) -> float:
    """Seconds of a finalist in the order it was run in."""
    return run.timing.iteration_s


def both_s(run: Finalist) -> float:
    """Time at right and at wrong costs."""
    return run.timing.iteration_s + run.perturbed_s
