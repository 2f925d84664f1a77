"""What a plan predicts of a batch, to stand beside what is measured: times, memory, bytes.

Where work moves, an op's seconds hold what its rank waits for partners; own work stands apart.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hydraplan.cost import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, CostModel
from hydraplan.memory_limit import changed_bytes
from hydraplan.metrics import planned_live_peaks
from hydraplan.migration import NO_MOVES, Moves
from hydraplan.model import BatchPlan, FloatArray, IntArray, Op, Schedule, Timeline
from hydraplan.moved_work import moved_bytes
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.planner.policy.moved import moved_slots
from hydraplan.planner.policy.own_work import own_work_s
from hydraplan.planner.policy.rated import rated
from hydraplan.slots import SlotTimes
from hydraplan.traffic import rank_bytes

PASSES = {
    "F": (FORWARD,),
    "B": (INPUT_GRADIENT,),
    "W": (WEIGHT_GRADIENT,),
    "BW": (INPUT_GRADIENT, WEIGHT_GRADIENT),
}
"""What an op is made of."""


class Predicted(NamedTuple):
    """Noise-free op times, most tokens held (stages, lanes), bytes sent (3, stages, lanes).

    `peak_bytes`: of the fullest rank of a stage, for each of its ranks, (stages, lanes).
    """

    timeline: Timeline
    live_peaks: FloatArray
    sent_bytes: IntArray
    peak_bytes: FloatArray


class Loads(NamedTuple):
    """Slots of a batch, and of their seconds each rank's own work, shaped as `SlotTimes.op_s`."""

    slots: SlotTimes
    work_s: FloatArray

    def busy(self, timeline: Timeline) -> Timeline:
        """A run of these slots, whatever lengthened its ops; only own work counts as busy."""
        busy_s = tuple(
            np.stack([self._own(stage, op) * taken for op, taken in zip(ops, times, strict=True)])
            for stage, (ops, times) in enumerate(
                zip(timeline.schedule, timeline.busy_s, strict=True)
            )
        )
        return replace(timeline, busy_s=busy_s)

    def of_ops(self, schedule: Schedule) -> tuple[FloatArray, ...]:
        """Seconds of each rank's own work in every op, (ops, lanes) a stage."""
        return tuple(
            np.stack([self.work_s[self._at(stage, op)].sum(axis=0) for op in ops])
            for stage, ops in enumerate(schedule)
        )

    @staticmethod
    def _at(stage: int, op: Op) -> tuple[list[int], int, int, slice, int]:
        """Where the parts of an op stand in `op_s`."""
        return list(PASSES[op.kind]), stage, op.chunk, slice(None), op.microbatch

    def _own(self, stage: int, op: Op) -> FloatArray:
        """Share of its seconds in which each lane works itself, (lanes,)."""
        at = self._at(stage, op)
        taken_s, own_s = self.slots.op_s[at].sum(axis=0), self.work_s[at].sum(axis=0)
        share: FloatArray = own_s / np.where(taken_s > 0, taken_s, 1.0)
        return share


def loads_of(cost: CostModel, batch: BatchPlan, moves: Moves, factor: FloatArray) -> Loads:
    """A batch with moves, its seconds those of devices as planned.

    Args:
        factor: Times as long as planned that devices take, (stages, lanes), by which it follows how
            long partners wait for each other.
    """
    known = rated(cost, batch.sequences.placed(), batch.num_microbatches, factor)
    slots = moved_slots(known, moves)
    if not moves:
        return Loads(slots, slots.op_s)
    return Loads(slots, np.minimum(own_work_s(known, moves), slots.op_s))


def predict(cost: CostModel, batch: BatchPlan, moves: Moves = NO_MOVES) -> Predicted:
    """What the cost model and the formulas say of a batch of a valid plan with such moves."""
    placed = batch.sequences.placed()
    loads = loads_of(cost, batch, moves, np.ones((cost.pp, cost.ranks)))
    timeline = simulate(loads.slots, batch.schedule)
    sent = rank_bytes(cost, placed, loads.slots.rows, batch.schedule)
    sent[1] += moved_bytes(cost, placed, moves)
    held = changed_bytes(cost, batch, moves, on_gpu=False).sum(axis=0)
    return Predicted(
        timeline=loads.busy(timeline) if moves else timeline,
        live_peaks=planned_live_peaks(cost, batch, moves),
        sent_bytes=sent,
        peak_bytes=np.repeat(held[:, None], cost.ranks, axis=1).astype(float),
    )
