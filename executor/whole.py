"""What whole packed microbatches take on one rank, by the executor's own code.

A profile times single calls over and over. In a step, caches are cold, memory is fresh and every
layer has other weights; whether the parts add up can only be seen on the whole. So F, B and W of
packed microbatches of real lengths are timed as a rank with all their rows runs them, beside what a
fit predicts, through a few layers between embedding and loss. Nothing is fitted to them.

Source: the check is ours.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hydraplan.config import ModelShape
from hydraplan.cost import CostModel
from hydraplan.costfit import CostFit
from hydraplan.executor.data import Slot, generated_tokens, load_slot
from hydraplan.executor.decoder import ACCUMULATOR, weight_shapes
from hydraplan.executor.split_linear import Work
from hydraplan.executor.stage import Chunk, Passed, Stage
from hydraplan.files.profilefile import WholeCheck
from hydraplan.kernels.attention import AttentionKernel
from hydraplan.kernels.nested import nested_attention
from hydraplan.kernels.packing import rank_layout
from hydraplan.model import FloatArray, IntArray, Sequences
from hydraplan.profiler.measure import Device, Timer
from hydraplan.slots import slot_times

MOST_LAYERS = 4
"""Layers of the check; more would take as long again and tell the same."""

REPEATS = 3
"""Timed passes over a microbatch, after one that warms up."""


LEAST_ROWS, MOST_ROWS = 512, 1 << 16
"""Rows of the largest microbatch of a file: no check below the first, none beyond the second."""

SEED = 20261130


class Microbatch(NamedTuple):
    """Lengths of the sequences of a microbatch, and the name of what they were drawn from."""

    name: str
    length_tokens: IntArray


class Ends(NamedTuple):
    """Which parts of the model a stage has: layers, embedding, head."""

    num_layers: int
    has_embedding: bool = True
    has_head: bool = True


def packed(lengths: IntArray, rows: int, rng: np.random.Generator) -> IntArray:
    """Lengths drawn until they fill `rows`, the last one cut to fit."""
    found, left = [], rows
    while left > 0:
        length = min(int(rng.choice(lengths)), left)
        found.append(length)
        left -= length
    return np.array(found, np.int64)


def predicted_s(fit: CostFit, model: ModelShape, microbatch: Microbatch) -> FloatArray:
    """Seconds of F, B and W of a microbatch on one nominal rank, (3,)."""
    layers = ((_num_layers(model),),)
    cost = CostModel(fit, model, tp=1, pp=1, ranks=1, layers=layers)
    placed = one_rank(microbatch.length_tokens)
    result: FloatArray = slot_times(cost, placed, 1).op_s[:, 0, 0, 0, 0]
    return result


def microbatches(
    model: ModelShape, fit: CostFit, files: Sequence[tuple[str, IntArray]], budget_s: float
) -> list[Microbatch]:
    """Microbatches of each file's lengths, as large as the fit says `budget_s` seconds allow.

    Of every file one of so many rows, one of half and one of a quarter. None if not even those of
    `LEAST_ROWS` fit.
    """
    best: list[Microbatch] = []
    rows = LEAST_ROWS
    while True:
        rng = np.random.default_rng(SEED)
        found = [
            Microbatch(name, packed(lengths, rows // part, rng))
            for name, lengths in files
            for part in (1, 2, 4)
        ]
        needed_s = (REPEATS + 1) * sum(float(predicted_s(fit, model, m).sum()) for m in found)
        if needed_s > budget_s or rows > MOST_ROWS:
            return best
        best, rows = found, 2 * rows


def check_whole(
    model: ModelShape,
    kernel: AttentionKernel,
    device: Device,
    fit: CostFit,
    microbatches: Sequence[Microbatch],
) -> Iterator[WholeCheck]:
    """Time every microbatch, one after the other."""
    if not microbatches:
        return
    stage = random_stage(model, Ends(_num_layers(model)), device.torch_device)
    for microbatch in microbatches:
        slot = whole_slot(microbatch.length_tokens, model, device.torch_device)
        run = partial(whole_pass, stage, slot, kernel, device.timer)
        run()
        measured_s = np.min([run() for _ in range(REPEATS)], axis=0)
        yield WholeCheck(
            lengths=microbatch.name,
            num_sequences=len(microbatch.length_tokens),
            num_tokens=int(microbatch.length_tokens.sum()),
            longest_tokens=int(microbatch.length_tokens.max()),
            num_layers=_num_layers(model),
            predicted_s=tuple(predicted_s(fit, model, microbatch).tolist()),
            measured_s=tuple(measured_s.tolist()),
        )


def whole_pass(
    stage: Stage, slot: Slot, kernel: AttentionKernel, timer: Timer
) -> tuple[float, float, float]:
    """Seconds of one F, B and W."""
    passed: list[Passed] = []
    waiting: list[Work] = []
    weight = torch.ones((), dtype=torch.float64, device=slot.ids_T.device)

    def attend(q_THD: Tensor, k_TGD: Tensor, v_TGD: Tensor) -> Tensor:
        return nested_attention(q_THD, k_TGD, v_TGD, slot.layout, None, kernel)

    def forward() -> None:
        passed.append(stage.forward(0, slot, None, attend)[0])

    def backward() -> None:
        waiting.extend(stage.backward(0, slot, passed.pop(), weight, put_off=True)[1])

    def weights() -> None:
        while waiting:
            waiting.pop(0)()

    forward_s, backward_s, weights_s = (timer(op).seconds for op in (forward, backward, weights))
    return forward_s, backward_s, weights_s


def random_stage(model: ModelShape, ends: Ends, device: torch.device) -> Stage:
    """A stage of so many layers, with random weights made on the device, to be timed only."""
    compute = getattr(torch, model.dtype)
    held = range(ends.num_layers)
    weights = {}
    for name, shape in weight_shapes(model, held, ends.has_embedding, ends.has_head).items():
        value = torch.randn(shape, device=device, dtype=ACCUMULATOR[compute])
        weights[name] = value.mul_(shape[0] ** -0.5 if len(shape) > 1 else 1.0).requires_grad_()
    chunk = Chunk(held, ends.has_embedding, ends.has_head)
    return Stage(model, (chunk,), compute, weights)


def whole_slot(length_tokens: IntArray, model: ModelShape, device: torch.device) -> Slot:
    """Whole sequences packed on one rank, with generated ids."""
    placed = one_rank(length_tokens)
    return load_slot(
        rank_layout(placed, 0, 0), placed, generated_tokens(0, model.vocab_size), device
    )


def one_rank(length_tokens: IntArray) -> Sequences:
    """A batch of one microbatch on one rank."""
    count = len(length_tokens)
    zeros, ones = np.zeros(count, np.int64), np.ones(count, np.int64)
    return Sequences(
        sequence_id=np.arange(count, dtype=np.int64),
        length_tokens=length_tokens,
        valid_tokens=length_tokens - 1,
        microbatch=zeros,
        order=np.arange(count, dtype=np.int64),
        first_rank=zeros,
        degree=ones,
        ulysses_size=ones,
        ring_size=ones,
        rank_tokens_max=length_tokens,
        predicted_s=np.zeros(count),
        status=tuple(["placed"] * count),
    )


def _num_layers(model: ModelShape) -> int:
    return min(MOST_LAYERS, model.num_layers)
