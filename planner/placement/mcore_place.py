"""Megatron-Core's schedulers as strategies: their places, our costs; their limits, refused.

A scheduler decides microbatches, ranks and degrees; the shape (ulysses_size, ring_size) of each
degree and all seconds are ours. What a scheduler cannot do (a number of microbatches from
outside, fewer groups, rows kept near their place) is refused, never half done.
"""

import numpy as np

from hydraplan.errors import Infeasible, many
from hydraplan.layout import legal_degrees
from hydraplan.model import IntArray
from hydraplan.planner.placement.draft import Draft, Request, draft
from hydraplan.planner.placement.mcore_main import schedule_main
from hydraplan.planner.placement.mcore_v1 import schedule_v1
from hydraplan.planner.placement.mcore_v2 import schedule_v2
from hydraplan.planner.placement.sizing import sized

PACKING = {"mcore-v1": schedule_v1, "mcore-v2": schedule_v2}
"""Generations that pack, and know a smallest degree and a multiple of microbatches."""


def place_mcore(strategy: str, request: Request) -> Draft:
    """The strategies `mcore-main`, `mcore-v1` and `mcore-v2`.

    Raises:
        Infeasible: The genuine scheduler fails on this batch, or knows no such request.
    """
    microbatch, first_rank, degree = _schedule(strategy, request)
    count = int(microbatch.max()) + 1
    if request.microbatches not in (None, count):
        raise Infeasible(
            f"{strategy} schedules this batch as {many(count, 'microbatch')},"
            " --microbatches asks"
            f" {request.microbatches}; it chooses their number by itself",
            f"use --microbatches auto or {count}",
        )
    if count % request.microbatch_multiple:
        raise Infeasible(
            f"{strategy} schedules this batch as {many(count, 'microbatch')}, no multiple of"
            f" {request.microbatch_multiple}, and knows no --microbatch-multiple",
            "use mcore-v1 or mcore-v2",
        )
    level = np.searchsorted(legal_degrees(request.cost.ranks), degree)
    for i in np.flatnonzero(~request.table.offered[level])[:1]:
        raise Infeasible(
            f"{strategy} puts sequence {request.sequences.sequence_id[i]} on degree {degree[i]},"
            " which --min-degree or --max-groups rules out; it does not know that limit",
            "lift the limit, or use another strategy",
        )
    found = sized(
        request.cost,
        request.sequences.length_tokens,
        level,
        request.cap_tokens,
    )
    return draft(request, found, microbatch, first_rank, count, "memory")


def place_mcore_once(strategy: str, request: Request, found: Draft) -> None:
    """The scheduler alone, nothing sized or scored."""
    _schedule(strategy, request)


def _schedule(strategy: str, request: Request) -> tuple[IntArray, IntArray, IntArray]:
    """Microbatch, first rank and degree of each sequence, microbatches numbered as genuine."""
    if request.reorder != "batch":
        raise Infeasible(
            f"{strategy} sorts the whole batch by length, --reorder {request.reorder} cannot be"
            " kept",
            "use --reorder batch, or another strategy",
        )
    sequences, ranks, cap = request.sequences, request.cost.ranks, request.cap_tokens
    if strategy not in PACKING:
        return schedule_main(sequences.length_tokens, ranks, cap, sequences.sequence_id)
    return PACKING[strategy](
        sequences.length_tokens,
        ranks,
        cap,
        request.min_degree,
        request.microbatch_multiple,
        sequences.sequence_id,
    )
