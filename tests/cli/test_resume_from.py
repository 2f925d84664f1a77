"""`plan --resume-from`: the rows that a run left, on another pool, and the run that goes on."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from hydraplan.cli.app import run as command
from hydraplan.errors import InputError, StalePlan
from hydraplan.files.lengths import Lengths, read_lengths
from hydraplan.files.planfile import open_plan, read_batch
from hydraplan.files.remaining import read_remaining
from hydraplan.files.runfile import open_run

pytestmark = pytest.mark.dist

MODEL = """\
num_layers = 3
hidden_size = 48
num_heads = 12
num_kv_heads = 6
head_dim = 4
ffn_hidden_size = 32
vocab_size = 64
dtype = "float32"
"""
ROWS = 30


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile, lengths, a plan for 4 lanes, a run of 3 of its 5 steps, and one of all."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "model.toml").write_text(MODEL)
    lengths = np.random.default_rng(3).integers(4, 60, ROWS)
    (folder / "lengths.txt").write_text("\n".join(map(str, lengths)))
    assert command(
        ["profile", "--device", "analytic", "--cluster", "h100-sxm", "--model",
         str(folder / "model.toml"), "-o", str(folder / "p.parquet")]
    ) == 0  # fmt: skip
    plan(folder, "four", 4)
    execute(folder, "four", "--checkpoint-every", "2", "--steps", "3", "-o", "four.run")
    execute(folder, "four", "--checkpoint-every", "5", "-o", "whole.run")
    return folder


def plan(folder: Path, name: str, ranks: int, *more: str, lengths: str = "lengths.txt") -> None:
    code = command(
        ["plan", str(folder / lengths), "--profile", str(folder / "p.parquet"), "--ranks",
         str(ranks), "--max-tokens-per-rank", "64", "--batch-sequences", "6", "--num-batches",
         "all", "--workers", "1", "--strategy", "memory-ffd", *more, "--force",
         "-o", str(folder / f"{name}.plan")]
    )  # fmt: skip
    assert code == 0


def execute(folder: Path, name: str, *more: str) -> None:
    paths = [str(folder / word) if word.endswith(".run") else word for word in more]
    assert command(["execute", str(folder / f"{name}.plan"), *paths]) == 0


def trained(run: Path) -> list[int]:
    """Rows of the steps of a run, one after the other."""
    return [
        row
        for step in open_run(run).steps
        for row in range(
            step["first_sequence_id"], step["first_sequence_id"] + step["num_sequences"]
        )
    ]


def test_a_run_shrinks_to_three_lanes_and_trains_every_row_once(made: Path) -> None:
    plan(made, "three", 3, "--resume-from", str(made / "four.run"))
    execute(made, "three", "--resume", "four.run", "-o", "three.run", "--force")
    header = open_plan(made / "three.plan").header
    assert header.options.first_row == 18
    assert header.options.ranks == 3
    assert command(["validate", str(made / "three.plan")]) == 0
    assert trained(made / "four.run") + trained(made / "three.run") == list(range(ROWS))
    whole, parts = (open_run(made / f"{name}.run") for name in ("whole", "three"))
    assert [step["loss"] for step in parts.steps] == pytest.approx(
        [step["loss"] for step in whole.steps[3:]], rel=1e-5
    )


@pytest.mark.slow
def test_the_shrunk_run_goes_on_in_its_folder_and_may_grow_again(made: Path) -> None:
    plan(made, "two", 2, "--resume-from", str(made / "four.run"))
    execute(made, "two", "--resume", "four.run", "-o", "two.run", "--steps", "1", "--force")
    execute(made, "two", "--resume", "two.run", "--steps", "1")
    plan(made, "one", 1, "--pp", "2", "--resume-from", str(made / "two.run"))
    assert read_batch(open_plan(made / "one.plan"), 0).sequences.sequence_id[0] == 24
    execute(made, "one", "--resume", "two.run", "-o", "one.run", "--force")
    names = ("four", "two", "one")
    assert [r for n in names for r in trained(made / f"{n}.run")] == list(range(ROWS))


def test_a_plan_of_what_remains_runs_only_after_its_run_and_once(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(made, "rest", 2, "--resume-from", str(made / "four.run"))
    rest = str(made / "rest.plan")
    four = str(made / "four.run")
    for arguments, said in (
        ([rest], "goes on after step 3 of plan"),
        ([rest, "--resume", four, "--steps", "3"], "--steps 3 would train rows again"),
        ([rest, "--resume", four, "-o", four, "--force"], "is the run that this one goes on from"),
        ([str(made / "four.plan"), "--resume", str(tmp_path)], "steps.parquet is not a file"),
    ):
        assert command(["execute", *arguments]) == 2
        assert said in capsys.readouterr().err
    assert command(["execute", rest, "--simulate"]) == 0


def test_other_lengths_or_another_model_are_refused(made: Path) -> None:
    rows = read_lengths(made / "lengths.txt")
    model = open_plan(made / "four.plan").header.model
    other = Lengths("other.txt", "sequences", np.ones(ROWS, np.int64))
    with pytest.raises(
        StalePlan, match=r"other\.txt has lengths digest .*four\.run trained lengths\.txt"
    ):
        read_remaining(made / "four.run", other, model)
    with pytest.raises(StalePlan, match=r"has num_layers 4, run .* trained one with 3"):
        read_remaining(made / "four.run", rows, model.model_copy(update={"num_layers": 4}))


@pytest.mark.slow
def test_nothing_is_planned_where_nothing_remains_or_rows_come_again(
    made: Path, tmp_path: Path
) -> None:
    rows = read_lengths(made / "lengths.txt")
    model = open_plan(made / "four.plan").header.model
    done = shutil.copytree(made / "whole.run", tmp_path / "done.run")
    with pytest.raises(InputError, match="has trained all 30 rows"):
        read_remaining(done, rows, model)
    assert command(["execute", str(made / "four.plan"), "--resume", str(done), "--steps", "6"]) == 0
    with pytest.raises(InputError, match="done 6 steps and its plan has 5 batches"):
        read_remaining(done, rows, model)
