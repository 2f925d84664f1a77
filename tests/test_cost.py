from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydraplan.config import MAX_RATE, load_cluster, load_model
from hydraplan.cost import CostModel
from hydraplan.costfit import LinkFit
from hydraplan.layout import legal_degrees
from hydraplan.profiler.analytic import analytic_fit
from hydraplan.traffic import grad_sync_s
from tests.planner.cases import cost_model, with_pods


def arrays(*values: int) -> tuple[np.ndarray, ...]:  # type: ignore[type-arg]
    return tuple(np.array([v], np.int64) for v in values)


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


def test_a_higher_degree_lowers_compute_and_traffic_together_when_nested() -> None:
    cost = cost_model(ranks=64)
    eight, sixteen = (cost.attention_s(*arrays(262144, 8, r))[:, 0].sum() for r in (1, 2))
    assert sixteen < 0.6 * eight


def test_inner_groups_stay_inside_a_node_and_divide_the_heads() -> None:
    assert cost_model(ranks=64).shapes(16) == [(1, 16), (2, 8), (4, 4), (8, 2)]
    assert cost_model(ranks=64, tp=8).shapes(4) == [(1, 4)]
    assert cost_model(ranks=64, tp=4).shapes(4) == [(1, 4), (2, 2)]


def on_nodes_of(node: int, ranks: int, pp: int = 1, tp: int = 1, heads: int = 64) -> CostModel:
    base = cost_model(ranks=ranks, pp=pp, tp=tp)
    return replace(
        base,
        fit=base.fit.model_copy(update={"devices_per_node": node}),
        model=base.model.model_copy(update={"num_heads": heads, "num_kv_heads": heads}),
    )


@pytest.mark.parametrize("ranks", [1, 2, 3, 6, 12, 24, 64, 96, 352])
@pytest.mark.parametrize("node", [4, 6, 8, 72])
def test_inner_groups_never_straddle_two_nodes(ranks: int, node: int) -> None:
    for pp, tp in product((1, 3, 8), (1, 2, 4)):
        cost = on_nodes_of(node, ranks, pp, tp)
        for degree in legal_degrees(ranks).tolist():
            shapes = cost.shapes(degree)
            assert shapes[0] == (1, degree)
            assert all(u * r == degree for u, r in shapes)
            for stage, (u, _) in product(range(pp), shapes[1:]):
                first = (stage * ranks + np.arange(0, ranks - u + 1, u)) * tp
                assert (first // node == (first + u * tp - 1) // node).all()


def latency_only(latency_s: float) -> LinkFit:
    return LinkFit(bytes_per_s=MAX_RATE, latency_s=latency_s)


def crosses(cost: CostModel, degree: int) -> bool:
    """Whether some aligned group of a degree has members on two nodes, device by device."""
    node = cost.fit.devices_per_node
    for stage in range(cost.pp):
        for first in range(0, cost.ranks - degree + 1, degree):
            lane = [(stage * cost.ranks + first) * cost.tp + i for i in range(degree * cost.tp)]
            if len({device // node for device in lane}) > 1:
                return True
    return False


@pytest.mark.parametrize("ranks", [2, 5, 6, 12, 24, 64])
@pytest.mark.parametrize("node", [4, 6, 8, 72])
def test_hops_run_at_node_speed_only_where_every_group_stays_in_a_node(
    ranks: int, node: int
) -> None:
    for pp, tp in ((1, 1), (3, 1), (4, 2)):
        base = on_nodes_of(node, ranks, pp, tp)
        links = {"node_p2p": latency_only(10.0), "fabric_p2p": latency_only(1000.0)}
        cost = replace(base, fit=base.fit.model_copy(update=links), engine="ring")
        for degree in legal_degrees(ranks).tolist()[1:]:
            forward = cost.attention_s(*arrays(4096, 1, degree))[0, 0]
            hop_s = 1000.0 if crosses(cost, degree) else 10.0
            assert forward == pytest.approx((degree - 1) * hop_s, rel=0.05)
        pool_s = 1000.0 if crosses(cost, ranks) else 10.0
        assert grad_sync_s(cost)[0] == pytest.approx(2 * (ranks - 1) * pool_s)


@pytest.mark.parametrize(
    ("degree", "rate", "latency_s"),
    [(2, 300e9, 15e-6), (8, 300e9, 15e-6), (16, 45e9, 25e-6), (32, 45e9, 25e-6), (64, 5e9, 50e-6)],
)
def test_an_exposed_hop_runs_in_the_node_the_pod_or_beyond(
    degree: int, rate: float, latency_s: float
) -> None:
    forward, _ = with_pods(ranks=64).attention_s(*arrays(2048, 1, degree))[:, 0]
    hop = 2 * 2 * (2048 / degree) * 128 * 8 / rate + latency_s
    flops = 4 * (2048 * 2049 / 2) * 32 * 128 / degree
    step = flops / degree / 620e12 * (1 + 200 / (2048 / (2 * degree))) + 20e-6
    assert forward == pytest.approx(step + (degree - 1) * max(step, hop), rel=1e-12)


def test_the_least_a_sequence_adds_has_free_hops_between_pods() -> None:
    cost = with_pods(ranks=64)
    least = cost.least.attention_s(*arrays(2048, 1, 64))
    flops = 4 * (2048 * 2049 / 2) * 32 * 128 / 64
    assert least[0, 0] == pytest.approx(flops / 620e12 * (1 + 200 / (2048 / 128)))
    assert cost_model(ranks=64).least.attention_s(*arrays(2048, 1, 64)) == pytest.approx(least)


def test_legal_degrees_are_the_powers_of_two_that_fit_and_the_whole_pool() -> None:
    found = [legal_degrees(ranks).tolist() for ranks in (1, 2, 6, 8, 24)]
    assert found == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8], [1, 2, 4, 8, 16, 24]]
    assert legal_degrees(352).tolist()[-2:] == [256, 352]


def test_the_whole_pool_is_a_degree_with_the_inner_sizes_that_divide_it() -> None:
    assert cost_model(ranks=6).shapes(6) == [(1, 6), (2, 3)]
    assert cost_model(ranks=12).shapes(12) == [(1, 12), (2, 6), (4, 3)]
    assert cost_model(ranks=24).shapes(24) == [(1, 24), (2, 12), (4, 6), (8, 3)]
    assert cost_model(ranks=7).shapes(7) == [(1, 7)]
    assert cost_model(ranks=352, pp=8, tp=4).shapes(352) == [(1, 352), (2, 176)]


def test_a_plain_ring_has_no_inner_groups() -> None:
    cost = replace(cost_model(ranks=24), engine="ring")
    assert [cost.shapes(d) for d in (1, 8, 24)] == [[(1, 1)], [(1, 8)], [(1, 24)]]


def test_a_slow_lane_takes_longer_by_the_inverse_of_its_speed() -> None:
    assert cost_model(ranks=3).slow.tolist() == [1, 1, 1]
    cost = replace(cost_model(ranks=3), rank_speed=(1.0, 0.5, 2.0))
    assert cost.slow.tolist() == [1, 2, 0.5]


def test_a_rank_on_two_nodes_pays_the_fabric_for_its_tensor_parallelism() -> None:
    whole, split = on_nodes_of(8, 4, tp=4), on_nodes_of(6, 4, tp=4)
    layers, moved = 32, 4 * (3 / 4) * 4096 * 2
    for op in (0, 1):
        extra = split.row_s[op].sum() - whole.row_s[op].sum()
        assert extra == pytest.approx(layers * moved * (1 / 45e9 - 1 / 300e9))
        waits = split.call_s[op].sum() - whole.call_s[op].sum()
        assert waits == pytest.approx(layers * 4 * (25e-6 - 15e-6))
    assert (split.row_s[2] == whole.row_s[2]).all()


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_tensor_parallelism_divides_heads_and_linear_work_and_adds_its_traffic(tp: int) -> None:
    alone, shared = cost_model(ranks=8), cost_model(ranks=8, tp=tp)
    assert shared.num_heads == 32 // tp
    assert shared.num_kv_heads == 8 // tp
    middle_alone = alone.row_s[2].sum()
    assert shared.row_s[2].sum() == pytest.approx(middle_alone / tp, rel=0.05)
    assert shared.row_s[0].sum() > alone.row_s[0].sum() / tp


def test_lengths_beyond_32_bits_squared_do_not_overflow() -> None:
    cost: CostModel = cost_model(ranks=1)
    one, two = (float(cost.attention_s(*arrays(n, 1, 1))[0, 0]) for n in (1 << 20, 1 << 21))
    assert two / one == pytest.approx(4, rel=1e-3)
    long = float(cost.attention_s(*arrays(1 << 34, 1, 1))[0, 0])
    assert long / one == pytest.approx(2.0**28, rel=1e-3)


CLUSTERS = ("a100-sxm", "h100-sxm")
CLAIM_MODELS = ("llama-8b", "llama-70b")  # 32 and 64 query heads, 8 KV heads
CLAIM_TOKENS = (32 * 1024, 128 * 1024, 256 * 1024)
DEGREES = (2, 4, 8, 16, 32, 64, 128, 256)


def on_cluster(cluster: str, model: str, tp: int = 1) -> CostModel:
    fit = analytic_fit(load_cluster(cluster))
    return CostModel(fit, load_model(model), tp, 1, 256, ((load_model(model).num_layers,),))


def layer_s(cost: CostModel, length: int, u: int, r: int) -> tuple[float, float, float]:
    """One layer, forward and backward: what it takes, compute alone, messages alone, seconds.

    Compute alone is what it takes on infinitely fast links; messages alone, on an infinitely
    fast device, is the time on the wire before any of it hides. Their exposed part is what it
    takes less compute alone.
    """

    def with_fit(names: tuple[str, ...], **changes: float) -> CostModel:
        update = {name: getattr(cost.fit, name).model_copy(update=changes) for name in names}
        return replace(cost, fit=cost.fit.model_copy(update=update))

    links = ("node_all_to_all", "node_p2p", "fabric_p2p")
    kernels = ("attention_forward", "attention_backward")
    compute = with_fit(links, bytes_per_s=MAX_RATE, latency_s=0.0)
    wire = with_fit(kernels, flops_per_s=MAX_RATE, call_s=0.0)
    took, computed, sent = (
        float(c.attention_s(*arrays(length, u, r)).sum()) for c in (cost, compute, wire)
    )
    return took, computed, sent


def falls(values: list[float]) -> bool:
    return all(after < before for before, after in pairwise(values))


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("model", CLAIM_MODELS)
@pytest.mark.parametrize("length", CLAIM_TOKENS)
def test_wider_inner_groups_lower_compute_and_communication_together(
    cluster: str, model: str, length: int
) -> None:
    """The claim's first half: at every ring depth, each doubling of the inner group pays."""
    cost = on_cluster(cluster, model)
    for ring_size in (1, 2, 4, 8, 16, 32):
        # one tier a row: without a ring inside a node, with one across nodes
        widths = [u for u in (1, 2, 4, 8) if (u > 1 if ring_size == 1 else u * ring_size > 8)]
        took, computed, sent = zip(
            *(layer_s(cost, length, u, ring_size) for u in widths), strict=True
        )
        assert falls(list(took))
        assert falls(list(computed))
        assert falls(list(sent))


def test_with_heads_and_node_for_it_communication_falls_up_to_a_degree_of_64() -> None:
    small = on_cluster("h100-sxm", "llama-70b")
    cost = replace(small, fit=small.fit.model_copy(update={"devices_per_node": 64}))
    assert (64, 1) in cost.shapes(64)
    for length in CLAIM_TOKENS:
        took, computed, sent = zip(
            *(layer_s(cost, length, u, 1) for u in (2, 4, 8, 16, 32, 64)), strict=True
        )
        assert falls(list(took))
        assert falls(list(computed))
        assert falls(list(sent))


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("model", CLAIM_MODELS)
@pytest.mark.parametrize("length", CLAIM_TOKENS)
def test_a_plain_ring_communicates_more_at_every_higher_degree(
    cluster: str, model: str, length: int
) -> None:
    """The claim's second half; computation falls while a rank holds 1,024 tokens or more."""
    cost = replace(on_cluster(cluster, model), engine="ring")
    shapes = [cost.shapes(degree) for degree in DEGREES]
    assert shapes == [[(1, degree)] for degree in DEGREES]
    _, computed, sent = zip(*(layer_s(cost, length, 1, d) for d in DEGREES), strict=True)
    assert falls([-s for s in sent])
    assert falls([c for c, d in zip(computed, DEGREES, strict=True) if length // d >= 1024])


def test_what_nesting_lowers_beyond_a_node_is_what_shows_not_what_is_sent() -> None:
    """Where the claim ends: h100-sxm, llama-8b, 256K tokens, milliseconds of one layer.

    With 8 devices a node inner groups end at 8. From there on the ring grows: time on the wire
    jumps to the fabric's and stays, an eighth of the plain ring's; what does not hide falls on
    as long as a step is longer than a hop. That a hop hides helps the plain ring as well, up to
    degree 32; its own exposed time then rises twentyfold in one doubling.
    """
    cost = on_cluster("h100-sxm", "llama-8b")
    length = 256 * 1024
    nested = [layer_s(cost, length, *max(cost.shapes(d))) for d in DEGREES]
    ring = [layer_s(cost, length, 1, d) for d in DEGREES]

    def ms(values: list[float]) -> list[float]:
        return [1e3 * value for value in values]

    assert ms([sent for _, _, sent in nested]) == pytest.approx(
        [9.01, 6.77, 3.97, 11.04, 11.65, 12.11, 12.64, 13.50], abs=0.006
    )
    assert ms([took - computed for took, computed, _ in nested]) == pytest.approx(
        [9.01, 6.77, 3.97, 5.02, 2.55, 1.32, 0.70, 0.39], abs=0.006
    )
    assert ms([sent for _, _, sent in ring]) == pytest.approx(
        [10.78, 12.63, 13.65, 93.24, 95.53, 97.87, 101.45, 108.03], abs=0.006
    )
    assert ms([took - computed for took, computed, _ in ring]) == pytest.approx(
        [3.59, 1.80, 0.91, 3.01, 1.52, 32.20, 60.33, 75.52], abs=0.006
    )
    assert falls([took for took, _, _ in nested])
    assert ms([took for took, _, _ in ring])[5:] == pytest.approx([98.9, 101.8, 108.2], abs=0.05)


def test_where_tensor_parallelism_fills_the_node_nesting_is_a_plain_ring() -> None:
    cost = on_cluster("h100-sxm", "llama-70b", tp=8)
    assert [cost.shapes(d) for d in DEGREES] == [[(1, d)] for d in DEGREES]


@pytest.mark.parametrize("tp", [1, 2])
def test_b_makes_again_all_of_f_but_embedding_and_head_under_full_recomputation(tp: int) -> None:
    plain = replace(cost_model(ranks=8, pp=3), tp=tp)
    full = replace(plain, recompute="full")
    lengths = arrays(8192, 2, 2)
    forward, backward = plain.attention_s(*lengths)
    assert full.attention_s(*lengths).tolist() == [forward.tolist(), (backward + forward).tolist()]
    middle = (slice(None), 1, 0)
    for found, kept in ((full.row_s, plain.row_s), (full.call_s, plain.call_s)):
        assert found[middle] == pytest.approx(kept[middle] + [0, kept[middle][0], 0], rel=1e-12)
        more = (found - kept)[1, :, 0] / np.array(plain.layers)[:, 0]
        assert more == pytest.approx(np.full(plain.pp, more[0]), rel=1e-9)
        assert (found[[0, 2]] == kept[[0, 2]]).all()


def test_b_moves_norms_and_swiglu_again_under_selective_recomputation() -> None:
    plain = cost_model(ranks=8, pp=3)
    selective = replace(plain, recompute="selective")
    layers = np.array(plain.layers)[:, 0]
    moved = 2 * (4 * 4096 + 3 * 14336) / plain.fit.memory_bytes_per_s
    more = (selective.row_s - plain.row_s)[..., 0]
    assert more[1] == pytest.approx(layers * moved, rel=1e-6)
    assert (more[[0, 2]] == 0).all()
    assert (selective.call_s == plain.call_s).all()
    assert np.array_equal(
        selective.attention_s(*arrays(8192, 2, 2)), plain.attention_s(*arrays(8192, 2, 2))
    )
