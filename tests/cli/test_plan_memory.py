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
    assert "a device has 20.00" in said
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
    assert f"memory-gib {most_gib + 0.01:.6g}" in said
    assert open_plan(Path(out)).header.options.memory_bytes == int((most_gib + 0.01) * 2**30)


def test_a_cap_is_derived_from_memory_and_kept_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile, out = str(tmp_path / "h100.profile.parquet"), tmp_path / "m.plan"
    write_profile(Path(profile), analytic().header, [])
    asked = [BUNDLED, "--profile", profile, "--pp", "2", "--ranks", "8", "--batch-sequences", "200"]
    asked += ["--max-tokens-per-rank", "auto", "--on-overlong", "skip", "--json"]
    one = ["--strategy", "memory-ffd", "-o", str(out)]
    assert run(["plan", *asked, *one, "--memory-gib", "100"]) == 0
    made = json.loads(capsys.readouterr().out)
    options = open_plan(out).header.options
    assert options.cap_is_derived
    assert made["memory_limit_bytes"] == options.memory_bytes == 100 << 30
    assert made["options"]["max_tokens_per_rank"] == options.max_tokens_per_rank > 1000
    most = max(stage["needed_bytes"] for stage in made["batches"][0]["memory"])
    assert 0.8 * 2**30 * 100 < most <= 2**30 * 100
    # Without --memory-gib it is the cluster's, and a strategy with another cap may not fit it.
    assert run(["compare", *asked, "--strategies", "memory-ffd,mcore-main"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert both["memory_limit_bytes"] == 80_000_000_000
    assert both["options"]["max_tokens_per_rank"] < options.max_tokens_per_rank
    for row in both["rows"]:
        assert max(stage["needed_bytes"] for stage in row["memory"]) <= 80_000_000_000
    assert {row["strategy"] for row in both["rows"]} == {"memory-ffd"}
    assert "a device has 74.51" in both["left_out"]["mcore-main"]


def test_a_row_that_no_derived_cap_holds_is_told_what_would_help(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile, lengths = str(tmp_path / "h100.profile.parquet"), tmp_path / "l.txt"
    write_profile(Path(profile), analytic().header, [])
    lengths.write_text("1000000\n")
    asked = ["plan", str(lengths), "--profile", profile, "--ranks", "8", "--batch-sequences", "1"]
    asked += ["--max-tokens-per-rank", "auto", "-o", str(tmp_path / "m.plan")]
    assert run([*asked, "--memory-gib", "300"]) == 4
    assert "hint: use --recompute selective|full, more --pp" in capsys.readouterr().err
