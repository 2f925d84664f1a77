"""Corrections in the simulator: the command, what is kept of it, and what it bought in truth."""

import json
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hydraplan.cli.app import run as command
from hydraplan.errors import InputError, StalePlan
from hydraplan.executor.simulate import simulate_run
from hydraplan.files.decisionsfile import change_digest
from hydraplan.files.runfile import open_run, read_step_ops
from hydraplan.files.speeds import read_speeds
from hydraplan.files.trialsfile import CORRECTION
from hydraplan.planner.pipeline.noise import parse_noise
from hydraplan.planner.pipeline.schedules import SCHEDULES
from tests.builders import Place
from tests.plans import tiny_model, write_test_plan

BATCHES = [
    [
        Place(256 + 64 * lane + 32 * ((m + shift) % 3), lane, 1, 1, m)
        for m in range(6)
        for lane in range(4)
    ]
    + [Place(512, 0, 2, 1, m) for m in range(6)]
    for shift in (0, 1)
]
"""Lanes hold unequally much, so that some have room for work of others."""

STRAGGLER = parse_noise("straggler=1.5")
SLOW = {"noise": STRAGGLER, "correction": "portfolio", "migration": True}


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "x.plan"
    model = tiny_model(num_layers=4).model_copy(update={"ffn_hidden_size": 512})
    return write_test_plan(path, BATCHES, pp=2, ranks=4, model=model)


def simulated(plan, output=None, **changes):
    asked = {"steps": 8, "seed": 4, "output": output, "force": False, "trials": 3} | changes
    return simulate_run(plan, **asked)


@pytest.fixture(scope="module")
def run(plan):
    return simulated(plan, plan.with_name("x.run"), **SLOW)


def test_each_trial_names_its_straggler_and_wins_against_itself_uncorrected(plan, run):
    (slow,) = {(r.stage, r.lane) for row in run.decisions for r in row.slow}
    uncorrected = simulated(plan, noise=STRAGGLER)
    assert np.array_equal(run.trials.without_s[CORRECTION], uncorrected.trials.iteration_s)
    gain_s = run.trials.without_s[CORRECTION] - run.trials.iteration_s
    assert (gain_s > 0).all()
    first = run.decisions[0].step
    assert run.trials.step_s[:first].tolist() == uncorrected.trials.step_s[:first].tolist()
    assert (run.trials.step_s[first + 1 :] < uncorrected.trials.step_s[first + 1 :]).all()
    assert sum(run.trials.lost_s.values()) == pytest.approx(run.trials.iteration_s)
    for row in run.decisions:
        assert row.slow[0].factor == pytest.approx(1.5)
        assert row.measured_gain_s == pytest.approx(row.predicted_gain_s, rel=1e-6)
    for step in range(8):
        ops = read_step_ops(run, step)
        busy, load = (
            np.stack([b.sum(axis=0) for b in t.busy_s]) for t in (ops.timeline, ops.predicted)
        )
        wanted = np.ones((2, 4))
        wanted[slow] = 1.5
        assert busy / load == pytest.approx(wanted)


def test_speeds_of_a_run_are_those_of_its_ranks_whatever_moved(run):
    assert any(row.change.moves for row in run.decisions)
    (slow,) = {r.lane for row in run.decisions for r in row.slow}
    wanted = [1.0] * 4
    wanted[slow] = 0.67
    assert list(read_speeds(run.path, 4)) == wanted


def test_without_noise_nothing_is_decided_and_nothing_changes(plan):
    plain, watched = (simulated(plan, **more) for more in ({}, SLOW | {"noise": None}))
    assert watched.decisions == ()
    assert watched.trials.iteration_s == pytest.approx(plain.trials.iteration_s, rel=1e-12)


def test_jitter_alone_decides_nothing(plan):
    watched = simulated(plan, **SLOW | {"noise": parse_noise("jitter=0.1"), "trials": 2})
    assert watched.decisions == ()


def test_a_replay_is_the_run_again_and_on_healthy_ranks_the_same_changes(plan, run, tmp_path):
    again = simulated(plan, tmp_path / "y.run", steps=None, noise=STRAGGLER, replay=run.path)
    told = [(r.step, r.batch, r.event, r.kind, r.change) for r in again.decisions]
    assert told == [(r.step, r.batch, r.event, r.kind, r.change) for r in run.decisions]
    assert [s["iteration_s"] for s in again.steps] == [s["iteration_s"] for s in run.steps]
    healthy = simulated(plan, steps=None, noise=None, replay=run.path, trials=1)
    assert [r.change for r in healthy.decisions] == [r.change for r in run.decisions]
    with pytest.raises(InputError, match="is of 8 steps, --steps 9"):
        simulated(plan, steps=9, replay=run.path)
    with pytest.raises(InputError, match="repeats decisions, none are made"):
        simulated(plan, replay=run.path, migration=True)
    other = write_test_plan(tmp_path / "z.plan", BATCHES[::-1], pp=2, ranks=4)
    with pytest.raises(StalePlan, match=r"has plan digest \w{16}, this one \w{16}"):
        simulated(other, replay=run.path)
    for sizes, said in (({"pp": 1, "ranks": 4}, "has pp 2, this one 1"),
                        ({"pp": 2, "ranks": 8}, "has ranks 4, this one 8")):  # fmt: skip
        other = write_test_plan(tmp_path / said.replace(" ", "-"), BATCHES, **sizes)
        with pytest.raises(StalePlan, match=said):
            simulated(other, replay=run.path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("F0 F1", "F0 F0", "step {step}, batch {batch}: stage 0, position 1: F of microbatch 0"),
        ("F0 F1", "F0 B1", "step {step}, batch {batch}: stage 0, position 1: B of microbatch 1"),
        ('"moves":{', '"moves":{"more":[],', "row 0 is no decision of this run: moves are not"),
        ("", "", "row 0 is no decision of this run: its digest is not that of its change"),
    ],
)
def test_a_file_of_decisions_that_was_changed_is_refused_before_a_step_runs(
    plan, run, tmp_path, old, new, said
):
    forged = tmp_path / "forged.run"
    shutil.copytree(run.path, forged)
    path, first = forged / "decisions.parquet", run.decisions[0]
    table = pq.read_table(path)
    rows = table.to_pylist()
    assert old in rows[0]["change"]
    rows[0]["change"] = rows[0]["change"].replace(old, new, 1)
    rows[0]["digest"] = change_digest(first.batch, rows[0]["change"]) if old else "0" * 64
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    where = said.format(step=first.step, batch=first.batch)
    with pytest.raises(InputError, match=re.escape(where)):
        simulated(plan, tmp_path / "y.run", steps=None, replay=forged)
    assert not (tmp_path / "y.run").exists()


def test_the_command_tells_the_story_and_show_tells_it_again(plan, run, tmp_path, capsys):
    asked = ["execute", str(plan), "--simulate", "--noise", "straggler=1.5", "--trials", "3"]
    asked += ["--steps", "8", "--seed", "4", "--correction", "portfolio", "--migration", "on"]
    assert command([*asked, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["corrections"] == sum(r.change.schedule is not None for r in run.decisions)
    assert said["migrations"] == sum(bool(r.change.moves) for r in run.decisions) > 0
    (slow,) = said["slow_devices"]
    assert slow == {
        "stage": run.decisions[0].slow[0].stage,
        "lane": run.decisions[0].slow[0].lane,
        "since": run.decisions[0].slow[0].since,
        "factor": 1.5,
        "until": None,
    }
    assert [d["step"] for d in said["decisions"]] == [r.step for r in run.decisions]
    causes = {cause["cause"]: cause for cause in said["causes"]}
    assert causes["correction"]["cost_s_mean"] < 0
    assert command(["show", str(run.path)]) == 0
    text = capsys.readouterr().out
    assert "What changed while it ran: correction portfolio, migration on" in text
    assert "so it is the device, not the data" in text.replace("\n   ", " ")
    assert f"--rank-speed {run.path}" in text
    assert "lengthened by correction" not in text


def test_a_plan_of_several_chunks_is_ordered_by_the_portfolio_and_that_is_noted(tmp_path, capsys):
    path = write_test_plan(
        tmp_path / "d.plan", BATCHES[:1], pp=2, ranks=4, model=tiny_model(num_layers=4),
        make=lambda stages, count: SCHEDULES["zb-v"].make(stages, count, 2),
        num_chunks=2, route="v",
    )  # fmt: skip
    simulated(path, correction="policy")
    assert "the plan has 2: the portfolio orders them" in capsys.readouterr().err


def test_decisions_of_a_run_are_those_of_its_folder(run):
    assert open_run(run.path).decisions == run.decisions


def test_a_step_in_a_new_order_is_exported_as_it_ran(run, tmp_path, capsys):
    """The plan's order has whole backwards, the new one parts W from B."""
    changed = next(row for row in run.decisions if row.change.schedule is not None)
    for step, kinds in ((0, {"F", "BW"}), (changed.step, {"F", "B", "W"})):
        assert {
            op.kind for ops in read_step_ops(run, step).timeline.schedule for op in ops
        } == kinds
        for form in ("chrome", "pytorch-csv"):
            asked = ["--format", form, "--step", str(step), "-o", str(tmp_path / f"{step}.{form}")]
            assert command(["export", str(run.path), *asked]) == 0, capsys.readouterr().err
