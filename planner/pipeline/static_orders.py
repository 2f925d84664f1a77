"""The static schedules that an order planned for the same slots must not lose to.

Those on the same way through the chunks that a plan may ask for and that keep to the memory limit.
"""

import numpy as np

from hydraplan.model import Schedule
from hydraplan.planner.pipeline.memory import Memory
from hydraplan.planner.pipeline.schedules import SCHEDULES
from hydraplan.route import Route, route
from hydraplan.slots import SlotTimes

ROOM = 1e-12
"""Relative: what sums of activations may round."""


def static_orders(times: SlotTimes, memory: Memory) -> list[Schedule]:
    """All of them that are within the limit."""
    _, stages, chunks, _, count = times.op_s.shape
    made = [SCHEDULES[name].make(stages, count, chunks) for name in static_names(times)]
    return [schedule for schedule in made if within(schedule, memory, chunks)]


def same_ops(schedule: Schedule, way: Route) -> str | None:
    """Name of the static schedule that runs just these ops on every stage; None for no such."""
    stages, chunks = way.before.shape
    count = 1 + max(op.microbatch for op in schedule[0])
    made = ((name, SCHEDULES[name].make(stages, count, chunks)) for name in names_on(way))
    return next((name for name, ops in made if ops == schedule), None)


def static_names(times: SlotTimes) -> list[str]:
    """Schedules of the table that go this way through the chunks and that a plan may ask for."""
    stages, chunks = times.op_s.shape[1:3]
    return names_on(times.route or route("loop", stages, chunks))


def names_on(way: Route) -> list[str]:
    """As `static_names`, of a route."""
    stages, chunks = way.before.shape
    return [
        name
        for name, pipeline in SCHEDULES.items()
        if not pipeline.simulated_only
        and (pipeline.chunks == chunks or (pipeline.chunks is None and chunks > 1))
        and np.array_equal(route(pipeline.route, stages, chunks).before, way.before)
    ]


def within(schedule: Schedule, memory: Memory, num_chunks: int) -> bool:
    """Whether no stage ever holds more than the limit."""
    return memory.most(schedule, num_chunks) <= memory.limit * (1 + ROOM)
