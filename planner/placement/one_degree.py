"""One degree for all sequences of a batch: every legal one is tried, the fastest plan wins.

Where their number is open, more microbatches than packing asks for are tried as well, for batches
that are not large. A pool of R ranks then is R // degree groups, aligned blocks of lanes; with a
degree that does not divide R the last lanes stay empty. How sequences are shared out over groups
and microbatches is the caller's.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from hydraplan.errors import Infeasible, many
from hydraplan.layout import legal_degrees
from hydraplan.model import IntArray
from hydraplan.planner.placement.draft import Built, Draft, Request, Timing, build, settled, timed
from hydraplan.planner.placement.sizing import Sized, memory_floor
from hydraplan.planner.placement.window import LOOK, counts_from

Packed = tuple[IntArray, IntArray, int]
"""Microbatch and group of every sequence, and the number of microbatches."""

Pack = Callable[[Request, Sized, int], Packed | None]
"""Shares out sequences of one degree over so many groups; None where a slot would not hold them."""


BUDGET = 20_000
"""Sequences plus slots that the packings with more microbatches may add up to at each degree."""


def fastest_degree(request: Request, name: str, pack: Pack) -> Draft:
    """The fastest plan among those with one degree, under the requested orders.

    Raises:
        Infeasible: No degree holds all sequences, or none in the fixed number of microbatches.
    """
    best: tuple[Timing, Built] | None = None
    most = request.most_microbatches
    tried = rejected = 0
    for found, degree in degrees_that_hold(request):
        for packed in _packings(request, found, request.cost.ranks // degree, pack):
            tried += 1
            if packed is None or packed[2] > most:
                rejected += 1
                continue
            microbatch, group, count = packed
            whole = build(request, found, microbatch, group * degree, count)
            timing = timed(request, whole, request.orders)
            if best is None or timing.iteration_s < best[0].iteration_s:
                best = timing, whole
    if best is None:
        raise _nothing_fits(request, name, tried, most)
    made = settled(request, best[1], best[0], "memory")
    return replace(made, search=replace(made.search, num_candidates=tried, num_rejected=rejected))


def most_packed(ranks: int) -> int:
    """How many packings are tried at the most, on so many ranks."""
    return len(legal_degrees(ranks)) * (1 + LOOK)


def _packings(
    request: Request, found: Sized, num_groups: int, pack: Pack
) -> Iterator[Packed | None]:
    """That in the fewest microbatches, or as many as asked for; then those in more of them."""
    first = pack(request, found, num_groups)
    yield first
    most = request.most_microbatches
    if first is None or request.microbatches is not None or first[2] > most:
        return
    wanted = request.allowed(counts_from(first[2], request.cost.pp, most))
    counts = [m for m in wanted if m > first[2]]
    slots = len(request.sequences) + request.cost.ranks * first[2]
    for count in counts[: BUDGET // slots]:
        yield pack(replace(request, microbatches=count), found, num_groups)


def degrees_that_hold(request: Request) -> Iterator[tuple[Sized, int]]:
    """All sequences at one degree, and the degree, for each offered one that holds every one."""
    length, offered = request.sequences.length_tokens, request.table.offered
    floor = memory_floor(request.cost, length, request.cap_tokens, offered)
    degrees = legal_degrees(request.cost.ranks)
    for level in range(int(floor.max()), len(degrees)):
        if offered[level]:
            found = request.sized(np.full(len(length), level))
            if (found.level == level).all():
                yield found, int(degrees[level])


def pack_once(request: Request, found: Draft, pack: Pack) -> None:
    """Share out again at the degree that was found, nothing scored."""
    request = replace(request, microbatches=found.num_microbatches)
    degree = found.sequences.degree
    level = np.searchsorted(legal_degrees(request.cost.ranks), degree)
    pack(request, request.sized(level), request.cost.ranks // int(degree[0]))


def _nothing_fits(request: Request, name: str, tried: int, most: int) -> Infeasible:
    cap, multiple = request.cap_tokens, request.microbatch_multiple
    if not tried:
        return Infeasible(
            f"{name}: no single degree holds every sequence within {cap} tokens",
            "use a larger --max-tokens-per-rank, or another strategy",
        )
    return Infeasible(
        f"{name}: none of {many(tried, 'degree')} keeps every slot within {cap} tokens in"
        f" {'' if request.microbatches else 'up to '}"
        + many(request.microbatches or most, "microbatch")
        + (f", a multiple of {multiple}" if multiple > 1 else ""),
        "use --microbatches auto, or more"
        if request.microbatches
        else "use a larger --max-tokens-per-rank"
        + (", or a smaller --microbatch-multiple" if multiple > 1 else ", or smaller batches"),
    )
