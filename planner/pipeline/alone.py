"""One schedule by itself: the same times on every stage and in every microbatch, one lane.

What papers on schedules tell of them: bubble rate and idle time of the longest stage, makespan,
memory. Times have any unit, figures are in the same. A stage's time is that of all its chunks
together, shared out evenly; where a stage holds two models (DualPipe) a microbatch passes one of
them, which takes all of it. Nothing is planned here, and memory is counted in microbatches.

Source: bubble rate as the Zero Bubble paper defines it in 5.3.
"""

from typing import NamedTuple

import numpy as np

from hydraplan.model import Schedule, Timeline
from hydraplan.planner.pipeline.memory import Memory
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.route import RouteName, route
from hydraplan.slots import SlotTimes

ROUNDING = 1e-12
"""Idle time below this share of the span is what adding up floats leaves, and counts as none."""


class StageTimes(NamedTuple):
    """What a whole stage takes for one microbatch; `comm` between two stages.

    `joined`: what a forward and a backward at the same time take, over the sum of both.
    """

    forward: float = 1.0
    backward: float = 1.0
    weight: float = 1.0
    comm: float = 0.0
    joined: float = 1.0


class Alone(NamedTuple):
    """A schedule that ran by itself: op times, and figures by name.

    `bubble_rate` = idle / span and `idle` = span - work, of the stage with the longest span (from
    its first op to the end of its last); `makespan`: first op to last of all stages;
    `makespan_idle_max`: most of it that a stage does not work; `peak_memory`: most activations a
    stage holds, in microbatches.
    """

    timeline: Timeline
    figures: dict[str, float]


def slot_times_alone(
    times: StageTimes, name: RouteName, stages: int, chunks: int, num_microbatches: int
) -> SlotTimes:
    """One lane on which every microbatch takes the same everywhere."""
    share = np.array(times[:3]) / _passes(name, chunks)
    shape = (1, num_microbatches)
    return SlotTimes(
        op_s=np.broadcast_to(
            share[:, None, None, None, None], (3, stages, chunks, 1, num_microbatches)
        ).copy(),
        rows=np.ones(shape, np.int64),
        component=np.zeros(shape, np.int64),
        boundary_s=np.full(shape, times.comm),
        grad_sync_s=np.zeros(stages),
        route=route(name, stages, chunks),
        joined=times.joined,
    )


def run_alone(slots: SlotTimes, schedule: Schedule, name: RouteName, memory: Memory) -> Alone:
    """Run a schedule on such times.

    Raises:
        Infeasible: The op order of some stage can never go on.
    """
    timeline = simulate(slots, schedule)
    first = np.array([start.min() for start in timeline.start_s])
    last = np.array([end.max() for end in timeline.end_s])
    work = np.array([busy.sum() for busy in timeline.busy_s])
    span, makespan = last - first, float(last.max() - first.min())
    longest = int(span.argmax())
    idle = _exact(float(span[longest] - work[longest]), makespan)
    passes = _passes(name, slots.op_s.shape[2])
    return Alone(
        timeline,
        {
            "bubble_rate": idle / float(span[longest]),
            "span": float(span[longest]),
            "idle": idle,
            "makespan": makespan,
            "makespan_idle_max": _exact(makespan - float(work.min()), makespan),
            "peak_memory": memory.most(schedule, passes),
        },
    )


def _passes(name: RouteName, chunks: int) -> int:
    """Chunks of a stage that one microbatch passes."""
    return 1 if name == "both" else chunks


def _exact(idle: float, makespan: float) -> float:
    return 0.0 if abs(idle) <= ROUNDING * makespan else idle
