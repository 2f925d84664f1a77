"""The nested engine on forked gloo ranks against the naive oracle, sequence by sequence."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

from hydraplan.errors import InputError, RunFailed
from hydraplan.kernels.attention import choose_kernel
from hydraplan.kernels.nested import nested_attention
from hydraplan.kernels.packing import rank_layout
from hydraplan.kernels.reference import reference_attention
from hydraplan.layout import rank_positions
from hydraplan.model import Sequences
from tests.processes import run_ranks

HEAD_DIM = 8
Placement = tuple[int, int, int, int]
"""Length, first lane, ulysses_size, ring_size of one sequence."""


def sequences(rows: list[Placement]) -> Sequences:
    """Placed sequences of microbatch 0, in the global order: degree descending, then id."""
    table = np.array(rows, np.int64).reshape(-1, 4)
    length, first, u, r = table.T
    ids = np.argsort(-u * r, kind="stable")
    order = np.empty_like(ids)
    order[ids] = np.arange(len(ids))
    zeros = np.zeros(len(rows), np.int64)
    every = Sequences(
        sequence_id=np.arange(len(rows), dtype=np.int64),
        length_tokens=length,
        valid_tokens=length,
        microbatch=zeros,
        order=order,
        first_rank=first,
        degree=u * r,
        ulysses_size=u,
        ring_size=r,
        rank_tokens_max=zeros,
        predicted_s=zeros.astype(float),
        status=("placed",) * len(rows),
    )
    return every.placed()


@dataclass
class WorldGroups:
    """Lanes are world ranks; every aligned group of a power of two is made in the same order."""

    size: int

    def __post_init__(self) -> None:
        self.made = {
            (first, width): dist.new_group(list(range(first, first + width)))
            for width in (2, 4, 8)
            for first in range(0, self.size - width + 1)
        }

    def inner(self, first_lane: int, size: int) -> dist.ProcessGroup:
        return self.made[first_lane, size]

    def world_rank(self, lane: int) -> int:
        return lane


def whole(length: int, sequence_id: int, heads: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * sequence_id + heads)
    return torch.randn(length, heads, HEAD_DIM, generator=generator, dtype=torch.float64).to(dtype)


def oracle(
    placed: Sequences, heads: int, kv_heads: int, dtype: torch.dtype
) -> dict[int, list[torch.Tensor]]:
    """Output, dq, dk, dv of every whole sequence in float64, from values rounded to dtype."""
    answers = {}
    for length, i in zip(placed.length_tokens.tolist(), placed.sequence_id.tolist(), strict=True):
        q, k, v = parts(length, i, heads, kv_heads, dtype)
        leaves = [x.double().requires_grad_() for x in (q, k, v)]
        out = reference_attention(*leaves)
        out.backward(whole(length, i, heads, dtype).double().cos())
        answers[i] = [out.detach(), *(x.grad for x in leaves)]
    return answers


def parts(
    length: int, i: int, heads: int, kv_heads: int, dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    return (
        whole(length, 1_000 + i, heads, dtype),
        whole(length, 2_000 + i, kv_heads, dtype),
        whole(length, 3_000 + i, kv_heads, dtype),
    )


def local(placed: Sequences, lane: int, whole_by_id: dict[int, torch.Tensor]) -> torch.Tensor:
    """Rows of one lane cut out of whole sequences by `hydraplan.layout` alone."""
    pieces = []
    for length, i, first, u, r in zip(
        placed.length_tokens.tolist(),
        placed.sequence_id.tolist(),
        placed.first_rank.tolist(),
        placed.ulysses_size.tolist(),
        placed.ring_size.tolist(),
        strict=True,
    ):
        if first <= lane < first + u * r:
            pieces.append(whole_by_id[i][rank_positions(length, u, r, lane - first)])
    return torch.cat([next(iter(whole_by_id.values()))[:0], *pieces])


def errors(
    rank: int,
    rows: list[Placement],
    heads: int,
    kv_heads: int,
    dtype: torch.dtype,
    kernel: str = "cpu",
    recompute: bool = False,
) -> list[float]:
    """Largest absolute error of out, dq, dk, dv on this rank."""
    placed = sequences(rows)
    layout = rank_layout(placed, 0, rank)
    right = oracle(placed, heads, kv_heads, dtype)
    inputs: list[dict[int, torch.Tensor]] = [{}, {}, {}]
    dout = {}
    for length, i in zip(placed.length_tokens.tolist(), placed.sequence_id.tolist(), strict=True):
        for into, x in zip(inputs, parts(length, i, heads, kv_heads, dtype), strict=True):
            into[i] = x
        dout[i] = whole(length, i, heads, dtype).double().cos().to(dtype)
    leaves = [local(placed, rank, x).requires_grad_() for x in inputs]
    chosen = choose_kernel(torch.device("cpu"), dtype, kernel)
    arguments = (*leaves, layout, WorldGroups(dist.get_world_size()), chosen)
    if recompute:
        out = checkpoint(nested_attention, *arguments, use_reentrant=False)
    else:
        out = nested_attention(*arguments)
    out.backward(local(placed, rank, dout))
    found = [out.detach(), *(x.grad for x in leaves)]
    result = []
    for which, value in enumerate(found):
        assert value is not None
        expected = local(placed, rank, {i: answer[which] for i, answer in right.items()})
        assert value.shape == expected.shape
        assert value.dtype == dtype
        result.append(float((value.double() - expected).abs().max()) if value.numel() else 0.0)
    return result


MIXED: list[Placement] = [
    *((length, 0, 1, 4) for length in (333, 1, 2)),
    *((length, 0, 2, 2) for length in (64, 3, 1_003)),
    *((length, 0, 4, 1) for length in (5, 7, 130)),
    *((length, 0, 1, 2) for length in (1, 63)),
    *((length, 2, 2, 1) for length in (2, 3, 97)),
    *((length, 1, 2, 1) for length in (19, 1)),
    *((length, lane, 1, 1) for lane in (0, 1, 3) for length in (1, 7, 64)),
]
"""Every legal (ulysses_size, ring_size) of degrees 1, 2 and 4, groups that overlap askew."""


@pytest.mark.dist
@pytest.mark.parametrize("kv_heads", [8, 2, 1])
def test_four_ranks_match_the_naive_oracle_in_float64(kv_heads: int):
    out, dq, dk, dv = np.max(run_ranks(errors, 4, MIXED, 8, kv_heads, torch.float64), axis=0)
    assert out <= 1e-12
    assert max(dq, dk, dv) <= 1e-10


@pytest.mark.dist
@pytest.mark.parametrize("kv_heads", [8, 2, 1])
def test_four_ranks_match_the_naive_oracle_in_float32(kv_heads: int):
    worst = np.max(run_ranks(errors, 4, MIXED, 8, kv_heads, torch.float32), axis=0)
    assert max(worst) <= 2e-5
