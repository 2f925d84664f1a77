"""What `plan` notes on stderr, and leaves out of stdout."""

from pathlib import Path

import numpy as np
import pytest

from hydraplan.cli.app import run
from hydraplan.files.profilefile import write_profile
from tests.planner.cases import profile as analytic


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    write_profile(Path("p.parquet"), analytic().header, [])
    np.savetxt("l.txt", [100] * 12, "%d")
    return [
        "plan", "l.txt", "--profile", "p.parquet", "--ranks", "2", "--max-tokens-per-rank", "512",
        "--batch-sequences", "12", "--pp", "2", "--pipeline", "interleaved", "-o", "a.plan",
    ]  # fmt: skip


def test_microbatches_that_megatron_core_does_not_interleave_are_noted(
    plan: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*plan, "--microbatches", "3", "--json"]) == 0
    out, notes = capsys.readouterr()
    assert "note: batch 0 has 3 microbatches, no multiple of pp 2" in notes
    assert "Megatron" not in out
    assert run([*plan, "--microbatch-multiple", "2", "--force"]) == 0
    assert "Megatron" not in capsys.readouterr().err


def test_a_first_plan_says_that_it_compiles(
    plan: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    note = "note: compiling the planner's loops, once on this machine: about a minute"
    asked: list[str] = []
    monkeypatch.setattr("hydraplan.planner.compiled.is_cold", lambda name: not asked.append(name))
    assert run(plan) == 0
    out, notes = capsys.readouterr()
    assert notes.startswith(note)
    assert note not in out
    assert run(["compare", *plan[1:-2], "--strategies", "hydra"]) == 0
    assert capsys.readouterr().err.startswith(note)
    assert asked == ["hydraplan.planner.placement"] * 2
    monkeypatch.setattr("hydraplan.planner.compiled.is_cold", lambda name: "policy" in name)
    assert run([*plan[:-3], "policy", "-o", "b.plan"]) == 0
    assert capsys.readouterr().err.startswith(note)
    assert run([*plan, "--force"]) == 0
    assert note not in capsys.readouterr().err
