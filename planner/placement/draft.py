"""What every strategy is asked and what it answers, and how a draft is scored."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from hydraplan.cost import CostModel
from hydraplan.layout import legal_degrees
from hydraplan.metrics import balance
from hydraplan.model import IntArray, Schedule, Search, Sequences
from hydraplan.planner.pipeline.order import microbatch_order
from hydraplan.planner.pipeline.simulator import iteration_s
from hydraplan.planner.placement.cost_table import CostTable
from hydraplan.planner.placement.sizing import Sized, raised, sized
from hydraplan.planner.placement.window import Window
from hydraplan.slots import slot_times


@dataclass(frozen=True, slots=True)
class Request:
    """One batch to place. `sequences` holds only rows that get a place, places still open.

    `microbatches` None leaves their number to the strategy, `window` holds the counts that
    leave balance open; the number is a multiple of `microbatch_multiple`. `min_degree` is the
    lowest degree. `orders` are the microbatch orders to choose from. `reorder` says how far
    rows may leave the order of the input (`planheader.PlanOptions`). `schedule(stages,
    microbatches)` gives the op order.
    """

    cost: CostModel
    table: CostTable
    sequences: Sequences
    cap_tokens: int
    window: Window
    microbatches: int | None
    microbatch_multiple: int
    min_degree: int
    reorder: str
    orders: tuple[str, ...]
    schedule: Callable[[int, int], Schedule]

    def sized(self, level: IntArray) -> Sized:
        """Exact costs of every sequence at its level, or at the next one that holds it."""
        length, stage, cap = self.sequences.length_tokens, self.table.stage, self.cap_tokens
        found = sized(self.cost, length, level, stage, cap)
        return raised(self.cost, length, found, stage, cap, self.table.offered)

    def whole_multiple(self, num_microbatches: int) -> int:
        """The next number of microbatches that the request allows."""
        return -(-num_microbatches // self.microbatch_multiple) * self.microbatch_multiple


@dataclass(frozen=True, slots=True)
class Draft:
    """A placement with its score: sequences placed, microbatches numbered in execution order."""

    sequences: Sequences
    num_microbatches: int
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
    found: Sized,
    microbatch: IntArray,
    first_rank: IntArray,
    num_microbatches: int,
    winner: str,
) -> Draft:
    """Put the microbatches into the best of the requested orders and score the result.

    Where their number was left open, microbatches that got nothing are taken out, as far as
    the wanted multiple allows.
    """
    if request.microbatches is None:
        used, microbatch = np.unique(microbatch, return_inverse=True)
        num_microbatches = request.whole_multiple(len(used))
    placed = replace(
        request.sequences,
        microbatch=microbatch,
        first_rank=first_rank,
        degree=legal_degrees(request.cost.ranks)[found.level],
        ulysses_size=found.ulysses_size,
        ring_size=found.ring_size,
        rank_tokens_max=found.rows,
        predicted_s=found.load_s,
    )
    slots = slot_times(request.cost, placed, num_microbatches)
    load_s = slots.load_s
    schedule = request.schedule(request.cost.pp, num_microbatches)
    scored = []
    for name in request.orders:
        order = microbatch_order(name, load_s)
        scored.append((iteration_s(slots, schedule, order), name, order))
    seconds, name, order = min(scored, key=lambda x: x[0])
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    return Draft(
        sequences=in_global_order(replace(placed, microbatch=position[microbatch])),
        num_microbatches=num_microbatches,
        microbatch_order=name,
        iteration_s=seconds,
        slot_imbalance=balance(load_s, float("nan"))["slot_imbalance"],
        winner=winner,
        search=one_candidate(request.window),
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
