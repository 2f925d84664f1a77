"""The static schedules that an order planned for the same slots must not lose to.

Those on the same way through the chunks that a plan may ask for and that keep to the memory limit.
"""

import numpy as np

from hydraplan.model import Schedule
from hydraplan.planner.pipeline.memory import Memory
from hydraplan.planner.pipeline.schedules import SCHEDULES
from hydraplan.route import route
from hydraplan.slots import SlotTimes

ROOM = 1e-12
"""Relative: what sums of activations may round."""


def static_orders(times: SlotTimes, memory: Memory) -> list[Schedule]:
    """All of them that are within the limit."""
    _, stages, chunks, _, count = times.op_s.shape
    made = [SCHEDULES[name].make(stages, count, chunks) for name in static_names(times)]
    return [schedule for schedule in made if within(schedule, memory, chunks)]


def static_names(times: SlotTimes) -> list[str]:
    """Schedules of the table that go this way through the chunks and that a plan may ask for."""
    stages, chunks = times.op_s.shape[1:3]
    way = times.route or route("loop", stages, chunks)
    return [
        name
        for name, pipeline in SCHEDULES.items()
        if not pipeline.simulated_only
        and (pipeline.chunks == chunks or (pipeline.chunks is None and chunks > 1))
        and np.array_equal(route(pipeline.route, stages, chunks).before, way.before)
    ]


def within(schedule: Schedule, memory: Memory, num_chunks: int) -> bool:
    """Whether no stage ever holds more than the limit."""
    peak = max(memory.peak(ops, num_chunks) for ops in schedule)
    return peak <= memory.limit * (1 + ROOM)
