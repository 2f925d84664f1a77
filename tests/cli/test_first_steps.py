"""What a newcomer leaves out is told with what to type; a plan of a part of the file says so."""

from pathlib import Path

import pytest

from hydraplan.cli.app import run
from hydraplan.files.profilefile import write_profile
from tests.planner.cases import profile as analytic


@pytest.mark.parametrize(
    ("left_out", "said"),
    [
        ("--max-tokens-per-rank", "--max-tokens-per-rank auto takes the most that fits"),
        ("--profile", "hydraplan profile --device analytic --cluster h100-sxm"),
        ("--ranks", "devices / (pp x tp)"),
        ("-o", "see hydraplan plan --help"),
    ],
)
def test_a_missing_option_is_told_with_a_value_to_begin_with(
    left_out: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = {"--profile": "p", "--ranks": "4", "--max-tokens-per-rank": "512", "-o": "x.plan"}
    del asked[left_out]
    assert run(["plan", "a.txt", *(word for pair in asked.items() for word in pair)]) == 2
    assert said in capsys.readouterr().err


def test_a_plan_of_a_part_of_the_file_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, profile, out = (str(tmp_path / name) for name in ("a.txt", "p.parquet", "a.plan"))
    Path(rows).write_text("50\n" * 10)
    write_profile(Path(profile), analytic().header, [])
    asked = ["plan", rows, "--profile", profile, "--ranks", "2", "--max-tokens-per-rank", "512"]
    asked += ["--batch-sequences", "4", "-o", out, "--force"]
    assert run(asked) == 0
    said = "planned 4 of 10 rows; --num-batches all plans all of them"
    assert said in capsys.readouterr().err
    assert run([*asked, "--num-batches", "all"]) == 0
    assert "plans all of them" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lengths", "batch", "hint"),
    [
        ("none.txt", ["--batch-sequences", "4"], "or try 'synthetic:chat-long'"),
        ("synthetic:chat-long", [], "what one optimizer step of the whole pool trains on"),
    ],
)
def test_what_a_newcomer_lacks_is_told_with_what_to_type(
    lengths: str, batch: list[str], hint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = tmp_path / "p.parquet"
    write_profile(profile, analytic().header, [])
    asked = ["plan", lengths, "--profile", str(profile), "--ranks", "2", *batch]
    asked += ["--max-tokens-per-rank", "512", "-o", str(tmp_path / "a.plan")]
    assert run(asked) == 2
    assert hint in capsys.readouterr().err
