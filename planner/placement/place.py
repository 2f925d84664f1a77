"""One placement at chosen degrees: place, repair the hot slots, even out the lanes.

The min-max forest balances best. Where the cap stops it, or is sure to, lazy split packs tighter,
since its blocks fill evenly, and its result goes through the same repair. Lazy heaps break ties
otherwise, which now and then finds room where both have failed. What the cap stops in all three
is no placement; a smaller theta or more microbatches help.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.placement.cost_table import CostTable
from hydraplan.planner.placement.degrees import falling_load_s
from hydraplan.planner.placement.fill import fill
from hydraplan.planner.placement.forest import Forest, filled_forest, new_forest
from hydraplan.planner.placement.lazy_heaps import place_lazy_heaps
from hydraplan.planner.placement.lazy_split import place_lazy_split
from hydraplan.planner.placement.min_max_forest import place_forest
from hydraplan.planner.placement.repair import Options, repair
from hydraplan.planner.placement.sibling_swap import swapped
from hydraplan.planner.placement.sizing import Sized

GOOD_ENOUGH = 1.04
"""Peak over mean at which repair stops: below it the rest of the model is less exact."""
CROWDED = 0.7
"""Share of the cap filled on average from which lazy split comes first: the forest would fail."""


Filled = tuple[Forest, IntArray, IntArray]
"""A forest as filled, microbatch and node of each sequence."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where everything is. `peak_s`: fullest slot of every microbatch, fixed cost excluded."""

    level: IntArray
    microbatch: IntArray
    first_rank: IntArray
    peak_s: FloatArray
    mean_s: float


def place(
    found: Sized,
    table: CostTable,
    length_tokens: IntArray,
    num_ranks: int,
    num_microbatches: int,
    cap_tokens: int,
    slow: FloatArray | None,
    spared: Sequence[int] = (),
) -> Placement | None:
    """Place sequences of known degrees; repair may change a degree. None where the cap forbids.

    `slow` is the slowness of every lane, None where all are nominal; lanes of different speed are
    not swapped. `spared` lanes, slow ones, get nothing where another place is legal; only the
    forest looks for that.
    """
    level, load_s, rows = found.level.copy(), found.load_s.copy(), found.rows.copy()
    asked = load_s, rows, level, num_ranks, num_microbatches, cap_tokens
    filled = float(rows @ table.degrees[level]) / (num_ranks * num_microbatches * cap_tokens)
    ways: list[Callable[..., Filled | None]] = [
        place_forest,
        partial(_as_forest, place_lazy_split),
    ]
    if filled > CROWDED:
        ways.reverse()
    ways.append(partial(_as_forest, place_lazy_heaps))
    if spared:
        ways = [partial(place_forest, spared=spared)]
    placed = next(filter(None, (way(*asked, slow) for way in ways)), None)
    if placed is None:
        return None
    options = Options(table.bucket, falling_load_s(table), length_tokens, table.degrees, cap_tokens)
    return _finished(placed, options, table.fixed_s, level, load_s, rows, slow)


def place_filling(
    table: CostTable,
    length_tokens: IntArray,
    num_ranks: int,
    num_microbatches: int,
    cap_tokens: int,
    slow: FloatArray | None,
    limit_s: float,
    shape: FloatArray | None = None,
    spared: Sequence[int] = (),
) -> Placement | None:
    """Place sequences and choose their degrees meanwhile (`fill`); other arguments as `place`."""
    options = Options(table.bucket, falling_load_s(table), length_tokens, table.degrees, cap_tokens)
    floor = table.floor[table.bucket]
    work_s = (table.load_s * table.degrees)[table.bucket, floor]
    head_start_s = None if shape is None else (1 - shape) * limit_s
    forest = new_forest(num_ranks, num_microbatches, slow, head_start_s, spared)
    level, microbatch, node, rows = (np.zeros_like(floor) for _ in range(4))
    load_s = np.zeros(len(floor))
    order = np.argsort(-work_s, kind="stable")
    places = level, microbatch, node, load_s, rows
    complete, _ = fill(forest, options, order, floor, limit_s, *places)
    if not complete:
        return None
    placed = forest, microbatch, node
    return _finished(placed, options, table.fixed_s, level, load_s, rows, slow, head_start_s)


def _finished(
    placed: Filled,
    options: Options,
    fixed_s: float,
    level: IntArray,
    load_s: FloatArray,
    rows: IntArray,
    slow: FloatArray | None,
    head_start_s: FloatArray | None = None,
) -> Placement:
    """Repaired and swapped."""
    forest, microbatch, node = placed
    num_microbatches, width = len(forest.added), forest.added.shape[1] // 2
    speed = forest.num_ranks if slow is None else float((1 / slow).sum())
    mean_s = float(load_s @ options.degrees[level]) / (speed * num_microbatches)
    if head_start_s is not None:
        mean_s += float(head_start_s.mean())
    stop_s = GOOD_ENOUGH * mean_s + (GOOD_ENOUGH - 1) * fixed_s
    repair(forest, options, microbatch, node, level, load_s, rows, stop_s, len(level))
    if slow is None:
        node = swapped(forest.added, forest.num_ranks, microbatch, node)
    return Placement(
        level=level,
        microbatch=microbatch,
        first_rank=(node - (width >> level)) << level,
        peak_s=forest.highest[:, 1] - (0.0 if head_start_s is None else head_start_s),
        mean_s=float(load_s @ options.degrees[level]) / (speed * num_microbatches),
    )


def _as_forest(
    place_lazily: Callable[..., tuple[IntArray, IntArray] | None],
    load_s: FloatArray,
    rows: IntArray,
    level: IntArray,
    num_ranks: int,
    num_microbatches: int,
    cap_tokens: int,
    slow: FloatArray | None,
) -> Filled | None:
    """What `place_forest` returns, by another structure."""
    placed = place_lazily(load_s, rows, level, num_ranks, num_microbatches, cap_tokens)
    if placed is None:
        return None
    microbatch, first_rank = placed
    width = 1 << (num_ranks - 1).bit_length()
    node = (width >> level) + (first_rank >> level)
    forest = filled_forest(num_ranks, num_microbatches, microbatch, node, load_s, rows, slow)
    return forest, microbatch, node
