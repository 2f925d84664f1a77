"""Corrections on real workers: what ranks take is made up, everything else is real."""

import os
import signal

import numpy as np
import pytest

from hydraplan.errors import InputError, StalePlan, WorkerLost
from hydraplan.executor.ahead import Ahead
from hydraplan.executor.inject import Injected
from hydraplan.files.checkpointfile import newest_checkpoint
from hydraplan.files.runfile import open_run, read_step_ops
from tests.builders import Place
from tests.executor.killed import count_calls, kill_at
from tests.executor.trained import losses, make_up_times, train
from tests.plans import tiny_model, write_test_plan

pytestmark = pytest.mark.dist

RANK, SLOW = (1, 1), range(4, 8)
BATCHES = [
    [
        Place(64 + 64 * lane + 16 * ((m + shift) % 3), lane, 1, 1, m)
        for m in range(4)
        for lane in range(2)
    ]
    + [Place(96, 0, 2, 1, m) for m in range(4)]
    for shift in (0, 1)
]
"""Lane 1 holds more, so lane 0 has room for rows of it; both share a sequence in every slot."""


@pytest.fixture
def plan(tmp_path):
    model = tiny_model().model_copy(update={"ffn_hidden_size": 256})
    return write_test_plan(tmp_path / "x.plan", BATCHES, pp=2, ranks=2, model=model)


@pytest.fixture
def taken(monkeypatch):
    """Have every rank take what is predicted, `RANK` twice as long in some steps, +-1%."""
    return make_up_times(monkeypatch, RANK, SLOW)


def told(run):
    return [(r.step, r.batch, r.event, r.kind, r.change) for r in run.decisions]


def corrected(plan, output, **changes):
    asked = {"steps": 12, "correction": "portfolio", "migration": True} | changes
    return train(plan, output=output, **asked)


def test_a_straggler_is_corrected_on_all_workers_and_undone(plan, tmp_path, taken):
    run = corrected(plan, tmp_path / "x.run")
    first, second, *_, last = run.decisions
    assert (first.step, first.kind, second.step) == (5, "reorder+migrate", 6)
    assert min(len(first.change.moves.shares), len(first.change.moves.rows)) > 0
    assert RANK in [(r.stage, r.lane) for r in first.slow if r.factor > 1]
    assert (last.kind, last.slow) == ("undo", ())
    assert 8 < last.step < 11
    assert first.predicted_gain_s > 0
    planned = read_step_ops(run, 0).timeline.schedule
    for step in range(12):
        ops = read_step_ops(run, step)
        assert (ops.timeline.schedule != planned) == (5 <= step < last.step)
        assert ops.predicted.schedule == ops.timeline.schedule
    assert run.peaks.differ() == []
    assert np.array_equal(run.traffic.measured, run.traffic.predicted)
    assert open_run(tmp_path / "x.run").decisions == run.decisions


@pytest.mark.slow
def test_a_run_decides_the_same_if_what_decides_ahead_is_killed_or_hangs(
    plan, tmp_path, taken, monkeypatch, capfd
):
    whole = corrected(plan, tmp_path / "whole.run")
    begin = Ahead.begin

    def begin_and_strike(number):
        def struck(self, batch, factor):
            self._wait_s = 0.5
            begin(self, batch, factor)
            if self._pipe is not None:
                os.kill(self._process.pid, number)

        return struck

    for name, number in (("is gone", signal.SIGKILL), ("did not answer", signal.SIGSTOP)):
        monkeypatch.setattr(Ahead, "begin", begin_and_strike(number))
        run = corrected(plan, tmp_path / f"{number.name}.run")
        assert told(run) == told(whole)
        assert losses(run) == losses(whole)
        assert capfd.readouterr().err.count(f"the process that decides ahead {name}") == 1


@pytest.mark.slow
def test_a_replay_makes_the_same_losses_and_only_the_order_of_sums_differs_from_the_plan(
    plan, tmp_path, taken
):
    run = corrected(plan, tmp_path / "x.run")
    taken[0] = 100  # nobody is slow any more
    again = train(plan, replay=tmp_path / "x.run", output=tmp_path / "y.run")
    assert told(again) == told(run)
    assert losses(again) == losses(run)
    assert again.header.replays is not None
    plain = train(plan, steps=12)
    assert losses(plain)[:5] == losses(run)[:5]
    assert losses(plain) == pytest.approx(losses(run), rel=1e-5)
    with pytest.raises(InputError, match="is of 12 steps, --steps 5 are asked for"):
        train(plan, replay=tmp_path / "x.run", steps=5)
    with pytest.raises(InputError, match="repeats decisions, none are made"):
        train(plan, replay=tmp_path / "x.run", correction="portfolio")
    other = write_test_plan(tmp_path / "z.plan", BATCHES[::-1], pp=2, ranks=2)
    with pytest.raises(StalePlan, match=r"has plan digest \w{16}, this one \w{16}"):
        train(other, replay=tmp_path / "x.run")
    longer = write_test_plan(tmp_path / "w.plan", BATCHES, pp=1, ranks=2)
    with pytest.raises(StalePlan, match="has pp 2, this one 1"):
        train(longer, replay=tmp_path / "x.run")


@pytest.mark.slow
def test_a_run_that_is_killed_while_work_moves_and_resumed_decides_as_if_nothing_had_ended_it(
    plan, tmp_path, taken, monkeypatch
):
    with monkeypatch.context() as patch:
        count_calls(patch, tmp_path)
        whole = corrected(plan, tmp_path / "x.run", checkpoint_every=2)
    with monkeypatch.context() as patch:
        kill_at(patch, 2, int(0.68 * int((tmp_path / "2").read_text())))
        with pytest.raises(WorkerLost):
            corrected(plan, tmp_path / "y.run", checkpoint_every=2)
    taken[0] = newest_checkpoint(tmp_path / "y.run").about.steps
    assert whole.decisions[0].step <= taken[0] < whole.decisions[-1].step
    run = train(plan, resume=tmp_path / "y.run")
    assert losses(run) == losses(whole)
    assert told(run) == told(whole)
    assert [r.slow for r in run.decisions] == [r.slow for r in whole.decisions]
    with pytest.raises(InputError, match=r"correction none is not that of run .*, portfolio"):
        train(plan, resume=tmp_path / "y.run", correction="none")


@pytest.mark.slow
def test_what_a_decision_buys_is_measured_against_batches_that_a_resumed_run_never_comes_to(
    plan, tmp_path, taken
):
    """Slow from step 4; only step 5 is left, of the other batch than the step before it."""
    corrected(plan, tmp_path / "x.run", checkpoint_every=5, steps=5)
    taken[0] = 5
    (row,) = train(plan, resume=tmp_path / "x.run", steps=6).decisions
    assert (row.step, row.batch) == (5, 1)
    assert row.measured_gain_s is not None


@pytest.mark.slow
def test_a_rank_that_is_slow_on_purpose_is_named_and_no_healthy_one_with_heavy_data(tmp_path):
    """Four lanes, the last with five times the tokens of the others in one of two batches."""
    batches = [
        [
            Place(60 * (heavy if lane == 3 else 1), lane, 1, 1, m)
            for m in range(4)
            for lane in range(4)
        ]
        for heavy in (1, 5)
    ]
    plan = write_test_plan(tmp_path / "x.plan", batches, pp=1, ranks=4)
    run = train(plan, steps=12, correction="portfolio", injected=(Injected(0, 1, 6.0, 5, 12),))
    named = {(r.stage, r.lane) for row in run.decisions for r in row.slow if r.factor > 1}
    assert named == {(0, 1)}
