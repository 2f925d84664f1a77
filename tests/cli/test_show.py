"""`show`: defaults from the file never stand in the way of what the command line asks for."""

import json
from pathlib import Path

import numpy as np
import pytest

from hydraplan.cli.app import run
from hydraplan.files.profilefile import write_profile
from tests.planner.cases import profile as analytic


@pytest.fixture(autouse=True)
def folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan and a run of it."""
    monkeypatch.chdir(tmp_path)
    write_profile(Path("p.parquet"), analytic().header, [])
    np.savetxt("lengths.txt", [100] * 8, "%d")
    shape = ["--ranks", "2", "--max-tokens-per-rank", "512", "--batch-sequences", "8"]
    assert run(["plan", "lengths.txt", "--profile", "p.parquet", *shape, "-o", "a.plan"]) == 0
    assert run(["execute", "a.plan", "--simulate", "-o", "a.run"]) == 0
    capsys.readouterr()


def test_a_view_in_the_file_gives_way_to_json_and_to_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("hydraplan.toml").write_text('[show]\nview = "gantt"\nlimit = 5\nbatch = 0\n')
    assert run(["show", "a.plan"]) == 0
    assert capsys.readouterr().out.startswith("\nops of every stage of batch 0")
    assert run(["show", "a.plan", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["batches"]) == 1
    assert run(["show", "a.run"]) == 0
    assert capsys.readouterr().out.startswith("a.plan: simulated")


def test_json_in_the_file_gives_way_to_a_view(capsys: pytest.CaptureFixture[str]) -> None:
    Path("hydraplan.toml").write_text("[show]\njson = true\n")
    assert run(["show", "a.plan"]) == 0
    assert capsys.readouterr().out.startswith("{")
    assert run(["show", "a.plan", "--view", "gantt"]) == 0
    assert capsys.readouterr().out.startswith("\nops of every stage of batch 0")


def test_both_in_the_file_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("hydraplan.toml").write_text('[show]\njson = true\nview = "loads"\n')
    assert run(["show", "a.plan"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: --view loads is drawn as text, --json holds the summary")
