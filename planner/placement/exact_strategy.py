"""The strategy `exact`: hydra's plan, with the placement replaced by the exact one at its M.

Hydra chooses the number of microbatches and hands over its plan as the hint; CP-SAT then looks
for the least maximum slot load over all degrees the request offers and all aligned blocks. Loads
are summed there (see `exact`), while real slots share exchanges; so both plans are compared by
real slot loads, and hydra's is kept where it is the better one. The status and the bound stand
in the plan.

Source: ours.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hydraplan.cost import CostModel
from hydraplan.layout import expand
from hydraplan.model import EXACT_STATUS, FloatArray, IntArray, Search, Sequences
from hydraplan.planner.pipeline.fast_run import slots_of
from hydraplan.planner.placement.draft import Draft, Request, build, settled, timed
from hydraplan.planner.placement.exact import ExactPlacement, Limits, solve_exact
from hydraplan.planner.placement.exact_model import UNITS
from hydraplan.planner.placement.forest import filled_forest
from hydraplan.planner.placement.hydra import place_hydra
from hydraplan.planner.placement.sibling_swap import swapped


def place_exact(request: Request, limits: Limits | None = None) -> Draft:
    """The exact placement at hydra's number of microbatches, or hydra's plan if that is better.

    Raises:
        Infeasible: The batch is too large to be solved exactly, or hydra finds no plan.
        MissingDependency: ortools is not installed.
    """
    hint = place_hydra(replace(request, tapered=False))
    found = solve(request, hint, limits)
    whole = build(
        request,
        request.sized(found.level),
        found.microbatch,
        _evened(request, found, hint.num_microbatches),
        hint.num_microbatches,
    )
    hint_peak_s = slots_of(request.cost, hint.sequences, hint.num_microbatches).load_s.max()
    search = replace(
        hint.search,
        num_candidates=hint.search.num_candidates + 1,
        exact_status="feasible",
        bound_s=found.bound_s,
    )
    if whole.slots.load_s.max() > hint_peak_s * (1 + 1e-12):
        return replace(hint, search=_with_fullest(request, hint, search))
    nan = float("nan")
    search = replace(search, load_target_s=nan, theta=nan, eta=nan, slack=nan, taper=nan)
    search = replace(search, exact_status=found.status)
    made = settled(request, whole, timed(request, whole, request.orders), "load-driven")
    return replace(made, search=_with_fullest(request, made, search))


def _with_fullest(request: Request, made: Draft, search: Search) -> Search:
    """The search with the fullest slot of the plan, to be read against its bound."""
    summed = summed_s(request.cost, made.sequences, made.num_microbatches)
    return replace(search, fullest_slot_s=float(summed.max()))


def place_exact_once(request: Request, found: Draft) -> None:
    """The exact search again, from what was found; nothing scored."""
    solve(request, found)


def solve(request: Request, hint: Draft, limits: Limits | None = None) -> ExactPlacement:
    """`solve_exact` on a request, at the number of microbatches of the hint."""
    degrees, at = request.table.degrees, hint.sequences
    count = len(at)
    sizes = [request.sized(np.full(count, level)) for level in range(len(degrees))]
    here = [(s.level == level) & request.table.offered[level] for level, s in enumerate(sizes)]
    return solve_exact(
        load_s=np.stack([s.load_s for s in sizes], axis=1),
        rows=np.stack([s.rows for s in sizes], axis=1),
        possible=np.stack(here, axis=1),
        num_ranks=request.cost.ranks,
        num_microbatches=hint.num_microbatches,
        cap_tokens=request.cap_tokens,
        fixed_s=request.table.fixed_s,
        hint=(np.searchsorted(degrees, at.degree), at.microbatch, at.first_rank),
        limits=limits,
        rank_speed=1 / request.cost.slow,
    )


def _evened(request: Request, found: ExactPlacement, num_microbatches: int) -> IntArray:
    """First ranks after the sibling swap: the same slot loads, spread evenly over the lanes."""
    if request.slow is not None:
        return found.first_rank
    ranks, sizes, level = request.cost.ranks, request.sized(found.level), found.level
    width = 1 << (ranks - 1).bit_length()
    node = (width >> level) + (found.first_rank >> level)
    forest = filled_forest(
        ranks, num_microbatches, found.microbatch, node, sizes.load_s, sizes.rows, None
    )
    moved = swapped(forest.added, ranks, found.microbatch, node)
    first_rank: IntArray = (moved - (width >> level)) << level
    return first_rank


def summed_s(cost: CostModel, placed: Sequences, num_microbatches: int) -> FloatArray:
    """Slot loads as the exact model sums them, seconds, shape (lanes, microbatches).

    A group is as slow as its slowest lane. `placed` holds only rows on ranks.
    """
    group, member = expand(placed.degree)
    lane = placed.first_rank[group] + member
    slowest = np.zeros(len(placed))
    np.maximum.at(slowest, group, cost.slow[lane])
    slot = lane * num_microbatches + placed.microbatch[group]
    added_s = (placed.predicted_s * slowest)[group]
    summed = np.bincount(slot, added_s, cost.ranks * num_microbatches)
    fixed_s = float(cost.call_s.sum(axis=(0, 2)).max())
    shape = cost.ranks, num_microbatches
    result: FloatArray = summed.reshape(shape) + fixed_s * cost.slow[:, None]
    return result


def exact_claims(
    cost: CostModel, strategy: str, search: Search, placed: Sequences, num_microbatches: int
) -> Iterator[str]:
    """Sentences about a status or a bound that this placement does not have."""
    status, bound_s = search.exact_status, search.bound_s
    if strategy != "exact":
        if status or not np.isnan([bound_s, search.fullest_slot_s]).all():
            yield (
                f"exact_status {status!r}, bound_s {bound_s:g} and fullest_slot_s"
                f" {search.fullest_slot_s:g} belong to strategy exact alone"
            )
        return
    if status not in EXACT_STATUS:
        yield f"exact_status is {status!r}, not {' or '.join(EXACT_STATUS)}"
        return
    peak_s = float(summed_s(cost, placed, num_microbatches).max())
    if not np.isclose(search.fullest_slot_s, peak_s, rtol=1e-9, atol=0):
        yield f"fullest_slot_s is stored as {search.fullest_slot_s:.9g}, this plan has {peak_s:.9g}"
    if not 0 < bound_s <= peak_s * (1 + 1e-9):
        yield f"bound_s is {bound_s:.9g}, the fullest slot of this plan has {peak_s:.9g}"
    elif status == "optimal" and peak_s > bound_s * (1 + (len(placed) + 1) / UNITS + 1e-9):
        yield f"called optimal, but its fullest slot has {peak_s:.9g}, bound_s is {bound_s:.9g}"
