"""What people read fits a terminal of 80 columns, wrapped on words, and loses nothing."""

from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from hydraplan.cli.app import run
from hydraplan.files.profilefile import write_profile
from tests.planner.cases import profile as analytic

BUNDLED = str(resources.files("hydraplan") / "data" / "lengths_cpython_stdlib.parquet")

ASKED = [
    "--profile", "p.parquet", "--pp", "4", "--ranks", "96", "--max-tokens-per-rank", "8192",
    "--batch-sequences", "40", "--max-groups", "500", "--layers", "even", "--rank-speed", "s.txt",
    "--num-batches", "3", "--on-overlong", "truncate",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of few long rows on many lanes: every window is empty, by another count each."""
    path = tmp_path_factory.mktemp("width")
    write_profile(path / "p.parquet", analytic().header, [])
    np.savetxt(path / "lengths.txt", np.tile([500_000, 90_000, 3_000, 0], 40), "%d")
    np.savetxt(path / "s.txt", np.resize([1.0, 0.9], 96), "%g")
    return path


COMMANDS = [
    ["plan", "lengths.txt", *ASKED, "-o", "a.plan"],
    ["plan", "lengths.txt", *ASKED[:-4], "--num-batches", "1", "--on-overlong", "skip",
     "--strategy", "mcore-main", "--layers", "balanced", "-o", "b.plan"],
    ["compare", "lengths.txt", *ASKED, "--strategies", "hydra,memory-ffd,mcore-main,token-balance"],
    ["show", "a.plan"],
    ["show", "a.plan", "--batch", "1"],
    ["validate", "a.plan"],
    ["lengths", BUNDLED],
    ["execute", "a.plan", "--simulate", "-o", "a.run"],
    ["show", "a.run"],
    ["execute", "a.plan", "--simulate", "--trials", "2", "--noise", "jitter=0.3,straggler=1.4,"
     "moving=1.4,transient=2.0,heavytail=0.3,link=0.2,preempt=0.01,window=0.5"],
    ["profile", "--device", "analytic", "--cluster", "h100-sxm", "--model", "tiny", "-o", "q"],
    ["pipeline", "--schedule", "1f1b", "--pp", "2000", "--microbatches", "2", "--comm", "1e12"],
    ["pipeline", "--schedule", "zb-v", "--pp", "3", "--microbatches", "2", "-o", "a.csv"],
    ["pipeline", "--schedule", "a.csv"],
    ["export", "a.plan", "--format", "pytorch-csv", "-o", "b.csv"],
]  # fmt: skip


def test_no_line_of_any_command_is_wider_than_the_terminal(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "80")
    for command in COMMANDS:
        code = run(command)
        out, err = capsys.readouterr()
        assert code == 0, err
        assert [line for line in out.splitlines() if len(line) > 80] == [], command
        assert out.count("\n") > 0


def test_a_sentence_in_a_pipe_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.delenv("COLUMNS", raising=False)
    assert run(["show", "a.plan", "--view", "summary"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("Plan: ")
    assert last.endswith(" s simulated")


def test_an_error_is_one_line_whatever_the_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert run(["pipeline", "--schedule", "nope", "--pp", "4", "--microbatches", "1"]) == 2
    error, empty, hint = capsys.readouterr().err.splitlines()
    assert (error, empty) == ("error: unknown schedule 'nope'", "")
    assert hint.startswith("hint: known: gpipe, 1f1b, ")
    assert hint.endswith(", auto, or a FILE.csv")
    assert run(["pipeline", "--schedule", "1f1b", "--pp", "x", "--microbatches", "1"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 3
