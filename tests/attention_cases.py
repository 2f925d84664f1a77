"""Attention of whole sequences and a lane's share of it, for tests of the engine.

Everything random follows from a seed, so that forked ranks need not talk about it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from hydraplan.kernels.reference import reference_attention
from hydraplan.layout import rank_positions
from hydraplan.model import Sequences


@dataclass
class WorldGroups:
    """Lane i of the stage is world rank i + `offset`; all groups are made, in one order.

    They are only handed out if `grouped`.
    """

    size: int
    offset: int = 0
    batched_hops: bool = True
    grouped: bool = True

    def __post_init__(self) -> None:
        self.made = {
            (first, width): dist.new_group([first + i + self.offset for i in range(width)])
            for width in range(2, self.size + 1)
            for first in range(self.size - width + 1)
        }

    def inner(self, first_lane: int, size: int) -> dist.ProcessGroup | None:
        return self.made[first_lane, size] if self.grouped else None

    def world_rank(self, lane: int) -> int:
        return lane + self.offset


Tensors = dict[int, tuple[Tensor, ...]]
"""Whole tensors of every sequence by its id."""


def whole_tensors(placed: Sequences, heads: int, kv_heads: int, head_dim: int = 8) -> Tensors:
    """q, k, v and the upstream gradient of every whole sequence; float32 values."""
    generator = torch.Generator().manual_seed(kv_heads)
    return {
        i: tuple(
            torch.randn(length, n, head_dim, generator=generator)
            for n in (heads, kv_heads, kv_heads, heads)
        )
        for length, i in zip(
            placed.length_tokens.tolist(), placed.sequence_id.tolist(), strict=True
        )
    }


def oracle(whole: Tensors) -> Tensors:
    """Output, dq, dk, dv of every whole sequence by the naive kernel in float64."""
    answers = {}
    for i, (*qkv, dout) in whole.items():
        leaves = [x.double().requires_grad_() for x in qkv]
        out = reference_attention(*leaves)
        answers[i] = (out.detach(), *torch.autograd.grad(out, leaves, dout.double()))
    return answers


def shares(placed: Sequences, lane: int, whole: Tensors) -> list[Tensor]:
    """Rows of one lane, cut out of whole tensors by `hydraplan.layout` alone."""
    pieces = [[x[:0]] for x in next(iter(whole.values()))]
    columns = (placed.length_tokens, placed.first_rank, placed.ulysses_size, placed.ring_size)
    for i, length, first, u, r in zip(placed.sequence_id.tolist(), *columns, strict=True):
        if first <= lane < first + u * r:
            rows = torch.from_numpy(rank_positions(int(length), int(u), int(r), int(lane - first)))
            for piece, x in zip(pieces, whole[i], strict=True):
                piece.append(x[rows])
    return [torch.cat(piece) for piece in pieces]


@contextmanager
def sent_here() -> Iterator[list[int]]:
    """Bytes of every message this rank gives to another, as they are made."""
    sizes: list[int] = []
    all_to_all, message = dist.all_to_all_single, dist.P2POp

    def counting_all_to_all(output, given, output_rows, input_rows, group):
        own = input_rows[dist.get_rank(group)]
        sizes.append((len(given) - own) * given[:1].numel() * given.element_size())
        return all_to_all(output, given, output_rows, input_rows, group=group)

    def counting_message(op, tensor, peer, tag):
        if op is dist.isend:
            sizes.append(tensor.nbytes)
        return message(op, tensor, peer, tag=tag)

    dist.all_to_all_single, dist.P2POp = counting_all_to_all, counting_message
    try:
        yield sizes
    finally:
        dist.all_to_all_single, dist.P2POp = all_to_all, message
