"""From op orders to explicit sends and receives, a list a stage, so that no transport gets stuck.

Sender-driven: a run of the schedule with F, B and W of equal length puts all ops of all stages
into one order. Walking it, an op goes on its stage's list, and where it ends its message goes on
the sender's and on the receiver's list at that same point. So every step has one place in one
order that all lists keep to, and nothing can wait in a circle, whatever a transport waits for.

A receive may then stand earlier than needed. It is put off past ops that do not use it, never
past another message: such an op needs only what stands before the receive, so it may as well go
before it in the one order.

All lanes of a stage have this list; a lane whose slot has no rows leaves its messages out
(`lane_steps`), and a part of the one order is an order. Between chunks of the same stage nothing
is sent.

Source: pipelines commonly receive right before use, which gets stuck on ordered transports; the
one order and how far a receive is put off are ours (`docs/deadlock.md`).
"""

from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from hydraplan.model import IntArray, Op, Schedule
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.route import NOWHERE, Route
from hydraplan.slots import SlotTimes

Way = Literal["forward", "backward"]


class Message(NamedTuple):
    """Activations (`forward`) or their gradient (`backward`) of one slot, on its way to a chunk.

    Its shape on a lane is rows of the slot x hidden_size. `is_local`: both chunks are on one
    stage, so it is handed over, not sent.
    """

    way: Way
    microbatch: int
    to_chunk: int
    from_stage: int
    to_stage: int

    @property
    def is_local(self) -> bool:
        """Nothing travels."""
        return self.from_stage == self.to_stage


class Step(NamedTuple):
    """What a stage does next: run an op, or send or receive a message."""

    kind: Literal["compute", "send", "receive"]
    op: Op | None = None
    message: Message | None = None


Steps = tuple[tuple[Step, ...], ...]
"""Steps of every stage."""


def incoming(stage: int, op: Op, route: Route) -> Message | None:
    """What an op waits for from another chunk; None for W and at the end it begins at."""
    source = came_from(stage, op, route)
    if source is None:
        return None
    return Message(_way(op), op.microbatch, op.chunk, source[0], stage)


def outgoing(stage: int, op: Op, route: Route) -> Message | None:
    """What an op hands to another chunk; None for W and at the end it ends at."""
    before, after = _nodes(route)
    target = NOWHERE if op.kind == "W" else (after if op.kind == "F" else before)[stage][op.chunk]
    if target == NOWHERE:
        return None
    to_stage, to_chunk = divmod(target, route.num_chunks)
    return Message(_way(op), op.microbatch, to_chunk, stage, to_stage)


def came_from(stage: int, op: Op, route: Route) -> tuple[int, int] | None:
    """Stage and chunk of what an op waits for; None for W and at the end it begins at."""
    before, after = _nodes(route)
    source = NOWHERE if op.kind == "W" else (before if op.kind == "F" else after)[stage][op.chunk]
    return None if source == NOWHERE else divmod(source, route.num_chunks)


def _way(op: Op) -> Way:
    return "forward" if op.kind == "F" else "backward"


@lru_cache(maxsize=64)
def _nodes(route: Route) -> tuple[list[list[int]], list[list[int]]]:
    """The route as lists, which are faster to look one entry up in."""
    before: list[list[int]] = route.before.tolist()
    after: list[list[int]] = route.after.tolist()
    return before, after


def lower(schedule: Schedule, route: Route, num_microbatches: int) -> Steps:
    """The steps of every stage; ops keep their order, every message is sent and received once.

    Raises:
        Infeasible: The op order of some stage can never go on.
    """
    run = simulate(_alike(route, num_microbatches), schedule)
    happens: list[tuple[tuple[float, ...], int, Message | tuple[Op, ...]]] = []
    for stage, ops in enumerate(schedule):
        first = 0
        for unit in units(ops):
            start_s, end_s = run.start_s[stage][first, 0], run.end_s[stage][first, 0]
            happens.append(((start_s, 1, stage), stage, unit))
            for op in unit:
                message = outgoing(stage, op, route)
                if message is not None and not message.is_local:
                    # of messages at one time forward goes first, then the older
                    key = (end_s, 0, message.way == "backward", op.microbatch, stage)
                    happens.append((key, stage, message))
            first += len(unit)
    lists: list[list[Step]] = [[] for _ in schedule]
    coming: list[list[Message]] = [[] for _ in schedule]
    for _, stage, what in sorted(happens, key=lambda event: event[0]):
        if isinstance(what, Message):
            lists[stage] += [*_receives(coming[stage]), Step("send", message=what)]
            coming[stage] = []
            coming[what.to_stage].append(what)
        else:
            needed = {incoming(stage, op, route) for op in what}
            used = max((i for i, m in enumerate(coming[stage], 1) if m in needed), default=0)
            lists[stage] += _receives(coming[stage][:used])
            lists[stage] += [Step("compute", op=op) for op in what]
            coming[stage] = coming[stage][used:]
    return tuple(tuple(steps) for steps in lists)


def receive_at_use(schedule: Schedule, route: Route) -> Steps:
    """The same with every receive right before the op that uses it; safe where order is free.

    Takes any order, so it also shows why one that is not legal waits for itself.
    """
    lists = []
    for stage, ops in enumerate(schedule):
        steps: list[Step] = []
        for unit in units(ops):
            needed = [incoming(stage, op, route) for op in unit]
            handed = [outgoing(stage, op, route) for op in unit]
            steps += _receives([m for m in needed if m and not m.is_local])
            steps += [Step("compute", op=op) for op in unit]
            steps += [Step("send", message=m) for m in handed if m and not m.is_local]
        lists.append(tuple(steps))
    return tuple(lists)


def lane_steps(steps: Steps, rows: IntArray) -> Steps:
    """The steps of one lane: without messages of microbatches in which it holds no rows.

    `rows` of the lane, shape (microbatches,).
    """
    carries = rows.astype(bool).tolist()
    return tuple(
        tuple(s for s in stage if s.message is None or carries[s.message.microbatch])
        for stage in steps
    )


def units(ops: tuple[Op, ...]) -> list[tuple[Op, ...]]:
    """Ops as they begin: one by one, a joined forward together with the backward after it."""
    found: list[tuple[Op, ...]] = []
    half: tuple[Op, ...] = ()
    for op in ops:
        half = (*half, op)
        if not op.joined:
            found.append(half)
            half = ()
    return [*found, half] if half else found


def _alike(route: Route, num_microbatches: int) -> SlotTimes:
    """One lane on which F, B and W take a second each, and messages nothing."""
    stages, chunks = route.before.shape
    return SlotTimes(
        op_s=np.ones((3, stages, chunks, 1, num_microbatches)),
        rows=np.ones((1, num_microbatches), np.int64),
        component=np.zeros((1, num_microbatches), np.int64),
        boundary_s=np.zeros((1, num_microbatches)),
        grad_sync_s=np.zeros(stages),
        route=route,
    )


def _receives(messages: list[Message]) -> list[Step]:
    return [Step("receive", message=m) for m in messages]
