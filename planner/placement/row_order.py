"""The search once more, in the order of the rows, for batches that may leave it.

That order is legal where order is free, and where little can be chosen, with few sequences or
under windows, the search now and then finds the better plan there. Small batches of few
sequences are also planned in more microbatches than the window suggests.

Whether the plan becomes better by what is found is not said here (`choice`).

Source: our own.
"""

from dataclasses import replace

from hydraplan.planheader import reorder_window
from hydraplan.planner.placement.choice import choice
from hydraplan.planner.placement.draft import Draft, Request
from hydraplan.planner.placement.rounds import searched
from hydraplan.planner.placement.tight_fill import is_small
from hydraplan.planner.placement.trial import Finalist, Trial, in_orders, time_s
from hydraplan.planner.placement.window import counts_from

FEW = 64
"""Sequences up to which a small batch is also planned in the order of its rows."""


def tries_row_order(request: Request) -> bool:
    """Whether the order of the rows is tried as well: under windows, and with few sequences."""
    if request.reorder == "batch":
        return has_few(request)
    return reorder_window(request.reorder) != 1


def has_few(request: Request) -> bool:
    """Whether the batch has few sequences, and is small in as few microbatches as there may be."""
    return len(request.sequences) <= FEW and is_small(request)


def searched_in_row_order(
    request: Request, memory: Draft | None
) -> tuple[list[Trial | None], list[Finalist]]:
    """What `--reorder none` finds: all that is placed, and the load-driven plan, if any.

    Microbatches may then change places, as the request allows it. Where their number is open, more
    of them are tried than the window suggests (`window.counts_from`); the fastest plan counts.

    Args:
        memory: The memory-sized plan in the order of the rows; where it is faster than the
            balanced plan, the fastest one counts.
    """
    rows_in_order = replace(request, reorder="none", orders=("as-built",))
    tries, runs = searched(rows_in_order)
    _, fastest, chosen = choice(request, runs)
    if memory and chosen and memory.iteration_s < time_s(chosen):
        chosen = fastest
    likely = [chosen] if chosen else []
    for count in _more_counts(request):
        more, runs = searched(replace(rows_in_order, microbatches=count))
        tries += more
        likely += runs
    kept = [in_orders(request, run, request.orders) for run in likely]
    return tries, sorted(kept, key=time_s)[:1]


def _more_counts(request: Request) -> list[int]:
    if request.microbatches is not None or not has_few(request):
        return []
    fewest, most = request.window.memory, request.most_microbatches
    return request.allowed(counts_from(fewest, request.cost.pp, most))
