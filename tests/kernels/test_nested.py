"""The nested engine on forked gloo ranks against the naive oracle, sequence by sequence."""

import gc
import weakref
from itertools import product

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from hydraplan.config import ModelShape, load_cluster
from hydraplan.cost import CostModel
from hydraplan.errors import InputError, RunFailed
from hydraplan.heads import even_split
from hydraplan.kernels.attention import choose_kernel
from hydraplan.kernels.exchange import totals
from hydraplan.kernels.nested import nested_attention
from hydraplan.kernels.packing import rank_layout
from hydraplan.layout import rank_positions
from hydraplan.model import Sequences
from hydraplan.profiler.analytic import analytic_fit
from hydraplan.traffic import sent_bytes
from tests.attention_cases import (
    Tensors,
    WorldGroups,
    oracle,
    sent_here,
    shares,
    whole_tensors,
)
from tests.builders import Place, placed_sequences
from tests.processes import run_ranks

HEADS, HEAD_DIM = 8, 8
CPU = torch.device("cpu")


def on(first_lane: int, u: int, r: int, *lengths: int) -> list[Place]:
    return [Place(length, first_lane, u, r) for length in lengths]


MIXED = [
    *on(0, 1, 4, 333, 1, 2),
    *on(0, 2, 2, 64, 3, 1_003),
    *on(0, 4, 1, 5, 7, 130),
    *on(0, 1, 2, 1, 63),
    *on(2, 2, 1, 2, 3, 97),
    *on(1, 2, 1, 19, 1),
    *on(0, 1, 1, 1, 7, 64),
    *on(3, 1, 1, 1, 333),
]
"""Every (ulysses_size, ring_size) of degrees 1, 2 and 4, groups that overlap askew."""

EIGHT = [
    *on(0, 1, 8, 5, 1_003, 1),
    *on(0, 2, 4, 333, 7),
    *on(0, 4, 2, 64, 3, 501),
    *on(0, 8, 1, 2, 129, 5),
    *on(2, 2, 2, 97, 4),
    *on(4, 4, 1, 31, 64),
    *on(5, 1, 2, 11),
    *on(6, 1, 1, 1, 7),
]


def errors(
    rank: int, placed: Sequences, whole: Tensors, right: Tensors, dtype: torch.dtype, kernel: str
) -> list[float]:
    """Largest absolute error of out, dq, dk, dv on this rank."""
    *qkv, dout = (x.to(dtype) for x in shares(placed, rank, whole))
    leaves = [x.requires_grad_() for x in qkv]
    groups = WorldGroups(dist.get_world_size())
    chosen = choose_kernel(CPU, dtype, kernel)
    out = nested_attention(*leaves, rank_layout(placed, 0, rank), groups, chosen)
    found = (out.detach(), *torch.autograd.grad(out, leaves, dout))
    worst = []
    for value, expected in zip(found, shares(placed, rank, right), strict=True):
        assert value.shape == expected.shape
        assert value.dtype == dtype
        worst.append(float((value.double() - expected).abs().max()) if value.numel() else 0.0)
    return worst


def worst_errors(
    places: list[Place], ranks: int, kv_heads: int, dtypes: list[torch.dtype], kernel: str = "cpu"
) -> list[list[float]]:
    """Largest error of out, dq, dk, dv over all ranks, for every dtype."""
    placed = placed_sequences(places)
    whole = whole_tensors(placed, HEADS, kv_heads)
    right = oracle(whole)

    def work(rank: int) -> list[list[float]]:
        return [errors(rank, placed, whole, right, dtype, kernel) for dtype in dtypes]

    result: list[list[float]] = np.max(run_ranks(work, ranks), axis=0).tolist()
    return result


BOTH = [torch.float64, torch.float32]


@pytest.mark.dist
@pytest.mark.parametrize("kv_heads", [8, 2, 1])
def test_four_ranks_match_the_naive_oracle(kv_heads):
    (out, *gradients), narrow = worst_errors(MIXED, 4, kv_heads, BOTH)
    assert out <= 1e-12
    assert max(gradients) <= 1e-10
    assert max(narrow) <= 2e-5


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("kv_heads", [8, 2, 1])
def test_eight_ranks_match_the_naive_oracle(kv_heads):
    (out, *gradients), narrow = worst_errors(EIGHT, 8, kv_heads, BOTH)
    assert out <= 1e-12
    assert max(gradients) <= 1e-10
    assert max(narrow) <= 2e-5


@pytest.mark.dist
def test_the_packed_reference_kernel_serves_the_engine_as_well():
    ((out, *gradients),) = worst_errors(MIXED[:9], 4, 2, [torch.float64], "reference")
    assert out <= 1e-12
    assert max(gradients) <= 1e-10


@pytest.mark.dist
def test_lengths_that_no_ring_divides_lose_no_token():
    places = [*on(0, 1, 2, 7), *on(0, 2, 2, 698), *on(1, 1, 3, 299)]
    ((out, *gradients),) = worst_errors(places, 4, 2, [torch.float64])
    assert out <= 1e-12
    assert max(gradients) <= 1e-10


@pytest.mark.dist
def test_one_token_on_four_ranks_with_three_of_them_empty():
    for u, r in ((1, 4), (2, 2), (4, 1)):
        assert max(*worst_errors(on(0, u, r, 1), 4, 2, [torch.float64])) <= 1e-12


def second_stage(rank: int) -> list[float]:
    """Four ranks, two stages of two lanes; each stage runs its own pair."""
    placed = placed_sequences([*on(0, 1, 2, 33, 4), *on(0, 2, 1, 12)])
    whole = whole_tensors(placed, HEADS, 2)
    stages = [WorldGroups(2, offset) for offset in (0, 2)]
    lane = rank % 2
    q, k, v, _ = (x.double() for x in shares(placed, lane, whole))
    layout = rank_layout(placed, 0, lane)
    out = nested_attention(q, k, v, layout, stages[rank // 2], choose_kernel(CPU, q.dtype))
    return [float((out - shares(placed, lane, oracle(whole))[0]).abs().max())]


@pytest.mark.dist
def test_lanes_of_a_later_stage_find_each_other():
    assert np.max(run_ranks(second_stage, 4)) <= 1e-12


def single(places: list[Place], kv_heads: int = 2, dtype: torch.dtype = torch.float64):
    """Leaves, upstream gradient and layout of lane 0, no groups."""
    placed = placed_sequences(places)
    *qkv, dout = (x.to(dtype) for x in shares(placed, 0, whole_tensors(placed, HEADS, kv_heads)))
    return [x.requires_grad_() for x in qkv], dout, rank_layout(placed, 0, 0)


def test_one_lane_needs_no_groups_and_passes_gradcheck():
    leaves, _, layout = single(on(0, 1, 1, 1, 3), kv_heads=1)
    kernel = choose_kernel(CPU, torch.float64)
    assert torch.autograd.gradcheck(lambda *x: nested_attention(*x, layout, None, kernel), leaves)


def test_a_lane_without_rows_or_groups_runs_forward_and_backward():
    placed = placed_sequences(on(1, 1, 1, 5))
    leaves = [torch.zeros(0, n, HEAD_DIM, requires_grad=True) for n in (HEADS, 2, 2)]
    kernel = choose_kernel(CPU, torch.float32)
    out = nested_attention(*leaves, rank_layout(placed, 0, 0), None, kernel)
    out.sum().backward()
    assert out.shape == leaves[0].shape
    assert all(x.grad is not None and x.grad.shape == x.shape for x in leaves)


def test_packed_neighbours_do_not_see_each_other():
    leaves, _, layout = single(on(0, 1, 1, 9, 6))
    kernel = choose_kernel(CPU, torch.float64)
    before = nested_attention(*leaves, layout, None, kernel)
    with torch.no_grad():
        for x in leaves:
            x[9:] = x[9:].flip(0) * 3
    after = nested_attention(*leaves, layout, None, kernel)
    assert torch.equal(before[:9], after[:9])
    assert not torch.equal(before[9:], after[9:])


def test_strided_inputs_and_an_expanded_upstream_gradient_are_served():
    leaves, _, layout = single(on(0, 1, 1, 3, 8))
    kernel = choose_kernel(CPU, torch.float64)
    right = torch.autograd.grad(
        (nested_attention(*leaves, layout, None, kernel) * 1.0).sum(), leaves
    )
    strided = [torch.stack([x, x], -1).detach().select(-1, 0).requires_grad_() for x in leaves]
    out = nested_attention(*strided, layout, None, kernel)
    grads = torch.autograd.grad(out.sum(), strided)
    for a, b in zip(grads, right, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)


def test_saved_tensors_are_unpacked_once_as_checkpointing_demands():
    leaves, dout, layout = single([*on(0, 1, 1, 3), *on(0, 1, 1, 5)])
    unpacked: list[int] = []

    def pack(x: Tensor) -> tuple[int, Tensor]:
        return id(x), x

    def unpack(packed: tuple[int, Tensor]) -> Tensor:
        unpacked.append(packed[0])
        return packed[1]

    with saved_tensors_hooks(pack, unpack):
        out = nested_attention(*leaves, layout, None, choose_kernel(CPU, torch.float64))
    out.backward(dout)
    assert len(unpacked) == len(set(unpacked)) == 5


def test_the_graph_is_freed_without_the_garbage_collector():
    leaves, _, layout = single(on(0, 1, 1, 4))
    gc.disable()
    try:
        out = nested_attention(*leaves, layout, None, choose_kernel(CPU, torch.float64))
        gone = weakref.ref(out.grad_fn)
        del out
        assert gone() is None
    finally:
        gc.enable()


def test_heads_that_cannot_be_computed_are_refused_before_anything_is_sent():
    placed = placed_sequences(on(0, 4, 1, 64))
    kernel = choose_kernel(CPU, torch.float32)
    q, k, v = (torch.zeros(16, n, HEAD_DIM) for n in (8, 3, 3))
    with pytest.raises(InputError, match="8 query heads are not a multiple of 3 KV heads"):
        nested_attention(q, k, v, rank_layout(placed, 0, 0), None, kernel)
    layout = rank_layout(placed, 0, 0, {(0, 4, 1): even_split(8, 4, 4, 1)})
    q, k, v = (torch.zeros(16, n, HEAD_DIM) for n in (8, 2, 2))
    with pytest.raises(InputError, match="split of 8 query and 4 KV heads is given for 8 and 2"):
        nested_attention(q, k, v, layout, None, kernel)


def absent(rank: int) -> str:
    """Rank 1 never calls attention; what rank 0 says after its time-out."""
    placed = placed_sequences([*on(0, 2, 1, 9), *on(0, 1, 2, 8)])
    groups = WorldGroups(2)
    if rank == 1:
        dist.destroy_process_group()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        return ""
    q, k, v, _ = shares(placed, 0, whole_tensors(placed, HEADS, 2))
    try:
        nested_attention(
            q, k, v, rank_layout(placed, 0, 0), groups, choose_kernel(CPU, torch.float32)
        )
    except RunFailed as error:
        dist.destroy_process_group()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        return str(error)
    return "no error"


@pytest.mark.dist
def test_a_missing_member_is_reported_with_sequences_and_lanes():
    said, _ = run_ranks(absent, 2, timeout_s=20)
    assert said.startswith("attention of sequences 0 on lanes 0..1 failed on member 0: ")


def test_the_mixed_case_holds_every_shape_and_an_empty_rank():
    held = {(p.ulysses_size, p.ring_size) for p in MIXED}
    assert held == {(u, r) for u, r in product((1, 2, 4), repeat=2) if u * r <= 4}
    assert len(rank_positions(1, 1, 4, 3)) == 0


@pytest.mark.dist
@pytest.mark.parametrize("kv_heads", [8, 2, 1])
def test_bytes_on_the_wire_are_exactly_those_of_the_cost_model(kv_heads):
    places = MIXED[:-6]
    placed = placed_sequences(places)
    whole = whole_tensors(placed, HEADS, kv_heads)

    def sent(rank: int) -> int:
        before = totals()
        with sent_here() as sizes:
            errors(rank, placed, whole, right, torch.float32, "cpu")
        counted = totals()
        assert counted.sent_bytes - before.sent_bytes == sum(sizes)
        assert counted.wait_s > before.wait_s
        return sum(sizes)

    right = oracle(whole)
    shape = ModelShape(
        num_layers=1,
        hidden_size=HEADS * HEAD_DIM,
        num_heads=HEADS,
        num_kv_heads=kv_heads,
        head_dim=HEAD_DIM,
        ffn_hidden_size=1,
        vocab_size=1,
        dtype="float32",
    )
    cost = CostModel(analytic_fit(load_cluster("h100-sxm")), shape, 1, 1, 4, ((1,),))
    assert sum(run_ranks(sent, 4)) == sent_bytes(cost, placed).sum()


def forward_bytes(rank: int, heads: int, kv_heads: int) -> list[int]:
    """What a rank sends forward for 64 tokens, nested 2 x 2 and on a ring of four."""
    groups, kernel = WorldGroups(4), choose_kernel(CPU, torch.float32)
    counts = []
    for u, r in ((2, 2), (1, 4)):
        placed = placed_sequences(on(0, u, r, 64))
        q, k, v, _ = shares(placed, rank, whole_tensors(placed, heads, kv_heads))
        with sent_here() as sizes:
            nested_attention(q, k, v, rank_layout(placed, 0, rank), groups, kernel)
        counts.append(sum(sizes))
    return counts


@pytest.mark.dist
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2), (6, 2), (8, 2)])
def test_nested_ranks_send_less_forward_than_a_ring_iff_d_exceeds_h_over_hkv_plus_one(
    heads, kv_heads
):
    for nested, ring in run_ranks(forward_bytes, 4, heads, kv_heads):
        assert (nested < ring) == (heads / kv_heads + 1 < 4)
        assert (nested == ring) == (heads == 6)
