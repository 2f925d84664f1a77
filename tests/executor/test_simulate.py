import json
import subprocess
import sys

import numpy as np
import pytest

from hydraplan.cli.app import run as command
from hydraplan.executor.simulate import simulate_run
from hydraplan.files import runfile
from hydraplan.files.planfile import open_plan, read_batch
from hydraplan.files.runfile import open_run, read_timeline
from hydraplan.metrics import planned_live_peaks, shares
from hydraplan.planner.pipeline.noise import parse_noise
from hydraplan.planner.pipeline.noisy_run import noisy_run, with_pool_barrier
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.slots import slot_times
from tests.builders import Place
from tests.plans import write_test_plan

BATCHES = [
    [Place(330, 0, 2, 1), Place(80, 0, 1, 2, 1), Place(50, 1, 1, 1, 1)],
    [Place(200, 0, 1, 2), Place(0), Place(1, 1)],
]


@pytest.fixture
def plan(tmp_path):
    return write_test_plan(tmp_path / "x.plan", BATCHES, pp=2, ranks=2)


def test_steps_are_the_simulators_runs_of_the_batches_and_survive_the_folder(plan, tmp_path):
    output = tmp_path / "x.run"
    run = simulate_run(plan, steps=3, seed=0, output=output, force=False)
    assert [row["batch"] for row in run.steps] == [0, 1, 0]
    assert [row["loss"] for row in run.steps] == [None] * 3
    opened = open_plan(plan)
    kept = open_run(output)
    assert kept.header.mode == "simulated"
    assert kept.peaks.measured is None
    for step, batch in enumerate((0, 1)):
        planned = read_batch(opened, batch)
        slots = slot_times(
            opened.header.cost_model(), planned.sequences.placed(), planned.num_microbatches
        )
        held = planned_live_peaks(opened.header.cost_model(), planned)
        assert kept.peaks.predicted[step].tolist() == held.tolist()
        wanted = shares(simulate(slots, planned.schedule))
        assert run.steps[step]["iteration_s"] == wanted["iteration_s"]
        assert shares(read_timeline(kept, step)) == pytest.approx(wanted)
        assert read_timeline(kept, step).schedule == planned.schedule


def test_without_output_nothing_is_kept(plan, tmp_path):
    run = simulate_run(plan, steps=None, seed=0, output=None, force=False)
    assert len(run.steps) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.plan"]
    assert not run.path.exists()


def test_the_command_prints_figures_of_a_simulated_run(plan, capsys):
    assert command(["execute", str(plan), "--simulate", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert next(iter(said)) == "schema_version"
    assert (said["mode"], said["steps"], said["loss"]) == ("simulated", 2, [])
    assert said["iteration_s_mean"] > 0
    assert said["tokens_per_s"] > 0
    assert command(["execute", str(plan), "--simulate"]) == 0
    assert "simulated with its analytic profile" in capsys.readouterr().out


def test_simulation_needs_no_torch(plan):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from hydraplan.cli.app import run\n"
        f"sys.exit(run(['execute', {str(plan)!r}, '--simulate', '--json']))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


NOISE = "jitter=0.3,straggler=2,link=0.2"


def test_trials_of_a_noisy_run_are_those_of_the_simulator(plan, tmp_path):
    output = tmp_path / "x.run"
    asked = {"seed": 3, "noise": parse_noise(NOISE), "trials": 5}
    run = simulate_run(plan, steps=3, output=output, force=False, **asked)
    opened, cost = open_plan(plan), open_plan(plan).header.cost_model()
    found = []
    for step, batch in enumerate((0, 1, 0)):
        planned = read_batch(opened, batch)
        slots = slot_times(cost, planned.sequences.placed(), planned.num_microbatches)
        noise = asked["noise"]
        found.append(
            noisy_run(
                slots,
                planned.schedule,
                noise,
                trials=5,
                seed=3,
                step=step,
                node_ranks=cost.node_ranks,
            )
        )
        assert run.steps[step]["iteration_s"] == found[step].iteration_s[0]
        assert shares(read_timeline(open_run(output), step))["iteration_s"] == pytest.approx(
            found[step].iteration_s[0]
        )
    kept = open_run(output)
    assert (kept.header.noise, kept.header.trials, kept.header.seed) == (NOISE, 5, 3)
    mean = np.mean([f.iteration_s for f in found], axis=0)
    assert kept.trials.iteration_s == pytest.approx(mean)
    assert kept.trials.nominal_s == pytest.approx(np.mean([f.nominal_s for f in found]))
    assert list(kept.trials.without_s) == ["jitter", "straggler", "link"]
    assert list(kept.trials.lost_s) == list(found[0].lost_s)
    for name, lost_s in kept.trials.lost_s.items():
        assert lost_s == pytest.approx(np.mean([f.lost_s[name] for f in found], axis=0))
    assert sum(kept.trials.lost_s.values()) == pytest.approx(mean)
    assert found[0].iteration_s.tolist() != found[2].iteration_s.tolist()


def test_the_command_says_what_noise_costs(plan, capsys):
    asked = ["execute", str(plan), "--simulate", "--noise", NOISE, "--trials", "6", "--seed", "1"]
    assert command([*asked, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["noise"], said["trials"], said["steps"]) == (NOISE, 6, 2)
    assert said["iteration_s_mean"] > said["nominal_s_mean"]
    assert said["iteration_s_ci95"] > 0
    lost = {cause["cause"]: cause["lost_s"] for cause in said["causes"]}
    assert sum(lost.values()) == pytest.approx(said["iteration_s_mean"])
    costs = {cause["cause"]: cause.get("cost_s_mean") for cause in said["causes"]}
    assert costs["straggler"] > 0
    assert costs["compute"] is None
    assert command(asked) == 0
    text = capsys.readouterr().out
    assert "mean over ranks and 6 trials, seed 1,\nnoise jitter=0.3, straggler=2, link=0.2" in text
    assert "What noise costs, waits included" in text
    assert command([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == said


def test_without_noise_all_trials_are_the_same_and_the_interval_has_no_width(plan, capsys):
    assert command(["execute", str(plan), "--simulate", "--trials", "3", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["noise"], said["trials"]) == ("none", 3)
    assert said["iteration_s_ci95"] == pytest.approx(0, abs=1e-12 * said["iteration_s_mean"])
    assert said["iteration_s_mean"] == pytest.approx(said["nominal_s_mean"])
    assert all("cost_s_mean" not in cause for cause in said["causes"])


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--noise", "jitter=0.3"], "--noise jitter=0.3 has no use without --simulate"),
        (["--trials", "3"], "--trials 3 has no use without --simulate"),
        (["--pool-barrier"], "--pool-barrier has no use without --simulate"),
        (["--simulate", "--noise", "jiter=1"], "'jiter' is no source of noise"),
        (["--simulate", "--noise", "jitter=4"], "noise jitter=4 is not from 0 to 3"),
    ],
)
def test_noise_that_cannot_be_drawn_is_refused(plan, capsys, extra, message):
    assert command(["execute", str(plan), *extra]) == 2
    assert message in capsys.readouterr().err


def test_a_pool_barrier_lets_all_lanes_meet_in_every_microbatch(tmp_path, capsys):
    """Each lane has a long microbatch of its own, which the other waits for."""
    crossed = [Place(4000, 0), Place(10, 1), Place(10, 0, 1, 1, 1), Place(4000, 1, 1, 1, 1)]
    plan = write_test_plan(tmp_path / "x.plan", [crossed, crossed[::-1]], pp=2, ranks=2)
    asked = ["execute", str(plan), "--simulate", "--json"]
    kept = tmp_path / "met.run"
    assert command([*asked, "--pool-barrier", "-o", str(kept)]) == 0
    met = json.loads(capsys.readouterr().out)
    assert command(asked) == 0
    apart = json.loads(capsys.readouterr().out)
    assert (met["pool_barrier"], apart["pool_barrier"]) == (True, False)
    assert met["iteration_s_mean"] > 1.2 * apart["iteration_s_mean"]
    opened = open_plan(plan)
    for step in range(2):
        batch = read_batch(opened, step)
        slots = slot_times(
            opened.header.cost_model(), batch.sequences.placed(), batch.num_microbatches
        )
        timeline = read_timeline(open_run(kept), step)
        assert shares(timeline) == pytest.approx(
            shares(simulate(with_pool_barrier(slots), batch.schedule))
        )
        for ops, start, end in zip(
            timeline.schedule, timeline.start_s, timeline.end_s, strict=True
        ):
            meet = [op.kind != "W" for op in ops]
            assert (end[meet] == end[meet][:, :1]).all()
            assert start.shape == end.shape
    assert command(["show", str(kept)]) == 0
    assert "profile, all lanes meeting in every microbatch, pp 2" in capsys.readouterr().out
    noisy = [*asked, "--pool-barrier", "--noise", "jitter=0.2", "--trials", "3"]
    assert command(noisy) == 0
    assert json.loads(capsys.readouterr().out)["nominal_s_mean"] == pytest.approx(
        met["iteration_s_mean"]
    )


def test_a_simulated_run_has_the_same_bytes_however_long_its_writes_took(
    plan, tmp_path, monkeypatch
):
    asked = {"steps": 9, "seed": 1, "force": False, "noise": parse_noise("jitter=0.1")}
    for name, wait in (("a", 0.0), ("b", 1e9)):
        monkeypatch.setattr(runfile, "WAIT_PER_WRITE", wait)
        simulate_run(plan, output=tmp_path / name, **asked)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name
