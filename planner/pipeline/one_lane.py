"""One lane that stands for all: what order planners work on, since the op order is one for all.

Lanes that wait for each other in groups are as slow as the busiest of them; lanes that do not are
better described by their mean. What comes out of either is scored on all lanes.

Source: ours.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from hydraplan.model import FloatArray, IntArray
from hydraplan.slots import SlotTimes


def one_lane(slots: SlotTimes) -> SlotTimes:
    """The busiest lane (F + B + W) of every stage, chunk and microbatch, as one lane."""
    busiest = slots.op_s.sum(axis=0).argmax(axis=2)
    count = slots.rows.shape[1]
    return replace(
        slots,
        op_s=np.take_along_axis(slots.op_s, busiest[None, :, :, None, :], axis=3),
        rows=np.maximum(1, slots.rows.max(axis=0, keepdims=True)),
        component=np.zeros((1, count), np.int64),
        boundary_s=slots.boundary_s.max(axis=0, keepdims=True),
        partner=None,
    )


def mean_lane(slots: SlotTimes) -> SlotTimes:
    """As `one_lane`, with the mean over lanes as times."""
    return replace(
        one_lane(slots),
        op_s=slots.op_s.mean(axis=3, keepdims=True),
        boundary_s=slots.boundary_s.mean(axis=0, keepdims=True),
    )


def few_lanes(slots: SlotTimes, most: int) -> SlotTimes:
    """At most so many lanes: each is the busiest of some that lie next to each other.

    Two of them are connected where lanes on both sides of their border are.
    """
    lanes = len(slots.rows)
    if lanes <= most:
        return slots
    first = np.arange(most) * lanes // most
    work_s = slots.op_s.sum(axis=0)
    busiest = np.stack(
        [
            low + work_s[:, :, low:high].argmax(axis=2)
            for low, high in pairwise([*first.tolist(), lanes])
        ],
        axis=2,
    )
    lead = np.where(slots.component[first] < first[:, None], -1, np.arange(most)[:, None])
    return replace(
        slots,
        op_s=np.take_along_axis(slots.op_s, busiest[None], axis=3),
        rows=np.maximum.reduceat(slots.rows, first),
        component=np.maximum.accumulate(lead),
        boundary_s=np.maximum.reduceat(slots.boundary_s, first),
        partner=None,  # who works for whom is in its time; where they wait is left out
    )


def side_by_side(lane: SlotTimes, orders: IntArray) -> SlotTimes:
    """One lane in several microbatch orders, each as a lane of its own.

    Args:
        orders: `orders[i, j]` is the microbatch that runs j-th on lane i, shape (lanes, M).
    """
    return replace(
        lane,
        op_s=lane.op_s[:, :, :, 0, orders],
        rows=lane.rows[0, orders],
        component=np.broadcast_to(np.arange(len(orders))[:, None], orders.shape).copy(),
        boundary_s=lane.boundary_s[0, orders],
    )


def reordered(slots: SlotTimes, order: IntArray) -> SlotTimes:
    """The slots renumbered: microbatch i is what `order[i]` was."""
    return replace(
        slots,
        op_s=slots.op_s[..., order],
        rows=slots.rows[:, order],
        component=slots.component[:, order],
        boundary_s=slots.boundary_s[:, order],
        partner=None if slots.partner is None else slots.partner[..., order],
    )


def ends_s(slots: SlotTimes, end_s: tuple[FloatArray, ...]) -> FloatArray:
    """When every lane is through all stages, exposed gradient sync included, (lanes,) seconds."""
    result: FloatArray = np.stack(
        [end.max(axis=0) + sync for end, sync in zip(end_s, slots.grad_sync_s, strict=True)]
    ).max(axis=0)
    return result
