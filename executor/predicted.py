"""What a plan predicts of a batch, to stand beside what is measured: times, memory, bytes."""

from typing import NamedTuple

from hydraplan.cost import CostModel
from hydraplan.metrics import planned_live_peaks
from hydraplan.migration import NO_MOVES, Moves
from hydraplan.model import BatchPlan, FloatArray, IntArray, Timeline
from hydraplan.moved_work import moved_bytes
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.slots import slot_rows, slot_times
from hydraplan.traffic import rank_bytes


class Predicted(NamedTuple):
    """Noise-free op times, most tokens held (stages, lanes), bytes sent (3, stages, lanes)."""

    timeline: Timeline
    live_peaks: FloatArray
    sent_bytes: IntArray


def predict(cost: CostModel, batch: BatchPlan, moves: Moves = NO_MOVES) -> Predicted:
    """What the cost model and the formulas say of a batch of a valid plan.

    Memory and bytes with these moves, times as planned.
    """
    placed = batch.sequences.placed()
    sent = rank_bytes(
        cost, placed, slot_rows(placed, cost.ranks, batch.num_microbatches), batch.schedule
    )
    sent[1] += moved_bytes(cost, placed, moves)
    slots = slot_times(cost, placed, batch.num_microbatches)
    return Predicted(
        timeline=simulate(slots, batch.schedule),
        live_peaks=planned_live_peaks(cost, batch, moves),
        sent_bytes=sent,
    )
