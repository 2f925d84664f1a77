from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydraplan.heads import even_split
from hydraplan.layout import legal_ulysses
from hydraplan.planner.pipeline.schedules import SCHEDULES
from hydraplan.traffic import (
    boundary_s,
    grad_sync_s,
    lane_bytes,
    member_bytes,
    rank_bytes,
    sent_bytes,
    stage_parameters,
)
from tests.builders import Place, placed_sequences
from tests.planner.cases import cost_model, with_pods


@pytest.mark.parametrize(("u", "r"), [(1, 2), (2, 1), (2, 2), (8, 2), (4, 4), (16, 1)])
def test_bytes_sent_follow_the_closed_form(u: int, r: int) -> None:
    cost = cost_model(ranks=16)
    length, heads, kv, dim, b, accumulator = 4096, 32, max(8, u), 128, 2, 4
    placed = placed_sequences([Place(length, 0, u, r)])
    t = length / (u * r)
    inner = b * t * dim * (u - 1) / u * (2 * heads + 2 * kv)
    forward = inner + b * 2 * t * dim * kv * (r - 1)
    backward = inner + 2 * t * dim * kv * (b * (r - 1) + (accumulator * r if r > 1 else 0))
    assert sent_bytes(cost, placed)[0] == pytest.approx(32 * u * r * (forward + backward))


def per_rank(length: int, u: int, r: int, heads: int, kv_heads: int) -> tuple[float, float]:
    """The closed form of what a rank sends forward and backward; head_dim 8, 2 and 4 bytes."""
    t, kv = length / (u * r), max(kv_heads, u)
    inner = 2 * t * 8 * (u - 1) / u * (2 * heads + 2 * kv)
    forward = inner + 2 * t * 8 * kv * 2 * (r - 1)
    return forward, inner + 2 * t * 8 * kv * (2 * (r - 1) + (4 * r if r > 1 else 0))


GROUPS = st.sampled_from(
    [
        (heads, kv_heads, u, r)
        for heads, kv_heads in ((8, 8), (8, 2), (8, 1), (32, 8), (12, 6))
        for u in legal_ulysses(heads, kv_heads, 8)
        for r in range(1, 9)
    ]
)


@given(GROUPS, st.integers(1, 99))
def test_what_a_rank_sends_is_the_closed_form_where_2ur_divides_the_length(group, times) -> None:
    heads, kv_heads, u, r = group
    length = 2 * u * r * times
    sent = member_bytes(length, even_split(heads, kv_heads, u, r), 8, 2, 4)
    assert sent.T.tolist() == [list(per_rank(length, u, r, heads, kv_heads))] * (u * r)


@given(GROUPS, st.integers(1, 9_999))
def test_what_a_group_sends_is_the_closed_form_at_any_length(group, length) -> None:
    heads, kv_heads, u, r = group
    sent = member_bytes(length, even_split(heads, kv_heads, u, r), 8, 2, 4).sum(axis=1)
    closed = per_rank(length, u, r, heads, kv_heads)
    assert sent.tolist() == pytest.approx([u * r * x for x in closed], rel=1e-12)


@given(GROUPS.filter(lambda group: 1 < group[2] <= group[1]), st.integers(1, 9))
def test_nested_sends_less_forward_than_a_ring_iff_the_degree_exceeds_h_over_hkv_plus_one(
    group, times
) -> None:
    heads, kv_heads, u, r = group
    length = 2 * u * r * times
    nested, ring = (
        member_bytes(length, even_split(heads, kv_heads, *shape), 8, 2, 4)[0].tolist()
        for shape in ((u, r), (1, u * r))
    )
    assert len(set(nested)) == len(set(ring)) == 1
    assert (nested[0] < ring[0]) == (u * r > heads / kv_heads + 1)


def test_lanes_send_what_their_members_send() -> None:
    cost = cost_model(ranks=8)
    placed = placed_sequences(
        [Place(333, 0, 2, 2), Place(7, 2, 2, 1), Place(65, 4, 4, 1, 1), Place(9, 7)]
    )
    sent = lane_bytes(cost, placed)
    first, second, third = (
        member_bytes(length, even_split(32, 8, u, r), 128, 2, 4)
        for length, u, r in ((333, 2, 2), (7, 2, 1), (65, 4, 1))
    )
    assert sent[:, :2].tolist() == first[:, :2].tolist()
    assert sent[:, 2:4].tolist() == (first[:, 2:] + second).tolist()
    assert sent[:, 4:].tolist() == third.tolist()
    assert 32 * sent.sum() == pytest.approx(sent_bytes(cost, placed).sum(), rel=1e-12)


def test_whole_layers_that_are_made_again_exchange_forward_twice() -> None:
    plain = cost_model(ranks=8)
    full, selective = (replace(plain, recompute=mode) for mode in ("full", "selective"))
    placed = placed_sequences([Place(333, 0, 2, 2), Place(7, 2, 2, 1), Place(65, 4, 4, 1, 1)])
    forward, backward = lane_bytes(plain, placed)
    assert lane_bytes(full, placed).tolist() == [forward.tolist(), (forward + backward).tolist()]
    assert 32 * lane_bytes(full, placed).sum() == pytest.approx(
        sent_bytes(full, placed).sum(), rel=1e-12
    )
    assert sent_bytes(selective, placed).tolist() == sent_bytes(plain, placed).tolist()


def test_gradient_sync_is_a_ring_all_reduce_of_the_stage() -> None:
    cost = cost_model(ranks=128, pp=4)
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    moved = 2 * 127 / 128 * 8 * layer * 4
    assert grad_sync_s(cost)[1] == pytest.approx(moved / 45e9 + 254 * 25e-6)
    assert grad_sync_s(cost)[0] == grad_sync_s(cost)[3] > grad_sync_s(cost)[1]
    assert grad_sync_s(cost_model(ranks=1, pp=2)).tolist() == [0, 0]


def test_gradients_and_activations_pay_the_tier_that_holds_them_all() -> None:
    rows = np.array([1000.0])
    for ranks, pp, rate, latency_s in (
        (4, 2, 300e9, 15e-6),
        (8, 4, 45e9, 25e-6),
        (32, 2, 5e9, 50e-6),
    ):
        wanted = latency_s + 1000 * 4096 * 2 / rate
        assert boundary_s(with_pods(ranks, pp), rows)[0] == pytest.approx(wanted)
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    for ranks, rate, latency_s in ((8, 300e9, 15e-6), (32, 45e9, 25e-6), (64, 5e9, 50e-6)):
        moved = 2 * (ranks - 1) / ranks * 8 * layer * 4
        wanted = moved / rate + 2 * (ranks - 1) * latency_s
        assert grad_sync_s(with_pods(ranks, 4))[1] == pytest.approx(wanted)


@pytest.mark.parametrize("pipeline", ["1f1b", "zb-h1", "interleaved", "zb-v", "dualpipe"])
def test_bytes_of_ranks_add_up_to_what_crosses_borders_groups_and_sums(pipeline: str) -> None:
    schedule, stages, count = SCHEDULES[pipeline], 4, 8
    chunks = schedule.chunks or 2
    base = cost_model(ranks=2, pp=stages)
    layers = ((1,) * chunks,) * stages
    cost = replace(base, layers=layers, route_name=schedule.route)
    places = [Place(64 + m, m % 2, 1, 1, m) for m in range(count)] + [Place(40, 0, 2, 1, 3)]
    placed = placed_sequences(places)
    rows = np.zeros((2, count), np.int64)
    for m in range(count):
        rows[m % 2, m] = 64 + m
    rows[:, 3] += 20
    sent = rank_bytes(cost, placed, rows, schedule.make(stages, count, chunks))
    nodes = stages * chunks // (2 if schedule.route == "both" else 1)
    turns = 1 if schedule.route == "v" else 0  # from chunk to chunk of the last stage
    crossed = 2 * (nodes - 1 - turns)
    assert sent[0].sum(axis=0).tolist() == (rows.sum(axis=1) * crossed * 4096 * 2).tolist()
    assert sent[1].sum(axis=0).tolist() == (nodes * lane_bytes(cost, placed).sum(axis=0)).tolist()
    assert sent[2].tolist() == np.repeat(stage_parameters(cost) * 4, 2).reshape(-1, 2).tolist()
