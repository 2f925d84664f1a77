"""The load-driven strategy: degrees from the load target, placed, repaired and scored.

A search over the number of microbatches M, the quantum theta and the rank-work guard eta
(`search`). Points are placed in the order of what they promise; the placements that look best
are sized exactly and run, as they are and with costs off by a few percent.

Where the window is open, a balanced placement comes before a somewhat faster one with a
straggling slot: such a straggler hides in the pipeline only as long as nothing else is late. What
that costs under the noise-free model stands in the plan (`fastest_load_driven_s` beside
`load_driven_s`). If
nothing is balanced, counts from all over the window follow. The memory-sized plan is always a
candidate, so the result is never slower than it; the plan says which won.

Source: load target, load-driven degrees and placement on the least loaded block are HyDra's; the
search, theta, eta, the preference for balance and the memory-sized candidate are ours.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isnan, log

from hydraplan.errors import Infeasible
from hydraplan.planner.pipeline.fast_run import one_lane_s
from hydraplan.planner.pipeline.order import microbatch_order
from hydraplan.planner.placement.degrees import guard
from hydraplan.planner.placement.draft import (
    Built,
    Draft,
    Request,
    Timing,
    build,
    draft,
    perturbed_s,
    settled,
    timed,
)
from hydraplan.planner.placement.kept_order import place_in_order
from hydraplan.planner.placement.memory_ffd import place_memory_sized
from hydraplan.planner.placement.place import Placement, place, place_filling
from hydraplan.planner.placement.search import (
    BALANCED,
    ETAS,
    THETAS,
    Point,
    filling_point,
    finer_points,
    first_points,
    point_at,
)
from hydraplan.planner.placement.sizing import Sized

BUDGET = 240_000
"""Sequences plus slots that the placements of one round may add up to."""
LEAST, MOST = 4, 48
"""Placements of one round, whatever the budget says."""
SHARED = 1.004
"""How much the slot imbalance may rise when a placement is run, seen on the benchmark's cells."""
BALANCE_WORTH = 0.025
"""What a balanced plan may cost over the fastest, as a share of its time. Our choice."""
FINALISTS = 2, 8
"""Placements that are sized exactly and run: of large batches, and at the most."""
LONG = "long-first"
"""The order in which candidates are compared where the order is open."""


@dataclass(frozen=True, slots=True)
class _Try:
    """A point, its placement, and what that lets expect."""

    point: Point
    placement: Placement
    estimate_s: float
    imbalance: float


@dataclass(frozen=True, slots=True)
class _Run:
    """A finalist, sized exactly and run."""

    point: Point
    built: Built
    timing: Timing
    perturbed_s: float


def place_hydra(request: Request) -> Draft:
    """Best balanced load-driven plan, unless the memory-sized one or an unbalanced one is needed.

    The balanced plan is returned if it is no slower than the memory-sized one, and costs at most
    `BALANCE_WORTH` over the fastest load-driven one; else the fastest of all.

    Raises:
        Infeasible: A fixed number of microbatches is too small for the tokens.
    """
    memory = _memory_candidate(request)
    tries = list(_round(request, first_points(request)))
    runs = [_run(request, t) for t in _finalists(request, tries)]
    if all(_straggles(r.built.slot_imbalance, request) for r in runs):
        for found in _round(request, finer_points(request)):
            tries.append(found)
            if found is not None and not _expected(found, request)[0]:
                runs.append(_run(request, found))
                if not _straggles(runs[-1].built.slot_imbalance, request):
                    break
    best = min(runs, key=lambda r: _rank(r, request), default=None)
    fastest = min(runs, key=_time, default=None)
    chosen = best
    if best and fastest and _time(best) > _time(fastest) * (1 + BALANCE_WORTH):
        chosen = fastest
    load_driven = _draft(request, chosen) if chosen else None
    options = [d for d in (load_driven, memory) if d is not None]
    if memory and load_driven and load_driven.iteration_s > memory.iteration_s and fastest:
        options.append(_draft(request, fastest))
    if not options:
        raise Infeasible(
            f"no plan with {request.microbatches} microbatches keeps every slot within"
            f" {request.cap_tokens} tokens; the tokens alone need {request.window.memory}",
            "use --microbatches auto or a larger number, or raise --max-tokens-per-rank",
        )
    winner = min(options, key=lambda d: d.iteration_s)
    nan = float("nan")
    balanced = load_driven if chosen is best else None
    search = replace(
        winner.search,
        num_candidates=len(tries) + 1,
        num_rejected=tries.count(None) + (memory is None),
        load_driven_s=balanced.iteration_s if balanced else _time(best) if best else nan,
        load_driven_slot_imbalance=best.built.slot_imbalance if best else nan,
        fastest_load_driven_s=min(
            [d.iteration_s for d in options if d.winner == "load-driven"]
            + [_time(r) for r in (fastest,) if r],
            default=nan,
        ),
        memory_s=memory.iteration_s if memory else nan,
    )
    return replace(winner, search=search)


def _time(run: _Run) -> float:
    """Seconds of a finalist in the order it was run in."""
    return run.timing.iteration_s


def _memory_candidate(request: Request) -> Draft | None:
    """The memory-sized plan in its best order; None if it needs more microbatches than fixed."""
    if request.reorder == "batch":
        try:
            return place_memory_sized(request)
        except Infeasible:
            return None
    found = request.sized(request.table.floor[request.table.bucket])
    placement = _placed(request, found, request.microbatches or request.window.memory)
    if placement is None:
        return None
    exact = request.sized(placement.level)
    places = placement.microbatch, placement.first_rank, len(placement.peak_s)
    return draft(request, exact, *places, "memory")


def _straggles(imbalance: float, request: Request) -> bool:
    return not request.window.is_empty and imbalance > BALANCED


def _rank(run: _Run, request: Request) -> tuple[bool, float]:
    """Smaller is better: balance first where the window is open, then time, right and wrong."""
    return _straggles(run.built.slot_imbalance, request), run.timing.iteration_s + run.perturbed_s


def _round(request: Request, points: list[Point]) -> Iterator[_Try | None]:
    """Place as many points as the budget holds, one by one; None for what the cap rejects.

    Half of the budget goes to the most promising point of each number of microbatches, the
    rest to the neighbourhood of the best placement so far.
    """
    if not request.window.is_empty:
        points = sorted(points, key=lambda p: not p.can_balance)
    slots = request.cost.ranks * max((p.num_microbatches for p in points), default=0)
    budget = min(MOST, max(LEAST, BUDGET // (len(request.sequences) + slots)), len(points))
    first_of: dict[int, Point] = {}
    for point in points:
        first_of.setdefault(point.num_microbatches, point)
    spread = list(first_of.values())
    tries: list[_Try] = []
    for tried in range(budget):
        if not tries or tried < min(len(spread), -(-budget // 2)):
            point = spread[tried] if tried < len(spread) else points[0]
        else:
            near = min(tries, key=lambda t: _expected(t, request)).point.num_microbatches
            point = min(points, key=lambda p: (_distance(p.num_microbatches, near), p.promise_s))
        points = [p for p in points if p is not point]
        found = _try(request, point)
        if found is not None:
            tries.append(found)
        yield found


def _expected(found: _Try, request: Request) -> tuple[bool, float]:
    """As `_rank`, before it is run; sequences that share exchanges lower the mean by then."""
    return _straggles(found.imbalance * SHARED, request), found.estimate_s


def _distance(count: int, other: int) -> int:
    """Steps of a quarter between two numbers of microbatches."""
    return abs(round(log(count / other) / log(1.25)))


def _try(request: Request, point: Point) -> _Try | None:
    """Place one point; the estimate is that of a single lane that always has the fullest slot."""
    placement = _placed_at(request, point)
    if placement is None:
        return None
    peak_s = placement.peak_s + request.table.fixed_s
    order = microbatch_order(request.orders[0] if len(request.orders) == 1 else LONG, peak_s[None])
    schedule = request.schedule(request.cost.pp, len(peak_s))
    estimate_s = one_lane_s(request.profile, peak_s[order], schedule)
    imbalance = float(peak_s.max()) / (placement.mean_s + request.table.fixed_s)
    return _Try(point, placement, estimate_s, imbalance)


def _placed_at(request: Request, point: Point) -> Placement | None:
    """Choose degrees and place, before or meanwhile; None if they do not fit."""
    table = request.table
    if isnan(point.slack):
        found = request.sized(point.target.level[table.bucket])
        return _placed(request, found, point.num_microbatches)
    length, ranks, cap = request.sequences.length_tokens, request.cost.ranks, request.cap_tokens
    shape = ranks, point.num_microbatches, cap
    limit_s = point.limit_s * request.cost.mean_slow
    return place_filling(table, length, *shape, request.slow, limit_s)


def _placed(request: Request, found: Sized, num_microbatches: int) -> Placement | None:
    """Place sequences of known degrees as the request allows; None if they do not fit."""
    length, ranks, cap = request.sequences.length_tokens, request.cost.ranks, request.cap_tokens
    if request.reorder == "batch":
        return place(found, request.table, length, ranks, num_microbatches, cap, request.slow)
    return place_in_order(request, found, num_microbatches)


def _finalists(request: Request, tries: list[_Try | None]) -> list[_Try]:
    """The most promising by balance and estimate, and the one with the least estimate."""
    placed = [t for t in tries if t is not None]
    by_rank = sorted(placed, key=lambda t: _expected(t, request))
    fastest = sorted(placed, key=lambda t: t.estimate_s)[:1]
    slots = request.cost.ranks * max((t.point.num_microbatches for t in placed), default=0)
    count = min(FINALISTS[1], max(FINALISTS[0], BUDGET // (8 * (len(request.sequences) + slots))))
    chosen = by_rank[:count]
    return chosen + [t for t in fastest if t not in chosen]


def _run(request: Request, found: _Try) -> _Run:
    """Size a placement exactly and run it, long microbatches first, at both costs."""
    placement = found.placement
    exact = request.sized(placement.level)
    places = placement.microbatch, placement.first_rank, len(placement.peak_s)
    built = build(request, exact, *places)
    timing = timed(request, built, request.orders if len(request.orders) == 1 else (LONG,))
    return _Run(found.point, built, timing, perturbed_s(request, built, timing))


def _draft(request: Request, run: _Run) -> Draft:
    """A finalist in its best order."""
    others = tuple(name for name in request.orders if name != run.timing.name)
    timing = run.timing
    if others:
        timing = min(timing, timed(request, run.built, others), key=lambda t: t.iteration_s)
    placed = settled(request, run.built, timing, "load-driven")
    point = run.point
    search = replace(
        placed.search,
        load_target_s=(point.target.load_target_s + request.table.fixed_s) * request.cost.mean_slow,
        theta=point.theta,
        eta=point.eta,
        slack=point.slack,
    )
    return replace(placed, search=search)


def place_once(request: Request, found: Draft) -> None:
    """One choice of degrees and one placement at the point that was found, nothing scored."""
    search, count = found.search, found.num_microbatches
    if not isnan(search.slack):
        point = filling_point(request, count, search.slack)
    else:
        load_driven = found.winner == "load-driven"
        eta, theta = (search.eta, search.theta) if load_driven else (ETAS[0], THETAS[0])
        point = point_at(request, guard(request.table, eta), count, theta, eta)
    _placed_at(request, point)
