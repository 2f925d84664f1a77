"""The op order of a placed batch: a static schedule's, or one planned on the batch's own slots.

A placement search runs on a static schedule, since thousands of runs are asked for; where the
schedule is a planned one, others stand in for it (`stand_ins`), and ops are planned once the
placement is made. Microbatches may then change places once more, unless their
order was asked for.
"""

from dataclasses import replace

import numpy as np

from hydraplan.activations import held_shares
from hydraplan.cost import CostModel
from hydraplan.errors import Infeasible
from hydraplan.metrics import peak_live_tokens
from hydraplan.model import IntArray, Schedule
from hydraplan.planheader import PlanOptions
from hydraplan.planner.pipeline.memory import ROUNDING, Memory
from hydraplan.planner.pipeline.order import ORDERS, SEARCHED, microbatch_order
from hydraplan.planner.pipeline.schedules import Layout
from hydraplan.planner.placement.draft import Draft, Request
from hydraplan.planner.planned import PLANNED, plan_ops
from hydraplan.slots import SlotTimes, slot_times


def stand_ins(options: PlanOptions, layout: Layout) -> tuple[str, ...]:
    """The static schedules that a placement search runs, each on its own; one that is named, alone.

    For ops that are planned later they are those of the layout: with one chunk a stage ZB-H1,
    which holds as many microbatches as 1F1B, and ZB-H2 where its 2 P - 1 may be held.
    """
    if options.pipeline not in PLANNED:
        return (options.pipeline,)
    if layout.route == "v":
        return ("zb-v",)
    if layout.chunks > 1:
        return ("interleaved",)
    live = options.live_microbatches
    return ("zb-h1",) if live is not None and live < 2 * options.pp - 1 else ("zb-h2", "zb-h1")


def with_ops(request: Request, options: PlanOptions, draft: Draft) -> tuple[Draft, Schedule]:
    """The draft, its microbatches renumbered where they moved, and the ops of every stage.

    Raises:
        Infeasible: More activations than `--live-microbatches` allows.
    """
    planned, order = options.pipeline in PLANNED, options.microbatch_order
    searches = order == SEARCHED or (planned and len(request.orders) > 1)
    if not planned and not searches:
        ops = request.schedule(request.cost.pp, draft.num_microbatches)
        if options.live_microbatches is not None:
            slots = slot_times(request.cost, draft.sequences, draft.num_microbatches)
            _check_limit(request.cost, options, ops, slots.rows)
        return draft, ops
    slots = slot_times(request.cost, draft.sequences, draft.num_microbatches)
    orders = {draft.microbatch_order: np.arange(draft.num_microbatches, dtype=np.int64)}
    if len(request.orders) > 1:
        orders |= {
            name: microbatch_order(name, slots.load_s)
            for name in ORDERS
            if name in request.orders and name not in (draft.microbatch_order, "as-built")
        }
    found = plan_ops(
        options.pipeline, slots, memory_of(request.cost, options, slots), orders, searches
    )
    position = np.empty_like(found.order)
    position[found.order] = np.arange(len(found.order))
    moved = replace(draft.sequences, microbatch=position[draft.sequences.microbatch])
    if options.live_microbatches is not None:
        _check_limit(request.cost, options, found.schedule, slots.rows[:, found.order])
    search = draft.search
    if found.proof is not None:
        search = replace(
            search,
            ops_status=found.proof.status,
            ops_bound_s=found.proof.bound_s,
            ops_time_s=found.proof.time_s,
            ops_deterministic_s=found.proof.deterministic_s,
        )
    if found.by is not None:
        search = replace(
            search,
            ops_from=found.by.source,
            ops_policy_s=found.by.policy_s,
            ops_guard_s=found.by.guard_s,
        )
    made = replace(draft, sequences=moved, microbatch_order=found.name, search=search)
    return made, found.schedule


def memory_of(cost: CostModel, options: PlanOptions, slots: SlotTimes) -> Memory:
    """What the fullest lane of every microbatch holds, in live tokens, and what a stage may hold.

    Where B leaves more for W than F kept, room for it is kept from F on.
    """
    limit = options.live_limit_tokens
    shares = held_shares(cost.model, cost.recompute)
    most = max(shares)
    return Memory(
        limit=np.inf if limit is None else float(limit),
        live=most * slots.rows.max(axis=0),
        frees=1 - shares.after_input / most,
    )


def _check_limit(cost: CostModel, options: PlanOptions, ops: Schedule, rows: IntArray) -> None:
    limit = options.live_limit_tokens
    peak = peak_live_tokens(ops, rows, held_shares(cost.model, cost.recompute))
    if limit is not None and peak > limit * (1 + ROUNDING):
        raise Infeasible(
            f"schedule {options.pipeline} holds activations of {peak:.9g} tokens at once,"
            f" {options.live_microbatches} x {options.max_tokens_per_rank} are allowed",
            "raise --live-microbatches, or use --pipeline auto",
        )
