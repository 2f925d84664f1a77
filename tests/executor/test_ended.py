"""What ends a command or one of its workers, and what is left then; other ways to start workers."""

import json
import os
import select
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from hydraplan.cli.app import run as command
from hydraplan.errors import RunFailed
from hydraplan.executor import launch, step
from hydraplan.files.runfile import open_run, read_timeline
from hydraplan.planner.pipeline.schedules import SCHEDULES
from tests.builders import Place
from tests.executor.started import first_step, start
from tests.executor.trained import BATCHES, losses, train
from tests.plans import tiny_model, write_test_plan

pytestmark = pytest.mark.dist

DEADLINE_S = 30
"""How long the command may take to end once a worker is dead."""


@pytest.fixture
def plan(tmp_path):
    return write_test_plan(tmp_path / "x.plan", BATCHES, pp=2, ranks=2)


def plan_with(pipeline, folder):
    """The batches with B and W apart, or several chunks a stage, where the schedule has them."""
    schedule = SCHEDULES[pipeline]
    chunks = schedule.chunks or 2
    return write_test_plan(
        folder / "x.plan", BATCHES, pp=2, ranks=2, model=tiny_model(num_layers=2 * chunks),
        make=partial(schedule.make, num_chunks=chunks), num_chunks=chunks, route=schedule.route,
        num_microbatches=5,
    )  # fmt: skip


@pytest.mark.parametrize("pipeline", ["zb-v", "interleaved"])
def test_a_step_without_tags_and_with_checked_messages_has_the_right_gradients(
    pipeline, tmp_path, capfd
):
    options = ["--transport", "ordered", "--debug-messages", "--ring-hops", "single", "--json"]
    assert command(["verify", str(plan_with(pipeline, tmp_path)), *options]) == 0
    assert json.loads(capfd.readouterr().out)["max_gradient_error"] <= 1e-10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pipeline", "killed"),
    [("1f1b", 3), ("zb-v", 0), ("zb-v", 2), ("interleaved", 1)],
)
def test_a_killed_worker_ends_the_command_with_one_line_and_leaves_no_process(
    pipeline, killed, tmp_path
):
    output = tmp_path / "x.run"
    plan = plan_with(pipeline, tmp_path)
    process = start("execute", str(plan), "--steps", "100000", "-o", str(output))
    workers = first_step(process)
    assert len(workers) == 4
    os.kill(workers[killed], signal.SIGKILL)
    _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    error = [line for line in said.splitlines() if not line.startswith("step ")]
    stage, lane = divmod(killed, 2)
    named = f"worker rank {killed} (stage {stage}, lane {lane})"
    assert error[0] == f"error: {named} was killed by SIGKILL"
    assert [line for line in error[1:] if line and not line.startswith("hint: ")] == []
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]
    run = open_run(output)
    assert len(run.steps) >= 1
    assert run.peaks.differ() == []
    assert read_timeline(run, len(run.steps) - 1).schedule == SCHEDULES[pipeline].make(2, 5, 2)


@pytest.mark.parametrize(("pipeline", "kind"), [("zb-v", "W"), ("interleaved", "BW")])
def test_a_worker_that_stands_still_is_named_once_the_others_have_waited_long_enough(
    pipeline, kind, tmp_path, monkeypatch
):
    def stuck(batch, op, incoming_TC):
        if batch.worker.groups.world.rank == 2 and (op.kind, op.microbatch) == (kind, 1):
            signal.pause()
        return done(batch, op, incoming_TC)

    done = step._Batch._done
    monkeypatch.setattr(step._Batch, "_done", stuck)
    monkeypatch.setattr(launch, "SYMPTOM_WAIT_S", 1.0)
    named = r"no word from rank 2 \(stage 1, lane 0\); worker rank [013] .*[Tt]imed out"
    with pytest.raises(RunFailed, match=named):
        train(plan_with(pipeline, tmp_path), timeout_s=2.0)


def test_a_time_out_names_rank_op_microbatch_and_peer(tmp_path, monkeypatch):
    """Without tags; stage 1 stands still in the last op, whose gradient stage 0 waits for."""

    def stuck(batch, op, incoming_TC):
        if batch.worker.groups.world.rank == 1 and (op.kind, op.microbatch) == ("BW", 2):
            signal.pause()
        return done(batch, op, incoming_TC)

    done = step._Batch._done
    monkeypatch.setattr(step._Batch, "_done", stuck)
    monkeypatch.setattr(launch, "SYMPTOM_WAIT_S", 1.0)
    places = [Place(9 + m, 0, 1, 1, m) for m in range(3)]
    plan = write_test_plan(tmp_path / "x.plan", [places], pp=2, ranks=1)
    named = (
        r"no word from rank 1 \(stage 1, lane 0\); worker rank 0 \(stage 0, lane 0\):"
        r" BW of microbatch 2: gradient of microbatch 2 from rank 1 \(stage 1, lane 0\):"
        r" Timed out waiting"
    )
    with pytest.raises(RunFailed, match=named):
        train(plan, timeout_s=2.0, transport="ordered")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_an_interrupted_command_leaves_no_process(plan, number, code):
    process = start("execute", str(plan), "--steps", "100000")
    workers = first_step(process)
    watched = [os.pidfd_open(pid) for pid in workers]
    process.send_signal(number)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == code
    for handle in watched:  # readable once the process has ended
        assert select.select([handle], [], [], DEADLINE_S)[0]
        os.close(handle)


@pytest.mark.slow
def test_torchrun_may_start_the_workers(plan):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"),
            *("-m", "hydraplan", "execute", str(plan), "--json", "--steps", "2"),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    said = json.loads(done.stdout)
    assert (said["mode"], said["steps"]) == ("measured", 2)
    assert said["loss"] == losses(train(plan, steps=2, learning_rate=3e-4))
