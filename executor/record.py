"""Bring what every worker measured to rank 0, once a step, after the step's own clock stopped."""

from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from hydraplan.errors import RunFailed
from hydraplan.executor.groups import World
from hydraplan.executor.step import StepResult
from hydraplan.executor.transport import reason
from hydraplan.model import FloatArray, Schedule, Timeline


class Measured(NamedTuple):
    """Op times and loss of a batch, and the most tokens each rank held, (stages, lanes)."""

    timeline: Timeline
    loss: float
    peak_live_tokens: FloatArray


def collect(world: World, schedule: Schedule, mine: StepResult) -> Measured | None:
    """What all workers measured, on rank 0; None elsewhere.

    The loss adds up in rank order, so it is the same bits on every run. `grad_sync_s` is
    exposed: from the end of a stage's latest lane to the end of its latest all-reduce.
    """
    most = max(len(ops) for ops in schedule)
    packet = np.zeros((most + 1, 3))
    packet[: len(mine.op_s)] = mine.op_s
    packet[most] = mine.sync_end_s, mine.loss, mine.peak_live_tokens
    sent = torch.from_numpy(packet)
    received = [torch.empty_like(sent) for _ in range(world.pp * world.ranks)]
    try:
        dist.gather(sent, received if world.rank == 0 else None)
    except RuntimeError as error:
        raise RunFailed(f"end of the step: {reason(error)}") from error
    if world.rank != 0:
        return None
    packets = torch.stack(received).numpy().reshape(world.pp, world.ranks, most + 1, 3)
    start, end, busy = (
        tuple(packets[s, :, : len(ops), i].T.copy() for s, ops in enumerate(schedule))
        for i in range(3)
    )
    latest = np.array([e.max() for e in end])
    sync_end_s, loss, peak = np.moveaxis(packets[:, :, most], -1, 0)
    sync_s = np.maximum(0.0, sync_end_s.max(axis=1) - latest)
    timeline = Timeline(schedule, start, end, busy, sync_s)
    return Measured(timeline, float(sum(loss.ravel().tolist())), peak)
