"""Decisions from made-up measurements: when they come, what undoes them, what they are worth."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from hydraplan.errors import InputError
from hydraplan.executor import correction as executor_correction
from hydraplan.executor.change import checked
from hydraplan.executor.correction import (
    Corrections,
    Replay,
    Worked,
    decide_by,
    in_parts,
    waits_for_compiler,
)
from hydraplan.executor.predicted import loads_of
from hydraplan.files.decisionsfile import Change, in_force, with_change
from hydraplan.files.lengths import Lengths
from hydraplan.files.planfile import open_plan, read_batch, write_plan
from hydraplan.metrics import planned_live_peaks
from hydraplan.migration import HeadMove, Moves, RowMove
from hydraplan.model import Op
from hydraplan.planner.pipeline.schedules import SCHEDULES
from hydraplan.planner.plan import plan as make_plan
from hydraplan.slots import slot_rows
from tests.builders import Place
from tests.planner.cases import long_tailed, options, profile
from tests.plans import tiny_model, write_test_plan

RANK = (1, 2)


def batch_of_places(shift, heavy):
    """Six microbatches on four lanes, lane 2 with `heavy` times as many tokens."""
    return [
        Place(300 * (heavy if lane == 2 else 1) + 40 * ((m + lane + shift) % 3), lane, 1, 1, m)
        for m in range(6)
        for lane in range(4)
    ]


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan") / "x.plan"
    batches = [batch_of_places(0, 1), batch_of_places(1, 1), batch_of_places(0, 5)]
    model = tiny_model(num_layers=4)
    return open_plan(write_test_plan(folder, batches, pp=2, ranks=4, model=model))


def walked(plan, steps, factor, batches=(0, 1), deciding=None, migration=False, sigma=0.01):
    """All decisions and iterations of a run whose `RANK` takes `factor(step)` as long."""
    cost, rng = plan.header.cost_model(), np.random.default_rng(3)
    read = {b: read_batch(plan, b) for b in batches}
    if deciding is None:
        decide = decide_by(cost, plan.header.options, "portfolio", migration)
        deciding = Corrections(cost, read, decide)
    rows, taken = [], []
    for step in range(steps):
        batch = read[batches[step % len(batches)]]
        decided, slow = deciding.coming(step, batch), np.ones((2, 4))
        slow[RANK] = factor(step)
        change = deciding.change(batch.batch)
        now = checked(plan.header, batch, change, "here")
        loads = loads_of(cost, now.batch, change.moves, slow)
        work_s = in_parts(loads.of_ops(now.batch.schedule))
        assert work_s.sum(axis=0) == pytest.approx(loads.work_s.sum(axis=(0, 2, 4)))
        iteration_s = Corrections(cost, read, None).predicted_s(batch, change, slow)
        busy_s = work_s * slow * rng.lognormal(0, sigma, work_s.shape)
        worked = Worked(step, batch.batch, change, iteration_s, busy_s, work_s)
        decided = deciding.done(worked, decided)
        taken.append(iteration_s)
        if decided is not None:
            rows.append(decided)
    return rows, taken


def spell(step):
    return 1.5 if 5 <= step < 15 else 1.0


def test_a_straggler_of_steps_5_to_14_is_corrected_at_6_and_undone_by_17(plan):
    rows, taken = walked(plan, 20, spell, migration=True)
    assert [row.step for row in rows[:2]] == [6, 7]
    assert all("reorder" in row.kind or "migrate" in row.kind for row in rows[:2])
    assert [(r.stage, r.lane, r.since) for r in rows[0].slow] == [(*RANK, 5)]
    assert rows[0].slow[0].factor == pytest.approx(1.5, rel=0.03)
    assert re.match(r"stage 1, lane 2 takes 1\.\d\dx as long as planned", rows[0].reason)
    assert "since step 5" in rows[0].reason
    assert "the device, not the data" in rows[0].reason
    last = rows[-1]
    assert (last.kind, last.slow) == ("undo", ())
    assert 15 < last.step <= 17
    assert "takes as long as planned again, since step 15" in last.reason
    assert taken[18:] == taken[:2]
    assert taken[7] < taken[5]


def test_a_preempted_lane_is_left_out_as_long_as_it_is_and_no_longer(tmp_path):
    values = long_tailed(192, 1, longest=4096 * 2)
    asked = options(batch_sequences=96, ranks=4)
    header, batches = make_plan(Lengths("t", "sequences", values), profile(), asked, None)
    write_plan(tmp_path / "x.plan", header, batches)
    plan, cost = open_plan(tmp_path / "x.plan"), header.cost_model()
    rows, taken = walked(plan, 20, lambda step: 20.0 if 5 <= step < 15 else 1.0)
    assert [row.step for row in rows] == [6, 7, 16]
    for row in rows[:2]:
        batch = with_change(read_batch(plan, row.batch), row.change)
        held = slot_rows(batch.sequences.placed(), cost.ranks, batch.num_microbatches)
        assert held.any(axis=1).tolist() == [True, True, False, True]
    assert np.max(np.divide(taken[6:14], taken[:2] * 4)) < 1.65  # 4 / 3 if nothing were split
    assert taken[5] > 14 * taken[1]
    assert (rows[2].kind, rows[2].slow) == ("undo", ())
    assert taken[16:] == taken[:4]


@pytest.mark.parametrize(
    ("correction", "there", "waits"),
    [("none", ["pipeline.simulator"], False), ("none", [], True),
     ("portfolio", ["pipeline.simulator", "pipeline.list_schedule"], True),
     ("portfolio", ["pipeline", "placement"], False), ("policy", ["pipeline", "placement"], True)],
)  # fmt: skip
def test_a_run_says_that_it_compiles_if_loops_of_its_decisions_are_missing(
    monkeypatch, correction, there, waits
):
    known = tuple(f"hydraplan.planner.{name}" for name in there)
    monkeypatch.setattr(executor_correction, "is_cold", lambda name: not name.startswith(known))
    assert waits_for_compiler(SimpleNamespace(correction=correction)) == waits


def test_what_a_decision_gained_is_what_the_steps_would_have_taken_less_what_they_took(plan):
    rows, taken = walked(plan, 12, spell, sigma=0.0)
    assert [row.batch for row in rows] == [0, 1]
    assert rows[1].measured_gain_s == pytest.approx(taken[5] - taken[7], rel=1e-6)
    assert rows[1].predicted_gain_s == pytest.approx(taken[5] - taken[7], rel=1e-6)


def test_an_error_of_the_prediction_that_all_steps_share_is_no_gain(plan):
    cost = plan.header.cost_model()
    batch = read_batch(plan, 0)
    deciding = Corrections(
        cost, {0: batch}, decide_by(cost, plan.header.options, "portfolio", False)
    )
    gains = []
    for step in range(9):
        decided, slow = deciding.coming(step, batch), np.ones((2, 4))
        slow[RANK] = spell(step)
        change = deciding.change(0)
        loads, ops = loads_of(cost, batch, change.moves, slow), change.schedule or batch.schedule
        load_s = in_parts(loads.of_ops(ops))
        taken_s = 3 * deciding.predicted_s(batch, change, slow)
        decided = deciding.done(
            Worked(step, 0, change, taken_s, 3 * load_s * slow, load_s), decided
        )
        gains += [] if decided is None else [(decided.measured_gain_s, decided.predicted_gain_s)]
    ((measured_s, predicted_s),) = gains
    assert measured_s == pytest.approx(3 * predicted_s)


def test_heavy_data_on_healthy_ranks_decides_nothing(plan):
    """Lane 2 holds five times as much in one of three batches, by plan."""
    rows, _ = walked(plan, 24, lambda step: 1.0, batches=(0, 1, 2), sigma=0.05)
    assert rows == []


def test_a_slow_device_is_told_where_data_is_heavy_too(plan):
    rows, _ = walked(plan, 12, spell, batches=(0, 1, 2))
    assert rows[0].step == 6
    assert [(r.stage, r.lane) for r in rows[0].slow] == [RANK]


def test_a_slow_rank_that_nothing_helps_is_told_and_left(plan):
    cost, batch = plan.header.cost_model(), read_batch(plan, 0)
    same = Corrections(cost, {0: batch}, lambda b, factor: (Change(), 2.0, 2.0))
    rows, _ = walked(plan, 18, spell, batches=(0,), deciding=same)
    assert [row.kind for row in rows] == ["leave", "leave"]
    assert rows[0].slow
    assert rows[1].slow == ()


def test_a_run_that_is_gone_on_with_decides_as_if_nothing_had_ended_it(plan):
    """At every step from which it may go on: the same decisions at the same steps."""
    whole, _ = walked(plan, 20, spell)
    cost = plan.header.cost_model()
    read = {b: read_batch(plan, b) for b in (0, 1)}
    for kept in (7, 12):
        steps = []

        class Recorded(Corrections):
            def done(self, worked, decided, steps=steps):
                steps.append(worked)
                return super().done(worked, decided)

        decide = decide_by(cost, plan.header.options, "portfolio", False)
        rows, _ = walked(plan, 20, spell, deciding=Recorded(cost, read, decide))
        assert [r._replace(planning_s=0) for r in rows] == [r._replace(planning_s=0) for r in whole]
        again = Corrections(cost, read, decide)
        for worked in steps[:kept]:
            again.again(worked, [row for row in rows if row.step < kept])
        found = []
        for worked in steps[kept:]:
            decided = again.coming(worked.step, read[worked.batch])
            assert again.change(worked.batch) == worked.change
            found.append(again.done(worked, decided))
        found = [r._replace(planning_s=0) for r in found if r is not None]
        assert found == [r._replace(planning_s=0) for r in rows if r.step >= kept]


def test_decisions_that_op_times_do_not_tell_of_are_refused(plan):
    rows, _ = walked(plan, 9, spell)
    cost, batch = plan.header.cost_model(), read_batch(plan, 0)
    ones = np.ones((2, 2, 4))
    again = Corrections(cost, {0: batch}, None)
    with pytest.raises(InputError, match="step 7 is of event 1, the op times of the run tell of 0"):
        again.again(Worked(7, 0, Change(), 1.0, ones, ones), rows)


def test_a_replay_changes_the_same_at_the_same_steps_whatever_the_ranks_do(plan):
    rows, _ = walked(plan, 20, spell)
    again, _ = walked(plan, 20, lambda step: 1.0, deciding=Replay(rows, 2, 4))
    told = [(r.step, r.batch, r.kind, r.change) for r in again]
    assert told == [(r.step, r.batch, r.kind, r.change) for r in rows]
    replay = Replay(rows, 2, 4)
    for step in range(20):
        batch = read_batch(plan, step % 2)
        replay.coming(step, batch)
        assert replay.change(step % 2) == in_force(rows, step, step % 2)


ORDER_HINT = "the decisions are not of this plan"


def hostile(plan):
    """Changes that do not fit batch 0, and what is said of them."""
    ops = SCHEDULES["zb-h1"].make(2, 6, 1)
    first, rest = ops[0], ops[1:]
    at = next(i for i, op in enumerate(first) if op.kind == "B")
    late = (*first[:at], *first[at + 1 :])
    one_by_one = tuple(sorted(first, key=lambda op: (op.microbatch, "FBW".index(op.kind))))
    backwards = tuple(sorted(first, key=lambda op: ("FBW".index(op.kind), -op.microbatch)))
    return [
        (Change(rest), "ops of 1 stages, not 2"),
        (Change((first[1:], *rest)), "runs after nothing"),
        (Change((late, *rest)), "W of microbatch 0, chunk 0 runs after F of these"),
        (Change(((*first, Op("F", 99)), *rest)), "does not exist"),
        (Change(((*first, first[0]), *rest)), "runs after"),
        (Change((one_by_one, backwards)), "wait for each other"),
        (Change(None, Moves(rows=(RowMove(0, 0, 0, 1, 17),))), "multiple of 16"),
        (Change(None, Moves(heads=(HeadMove(0, 77, 0, 1, 1),))), "the batch has 2 stages"),
    ]


@pytest.mark.parametrize("number", range(8))
def test_a_change_that_does_not_fit_its_batch_is_refused_before_anything_runs(plan, number):
    change, said = hostile(plan)[number]
    with pytest.raises(InputError, match=f"a file, batch 0: .*{said}") as e:
        checked(plan.header, read_batch(plan, 0), change, "a file")
    assert ORDER_HINT in e.value.hint


def test_an_order_that_holds_more_than_the_plan_allows_is_refused(plan):
    options = plan.header.options.model_copy(
        update={"live_microbatches": 2, "max_tokens_per_rank": 380}
    )
    header, batch = plan.header.model_copy(update={"options": options}), read_batch(plan, 0)
    gpipe = SCHEDULES["gpipe"].make(2, 6, 1)
    with pytest.raises(InputError, match="tokens are held at once"):
        checked(header, batch, Change(gpipe), "a file")
    assert checked(plan.header, batch, Change(gpipe), "a file").batch.schedule == gpipe
    peak = planned_live_peaks(header.cost_model(), batch)
    taker = int(peak[0].argmax())
    moves = Moves(rows=tuple(RowMove(0, m, (taker + 1) % 4, taker, 16) for m in range(6)))
    fits = {"live_microbatches": 1, "max_tokens_per_rank": int(peak.max()) + 1}
    header = plan.header.model_copy(update={"options": options.model_copy(update=fits)})
    checked(header, batch, Change(), "a file")
    with pytest.raises(InputError, match="with its moves activations of"):
        checked(header, batch, Change(None, moves), "a file")


def test_own_work_adds_up_to_the_same_whatever_moves(plan):
    cost, batch = plan.header.cost_model(), read_batch(plan, 0)
    nominal = np.ones((2, 4))
    moves = Moves(rows=(RowMove(1, 0, 2, 0, 32),), heads=(HeadMove(1, 1, 2, 3, 4),))
    plain, moved = (loads_of(cost, batch, m, nominal).work_s for m in (Moves(), moves))
    assert moved.sum() == pytest.approx(plain.sum())
    changed = np.abs(moved - plain).sum(axis=(0, 2))
    assert [tuple(at) for at in np.argwhere(changed > 1e-12)] == [
        (1, 0, 0), (1, 2, 0), (1, 2, 1), (1, 3, 1),
    ]  # fmt: skip
