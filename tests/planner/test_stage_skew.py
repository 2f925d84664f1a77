"""What of a plan's fill is unequal stages."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from hydraplan.cli.app import run
from hydraplan.files.planfile import open_plan, read_batch
from hydraplan.files.profilefile import write_profile
from hydraplan.metrics import shares
from hydraplan.planner.pipeline.schedules import one_f_one_b
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.planner.stage_skew import alike, stage_skew
from hydraplan.slots import slot_times
from tests.planner.cases import profile as analytic
from tests.planner.lanes import lane_times


def test_stages_alike_leave_what_the_schedule_fills_and_drains() -> None:
    times = lane_times(np.array([[[1.0] * 4, [2.0] * 4], [[1.0] * 4, [2.0] * 4], [[0.0] * 4] * 2]))
    schedule = one_f_one_b(2, 4)
    assert shares(simulate(times, schedule))["pipeline_bubble"] == pytest.approx(1 / 3)
    assert shares(simulate(alike(times), schedule))["pipeline_bubble"] == pytest.approx(1 / 5)


def test_stages_alike_share_their_gradient_sync_too() -> None:
    times = lane_times(np.ones((3, 2, 4)))
    times.grad_sync_s[:] = [1.0, 3.0]
    assert alike(times).grad_sync_s.tolist() == [2.0, 2.0]


@pytest.fixture
def plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Path:
    """32 layers on 5 stages, 16 even microbatches."""
    monkeypatch.chdir(tmp_path)
    write_profile(Path("p.parquet"), analytic().header, [])
    np.savetxt("l.txt", [1000] * 64, "%d")
    shape = ["--pp", "5", "--ranks", "4", "--max-tokens-per-rank", "1000", "--microbatches", "16"]
    command = ["plan", "l.txt", "--profile", "p.parquet", *shape, "--batch-sequences", "64"]
    assert run([*command, "-o", "a.plan"]) == 0
    return tmp_path / "a.plan"


def test_a_mean_microbatch_takes_its_layers_on_every_stage(
    plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = open_plan(plan)
    batch = read_batch(opened, 0)
    skew = stage_skew(opened.header, batch)
    slots = slot_times(opened.header.cost_model(), batch.sequences.placed(), 16)
    assert skew.stage_s == pytest.approx(slots.op_s.sum(axis=(0, 2)).mean(axis=(1, 2)))
    layers = [stage[0] for stage in opened.header.layers]
    assert (sum(layers), skew.stage_s[layers.index(max(layers[:4]))]) == (32, skew.stage_s.max())
    assert skew.skew_s == pytest.approx(16 * (skew.stage_s.max() - skew.stage_s.mean()))
    assert 0.95 * 4 / 20 <= skew.alike_fill_bubble < batch.figures["fill_bubble"]
    capsys.readouterr()
    assert run(["show", str(plan), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["layers"] == [[count] for count in layers]
    assert found["batches"][0]["stage_s"] == pytest.approx(skew.stage_s.tolist())
    assert found["batches"][0]["slowest_stage"] == skew.stage_s.argmax()
    assert found["batches"][0]["stage_skew_s"] == pytest.approx(skew.skew_s)
    assert found["batches"][0]["alike_fill_bubble"] == pytest.approx(skew.alike_fill_bubble)


def test_plan_and_show_say_the_same_of_the_stages(
    plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = capsys.readouterr().out
    assert run(["show", str(plan), "--view", "summary"]) == 0
    assert capsys.readouterr().out == planned
    shown = re.search(r"([\d.]+%) of the iteration is waiting since stages are unequal", planned)
    assert shown is not None
    assert run(["execute", str(plan), "--simulate"]) == 0
    simulated = capsys.readouterr().out
    cause = re.search(r"waits since stages are unequal .* ([\d.]+%)\n", simulated)
    assert cause is not None
    assert (shown[1], cause[1] != "0.0%") == (cause[1], True)


def test_one_stage_alone_is_not_worth_a_word(
    plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = ["--ranks", "4", "--max-tokens-per-rank", "1000", "--batch-sequences", "64"]
    capsys.readouterr()
    assert run(["plan", "l.txt", "--profile", "p.parquet", *shape, "-o", "b.plan"]) == 0
    assert "unequal stages" not in capsys.readouterr().out
