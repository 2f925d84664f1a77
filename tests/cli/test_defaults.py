"""Options that exclude each other: the one from the stronger source is taken."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hydraplan.cli.app import run
from hydraplan.cli.defaults import strongest
from hydraplan.errors import InputError
from hydraplan.files.profilefile import write_profile
from hydraplan.planheader import PlanOptions
from tests.planner.cases import profile as analytic


def test_of_two_values_the_one_from_the_stronger_source_stays():
    sources = {"a": "DEFAULT_MAP", "b": "ENVIRONMENT", "c": "COMMANDLINE", "d": "COMMANDLINE"}
    context = SimpleNamespace(get_parameter_source=lambda name: SimpleNamespace(name=sources[name]))
    assert strongest(context, {"a": 1, "b": 2}) == {"a": None, "b": 2}
    assert strongest(context, {"a": 1, "b": None}) == {"a": 1, "b": None}
    assert strongest(context, {"c": 1, "a": 2, "d": 3}) == {"c": 1, "a": None, "d": 3}
    assert strongest(context, {"a": None, "b": None}) == {"a": None, "b": None}


@pytest.mark.parametrize("command", ["plan", "compare"])
@pytest.mark.parametrize(
    ("file", "environment", "flags", "taken"),
    [
        ("batch-sequences = 8", None, ["--batch-tokens", "900"], (None, 900)),
        ("batch_tokens = 900", None, ["--batch-sequences", "8"], (8, None)),
        ("batch-sequences = 8", ("BATCH_TOKENS", "900"), [], (None, 900)),
        ("", ("BATCH_TOKENS", "900"), ["--batch-sequences", "8"], (8, None)),
        ("batch-sequences = 8", None, [], (8, None)),
        ("batch-sequences = 8\nbatch-tokens = 900", None, [], None),
        ("", None, ["--batch-sequences", "8", "--batch-tokens", "900"], None),
        ("", None, [], None),
    ],
)
def test_a_flag_replaces_what_the_file_says_of_the_batch_by_the_other_option(
    command: str, file: str, environment: tuple[str, str] | None, flags: list[str],
    taken: tuple[int | None, int | None] | None, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    seen: list[PlanOptions] = []

    def spy(_lengths: object, _profile: object, asked: PlanOptions, *_: object) -> None:
        seen.append(asked)
        raise InputError("stop")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hydraplan.planner.plan.plan_many", spy)
    monkeypatch.setattr("hydraplan.planner.compare.compare", spy)
    write_profile(Path("p.parquet"), analytic().header, [])
    np.savetxt("lengths.txt", [100] * 20, "%d")
    Path("hydraplan.toml").write_text(f"[{command}]\n{file}\n")
    if environment:
        monkeypatch.setenv(f"HYDRAPLAN_{command.upper()}_{environment[0]}", environment[1])
    output = ["-o", "a.plan"] if command == "plan" else []
    shape = ["--profile", "p.parquet", "--ranks", "4", "--max-tokens-per-rank", "512"]
    assert run([command, "lengths.txt", *shape, *flags, *output]) == 2
    if taken is None:
        assert seen == []
        said = "error: give exactly one of --batch-sequences and --batch-tokens"
        assert capsys.readouterr().err.startswith(said)
    else:
        assert [(o.batch_sequences, o.batch_tokens) for o in seen] == [taken]
