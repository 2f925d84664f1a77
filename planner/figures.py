"""All figures of a placed batch, from its canonical noise-free run."""

from dataclasses import replace

import numpy as np

from hydraplan.cost import CostModel
from hydraplan.metrics import FIGURES, balance, lower_bound_s, shares, sizes
from hydraplan.model import BatchPlan, Schedule, Sequences, Timeline
from hydraplan.planheader import PlanHeader
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.planner.placement.cost_table import cost_table
from hydraplan.slots import SlotTimes, slot_times


def batch_figures(
    cost: CostModel,
    placed: Sequences,
    num_microbatches: int,
    schedule: Schedule,
    cap_tokens: int,
    load_target_s: float,
) -> tuple[dict[str, float], Timeline]:
    """Figures named in `metrics.FIGURES`, and the run they come from."""
    slots = slot_times(cost, placed, num_microbatches)
    timeline = simulate(slots, schedule)
    table = cost_table(cost, placed.length_tokens, cap_tokens)
    figures = shares(timeline)
    figures |= balance(slots.load_s, load_target_s)
    figures |= sizes(cost, placed, slots, schedule)
    figures["fill_bubble"] = shares(simulate(evened(slots), schedule))["pipeline_bubble"]
    bound = lower_bound_s(cost, table.work_s, table.alone_s, table.through_s)
    figures["lower_bound_s"] = bound
    figures["efficiency"] = bound / figures["iteration_s"]
    return {name: figures[name] for name in FIGURES}, timeline


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
    """Sentences about stored figures that this plan does not have; empty if all agree."""
    computed, _ = batch_figures(
        header.cost_model(),
        batch.sequences.placed(),
        batch.num_microbatches,
        batch.schedule,
        header.options.max_tokens_per_rank,
        batch.search.load_target_s,
    )
    return [
        f"batch {batch.batch}: {name} is stored as {batch.figures[name]:.9g},"
        f" this plan has {computed[name]:.9g}"
        for name in FIGURES
        if not np.isclose(computed[name], batch.figures[name], rtol=FIGURE_TOLERANCE, atol=1e-12)
    ]
