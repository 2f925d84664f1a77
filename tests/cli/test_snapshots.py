"""What people read, kept as it is: every terminal view at 80 and at 120 columns.

Changed on purpose: `pytest tests/cli/test_snapshots.py --snapshot-update`, and review the diff.
"""

import re
from pathlib import Path

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion

from hydraplan.cli.app import run
from hydraplan.files.profilefile import write_profile
from tests.planner.cases import long_tailed
from tests.planner.cases import profile as analytic

SHAPE = ["--pp", "4", "--ranks", "8", "--max-tokens-per-rank", "8192", "--num-batches", "2"]
PLAN = [
    "plan",
    "rows.txt",
    "--profile",
    "p.parquet",
    *SHAPE,
    "--batch-sequences",
    "60",
    "--on-overlong",
    "truncate",
]

CPU_TIMES = re.compile(r"^(\S+ .* > \d+) +[\d.,]+ +[\d.,]+$", re.MULTILINE)
"""What planning took, the last columns of `compare`."""

VIEWS = {
    "show": ["show", "a.plan"],
    "show one batch": ["show", "a.plan", "--batch", "1", "--view", "summary"],
    "show of a lane": ["show", "a.plan", "--rank", "3", "--limit", "5"],
    "diff": ["diff", "a.plan", "b.plan", "--limit", "5"],
    "check": ["check", "b.plan", "--baseline", "a.plan", "--max", "slot_imbalance=1.1"],
    "compare": ["compare", *PLAN[1:], "--strategies", "hydra,memory-ffd,static-cp"],
    "lengths": ["lengths", "rows.txt"],
    "pipeline": ["pipeline", "--schedule", "zb-h1", "--pp", "4", "--microbatches", "6"],
    "validate": ["validate", "a.plan"],
    "simulated": ["execute", "a.plan", "--simulate", "--noise", "jitter=0.2", "--trials", "8"],
    "profile": ["profile", "--device", "analytic", "--cluster", "h100-sxm", "--model", "llama-8b",
                "-o", "q.parquet", "--force"],
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("snapshots")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        write_profile(Path("p.parquet"), analytic().header, [])
        rows = long_tailed(120, seed=4)
        rows[17] = 60_000
        np.savetxt("rows.txt", rows, "%d")
        assert run([*PLAN, "-o", "a.plan"]) == 0
        assert run([*PLAN, "-o", "b.plan", "--strategy", "memory-ffd"]) == 0
    return path


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_as_it_was(
    view: str, columns: int, folder: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion,
) -> None:  # fmt: skip
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    capsys.readouterr()
    assert run(VIEWS[view]) == (1 if view == "check" else 0)
    out = CPU_TIMES.sub(r"\1 CPU times", capsys.readouterr().out)
    assert max(map(len, out.splitlines())) <= columns
    assert out == snapshot
