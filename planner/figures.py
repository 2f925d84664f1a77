"""All figures of a placed batch, from its canonical noise-free run."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hydraplan.cost import CostModel
from hydraplan.errors import Infeasible, InputError
from hydraplan.metrics import FIGURES, balance, displacement, shares, sizes
from hydraplan.model import CHOOSING, BatchPlan, FloatArray, Schedule, Sequences, Timeline
from hydraplan.planheader import PlanHeader, PlanOptions
from hydraplan.planner.claims import (
    header_claims,
    memory_claims,
    order_claims,
    row_claims,
    search_claims,
)
from hydraplan.planner.lower_bound import bound_s
from hydraplan.planner.open_request import open_request, others
from hydraplan.planner.pipeline.ops_claims import ops_claims
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.planner.placement.exact_strategy import exact_claims
from hydraplan.planner.placement.sizing import load_of
from hydraplan.planner.placement.window_advice import window_advice
from hydraplan.planner.planned import PLANNED, canonical
from hydraplan.planner.planned_ops import memory_of
from hydraplan.planner.point_claims import point_claims
from hydraplan.slots import SlotTimes, slot_times


def batch_figures(
    cost: CostModel,
    placed: Sequences,
    num_microbatches: int,
    schedule: Schedule,
    options: PlanOptions,
    load_target_s: float,
) -> tuple[dict[str, float], Timeline]:
    """Figures named in `metrics.FIGURES`, and the run they come from."""
    slots = slot_times(cost, placed, num_microbatches)
    timeline = simulate(slots, schedule)
    figures = shares(timeline)
    figures |= balance(slots.load_s, load_target_s)
    figures |= sizes(cost, placed, slots, schedule)
    figures |= displacement(placed)
    figures["fill_bubble"] = fill_bubble(cost, options, evened(slots), schedule)
    bound = bound_s(cost, placed.length_tokens, options.max_tokens_per_rank)
    figures["lower_bound_s"] = bound
    figures["efficiency"] = bound / figures["iteration_s"]
    return {name: figures[name] for name in FIGURES}, timeline


def fill_bubble(
    cost: CostModel, options: PlanOptions, even: SlotTimes, schedule: Schedule
) -> float:
    """Pipeline bubble of even slots under the schedule, or the canonical one of a planned kind."""
    if options.pipeline in PLANNED:
        schedule = canonical(options.pipeline, even, memory_of(cost, options, even))
    return shares(simulate(even, schedule))["pipeline_bubble"]


def evened(slots: SlotTimes) -> SlotTimes:
    """One lane on which every slot carries the mean: what remains idle is the schedule's fill."""
    count = slots.rows.shape[1]
    mean = slots.op_s.mean(axis=(3, 4), keepdims=True)
    return replace(
        slots,
        op_s=np.repeat(mean, count, axis=4),
        rows=np.full((1, count), round(float(slots.rows.mean())), np.int64),
        component=np.zeros((1, count), np.int64),
        boundary_s=np.full((1, count), slots.boundary_s.mean()),
    )


FIGURE_TOLERANCE = 1e-9
"""Relative difference up to which a recomputed figure counts as the stored one."""


def check_figures(header: PlanHeader, batch: BatchPlan) -> list[str]:
    """Sentences about what a plan says of itself and does not have; empty if all agrees.

    The batch must obey the invariants. Figures, window and every predicted time are computed
    again, what is said of the search is held against them (`claims`); an op order that can never go
    on is named.
    """
    return [f"batch {batch.batch}: {text}" for text in _differences(header, batch)]


def _differences(header: PlanHeader, batch: BatchPlan) -> Iterator[str]:
    options, cost = header.options, header.cost_model()
    placed = batch.sequences.placed()
    unlike = list(header_claims(header, batch))
    yield from unlike
    if unlike:
        return
    try:
        request = open_request(cost, options, batch.sequences)
        asked = [request, *others(request, options)]
        computed, timeline = batch_figures(
            cost,
            placed,
            batch.num_microbatches,
            batch.schedule,
            options,
            batch.search.load_target_s,
        )
    except (InputError, Infeasible) as error:
        yield str(error)
        return
    cap, table, window = request.cap_tokens, request.table, request.window
    stored = batch.figures | {
        "window_min": batch.search.window_min,
        "window_max": batch.search.window_max,
    }
    for name, value in (computed | {"window_min": window.low, "window_max": window.high}).items():
        if not _same(value, stored[name]):
            yield f"{name} is stored as {stored[name]:.9g}, this plan has {value:.9g}"
    advice = window_advice(cost, table, request.sequences.length_tokens, cap, window)
    if batch.search.window_advice != advice:
        yield "window_advice is not what this batch's window asks for"
    claims = list(search_claims(options, batch, computed))
    yield from claims
    if not claims and not np.isnan(batch.search.load_target_s):
        count = batch.num_microbatches
        yield from _least([point_claims(r, batch.search, placed, count) for r in asked])
    if batch.strategy in CHOOSING:
        yield from _least([memory_claims(r, batch.search) for r in asked])
    slots = slot_times(cost, placed, batch.num_microbatches)
    yield from order_claims(options, request.orders, batch.microbatch_order, slots.load_s)
    yield from row_claims(cost, options, batch.sequences)
    loads_s = load_of(cost, placed.length_tokens, placed.ulysses_size, placed.ring_size)
    if not _same(loads_s, placed.predicted_s):
        yield "predicted_s of some sequence is not what its length and degree cost"
    yield from exact_claims(cost, batch.strategy, batch.search, placed, batch.num_microbatches)
    yield from ops_claims(options.pipeline, batch.search, slots, batch.schedule)
    for stage, (start, end) in enumerate(zip(*predicted(timeline), strict=True)):
        for name, now, then in (
            ("start", start, batch.predicted_start_s[stage]),
            ("end", end, batch.predicted_end_s[stage]),
        ):
            if not _same(now, then):
                yield f"predicted_{name}_s of stage {stage} is not when its ops {name}"


def _least(found: list[Iterator[str]]) -> list[str]:
    """What is said of the request that the plan agrees with best: any may be its own."""
    return min((list(claims) for claims in found), key=len)


def _same(computed: FloatArray | float, stored: FloatArray | float) -> bool:
    return bool(np.allclose(stored, computed, rtol=FIGURE_TOLERANCE, atol=1e-12))


def predicted(timeline: Timeline) -> tuple[tuple[FloatArray, ...], tuple[FloatArray, ...]]:
    """Earliest start and latest end of every op over the lanes, seconds, one array a stage."""
    return (
        tuple(start.min(axis=1) for start in timeline.start_s),
        tuple(end.max(axis=1) for end in timeline.end_s),
    )
