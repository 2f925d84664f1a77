"""Names from files and folders never steer the terminal, and never look like lines of ours."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hydraplan.cli.app import run
from hydraplan.files.profilefile import write_profile
from tests.planner.cases import profile as analytic

EVIL = "a\x1b[2J\x9b1m\r\u202e\nPlan: 1"
ESCAPED = r"a\x1b[2J\x9b1m\r\u202e\nPlan: 1"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile, lengths and a plan whose names hold control characters."""
    monkeypatch.chdir(tmp_path)
    plain = analytic().header
    model = plain.model.model_copy(update={"name": EVIL})
    write_profile(Path("p.parquet"), plain.model_copy(update={"model": model, "device": EVIL}), [])
    np.savetxt(f"{EVIL}.txt", [100] * 8, "%d")


SHAPE = ["--profile", "p.parquet", "--ranks", "2", "--max-tokens-per-rank", "512"]
INPUTS = [f"{EVIL}.txt", *SHAPE, "--batch-sequences", "8"]


def test_no_control_character_of_a_name_reaches_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for columns in (None, "80"):
        if columns:
            monkeypatch.setenv("COLUMNS", columns)
        for command in (
            ["plan", *INPUTS, "-o", f"{EVIL}.plan", "--force"],
            ["show", f"{EVIL}.plan"],
            ["validate", f"{EVIL}.plan"],
            ["compare", *INPUTS],
            ["lengths", f"{EVIL}.txt"],
            ["execute", f"{EVIL}.plan", "--simulate", "-o", f"{EVIL}.run", "--force"],
            ["show", f"{EVIL}.run"],
            ["show", f"{EVIL}.plan", "--json"],
            ["export", f"{EVIL}.run", "--format", "chrome", "-o", f"{EVIL}.json", "--force"],
            ["export", f"{EVIL}.plan", "--format", "pytorch-csv", "-o", f"{EVIL}.csv", "--force"],
            ["pipeline", "--schedule", f"{EVIL}.csv"],
        ):
            code = run(command)
            out, err = capsys.readouterr()
            assert code == 0, err
            for line in out.split("\n") + err.split("\n"):
                assert line.isprintable(), (command[0], line)
                assert line != "Plan: 1"
                assert not line.startswith(("Plan: 1,", "Plan: 1 ", "Plan: 1.")), command[0]


@pytest.mark.parametrize(
    "columns", [{EVIL: [1]}, {"length": [1], "seqlen": [2], EVIL: [3]}, {"length": ["x"]}]
)
def test_column_names_are_escaped_in_errors(
    columns: dict[str, list[object]], capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pa.table(columns), f"{EVIL}.parquet")
    for command in (
        ["lengths", f"{EVIL}.parquet"],
        ["plan", *INPUTS, "--rank-speed", f"{EVIL}.parquet", "-o", "x.plan"],
    ):
        assert run(command) == 2
        out, err = capsys.readouterr()
        assert out == ""
        message, _, hint = err.partition("\n")
        assert message.startswith(f"error: {ESCAPED}.parquet")
        assert message.isprintable()
        assert hint.strip().isprintable()
