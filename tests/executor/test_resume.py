"""A run that was ended by anything goes on as if nothing had happened, or is refused."""

import os
import select
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest

from hydraplan.cli.app import run as command
from hydraplan.errors import InputError, RunFailed, StalePlan, WorkerLost
from hydraplan.executor import launch
from hydraplan.executor.folder import sole_writer
from hydraplan.executor.resume import Start, refuse_moved_on, refuse_other
from hydraplan.files.checkpointfile import CHECKPOINTS, checkpoint_folders, newest_checkpoint
from hydraplan.files.runfile import RUN_FILES, Run, open_run
from hydraplan.files.tensorfile import read_tensors
from tests.builders import Place
from tests.executor import trained
from tests.executor.killed import count_calls, kill_at
from tests.executor.started import start, workers_of
from tests.plans import write_test_plan

pytestmark = pytest.mark.dist

EVERY = 3
BATCHES = [
    [Place(9 + i % 5, 0, 2, 1), Place(3 + i % 3, 0, 1, 1, 1), Place(4, 1, 1, 1, 1), Place(0)]
    for i in range(20)
]
"""Batches of four rows; on both lanes, on each alone, and an empty row."""


class Whole(NamedTuple):
    """A plan, a run of all its batches that nothing interrupted, and the calls of its workers."""

    plan: Path
    run: Run
    calls: list[int]


@pytest.fixture(autouse=True)
def _short_wait(monkeypatch):
    monkeypatch.setattr(launch, "SYMPTOM_WAIT_S", 1.0)


def train(path, **changes):
    return trained.train(path, **({"learning_rate": None, "clip_grad": None} | changes))


def whole_run(folder, num_batches):
    plan = write_test_plan(folder / "x.plan", BATCHES[:num_batches], pp=2, ranks=2)
    with pytest.MonkeyPatch.context() as patch:
        count_calls(patch, folder)
        run = train(plan, output=folder / "whole.run", checkpoint_every=EVERY)
    return Whole(plan, run, [int((folder / str(rank)).read_text()) for rank in range(4)])


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """Five steps, with checkpoints after three and five."""
    return whole_run(tmp_path_factory.mktemp("short"), 5)


@pytest.fixture(scope="module")
def middling(tmp_path_factory):
    """Eight steps, with checkpoints after three, six and eight."""
    return whole_run(tmp_path_factory.mktemp("middling"), 8)


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """Twenty steps."""
    return whole_run(tmp_path_factory.mktemp("long"), 20)


@pytest.fixture
def plan(short):
    return short.plan


@pytest.fixture
def copied(short, tmp_path):
    return shutil.copytree(short.run.path, tmp_path / "x.run")


def tensors(run):
    """Everything that the newest checkpoint of a run holds."""
    saved = newest_checkpoint(run)
    found = {}
    for name, file in saved.about.files.items():
        found |= read_tensors(saved.path / name, file.sha256)
    return {name: (array.shape, array.tobytes()) for name, array in found.items()}


def rows_of(steps):
    """How often each row of the length file stands in some steps."""
    spans = [(step["first_sequence_id"], step["num_sequences"]) for step in steps]
    return Counter(row for first, count in spans for row in range(first, first + count))


def losses(run):
    return [step["loss"] for step in run.steps]


def assert_as_if_uninterrupted(run, whole):
    steps = len(whole.run.steps)
    assert losses(run) == losses(whole.run)
    assert tensors(run.path) == tensors(whole.run.path)
    assert rows_of(run.steps) == dict.fromkeys(range(4 * steps), 1)
    assert run.peaks.differ() == []
    assert {path.name for path in run.path.iterdir()} == {*RUN_FILES, CHECKPOINTS}
    kept = [path.name for path in (run.path / CHECKPOINTS).iterdir()]
    assert f"step-{steps:08}" in kept
    assert [name for name in kept if name.startswith(".")] == []


def killed_run(whole, output, monkeypatch, rank, share):
    """Train until one worker is killed; no process may be left, and no checkpoint be torn."""
    with monkeypatch.context() as patch:
        kill_at(patch, rank, int(share * whole.calls[rank]))
        with pytest.raises(WorkerLost, match=rf"rank {rank} \(.* was killed by SIGKILL") as lost:
            train(whole.plan, output=output, checkpoint_every=EVERY)
    assert (f"--resume {output}" in lost.value.hint) == output.is_dir()
    assert workers_of(os.getpid()) == []
    if output.is_dir():
        assert [step["step"] for step in open_run(output).steps] == list(
            range(len(open_run(output).steps))
        )
        if checkpoint_folders(output):
            tensors(output)


def test_a_run_whose_worker_was_killed_goes_on_to_the_same_bits(short, tmp_path, monkeypatch):
    output = tmp_path / "x.run"
    killed_run(short, output, monkeypatch, 0, 0.8)
    assert newest_checkpoint(output).about.steps == 3
    assert_as_if_uninterrupted(train(short.plan, resume=output), short)


@pytest.mark.slow
@pytest.mark.parametrize("draw", range(20))
def test_any_worker_may_be_killed_at_any_moment(middling, tmp_path, monkeypatch, draw):
    random = np.random.default_rng([5, draw])
    output = tmp_path / "x.run"
    killed_run(middling, output, monkeypatch, int(random.integers(4)), random.uniform(0.02, 0.98))
    if output.is_dir():
        run = train(middling.plan, resume=output)
    else:
        run = train(middling.plan, output=output, checkpoint_every=EVERY)
    assert_as_if_uninterrupted(run, middling)


def test_lost_workers_are_started_again_by_themselves_and_stderr_tells(
    short, tmp_path, monkeypatch, capfd
):
    kill_at(monkeypatch, 1, int(0.8 * short.calls[1]), once=tmp_path / "killed")
    run = train(short.plan, output=tmp_path / "x.run", checkpoint_every=EVERY, max_restarts=1)
    assert_as_if_uninterrupted(run, short)
    said = capfd.readouterr().err
    assert "rank 1 (stage 0, lane 1) was killed by SIGKILL; restart 1 of 1: all workers" in said
    assert "going on from" in said


def test_a_worker_that_is_lost_every_time_ends_the_run_after_the_last_restart(
    tmp_path, monkeypatch, capfd
):
    plan = write_test_plan(tmp_path / "x.plan", [[Place(9)]], pp=1, ranks=2)
    kill_at(monkeypatch, 1, 1)
    with pytest.raises(WorkerLost, match="rank 1") as lost:
        train(plan, max_restarts=1)
    assert "with -o and --checkpoint-every" in lost.value.hint
    assert capfd.readouterr().err.count("after step 0") == 1


def test_a_run_that_says_no_is_not_started_again(tmp_path, capfd):
    plan = write_test_plan(tmp_path / "x.plan", [[Place(9)]], pp=1, ranks=1)
    with pytest.raises(RunFailed, match="is nan") as caught:
        train(plan, steps=3, learning_rate=1e30, max_restarts=3)
    assert not isinstance(caught.value, WorkerLost)
    assert "restart" not in capfd.readouterr().err


def test_steps_after_the_last_checkpoint_are_dropped_and_done_again(plan, copied, capfd):
    shutil.rmtree(copied / CHECKPOINTS / "step-00000005")
    before = open_run(copied)
    run = train(plan, resume=copied, steps=7)
    assert [step["step"] for step in run.steps] == list(range(7))
    assert losses(run)[:5] == losses(before)
    assert run.header.checkpoint_every == EVERY
    assert "step 4/7" in capfd.readouterr().err


def test_a_run_goes_on_in_its_own_folder_only(plan, copied, tmp_path):
    with pytest.raises(InputError, match=r"goes on in its own folder .*x\.run, -o names"):
        train(plan, resume=copied, output=tmp_path / "y.run")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 3}, "seed 3 is not that of run .*, 0"),
        ({"learning_rate": 0.5}, r"learning rate 0\.5 is not that of run .*, 0\.0003"),
        ({"dtype": "bfloat16"}, "dtype bfloat16 is not that of run .*, float32"),
        ({"device": "cuda"}, "device cuda is not that of run .*, cpu"),
        ({"clip_grad": 0.0}, r"clip grad 0\.0 is not that of run .*, 1\.0"),
        ({"steps": 4}, "--steps 4 counts from the first step of the run, 5 are done"),
    ],
)
def test_other_options_than_the_runs_are_refused_with_both_values(plan, copied, changes, said):
    before = {path.name: path.read_bytes() for path in copied.glob("*.parquet")}
    with pytest.raises(InputError, match=said):
        train(plan, resume=copied, **({"steps": 9} | changes))
    assert {path.name: path.read_bytes() for path in copied.glob("*.parquet")} == before


def test_what_is_repeated_stays_so_when_a_run_goes_on(plan, copied):
    with pytest.raises(InputError, match=r"x\.run repeats no decisions"):
        train(plan, resume=copied, steps=7, replay=copied)
    run = open_run(copied)
    again = run._replace(header=run.header.model_copy(update={"replays": "0" * 64}))
    with pytest.raises(InputError, match="replays None is not that of run") as caught:
        refuse_other(again, run.header)
    assert caught.value.hint == (
        "name its --replay again: the run knows only a digest of the decisions"
    )


def test_a_run_that_is_done_says_so_and_stays_as_it_was(plan, copied, capfd):
    before = open_run(copied).steps
    assert train(plan, resume=copied, steps=5).steps == before
    assert "all 5 steps of the run are done; --steps" in capfd.readouterr().err


def test_a_run_with_checkpoints_is_not_begun_again_without_a_word_on_going_on(plan, copied):
    before = {path.name: path.read_bytes() for path in copied.glob("*.parquet")}
    with pytest.raises(InputError, match=r"x\.run exists and has checkpoints") as caught:
        train(plan, output=copied)
    assert f"--resume {copied}" in caught.value.hint
    assert {path.name: path.read_bytes() for path in copied.glob("*.parquet")} == before


def test_a_run_that_is_being_written_is_left_to_its_writer(plan, copied):
    before = {path.name: path.read_bytes() for path in copied.glob("*.parquet")}
    said = r"run .*x\.run is being written by another process"
    with sole_writer(copied):
        with pytest.raises(InputError, match=said):
            train(plan, resume=copied, steps=7)
        with pytest.raises(InputError, match=said):
            train(plan, output=copied, force=True)
    assert {path.name: path.read_bytes() for path in copied.glob("*.parquet")} == before
    assert len(train(plan, resume=copied, steps=6).steps) == 6


def test_a_run_that_another_process_took_further_meanwhile_is_not_rewound(copied):
    now = Start(5, newest_checkpoint(copied), in_place=True)
    refuse_moved_on(copied, now)
    with pytest.raises(InputError, match="after step 5 by now, it was at 3") as caught:
        refuse_moved_on(copied, now._replace(steps=3))
    assert "start again" in caught.value.hint


def test_another_plan_or_world_is_refused_with_both_and_the_way_to_shrink(copied, tmp_path):
    one = write_test_plan(tmp_path / "y.plan", [[Place(9)]], pp=2, ranks=1)
    said = r"pp 2 x ranks 1 = 2 workers; run .* pp 2 x ranks 2 = 4 workers"
    with pytest.raises(StalePlan, match=said) as caught:
        train(one, resume=copied)
    assert f"--resume-from {copied}" in caught.value.hint


def test_a_run_without_checkpoints_is_refused(plan, copied):
    shutil.rmtree(copied / CHECKPOINTS)
    with pytest.raises(InputError, match="holds 5 steps, with a checkpoint every 3, but no"):
        train(plan, resume=copied)
    with pytest.raises(InputError, match=r"y\.run is not a folder"):
        train(plan, resume=copied.with_name("y.run"))


def first_file(run):
    return newest_checkpoint(run).path / "stage-1-lane-0.safetensors"


def cut(run):
    path = first_file(run)
    path.write_bytes(path.read_bytes()[:-100])


def edited(run):
    path = run / "steps.parquet"
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows[2]["first_sequence_id"] += 4
    pq.write_table(table.from_pylist(rows, schema=table.schema), path)


@pytest.mark.parametrize(
    ("damage", "said", "hint"),
    [
        (cut, "stage-1-lane-0.safetensors has .* bytes, .* were written", "remove that folder"),
        (lambda run: first_file(run).unlink(), "is not there", "remove that folder"),
        (edited, r"steps\.parquet: the first 5 steps have digest", "put back"),
    ],
)
def test_torn_files_are_refused_before_any_worker_starts(
    plan, copied, monkeypatch, damage, said, hint
):
    damage(copied)
    monkeypatch.setattr("hydraplan.executor.run.run_workers", None)
    with pytest.raises(InputError, match=said) as caught:
        train(plan, resume=copied, steps=9)
    assert hint in caught.value.hint


def test_a_flipped_bit_is_found_by_the_worker_that_reads_it_and_the_run_stays_as_it_was(
    plan, copied
):
    path = first_file(copied)
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1
    path.write_bytes(raw)
    before = (copied / "steps.parquet").read_bytes()
    with pytest.raises(InputError, match=r"stage-1-lane-0\.safetensors is damaged: its digest"):
        train(plan, resume=copied, steps=9)
    assert (copied / "steps.parquet").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("killed", [None, 2])
def test_the_command_goes_on_after_a_kill_from_outside(long, tmp_path, killed):
    """Of the whole command, or of one of its workers, once it has told of its sixth step."""
    output = tmp_path / "x.run"
    process = start(
        *("execute", str(long.plan), "-o", str(output), "--checkpoint-every", str(EVERY)),
        *("--keep-checkpoints", "1"),
    )
    for line in process.stderr:
        if line.startswith("step 6/"):
            break
    workers = workers_of(process.pid)
    watched = [os.pidfd_open(pid) for pid in workers]
    os.kill(process.pid if killed is None else workers[killed], signal.SIGKILL)
    process.communicate(timeout=60)
    for handle in watched:  # readable once the process has ended
        assert select.select([handle], [], [], 30)[0]
        os.close(handle)
    assert command(["execute", str(long.plan), "--resume", str(output)]) == 0
    assert_as_if_uninterrupted(open_run(output), long)


@pytest.mark.slow
def test_workers_that_torchrun_starts_again_go_on_in_their_own_output(long, tmp_path):
    output = tmp_path / "x.run"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=1"),
            *("--nproc-per-node=4", "-m", "hydraplan", "execute", str(long.plan)),
            *("-o", str(output), "--checkpoint-every", str(EVERY)),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    for line in process.stderr:
        if line.startswith("step 6/"):
            break
    os.kill(workers_of(process.pid)[1], signal.SIGKILL)
    said = process.communicate(timeout=100)[1]
    assert process.returncode == 0, said
    assert "going on from" in said
    assert_as_if_uninterrupted(open_run(output), long)


def test_restarts_under_torchrun_are_its_own(plan, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(InputError, match="no use under torchrun") as caught:
        train(plan, max_restarts=1)
    assert "torchrun --max-restarts" in caught.value.hint
