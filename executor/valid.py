"""Is this plan fit to run: every invariant holds, its ops can go on and be lowered to messages.

Needs no torch, so that simulation, real execution and export ask the same questions.
"""

import os
from pathlib import Path

import numpy as np

from hydraplan.errors import Infeasible, InputError, InvalidPlan
from hydraplan.files.planfile import Plan, read_batch
from hydraplan.invariants import check_plan
from hydraplan.memory import kept_logit_rows
from hydraplan.model import BatchPlan
from hydraplan.planheader import PlanHeader
from hydraplan.planner.figures import FIGURE_TOLERANCE, predicted
from hydraplan.planner.pipeline.deadlock import deadlock_of_batch, one_line
from hydraplan.planner.pipeline.lowering import Steps, lower
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.slots import slot_rows, slot_times
from hydraplan.views import console

NEEDED_INVARIANTS = frozenset({"accounted", "degree", "inside", "schedule"})
"""Without these promises workers could wait for each other for ever."""


def read_valid_batch(plan: Plan, batch: int) -> BatchPlan:
    """Read one batch and refuse it unless it obeys every invariant it promises and can go on."""
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
    check_order(plan.path, plan.header, found)
    return found


def check_order(path: Path, header: PlanHeader, batch: BatchPlan) -> None:
    """Refuse ops that wait for each other; note predicted times that are not those of the ops.

    Raises:
        InvalidPlan: The ops can never go on; the message tells the shortest circle.
    """
    slots = slot_times(header.cost_model(), batch.sequences.placed(), batch.num_microbatches)
    try:
        times = predicted(simulate(slots, batch.schedule))
    except Infeasible:
        raise _stuck(path, header, batch) from None
    pairs = zip(
        (*times[0], *times[1]), (*batch.predicted_start_s, *batch.predicted_end_s), strict=True
    )
    agree = all(np.allclose(now, then, rtol=FIGURE_TOLERANCE, atol=1e-12) for now, then in pairs)
    if not agree and os.environ.get("RANK", "0") == "0":  # under torchrun once, not by all
        console.note(
            f"note: {path}, batch {batch.batch}: its predicted times are not those of its op order,"
            f" so its figures do not hold; see hydraplan validate {path}"
        )


def _stuck(path: Path, header: PlanHeader, batch: BatchPlan) -> InvalidPlan:
    cost = header.cost_model()
    circle = deadlock_of_batch(batch.schedule, cost.route, batch.num_microbatches, cost.ranks, {})
    return InvalidPlan(
        f"{path}, batch {batch.batch}: {one_line(circle)}",
        "change the order of one of these ops, or make the plan again",
    )


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
    except Infeasible:
        raise _stuck(path, header, batch) from None


def check_head(header: PlanHeader, batch: BatchPlan) -> None:
    """Refuse to pace a head whose logits are made in chunks, by products that are not paced.

    Raises:
        InputError: A slot of the batch has so many rows.
    """
    placed = batch.sequences.placed()
    rows = int(slot_rows(placed, header.options.ranks, batch.num_microbatches).max())
    most = kept_logit_rows(header.model)
    if rows > most:
        raise InputError(
            f"--paced: {rows} rows of batch {batch.batch} x {header.model.vocab_size} ids are more"
            f" logits than a head makes in one product, that of {most} rows",
            "plan with a smaller --max-tokens-per-rank, or a model with a smaller vocab_size",
        )
