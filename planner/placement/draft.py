"""What every strategy is asked and what it answers, and how a draft is scored."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from hydraplan.cost import CostModel
from hydraplan.metrics import balance, shares
from hydraplan.model import IntArray, Schedule, Search, Sequences
from hydraplan.planner.pipeline.order import microbatch_order
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.planner.placement.cost_table import CostTable
from hydraplan.planner.placement.window import Window
from hydraplan.slots import SlotTimes, slot_times


@dataclass(frozen=True, slots=True)
class Request:
    """One batch to place. `sequences` holds only rows that get a place, places still open.

    `microbatches` None leaves their number to the strategy, `window` holds the counts that
    leave balance open. `orders` are the microbatch orders to choose from. `schedule(stages,
    microbatches)` gives the op order.
    """

    cost: CostModel
    table: CostTable
    sequences: Sequences
    cap_tokens: int
    window: Window
    microbatches: int | None
    orders: tuple[str, ...]
    schedule: Callable[[int, int], Schedule]


@dataclass(frozen=True, slots=True)
class Draft:
    """A placement with its score: sequences placed, microbatches numbered in execution order."""

    sequences: Sequences
    num_microbatches: int
    slots: SlotTimes
    microbatch_order: str
    iteration_s: float
    slot_imbalance: float
    winner: str
    search: Search


def one_candidate(window: Window) -> Search:
    """Search of a strategy that tries one placement and has no target."""
    nan = float("nan")
    return Search(
        window_min=window.low,
        window_max=window.high,
        load_target_s=nan,
        theta=nan,
        eta=nan,
        num_candidates=1,
        num_rejected=0,
        load_driven_s=nan,
        load_driven_slot_imbalance=nan,
        fastest_load_driven_s=nan,
        memory_s=nan,
    )


def draft(
    request: Request,
    level: IntArray,
    microbatch: IntArray,
    first_rank: IntArray,
    num_microbatches: int,
    winner: str,
) -> Draft:
    """Put the microbatches into the best of the requested orders and score the result."""
    if request.microbatches is None:  # a microbatch that got nothing is none
        used, microbatch = np.unique(microbatch, return_inverse=True)
        num_microbatches = len(used)
    load_s, rows, u, r = request.table.at(level)
    placed = replace(
        request.sequences,
        microbatch=microbatch,
        first_rank=first_rank,
        degree=np.int64(1) << level,
        ulysses_size=u,
        ring_size=r,
        rank_tokens_max=rows,
        predicted_s=load_s,
    )
    built = slot_times(request.cost, placed, num_microbatches)
    built_load_s = built.load_s
    schedule = request.schedule(request.cost.pp, num_microbatches)
    best = None
    for name in request.orders:
        order = microbatch_order(name, built_load_s)
        slots = reordered(built, order)
        iteration_s = shares(simulate(slots, schedule))["iteration_s"]
        if best is None or iteration_s < best[0]:
            best = iteration_s, name, order, slots
    assert best is not None
    iteration_s, name, order, slots = best
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    return Draft(
        sequences=in_global_order(replace(placed, microbatch=position[microbatch])),
        num_microbatches=num_microbatches,
        slots=slots,
        microbatch_order=name,
        iteration_s=iteration_s,
        slot_imbalance=balance(built_load_s, float("nan"))["slot_imbalance"],
        winner=winner,
        search=one_candidate(request.window),
    )


def reordered(slots: SlotTimes, order: IntArray) -> SlotTimes:
    """The same slots with microbatches in another order."""
    return replace(
        slots,
        op_s=slots.op_s[..., order],
        rows=slots.rows[:, order],
        component=slots.component[:, order],
        boundary_s=slots.boundary_s[:, order],
    )


def in_global_order(placed: Sequences) -> Sequences:
    """Number the sequences of each microbatch in the order that every rank runs them.

    Degree descending, then sequence_id: members of aligned groups then arrive together, and
    one order for all ranks keeps their collectives from crossing.
    """
    by = np.lexsort((placed.sequence_id, -placed.degree, placed.microbatch))
    microbatch = placed.microbatch[by]
    starts = np.searchsorted(microbatch, microbatch)
    order = np.empty_like(by)
    order[by] = np.arange(len(by)) - starts
    return replace(placed, order=order)
