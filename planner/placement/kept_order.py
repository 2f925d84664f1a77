"""Placement that keeps the order of the input: `--reorder none` and `--reorder window:K`.

Some recipes depend on the order of rows. `none`: microbatch numbers never fall along the input,
so the input is cut into runs of consecutive rows and each run is one microbatch. `window:K`: each
run of K input rows gets microbatches of its own, and only inside it rows go anywhere. Both cut
the batch into segments, give each as many microbatches as its share of the load asks for, and
place each by itself. What the cap forbids is cut finer.

Source: our own derivation.
"""

from dataclasses import replace

import numpy as np

from hydraplan.model import FloatArray, IntArray
from hydraplan.planheader import reorder_window
from hydraplan.planner.placement.cost_table import CostTable
from hydraplan.planner.placement.place import Placement, place
from hydraplan.planner.placement.sizing import Sized

Segment = tuple[int, int, int]
"""First and last-plus-one sequence, and number of microbatches."""


def place_in_order(
    found: Sized,
    table: CostTable,
    length_tokens: IntArray,
    row: IntArray,
    reorder: str,
    num_ranks: int,
    num_microbatches: int,
    cap_tokens: int,
    slow: FloatArray | None,
) -> Placement | None:
    """As `place.place`; the number of microbatches may come out above what was asked.

    Args:
        reorder: `none` or `window:K`.
        row: Row of the batch of each sequence, ascending; windows count rows, those without a
            place too.
    """
    work_s = found.load_s * table.degrees[found.level]
    if reorder == "none":
        waiting = _runs(work_s, num_microbatches)
    else:
        waiting = _windows(work_s, row, reorder_window(reorder) or 1, num_microbatches)
    parts: list[Placement] = []
    while waiting:
        start, stop, count = waiting.pop(0)
        part = slice(start, stop)
        placed = place(
            _part(found, part),
            replace(table, bucket=table.bucket[part]),
            length_tokens[part],
            num_ranks,
            count,
            cap_tokens,
            slow,
        )
        if placed is not None:
            parts.append(placed)
        elif reorder != "none" and count < stop - start:
            waiting.insert(0, (start, stop, count + 1 + count // 8))
        elif stop - start == 1:
            return None
        else:
            middle = (start + stop) // 2
            waiting[:0] = [(start, middle, 1), (middle, stop, 1)]
    return _joined(parts)


def _runs(work_s: FloatArray, count: int) -> list[Segment]:
    """So many runs of consecutive rows of about equal work, one microbatch each."""
    middle_s = np.cumsum(work_s) - work_s / 2
    run = np.minimum(count - 1, (middle_s * count / work_s.sum()).astype(np.int64))
    first = np.flatnonzero(np.diff(run, prepend=-1))
    return [(int(a), int(b), 1) for a, b in zip(first, [*first[1:], len(run)], strict=True)]


def _windows(work_s: FloatArray, row: IntArray, size: int, count: int) -> list[Segment]:
    """Windows of `size` rows, with microbatches by their share of the work."""
    first = np.flatnonzero(np.diff(row // size, prepend=-1))
    stops = [*first[1:], len(row)]
    share = np.add.reduceat(work_s, first) / work_s.sum() * count
    counts = np.maximum(1, np.rint(share)).astype(np.int64)
    return [(int(a), int(b), int(n)) for a, b, n in zip(first, stops, counts, strict=True)]


def _part(found: Sized, part: slice) -> Sized:
    names = ("level", "load_s", "rows", "ulysses_size", "ring_size")
    return Sized(**{name: getattr(found, name)[part] for name in names})


def _joined(parts: list[Placement]) -> Placement:
    """The segments one after the other."""
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
