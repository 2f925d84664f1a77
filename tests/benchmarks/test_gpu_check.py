"""The GPU check as a whole: its table, its files, its exit codes, its page, and a dry run."""

import json
import math
import os
import subprocess
import sys
import time
from importlib import resources

import pytest
import torch

from hydraplan.config import builtin_names
from tests.benchmarks.gpu_scripts import GPU, gpu_script
from tests.benchmarks.scripts import BENCHMARKS

ROOT = BENCHMARKS.parent
CHECK = ROOT / "scripts" / "gpu_check"


@pytest.fixture
def check(monkeypatch):
    return gpu_script(monkeypatch, "gpu_check")


@pytest.fixture
def scale(monkeypatch):
    return gpu_script(monkeypatch, "scale")


@pytest.fixture
def row(monkeypatch):
    return gpu_script(monkeypatch, "budget").Row


def test_parts_have_shares_that_fit_the_budget_and_eight_minutes(check, scale, tmp_path):
    quick = scale.quick_scale("cpu")
    for shares in (scale.FULL_SHARES_S, scale.QUICK_SHARES_S):
        parts = check.parts_of(quick._replace(shares_s=shares), tmp_path)
        assert sum(part.share_s for part in parts) == sum(shares.values())
    assert sum(scale.FULL_SHARES_S.values()) <= 450
    assert sum(scale.QUICK_SHARES_S.values()) <= quick.budget_s


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_cuda_the_exit_code_is_3_and_the_hint_names_the_dry_run(check, capsys):
    assert check.main([]) == 3
    assert "hint: try the code alone: scripts/gpu_check --device cpu --quick" in (
        capsys.readouterr().err
    )


def test_full_sizes_on_a_cpu_are_refused(check, capsys):
    assert check.main(["--device", "cpu"]) == 2
    assert "hint: add --quick" in capsys.readouterr().err


@pytest.mark.parametrize("verdict", ["ok", "no"])
def test_a_row_that_says_no_makes_the_exit_code_1_and_all_is_written_in_either_case(
    check, row, tmp_path, monkeypatch, capsys, verdict
):
    budget = gpu_script(monkeypatch, "budget")

    def run(left):
        assert 0 < left.seconds() <= 40
        yield row("made up", "figure", 2.5, "x", verdict)

    monkeypatch.setattr(check, "parts_of", lambda scale, folder: [budget.Part("made up", 40, run)])
    monkeypatch.setattr(check, "BEGAN_S", time.monotonic() - 260)
    monkeypatch.setattr(check.measure, "cpu_timer", check.measure.cpu_timer)  # it is replaced
    words = ["--device", "cpu", "--quick", "--out", str(tmp_path)]
    assert check.main(words) == (verdict == "no")
    assert f"| made up | figure | 2.5 | x | {verdict} |  |" in capsys.readouterr().out
    kept = json.loads((tmp_path / "dry-run-cpu.json").read_text())
    assert (kept["failed"], kept["parts"]) == (verdict == "no", ["made up"])


def test_a_table_has_every_row_and_says_that_a_dry_run_is_none_of_a_gpu(check, scale, row):
    rows = [
        row("a", "count", 12_345, "slots"), row("a", "ratio", 0.123456, "x", "ok", "worst"),
        row("b", "kernel", verdict="absent", note="no device"), row("b", "bad", math.nan, "", "no"),
    ]  # fmt: skip
    text = check.table_of(scale.quick_scale("cpu"), rows, quick=True).markdown()
    assert "a dry run of the code with tiny sizes, whose figures say nothing of any GPU" in text
    lines = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert lines == [
        "| a | count | 12,345 | slots | measured |  |",
        "| a | ratio | 0.1235 | x | ok | worst |",
        "| b | kernel | - |  | absent | no device |",
        "| b | bad | nan |  | no |  |",
    ]


def test_files_are_named_after_the_device_and_hold_no_number_that_json_has_not(
    check, scale, row, tmp_path
):
    rows = [row("a", "x", math.nan, verdict="no", more={"measured_s": [(1.0, math.inf)]})]
    gpu = scale.quick_scale("cpu")._replace(device_name="NVIDIA H100 80GB HBM3")
    for quick in (False, True):
        check.write(tmp_path, check.about(gpu, quick), rows, "table")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "dry-run-nvidia-h100-80gb-hbm3.json", "dry-run-nvidia-h100-80gb-hbm3.md",
        "nvidia-h100-80gb-hbm3.json", "nvidia-h100-80gb-hbm3.md",
    ]  # fmt: skip
    kept = json.loads((tmp_path / "nvidia-h100-80gb-hbm3.json").read_text())
    assert kept["schema_version"] == 1
    assert (kept["dry_run"], kept["failed"]) == (False, True)
    assert kept["rows"][0]["value"] is None
    assert kept["rows"][0]["more"] == {"measured_s": [[1.0, None]]}


def test_peaks_are_those_of_the_cluster_files_and_only_exact_names_are_known(monkeypatch):
    devices = gpu_script(monkeypatch, "devices")
    assert {gpu.cluster for gpu in devices.KNOWN} == set(builtin_names("cluster"))
    for gpu in devices.KNOWN:
        file = resources.files("hydraplan") / "data" / f"cluster-{gpu.cluster}.toml"
        assert f"vendor's peak of {gpu.peak_flops_per_s / 1e12:.0f}e12" in file.read_text()
        assert devices.known(gpu.name) == gpu
    assert devices.known("NVIDIA H100 PCIe") is None
    assert devices.OTHER in builtin_names("cluster")


def test_what_verify_says_is_held_against_its_own_limit(monkeypatch):
    small_run = gpu_script(monkeypatch, "small_run")
    rows = list(small_run.verify_rows({"loss_error": 1e-9, "max_gradient_error": 1e-3}))
    assert [row.verdict for row in rows] == ["ok", "no"]


def test_the_page_tells_the_command_and_holds_no_figure_of_a_gpu_before_there_is_one():
    page = (GPU / "README.md").read_text()
    assert "scripts/gpu_check" in page
    assert "scripts/gpu_check --device cpu --quick" in page
    kept = [path.stem for path in GPU.glob("*.json") if not path.stem.startswith("dry-run")]
    assert ("No figure of a GPU exists yet" in page) == (not kept)


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.timeout(400)
def test_a_dry_run_goes_through_all_parts_and_fails_in_none(tmp_path):
    words = [CHECK, "--device", "cpu", "--quick", "--out", tmp_path]
    venv = os.environ | {"VIRTUAL_ENV": sys.prefix, "TMPDIR": str(tmp_path)}
    done = subprocess.run(words, env=venv, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    kept = json.loads((tmp_path / "dry-run-cpu.json").read_text())
    assert kept["dry_run"] is True
    verdicts = {(row["part"], row["verdict"]) for row in kept["rows"]}
    assert not [pair for pair in verdicts if pair[1] in ("no", "left out")]
    assert {part for part, _ in verdicts} == set(kept["parts"])
    assert (tmp_path / "here.profile.parquet").is_file()
    assert done.stdout.strip() == (tmp_path / "dry-run-cpu.md").read_text().strip()
    errors = {row["what"]: row["more"] for row in kept["rows"] if "% median" in row["unit"]}
    for strategy in ("hydra", "memory-ffd"):
        assert errors[f"{strategy}: a slot, F + B + W"]["count"] == 6
