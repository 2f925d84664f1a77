"""Bring what every worker measured to rank 0, once a step, after the step's own clock stopped."""

from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from hydraplan.errors import RunFailed
from hydraplan.executor.groups import World
from hydraplan.executor.step import StepResult
from hydraplan.executor.transport import reason
from hydraplan.model import FloatArray, IntArray, Schedule, Timeline, Waits

OP_FIGURES = 5
"""Seconds measured of every op: start, end, busy, group wait, transfer."""


class Measured(NamedTuple):
    """What all workers measured of a batch.

    `peak_live_tokens`: most tokens each rank held, shape (stages, lanes). `sent_bytes` in messages,
    inside groups and to sum gradients, shape (3, stages, lanes). `peak_bytes` of the allocators of
    GPUs, (stages, lanes), None on CPUs.
    """

    timeline: Timeline
    waits: Waits
    loss: float
    peak_live_tokens: FloatArray
    sent_bytes: IntArray
    peak_bytes: FloatArray | None


def collect(world: World, schedule: Schedule, mine: StepResult) -> Measured | None:
    """What all workers measured, on rank 0; None elsewhere.

    The loss adds up in rank order, so it is the same bits on every run. `grad_sync_s` is
    exposed: from the end of a stage's latest lane to the end of its latest all-reduce.
    """
    figures = mine.sync_end_s, mine.loss, mine.peak_live_tokens, mine.peak_bytes
    rest = np.array([*figures, *mine.sent_bytes])
    most = max(len(ops) for ops in schedule) * OP_FIGURES
    packet = np.zeros(most + len(rest))
    packet[: mine.op_s.size] = mine.op_s.ravel()
    packet[most:] = rest
    sent = torch.from_numpy(packet)
    received = [torch.empty_like(sent) for _ in range(world.pp * world.ranks)]
    try:
        dist.gather(sent, received if world.rank == 0 else None)
    except RuntimeError as error:
        raise RunFailed(f"end of the step: {reason(error)}") from error
    if world.rank != 0:
        return None
    packets = torch.stack(received).numpy().reshape(world.pp, world.ranks, -1)
    ops_s = packets[..., :most].reshape(world.pp, world.ranks, -1, OP_FIGURES)
    start, end, busy, group, transfer = (
        tuple(ops_s[s, :, : len(ops), i].T.copy() for s, ops in enumerate(schedule))
        for i in range(OP_FIGURES)
    )
    sync_end_s, loss, peak, peak_bytes, *sent_bytes = np.moveaxis(packets[..., most:], -1, 0)
    latest = np.array([e.max() for e in end])
    sync_s = np.maximum(0.0, sync_end_s.max(axis=1) - latest)
    return Measured(
        timeline=Timeline(schedule, start, end, busy, sync_s),
        waits=Waits(group, transfer),
        loss=float(sum(loss.ravel().tolist())),
        peak_live_tokens=peak,
        sent_bytes=np.array(sent_bytes).astype(np.int64),
        peak_bytes=None if np.isnan(peak_bytes).any() else peak_bytes,
    )
