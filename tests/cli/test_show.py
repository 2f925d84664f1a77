"""`show`: defaults from the file never stand in the way of what the command line asks for."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
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


@pytest.fixture
def two_batches(capsys: pytest.CaptureFixture[str]) -> None:
    """b.plan of two batches; row 4 holds no token."""
    np.savetxt("rows.txt", [100, 90, 80, 70, 0, 50, 40, 30], "%d")
    shape = ["--ranks", "2", "--max-tokens-per-rank", "512", "--batch-sequences", "4"]
    asked = ["plan", "rows.txt", "--profile", "p.parquet", *shape, "--num-batches", "2"]
    assert run([*asked, "-o", "b.plan"]) == 0
    capsys.readouterr()


def test_a_row_is_found_in_whatever_batch_it_is(
    two_batches: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["show", "b.plan", "--sequence", "5"]) == 0
    out = capsys.readouterr().out
    assert "costliest 1 of 1 sequence of batch 1, --sequence 5" in out
    assert out.splitlines()[-1].split()[:2] == ["5", "50"]


def test_a_row_without_a_place_says_why(
    two_batches: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["show", "b.plan", "--sequence", "4"]) == 0
    assert capsys.readouterr().out.endswith("row 4 is on no rank: empty\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sequence", "8"], "row 8 is not in batch 0 of b.plan: 0..3"),
        (["--sequence", "5", "--batch", "0"], "row 5 is not in batch 0 of b.plan: 0..3"),
        (["--rank", "2"], "rank 2 is not in batch 0 of b.plan: 0..1"),
        (["--rank", str(10**23)], f"rank {10**23} is not in batch 0"),
        (["--microbatch", "9", "--batch", "1"], "microbatch 9 is not in batch 1 of b.plan: 0.."),
    ],
)
def test_what_a_plan_does_not_hold_is_exit_2(
    two_batches: None, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["show", "b.plan", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err


def test_a_plan_that_says_it_takes_no_time_is_shown_without_a_rate(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shape = ["--pp", "2", "--ranks", "2", "--max-tokens-per-rank", "512", "--batch-sequences", "8"]
    assert run(["plan", "lengths.txt", "--profile", "p.parquet", *shape, "-o", "c.plan"]) == 0
    table = pq.read_table("c.plan/batches.parquet")
    place = table.schema.get_field_index("iteration_s")
    table = table.set_column(place, table.schema.field(place), [[0.0]])
    pq.write_table(table, "c.plan/batches.parquet")
    capsys.readouterr()
    assert run(["show", "c.plan", "--view", "summary"]) == 0
    assert "nan TFLOP/s a device" in capsys.readouterr().out
    assert run(["show", "c.plan", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["flops"]["flops_per_s_per_device"] is None
