"""How unequal the stages of a plan are, and what that costs.

Layers are whole, embedding and loss lie at the ends, so stages differ even where every slot is
even: the others wait for the costliest in every microbatch. How long is told as the cause
`stage_skew` of a run (`pipeline.causes`): planned work of the costliest stage less the mean. It
stands inside `fill_bubble`, since no placement can change it. The fill without it is not
the difference of the two, being a share of another run's time: the run behind that figure is
repeated with all stages alike.

Nothing here is stored: it follows from the plan.

Source: our choice.
"""

from dataclasses import replace

import numpy as np

from hydraplan.model import BatchPlan, StageSkew
from hydraplan.planheader import PlanHeader
from hydraplan.planner.figures import evened, fill_bubble
from hydraplan.slots import SlotTimes, slot_times


def stage_skew(header: PlanHeader, batch: BatchPlan) -> StageSkew:
    """Seconds of a mean slot on every stage, what the others wait, the fill if all were alike."""
    cost = header.cost_model()
    even = evened(slot_times(cost, batch.sequences.placed(), batch.num_microbatches))
    stage_s = even.op_s.sum(axis=(0, 2))[:, 0, 0]
    return StageSkew(
        batch=batch.batch,
        stage_s=stage_s,
        skew_s=batch.num_microbatches * float(stage_s.max() - stage_s.mean()),
        alike_fill_bubble=fill_bubble(cost, header.options, alike(even), batch.schedule),
    )


def alike(slots: SlotTimes) -> SlotTimes:
    """The same slots on stages that all take the mean of the stages, op by op, chunk by chunk."""
    mean = slots.op_s.mean(axis=1, keepdims=True)
    return replace(
        slots,
        op_s=np.repeat(mean, slots.op_s.shape[1], axis=1),
        grad_sync_s=np.full_like(slots.grad_sync_s, slots.grad_sync_s.mean()),
    )
