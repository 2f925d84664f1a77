"""Which moves are made on devices of known speed, and what they are said to take."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.activations import foreign_shares
from hydraplan.cost import CostModel
from hydraplan.files.lengths import Lengths
from hydraplan.heads import even_split
from hydraplan.metrics import planned_live_peaks
from hydraplan.migration import BLOCK_ROWS, HeadShares, Moves, RowMove, check_moves
from hydraplan.model import BatchPlan, FloatArray
from hydraplan.moved_work import share_tokens
from hydraplan.planner.pipeline.memory import Memory
from hydraplan.planner.pipeline.one_lane import few_lanes, one_lane, reordered
from hydraplan.planner.pipeline.portfolio import portfolio
from hydraplan.planner.pipeline.schedules import SCHEDULES
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.planner.plan import plan_batch, prepare
from hydraplan.planner.policy.bucket_time import bucket_s
from hydraplan.planner.policy.choose_moves import FORMS, choose_moves
from hydraplan.planner.policy.decide import allowed, decide, room
from hydraplan.planner.policy.moved import moved_slots
from hydraplan.planner.policy.pair_time import pair_time
from hydraplan.planner.policy.rated import Pair, Rated, rated, with_factors
from tests.planner.cases import long_tailed, options, profile

PP, RANKS = 2, 8


@cache
def planned(
    pipeline: str = "zb-h1", recompute: str = "none", tp: int = 1
) -> tuple[CostModel, BatchPlan]:
    asked = options(
        batch_sequences=128, ranks=RANKS, pp=PP, max_tokens_per_rank=8192, pipeline=pipeline,
        recompute=recompute, tp=tp,
    )  # fmt: skip
    lengths = Lengths("t", "sequences", long_tailed(128, 1, longest=65536))
    _, batches = prepare(lengths, profile(), asked, 1)
    return batches.cost, plan_batch(batches.cost, asked, 0, batches[0])


def with_slow(*slow: tuple[int, int, float], pipeline: str = "zb-h1", **more: Any) -> Rated:
    cost, plan = planned(pipeline, **more)
    return rated(cost, plan.sequences.placed(), plan.num_microbatches, factors(*slow))


def factors(*slow: tuple[int, int, float]) -> FloatArray:
    factor = np.ones((PP, RANKS))
    for stage, lane, times in slow:
        factor[stage, lane] = times
    return factor


def nested(batch: Rated, ulysses_size: int = 2) -> HeadShares:
    """A bucket of the plan with heads shared evenly."""
    m, first, u, r = next(key for key in batch.parts.bucket if key[2] == ulysses_size)
    even = even_split(batch.cost.num_heads, batch.cost.num_kv_heads, u, r)
    counts = tuple(tuple(map(len, shard)) for shard in even.q_heads)
    return HeadShares(0, m, first, u, r, counts)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_with_even_heads_a_bucket_takes_what_its_slowest_member_was_planned_to(recompute):
    batch = with_slow(recompute=recompute)
    share = nested(batch, 4)
    slow = with_slow((0, share.first_rank + 1, 1.7), recompute=recompute)
    planned_s = batch.parts.attention_s[:, batch.parts.bucket[share[1:5]]]
    np.testing.assert_allclose(bucket_s(batch, share), planned_s, rtol=1e-12)
    np.testing.assert_allclose(bucket_s(slow, share), 1.7 * planned_s, rtol=1e-12)


def test_a_group_of_two_gains_what_heads_can_give_less_what_whole_heads_and_exchange_take():
    """One member 1.5 times as slow: 32 heads go 13 to 19, 1 - 1.5 x 13 / 24 = 0.1875 at most."""
    share = nested(with_slow(), 2)
    batch = with_slow((0, share.first_rank, 1.5))
    before_s = bucket_s(batch, share)
    gain = 1 - bucket_s(batch, share._replace(counts=((13, 19),))) / before_s
    assert (gain > 0.1).all()
    assert (gain < 0.1875).all()


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_parts_of_a_pair_without_moves_are_those_of_the_slots(recompute):
    batch = with_slow(recompute=recompute)
    m, layers = 1, batch.cost.layers[0][0]
    lone = np.flatnonzero(batch.parts.is_split[:, m] == 0)
    taken = pair_time(batch, Pair(0, m, int(lone[0]), int(lone[1])), layers)(0, 0)
    rows = int(batch.slots.rows[lone[0], m])
    each = batch.parts.qkv_s + batch.parts.output_s + batch.parts.mlp_s
    whole_s = layers * (each[:2] * rows + batch.parts.whole_s[:, lone[0], m])
    if recompute == "full":
        whole_s[1] += layers * each[0] * rows
    np.testing.assert_allclose(taken.giver_s[:2], whole_s, rtol=1e-12)
    assert taken.giver_s[2] == pytest.approx(layers * rows * batch.parts.mlp_s[2])
    assert taken.wait_s == 0
    own_s = batch.slots.op_s[:2, 0, 0, lone[0], m]
    assert (taken.giver_s[:2] < own_s).all()  # calls and the embedding stay with the slot
    assert (taken.giver_s[:2] > 0.6 * own_s).all()


def test_rows_that_move_take_their_weight_gradient_along():
    batch = with_slow()
    held = batch.slots.rows[:, 1]
    moves = Moves(rows=(RowMove(0, 1, 3, 5, 160),))
    more_s = moved_slots(batch, moves).op_s - batch.slots.op_s
    row_s = batch.cost.layers[0][0] * float(batch.parts.mlp_s[2])
    assert more_s[2, 0, 0, 3, 1] == pytest.approx(-160 * row_s)
    assert more_s[2, 0, 0, 5, 1] == pytest.approx(160 * row_s)
    assert held[3] > 160
    untouched = np.ones(RANKS, bool)
    untouched[[3, 5]] = False
    assert (more_s[:, :, :, untouched] == 0).all()
    assert (more_s[:, 1] == 0).all()


def test_where_all_devices_are_alike_nothing_moves_whatever_the_loads():
    batch = with_slow()
    assert not choose_moves(batch)
    assert moved_slots(batch, Moves()) is batch.slots
    alike = rated(batch.cost, batch.placed, planned()[1].num_microbatches, factors() * 1.4)
    assert not choose_moves(alike)


@settings(max_examples=12, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, PP - 1), st.integers(0, RANKS - 1), st.floats(1.06, 3)),
        min_size=1, max_size=3, unique_by=lambda slow: slow[:2],
    ),
    st.sampled_from([FORMS, ("rows",), ("heads",), ("shares",), ("rows", "heads")]),
)  # fmt: skip
def test_moves_belong_to_the_batch_take_from_the_slow_and_make_nothing_later(slow, forms):
    cost, plan = planned()
    placed = plan.sequences.placed()
    found = decide(cost, plan, factors(*slow), forms=forms)
    check_moves(found.moves, cost.num_heads, placed, with_slow().slots.rows, PP)
    assert found.after_s <= found.before_s
    if "shares" not in forms:
        assert not found.moves.shares
    slow_ranks = {each[:2] for each in slow}
    for move in (*found.moves.rows, *found.moves.heads):
        assert (move.stage, move.giver) in slow_ranks
        assert (move.stage, move.taker) not in slow_ranks
    free = room(cost, plan)
    assert (free[0] < free[1]).all()  # the first stage holds most
    for move in found.moves.rows:
        assert move.rows % BLOCK_ROWS == 0
        assert move.rows * foreign_shares(cost.model)[0] <= free[move.stage, move.taker]
    if not found.moves:
        assert found.after_s == found.before_s


@settings(max_examples=10, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, PP - 1), st.integers(0, RANKS - 1), st.sampled_from([0.3, 1.3, 2, 9])
        ),
        min_size=1, max_size=3, unique_by=lambda slow: slow[:2],
    ),
    st.booleans(),
    st.sampled_from(["gpipe", "zb-h2", "zb-h1", "1f1b"]),
    st.sampled_from([1, 2]),
)  # fmt: skip
def test_no_rank_holds_more_than_it_may_with_moves_in_a_new_order(slow, is_limited, name, tp):
    """Uneven heads, foreign rows and heads all counted, in orders that hold far more too."""
    cost, plan = planned(tp=tp)
    limit = float(planned_live_peaks(cost, plan).max()) if is_limited else None
    order = SCHEDULES[name].make(PP, plan.num_microbatches, 1)
    found = decide(cost, plan, factors(*slow), reorder=lambda slots: order, most_live_tokens=limit)
    held = planned_live_peaks(cost, replace(plan, schedule=found.schedule), found.moves).max()
    assert held <= (1 + 1e-9) * allowed(cost, plan, limit)
    assert allowed(cost, plan, limit) == (limit or 1.03 * planned_live_peaks(cost, plan).max())


def test_moves_that_do_not_fit_a_new_order_are_chosen_anew_for_it():
    cost, plan = planned("1f1b")
    slow = factors((1, 3, 1.5))
    old = decide(cost, plan, slow).moves
    order = planned("zb-h1")[1].schedule
    anew = replace(plan, schedule=order)
    limit = float(planned_live_peaks(cost, anew).max())
    found = decide(cost, plan, slow, reorder=lambda slots: order, most_live_tokens=limit)
    assert found.schedule == order
    assert old.rows
    assert found.moves.rows


def test_with_tensor_parallelism_the_heads_of_a_rank_move_and_hold_the_share_they_are():
    cost, plan = planned(tp=2)
    placed = plan.sequences.placed()
    found = decide(cost, plan, factors((1, 3, 2.0)))
    assert found.moves.shares
    assert {sum(counts) for s in found.moves.shares for counts in s.counts} == {16}  # of 32
    check_moves(found.moves, cost.num_heads, placed, with_slow(tp=2).slots.rows, PP)
    share, of_one = nested(with_slow(tp=2), 2), replace(cost, tp=1)
    held = share_tokens(cost, placed, share._replace(counts=((4, 12),)))
    np.testing.assert_allclose(
        held, share_tokens(of_one, placed, share._replace(counts=((8, 24),)))
    )
    assert held[1] > held[0] == 0


def test_messages_of_every_chosen_pair_hide_behind_what_its_giver_keeps():
    batch = with_slow((1, 2, 1.5), (1, 6, 1.3))
    moves = choose_moves(batch)
    assert moves.rows
    for stage, m, giver, taker, rows in moves.rows:
        taken = pair_time(batch, Pair(stage, m, giver, taker), batch.cost.layers[1][0])(rows, 0)
        assert taken.wait_s <= 1e-12 * sum(taken.giver_s)


def test_the_slowest_gives_to_the_fastest():
    batch = with_slow((0, 1, 1.9), (0, 4, 1.4))
    work_s = with_factors(batch.slots, batch.factor).op_s[:, 0, 0].sum(axis=0)
    for move in choose_moves(batch, ("rows",)).rows:
        m = move.microbatch
        fast = [lane for lane in range(RANKS) if lane not in (1, 4)]
        ranked = sorted(fast, key=lambda lane: (work_s[lane, m], lane))
        givers = sorted((1, 4), key=lambda lane: -work_s[lane, m])
        assert move.taker in ranked[:2]
        assert ranked.index(move.taker) == givers.index(move.giver)


def test_of_a_straggler_two_fifths_of_the_loss_are_won_back_and_more_by_all_forms_than_by_one():
    cost, plan = planned()
    slow = factors((1, 3, 1.5))
    all_s = decide(cost, plan, slow)
    lost_s = all_s.before_s - decide(cost, plan, factors()).before_s
    assert all_s.before_s - all_s.after_s > 0.4 * lost_s
    for form in FORMS:
        assert decide(cost, plan, slow, forms=(form,)).after_s >= all_s.after_s


def test_a_new_order_is_taken_only_if_it_is_faster_on_the_devices_as_they_are():
    cost, plan = planned("1f1b")
    zb = planned("zb-h1")[1]
    slow = factors((0, 3, 1.5))
    if zb.num_microbatches == plan.num_microbatches:
        better = decide(cost, plan, slow, forms=(), reorder=lambda slots: zb.schedule)
        assert better.schedule == zb.schedule
        assert better.after_s < better.before_s
    same = decide(cost, plan, slow, forms=(), reorder=lambda slots: plan.schedule)
    assert same.schedule == plan.schedule
    assert same.after_s == same.before_s


def test_ops_are_planned_anew_for_slots_with_moves_in_any_order_of_microbatches():
    batch = with_slow((1, 3, 1.5))
    slots = with_factors(moved_slots(batch, choose_moves(batch)), batch.factor)
    count = slots.rows.shape[1]
    schedule = portfolio(slots, Memory(PP, np.ones(count)))
    turned = reordered(slots, np.arange(count)[::-1])
    back = {op: op._replace(microbatch=count - 1 - op.microbatch) for op in schedule[0]}
    again = tuple(tuple(back[op] for op in ops) for ops in schedule)
    assert simulate(turned, again).end_s[1].max() == simulate(slots, schedule).end_s[1].max()
    for few in (one_lane(slots), few_lanes(slots, 2)):
        assert np.isfinite(simulate(few, schedule).end_s[1]).all()
