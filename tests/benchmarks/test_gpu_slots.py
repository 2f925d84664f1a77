"""Slots that the GPU check replays: which differ, which are taken, what they compute."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.config import load_cluster
from hydraplan.cost import CostModel
from hydraplan.kernels.packing import rank_layout
from hydraplan.layout import legal_degrees, legal_ulysses
from hydraplan.profiler.analytic import analytic_fit
from hydraplan.slots import slot_times
from tests.benchmarks.gpu_scripts import gpu_script
from tests.builders import Place, placed_sequences
from tests.plans import tiny_model

LANES, MICROBATCHES = 8, 3
with pytest.MonkeyPatch.context() as patch:
    work = gpu_script(patch, "rank_work")
    slots = gpu_script(patch, "plan_slots")


def cost_model(num_heads=8, num_kv_heads=2):
    model = tiny_model(num_heads, num_kv_heads, num_layers=6)
    fit = analytic_fit(load_cluster("h100-sxm"))
    return CostModel(fit, model, 1, 2, LANES, ((3,), (3,)))


@st.composite
def places(draw, num_heads=8, num_kv_heads=2):
    degree = int(draw(st.sampled_from(legal_degrees(LANES).tolist())))
    ulysses = draw(st.sampled_from(legal_ulysses(num_heads, num_kv_heads, degree)))
    first = degree * draw(st.integers(0, LANES // degree - 1))
    return Place(
        draw(st.integers(1, 150)), first, ulysses, degree // ulysses,
        draw(st.integers(0, MICROBATCHES - 1)),
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from([(8, 8), (8, 2), (8, 1)]))
def test_all_ranks_together_compute_exactly_the_pairs_of_whole_sequences(data, heads):
    placed = placed_sequences(data.draw(st.lists(places(*heads), min_size=1, max_size=6)))
    found = sum(
        work.attention_pairs(rank_layout(placed, m, lane), *heads)
        for m in range(MICROBATCHES)
        for lane in range(LANES)
    )
    assert found == work.whole_pairs(placed, heads[0])


def test_pairs_of_a_ring_of_two_are_counted_by_hand():
    placed = placed_sequences([Place(8, 0, 1, 2)])
    # Chunks of 2 rows; lane 0 has the first and the last. Its own keys: 4 rows, a triangle of 10.
    # The other's keys: its last 2 rows see all 4 of them, its first none.
    assert work.attention_pairs(rank_layout(placed, 0, 0), 3, 1) == 3 * (10 + 8)
    # Lane 1: its own 10, and all 4 rows see the first chunk of lane 0.
    assert work.attention_pairs(rank_layout(placed, 0, 1), 3, 1) == 3 * (10 + 8)
    assert work.whole_pairs(placed, 3) == 3 * 36


@settings(max_examples=40, deadline=None)
@given(st.lists(places(), min_size=1, max_size=8))
def test_slots_alike_compute_the_same_and_every_slot_with_rows_is_counted(drawn):
    placed, cost = placed_sequences(drawn), cost_model()
    rows = slot_times(cost, placed, MICROBATCHES).rows
    pairs: dict[object, set[int]] = {}
    for (microbatch, lane), shape in work.slot_shapes(placed).items():
        layout = rank_layout(placed, microbatch, lane)
        assert layout.rows == rows[lane, microbatch]
        pairs.setdefault(shape, set()).add(work.attention_pairs(layout, 8, 2))
    assert all(len(found) == 1 for found in pairs.values())
    found = work.distinct_slots(cost, placed, MICROBATCHES)
    assert sum(slot.count for slot in found) == np.count_nonzero(rows)
    assert len({(slot.lane, slot.microbatch) for slot in found}) == len(found)


def test_members_of_an_inner_group_are_alike_and_places_in_a_ring_are_not():
    placed = placed_sequences([Place(64, 0, 2, 2), Place(10, 4), Place(10, 5), Place(10, 6)])
    found = work.distinct_slots(cost_model(), placed, 1)
    assert Counter(slot.count for slot in found) == {2: 2, 3: 1}


def test_a_layer_takes_what_the_cost_model_says_where_there_is_no_link():
    placed = placed_sequences([Place(100), Place(40, 0), Place(80, 1)])
    cost = cost_model()
    layer_s, rows = work.layer_seconds(cost, placed, 1)
    attention_s, _ = work.layer_seconds(cost, placed, 1, has_linears=False)
    whole = slot_times(cost, placed, 1).op_s
    # The first of two stages: three layers, and an embedding that F and W have.
    np.testing.assert_allclose(3 * layer_s[1], whole[1, 0, 0])
    assert (3 * layer_s[0] < whole[0, 0, 0])[:2].all()
    per_row = 2 * cost.model.layer_parameters / cost.fit.linear_forward.flops_per_s
    linear_s = cost.fit.linear_forward.call_s + per_row * rows
    np.testing.assert_allclose(layer_s[0] - attention_s[0], linear_s)


def test_links_take_no_time_in_what_is_predicted_of_a_replay():
    placed = placed_sequences([Place(4_000, 0, 2, 4)])
    cost = cost_model()
    slow = cost.fit.model_copy(
        update={name: link.model_copy(update={"bytes_per_s": 1.0, "latency_s": 9.0})
                for name in ("node_p2p", "fabric_p2p", "node_all_to_all", "fabric_all_to_all")
                for link in (getattr(cost.fit, name),)}
    )  # fmt: skip
    on_slow = CostModel(slow, cost.model, 1, 2, LANES, ((3,), (3,)))
    for has_linears in (True, False):
        fast_s, slow_s = (work.layer_seconds(c, placed, 1, has_linears)[0] for c in (cost, on_slow))
        np.testing.assert_array_equal(fast_s, slow_s)
        assert fast_s.max() < 1


def made(seconds):
    return [work.SlotWork(lane, 0, 1, (s, 0.0, 0.0), (0.0, 0.0)) for lane, s in enumerate(seconds)]


def test_slots_are_taken_at_equal_steps_of_their_times_ends_included():
    found = work.chosen(made(np.random.default_rng(0).permutation(101)), 5)
    assert [slot.predicted_s[0] for slot in found] == [0, 25, 50, 75, 100]
    assert [slot.predicted_s[0] for slot in work.chosen(made([3, 1, 2]), 5)] == [1, 2, 3]
    assert [slot.predicted_s[0] for slot in work.chosen(made([3, 1, 2]), 1)] == [2]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64])
def test_wherever_a_replay_ends_its_slots_span_the_range(count):
    taken = made(range(count))
    order = [slot.predicted_s[0] for slot in slots.scattered(taken)]
    assert sorted(order) == list(range(count))
    assert order[:2] == [0, count - 1][:count]
    if count == 64:
        assert max(np.diff(sorted(order[:10]))) <= 8


def test_rank_correlation_looks_at_order_alone():
    a = np.array([1.0, 2.0, 5.0, 9.0])
    assert slots.rank_correlation(a, a**3) == pytest.approx(1)
    assert slots.rank_correlation(a, -a) == pytest.approx(-1)
    assert slots.rank_correlation(a, np.array([2.0, 1.0, 5.0, 9.0])) == pytest.approx(0.8)
    assert np.isnan(slots.rank_correlation(a[:2], a[:2]))


def test_errors_are_those_of_whole_slots_and_of_every_op():
    done = []
    for times in (1.0, 2.0):
        predicted = (times, 2 * times, 3 * times), (0.5 * times, times)
        measured = slots.Replayed((2 * times, 2 * times, 2 * times, times, times), 0)
        done.append((work.SlotWork(0, 0, 1, *predicted), measured))
    rows = {row.what: row for row in slots.error_rows(done)}
    assert list(rows) == ["a slot, F + B + W", *slots.OPS]
    assert rows["a slot, F + B + W"].value == pytest.approx(0)
    assert rows["F"].value == rows["attention forward"].value == pytest.approx(50)
    assert rows["W"].value == pytest.approx(50)
    assert rows["W"].more["predicted / measured"] == pytest.approx(1.5)
    assert rows["B"].value == rows["attention backward"].value == pytest.approx(0)
    assert list(slots.error_rows([])) == []
