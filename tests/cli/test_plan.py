"""`plan`, `validate`, `compare` and `show`: the contract of their output and their refusals."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hydraplan.cli.app import run
from hydraplan.errors import InputError
from hydraplan.metrics import FIGURES
from hydraplan.planheader import PlanOptions

BUNDLED = str(resources.files("hydraplan") / "data" / "lengths_cpython_stdlib.parquet")
SHAPE = ["--pp", "2", "--ranks", "8", "--max-tokens-per-rank", "8192", "--batch-sequences", "64"]


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("profile") / "h100.profile.parquet"
    assert run(
        ["profile", "--device", "analytic", "--cluster", "h100-sxm", "--model", "llama-8b",
         "-o", str(path)]
    ) == 0  # fmt: skip
    return str(path)


@pytest.fixture(scope="module")
def plan_folder(profile: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("plans") / "a.plan")
    code = run(["plan", BUNDLED, "--profile", profile, *SHAPE, "--num-batches", "2", "-o", path])
    assert code == 0
    return path


def test_plan_prints_window_winner_figures_and_one_countable_last_line(
    profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "b.plan")
    assert run(["plan", BUNDLED, "--profile", profile, *SHAPE, "-o", out]) == 0
    text, notes = capsys.readouterr()
    for part in ("window", "winner", "simulated", "analytic", "pipeline_bubble", "fill_bubble"):
        assert part in text
    assert text.strip().splitlines()[-1].startswith("Plan: 6")
    assert f"wrote {out}" in notes


def test_json_has_one_object_a_batch_with_every_figure(
    plan_folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["show", plan_folder, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert next(iter(found)) == "schema_version"
    assert [b["batch"] for b in found["batches"]] == [0, 1]
    assert found["route"] == "loop"
    for batch in found["batches"]:
        assert set(FIGURES) <= set(batch)
        assert batch["winner"] in ("load-driven", "memory")
        assert batch["window_min"] >= 1
        assert sum(batch["status"].values()) == batch["num_sequences"] == 64
        assert sum(batch["degrees"].values()) == batch["status"]["placed"]


def test_plan_show_and_compare_name_the_options_that_differ_from_their_default(
    profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    speeds, out = write(tmp_path / "s.txt", "1\n" * 7 + "0.5\n"), str(tmp_path / "b.plan")
    inputs = [BUNDLED, "--profile", profile, *SHAPE, "--max-groups", "6", "--rank-speed", speeds]
    compare = ["compare", *inputs, "--strategies", "memory-ffd"]
    said = "options: max-groups 6, rank-speed 0.5..1 (1 of 8 lanes below 1: 7)\n"
    for command in (["plan", *inputs, "-o", out], ["show", out], compare):
        assert run(command) == 0
        assert said in capsys.readouterr().out
    for command in (["show", out], compare, ["plan", *inputs, "-o", out, "--force"]):
        assert run([*command, "--json"]) == 0
        options = json.loads(capsys.readouterr().out)["options"]
        assert (options["max_groups"], options["engine"]) == (6, "nested")
        assert options["rank_speed"] == [1.0] * 7 + [0.5]


def test_a_microbatch_shape_without_effect_is_noted_on_stderr(profile, tmp_path, capsys):
    asked = ["plan", BUNDLED, "--profile", profile, *SHAPE, "--microbatch-shape", "tapered"]
    assert run([*asked, "--strategy", "memory-ffd", "-o", str(tmp_path / "a.plan")]) == 0
    out, err = capsys.readouterr()
    assert "tapered has no effect: strategy memory-ffd builds none\n" in err
    assert "no effect" not in out


def test_validate_says_yes_with_0_and_no_with_1_and_the_row(
    plan_folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["validate", plan_folder]) == 0
    assert "is valid: 2 batches" in capsys.readouterr().out
    broken = tmp_path / "broken.plan"
    shutil.copytree(plan_folder, broken)
    file = pq.ParquetFile(broken / "sequences.parquet")
    with pq.ParquetWriter(broken / "sequences.parquet.new", file.schema_arrow) as writer:
        for group in range(2):
            table = file.read_row_group(group)
            rows = table.to_pylist()
            if group == 1:
                placed = next(r for r in rows if r["status"] == "placed")
                placed["microbatch"] += 1000
            writer.write_table(pa.Table.from_pylist(rows, table.schema))
    os.replace(broken / "sequences.parquet.new", broken / "sequences.parquet")
    assert run(["validate", str(broken), "--json"]) == 1
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert not found["valid"]
    assert found["broken"][0].startswith("batch 1: sequence ")
    assert err.startswith("error: ")
    for view in ([], ["--json"], ["--view", "gantt"]):
        assert run(["show", str(broken), *view]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert "is not valid: batch 1: sequence " in err


@pytest.mark.parametrize("command", ["plan", "compare"])
def test_flag_environment_and_file_all_reach_the_request(
    command: str, profile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def spy(_lengths: object, _profile: object, asked: PlanOptions, *_: object) -> None:
        seen.append(asked)
        raise InputError("stop")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hydraplan.planner.plan.plan_many", spy)
    monkeypatch.setattr("hydraplan.planner.compare.compare", spy)
    Path("hydraplan.toml").write_text(
        f'[{command}]\nmicrobatch-multiple = 4\nreorder = "none"\nengine = "nested"\n'
    )
    monkeypatch.setenv(f"HYDRAPLAN_{command.upper()}_REORDER", "window:128")
    monkeypatch.setenv(f"HYDRAPLAN_{command.upper()}_MAX_GROUPS", "7")
    output = ["-o", "a.plan"] if command == "plan" else []
    Path("speeds.txt").write_text("1\n" * 7 + "0.5\n")
    flags = ["--min-degree", "2", "--engine", "ring", "--rank-speed", "speeds.txt"]
    assert run([command, BUNDLED, "--profile", profile, *SHAPE, *flags, *output]) == 2
    (o,) = seen
    assert (o.min_degree, o.microbatch_multiple, o.max_groups) == (2, 4, 7)
    assert (o.reorder, o.engine, o.rank_speed) == ("window:128", "ring", (1.0,) * 7 + (0.5,))


def test_compare_leaves_out_what_cannot_be_planned_and_says_why(
    profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["compare", BUNDLED, "--profile", profile, *SHAPE, "--reorder", "none"]
    assert run([*asked, "--strategies", "mcore-v1,hydra,static-cp", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["strategy"] for row in found["rows"]] == ["hydra"]
    assert sorted(found["left_out"]) == ["mcore-v1", "static-cp"]
    assert "--reorder none cannot be kept" in found["left_out"]["static-cp"]
    assert run([*asked, "--strategies", "static-cp"]) == 4
    assert "no strategy plans this" in capsys.readouterr().err


def test_compare_shows_baselines_in_every_order_and_hydra_in_its_own(
    profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compare", BUNDLED, "--profile", profile, *SHAPE]
    assert run([*command, "--strategies", "hydra,memory-ffd", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(r["strategy"], r["microbatch_order"]) for r in rows] == [
        ("hydra", "auto"), ("memory-ffd", "as-built"), ("memory-ffd", "long-first"),
        ("memory-ffd", "sandwich"),
    ]  # fmt: skip
    assert all(set(FIGURES) <= set(r) and r["plan_s"] >= 0 and r["planning_s"] > 0 for r in rows)
    assert rows[0]["iteration_s"] <= min(r["iteration_s"] for r in rows[1:])
    assert run(command) == 0
    assert "simulated" in capsys.readouterr().out


def test_show_draws_loads_gantt_and_sequences_in_ascii_within_80_columns(
    plan_folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["show", plan_folder, "--view", "loads"]) == 0
    loads = capsys.readouterr().out
    assert sum(line.startswith("lane") for line in loads.splitlines()) == 8
    assert run(["show", plan_folder, "--view", "gantt"]) == 0
    gantt = capsys.readouterr().out
    assert "  1 F " in gantt
    assert run(["show", plan_folder, "--view", "sequences", "--limit", "5", "--batch", "1"]) == 0
    sequences = capsys.readouterr().out
    assert "costliest 5 of" in sequences
    assert max(len(line) for line in (loads + gantt + sequences).splitlines()) <= 80


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--view", "gantt", "--json"], "--view gantt is drawn as text, --json holds the summary"),
        (["--view", "gantt", "--limit", "5"], "--limit 5 counts rows of the sequences view"),
        (["--limit", "5", "--json"], "--limit 5 counts rows of the sequences view"),
    ],
)
def test_show_refuses_what_would_have_no_effect_on_a_plan(
    options: list[str], said: str, plan_folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["show", plan_folder, *options]) == 2
    out, err = capsys.readouterr()
    assert (out, err.splitlines()[0].startswith(f"error: {said}")) == ("", True)
    assert "hint: leave" in err


def test_the_summary_is_what_json_holds_and_may_be_named(
    plan_folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for options in ([], ["--view", "summary"]):
        assert run(["show", plan_folder, "--json", *options]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]


@pytest.mark.parametrize("options", [["--view", "gantt"], ["--batch", "1"], ["--limit", "5"]])
def test_show_refuses_to_take_a_part_of_a_run(
    options: list[str], plan_folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "a.run")
    assert run(["execute", plan_folder, "--simulate", "-o", folder]) == 0
    capsys.readouterr()
    for more in ([], ["--json"]):
        assert run(["show", folder, *options, *more]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"error: {folder} is a run, {' '.join(options)} shows a part of a")
        assert f"hint: leave {options[0]} out" in err


@pytest.mark.slow
def test_same_inputs_give_the_same_bytes_under_two_hash_seeds(profile: str, tmp_path: Path) -> None:
    found = []
    for seed in ("0", "1"):
        out = tmp_path / f"{seed}.plan"
        subprocess.run(
            [sys.executable, "-m", "hydraplan", "plan", BUNDLED, "--profile", profile, *SHAPE,
             "--num-batches", "2", "-o", str(out)],
            env=os.environ | {"PYTHONHASHSEED": seed}, check=True, capture_output=True, timeout=100,
        )  # fmt: skip
        found.append([hashlib.sha256(f.read_bytes()).digest() for f in sorted(out.iterdir())])
    assert len(found[0]) == 3
    assert found[0] == found[1]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_plan_that_is_ended_half_way_leaves_nothing(
    number: int, code: int, profile: str, tmp_path: Path
) -> None:
    (tmp_path / "many.txt").write_text("\n".join(str(50 + i % 4000) for i in range(60_000)))
    process = subprocess.Popen(
        [sys.executable, "-m", "hydraplan", "plan", "many.txt", "--profile", profile, "--pp", "4",
         "--ranks", "32", "--max-tokens-per-rank", "8192", "--batch-sequences", "200",
         "--num-batches", "all", "-o", "x.plan"],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while process.poll() is None and not list(tmp_path.glob(".x.plan*")):
        os.sched_yield()
    process.send_signal(number)
    assert process.wait(60) == code
    assert [path.name for path in tmp_path.iterdir()] == ["many.txt"]


MEGATRON = Path(__file__).parents[1] / "data" / "megatron_tiny.idx"


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


@pytest.mark.parametrize(
    ("content", "options", "code", "said"),
    [
        (None, [], 2, "none.txt"),
        ("12\nabc\n", [], 2, "line 2"),
        ("5\n-3\n", [], 2, "-3"),
        ("", [], 2, "empty"),
        ("0\n0\n", [], 2, "nothing to train on"),
        (MEGATRON.read_bytes()[:60], [], 2, "byte"),
        (b"NOTIDX\0\0\0" + MEGATRON.read_bytes()[9:], [], 2, "byte 0"),
        ("100000\n7\n", [], 4, "sequence 0 of 100000 tokens needs degree 16"),
        ("5\n", ["--max-tokens-per-rank", "0"], 2, "--max-tokens-per-rank"),
        ("5\n", ["--ranks", "0"], 2, "--ranks"),
        ("5\n", ["--ranks", "many"], 2, "--ranks"),
        ("5\n", ["--pp", "0"], 2, "--pp"),
        ("5\n", ["--strategy", "best"], 2, "unknown strategy 'best'"),
        ("5\n", ["--pipeline", "zigzag"], 2, "unknown pipeline 'zigzag'"),
        ("5\n", ["--microbatches", "0"], 2, "--microbatches '0'"),
        ("5\n", ["--num-batches", "-1"], 2, "--num-batches '-1'"),
        ("5\n", ["--batch-tokens", "9"], 2, "exactly one of --batch-sequences and --batch-tokens"),
        ("5\n", ["--profile", "nowhere.parquet"], 2, "profile nowhere.parquet does not exist"),
        ("5\n", ["--unit", "documents"], 2, "documents"),
        ("5\n", ["--ranks", "65537"], 2, "option ranks: must be at most 65536 (value 65537)"),
        ("5\n", ["--max-tokens-per-rank", str(2**63)], 2, "--max-tokens-per-rank"),
        ("5\n", ["--batch-sequences", str(10**30)], 2, "batch_sequences"),
        ("5\n", ["--seed", str(2**63)], 2, "seed"),
        ("5\n", ["--pp", str(10**30)], 2, "pp"),
        ("5\n", ["--min-degree", "3"], 2, "min_degree: neither a power of two up to ranks 8"),
        ("5\n", ["--min-degree", "16"], 2, "min_degree: neither a power of two up to ranks 8"),
        ("5\n", ["--min-degree", "0"], 2, "--min-degree"),
        ("5\n", ["--microbatches", "6", "--microbatch-multiple", "4"], 2, "microbatches 6"),
        ("5\n", ["--microbatch-multiple", str(10**30)], 2, "microbatch_multiple"),
        ("5\n", ["--max-groups", "0"], 2, "--max-groups"),
        ("5\n", ["--reorder", "window:0"], 2, "reorder: neither batch, none nor window:K"),
        ("5\n", ["--engine", "tree"], 2, "--engine"),
        ("5\n", ["--rank-speed", "gone.txt"], 2, "gone.txt are neither a file nor a run folder"),
        ("5\n", ["--rank-speed", "a.txt"], 2, "a.txt holds 1 speed, --ranks is 8"),
        ("0\n", ["--rank-speed", "a.txt"], 2, "a.txt: lane 0 has speed 0, not from 0.001 to 1000"),
        ("5\n", ["--microbatches", str(10**12)], 4, "--microbatches asks for 1000000000000"),
        ("5\n", ["--microbatches", "65537"], 4, "of at least one sequence each, it has 1 seq"),
        ("5\n", ["--microbatch-multiple", "65537"], 4, "--microbatch-multiple asks for 65537"),
        ("5\n", ["--microbatches", "1" * 5000], 2, "has 5000 digits"),
        ("5\n", ["--num-batches", str(10**17)], 2, "--num-batches asks 1"),
        (
            f"{2**40}\n" * 9,
            [
                "--max-tokens-per-rank",
                "99999",
                "--on-overlong",
                "truncate",
                "--microbatches",
                "9999999",
            ],
            4,
            "of at least one sequence each, it has 8",
        ),
        ("5\n", ["-o", "no/such/folder/x.plan"], 2, "does not exist"),
    ],
)
def test_bad_input_is_one_line_with_its_exit_code_and_nothing_written(
    content: str | bytes | None, options: list[str], code: int, said: str, profile: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    name = "a.txt" if content is None or isinstance(content, str) else "a.idx"
    path = "none.txt" if content is None else write(tmp_path / name, content)
    before = sorted(tmp_path.iterdir())
    command = [
        "plan", path, "--profile", profile, "--ranks", "8", "--max-tokens-per-rank", "8192",
        "--batch-sequences", "8", "-o", "x.plan", *options,
    ]  # fmt: skip
    assert run(command) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert said in err.splitlines()[0]
    assert "Traceback" not in err
    assert sorted(tmp_path.iterdir()) == before


def test_an_output_that_exists_is_kept_unless_forced(
    profile: str, plan_folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["plan", BUNDLED, "--profile", profile, *SHAPE, "--num-batches", "2"]
    before = (Path(plan_folder) / "batches.parquet").stat().st_mtime_ns
    assert run([*command, "-o", plan_folder]) == 2
    assert "exists" in capsys.readouterr().err
    assert (Path(plan_folder) / "batches.parquet").stat().st_mtime_ns == before
    assert run([*command, "-o", plan_folder, "--force"]) == 0
    assert run(["validate", plan_folder]) == 0


def test_force_never_deletes_a_folder_with_other_files(
    profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    command = ["plan", BUNDLED, "--profile", profile, *SHAPE, "-o", str(tmp_path), "--force"]
    assert run(command) == 2
    assert "it holds thesis.tex" in capsys.readouterr().err
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_file_is_never_replaced_by_a_plan_folder(
    profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    precious = tmp_path / "lengths.txt"
    precious.write_text("5\n")
    command = ["plan", str(precious), "--profile", profile, *SHAPE, "-o", str(precious), "--force"]
    assert run(command) == 2
    assert precious.read_text() == "5\n"
    assert "is not a folder that hydraplan wrote" in capsys.readouterr().err
