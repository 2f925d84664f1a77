"""The load-driven strategy: degrees from the load target, placed, repaired and scored.

A search over the number of microbatches M, the quantum theta and the rank-work guard eta
(`search`). Points are placed in the order of what they promise; the placements that look best
are sized exactly and run, as they are and with costs off by a few percent (`rounds`).

Where the window is open or the batch small, balance comes before time (`choice`). What that costs
under the noise-free model stands in the plan (`fastest_load_driven_s` beside `load_driven_s`). If
nothing is balanced, counts from all over the window follow. The memory-sized plan is always a
candidate (`memory_candidate`), so the result is never slower than it; the plan says which won.

Small batches are also filled many times (`small_batch`), and if they have few sequences, planned
in the order of their rows, as are batches whose rows may move inside windows (`row_order`). What
comes of it is a finalist where it is no slower than the plan would be without it, or balanced
where that is not.

They also get the fastest plan with one degree for all (`small_batch`); it is returned if it is
clearly faster.

Where tapered microbatches are asked for (`taper`), some are tried around the number of even ones
that was chosen, and returned if they are faster at right and wrong costs together.

Source: load target, load-driven degrees and placement on the least loaded block are HyDra's; the
search, theta, eta, taper, the preference for balance and the memory-sized candidate are ours.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf, nan

from hydraplan.errors import Infeasible, many
from hydraplan.model import Search
from hydraplan.planner.placement.choice import (
    choice,
    clearly_faster,
    no_slower,
    outbalanced,
    unbeaten,
)
from hydraplan.planner.placement.draft import Draft, Request
from hydraplan.planner.placement.memory_candidate import last_memory_candidate, memory_candidates
from hydraplan.planner.placement.one_degree import most_packed
from hydraplan.planner.placement.rounds import searched, tapered
from hydraplan.planner.placement.row_order import searched_in_row_order, tries_row_order
from hydraplan.planner.placement.search import ETAS, MOST, THETAS, point_again
from hydraplan.planner.placement.small_batch import one_degree_candidate, tight_trials
from hydraplan.planner.placement.tight_fill import KEPT, SMALL
from hydraplan.planner.placement.trial import (
    Finalist,
    Trial,
    drafted,
    finalist_of,
    placed_at,
    time_s,
)
from hydraplan.planner.placement.window import LOOK

MOST_CANDIDATES = 2 * (1 + 2 * MOST) + LOOK * 2 * MOST + KEPT + 2 * MOST + 2 * most_packed(SMALL)
"""What a search tries at the most: memory-sized and two rounds, these once more in the order of
the rows, two rounds at more numbers of microbatches, tight fillings, tapered, one degree."""


def place_hydra(request: Request) -> Draft:
    """Best balanced load-driven plan, unless the memory-sized one or an unbalanced one is needed.

    The balanced plan is returned if it is no slower than the memory-sized one, and costs at most
    `BALANCE_WORTH` over the fastest load-driven one; else the fastest of all, or one with one
    degree for all if that is clearly faster than these and not slower than the fastest.

    Raises:
        Infeasible: A fixed number of microbatches is too small for the tokens.
    """
    memories = memory_candidates(request)
    tries, runs, in_row_order = _finalists(request, memories)
    best, fastest, chosen = choice(request, runs)
    memory = _standing(request, memories, chosen)
    if chosen and request.tapered:
        limit_s = min(map(time_s, in_row_order), default=inf)
        more, chosen = tapered(request, chosen, limit_s)
        tries += more
    load_driven = drafted(request, chosen) if chosen else None
    if memory is None and load_driven is None:
        memory = memories[0] = last_memory_candidate(request)
    plans = _plans(request, load_driven, memory, fastest)
    winner = min(plans, key=lambda plan: plan.iteration_s)
    one_degree = one_degree_candidate(request)
    if one_degree and clearly_faster(request, one_degree, winner):
        rivals = [one_degree, *([drafted(request, fastest)] if fastest else [])]
        winner = min(rivals, key=lambda plan: plan.iteration_s)
    balanced = load_driven if chosen is best else None
    search = _with_times(winner.search, plans, best, fastest, balanced)
    return replace(winner, search=_counted(search, [*tries, *memories], one_degree))


def _finalists(
    request: Request, memories: list[Draft | None]
) -> tuple[list[Trial | None], list[Finalist], list[Finalist]]:
    """All that is placed, what the plan is chosen from, and what was found in the row order."""
    tries, runs = searched(request)
    tight = tight_trials(request, tries)
    in_all_orders = [finalist_of(request, found, request.orders) for found in tight]
    runs += no_slower(request, runs, memories[0], in_all_orders)
    in_row_order: list[Finalist] = []
    if tries_row_order(request):
        more, in_row_order = searched_in_row_order(request, memories[-1])
        for plan in no_slower(request, runs, memories[0], in_row_order):
            runs = unbeaten(request, runs, plan)
        tries += more
    return [*tries, *tight], runs, in_row_order


def _standing(
    request: Request, memories: list[Draft | None], chosen: Finalist | None
) -> Draft | None:
    """The fastest memory-sized plan; that in the row order unless the chosen one outbalances it."""
    memory, *in_row_order = memories
    kept = [plan for plan in in_row_order if plan and not outbalanced(request, plan, chosen)]
    standing = [memory, *kept] if memory else kept
    return min(standing, key=lambda plan: plan.iteration_s, default=None)


def _plans(
    request: Request, load_driven: Draft | None, memory: Draft | None, fastest: Finalist | None
) -> list[Draft]:
    """What there is, and the fastest load-driven plan too where memory-sized beats the chosen one.

    Raises:
        Infeasible: There is none.
    """
    plans = [plan for plan in (load_driven, memory) if plan]
    if memory and load_driven and load_driven.iteration_s > memory.iteration_s and fastest:
        plans.append(drafted(request, fastest))
    if not plans:
        raise _no_plan(request)
    return plans


def _with_times(
    search: Search,
    plans: list[Draft],
    best: Finalist | None,
    fastest: Finalist | None,
    balanced: Draft | None,
) -> Search:
    """The times of all candidates written down; `balanced` is the best one, if it was chosen."""
    memory_s = [plan.iteration_s for plan in plans if plan.winner == "memory"]
    load_driven_s = [plan.iteration_s for plan in plans if plan.winner == "load-driven"]
    load_driven_s += [time_s(fastest)] if fastest else []
    return replace(
        search,
        load_driven_s=balanced.iteration_s if balanced else time_s(best) if best else nan,
        load_driven_slot_imbalance=best.built.slot_imbalance if best else nan,
        fastest_load_driven_s=min(load_driven_s, default=nan),
        memory_s=min(memory_s, default=nan),
    )


def _counted(
    search: Search, tried: Sequence[Trial | Draft | None], one_degree: Draft | None
) -> Search:
    """How many candidates there were, and how many of them did not fit."""
    more = one_degree.search if one_degree else None
    return replace(
        search,
        num_candidates=len(tried) + (more.num_candidates if more else 0),
        num_rejected=tried.count(None) + (more.num_rejected if more else 0),
    )


def _no_plan(request: Request) -> Infeasible:
    number = f"with {many(request.microbatches or 0, 'microbatch')}"
    hint = "use --microbatches auto or a larger number"
    if request.microbatches is None:
        most = many(len(request.sequences), "microbatch")
        number = f"of a multiple of {request.microbatch_multiple}, up to {most},"
        hint = "use a smaller --microbatch-multiple"
    return Infeasible(
        f"no plan {number} keeps every slot within {request.cap_tokens} tokens; the"
        f" tokens alone need {request.window.memory}",
        f"{hint}, or raise --max-tokens-per-rank"
        + (", or let rows move farther with --reorder" if request.reorder != "batch" else ""),
    )


def place_once(request: Request, found: Draft) -> None:
    """One choice of degrees and one placement at the point that was found, nothing scored."""
    search = found.search
    if found.winner != "load-driven":
        search = replace(search, eta=ETAS[0], theta=THETAS[0])
    placed_at(request, point_again(request, search, found.num_microbatches))
