"""What `plan` and `show` say of a whole plan, the same words and the same object."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hydraplan.model import BatchPlan, BatchSummary, FloatArray, IntArray, StageSkew
    from hydraplan.planheader import PlanHeader


def worse(known: "BatchPlan | None", batch: "BatchPlan") -> "BatchPlan":
    """The batch of less efficiency, of which the summary tells more; the first of equal ones."""
    if known is None or batch.figures["efficiency"] < known.figures["efficiency"]:
        return batch
    return known


def slot_loads(header: "PlanHeader", batch: "BatchPlan") -> "FloatArray":
    """Load of every slot of a batch, seconds, (lanes, microbatches)."""
    from hydraplan.slots import slot_times

    placed = batch.sequences.placed()
    return slot_times(header.cost_model(), placed, batch.num_microbatches).load_s


def print_summary(
    header: "PlanHeader",
    summaries: Sequence["BatchSummary"],
    skews: Sequence["StageSkew"],
    held: Sequence["IntArray"],
    worst: "BatchPlan",
) -> None:
    """What limits the worst batch, then header, batches, stages, memory and figures of all."""
    from hydraplan.planner.limits import what_limits
    from hydraplan.views.limits_text import print_limits
    from hydraplan.views.loads_text import flops_object, flops_text
    from hydraplan.views.plan_text import print_plan

    print_limits(worst.summary(), what_limits(header, worst))
    work = f"batch {worst.batch}: {flops_text(flops_object(header, worst))}"
    print_plan(header, summaries, skews, held, work)


def summary_object(
    path: Path,
    header: "PlanHeader",
    summaries: Sequence["BatchSummary"],
    skews: Sequence["StageSkew"],
    held: Sequence["IntArray"],
    worst: "BatchPlan",
) -> dict[str, object]:
    """The same for `--json`; `limits`, `microbatches` and `flops` are of the worst batch."""
    from hydraplan.planner.limits import what_limits
    from hydraplan.views.limits_text import limits_object
    from hydraplan.views.loads_text import flops_object
    from hydraplan.views.microbatch_text import microbatch_rows
    from hydraplan.views.plan_text import plan_object

    number = worst.batch
    causes = limits_object(what_limits(header, worst))
    rows = microbatch_rows(worst, slot_loads(header, worst))
    return {
        **plan_object(path, header, summaries, skews, held),
        "limits": {"batch": number, "causes": causes},
        "microbatches": {"batch": number, "rows": rows},
        "flops": {"batch": number, **flops_object(header, worst)},
    }
