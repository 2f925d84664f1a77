"""What `--json` prints keeps the schemas that are published in docs/schema."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hydraplan.cli.app import COMMANDS, TWO_WORDS, run
from tests.planner.cases import long_tailed

SCHEMAS = Path(__file__).parents[2] / "docs" / "schema"
SHAPE = ["--pp", "2", "--ranks", "2", "--max-tokens-per-rank", "1024", "--batch-sequences", "30"]
ANALYTIC = ["--device", "analytic", "--cluster", "h100-sxm", "--model", "tiny"]
PLAN = ["plan", "rows.txt", "--profile", "p.profile.parquet", *SHAPE]
NOT_RUN = {"train-policy": "takes minutes; tests/cli/test_train_policy.py reads it"}

CALLS = {
    "profile": ["profile", *ANALYTIC, "-o", "q.profile.parquet", "--force"],
    "profile-diff": ["profile", "diff", "p.profile.parquet", "p.profile.parquet"],
    "lengths": ["lengths", "rows.txt"],
    "plan": [*PLAN, "-o", "b.plan", "--force"],
    "plan policy": [*PLAN, "-o", "b.plan", "--force", "--pipeline", "policy"],
    "plan auto": [*PLAN[:-4], "--max-tokens-per-rank", "auto", *PLAN[-2:], "-o", "b.plan",
                  "--force", "--memory-gib", "4"],
    "compare": ["compare", *PLAN[1:], "--strategies", "hydra,memory-ffd"],
    "pipeline": ["pipeline", "--schedule", "zb-h1", "--pp", "4", "--microbatches", "8"],
    "show-plan": ["show", "a.plan"],
    "validate": ["validate", "a.plan"],
    "diff": ["diff", "a.plan", "worse.plan"],
    "check": ["check", "a.plan", "--max", "slot_imbalance=99"],
    "check worse": ["check", "worse.plan", "--baseline", "a.plan"],
    "execute": ["execute", "a.plan", "--simulate", "--noise", "jitter=0.1", "--trials", "3"],
    "doctor": ["doctor"],
    "execute kept": ["execute", "a.plan", "--steps", "2", "-o", "a.run", "--force"],
    "show-run": ["show", "a.run"],
    "profile-refit": ["profile", "refit", "a.run", "-o", "n.profile.parquet", "--force"],
    "verify": ["verify", "a.plan"],
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("schemas")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        np.savetxt("rows.txt", np.minimum(long_tailed(60, seed=3), 300), "%d")
        assert run(["profile", *ANALYTIC, "-o", "p.profile.parquet"]) == 0
        assert run([*PLAN, "-o", "a.plan"]) == 0
        assert run([*PLAN, "-o", "worse.plan", "--strategy", "memory-ffd"]) == 0
    return path


def broken(name: str, said: object) -> list[str]:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    found = jsonschema.Draft202012Validator(schema).iter_errors(said)
    return [f"{list(error.absolute_path)}: {error.message[:200]}" for error in found]


REAL = ("execute kept", "show-run", "profile-refit", "verify")
"""Calls that start workers, or need what they leave."""

EVERY = [pytest.param(c, marks=pytest.mark.slow) if c in REAL else c for c in CALLS]


@pytest.mark.dist
@pytest.mark.parametrize("call", EVERY)
def test_what_a_command_prints_keeps_its_schema(
    call: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    if call in ("show-run", "profile-refit") and not Path("a.run").exists():
        run(CALLS["execute kept"])
    capfd.readouterr()
    assert run([*CALLS[call], "--json"]) in (0, 1)
    said = json.loads(capfd.readouterr().out)
    name = call.split()[0]
    assert next(iter(said)) == "schema_version"
    assert broken(name, said) == []
    assert broken(name, {**said, "other": 1}) != []  # it can fail
    assert broken(name, {k: v for k, v in said.items() if k != "schema_version"}) != []


def test_every_command_that_prints_json_has_a_schema() -> None:
    names: set[str] = set()
    for command in COMMANDS:
        name = TWO_WORDS.get(command, command.__name__.replace("_", "-")).replace(" ", "-")
        if "json" in command.__annotations__ or "as_json" in command.__annotations__:
            names |= {"show-plan", "show-run"} if name == "show" else {name}
    assert names == {path.stem for path in SCHEMAS.glob("*.json")}
    assert names == {call.split()[0] for call in CALLS} | NOT_RUN.keys()


def test_published_schemas_are_closed_and_versioned() -> None:
    for path in SCHEMAS.glob("*.json"):
        schema: dict[str, Any] = json.loads(path.read_text())
        assert schema["additionalProperties"] is False, path.name
        assert "const" in schema["properties"]["schema_version"], path.name
