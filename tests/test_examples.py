import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hydraplan.files.profilefile import write_profile
from tests.planner.cases import long_tailed
from tests.planner.cases import profile as analytic

FOLDER = Path(__file__).parents[1] / "examples"
SAYS = {
    "megatron_batches.py": "--pipeline-model-parallel-layout 'Et*8|t*9|t*8|t*7,L'",
    "plan_in_python.py": "figures (simulated)",
}


@pytest.mark.parametrize("name", SAYS)
def test_every_example_runs_and_says_something(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / name)],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert SAYS[name] in done.stdout


def test_no_example_is_left_out() -> None:
    assert sorted(path.name for path in FOLDER.glob("*.py")) == sorted(SAYS)


@pytest.fixture(scope="module")
def megatron() -> ModuleType:
    spec = importlib.util.spec_from_file_location("example", FOLDER / "megatron_batches.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_layout_option_names_chunk_after_chunk(megatron: ModuleType) -> None:
    assert megatron.layout(((8,), (9,), (8,), (7,))) == "Et*8|t*9|t*8|t*7,L"
    assert megatron.layout(((4, 5), (4, 3))) == "Et*4|t*4|t*5|t*3,L"


def test_a_rank_packs_its_sequences_by_group_in_the_common_order(megatron: ModuleType) -> None:
    columns = ["sequence_id", "length_tokens", "microbatch", "order", "first_rank", "degree"]
    rows = [(0, 5, 0, 3, 0, 1), (1, 100, 0, 0, 0, 4), (2, 30, 0, 1, 0, 2), (3, 7, 1, 0, 2, 2),
            (4, 33, 0, 2, 0, 2)]  # fmt: skip
    batch = pd.DataFrame(rows, columns=columns)
    assert megatron.groups(batch) == [(0, 2), (0, 4), (2, 2)]
    assert list(megatron.packs(batch, 0, 0)) == [
        ((0, 4), [1], [0, 100], [0, 104]),
        ((0, 2), [2, 4], [0, 30, 63], [0, 32, 68]),
        ((0, 1), [0], [0, 5], [0, 5]),
    ]
    assert list(megatron.packs(batch, 3, 0)) == [((0, 4), [1], [0, 100], [0, 104])]
    assert list(megatron.packs(batch, 0, 1)) == []


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What examples/ci_gate asks a repository to hold, its plan made worse afterwards."""
    folder = tmp_path_factory.mktemp("ci_gate")
    write_profile(folder / "h100.profile.parquet", analytic().header, [])
    rows = np.array(long_tailed(160, seed=1), np.int64)
    pq.write_table(pa.table({"length": rows}), folder / "lengths.parquet")
    text = (FOLDER / "ci_gate" / "pyproject.toml").read_text()
    assert "ranks = 32" in text
    assert "batch-sequences = 512" in text
    small = text.replace("ranks = 32", "ranks = 8").replace("= 512", "= 80")
    (folder / "pyproject.toml").write_text(small)
    return folder


def shell(line: str, folder: Path) -> int:
    bins = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    summary = {"GITHUB_STEP_SUMMARY": str(folder / "summary.md"), "PATH": bins}
    done = subprocess.run(["sh", "-c", line], cwd=folder, env=os.environ | summary, timeout=100)
    return done.returncode


@pytest.mark.slow
def test_the_gate_of_the_example_passes_an_equal_plan_and_stops_a_worse_one(
    repository: Path,
) -> None:
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((FOLDER / "ci_gate" / "workflow.yml").read_text())
    steps = workflow["jobs"]["gate"]["steps"]
    lines = {step["name"]: step["run"] for step in steps if "run" in step}
    assert list(lines) == ["Install", "Plan", "Gate", "What changed"]
    known = (FOLDER / "ci_gate" / "README.md").read_text()
    made = "hydraplan check new.plan --baseline main.plan --update-baseline"
    assert made in known
    assert shell(f"{lines['Plan']} && {made}", repository) == 0
    assert shell(lines["Plan"], repository) == 0
    assert shell(lines["Gate"], repository) == 0
    assert shell(f"{lines['Plan']} --strategy memory-ffd", repository) == 0
    assert shell(lines["Gate"], repository) == 1
    assert shell(lines["What changed"], repository) == 0
    assert "failed" in (repository / "summary.md").read_text()
    assert (repository / "gate.xml").is_file()
    hook = yaml.safe_load((FOLDER / "ci_gate" / "pre-commit-config.yaml").read_text())
    assert shell(hook["repos"][0]["hooks"][0]["entry"], repository) == 0  # it plans by hydra again
