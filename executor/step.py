"""One optimizer step of one worker: the op list of its stage, then the gradient sum.

Ops run in plan order, on every lane of a stage alike, slots without rows included, since
attention meets the members of its groups in every layer. The loss is the sum over valid
tokens divided by the valid tokens of the whole batch, so no microbatch, lane or degree is
weighted by anything but its tokens; gradients of the lanes are summed, never averaged.

Measured times: start when an op's inputs are there, end when it is done, busy = CPU seconds
of the worker's thread in between. What lies between end - start and busy is waiting: for
members of its groups, or for a core where ranks share one.
"""

import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from hydraplan.errors import RunFailed
from hydraplan.executor.data import Slot
from hydraplan.executor.decoder import Weights
from hydraplan.executor.groups import Groups
from hydraplan.executor.stage import Stage
from hydraplan.executor.transport import Transport, reason
from hydraplan.kernels.attention import AttentionKernel
from hydraplan.kernels.nested import nested_attention
from hydraplan.model import FloatArray, Op


@dataclass(frozen=True, slots=True)
class Worker:
    """What a process holds from the first step to the last."""

    groups: Groups
    stage: Stage
    kernel: AttentionKernel
    is_one_host: bool


@dataclass(frozen=True, slots=True)
class StepResult:
    """One worker's share of a step.

    `op_s`: start, end and busy seconds of every op, shape (ops, 3). `sync_end_s`: when its
    gradients were summed. `loss`: its rows' part of the batch's loss (last stage only).
    """

    op_s: FloatArray
    sync_end_s: float
    loss: float


def run_batch(
    worker: Worker, ops: tuple[Op, ...], slots: list[Slot], valid_tokens: int
) -> StepResult:
    """Forward and backward of one batch; leaves summed gradients in the stage's weights.

    `slots` has one entry a microbatch, `valid_tokens` counts those of the whole batch.

    Raises:
        RunFailed: A peer died or did not answer in time; the op is named.
    """
    stage = worker.stage
    rows = [slot.rows for slot in slots]
    transport = Transport(worker.groups.world, ops, rows, stage.model.hidden_size, stage.compute)
    live: dict[int, tuple[Tensor | None, Tensor]] = {}
    op_s = np.zeros((len(ops), 3))
    loss = 0.0
    origin_s = _start_clock(worker.is_one_host)
    for position, op in enumerate(ops):
        m = op.microbatch
        try:
            incoming = _incoming(transport, stage, op)
            start_s, start_cpu_s = time.perf_counter(), time.thread_time()
            if op.kind == "F":
                outgoing = _forward(worker, slots[m], incoming)
                live[m] = (incoming, outgoing)
            else:
                received, output = live.pop(m)
                _backward(output, incoming, valid_tokens)
                outgoing = output if received is None else received
            end_s, busy_s = time.perf_counter(), time.thread_time() - start_cpu_s
        except (RuntimeError, RunFailed) as error:
            raise RunFailed(f"{op.kind} of microbatch {m}: {reason(error)}") from error
        if op.kind == "F" and stage.is_last:
            loss += float(outgoing.detach()) / valid_tokens
        elif op.kind == "F":
            transport.send("activation", m, outgoing)
        elif not stage.is_first and rows[m]:
            assert outgoing.grad is not None
            transport.send("gradient", m, outgoing.grad)
        op_s[position] = start_s - origin_s, end_s - origin_s, min(busy_s, end_s - start_s)
    transport.finish()
    _sum_gradients(stage.weights, worker.groups)
    return StepResult(op_s, time.perf_counter() - origin_s, loss)


def _incoming(transport: Transport, stage: Stage, op: Op) -> Tensor | None:
    """What an op waits for: activations before F, their gradient before BW."""
    if op.kind == "F":
        if stage.is_first:
            return None
        return transport.receive("activation", op.microbatch).requires_grad_()
    return None if stage.is_last else transport.receive("gradient", op.microbatch)


def _forward(worker: Worker, slot: Slot, received_TC: Tensor | None) -> Tensor:
    def attend(q_THD: Tensor, k_TGD: Tensor, v_TGD: Tensor) -> Tensor:
        return nested_attention(q_THD, k_TGD, v_TGD, slot.layout, worker.groups, worker.kernel)

    return worker.stage.forward(slot, received_TC, attend)


def _backward(output: Tensor, gradient: Tensor | None, valid_tokens: int) -> None:
    if gradient is None:
        (output / valid_tokens).backward()
    else:
        torch.autograd.backward(output, gradient)


def _sum_gradients(weights: Weights, groups: Groups) -> None:
    """Sum the gradients of all lanes of the stage, in one message."""
    gradients = [w.grad for w in weights.values()]
    assert all(g is not None for g in gradients)
    if groups.world.ranks == 1:
        return
    flat = torch.cat([g.flatten() for g in gradients if g is not None])
    try:
        dist.all_reduce(flat, group=groups.pool)
    except RuntimeError as error:
        raise RunFailed(f"gradient sync: {reason(error)}") from error
    start = 0
    for weight in weights.values():
        weight.grad = flat[start : start + weight.numel()].view_as(weight)
        start += weight.numel()


def _start_clock(is_one_host: bool) -> float:
    """Meet all workers; the clock's origin, one for all where they share a clock."""
    now = torch.tensor([time.perf_counter()], dtype=torch.float64)
    try:
        dist.all_reduce(now, dist.ReduceOp.MAX)
    except RuntimeError as error:
        raise RunFailed(f"start of the step: {reason(error)}") from error
    return float(now) if is_one_host else time.perf_counter()
