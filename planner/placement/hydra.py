"""The load-driven strategy: degrees from the load target, placement on lazy heaps.

A small search over the number of microbatches M, the quantum theta and the rank-work guard
eta. Each point costs one solve of the load target, one placement and one simulated run.

Where the window is open, M stays inside it and a balanced placement comes before a faster one
with a straggling slot: such a straggler hides in the pipeline only as long as nothing else is
late. What that preference costs under the noise-free model stands in the plan
(`fastest_load_driven_s` beside `load_driven_s`). If nothing is balanced, counts from all over the
window follow, without the points that a pigeonhole bound rules out. The memory-sized plan is
always a candidate, so the result is never slower than it; the plan says which won.

Source: load target, load-driven degrees and lazy heaps are HyDra's; the search, theta, eta, the
preference for balance and the memory-sized candidate are ours.
"""

from dataclasses import dataclass, replace

import numpy as np

from hydraplan.errors import Infeasible
from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.placement.degrees import guarded_load_s
from hydraplan.planner.placement.draft import Draft, Request, draft
from hydraplan.planner.placement.lazy_heaps import place_lazy_heaps
from hydraplan.planner.placement.lazy_split import place_lazy_split
from hydraplan.planner.placement.load_target import LoadTarget, solve
from hydraplan.planner.placement.memory_ffd import place_memory_sized
from hydraplan.planner.placement.sizing import Sized
from hydraplan.planner.placement.window import (
    best_count,
    counts_over,
    counts_to_try,
    least_imbalance,
)
from hydraplan.slots import MAX_SLOTS

THETAS = (1.0, 0.5, 0.25, 0.125)
"""Largest share of the target that one sequence may add to a slot."""
ETAS = (0.1, 0.3, 1.0)
"""Largest extra rank-work that a degree may cost over the memory floor."""
MAX_CANDIDATES = 64
"""Placements tried for one batch, the most promising first."""
HOPELESS = 1.3
"""The search ends where a point promises a time this much above the best balanced one."""
BALANCED = 1.10
"""Slot imbalance up to which a placement counts as balanced. Our choice, a project target."""


@dataclass(frozen=True, slots=True)
class _Point:
    """One point of the search, and the time it promises before it is placed."""

    promise_s: float
    num_microbatches: int
    theta: float
    eta: float
    target: LoadTarget


def place_hydra(request: Request) -> Draft:
    """Best balanced load-driven plan, unless the memory-sized one or an unbalanced one is needed.

    The balanced plan is returned if it is no slower than the memory-sized one, else the fastest
    of all.

    Raises:
        Infeasible: A fixed number of microbatches is too small for the tokens.
    """
    memory = _memory_candidate(request)
    best: Draft | None = None
    fastest: Draft | None = None
    tried = rejected = 0
    for points in (_first_points, _more_points):
        if best is not None and not _rank(best, request)[0]:
            break
        for point in points(request)[:MAX_CANDIDATES]:
            if best is not None and _rank(best, request) < (False, point.promise_s / HOPELESS):
                break
            candidate = _place(request, point)
            tried += 1
            if candidate is None:
                rejected += 1
                continue
            if best is None or _rank(candidate, request) < _rank(best, request):
                best = candidate
            if fastest is None or candidate.iteration_s < fastest.iteration_s:
                fastest = candidate
    drafts = [d for d in (best, memory, fastest) if d is not None]
    if not drafts:
        raise Infeasible(
            f"no plan with {request.microbatches} microbatches keeps every slot within"
            f" {request.cap_tokens} tokens; the tokens alone need {request.window.memory}",
            "use --microbatches auto or a larger number, or raise --max-tokens-per-rank",
        )
    winner = min(drafts, key=lambda d: d.iteration_s)
    if best is not None and (memory is None or best.iteration_s <= memory.iteration_s):
        winner = best
    nan = float("nan")
    search = replace(
        winner.search,
        num_candidates=tried + 1,
        num_rejected=rejected + (memory is None),
        load_driven_s=best.iteration_s if best else nan,
        load_driven_slot_imbalance=best.slot_imbalance if best else nan,
        fastest_load_driven_s=fastest.iteration_s if fastest else nan,
        memory_s=memory.iteration_s if memory else nan,
    )
    return replace(winner, search=search)


def _rank(candidate: Draft, request: Request) -> tuple[bool, float]:
    """Smaller is better: balance first where the window is open, then time."""
    straggles = not request.window.is_empty and candidate.slot_imbalance > BALANCED
    return straggles, candidate.iteration_s


def _memory_candidate(request: Request) -> Draft | None:
    """The memory-sized plan in its best order; None if it needs more microbatches than fixed."""
    try:
        return place_memory_sized(request)
    except Infeasible:
        return None


def _counts(request: Request) -> list[int]:
    """Numbers of microbatches of the first round."""
    if request.microbatches is not None:
        return [request.microbatches] if request.microbatches >= request.window.memory else []
    best = best_count(request.table, request.window, request.cost.ranks, request.cost.pp)
    return counts_to_try(best, request.window, len(request.sequences))


def _first_points(request: Request) -> list[_Point]:
    """Points at the counts that promise the least time."""
    return _points(request, _counts(request))


def _more_points(request: Request) -> list[_Point]:
    """Points at counts all over an open window, as far as pigeonholes allow balance there."""
    if request.microbatches is not None:
        return []
    tried = _counts(request)
    points = _points(request, [m for m in counts_over(request.window) if m not in tried])
    return [p for p in points if _least_imbalance(request, p) <= BALANCED]


def _least_imbalance(request: Request, point: _Point) -> float:
    table, level = request.table, point.target.level
    load_s = table.load_s[np.arange(len(level)), level]
    num_slots = request.cost.ranks * point.num_microbatches
    pieces = table.count * table.degrees[level]
    return least_imbalance(load_s, pieces, table.fixed_s, num_slots)


def _points(request: Request, counts: list[int]) -> list[_Point]:
    """All points at these counts, most promising first; equal degrees at equal M only once."""
    table, most = request.table, MAX_SLOTS // (request.cost.pp * request.cost.ranks)
    points: list[_Point] = []
    seen: set[bytes] = set()
    for eta in ETAS:
        allowed = guarded_load_s(table, eta)
        for count in (m for m in counts if m <= most):
            for theta in THETAS:
                point = _point(request, allowed, count, theta, eta)
                key = count.to_bytes(8, "little") + point.target.level.tobytes()
                if key not in seen:
                    seen.add(key)
                    points.append(point)
    return sorted(points, key=lambda p: (p.promise_s, p.num_microbatches, p.theta, p.eta))


def _point(
    request: Request, allowed: FloatArray, count: int, theta: float, eta: float
) -> _Point:
    """Solve the target and estimate the iteration: fill, mean load, and a price for theta."""
    cost, table = request.cost, request.table
    target = solve(table, allowed, cost.ranks * count, theta)
    slot_s = target.rank_work_s / (cost.ranks * count) + table.fixed_s
    promise_s = (count + cost.pp - 1) * slot_s * (1 + theta / 4)
    return _Point(promise_s, count, theta, eta, target)


def _place(request: Request, point: _Point) -> Draft | None:
    """Place and score one point."""
    found = request.sized(point.target.level[request.table.bucket])
    places = place_levels(request, found, point.num_microbatches)
    if places is None:
        return None
    placed = draft(request, found, *places, point.num_microbatches, "load-driven")
    target_s = point.target.load_target_s + request.table.fixed_s
    search = replace(placed.search, load_target_s=target_s, theta=point.theta, eta=point.eta)
    return replace(placed, search=search)


def place_levels(
    request: Request, found: Sized, num_microbatches: int
) -> tuple[IntArray, IntArray] | None:
    """Microbatch and first rank: lazy heaps, and lazy split where the cap stops them."""
    asked = found.load_s, found.rows, found.level
    for place in (place_lazy_heaps, place_lazy_split):
        places = place(*asked, request.cost.ranks, num_microbatches, request.cap_tokens)
        if places is not None:
            return places
    return None


def place_once(request: Request, found: Draft) -> None:
    """One solve of the target and one placement at the point that was found, nothing scored."""
    search, count = found.search, found.num_microbatches
    load_driven = found.winner == "load-driven"
    allowed = guarded_load_s(request.table, search.eta if load_driven else ETAS[0])
    theta = search.theta if load_driven else THETAS[0]
    target = solve(request.table, allowed, request.cost.ranks * count, theta)
    place_levels(request, request.sized(target.level[request.table.bucket]), count)
