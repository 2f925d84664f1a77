"""`compare`: what its rows say of choice and cap, and that workers change nothing but time."""

import json
from pathlib import Path

import numpy as np
import pytest

from hydraplan.cli.app import run
from hydraplan.files.profilefile import write_profile
from hydraplan.invariants import CAPS
from hydraplan.model import CHOOSING
from hydraplan.planner.placement.strategies import STRATEGIES
from tests.planner.cases import long_tailed
from tests.planner.cases import profile as analytic

pytestmark = pytest.mark.timeout(110)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    write_profile(Path("p.parquet"), analytic().header, [])
    np.savetxt("lengths.txt", long_tailed(300, 1, longest=9_000), "%d")
    return [
        "compare", "lengths.txt", "--profile", "p.parquet", "--ranks", "8",
        "--max-tokens-per-rank", "4096", "--batch-sequences", "100", "--num-batches", "3",
        "--strategies", "hydra,memory-ffd,mcore-main,mcore-v1",
    ]  # fmt: skip


@pytest.mark.slow
def test_only_strategies_that_choose_name_a_winner(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--json"]) == 0
    for row in json.loads(capsys.readouterr().out)["rows"]:
        known = ("load-driven", "memory") if row["strategy"] == "hydra" else (None,)
        assert set(row["winner"]) <= set(known)


def test_rows_under_another_cap_are_marked_and_explained(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "(1) another cap: at most 4,096 tokens of each sequence a rank, more of several" in text
    assert "(2) another cap: at most 4,096 tokens, as length over degree, a rank and micro" in text
    assert text.count("mcore-main (1)") == text.count("mcore-v1 (2)") == 3
    assert "memory-ffd (" not in text
    assert run([*command[:-1], "hydra,memory-ffd"]) == 0
    assert "another cap" not in capsys.readouterr().out


def test_every_strategy_promises_one_cap_and_those_that_choose_are_known() -> None:
    for name, strategy in STRATEGIES.items():
        assert sum(promise in CAPS for promise in strategy.invariants) == 1, name
    assert set(CHOOSING) == {n for n, s in STRATEGIES.items() if s.default_order == "auto"}


def test_exact_says_how_many_batches_are_optimal_and_the_largest_gap(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("few.txt").write_text("3000\n3000\n1000\n" * 2)
    few = ["--ranks", "2", "--batch-sequences", "3", "--num-batches", "2", "--microbatches", "1"]
    asked = ["compare", "few.txt", *command[2:-1], "exact,memory-ffd", *few]
    assert run(asked) == 0
    said = "exact: optimal in 2 of 2 batches, fullest slot at most 0.00% above its bound\n"
    assert said in capsys.readouterr().out
    assert run([*asked, "--json"]) == 0
    exact, *others = json.loads(capsys.readouterr().out)["rows"]
    assert exact["exact_status"] == ["optimal", "optimal"]
    assert all(gap < 1e-5 for gap in exact["bound_gap"])
    assert all(row["bound_gap"] == [None, None] for row in others)


def test_an_empty_window_says_what_would_open_it_as_the_plan_does(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("short.txt").write_text("100\n" * 300 + "30000\n")
    asked = ["short.txt", *command[2:8], "--batch-sequences", "301"]
    assert run(["plan", *asked, "-o", "a.plan", "--json"]) == 0
    advice = json.loads(capsys.readouterr().out)["batches"][0]["window_advice"]
    assert "what would open the window" in advice
    assert run(["compare", *asked]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.count(f"batch 0: {advice}") == 1
    assert run(["compare", *asked, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["window_advice"] for row in rows] == [[advice]] * len(rows)


def test_why_no_microbatch_is_tapered_stands_in_one_line(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("few.txt").write_text("3000\n1000\n" * 10)
    asked = ["compare", "few.txt", *command[2:8], "--batch-sequences", "20"]
    asked += ["--microbatch-shape", "tapered"]
    for more, reason in (
        ([], "one stage has no pipeline to fill"),
        (["--pp", "2", "--reorder", "none"], "--reorder none fixes what is first and last"),
        (["--pp", "2", "--strategies", "memory-ffd"], "strategy memory-ffd builds none"),
        (["--pp", "2"], ""),
    ):
        assert run([*asked, *more]) == 0
        notes = [n for n in capsys.readouterr().err.splitlines() if "no effect" in n]
        assert notes == [f"note: --microbatch-shape tapered has no effect: {reason}"] * bool(reason)


@pytest.mark.dist
@pytest.mark.slow
def test_rows_do_not_depend_on_the_number_of_workers(
    command: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    found = []
    for workers in ("1", "2", "5"):
        assert run([*command, "--workers", workers, "--json"]) == 0
        rows = json.loads(capfd.readouterr().out)["rows"]
        assert all(row.pop("plan_s") > 0 and row.pop("planning_s") > 0 for row in rows)
        found.append(rows)
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 10
