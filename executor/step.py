"""One optimizer step of one worker: the lowered list of its stage, then the gradient sum.

Ops run in plan order, on every lane of a stage alike, slots without rows included, since
attention meets the members of its groups in every layer. The loss is the sum over valid
tokens divided by the valid tokens of the whole batch, so no microbatch, lane or degree is
weighted by anything but its tokens; gradients of the lanes are summed, never averaged.

Messages go where the list says and are waited for by the op that needs them; between two chunks
of one stage tensors change hands without a message. What an op was the last to use is free once
it is done.

Measured times: start when an op's inputs are there, end when it is done, busy = CPU seconds
of the worker's thread in between, and what it sleeps if it is slow on purpose; of a paced worker
the seconds of its parts. What lies between end - start and busy is waiting: for members of its
groups, which the exchanges of the kernels time, or for a core where ranks share one. What an op
waits for before its start is transfer: messages that come, or that make room. A
GPU is waited for at both ends of an op, on the computing stream alone, so that no message on its
way holds up the clock; busy is then all of end - start. Nothing else in a step waits for it. No
step has run on one yet.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from hydraplan.activations import held_shares
from hydraplan.errors import RunFailed
from hydraplan.executor.data import Slot
from hydraplan.executor.decoder import Weights
from hydraplan.executor.groups import Groups
from hydraplan.executor.held import Held
from hydraplan.executor.moved import Moved
from hydraplan.executor.stage import Stage
from hydraplan.executor.transport import Transport, reason
from hydraplan.kernels.attention import AttentionKernel
from hydraplan.kernels.exchange import totals
from hydraplan.kernels.nested import nested_attention
from hydraplan.model import FloatArray, Op
from hydraplan.planner.pipeline.lowering import Message, Step, incoming, lane_steps, outgoing
from hydraplan.route import Route


@dataclass(frozen=True, slots=True)
class Worker:
    """What a process holds from the first step to the last.

    `plan_digest`: of the plan, where every message is checked by a header before it.
    """

    groups: Groups
    route: Route
    stage: Stage
    kernel: AttentionKernel
    is_one_host: bool
    device: torch.device
    plan_digest: str | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """One worker's share of a step.

    `op_s`: start, end, busy, group wait and transfer seconds of every op, shape (ops, 5).
    `sync_end_s`: when its gradients were summed. `loss`: its rows' part of the batch's loss (where
    the route ends only). `peak_live_tokens`: most tokens whose activations it held at once.
    `sent_bytes`: in messages between stages, inside groups, and to sum gradients. `peak_bytes`: the
    most that its GPU's allocator held since it began; NaN on a CPU.
    """

    op_s: FloatArray
    sync_end_s: float
    loss: float
    peak_live_tokens: float
    sent_bytes: tuple[int, int, int]
    peak_bytes: float = math.nan


def run_batch(
    worker: Worker,
    steps: Sequence[Step],
    slots: list[Slot],
    valid_tokens: int,
    moved: Moved | None = None,
    slow: float = 1.0,
) -> StepResult:
    """Forward and backward of one batch; leaves summed gradients in the stage's weights.

    `steps` is the lowered list of this stage, `slots` has one entry a microbatch,
    `valid_tokens` counts those of the whole batch. `moved`: what goes to and comes
    from other lanes, None for nothing. A `slow` worker takes so many times as long.

    Raises:
        RunFailed: A peer died or did not answer in time; the op is named.
    """
    stage, rows = worker.stage, [slot.rows for slot in slots]
    moved = moved or Moved(np.zeros((2, len(slots))))
    (steps,) = lane_steps((tuple(steps),), np.array(rows))
    receives = [s.message for s in steps if s.kind == "receive" and s.message is not None]
    transport = Transport(
        worker.groups.world,
        rows,
        len(stage.chunks),
        stage.model.hidden_size,
        stage.compute,
        iter(receives),
        worker.device,
        worker.groups.ways,
        worker.plan_digest,
    )
    shares = np.array([held_shares(stage.model, stage.recompute)]).T
    kept, waits = (shares * rows + moved.tokens).tolist()
    held = Held(kept, waits, len(stage.chunks))
    pace = stage.gradients.pace
    if pace is not None:
        pace.slow, slow = slow, 1.0
    batch = _Batch(worker, slots, valid_tokens, transport, held, moved, slow)
    op_s: list[tuple[float, ...]] = []
    before = totals()
    origin_s = _start_clock(worker.is_one_host)
    for step in steps:
        if step.op is not None:
            op_s.append(batch.run(step.op, origin_s))
            batch.held.measure()
        elif step.kind == "send" and step.message is not None:
            transport.send(step.message, batch.handed.pop(step.message))
        else:
            transport.post()
    transport.finish()
    moved.outbox.finish()
    assert not batch.handed
    assert batch.held.tokens() == 0
    sync_bytes = _sum_gradients(stage.weights, worker.groups)
    _settle(worker.device)
    sync_end_s = time.perf_counter() - origin_s
    loss = _added(batch.losses, valid_tokens)
    after = totals()
    group_bytes = after.sent_bytes - before.sent_bytes
    sent_bytes = transport.sent_bytes, group_bytes, sync_bytes
    most = batch.held.peak_tokens, sent_bytes, peak_bytes(worker.device)
    return StepResult(np.array(op_s), sync_end_s, loss, *most)


def peak_bytes(device: torch.device) -> float:
    """The most that the allocator of a GPU held since the run began; NaN for a CPU."""
    return float(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else math.nan


@dataclass(slots=True)
class _Batch:
    """Where a worker stands in a batch; `handed` waits to be sent, or for another chunk."""

    worker: Worker
    slots: list[Slot]
    valid_tokens: int
    transport: Transport
    held: Held
    moved: Moved
    slow: float
    handed: dict[Message, Tensor] = field(default_factory=dict)
    losses: list[Tensor] = field(default_factory=list)
    waited_s: float = 0.0

    def run(self, op: Op, origin_s: float) -> tuple[float, ...]:
        """Do one op; start, end, busy, group wait and transfer seconds."""
        world, route = self.worker.groups.world, self.worker.route
        try:
            needed = self._arrived(incoming(world.stage, op, route))
            _settle(self.worker.device)
            transfer_s = self.transport.waited_s - self.waited_s
            self.waited_s += transfer_s
            if (pace := self.worker.stage.gradients.pace) is not None:
                pace.begin()
            start_s, worked_s = time.perf_counter(), self._worked_s()
            group_s = totals().wait_s
            made = self._done(op, needed)
            _settle(self.worker.device)
            end_s = time.perf_counter()
            busy_s = min(self._worked_s() - worked_s, end_s - start_s)
            if self.slow > 1:
                time.sleep((self.slow - 1) * busy_s)
                end_s, busy_s = time.perf_counter(), self.slow * busy_s
            group_s = min(totals().wait_s - group_s, end_s - start_s - busy_s)
        except (RuntimeError, RunFailed) as error:
            where = f", chunk {op.chunk}" if route.num_chunks > 1 else ""
            what = f"{op.kind} of microbatch {op.microbatch}{where}"
            raise RunFailed(f"{what}: {reason(error)}") from error
        message = outgoing(world.stage, op, route)
        if message is not None and (message.is_local or self.slots[op.microbatch].rows):
            assert made is not None
            self.handed[message] = made
        return start_s - origin_s, end_s - origin_s, busy_s, group_s, transfer_s

    def _worked_s(self) -> float:
        """Seconds that the worker has worked: of its thread, its parts if paced, its GPU."""
        pace = self.worker.stage.gradients.pace
        if pace is not None:
            return pace.worked_s
        is_gpu = self.worker.device.type == "cuda"
        return time.perf_counter() if is_gpu else time.thread_time()

    def _arrived(self, message: Message | None) -> Tensor | None:
        """What an op waits for: activations before F, their gradient before B and BW."""
        if message is None:
            return None
        if message.is_local:
            return self.handed.pop(message)
        return self.transport.receive(message)

    def _done(self, op: Op, incoming_TC: Tensor | None) -> Tensor | None:
        """What an op hands on, if anybody waits for it."""
        kind, m, chunk, _ = op
        if kind == "F":
            return self._forward(m, chunk, incoming_TC)
        if kind == "W":
            waiting = self.held.waiting.pop((m, chunk))
            while waiting:
                waiting.pop()()
            return None
        passed = self.held.passed.pop((m, chunk))
        gradient = incoming_TC
        if gradient is None:
            weight, device = 1 / self.valid_tokens, self.worker.device
            gradient = torch.full((), weight, dtype=torch.float64, device=device)
        found_TC, waiting = self.worker.stage.backward(
            chunk, self.slots[m], passed, gradient, put_off=kind == "B"
        )
        if kind == "B":
            self.held.waiting[m, chunk] = waiting
        return found_TC

    def _forward(self, m: int, chunk: int, incoming_TC: Tensor | None) -> Tensor:
        worker, slot = self.worker, self.slots[m]

        def attend(q_THD: Tensor, k_TGD: Tensor, v_TGD: Tensor) -> Tensor:
            engine = slot.layout, worker.groups, worker.kernel, self.moved.loans.get(m)
            return nested_attention(q_THD, k_TGD, v_TGD, *engine)

        trip = self.moved.rows.get(m)
        shared = None if trip is None else trip.shared
        passed, output = worker.stage.forward(chunk, slot, incoming_TC, attend, shared)
        self.held.passed[m, chunk] = passed
        if worker.stage.chunks[chunk].is_last:
            self.losses.append(output)
        return output


def _added(losses: Sequence[Tensor], valid_tokens: int) -> float:
    """This worker's part of the loss, in the order of its forwards."""
    total = 0.0
    for loss in losses:
        total += float(loss) / valid_tokens
    return total


def _settle(device: torch.device) -> None:
    """Let a GPU finish what it was asked to compute; a CPU has done so when an op returns."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def _sum_gradients(weights: Weights, groups: Groups) -> int:
    """Sum the gradients of all lanes of the stage, in one message; bytes that a ring sends."""
    gradients = [w.grad for w in weights.values()]
    assert all(g is not None for g in gradients)
    ranks = groups.world.ranks
    if ranks == 1:
        return 0
    flat = torch.cat([g.flatten() for g in gradients if g is not None])
    try:
        dist.all_reduce(flat, group=groups.pool)
    except RuntimeError as error:
        raise RunFailed(f"gradient sync: {reason(error)}") from error
    start = 0
    for weight in weights.values():
        weight.grad = flat[start : start + weight.numel()].view_as(weight)
        start += weight.numel()
    return 2 * (ranks - 1) * flat.nbytes // ranks


def _start_clock(is_one_host: bool) -> float:
    """Meet all workers; the clock's origin, one for all where they share a clock."""
    now = torch.tensor([time.perf_counter()], dtype=torch.float64)
    try:
        dist.all_reduce(now, dist.ReduceOp.MAX)
    except RuntimeError as error:
        raise RunFailed(f"start of the step: {reason(error)}") from error
    return float(now) if is_one_host else time.perf_counter()
