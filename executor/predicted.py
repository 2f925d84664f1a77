"""What a plan predicts of a batch, to stand beside what is measured: times, memory, bytes."""

from typing import NamedTuple

from hydraplan.cost import CostModel
from hydraplan.metrics import planned_live_peaks
from hydraplan.model import BatchPlan, FloatArray, IntArray, Timeline
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.slots import slot_times
from hydraplan.traffic import rank_bytes


class Predicted(NamedTuple):
    """Noise-free op times, most tokens held (stages, lanes), bytes sent (3, stages, lanes)."""

    timeline: Timeline
    live_peaks: FloatArray
    sent_bytes: IntArray


def predict(cost: CostModel, batch: BatchPlan) -> Predicted:
    """What the cost model and the formulas say of a batch of a valid plan."""
    placed = batch.sequences.placed()
    slots = slot_times(cost, placed, batch.num_microbatches)
    return Predicted(
        timeline=simulate(slots, batch.schedule),
        live_peaks=planned_live_peaks(cost, batch),
        sent_bytes=rank_bytes(cost, placed, slots.rows, batch.schedule),
    )
