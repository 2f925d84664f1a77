"""Placement that keeps the order of the input: `--reorder window:K` and `--reorder none`.

Some recipes depend on the order of rows. Each K rows of the input in turn are a window; inside it
rows may go anywhere, and no row may run before one of an earlier window. A microbatch may hold
rows of several windows: those of one microbatch are trained together. `none` is `window:1`: the
microbatches are runs of consecutive rows.

The rows, costliest first in every window, are cut into as many runs as there are microbatches
(`runs`), of about equal work and none beyond the cap. Runs that lie inside one window are placed
together, every other one by itself; light microbatches of a window then go to the end of the batch
that is nearer, since they fill and drain a pipeline faster. What does not fit counts for more, and
the batch is cut again; where that ends, first fit in order decides (`fewest_runs`).

Source: our own derivation.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from hydraplan.model import FloatArray, IntArray
from hydraplan.planheader import reorder_window
from hydraplan.planner.placement.draft import Request
from hydraplan.planner.placement.fewest_runs import Fitted, fewest_runs, split_heaviest
from hydraplan.planner.placement.pack_few import pack_few
from hydraplan.planner.placement.place import Placement, place, place_filling
from hydraplan.planner.placement.runs import cut
from hydraplan.planner.placement.sizing import Sized

CUTS = 12
"""How often the batch is cut, each time with more room around what did not fit."""
DEARER = 1.05
"""Factor by which rows that did not fit count for more when the batch is cut again."""

Segment = tuple[int, int, int]
"""First and last-plus-one sequence, and number of microbatches."""


def window_of(request: Request) -> IntArray:
    """Window of each sequence; they count rows of the batch, those without a place too."""
    size = reorder_window(request.reorder) or len(request.sequences)
    return (request.sequences.sequence_id - request.first_row) // size


def place_in_order(request: Request, found: Sized, num_microbatches: int) -> Placement | None:
    """As `place.place` where rows keep their order; a microbatch is empty only if rows are too few.

    Where the request leaves their number open, more microbatches may come out than were asked.
    """
    table, window = request.table, window_of(request)
    work_s = found.load_s * table.degrees[found.level]
    held = found.rows * table.degrees[found.level].astype(float)
    by = np.lexsort((-work_s, window))
    work_by_s, held = work_s[by], held[by]
    capacity = request.cost.ranks * request.cap_tokens
    known: dict[Segment, Placement | None] = {}
    for _ in range(CUTS):
        bounds = cut(work_by_s, held, num_microbatches, capacity)
        if bounds is None:
            break
        segments = _segments(bounds, window)
        for segment in segments:
            if segment not in known:
                known[segment] = _together(request, found, by, segment, bounds)
        for start, stop, _ in (s for s in segments if known[s] is None):
            held[start:stop] *= DEARER
        placed = [p for p in (known[s] for s in segments) if p is not None]
        if len(placed) == len(segments):
            return _taken(_joined(rising_and_falling(placed)), np.argsort(by))
    tight = _tight(request, found, window, work_s, num_microbatches)
    if request.microbatches is not None and len(tight) > num_microbatches:
        return None
    order = np.concatenate([rows for rows, _ in tight])
    return _taken(_joined([placement for _, placement in tight]), np.argsort(order))


def _segments(bounds: IntArray, window: IntArray) -> list[Segment]:
    """Runs, neighbours joined that lie inside the same window."""
    found: list[Segment] = []
    for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        before = found[-1] if found else (0, 0, 0)
        if before[2] and window[before[0]] == window[stop - 1]:
            found[-1] = before[0], stop, before[2] + 1
        else:
            found.append((start, stop, 1))
    return found


def _together(
    request: Request, found: Sized, by: IntArray, segment: Segment, bounds: IntArray
) -> Placement | None:
    """The runs of a segment as one, or each by itself if that would leave a microbatch empty.

    `by` holds the rows in the order that was cut.
    """
    start, stop, count = segment
    placed = _placed(request, found, by[start:stop], count)
    if placed is None or len(np.unique(placed.microbatch)) == count:
        return placed
    at = bounds[np.searchsorted(bounds, start) :][: count + 1]
    runs = [_placed(request, found, by[slice(*run)], 1) for run in pairwise(at)]
    return None if None in runs else _joined([run for run in runs if run is not None])


def rising_and_falling(parts: list[Placement]) -> list[Placement]:
    """The parts, each with its microbatches exchanged: the heavier, the nearer to the middle."""
    total, before, found = sum(len(p.peak_s) for p in parts), 0, []
    for part in parts:
        at = before + np.arange(len(part.peak_s))
        place = np.argsort(np.minimum(at, total - 1 - at), kind="stable")
        runs_at = np.empty_like(place)
        runs_at[np.argsort(part.peak_s, kind="stable")] = place
        peak_s = part.peak_s[np.argsort(runs_at)]
        found.append(replace(part, microbatch=runs_at[part.microbatch], peak_s=peak_s))
        before += len(at)
    return found


def _tight(
    request: Request, found: Sized, window: IntArray, work_s: FloatArray, num_microbatches: int
) -> list[Fitted]:
    """Few microbatches by first fit, at the degrees that were found or whatever else holds."""
    table, length = request.table, request.sequences.length_tokens
    each = np.arange(len(table.degrees))
    sizes = [request.sized(np.full(len(length), level)) for level in each]
    top = sizes[int(np.flatnonzero(table.offered)[-1])]
    others = [request.sized(table.floor[table.bucket]), top]

    def fit(rows: IntArray) -> Placement | None:
        for known in (found, *others):
            placement = _placed(request, known, rows, 1)
            if placement is not None:
                return placement
        part, cap = replace(table, bucket=table.bucket[rows]), request.cap_tokens
        filled = place_filling(part, length[rows], request.cost.ranks, 1, cap, request.slow, np.inf)
        return filled or _exhaustive(request, sizes, rows)

    capacity = request.cost.ranks * request.cap_tokens
    fewest = fewest_runs(fit, length, window, capacity)
    return split_heaviest(fit, fewest, work_s, num_microbatches)


def _placed(request: Request, found: Sized, rows: IntArray, count: int) -> Placement | None:
    """Some rows in so many microbatches of their own."""
    names = ("level", "load_s", "rows", "ulysses_size", "ring_size")
    return place(
        Sized(**{name: getattr(found, name)[rows] for name in names}),
        replace(request.table, bucket=request.table.bucket[rows]),
        request.sequences.length_tokens[rows],
        request.cost.ranks,
        count,
        request.cap_tokens,
        request.slow,
    )


def _exhaustive(request: Request, sizes: list[Sized], rows: IntArray) -> Placement | None:
    """A few rows in one microbatch, whatever the load; `sizes` at every level."""
    degrees, ranks = request.table.degrees, request.cost.ranks
    needs, load_s, level = (
        np.stack([getattr(size, name)[rows] for size in sizes], axis=1)
        for name in ("rows", "load_s", "level")
    )
    possible = (level == np.arange(len(sizes))) & request.table.offered
    packed = pack_few(needs, possible, degrees, ranks, request.cap_tokens)
    if packed is None:
        return None
    level, first_rank = packed
    slot_s = np.zeros(ranks)
    slow = np.ones(ranks) if request.slow is None else request.slow
    for i, (k, first) in enumerate(zip(level.tolist(), first_rank.tolist(), strict=True)):
        lanes = slice(first, first + int(degrees[k]))
        slot_s[lanes] += load_s[i, k] * slow[lanes].max()
    alone = np.zeros_like(level)
    return Placement(level, alone, first_rank, slot_s.max(keepdims=True), float(slot_s.mean()))


def _joined(parts: list[Placement]) -> Placement:
    """The parts one after the other."""
    counts = [len(p.peak_s) for p in parts]
    offsets = np.cumsum([0, *counts[:-1]])
    return Placement(
        level=np.concatenate([p.level for p in parts]),
        microbatch=np.concatenate(
            [p.microbatch + offset for p, offset in zip(parts, offsets, strict=True)]
        ),
        first_rank=np.concatenate([p.first_rank for p in parts]),
        peak_s=np.concatenate([p.peak_s for p in parts]),
        mean_s=float(np.average([p.mean_s for p in parts], weights=counts)),
    )


def _taken(placement: Placement, rows: IntArray) -> Placement:
    """The placement with its sequences in another order."""
    columns = {n: getattr(placement, n)[rows] for n in ("level", "microbatch", "first_rank")}
    return replace(placement, **columns)
