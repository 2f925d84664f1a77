"""Tight filling: many fillings of a small batch, for the least limit that one of them keeps.

One filling (`fill`) takes the heaviest sequence first and never looks back; with few sequences
what is left at the end decides the fullest slot. So a small batch is filled many times, each
time under a limit below the fullest slot so far: in an order that is a little off, with some
sequences one degree higher, with more or less rank-work allowed, on the least or on the most
loaded block with room. The best dozen are kept, none more than 1% above the best. Every filling
costs a scan of the pool for each sequence, which is why large batches are left alone.

What is least here is the fullest slot, loads summed; whether the plan is better is for the
search to say, which scores it as any other placement.

Source: our own; randomised list scheduling with a falling bound is standard for bin packing.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.compiled import compiled
from hydraplan.planner.placement.degrees import falling_load_s
from hydraplan.planner.placement.draft import Request
from hydraplan.planner.placement.forest import filled_forest
from hydraplan.planner.placement.place import Placement
from hydraplan.planner.placement.search import Point, filling_point
from hydraplan.planner.placement.sibling_swap import swapped

SMALL = 256
"""Sequences plus slots up to which a batch is filled many times."""
BUDGET, MOST = 2_000_000, 2_000
"""Sequences times slots that the fillings of a batch may add up to; fillings at the most."""
SPREAD, KEPT = 1.01, 12
"""Fullest slot over the best one's, up to which fillings are worth scoring; how many."""
COUNTS = 3
"""Numbers of microbatches that share the budget and what is kept."""
NEAR, FAR = 1.002, 4.0
"""Fullest slot over the least conceivable: not worth more time; where to start from nothing."""
PLAIN = 6
"""Fillings in order of work and at lowest degrees, before the others."""
OFF, HIGHER = 0.4, 0.12
"""How far an order is off, as the deviation of log work, and which share goes a degree up."""
MORE_WORK = (0.1, 0.3, 3.0)
"""Rank-work that a degree may cost beyond the least; each filling draws one of them."""


class Lot(NamedTuple):
    """A batch as it is filled, N sequences on R lanes.

    `load_s`: seconds on each member, infinite where a level may not be used, (N, levels).
    `rows`: rows of the fullest member, same shape. `slow`: slowness of every lane, (R,).
    """

    load_s: FloatArray
    rows: IntArray
    degrees: IntArray
    slow: FloatArray
    cap_tokens: int


class Draws(NamedTuple):
    """What the fillings differ in, a row each: F fillings.

    `order`: sequences in the order they are placed, (F, N). `first`, `last`: levels that a
    sequence may take, (F, N). `share`: where the limit lies between the least conceivable, 0, and
    the best so far, 1, (F,). `tightly`: whether the most loaded block with room is taken, not the
    least, (F,).
    """

    order: IntArray
    first: IntArray
    last: IntArray
    share: FloatArray
    tightly: NDArray[np.bool_]


def tight_fillings(request: Request, peak_s: dict[int, float]) -> list[tuple[Point, Placement]]:
    """The tightest fillings of a small batch in some numbers of microbatches, below `peak_s`.

    Args:
        peak_s: Fullest slot so far for each number of microbatches, fixed cost excluded,
            infinite where nothing is known; the most promising number first.

    Source: our own.
    """
    count, ranks = len(request.sequences), request.cost.ranks
    counts = [m for m in peak_s if is_small(request, m)][:COUNTS]
    if request.reorder != "batch" or not count or not counts:
        return []
    lot, found = lot_of(request), []
    for m in counts:
        fillings = min(MOST, BUDGET // (len(counts) * count * ranks * m))
        for limit_s, *places in tightest(lot, m, peak_s[m], fillings)[: KEPT // len(counts)]:
            found.append((_point(request, m, limit_s), _placement(request, lot, m, *places)))
    return found


def is_small(request: Request, num_microbatches: int | None = None) -> bool:
    """Whether a batch is filled many times, in so many microbatches or the fewest there may be."""
    count = num_microbatches or request.microbatches or request.window.memory
    return len(request.sequences) + request.cost.ranks * count <= SMALL


def lot_of(request: Request) -> Lot:
    """Exact loads and rows of every sequence at each level that is offered, holds it and pays."""
    table, count = request.table, len(request.sequences)
    pays = np.isfinite(falling_load_s(table))[table.bucket]
    sizes = [request.sized(np.full(count, level)) for level in range(table.num_levels)]
    holds = np.stack([found.level for found in sizes], axis=1) == np.arange(table.num_levels)
    load_s = np.stack([found.load_s for found in sizes], axis=1)
    return Lot(
        load_s=np.where(pays & holds & table.offered, load_s, np.inf),
        rows=np.stack([found.rows for found in sizes], axis=1),
        degrees=table.degrees,
        slow=request.cost.slow,
        cap_tokens=request.cap_tokens,
    )


def least_s(lot: Lot, num_microbatches: int) -> float:
    """No fullest slot is below this: the least mean, and the least splittable sequence."""
    work_s = (lot.load_s * lot.degrees).min(axis=1).sum()
    mean_s = work_s / (num_microbatches * (1 / lot.slow).sum())
    return max(float(mean_s), float(lot.load_s.min(axis=1).max() * lot.slow.min()))


def tightest(
    lot: Lot, num_microbatches: int, peak_s: float, fillings: int
) -> list[tuple[float, IntArray, IntArray, IntArray]]:
    """The best of so many fillings that stay below `peak_s`, the least fullest slot first.

    Returns:
        For each the limit that it kept, seconds; level, microbatch, first rank of all sequences.
    """
    low_s = least_s(lot, num_microbatches)
    if not np.isfinite(low_s) or peak_s <= NEAR * low_s:
        return []
    high_s = peak_s if np.isfinite(peak_s) else FAR * low_s
    kept, kept_s, limit_s = fill_many(lot, draws(lot, fillings), num_microbatches, low_s, high_s)
    best = [at for at in np.argsort(kept_s, kind="stable") if kept_s[at] < np.inf]
    return [(float(limit_s[at]), *kept[at]) for at in best if kept_s[at] <= SPREAD * kept_s.min()]


def draws(lot: Lot, fillings: int) -> Draws:
    """What so many fillings differ in, always the same for a batch; the first ones are plain."""
    rng = np.random.default_rng(0)
    count, levels = lot.rows.shape
    allowed, work_s = np.isfinite(lot.load_s), lot.load_s * lot.degrees
    least_work_s, lowest = work_s.min(axis=1), allowed.argmax(axis=1)
    above = allowed & (np.arange(levels) > lowest[:, None])
    next_level = np.where(above.any(axis=1), above.argmax(axis=1), lowest)
    within = work_s[None] <= (1 + np.array(MORE_WORK))[:, None, None] * least_work_s[:, None]
    highest = levels - 1 - within[..., ::-1].argmax(axis=2)
    off = OFF * rng.random((fillings, 1)) * rng.standard_normal((fillings, count))
    rises = rng.random((fillings, count)) < HIGHER * rng.random((fillings, 1))
    off[:PLAIN], rises[:PLAIN] = 0.0, False
    first = np.where(rises, next_level, lowest)
    return Draws(
        order=np.argsort(-np.log(least_work_s) - off, axis=1, kind="stable"),
        first=first,
        last=np.maximum(first, highest[rng.integers(len(MORE_WORK), size=fillings)]),
        share=np.sqrt(rng.random(fillings)),
        tightly=rng.random(fillings) < 0.5,
    )


@compiled
def fill_many(
    lot: Lot, draws: Draws, num_microbatches: int, low_s: float, peak_s: float
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Fill again and again under a limit that falls with the fullest slot.

    Returns:
        The best fillings: level, microbatch and first rank of every sequence, (KEPT, 3, N); their
        fullest slots, no two alike, infinite where there is none, and the limits that they kept,
        (KEPT,).
    """
    ranks, levels, count = len(lot.slow), len(lot.degrees), len(lot.rows)
    slowest = np.zeros((levels, ranks))  # of each block, by its first lane
    for k in range(levels):
        for lane in range(ranks):
            start = lane // lot.degrees[k] * lot.degrees[k]
            slowest[k, start] = max(slowest[k, start], lot.slow[lane])
    held_s = np.zeros((num_microbatches, ranks))
    held_rows = np.zeros((num_microbatches, ranks), np.int64)
    here, kept = np.zeros((3, count), np.int64), np.zeros((KEPT, 3, count), np.int64)
    kept_s, kept_limit_s = np.full(KEPT, np.inf), np.full(KEPT, np.inf)
    for f in range(len(draws.share)):
        limit_s = low_s + draws.share[f] * (peak_s - low_s)
        held_s.fill(0.0)
        held_rows.fill(0)
        if not _fill_once(lot, draws, f, slowest, limit_s, held_s, held_rows, here):
            continue
        reached_s, worst, is_new = 0.0, 0, True
        for m in range(num_microbatches):
            for lane in range(ranks):
                reached_s = max(reached_s, held_s[m, lane])
        for at in range(KEPT):
            worst = at if kept_s[at] > kept_s[worst] else worst
            is_new &= kept_s[at] != reached_s
        if is_new and reached_s < min(peak_s, kept_s[worst]):
            for column in range(3):
                for i in range(count):
                    kept[worst, column, i] = here[column, i]
            kept_s[worst], kept_limit_s[worst] = reached_s, limit_s
            peak_s = min(peak_s, SPREAD * reached_s)
    return kept, kept_s, kept_limit_s


@compiled
def _fill_once(
    lot: Lot,
    draws: Draws,
    f: int,
    slowest: FloatArray,
    limit_s: float,
    held_s: FloatArray,
    held_rows: IntArray,
    here: IntArray,
) -> bool:
    """Fill under the limit as draw f says; whether all sequences found a place."""
    for i in draws.order[f]:
        placed = False
        for k in range(draws.first[f, i], draws.last[f, i] + 1):
            if lot.load_s[i, k] < np.inf:
                placed = _place(
                    lot, i, k, slowest, limit_s, draws.tightly[f], held_s, held_rows, here
                )
                if placed:
                    break
        if not placed:
            return False
    return True


@compiled
def _place(
    lot: Lot,
    i: int,
    k: int,
    slowest: FloatArray,
    limit_s: float,
    tightly: bool,
    held_s: FloatArray,
    held_rows: IntArray,
    here: IntArray,
) -> bool:
    """Put sequence i on a block of level k that stays under the limit and the cap, if any."""
    degree, rows = lot.degrees[k], lot.rows[i, k]
    to_m, to_start, best_s = -1, -1, np.inf
    for m in range(len(held_s)):
        for start in range(0, held_s.shape[1] - degree + 1, degree):
            load_s, filled = 0.0, 0
            for lane in range(start, start + degree):
                load_s = max(load_s, held_s[m, lane])
                filled = max(filled, held_rows[m, lane])
            fits = load_s + lot.load_s[i, k] * slowest[k, start] <= limit_s
            key_s = -load_s if tightly else load_s
            if fits and filled + rows <= lot.cap_tokens and key_s < best_s:
                to_m, to_start, best_s = m, start, key_s
    if to_m < 0:
        return False
    here[0, i], here[1, i], here[2, i] = k, to_m, to_start
    for lane in range(to_start, to_start + degree):
        held_s[to_m, lane] += lot.load_s[i, k] * slowest[k, to_start]
        held_rows[to_m, lane] += rows
    return True


def _placement(
    request: Request,
    lot: Lot,
    num_microbatches: int,
    level: IntArray,
    microbatch: IntArray,
    first_rank: IntArray,
) -> Placement:
    """The filling with its lanes evened out, as `place` does."""
    ranks, row = request.cost.ranks, np.arange(len(level))
    load_s, rows, width = (
        lot.load_s[row, level],
        lot.rows[row, level],
        1 << (ranks - 1).bit_length(),
    )
    node = (width >> level) + (first_rank >> level)
    forest = filled_forest(ranks, num_microbatches, microbatch, node, load_s, rows, request.slow)
    if request.slow is None:
        node = swapped(forest.added, ranks, microbatch, node)
    return Placement(
        level=level,
        microbatch=microbatch,
        first_rank=(node - (width >> level)) << level,
        peak_s=forest.highest[:, 1].copy(),
        mean_s=float(load_s @ lot.degrees[level] / (num_microbatches * (1 / lot.slow).sum())),
    )


def _point(request: Request, num_microbatches: int, limit_s: float) -> Point:
    """The point of the search that fills to this limit."""
    plain = filling_point(request, num_microbatches, 0.0)
    slack = limit_s / (plain.limit_s * request.cost.mean_slow) - 1
    return filling_point(request, num_microbatches, slack)
