"""`diff` and `check` as people and CI call them."""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hydraplan.cli.app import run
from hydraplan.files.plandiff import compared
from hydraplan.files.planfile import open_plan
from hydraplan.files.profilefile import write_profile
from tests.planner.cases import long_tailed
from tests.planner.cases import profile as analytic

SHAPE = ["--pp", "2", "--ranks", "8", "--max-tokens-per-rank", "4096", "--num-batches", "2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plans by two strategies, one of them with another seed of lengths."""
    path = tmp_path_factory.mktemp("gate")
    write_profile(path / "p.parquet", analytic().header, [])
    for seed in (1, 2):
        np.savetxt(path / f"{seed}.txt", long_tailed(80, seed=seed), "%d")
    for name, rows, strategy in (
        ("good", 1, "hydra"), ("worse", 1, "memory-ffd"), ("other", 2, "hydra")
    ):  # fmt: skip
        asked = ["plan", str(path / f"{rows}.txt"), "--profile", str(path / "p.parquet"), *SHAPE]
        asked += ["--batch-sequences", "40", "--strategy", strategy, "--on-overlong", "truncate"]
        assert run([*asked, "-o", str(path / f"{name}.plan")]) == 0
    return path


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


def edit(path: Path, name: str, column: str, value: float, row: int = 0) -> None:
    table = pq.read_table(path / name)
    index = table.schema.get_field_index(column)
    values = table.column(column).to_pylist()
    values[row] = value
    field = table.schema.field(column)
    groups = pq.ParquetFile(path / name).metadata
    sizes = [groups.row_group(i).num_rows for i in range(groups.num_row_groups)]
    table = table.set_column(index, field, pa.array(values, field.type))
    with pq.ParquetWriter(path / "new", table.schema) as writer:
        start = 0
        for size in sizes:
            writer.write_table(table.slice(start, size), row_group_size=size)
            start += size
    os.replace(path / "new", path / name)


def test_a_plan_and_itself_differ_in_nothing(here: Path, capsys) -> None:
    assert run(["diff", "good.plan", "good.plan", "--exit-code"]) == 0
    assert capsys.readouterr().out == "Diff: the two plans are the same\n"
    assert run(["diff", "good.plan", "good.plan", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["is_different"], said["batches"], said["settings"]) == (False, [], [])


def test_two_plans_differ_and_only_exit_code_says_so_to_scripts(here: Path, capsys) -> None:
    assert run(["diff", "good.plan", "worse.plan"]) == 0
    out = capsys.readouterr().out
    assert "options.strategy" in out.split("figures")[0]  # provenance first
    assert re.search(r"iteration_s .*! worse", out)
    assert out.splitlines()[-1].startswith("Diff: ")
    assert run(["diff", "good.plan", "worse.plan", "--exit-code"]) == 1
    assert "worse.plan differs from good.plan" in capsys.readouterr().err


def test_one_changed_degree_is_named_with_its_row(here: Path, tmp_path: Path, capsys) -> None:
    shutil.copytree(here / "good.plan", tmp_path / "x.plan")
    table = pq.read_table(tmp_path / "x.plan" / "sequences.parquet")
    row = table.column("degree").to_pylist().index(1)
    assert table.column("batch").to_pylist()[row] == 1
    edit(tmp_path / "x.plan", "sequences.parquet", "ulysses_size", 2, row)
    edit(tmp_path / "x.plan", "sequences.parquet", "degree", 2, row)
    assert run(["diff", "good.plan", str(tmp_path / "x.plan"), "--json"]) == 0
    (batch,) = json.loads(capsys.readouterr().out)["batches"]
    assert [s["sequence_id"] for s in batch["sequences"]] == [row]
    assert batch["sequences_changed"] == {"degree": 1}
    assert run(["diff", "good.plan", str(tmp_path / "x.plan"), "--only-changed"]) == 0
    out = capsys.readouterr().out
    assert re.search(rf"^ +1 +{row} ", out, re.MULTILINE)
    assert "iteration_s" not in out


def test_what_is_kept_for_people_does_not_grow_with_batches(here: Path) -> None:
    plans = open_plan(Path("good.plan")), open_plan(Path("worse.plan"))
    whole, few = compared(*plans, 0.0, None), compared(*plans, 0.0, 3)
    assert [len(batch.rows) for batch in few.batches] == [4, 0]
    assert few.batches[0].rows == whole.batches[0].rows[:4]
    for short, long in zip(few.batches, whole.batches, strict=True):
        assert short.counts == long.counts
        assert (short.num_lanes, long.num_lanes, len(long.lanes or ())) == (8, 8, 8)
        assert short.lanes == (long.lanes or ())[:5]


def test_plans_of_other_lengths_are_compared_where_that_means_something(here: Path, capsys) -> None:
    assert run(["diff", "good.plan", "other.plan", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert "made from other lengths" in said["left_out"][0]
    verdict = {figure["name"]: figure["verdict"] for figure in said["figures"]}
    assert verdict["iteration_s"] == "not comparable"
    assert verdict["slot_imbalance"] in ("better", "worse", "same")
    assert all(batch["sequences"] == [] for batch in said["batches"])


def test_a_gate_passes_what_is_as_good_and_refuses_what_is_worse(here: Path, capsys) -> None:
    assert run(["check", "good.plan", "--baseline", "good.plan"]) == 0
    assert capsys.readouterr().out.endswith("Check: 1 limit, 0 broken\n")
    assert run(["check", "worse.plan", "--baseline", "good.plan"]) == 1
    out, err = capsys.readouterr()
    assert "! broken" in out
    assert "iteration_s" in err


def test_a_regression_is_told_to_a_tenth_of_a_per_cent(here: Path, tmp_path, capsys) -> None:
    said = {}
    for name in ("good", "worse"):
        assert run(["show", f"{name}.plan", "--json"]) == 0
        batches = json.loads(capsys.readouterr().out)["batches"]
        said[name] = float(np.mean([batch["iteration_s"] for batch in batches]))
    worse = 100 * (said["worse"] / said["good"] - 1)
    gate = ["check", "worse.plan", "--baseline", "good.plan", "--max-regress"]
    assert run([*gate, f"iteration_s={worse + 0.1:.3f}%"]) == 0
    assert run([*gate, f"iteration_s={worse - 0.1:.3f}%"]) == 1
    # A plan whose figures were edited is no plan at all.
    shutil.copytree(here / "good.plan", tmp_path / "x.plan")
    edit(tmp_path / "x.plan", "batches.parquet", "iteration_s", said["good"] / 2)
    capsys.readouterr()
    assert run(["check", str(tmp_path / "x.plan"), "--baseline", "good.plan"]) == 1
    assert "is not valid" in capsys.readouterr().err
    assert run(["check", "good.plan", "--baseline", str(tmp_path / "x.plan")]) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--baseline", "other.plan"], "its lengths"),
        (["--baseline", "absent.plan"], "--update-baseline makes this plan the baseline"),
        (["--max-regress", "iteration_s=2%"], "there is none"),
        ([], "nothing to check"),
        (["--update-baseline"], "needs --baseline"),
        (["--max", "x=1"], "no figure 'x'"),
        (["--max", "efficiency=1", "--json", "--github"], "leave one of the two out"),
    ],
)
def test_what_cannot_be_checked_is_exit_2_and_never_a_pass(
    here: Path, words: list[str], said: str, capsys
) -> None:
    assert run(["check", "good.plan", *words]) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert out == ""


def test_a_baseline_is_replaced_only_when_asked_and_whole(here: Path, tmp_path, capsys) -> None:
    known = tmp_path / "main.plan"
    assert run(["check", "good.plan", "--baseline", str(known), "--update-baseline"]) == 0
    assert sorted(p.name for p in known.iterdir()) == sorted(
        ["batches.parquet", "schedule.parquet", "sequences.parquet"]
    )
    assert run(["check", "worse.plan", "--baseline", str(known)]) == 1
    assert run(["check", "other.plan", "--baseline", str(known), "--update-baseline"]) == 0
    for name in ("batches.parquet", "schedule.parquet", "sequences.parquet"):
        assert (known / name).read_bytes() == (here / "other.plan" / name).read_bytes()
    assert run(["check", "good.plan", "--baseline", "good.plan", "--update-baseline"]) == 2
    assert list(tmp_path.iterdir()) == [known]


def test_a_baseline_behind_a_link_is_replaced_where_it_is(here: Path, tmp_path) -> None:
    stored, link = tmp_path / "stored", tmp_path / "main.plan"
    link.symlink_to("stored")
    for plan in ("good.plan", "other.plan"):  # the first leads nowhere yet
        assert run(["check", plan, "--baseline", str(link), "--update-baseline"]) == 0
        for name in ("batches.parquet", "schedule.parquet", "sequences.parquet"):
            assert (stored / name).read_bytes() == (here / plan / name).read_bytes()
    assert link.is_symlink()
    assert sorted(tmp_path.iterdir()) == sorted([stored, link])


def test_a_folder_with_what_is_not_ours_is_no_baseline_to_replace(here: Path, tmp_path) -> None:
    known = tmp_path / "main.plan"
    shutil.copytree(here / "good.plan", known)
    (known / "thesis.tex").write_text("years")
    assert run(["check", "worse.plan", "--baseline", str(known), "--update-baseline"]) == 2
    assert (known / "thesis.tex").read_text() == "years"


@pytest.mark.parametrize("option", ["--junit", "--markdown"])
def test_verdicts_never_take_the_place_of_a_folder(
    here: Path, tmp_path, option: str, capsys
) -> None:
    folder = tmp_path / "kept.plan"
    shutil.copytree(here / "good.plan", folder)
    gate = ["check", "good.plan", "--baseline", str(folder), option, str(folder)]
    assert run(gate) == 2
    assert str(folder) in capsys.readouterr().err
    assert len(list(folder.iterdir())) == 3


@pytest.mark.parametrize("text", [b"a = [", b"\xff\xfe", b"tool = 3", b"[project]\nname = 'x'\n"])
def test_a_project_that_never_names_us_is_not_ours_to_judge(
    here: Path, tmp_path, monkeypatch, text: bytes, capsys
) -> None:
    (tmp_path / "pyproject.toml").write_bytes(text)
    monkeypatch.chdir(tmp_path)
    gate = ["check", str(here / "good.plan"), "--baseline", str(here / "good.plan")]
    assert run(gate) == 0
    (tmp_path / "pyproject.toml").write_bytes(b"[tool.hydraplan.check]\nmax = [\n")
    capsys.readouterr()
    assert run(gate) == 2
    assert "pyproject.toml is not TOML" in capsys.readouterr().err


def test_limits_stand_in_the_project_file(here: Path, tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.hydraplan.check]\nmax-regress = ["iteration_s=900%", "slot_imbalance=900%"]\n'
    )
    monkeypatch.chdir(tmp_path)
    gate = ["check", str(here / "worse.plan"), "--baseline", str(here / "good.plan")]
    assert run(gate) == 0
    assert "Check: 2 limits" in capsys.readouterr().out
    assert run([*gate, "--max-regress", "iteration_s=0%"]) == 1  # a flag is stronger
    (tmp_path / "pyproject.toml").write_text("[tool.hydraplan.chek]\nmax = []\n")
    assert run(gate) == 2
    assert "check" in capsys.readouterr().err
    (tmp_path / "pyproject.toml").write_text("[tool]\nhydraplan = 3\n")
    assert run(gate) == 2
    (tmp_path / "hydraplan.toml").write_text("[check]\nmax-regress = ['iteration_s=900%']\n")
    assert run(gate) == 0  # the project's file is not read beside it


def test_junit_keeps_its_schema_and_another_reader_counts_the_same(here: Path, tmp_path) -> None:
    xmlschema = pytest.importorskip("xmlschema")
    junitparser = pytest.importorskip("junitparser")
    hostile = tmp_path / "a&<b>\"'.plan"
    shutil.copytree(here / "worse.plan", hostile)
    out = tmp_path / "out.xml"
    code = run(
        [
            *("check", str(hostile), "--baseline", "good.plan", "--junit", str(out)),
            *("--max", "slot_imbalance=99", "--min", "efficiency=2"),
        ]
    )
    assert code == 1
    root = Path(__file__).parents[2] / "docs" / "schema" / "junit.xsd"
    xmlschema.XMLSchema(str(root)).validate(str(out))
    found = junitparser.JUnitXml.fromfile(str(out))
    assert (found.tests, found.failures, found.errors) == (3, 2, 0)
    (suite,) = found
    assert suite.name == str(hostile)
    assert [case.is_passed for case in suite] == [False, True, False]


def test_github_gets_one_command_a_limit_that_it_can_read(here: Path, capsys) -> None:
    gate = ["check", "worse.plan", "--baseline", "good.plan", "--max", "slot_imbalance=99"]
    assert run([*gate, "--github"]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("::")]
    command = re.compile(r"::(error|notice) title=([^:,\r\n]+)::([^\r\n]+)")
    found = [command.fullmatch(line) for line in lines]
    assert [match and match[1] for match in found] == ["error", "notice"]
    assert "%25" in lines[0]  # a bare per cent would begin an escape
    assert "% " not in lines[0]


def test_a_summary_grows_at_its_end(here: Path, tmp_path) -> None:
    page = tmp_path / "summary.md"
    page.write_text("before\n")
    gate = ["check", "good.plan", "--baseline", "good.plan", "--markdown", str(page)]
    assert run(gate) == 0
    lines = page.read_text().splitlines()
    assert lines[0] == "before"
    assert lines[1] == "### hydraplan check: passed"
    assert lines[-1].startswith("| iteration_s |")
    assert all(line.count("|") == 7 for line in lines[5:])
