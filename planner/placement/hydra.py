"""The load-driven strategy: degrees from the load target, placed, repaired and scored.

A search over the number of microbatches M, the quantum theta and the rank-work guard eta
(`search`). Points are placed in the order of what they promise; the placements that look best
are sized exactly and run, as they are and with costs off by a few percent.

Where the window is open or the batch small, balance comes before time (`choice`). What that costs
under the noise-free model stands in the plan (`fastest_load_driven_s` beside `load_driven_s`). If
nothing is balanced, counts from all over the window follow. The memory-sized plan is always a
candidate, so the result is never slower than it; the plan says which won.

Small batches are also filled many times (`tight_fill`), and if they have few sequences, planned in
the order of their rows: that order is legal too, and where little can be chosen the search now and
then finds the better plan there. So are batches whose rows may move inside windows. What comes of
it is a finalist where it is no slower than the plan would be without it, or balanced where that is
not.

They also get the fastest plan with one degree for all (`one_degree`), which is hard to beat where
few sequences make most of the work; it is returned if it is clearly faster.

Where tapered microbatches are asked for (`taper`), some are tried around the number of even ones
that was chosen, and returned if they are faster at right and wrong costs together.

Source: load target, load-driven degrees and placement on the least loaded block are HyDra's; the
search, theta, eta, taper, the preference for balance and the memory-sized candidate are ours.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import inf, log

import numpy as np

from hydraplan.errors import Infeasible, many
from hydraplan.planheader import reorder_window
from hydraplan.planner.placement.choice import (
    choice,
    clearly_faster,
    no_slower,
    outbalanced,
    straggles,
    unbeaten,
)
from hydraplan.planner.placement.draft import Draft, Request, draft
from hydraplan.planner.placement.memory_ffd import place_memory_sized
from hydraplan.planner.placement.one_degree import fastest_degree, most_packed
from hydraplan.planner.placement.search import (
    ETAS,
    MOST,
    MOST_RUN,
    THETAS,
    Point,
    finer_points,
    first_counts,
    first_points,
    num_finalists,
    num_placements,
    point_again,
    tapered_points,
    uneven,
)
from hydraplan.planner.placement.static_cp import pack_first_fit
from hydraplan.planner.placement.tight_fill import KEPT, SMALL, is_small, tight_fillings
from hydraplan.planner.placement.token_balance import pack_balanced
from hydraplan.planner.placement.trial import (
    LONG,
    Finalist,
    Trial,
    both_s,
    drafted,
    finalist_of,
    in_orders,
    judged,
    placed_at,
    placed_at_degrees,
    time_s,
    trial_of,
)
from hydraplan.planner.placement.window import LOOK, counts_from

FEW = 64
"""Sequences up to which a small batch is also planned in the order of its rows."""
SHARED = 1.004
"""How much the slot imbalance may rise when a placement is run, seen on the benchmark's cells."""
MOST_CANDIDATES = 2 * (1 + 2 * MOST) + LOOK * 2 * MOST + KEPT + 2 * MOST + 2 * most_packed(SMALL)
"""What a search tries at the most: memory-sized and two rounds, these once more in the order of
the rows, two rounds at more numbers of microbatches, tight fillings, tapered, one degree."""


def place_hydra(request: Request) -> Draft:
    """Best balanced load-driven plan, unless the memory-sized one or an unbalanced one is needed.

    The balanced plan is returned if it is no slower than the memory-sized one, and costs at most
    `BALANCE_WORTH` over the fastest load-driven one; else the fastest of all.

    Raises:
        Infeasible: A fixed number of microbatches is too small for the tokens.
    """
    memory = _memory_candidate(request)
    tries, runs = _searched(request)
    tight = _tight(request, tries)
    in_all_orders = [finalist_of(request, t, request.orders) for t in tight]
    runs += no_slower(request, runs, memory, in_all_orders)
    memories, kept = [memory], list[Finalist]()
    if _runs_in_input_order_too(request):
        kept_memory, kept_tries, kept = _in_input_order(request)
        for plan in no_slower(request, runs, memory, kept):
            runs = unbeaten(request, runs, plan)
        memories.append(kept_memory)
        tries += kept_tries
    tries += tight
    best, fastest, chosen = choice(request, runs)
    standing = [memory, *(m for m in memories[1:] if m and not outbalanced(request, m, chosen))]
    memory = min((m for m in standing if m), key=lambda d: d.iteration_s, default=None)
    small = request.reorder == "batch" and is_small(request)
    one_degree = _one_degree(request) if small else None
    if chosen and request.tapered:
        tapers = [trial_of(request, p) for p in _tapered(request, chosen.point.num_microbatches)]
        tries += tapers
        likely = sorted((t for t in tapers if t), key=lambda t: t.estimate_s)
        runs = [finalist_of(request, t) for t in likely[: num_finalists(request, _counts(tapers))]]
        limit_s = min(map(time_s, kept), default=inf)
        chosen = min([chosen, *(r for r in runs if time_s(r) <= limit_s)], key=both_s)
    load_driven = drafted(request, chosen) if chosen else None
    if memory is None and load_driven is None and request.reorder == "batch":
        memory = memories[0] = _order_kept(request)
    options = [d for d in (load_driven, memory) if d is not None]
    if memory and load_driven and load_driven.iteration_s > memory.iteration_s and fastest:
        options.append(drafted(request, fastest))
    if not options:
        raise _no_plan(request)
    winner = min(options, key=lambda d: d.iteration_s)
    if one_degree and clearly_faster(request, one_degree, winner):
        winner = one_degree
    nan = float("nan")
    balanced = load_driven if chosen is best else None
    more = one_degree.search if one_degree else None
    search = replace(
        winner.search,
        num_candidates=len(tries) + len(memories) + (more.num_candidates if more else 0),
        num_rejected=tries.count(None) + memories.count(None) + (more.num_rejected if more else 0),
        load_driven_s=balanced.iteration_s if balanced else time_s(best) if best else nan,
        load_driven_slot_imbalance=best.built.slot_imbalance if best else nan,
        fastest_load_driven_s=min(
            [d.iteration_s for d in options if d.winner == "load-driven"]
            + [time_s(r) for r in (fastest,) if r],
            default=nan,
        ),
        memory_s=memory.iteration_s if memory else nan,
    )
    return replace(winner, search=search)


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


def _searched(request: Request) -> tuple[list[Trial | None], list[Finalist]]:
    """All that is placed, None where the cap forbids, and what of it is run: by rounds.

    Where many placements are affordable, the best at every number of microbatches is run, and all
    in every order: uneven ones gain most by an order with the light ones first and last.
    """
    tries = list(_round(request, first_points(request)))
    affordable = num_finalists(request, _counts(tries)) == MOST_RUN
    likely = _finalists(request, tries)
    if affordable:
        likely += [t for t in _best_at_each(tries) if t not in likely]
    runs = [finalist_of(request, t, request.orders if affordable else (LONG,)) for t in likely]
    if all(straggles(request, r.built.slot_imbalance) for r in runs):
        for found in _round(request, finer_points(request)):
            tries.append(found)
            if found is not None and not _expected(found, request)[0]:
                runs.append(finalist_of(request, found))
                if not straggles(request, runs[-1].built.slot_imbalance):
                    break
    return tries, runs


def _in_input_order(
    request: Request,
) -> tuple[Draft | None, list[Trial | None], list[Finalist]]:
    """What `--reorder none` finds: memory-sized, all that is placed, and the load-driven plan.

    Microbatches may then change places, as the request allows it. Where their number is open, more
    of them are tried than the window suggests (`window.counts_from`); the fastest plan counts.
    """
    rows_in_order = replace(request, reorder="none", orders=("as-built",))
    memory = _memory_candidate(replace(rows_in_order, orders=request.orders))
    tries, runs = _searched(rows_in_order)
    _, fastest, chosen = choice(request, runs)
    if memory and chosen and memory.iteration_s < time_s(chosen):
        chosen = fastest
    likely = [chosen] if chosen else []
    for count in _more_counts(request):
        more, runs = _searched(replace(rows_in_order, microbatches=count))
        tries += more
        likely += runs
    kept = [in_orders(request, run, request.orders) for run in likely]
    return memory, tries, sorted(kept, key=time_s)[:1]


def _more_counts(request: Request) -> list[int]:
    if request.microbatches is not None or not _has_few(request):
        return []
    fewest, most = request.window.memory, request.most_microbatches
    return request.allowed(counts_from(fewest, request.cost.pp, most))


def _one_degree(request: Request) -> Draft | None:
    """The fastest plan with one degree for all sequences, packed or balanced by tokens."""
    made = []
    for name, pack in (("static-cp", pack_first_fit), ("token-balance", pack_balanced)):
        try:
            made.append(fastest_degree(request, name, pack))
        except Infeasible:
            continue
    if not made:
        return None
    tried = [draft.search for draft in made]
    best = min(made, key=lambda draft: draft.iteration_s)
    search = replace(
        best.search,
        num_candidates=sum(search.num_candidates for search in tried),
        num_rejected=sum(search.num_rejected for search in tried),
    )
    return replace(best, winner="one-degree", search=search)


def _runs_in_input_order_too(request: Request) -> bool:
    """Whether the order of the rows is tried as well: under windows, and with few sequences."""
    if request.reorder == "batch":
        return _has_few(request)
    return reorder_window(request.reorder) != 1


def _has_few(request: Request) -> bool:
    """Whether the batch has few sequences, and is small in as few microbatches as there may be."""
    return len(request.sequences) <= FEW and is_small(request)


def _tight(request: Request, tries: list[Trial | None]) -> list[Trial]:
    """Tight fillings of a small batch, at the numbers of microbatches that look best."""
    peak_s: dict[int, float] = {}
    for t in sorted((t for t in tries if t), key=lambda t: _expected(t, request)):
        count = t.point.num_microbatches
        peak_s[count] = min(peak_s.get(count, inf), float(t.placement.peak_s.max()))
    counts = peak_s or dict.fromkeys(first_counts(request), inf)
    return [judged(request, *found) for found in tight_fillings(request, counts)]


def memory_times_s(request: Request, alone: bool) -> set[float]:
    """Seconds that the memory-sized candidate may have; NaN where none is known.

    That in any order, or the faster one of it and that in the order of the rows, if it stood.

    Args:
        alone: No load-driven plan was found.
    """
    free = _memory_candidate(request)
    in_order = replace(request, reorder="none")
    kept = _memory_candidate(in_order) if _runs_in_input_order_too(request) else None
    if free is None and kept is None and alone and request.reorder == "batch":
        free = _order_kept(request)
    free_s, kept_s = (float("nan") if d is None else d.iteration_s for d in (free, kept))
    return {free_s, float(np.fmin(free_s, kept_s))}


def _memory_candidate(request: Request) -> Draft | None:
    """The memory-sized plan in its best order; None if it needs more microbatches than fixed."""
    if request.reorder == "batch":
        try:
            return place_memory_sized(request)
        except Infeasible:
            return None
    return _in_order(request)


def _order_kept(request: Request) -> Draft | None:
    """The memory-sized plan as kept orders place it, which miss no room where slots are few.

    One window of the whole batch first, then rows as they come: so no number of microbatches is
    refused here that `--reorder none` meets. Tokens beyond all slots are not tried.
    """
    if request.microbatches is None or request.microbatches < request.window.memory:
        return None
    rows = int(request.sequences.sequence_id[-1]) - request.first_row + 1
    kept = (_in_order(replace(request, reorder=name)) for name in (f"window:{rows}", "none"))
    return next(filter(None, kept), None)


def _in_order(request: Request) -> Draft | None:
    """The memory-sized plan where rows keep their order."""
    found = request.sized(request.table.floor[request.table.bucket])
    placement = placed_at_degrees(request, found, request.microbatches or request.window.memory)
    if placement is None:
        return None
    exact = request.sized(placement.level)
    places = placement.microbatch, placement.first_rank, len(placement.peak_s)
    return draft(request, exact, *places, "memory")


def _round(request: Request, points: list[Point]) -> Iterator[Trial | None]:
    """Place as many points as the budget holds, one by one; None for what the cap rejects.

    Half of the budget goes to the most promising point of each number of microbatches, the
    rest to the neighbourhood of the best placement so far.
    """
    points = sorted(points, key=lambda p: uneven(request, p))
    budget = min(len(points), num_placements(request, [p.num_microbatches for p in points]))
    first_of: dict[int, Point] = {}
    for point in points:
        first_of.setdefault(point.num_microbatches, point)
    spread = list(first_of.values())
    tries: list[Trial] = []
    for tried in range(budget):
        if not tries or tried < min(len(spread), -(-budget // 2)):
            point = spread[tried] if tried < len(spread) else points[0]
        else:
            near = min(tries, key=lambda t: _expected(t, request)).point.num_microbatches
            point = min(points, key=lambda p: (_distance(p.num_microbatches, near), p.promise_s))
        points = [p for p in points if p is not point]
        found = trial_of(request, point)
        if found is not None:
            tries.append(found)
        yield found


def _expected(found: Trial, request: Request) -> tuple[bool, float]:
    """What it is chosen by, before it is run; sequences that share exchanges lower the mean."""
    return straggles(request, found.imbalance * SHARED), found.estimate_s


def _distance(count: int, other: int) -> int:
    """Steps of a quarter between two numbers of microbatches."""
    return abs(round(log(count / other) / log(1.25)))


def _tapered(request: Request, even: int) -> list[Point]:
    """The most promising tapered points around a number of even microbatches.

    Twice a round: small shares are hard to fill, and a promise does not know how hard.
    """
    points = tapered_points(request, even)
    return points[: 2 * num_placements(request, [p.num_microbatches for p in points])]


def _counts(tries: list[Trial | None]) -> list[int]:
    return [t.point.num_microbatches for t in tries if t is not None]


def _finalists(request: Request, tries: list[Trial | None]) -> list[Trial]:
    """The most promising by balance and estimate, and the one with the least estimate."""
    placed = [t for t in tries if t is not None]
    by_rank = sorted(placed, key=lambda t: _expected(t, request))
    fastest = sorted(placed, key=lambda t: t.estimate_s)[:1]
    chosen = by_rank[: num_finalists(request, _counts(tries))]
    return chosen + [t for t in fastest if t not in chosen]


def _best_at_each(tries: list[Trial | None]) -> list[Trial]:
    """The least estimate at each number of microbatches."""
    best: dict[int, Trial] = {}
    for t in sorted((t for t in tries if t is not None), key=lambda t: t.estimate_s):
        best.setdefault(t.point.num_microbatches, t)
    return list(best.values())


def place_once(request: Request, found: Draft) -> None:
    """One choice of degrees and one placement at the point that was found, nothing scored."""
    search = found.search
    if found.winner != "load-driven":
        search = replace(search, eta=ETAS[0], theta=THETAS[0])
    placed_at(request, point_again(request, search, found.num_microbatches))
