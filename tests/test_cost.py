from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydraplan.config import load_model
from hydraplan.cost import CostModel, check_tensor_parallel, split_layers
from hydraplan.errors import InputError
from tests.builders import Place, placed_sequences
from tests.planner.cases import cost_model


def arrays(*values: int) -> tuple[np.ndarray, ...]:  # type: ignore[type-arg]
    return tuple(np.array([v], np.int64) for v in values)


@given(st.integers(1, 100), st.integers(1, 12), st.integers(1, 3))
def test_layers_are_split_evenly_and_none_is_lost(layers: int, stages: int, chunks: int) -> None:
    if layers < stages * chunks:
        with pytest.raises(InputError, match="cannot fill"):
            split_layers(layers, stages, chunks)
        return
    split = split_layers(layers, stages, chunks)
    flat = [count for stage in split for count in stage]
    assert sum(flat) == layers
    assert len(flat) == stages * chunks
    assert max(flat) - min(flat) <= 1


def test_extra_layers_spare_the_stages_with_embedding_and_loss() -> None:
    assert split_layers(6, 4) == [[1], [2], [2], [1]]
    assert split_layers(34, 8) == [[4], [4], [4], [5], [5], [4], [4], [4]]


def test_attention_of_one_rank_is_causal_work_over_rate_and_nothing_else() -> None:
    cost = cost_model(ranks=8)
    forward, backward = cost.attention_s(*arrays(8192, 1, 1))[:, 0]
    flops = 4 * (8192 * 8193 / 2) * 32 * 128
    assert forward == pytest.approx(flops / 620e12 * (1 + 200 / 8192), rel=1e-12)
    assert backward == pytest.approx(2.5 * flops / 530e12 * (1 + 350 / 8192), rel=1e-12)


def test_a_nested_group_pays_its_all_to_alls_and_hides_its_hops() -> None:
    cost = cost_model(ranks=32)
    forward, _ = cost.attention_s(*arrays(131072, 8, 4))[:, 0]
    flops = 4 * (131072 * 131073 / 2) * 32 * 128 / 32
    step = flops / 4 / 620e12 * (1 + 200 / (131072 / 8)) + 20e-6
    rows = 131072 / 32
    all_to_all = 2 * rows * 128 * (7 / 8) * (2 * 32 + 2 * 8) / 300e9 + 2 * 15e-6
    hop = 2 * 2 * rows * 128 * 8 / 45e9 + 25e-6
    assert hop < step
    assert forward == pytest.approx(4 * step + all_to_all, rel=1e-12)


def test_sequences_that_share_an_exchange_pay_its_latency_once() -> None:
    # 100 sequences of 1,024 tokens on one 8 x 1 group, one layer forward
    cost = cost_model(ranks=8)
    length, u, r = np.full(100, 1024), np.full(100, 8), np.full(100, 1)
    together, _ = cost.attention_s(length, u, r, np.zeros(100, np.int64))[:, 0]
    apart, _ = cost.attention_s(length, u, r).sum(axis=1)
    fixed_s = 20e-6 + 2 * 15e-6
    flops = 4 * (1024 * 1025 / 2) * 32 * 128 / 8
    moved = 2 * 100 * 1024 / 8 * 128 * (7 / 8) * (2 * 32 + 2 * 8) / 300e9
    assert together == pytest.approx(
        100 * flops / 620e12 * (1 + 200 / 1024) + moved + fixed_s, rel=1e-12
    )
    assert apart == pytest.approx(together + 99 * fixed_s, rel=1e-12)


@given(st.lists(st.tuples(st.integers(1, 9000), st.sampled_from([0, 1, 2])), min_size=1))
def test_sharing_never_costs_more_than_apart_nor_less_than_the_least(
    drawn: list[tuple[int, int]],
) -> None:
    cost = cost_model(ranks=32)
    for u, r in ((1, 1), (8, 1), (1, 16), (8, 4)):
        length = np.array([n for n, _ in drawn])
        names = sorted({b for _, b in drawn})
        bucket = np.array([names.index(b) for _, b in drawn])
        shape = np.full(len(length), u), np.full(len(length), r)
        shared = cost.attention_s(length, *shape, bucket).sum(axis=1)
        assert (shared <= cost.attention_s(length, *shape).sum(axis=1) * (1 + 1e-12)).all()
        assert (shared >= cost.least.attention_s(length, *shape).sum(axis=1) * (1 - 1e-12)).all()


def test_an_exposed_hop_costs_what_the_link_costs() -> None:
    cost = cost_model(ranks=32)
    forward, backward = cost.attention_s(*arrays(4096, 1, 32))[:, 0]
    hop = 2 * 2 * (4096 / 32) * 128 * 8 / 45e9 + 25e-6
    flops = 4 * (4096 * 4097 / 2) * 32 * 128 / 32
    step = flops / 32 / 620e12 * (1 + 200 / (4096 / 64)) + 20e-6
    assert hop > step
    assert forward == pytest.approx(31 * hop + step, rel=1e-12)
    assert backward > forward


@pytest.mark.parametrize(("u", "r"), [(1, 2), (2, 1), (2, 2), (8, 2), (4, 4), (16, 1)])
def test_bytes_sent_follow_the_closed_form(u: int, r: int) -> None:
    cost = cost_model(ranks=16)
    length, heads, kv, dim, b, accumulator = 4096, 32, max(8, u), 128, 2, 4
    placed = placed_sequences([Place(length, 0, u, r)])
    t = length / (u * r)
    inner = b * t * dim * (u - 1) / u * (2 * heads + 2 * kv)
    forward = inner + b * 2 * t * dim * kv * (r - 1)
    backward = inner + 2 * t * dim * kv * (b * (r - 1) + (accumulator * r if r > 1 else 0))
    assert cost.sent_bytes(placed)[0] == pytest.approx(32 * u * r * (forward + backward))


def test_a_higher_degree_lowers_compute_and_traffic_together_when_nested() -> None:
    cost = cost_model(ranks=64)
    eight, sixteen = (cost.attention_s(*arrays(262144, 8, r))[:, 0].sum() for r in (1, 2))
    assert sixteen < 0.6 * eight


def test_inner_groups_stay_inside_a_node_and_divide_the_heads() -> None:
    assert cost_model(ranks=64).shapes(16) == [(1, 16), (2, 8), (4, 4), (8, 2)]
    assert cost_model(ranks=64, tp=8).shapes(4) == [(1, 4)]
    assert cost_model(ranks=64, tp=4).shapes(4) == [(1, 4), (2, 2)]


@pytest.mark.parametrize(
    ("ranks", "pp", "tp", "node", "wanted"),
    [
        (64, 4, 1, 8, 8),
        (12, 1, 1, 8, 8),
        (12, 4, 1, 8, 4),  # stage 1 starts at device 12, a block of 8 would straddle nodes
        (6, 2, 1, 8, 2),
        (64, 4, 1, 6, 2),
        (64, 4, 2, 8, 4),
        (64, 4, 8, 8, 1),
        (3, 2, 1, 8, 1),
    ],
)
def test_inner_groups_never_straddle_two_nodes(
    ranks: int, pp: int, tp: int, node: int, wanted: int
) -> None:
    base = cost_model(ranks=ranks, pp=pp, tp=tp)
    cost = replace(base, fit=base.fit.model_copy(update={"devices_per_node": node}))
    assert cost.node_ranks == wanted
    for first in range(0, ranks - wanted + 1, wanted):
        for stage in range(pp):
            devices = [(stage * ranks + first) * tp, (stage * ranks + first + wanted) * tp - 1]
            assert devices[0] // node == devices[1] // node


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_tensor_parallelism_divides_heads_and_linear_work_and_adds_its_traffic(tp: int) -> None:
    alone, shared = cost_model(ranks=8), cost_model(ranks=8, tp=tp)
    assert shared.num_heads == 32 // tp
    assert shared.num_kv_heads == 8 // tp
    middle_alone = alone.row_s[2].sum()
    assert shared.row_s[2].sum() == pytest.approx(middle_alone / tp, rel=0.05)
    assert shared.row_s[0].sum() > alone.row_s[0].sum() / tp


def test_a_tensor_parallel_size_that_cuts_heads_is_refused() -> None:
    with pytest.raises(InputError, match="tp 3 does not divide num_heads 32"):
        check_tensor_parallel(load_model("llama-8b"), 3, 8)
    with pytest.raises(InputError, match="tp 16 exceeds the 8 devices of a node"):
        check_tensor_parallel(load_model("llama-8b"), 16, 8)


def test_gradient_sync_is_a_ring_all_reduce_of_the_stage() -> None:
    cost = cost_model(ranks=128, pp=4)
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    moved = 2 * 127 / 128 * 8 * layer * 4
    assert cost.grad_sync_s[1] == pytest.approx(moved / 45e9 + 254 * 25e-6)
    assert cost.grad_sync_s[0] == cost.grad_sync_s[3] > cost.grad_sync_s[1]
    assert cost_model(ranks=1, pp=2).grad_sync_s.tolist() == [0, 0]


def test_lengths_beyond_32_bits_squared_do_not_overflow() -> None:
    cost: CostModel = cost_model(ranks=1)
    one, two = (float(cost.attention_s(*arrays(n, 1, 1))[0, 0]) for n in (1 << 20, 1 << 21))
    assert two / one == pytest.approx(4, rel=1e-3)
    long = float(cost.attention_s(*arrays(1 << 34, 1, 1))[0, 0])
    assert long / one == pytest.approx(2.0**28, rel=1e-3)
