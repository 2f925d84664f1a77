"""What the search tries besides where a batch is small: tight fillings, and one degree for all.

Few sequences leave little to choose, and what is left at the end decides the fullest slot: so
such a batch is filled many times (`tight_fill`). A plan with one degree for all (`one_degree`) is
hard to beat where few sequences make most of the work.

Source: our own.
"""

from dataclasses import replace
from math import inf

from hydraplan.errors import Infeasible
from hydraplan.planner.placement.draft import Draft, Request
from hydraplan.planner.placement.one_degree import fastest_degree
from hydraplan.planner.placement.rounds import expected
from hydraplan.planner.placement.search import first_counts
from hydraplan.planner.placement.static_cp import pack_first_fit
from hydraplan.planner.placement.tight_fill import is_small, tight_fillings
from hydraplan.planner.placement.token_balance import pack_balanced
from hydraplan.planner.placement.trial import Trial, judged


def tight_trials(request: Request, tries: list[Trial | None]) -> list[Trial]:
    """Tight fillings at the numbers of microbatches that look best by what was tried."""
    peak_s: dict[int, float] = {}
    for t in sorted((t for t in tries if t), key=lambda t: expected(request, t)):
        count = t.point.num_microbatches
        peak_s[count] = min(peak_s.get(count, inf), float(t.placement.peak_s.max()))
    counts = peak_s or dict.fromkeys(first_counts(request), inf)
    return [judged(request, *found) for found in tight_fillings(request, counts)]


def one_degree_candidate(request: Request) -> Draft | None:
    """The fastest plan with one degree for all sequences, packed or balanced by tokens.

    None where the batch is not small, rows keep their order, or no degree holds all sequences.
    """
    if request.reorder != "batch" or not is_small(request):
        return None
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
