"""`plan --recompute`: what is made again costs time and saves memory."""

import json
from importlib import resources
from itertools import product
from pathlib import Path

import pytest

from hydraplan.activations import held_shares
from hydraplan.cli.app import run
from hydraplan.config import load_model
from hydraplan.files.profilefile import write_profile
from tests.planner.cases import profile as analytic

BUNDLED = str(resources.files("hydraplan") / "data" / "lengths_cpython_stdlib.parquet")
SHAPE = ["--pp", "2", "--ranks", "8", "--max-tokens-per-rank", "8192", "--batch-sequences", "64"]


def test_what_is_made_again_costs_time_and_saves_memory_and_the_plan_is_valid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = str(tmp_path / "h100.profile.parquet")
    write_profile(Path(profile), analytic().header, [])
    found = {}
    for recompute, pipeline in product(("none", "selective", "full"), ("1f1b", "zb-1p")):
        out = str(tmp_path / f"{recompute}-{pipeline}.plan")
        asked = ["--recompute", recompute, "--pipeline", pipeline, "--strategy", "memory-ffd"]
        inputs = [BUNDLED, "--profile", profile, *SHAPE, "--pp", "2", *asked]
        assert run(["plan", *inputs, "-o", out, "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["options"]["recompute"] == recompute
        found[recompute, pipeline] = said["batches"][0]
        assert run(["validate", out]) == 0
        capsys.readouterr()
    times = [found[mode, "1f1b"]["iteration_s"] for mode in ("none", "selective", "full")]
    assert times[0] < times[1] < times[2]
    peaks = [found[mode, "1f1b"]["peak_live_tokens"] for mode in ("none", "selective", "full")]
    kept = held_shares(load_model("llama-8b"), "full").after_forward
    assert peaks[2] < peaks[1] < peaks[0]
    assert peaks[2] == pytest.approx(kept * peaks[0], rel=0.5)
