"""What a strategy is asked for one batch: its rows, their costs, and what the options leave open.

Planning asks it, and so does the check of a plan, which has to know what was asked.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np

from hydraplan.cost import CostModel
from hydraplan.errors import Infeasible, InputError, many
from hydraplan.model import FloatArray, Schedule, Sequences
from hydraplan.planheader import PlanOptions, reorder_within
from hydraplan.planner.pipeline.fast_run import one_lane_s, profile_of
from hydraplan.planner.pipeline.order import ORDERS, SEARCHED
from hydraplan.planner.pipeline.schedules import SCHEDULES, Layout, one_f_one_b
from hydraplan.planner.placement.cost_table import cost_table
from hydraplan.planner.placement.degrees import offered_levels
from hydraplan.planner.placement.draft import Request
from hydraplan.planner.placement.strategies import STRATEGIES
from hydraplan.planner.placement.window import microbatch_window
from hydraplan.planner.planned_ops import stand_ins
from hydraplan.route import Route
from hydraplan.slots import check_size, most_microbatches


def open_request(cost: CostModel, options: PlanOptions, rows: Sequences) -> Request:
    """What the strategy is asked: the rows that get a place, and their cost table.

    Raises:
        InputError: Options that cannot be kept together, or more slots than are planned.
        Infeasible: The strategy cannot keep the order that was asked for.
    """
    open_rows = rows.take(rows.on_ranks())
    order, cap = options.microbatch_order, options.max_tokens_per_rank
    reorder = reorder_within(options.reorder, len(rows))
    if reorder != "batch":
        if not STRATEGIES[options.strategy].keeps_order:
            raise Infeasible(
                f"strategy {options.strategy} places rows all over the batch, --reorder"
                f" {reorder} cannot be kept",
                "use --strategy hydra, or --reorder batch",
            )
        if order not in ("auto", "as-built"):
            raise InputError(
                f"--microbatch-order {order} moves microbatches, --reorder {reorder} does"
                " not allow it",
                "leave the order open, or use as-built",
            )
        order = "as-built"
    least = -(-int(open_rows.length_tokens.sum()) // (cost.ranks * cap))
    multiple, most = options.microbatch_multiple, most_microbatches(cost.pp, cost.ranks)
    if multiple > most:
        raise InputError(
            f"--microbatch-multiple {multiple}: {many(cost.pp, 'stage')} x"
            f" {many(cost.ranks, 'rank')} take at most {many(most, 'microbatch')}",
            "use a smaller --microbatch-multiple",
        )
    check_size(cost.pp, cost.ranks, options.microbatches or -(-least // multiple) * multiple)
    offered = offered_levels(cost.ranks, options.min_degree, options.max_groups)
    table = cost_table(cost, open_rows.length_tokens, cap, offered)
    profile = profile_of(cost, open_rows.length_tokens)
    schedule = _made_by(stand_ins(options, _layout(cost))[0], cost.route.num_chunks)
    return Request(
        cost=cost,
        table=table,
        sequences=open_rows,
        cap_tokens=cap,
        window=microbatch_window(table, open_rows.length_tokens, cost.ranks, cap),
        microbatches=options.microbatches,
        microbatch_multiple=options.microbatch_multiple,
        min_degree=options.min_degree,
        reorder=reorder,
        first_row=int(rows.sequence_id[0]),
        orders=ORDERS if order in ("auto", SEARCHED) else (order,),
        tapered=options.microbatch_shape == "tapered",
        schedule=schedule,
        profile=profile,
        fill_slots=fill_slots(profile, schedule, cost.route),
    )


def others(request: Request, options: PlanOptions) -> list[Request]:
    """The same request on every other static schedule that stands in for ops planned later."""
    cost, profile = request.cost, request.profile
    found = []
    for name in stand_ins(options, _layout(cost))[1:]:
        schedule = _made_by(name, cost.route.num_chunks)
        fill = fill_slots(profile, schedule, cost.route)
        found.append(replace(request, schedule=schedule, fill_slots=fill))
    return found


def _layout(cost: CostModel) -> Layout:
    return Layout(cost.route_name, cost.route.num_chunks)


def _made_by(name: str, num_chunks: int) -> Callable[[int, int], Schedule]:
    make = SCHEDULES[name].make
    return cache(lambda stages, count: make(stages, count, num_chunks))


def fill_slots(
    profile: FloatArray, schedule: Callable[[int, int], Schedule], route: Route
) -> float:
    """Slots that filling and draining a pipeline costs: P - 1 with 1F1B, and what others save."""
    stages = profile.shape[1]
    even = np.ones((1, 2 * stages))
    ran_s = one_lane_s(profile, even, schedule(stages, 2 * stages), route)
    whole = profile.sum(axis=2, keepdims=True)
    known_s = one_lane_s(whole, even, one_f_one_b(stages, 2 * stages))
    return float(stages - 1 + (ran_s - known_s)[0])
