"""What limits a batch: what it would take if one thing were otherwise, all else as planned.

Each cause is a counterfactual, simulated like the plan: with one sequence spread out, with one
lane at the speed of most, in another order of microbatches, with lanes that share each microbatch
evenly. What it saves of the iteration is the measure, so causes can be compared, and do not add up.
The work of a sequence stays: it is spread evenly over all slots, as if it could be cut at will.

What no change of the plan removes stands beside these as its figures say: filling and draining the
pipeline, gradient sync, waiting inside groups.

Source: ours.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hydraplan.cause import Cause, Limit
from hydraplan.cost import CostModel
from hydraplan.metrics import shares
from hydraplan.model import BatchPlan, Sequences
from hydraplan.planheader import PlanHeader
from hydraplan.planner.pipeline.one_lane import reordered
from hydraplan.planner.pipeline.order import ORDERS, microbatch_order
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.slots import SlotTimes, slot_times

LEAST_SHARE = 0.01
"""Of the iteration; what saves less is no limit."""

CANDIDATES = 5
"""Sequences, and lanes, that are looked at: those with the most work a rank, the slowest."""


def what_limits(header: PlanHeader, batch: BatchPlan) -> list[Limit]:
    """Causes of at least `LEAST_SHARE`, the largest first; `batch` is a valid one of the plan."""
    cost, placed = header.cost_model(), batch.sequences.placed()
    slots = slot_times(cost, placed, batch.num_microbatches)
    known_s = _iteration_s(slots, batch)
    found: list[Limit] = [
        *_sequences(slots, cost, placed, batch, known_s),
        *_lanes(cost, placed, batch, known_s),
        *_orders(slots, batch, known_s),
        Limit("lanes", 1 - _iteration_s(_even_lanes(slots), batch) / known_s),
        Limit("fill", batch.figures["fill_bubble"]),
        Limit("grad_sync", batch.figures["grad_sync"]),
        Limit("group_wait", batch.figures["group_wait"]),
    ]
    best: dict[Cause, Limit] = {}
    for limit in found:
        if limit.share >= max(LEAST_SHARE, best.get(limit.cause, limit).share):
            best[limit.cause] = limit
    return sorted(best.values(), key=lambda limit: -limit.share)


def _iteration_s(slots: SlotTimes, batch: BatchPlan) -> float:
    return shares(simulate(slots, batch.schedule))["iteration_s"]


def _sequences(
    slots: SlotTimes, cost: CostModel, placed: Sequences, batch: BatchPlan, known_s: float
) -> Iterator[Limit]:
    """The work of one sequence spread evenly over all slots; nobody waits for it any more."""
    for row in np.argsort(-placed.predicted_s, kind="stable")[:CANDIDATES].tolist():
        if len(placed) < 2:
            return
        without = placed.take(np.delete(np.arange(len(placed)), row))
        others = slot_times(cost, without, batch.num_microbatches)
        its_s = (slots.op_s - others.op_s).mean(axis=(3, 4), keepdims=True)
        spread_s = _iteration_s(replace(others, op_s=others.op_s + its_s), batch)
        yield Limit(
            "sequence",
            1 - spread_s / known_s,
            sequence_id=int(placed.sequence_id[row]),
            length_tokens=int(placed.length_tokens[row]),
            degree=int(placed.degree[row]),
            microbatch=int(placed.microbatch[row]),
        )


def _lanes(cost: CostModel, placed: Sequences, batch: BatchPlan, known_s: float) -> Iterator[Limit]:
    """The batch with one slow lane at the speed of the middle one."""
    if cost.rank_speed is None:
        return
    speed = np.array(cost.rank_speed)
    middle = float(np.median(speed))
    for lane in np.argsort(speed, kind="stable")[:CANDIDATES].tolist():
        if speed[lane] >= middle:
            return
        mended = speed.copy()
        mended[lane] = middle
        faster = replace(cost, rank_speed=tuple(mended.tolist()))
        slots = slot_times(faster, placed, batch.num_microbatches)
        saved = 1 - _iteration_s(slots, batch) / known_s
        yield Limit("lane", saved, lane=lane, speed=float(speed[lane]))


def _orders(slots: SlotTimes, batch: BatchPlan, known_s: float) -> Iterator[Limit]:
    """The microbatches in the orders that need no search; the heaviest as planned is named."""
    heaviest = int(slots.load_s.max(axis=0).argmax())
    for name in ORDERS:
        order = microbatch_order(name, slots.load_s)
        saved = 1 - _iteration_s(reordered(slots, order), batch) / known_s
        yield Limit("order", saved, microbatch=heaviest, order=name)


def _even_lanes(slots: SlotTimes) -> SlotTimes:
    """Every microbatch shared evenly by all lanes."""
    mean = slots.op_s.mean(axis=3, keepdims=True)
    return replace(slots, op_s=np.broadcast_to(mean, slots.op_s.shape).copy())
