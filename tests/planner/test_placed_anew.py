"""Batches placed anew for slow lanes: what is kept, what changes, and what it is worth."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.errors import Infeasible, InputError
from hydraplan.executor.change import checked
from hydraplan.executor.correction import decide_by
from hydraplan.files.decisionsfile import Change, with_change
from hydraplan.files.lengths import Lengths
from hydraplan.memory_limit import batch_bytes, changed_bytes
from hydraplan.metrics import planned_live_peaks, shares
from hydraplan.places import with_places
from hydraplan.planheader import MAX_SPEED, MIN_SPEED
from hydraplan.planner.pipeline.schedules import SCHEDULES
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.planner.placed_anew import MORE, SPARED, placed_anew, speeds
from hydraplan.planner.plan import plan
from hydraplan.planner.policy.decide import SPARE
from hydraplan.slots import slot_rows, slot_times
from tests.planner.cases import long_tailed, options, profile

ALL = ("portfolio", True)


def planned(count=96, seed=1, widest=None, **changes):
    """A batch of long-tailed lengths, its header and options; the longest fit on `widest` ranks."""
    ranks = changes.get("ranks", 8)
    values = long_tailed(count, seed, longest=4096 * (widest or ranks))
    asked = options(batch_sequences=count, **{"ranks": ranks, "pp": 2, **changes})
    header, batches = plan(Lengths("t", "sequences", values), profile(), asked, 1)
    return header, next(iter(batches))


def slow(header, stage=0, lane=1, factor=1.5):
    found = np.ones((header.options.pp, header.options.ranks))
    found[stage, lane] = factor
    return found


def anew(header, batch, factor):
    return placed_anew(header.cost_model(), header.options, batch, factor)


@settings(deadline=None, max_examples=8)
@given(
    seed=st.integers(0, 99), count=st.integers(8, 32), ranks=st.sampled_from([2, 3, 8]),
    lane=st.integers(0, 7), factor=st.floats(1.1, 30), changes=st.sampled_from(
        [{}, {"min_degree": 2}, {"microbatch_multiple": 4}, {"pipeline": "zb-h1"},
         {"engine": "ring"}, {"max_groups": 2}, {"microbatch_shape": "tapered"}]),
)  # fmt: skip
def test_new_places_keep_every_promise_of_the_plan(seed, count, ranks, lane, factor, changes):
    try:
        header, batch = planned(count, seed, ranks=ranks, **changes)
    except Infeasible:
        return
    for places in anew(header, batch, slow(header, lane=lane % ranks, factor=factor)):
        count, order = places.num_microbatches, None
        fewest = (batch.num_microbatches, round(MORE * batch.num_microbatches))
        assert count in fewest or (count > batch.num_microbatches and factor > 1 / SPARED)
        if count != batch.num_microbatches:  # then it comes with an order of its own
            order = SCHEDULES[header.options.pipeline].make(2, count, 1)
        found = checked(header, batch, Change(order, places=places), "a decision").batch
        assert found.sequences.sequence_id.tolist() == batch.sequences.sequence_id.tolist()


def test_a_slow_lane_gets_less_and_the_heaviest_microbatches_stay_where_they_were():
    header, batch = planned(256, microbatches=40)  # with room under the cap
    cost, count = header.cost_model(), batch.num_microbatches
    before = slot_times(cost, batch.sequences.placed(), count).load_s
    full, *_ = anew(header, batch, slow(header))
    sequences = with_places(batch.sequences, full)
    after = slot_times(cost, sequences.placed(), count).load_s
    assert after[1].sum() < 0.85 * before[1].sum()
    assert after.sum() == pytest.approx(before.sum(), rel=0.1)
    ranks = [np.argsort(np.argsort(-load.max(axis=0), kind="stable")) for load in (before, after)]
    assert ranks[0].tolist() == ranks[1].tolist()


def rows_on(header, batch, places, lane):
    """Sequences on a lane, and their rows over those of a lane of the mean."""
    placed = with_places(batch.sequences, places).placed()
    count = ((placed.first_rank <= lane) & (placed.first_rank + placed.degree > lane)).sum()
    rows = slot_rows(placed, header.options.ranks, places.num_microbatches).sum(axis=1)
    return int(count), float(rows[lane] / rows.mean())


def test_a_lane_that_all_wait_for_is_left_out():
    header, batch = planned(256, widest=4, microbatches=40)
    cost, decide = header.cost_model(), decide_by(header.cost_model(), header.options, *ALL)
    found, before_s, after_s = decide(batch, slow(header, factor=20.0))
    healthy_s = simulated_s(cost, batch)
    assert before_s == pytest.approx(18.7 * healthy_s, rel=0.01)
    assert after_s < 1.25 * healthy_s  # 8 / 7 if nothing were wider than a lane
    assert rows_on(header, batch, found.places, 1) == (0, 0.0)
    some, *_ = decide(batch, slow(header, factor=1.9))  # whom a group need not wait for so long
    assert rows_on(header, batch, some.places, 1)[1] > 0.5


def test_what_only_the_whole_pool_holds_stays_on_a_lane_that_all_wait_for():
    header, batch = planned(256, microbatches=40)
    forced = int((batch.sequences.length_tokens > 4 * 4096).sum())
    decide = decide_by(header.cost_model(), header.options, *ALL)
    found, before_s, after_s = decide(batch, slow(header, factor=20.0))
    count, rows = rows_on(header, batch, found.places, 1)
    assert count == forced == 10
    assert rows < 0.34  # of all tokens a third is in these ten
    assert after_s < 0.38 * before_s


def test_more_microbatches_are_taken_where_the_other_lanes_have_no_room():
    header, batch = planned(96, ranks=2, widest=1, max_tokens_per_rank=4096)
    tokens = int(batch.sequences.length_tokens.sum())
    assert tokens > 0.9 * 2 * 4096 * batch.num_microbatches
    places = [p for p in anew(header, batch, slow(header, lane=0, factor=30.0))
              if rows_on(header, batch, p, 0)[0] == 0]  # fmt: skip
    assert places
    assert all(p.num_microbatches > tokens / 4096 for p in places)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_the_schedule_of_the_plan_is_taken_for_more_microbatches_too(recompute):
    """Under recompute B leaves more for W than F keeps, so orders with them apart do not fit."""
    header, batch = planned(96, ranks=4, widest=2, recompute=recompute)
    decide = decide_by(header.cost_model(), header.options, *ALL)
    found, before_s, after_s = decide(batch, slow(header, factor=20.0))
    count = found.places.num_microbatches
    assert count > batch.num_microbatches
    assert found.schedule == SCHEDULES["1f1b"].make(2, count, 1)
    assert before_s > 17 * simulated_s(header.cost_model(), batch)
    assert after_s < 1.35 * simulated_s(header.cost_model(), batch)  # 4 / 3 with 3 of 4 lanes
    checked(header, batch, found, "a decision")


def simulated_s(cost, batch):
    slots = slot_times(cost, batch.sequences.placed(), batch.num_microbatches)
    return shares(simulate(slots, batch.schedule))["iteration_s"]


def test_the_speed_of_a_lane_is_that_of_its_slowest_rank_or_of_its_costliest_stage():
    load_s = np.array([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]])
    light = np.array([[1.0, 3.0, 1.0], [1.0, 1.0, 1.0]])
    assert [s.tolist() for s in speeds(load_s, light)] == [[1, 0.333, 1], [1, 0.667, 1]]
    heavy = np.array([[1.0, 1.0, 1.0], [1.0, 1.0, 1.25]])
    assert [s.tolist() for s in speeds(load_s, heavy)] == [[1, 1, 0.8]]
    assert list(speeds(load_s, np.ones((2, 3)))) == []
    idle = load_s * [1.0, 1.0, 0.0]
    assert [s.tolist() for s in speeds(idle, light)] == [[1, 0.333, 1], [1, 0.667, 1]]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("factor", [0.0, 1e-300, 1e300, np.inf])
def test_a_factor_beyond_all_speeds_is_the_nearest_of_them(factor):
    load_s, factors = np.ones((1, 2)), np.array([[factor, 1.0]])
    nearest = MAX_SPEED if factor < 1 else MIN_SPEED
    assert [speed.tolist() for speed in speeds(load_s, factors)] == [[nearest, 1.0]]


def test_healthy_ranks_other_strategies_and_rows_that_keep_their_order_have_no_other_places():
    header, batch = planned()
    assert anew(header, batch, np.ones((2, 8))) == []
    for changes in ({"strategy": "static-cp"}, {"reorder": "window:5"}, {"reorder": "none"}):
        header, batch = planned(**changes)
        assert anew(header, batch, slow(header)) == []


def test_a_speed_that_the_plan_knows_is_part_of_the_new_one():
    header, batch = planned(rank_speed=(1.0,) * 7 + (0.5,), microbatches=16)
    cost, count = header.cost_model(), batch.num_microbatches
    full, *_ = anew(header, batch, slow(header, lane=0, factor=2.0))
    placed = with_places(batch.sequences, full).placed()
    tokens = slot_times(replace(cost, rank_speed=None), placed, count).load_s.sum(axis=1)
    assert max(tokens[0], tokens[7]) < 0.8 * tokens[1:7].min()


@pytest.mark.parametrize("live", [None, 2])
def test_a_decision_takes_new_places_and_holds_no_more_than_the_plan(live):
    changes = {"microbatches": 12}
    changes |= {} if live is None else {"pipeline": "portfolio", "live_microbatches": live}
    header, batch = planned(64, seed=3, **changes)
    cost, factor = header.cost_model(), slow(header, stage=1, factor=1.8)
    change, without_s, with_s = decide_by(cost, header.options, "portfolio", True)(batch, factor)
    assert change.places is not None
    assert with_s < 0.9 * without_s
    found = checked(header, batch, change, "a decision")
    planned_most = (1 + SPARE) * planned_live_peaks(cost, batch).max()
    full_slots = 2 * header.options.max_tokens_per_rank  # that 1F1B holds on two stages
    most = header.options.live_limit_tokens or max(planned_most, full_slots)
    assert planned_live_peaks(cost, found.batch, found.moves).max() <= most * (1 + 1e-9)
    alone, _, alone_s = decide_by(cost, header.options, "none", True)(batch, factor)
    assert alone.places is None
    assert with_s < alone_s


def test_a_decision_keeps_to_the_memory_that_the_plan_was_given():
    header, batch = planned(256, widest=4, microbatches=40)
    cost, factor = header.cost_model(), slow(header, stage=1, factor=10.0)
    free, _, free_s = decide_by(cost, header.options, *ALL)(batch, factor)
    needed = changed_bytes(cost, with_change(batch, free), free.moves, False).sum(axis=0).max()
    given = batch_bytes(cost, batch, False).sum(axis=0).max()
    assert needed > 1.2 * given
    gib = {"memory_gib": float(0.5 * (needed + given) / 2**30)}
    options = header.options.model_copy(update=gib)
    kept, before_s, kept_s = decide_by(cost, options, *ALL)(batch, factor)
    assert free_s < kept_s < before_s
    held = changed_bytes(cost, with_change(batch, kept), kept.moves, False).sum(axis=0).max()
    assert held <= options.memory_bytes
    limited = header.model_copy(update={"options": options, "cluster": None})
    checked(limited, batch, kept, "a decision")
    with pytest.raises(InputError, match="needs more memory than --memory-gib"):
        checked(limited, batch, free, "a file")


def test_places_of_a_paced_run_hold_no_more_rows_than_its_head_makes_at_once():
    header, batch = planned(256, widest=2, microbatches=60)
    cost, factor = header.cost_model(), slow(header, factor=10.0)
    rows = slot_rows(batch.sequences.placed(), 8, 60).max()
    free, *_ = decide_by(cost, header.options, *ALL)(batch, factor)
    paced, *_ = decide_by(cost, header.options, *ALL, most_rows=int(rows))(batch, factor)
    placed = [with_change(batch, change) for change in (free, paced)]
    most = [slot_rows(b.sequences.placed(), 8, b.num_microbatches).max() for b in placed]
    assert most[1] <= rows < most[0]


@pytest.mark.parametrize(("planned_for", "runs"), [("none", "full"), ("full", "none")])
@pytest.mark.parametrize("correction", ["portfolio", "none"])
def test_what_a_run_makes_again_otherwise_than_the_plan_counts_in_the_check_too(
    planned_for, runs, correction
):
    """Of the second pair the plan itself holds more than the limit, if nothing is made again."""
    changes = {"pipeline": "portfolio", "live_microbatches": 2, "microbatches": 12}
    header, batch = planned(48, seed=3, ranks=4, recompute=planned_for, **changes)
    cost, factor = replace(header.cost_model(), recompute=runs), slow(header, 1, 1, 1.8)
    decided = decide_by(cost, header.options, correction, True)(batch, factor)
    change, without_s, with_s = decided
    assert with_s <= without_s
    if change:
        found = checked(header, batch, change, "a decision", cost)
        limit = header.options.live_limit_tokens * (1 + 1e-9)
        assert planned_live_peaks(cost, found.batch, found.moves).max() <= limit
    assert bool(change) or runs == "none"
