"""The time of a move, against an event simulation that shares no code with the formulas."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.heads import weighted_split
from hydraplan.planner.policy.moves import (
    Layer,
    Part,
    Trip,
    group_s,
    hop_is_hidden,
    pair_run,
    parts_run,
    trip_is_hidden,
)
from tests.planner.event_run import group_end, pair_ends, parts_ends

seconds = st.integers(0, 64).map(lambda n: n / 8)  # sums of eighths are exact
layers = st.builds(Layer, seconds, seconds, seconds)
trips = st.builds(Trip, seconds, seconds, seconds)
work = st.integers(1, 64).map(lambda n: n / 8)


@settings(max_examples=200, deadline=None)
@given(layers, layers, seconds, trips, st.integers(1, 6))
def test_a_pair_ends_when_its_events_do(giver, taker, kept_s, trip, count):
    run = pair_run(giver, taker, kept_s, trip, count)
    assert (run.giver_s, run.taker_s) == pair_ends(giver, taker, kept_s, trip, count)
    without = count * (giver.before_s + kept_s + giver.after_s)
    assert run.giver_wait_s == run.giver_s - without


parts = st.builds(Part, layers, layers, seconds, st.none() | trips)


@settings(max_examples=200, deadline=None)
@given(st.lists(parts, min_size=1, max_size=3), st.integers(1, 4))
def test_layers_of_several_parts_end_when_their_events_do(each, count):
    run = parts_run(each, count)
    assert (run.giver_s, run.taker_s) == parts_ends(each, count)


@settings(max_examples=200, deadline=None)
@given(layers, layers, seconds, trips)
def test_a_trip_is_hidden_exactly_where_the_giver_loses_nothing_to_it(giver, taker, kept_s, trip):
    ends = pair_ends(giver, taker, kept_s, trip, 1)
    alone_s = giver.before_s + kept_s + giver.after_s
    assert trip_is_hidden(giver, taker, kept_s, trip) == (ends[0] == alone_s)


@settings(max_examples=40, deadline=None)
@given(st.floats(1.05, 3), st.integers(1, 31), seconds, seconds, st.floats(0, 2), st.floats(0, 2))
def test_in_the_long_run_a_slow_device_waits_only_for_round_trips(f, m, before, after, out, back):
    """The period of head off-load: own work of either rank, or the round trip."""
    taker, x = Layer(before, 8.0, after), m / 32
    giver, rest = Layer(*(f * part for part in taker)), before + after
    trip = Trip(out, 8 * x, back)
    few, many = (max(pair_ends(giver, taker, f * 8 * (1 - x), trip, n)) for n in (100, 200))
    period = max(f * (rest + 8 * (1 - x)), rest + 8 + 8 * x, f * rest + out + 8 * x + back)
    assert (many - few) / 100 == pytest.approx(period, rel=1e-3)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), seconds, st.data())
def test_a_nested_group_ends_when_its_events_do(ring, inner, exchange_s, data):
    member = st.lists(work, min_size=inner, max_size=inner)
    step_s = data.draw(st.lists(member, min_size=ring, max_size=ring))
    hop_s = data.draw(member)
    assert group_s(step_s, hop_s, exchange_s) == group_end(step_s, hop_s, exchange_s)


@settings(max_examples=200, deadline=None)
@given(st.lists(work, min_size=1, max_size=5), work)
def test_hops_are_hidden_exactly_where_free_hops_would_end_no_earlier(column, hop_s):
    steps = [[step] for step in column]
    costs_nothing = group_end(steps, [hop_s], 1.0) == group_end(steps, [0.0], 1.0)
    assert hop_is_hidden(column, hop_s) == costs_nothing


@pytest.mark.parametrize(
    ("members", "slow", "kv_heads", "saved"),
    [(2, 1.5, 32, 0.1875), (4, 1.5, 32, 0.25), (8, 1.5, 32, 1 / 6), (2, 1.2, 32, 0.0625)],
)
def test_heads_that_follow_a_slow_member_save_what_whole_heads_allow(
    members, slow, kv_heads, saved
):
    head_s = [slow] + [1.0] * (members - 1)
    split = weighted_split(32, kv_heads, [head_s])
    uneven = [[s * len(held) for s, held in zip(head_s, split.q_heads[0], strict=True)]]
    even = [[s * 32 / members for s in head_s]]
    none = [0.0] * members
    assert 1 - group_s(uneven, none, 0.0) / group_s(even, none, 0.0) == pytest.approx(saved)
    ceiling = (members - 1) * (slow - 1) / (slow * (members - 1) + 1)
    assert saved <= ceiling


def test_rows_that_leave_late_in_a_layer_need_no_lead():
    """By hand: f = 1.5, O1 = O2 = 1, M = 4, a quarter of the rows moved, messages of 0.25."""
    giver, taker = Layer(1.5, 6.0, 1.5), Layer(1.0, 4.0, 1.0)
    trip = Trip(0.25, 1.0, 0.25)
    assert trip_is_hidden(giver, taker, 4.5, trip) is False  # 5 + 1 + 0.25 > 1.5 + 4.5
    assert pair_run(giver, taker, 4.5, trip) == (7.75, 7.0, 0.25)
    assert trip_is_hidden(giver, taker, 4.5, Trip(0.25, 0.75, 0.25)) is True
