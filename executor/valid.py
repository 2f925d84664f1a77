"""Is this plan fit to run: every invariant holds, and no worker would wait for ever.

Needs no torch, so that simulation and real execution ask the same questions.
"""

from pathlib import Path

from hydraplan.errors import InputError, InvalidPlan
from hydraplan.files.planfile import Plan, read_batch
from hydraplan.invariants import check_plan
from hydraplan.model import BatchPlan, Schedule

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


def check_runnable(path: Path, batch: BatchPlan) -> None:
    """Refuse ops that real execution does not do, and op orders that can never finish."""
    for stage, ops in enumerate(batch.schedule):
        for op in ops:
            if op.kind not in ("F", "BW") or op.chunk:
                raise InputError(
                    f"{path}, batch {batch.batch}: stage {stage} runs {op.kind} of chunk"
                    f" {op.chunk}; real execution runs F and BW of one chunk",
                    "plan with --pipeline 1f1b, or use execute --simulate",
                )
    stuck = stuck_stage(batch.schedule)
    if stuck is not None:
        raise InvalidPlan(
            f"{path}, batch {batch.batch}: the op order of stage {stuck} waits for an op that"
            " never comes"
        )


def stuck_stage(schedule: Schedule) -> int | None:
    """First stage that can never finish its F and BW ops in order, None if all can."""
    position = [0] * len(schedule)
    done: set[tuple[str, int, int]] = set()
    last = len(schedule) - 1
    moved = True
    while moved:
        moved = False
        for stage, ops in enumerate(schedule):
            while position[stage] < len(ops):
                kind, microbatch, _, _ = ops[position[stage]]
                neighbour = stage - 1 if kind == "F" else stage + 1
                if 0 <= neighbour <= last and (kind, microbatch, neighbour) not in done:
                    break
                done.add((kind, microbatch, stage))
                position[stage] += 1
                moved = True
    return next((s for s, ops in enumerate(schedule) if position[s] < len(ops)), None)
