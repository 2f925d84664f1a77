"""The memory-sized plan as a candidate of the search, so that the result is never slower.

In any order it is the baseline itself (`memory_ffd`), in the best of the open microbatch orders.
Where rows keep their order, its degrees are placed as kept orders place theirs. Where the search
looks at the order of the rows as well, both are candidates.

Which of them stands against a load-driven plan is not said here (`hydra`).

Source: our own.
"""

from dataclasses import replace

import numpy as np

from hydraplan.errors import Infeasible
from hydraplan.planner.placement.draft import Draft, Request, draft
from hydraplan.planner.placement.memory_ffd import place_memory_sized
from hydraplan.planner.placement.row_order import tries_row_order
from hydraplan.planner.placement.trial import placed_at_degrees


def memory_candidates(request: Request) -> list[Draft | None]:
    """The memory-sized plan as asked, and that in the order of the rows where it is tried too.

    None where it needs more microbatches than there may be.
    """
    asked = memory_candidate(request)
    if not tries_row_order(request):
        return [asked]
    return [asked, memory_candidate(replace(request, reorder="none"))]


def memory_candidate(request: Request) -> Draft | None:
    """The memory-sized plan in its best order; None if it needs more microbatches than fixed."""
    if request.reorder == "batch":
        try:
            return place_memory_sized(request)
        except Infeasible:
            return None
    return _in_kept_order(request)


def last_memory_candidate(request: Request) -> Draft | None:
    """For want of any other plan in free order: as kept orders place it.

    They miss no room where slots are few. One window of the whole batch first, then rows as they
    come: so no number of microbatches is refused here that `--reorder none` meets. Tokens beyond
    all slots are not tried.
    """
    fixed = request.microbatches
    if request.reorder != "batch" or fixed is None or fixed < request.window.memory:
        return None
    rows = int(request.sequences.sequence_id[-1]) - request.first_row + 1
    kept = (_in_kept_order(replace(request, reorder=by)) for by in (f"window:{rows}", "none"))
    return next(filter(None, kept), None)


def memory_times_s(request: Request, alone: bool) -> set[float]:
    """Seconds that the memory-sized candidate may have; NaN where none is known.

    That in any order, or the faster one of it and that in the order of the rows, if it stood.

    Args:
        alone: No load-driven plan was found.
    """
    asked, *in_rows = memory_candidates(request)
    kept = in_rows[0] if in_rows else None
    if asked is None and kept is None and alone:
        asked = last_memory_candidate(request)
    asked_s, kept_s = (float("nan") if d is None else d.iteration_s for d in (asked, kept))
    return {asked_s, float(np.fmin(asked_s, kept_s))}


def _in_kept_order(request: Request) -> Draft | None:
    """The memory-sized plan where rows keep their order."""
    found = request.sized(request.table.floor[request.table.bucket])
    placement = placed_at_degrees(request, found, request.microbatches or request.window.memory)
    if placement is None:
        return None
    exact = request.sized(placement.level)
    places = placement.microbatch, placement.first_rank, len(placement.peak_s)
    return draft(request, exact, *places, "memory")
