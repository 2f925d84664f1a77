import json
import subprocess
import sys

import pytest

from hydraplan.cli.app import run as command
from hydraplan.executor.simulate import simulate_run
from hydraplan.files.planfile import open_plan, read_batch
from hydraplan.files.runfile import open_run, read_timeline
from hydraplan.metrics import shares
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
    for step, batch in enumerate((0, 1)):
        planned = read_batch(opened, batch)
        slots = slot_times(
            opened.header.cost_model(), planned.sequences.placed(), planned.num_microbatches
        )
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
