"""Run what one rank computes of one decoder layer, in a world whose other ranks answer at once.

The code is the executor's own: its stage, its nested attention, its index maps. Only the wire is
not there: the world is a process group in which a message or an all-to-all that comes in is a copy
of random numbers on the device, and one that goes out is nothing. So a rank takes what it computes
(kernels of all ring hops on its own heads, merging, moving heads, linears, element-wise work) plus
one write of all that arrives, whose bytes are counted, and never waits.

Times are medians of a few samples after one that warms up; no cache is flushed, since a layer's
inputs come warm from the layer before.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from hydraplan.config import ModelShape
from hydraplan.executor.data import Slot
from hydraplan.executor.stage import Passed, Stage
from hydraplan.executor.whole import Ends, random_stage
from hydraplan.kernels.attention import AttentionKernel
from hydraplan.kernels.nested import nested_attention
from hydraplan.kernels.packing import RankLayout
from hydraplan.profiler.measure import Timer

BACKEND = "answering"
SAMPLES = 3
OPS = ("F", "B", "W", "attention forward", "attention backward")
"""What is timed: the three ops of a layer, and its attention once more by itself."""


class Done(dist.Work):
    """A message that has come."""

    def wait(self, timeout: object = None) -> bool:
        """At once."""
        return True


class Answering(dist.ProcessGroup):
    """A world in which everything arrives as soon as it is asked for; counts its bytes."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.arrived_bytes = 0
        self._numbers: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def getBackendName(self) -> str:
        """As it is registered."""
        return BACKEND

    def alltoall_base(self, received: Tensor, *_: Any) -> Done:
        """All rows of all peers are there."""
        self._fill(received)
        return Done()

    def send(self, *_: Any) -> Done:
        """Nobody waits for it."""
        return Done()

    def recv(self, received: list[Tensor], *_: Any) -> Done:
        """It has come."""
        for tensor in received:
            self._fill(tensor)
        return Done()

    def _fill(self, tensor: Tensor) -> None:
        key = tensor.device, tensor.dtype
        known = self._numbers.get(key)
        if known is None or len(known) < tensor.numel():
            known = torch.randn(tensor.numel(), device=tensor.device).to(tensor.dtype)
            self._numbers[key] = known
        tensor.view(-1).copy_(known[: tensor.numel()])
        self.arrived_bytes += tensor.nbytes


class Lanes(NamedTuple):
    """Where the engine finds the lanes of a pool: all in the one world, none of them this process.

    `batched_hops` as by default.
    """

    world: Answering
    batched_hops: bool = True

    def inner(self, first_lane: int, size: int) -> dist.ProcessGroup:
        """The world, for every group."""
        return self.world

    def world_rank(self, lane: int) -> int:
        """Rank 0 is this process, whichever lane it plays."""
        return lane + 1


def _join(store: object, rank: int, size: int, timeout: object) -> Answering:
    return Answering(rank, size)


@contextmanager
def answering_lanes(ranks: int) -> Iterator[Lanes]:
    """Lanes of a pool of so many ranks."""
    if not hasattr(dist.Backend, BACKEND.upper()):
        dist.Backend.register_backend(BACKEND, _join, devices=["cpu", "cuda"])
    dist.init_process_group(BACKEND, rank=0, world_size=ranks + 1, store=dist.HashStore())
    world = dist.group.WORLD
    assert isinstance(world, Answering)
    try:
        yield Lanes(world)
    finally:
        dist.destroy_process_group()


class Layer(NamedTuple):
    """One decoder layer on a device, and what it is run with."""

    stage: Stage
    kernel: AttentionKernel
    device: torch.device
    timer: Timer


class Replayed(NamedTuple):
    """Seconds of `OPS`, and bytes that arrived in one F and B.

    Of an all-to-all those that a rank hands itself count as well, since they are written, too.
    """

    op_s: tuple[float, ...]
    arrived_bytes: int


def make_layer(
    model: ModelShape, kernel: AttentionKernel, device: torch.device, timer: Timer
) -> Layer:
    """A layer with random weights: no embedding before it, no head after it."""
    stage = random_stage(model, Ends(1, has_embedding=False, has_head=False), device)
    return Layer(stage, kernel, device, timer)


def replay(layer: Layer, layout: RankLayout, lanes: Lanes, samples: int = SAMPLES) -> Replayed:
    """Times of the layer on the rows of one rank, medians of so many samples after one more."""
    model, compute = layer.stage.model, layer.stage.compute

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, device=layer.device).to(compute)

    def attend(q_THD: Tensor, k_TGD: Tensor, v_TGD: Tensor) -> Tensor:
        return nested_attention(q_THD, k_TGD, v_TGD, layout, lanes, layer.kernel)

    positions_T = torch.from_numpy(layout.positions).to(layer.device)
    slot = Slot(layout, positions_T, positions_T, positions_T)
    x_TC, dy_TC = (random(layout.rows, model.hidden_size) for _ in range(2))
    heads = (model.num_heads, model.num_kv_heads, model.num_kv_heads, model.num_heads)
    q, k, v, dout = (random(layout.rows, count, model.head_dim) for count in heads)
    found, before = [], 0
    for sample in range(1 + samples):
        if sample == samples:
            before = lanes.world.arrived_bytes
        times = _layer_s(layer, slot, x_TC, dy_TC, attend)
        if sample == samples:
            before = lanes.world.arrived_bytes - before
        found.append((*times, *_attention_s(layer.timer, (q, k, v), dout, attend)))
    return Replayed(tuple(np.median(found[1:], axis=0).tolist()), before)


def _layer_s(
    layer: Layer, slot: Slot, x_TC: Tensor, dy_TC: Tensor, attend: Callable[..., Tensor]
) -> tuple[float, float, float]:
    """F, B and W, one after the other, as a step runs them."""
    passed: list[Passed] = []
    waiting: list[Callable[[], None]] = []

    def forward() -> None:
        passed.append(layer.stage.forward(0, slot, x_TC, attend)[0])

    def backward() -> None:
        waiting.extend(layer.stage.backward(0, slot, passed.pop(), dy_TC, put_off=True)[1])

    def weight() -> None:
        while waiting:
            waiting.pop()()

    forward_s, backward_s = layer.timer(forward).seconds, layer.timer(backward).seconds
    return forward_s, backward_s, layer.timer(weight).seconds


def _attention_s(
    timer: Timer, inputs: tuple[Tensor, ...], dout_THD: Tensor, attend: Callable[..., Tensor]
) -> tuple[float, float]:
    leaves = [x.requires_grad_() for x in inputs]
    made: list[Tensor] = []
    forward_s = timer(lambda: made.append(attend(*leaves))).seconds
    backward_s = timer(lambda: torch.autograd.grad(made.pop(), leaves, dout_THD)).seconds
    return forward_s, backward_s
