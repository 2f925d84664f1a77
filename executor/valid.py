"""Is this plan fit to run: every invariant holds, and its ops can be lowered to messages.

Needs no torch, so that simulation and real execution ask the same questions.
"""

from pathlib import Path

from hydraplan.errors import Infeasible, InputError, InvalidPlan
from hydraplan.files.planfile import Plan, read_batch
from hydraplan.invariants import check_plan
from hydraplan.model import BatchPlan
from hydraplan.planheader import PlanHeader
from hydraplan.planner.pipeline.lowering import Steps, lower

NEEDED_INVARIANTS = frozenset({"accounted", "degree", "inside", "schedule"})
"""Without these promises workers could wait for each other for ever."""


def read_valid_batch(plan: Plan, batch: int) -> BatchPlan:
    """Read one batch and refuse it unless it obeys every invariant it promises."""
    missing = sorted(NEEDED_INVARIANTS - set(plan.header.invariants))
    if missing:
        raise InvalidPlan(
            f"{plan.path} does not promise {', '.join(missing)}, which execution rests on",
            "make the plan again with this version",
        )
    found = read_batch(plan, batch)
    broken = check_plan(plan.header, found)
    if broken:
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        raise InvalidPlan(
            f"{plan.path} is not valid: {broken[0]}{more}", f"see hydraplan validate {plan.path}"
        )
    return found


def lower_batch(path: Path, header: PlanHeader, batch: BatchPlan) -> Steps:
    """What every stage does, messages included.

    Raises:
        InputError: Forwards are to run at the same time as backwards, or on two model copies.
        InvalidPlan: The op order of some stage can never go on.
    """
    cost = header.cost_model()
    if cost.route_name == "both" or any(op.joined for ops in batch.schedule for op in ops):
        raise InputError(
            f"{path}, batch {batch.batch}: pipeline {batch.pipeline} runs forwards and backwards"
            " at the same time, which is simulated only",
            "plan with another --pipeline, zb-v for one, or use execute --simulate",
        )
    try:
        return lower(batch.schedule, cost.route, batch.num_microbatches)
    except Infeasible as error:
        raise InvalidPlan(f"{path}, batch {batch.batch}: {error}") from None
