"""`plan --memory-gib`: what the stages of a plan need, and the refusal where they have less."""

import json
from importlib import resources
from pathlib import Path

import pytest

from hydraplan.cli.app import run
from hydraplan.files.planfile import open_plan
from hydraplan.files.profilefile import write_profile
from tests.planner.cases import profile as analytic

BUNDLED = str(resources.files("hydraplan") / "data" / "lengths_cpython_stdlib.parquet")


def test_a_plan_says_what_its_stages_need_and_is_refused_where_they_have_less(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile, out = str(tmp_path / "h100.profile.parquet"), str(tmp_path / "m.plan")
    write_profile(Path(profile), analytic().header, [])
    shape = ["--pp", "2", "--ranks", "8", "--max-tokens-per-rank", "8192"]
    asked = [BUNDLED, "--profile", profile, *shape, "--batch-sequences", "64"]
    asked += ["--strategy", "memory-ffd", "-o", out]
    assert run(["plan", *asked, "--memory-gib", "20"]) == 4
    said = capsys.readouterr().err
    assert "batch 0 needs" in said
    assert "GiB on stage" in said
    assert "--memory-gib allows 20.00" in said
    assert not Path(out).exists()
    assert run(["plan", *asked, "--memory-gib", "nan"]) == 2
    assert "--memory-gib nan" in capsys.readouterr().err
    assert run(["plan", *asked, "--memory-gib", "inf"]) == 2
    assert "option memory_gib: must be a finite number (value inf)" in capsys.readouterr().err
    assert run(["plan", *asked, "--json"]) == 0
    (batch,) = json.loads(capsys.readouterr().out)["batches"]
    for stage in batch["memory"]:
        assert stage["needed_bytes"] == sum(stage["terms"].values()) > 20 * 2**30
        assert stage["terms"][stage["largest_term"]] == max(stage["terms"].values())
    most_gib = max(stage["needed_bytes"] for stage in batch["memory"]) / 2**30
    assert run(["plan", *asked, "--force", "--memory-gib", str(most_gib + 0.01)]) == 0
    said = capsys.readouterr().out
    assert f"{most_gib:.3f}" in said
    assert f"memory-gib {most_gib + 0.01}" in said
    assert open_plan(Path(out)).header.options.memory_bytes == int((most_gib + 0.01) * 2**30)
