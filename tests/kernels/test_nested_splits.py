"""What a head split must not change: bits, the error in bfloat16, recomputation."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hydraplan.heads import HeadSplit, contiguous_split
from hydraplan.kernels.attention import choose_kernel
from hydraplan.kernels.nested import nested_attention
from hydraplan.kernels.packing import BucketKey, rank_layout
from hydraplan.layout import legal_ulysses
from tests.attention_cases import Tensors, WorldGroups, oracle, shares, whole_tensors
from tests.builders import Place, placed_sequences
from tests.processes import run_ranks

HEADS, KV_HEADS, HEAD_DIM = 12, 4, 8
CPU = torch.device("cpu")
Splits = dict[BucketKey, HeadSplit]
PLACES = [Place(299, 0, 4, 1), Place(301, 0, 2, 2), Place(3, 0, 4, 1), Place(130, 0, 1, 4)]
WHOLE_GROUPS: Splits = {
    (0, 4, 1): contiguous_split(HEADS, KV_HEADS, [[6, 0, 3, 3]]),
    (0, 2, 2): contiguous_split(HEADS, KV_HEADS, [[9, 3], [9, 3]]),
}
CUT_GROUPS: Splits = {
    (0, 4, 1): HeadSplit(HEADS, KV_HEADS, (((1, 2, 3, 7), (0, 11), (4, 5, 6, 8, 9, 10), ()),)),
    (0, 2, 2): contiguous_split(HEADS, KV_HEADS, [[7, 5], [2, 10]]),
}


def attend(
    rank: int,
    whole: Tensors,
    splits: Splits,
    dtype: torch.dtype,
    groups: WorldGroups,
    places: list[Place] = PLACES,
) -> tuple[Tensor, ...]:
    """Output, dq, dk, dv of a rank."""
    placed = placed_sequences(places)
    *qkv, dout = (x.to(dtype) for x in shares(placed, rank, whole))
    leaves = [x.clone().requires_grad_() for x in qkv]
    kernel = choose_kernel(CPU, dtype)
    out = nested_attention(*leaves, rank_layout(placed, 0, rank, splits), groups, kernel)
    return (out.detach(), *torch.autograd.grad(out, leaves, dout))


def differences(rank: int) -> Iterator[list[bool]]:
    """Whether out, dq, dk and dv of uneven splits are those of the even one, bit for bit."""
    groups = WorldGroups(4)
    whole = whole_tensors(placed_sequences(PLACES), HEADS, KV_HEADS, HEAD_DIM)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        even, *others = (
            attend(rank, whole, splits, dtype, groups) for splits in ({}, WHOLE_GROUPS, CUT_GROUPS)
        )
        for other in others:
            yield [torch.equal(a, b) for a, b in zip(even, other, strict=True)]


@pytest.mark.dist
def test_a_split_changes_no_bit_of_output_and_dq_and_of_no_gradient_if_no_kv_group_is_cut():
    same = np.all(run_ranks(lambda rank: list(differences(rank)), 4), axis=0)
    assert same[:, :2].all()
    assert same[::2].all()
    assert not same[1::2, 2:].any(), "partial sums of a cut group are expected to round otherwise"


def bfloat16_ratios(
    places: list[Place], heads: int, kv_heads: int, cases: list[Splits], ranks: int
) -> list[list[float]]:
    """Error of out, dq, dk and dv over that of the kernel in one process, of every split."""
    placed = placed_sequences(places)
    whole = {
        i: tuple(x.bfloat16() for x in parts)
        for i, parts in whole_tensors(placed, heads, kv_heads, HEAD_DIM).items()
    }
    right = oracle(whole)
    kernel = choose_kernel(CPU, torch.bfloat16)
    alone: Tensors = {}
    for i, (q, k, v, dout) in whole.items():
        case = ((0, len(q)), (0, len(q)), True, HEAD_DIM**-0.5)
        out, lse = kernel.forward(q, k, v, *case)
        alone[i] = (out, *kernel.backward(dout, q, k, v, out, lse, *case))

    def squared_errors(rank: int) -> list[list[float]]:
        groups = WorldGroups(ranks)
        found = [attend(rank, whole, splits, torch.bfloat16, groups, places) for splits in cases]
        exact = shares(placed, rank, right)
        return [
            [float((x.double() - y).square().sum()) for x, y in zip(value, exact, strict=True)]
            for value in (shares(placed, rank, alone), *found)
        ]

    single, *nested = np.sum(run_ranks(squared_errors, ranks), axis=0) ** 0.5
    return (np.array(nested) / single).tolist()


@pytest.mark.dist
def test_bfloat16_is_no_worse_than_one_process():
    ratios = bfloat16_ratios(PLACES, HEADS, KV_HEADS, [{}, WHOLE_GROUPS, CUT_GROUPS], 4)
    assert np.max(ratios) <= 1.5, ratios


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 8), (8, 2), (8, 1)])
def test_bfloat16_is_no_worse_on_every_group_of_eight_ranks(heads, kv_heads):
    for u in legal_ulysses(heads, kv_heads, 8):
        places = [Place(n, 0, u, 8 // u) for n in (517, 301)]
        uneven = contiguous_split(heads, kv_heads, [[heads - u + 1, *[1] * (u - 1)]] * (8 // u))
        ratios = bfloat16_ratios(places, heads, kv_heads, [{}, {(0, u, 8 // u): uneven}], 8)
        assert np.max(ratios) <= 1.5, (u, ratios)


def two_layers(rank: int) -> list[bool]:
    """Whether gradients of two layers are the same with and without recomputation.

    The first lane holds no row of any sequence, but is a member of two groups.
    """
    placed = placed_sequences([Place(3, 0, 4, 1), Place(1, 2, 1, 2), Place(1, 0, 2, 1)])
    layout = rank_layout(placed, 0, rank, {(0, 4, 1): CUT_GROUPS[0, 4, 1]})
    kernel, groups = choose_kernel(CPU, torch.float64), WorldGroups(4)
    qkv = shares(placed, rank, whole_tensors(placed, HEADS, KV_HEADS, HEAD_DIM))[:3]
    assert (len(qkv[0]) == 0) == (rank == 0)

    def layer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return nested_attention(q, k, v, layout, groups, kernel)

    def gradients(recompute: bool) -> tuple[Tensor, ...]:
        leaves = [x.double().requires_grad_() for x in qkv]
        q, k, v = leaves
        for _ in range(2):
            q = checkpoint(layer, q, k, v, use_reentrant=False) if recompute else layer(q, k, v)
        return torch.autograd.grad(q.square().sum(), leaves)

    kept, again = gradients(False), gradients(True)
    dist.barrier()
    return [torch.equal(a, b) for a, b in zip(kept, again, strict=True)]


@pytest.mark.dist
def test_recomputed_layers_give_the_same_gradients_with_a_lane_that_owns_no_row():
    assert np.all(run_ranks(two_layers, 4))
