"""`pipeline`: what it says, files, limits, and inputs that are wrong."""

import json
import re
from pathlib import Path

import pytest

from hydraplan.cli.app import run
from hydraplan.planner.pipeline.memory import HALF
from hydraplan.planner.pipeline.schedules import SCHEDULES
from hydraplan.planner.planned import PLANNED
from tests.cli.pipeline_command import asked, refused
from tests.planner.test_pytorch_proof import CROSSED, LATE


def test_auto_tries_two_chunks_a_stage_and_says_whose_ops_it_runs(capsys):
    size = ("--schedule", "auto", "--pp", "8", "--microbatches", "24")
    told = json.loads(asked(capsys, *size, "--json"))
    assert (told["chunks"], told["route"], told["same_ops_as"]) == (2, "v", "zb-v")
    assert (told["makespan"], told["peak_memory"]) == (75.5, 8)
    one = json.loads(asked(capsys, *size, "--chunks", "1", "--json"))
    assert (one["chunks"], one["route"], one["makespan"]) == (1, "loop", 79)
    out = asked(capsys, *size)
    assert out.startswith(
        "auto: 8 stages, 24 microbatches, 2 chunks a stage on route v, ops as zb-v, simulated\n"
    )
    few = ("--schedule", "auto", "--pp", "4", "--microbatches", "9", "--comm", "0.1")
    own = asked(capsys, *few, "--backward", "1.2", "--memory-limit", "6", "--chunks", "1")
    assert own.startswith("auto: 4 stages, 9 microbatches, 1 chunk a stage, ops of its own,")


def test_a_policy_says_whose_order_it_took_and_that_its_loops_are_compiled(capsys, monkeypatch):
    asked_of: list[str] = []
    monkeypatch.setattr("hydraplan.planner.compiled.is_cold", lambda n: not asked_of.append(n))
    size = ("--schedule", "policy", "--pp", "2", "--microbatches", "4")
    assert run(["pipeline", *size]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("note: compiling the planner's loops")
    told = json.loads(asked(capsys, *size, "--json"))
    assert out.startswith("policy: 2 stages, 4 microbatches, 1 chunk a stage, ops by zb-h1, sim")
    assert (told["ops_from"], told["same_ops_as"], told["makespan"]) == ("zb-h1", "zb-h1", 13)
    assert run(["pipeline", *size[:1], "portfolio", *size[2:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ops_from"] is None
    assert asked_of == [f"hydraplan.planner.{name}" for name in ("policy", "policy", "pipeline")]
    assert run(["pipeline", *size[:1], "zb-h1", *size[2:]]) == 0
    assert len(asked_of) == 3


def test_where_several_layouts_would_take_minutes_one_is_tried_and_that_is_said(
    capsys, monkeypatch
):
    monkeypatch.setattr("hydraplan.cli.pipeline.MAX_WEIGHED", 100_000)
    assert run(["pipeline", "--schedule", "auto", "--pp", "8", "--microbatches", "24"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("auto: 8 stages, 24 microbatches, 1 chunk a stage, ops as zb-h1,")
    assert "too large to try several layouts, only 1 chunk a stage is" in err


def test_the_text_says_the_figures_and_draws_every_stage_within_80_columns(capsys):
    out = asked(capsys, "--schedule", "zb-h1", "--pp", "4", "--microbatches", "12")
    assert out.startswith("zb-h1: 4 stages, 12 microbatches, 1 chunk a stage, simulated\n")
    for stage in range(4):
        assert f"\n  {stage} F " in out
    figures = ("bubble_rate", "span", "idle", "makespan", "makespan_idle_max", "peak_memory")
    assert all(f"\n{figure} " in out for figure in figures)
    chart = out[out.index("  0 F ") :]
    assert max(map(len, out.splitlines())) <= 80
    assert len(chart.splitlines()) == 4 * 3 + 2
    assert "\x1b" not in out


def test_the_chart_takes_colour_and_says_the_same(capsys, monkeypatch):
    args = ("--schedule", "zb-h1", "--pp", "2", "--microbatches", "4")
    plain = asked(capsys, *args)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = asked(capsys, *args)
    assert "\x1b[3" in coloured
    for code in ("34", "32", "33", "90", "0"):
        coloured = coloured.replace(f"\x1b[{code}m", "")
    assert coloured == plain


@pytest.mark.parametrize("name", [*SCHEDULES, *(n for n in PLANNED if n != "exact")])
@pytest.mark.parametrize(("stages", "count"), [(1, 1), (1, 5), (5, 1), (64, 3)])
def test_any_number_of_stages_and_microbatches_runs(name, stages, count, capsys):
    args = ["--schedule", name, "--pp", str(stages), "--microbatches", str(count)]
    told = json.loads(asked(capsys, *args, "--json"))
    assert told["span"] >= 3.0 * count - 1e-9
    assert 0 <= told["bubble_rate"] < 1
    assert 0 < told["peak_memory"] <= 2 * count


def test_planned_orders_take_chunks_and_keep_to_the_limit(capsys):
    args = ("--pp", "3", "--microbatches", "5", "--memory-limit", "3", "--json")
    for name in ("portfolio", "auto", "exact"):
        told = json.loads(asked(capsys, "--schedule", name, *args))
        assert told["peak_memory"] <= 3
        assert told["bubble_rate"] <= 0.2
    told = json.loads(asked(capsys, "--schedule", "auto", "--chunks", "2", *args))
    assert (told["chunks"], told["peak_memory"] <= 3) == (2, True)


def test_times_that_are_zero_or_huge_give_finite_figures(capsys):
    for times in (
        ["--weight", "0"],
        ["--forward", "0", "--backward", "0"],
        ["--forward", "1e12", "--backward", "1e-300", "--weight", "0", "--comm", "1e12"],
        ["--forward", "1e-12", "--backward", "0", "--weight", "0"],
    ):
        args = ["--schedule", "zb-h2", "--pp", "3", "--microbatches", "4", *times]
        told = json.loads(asked(capsys, *args, "--json"))
        assert all(told[name] is not None for name in ("bubble_rate", "span", "makespan"))
        assert asked(capsys, *args)


SIZE = ("--schedule", "1f1b", "--pp", "4", "--microbatches", "8")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((*SIZE, "--forward", "nan"), "--forward nan is not a number from 0 to 1e+12"),
        ((*SIZE, "--weight", "-1"), "--weight -1.0 is not"),
        ((*SIZE, "--backward", "inf"), "--backward inf is not"),
        ((*SIZE, "--comm", "1e300"), "--comm 1e+300 is not"),
        ((*SIZE, "--joined", "nan"), "--joined nan is not"),
        ((*SIZE, "--joined", "0"), "--joined 0 leaves"),
        ((*SIZE, "--joined", "2"), "--joined 2: 1f1b joins no ops"),
        ((*SIZE, "--forward", "0", "--backward", "0", "--weight", "0"), "are all 0"),
        *(
            (
                ("--schedule", name, *SIZE[2:], "--forward", "5e-324", *no_backward),
                "--forward, --backward and --weight are 5e-324 together, below 1e-12",
            )
            for name in ("zb-h2", "interleaved", "zb-v", "exact", "auto")
            for no_backward in [("--backward", "0", "--weight", "0")]
        ),
        ((*SIZE, "--memory-limit", "0"), "--memory-limit 0.0 is not a number above 0"),
        ((*SIZE, "--memory-limit", "nan"), "--memory-limit nan is not"),
        ((*SIZE, "--backward-frees", "1.5"), "--backward-frees 1.5 is not a share from 0 to 1"),
        ((*SIZE, "--backward-frees", "nan"), "--backward-frees nan is not"),
        ((*SIZE, "--chunks", "2"), "1f1b has 1 chunk a stage, not 2"),
        ((*SIZE[:4], "--microbatches", "0"), "--microbatches"),
        ((*SIZE[:4], "--microbatches", "-3"), "--microbatches"),
        ((*SIZE[:4], "--microbatches", "99999999999999999999"), "beyond 65536"),
        ((*SIZE[:2], "--pp", "65537", "--microbatches", "1"), "beyond 65536"),
        (("--schedule", "interleaved", *SIZE[2:], "--chunks", "99999"), "beyond 65536"),
        (
            ("--schedule", "portfolio", "--pp", "4096", "--microbatches", "16"),
            "4096 stages x 1 chunk x 16 microbatches take minutes to plan, on so many stages at"
            " most 1 microbatch are",
        ),
        (
            ("--schedule", "dualpipe-v", "--pp", "1024", "--microbatches", "8"),
            "at least 2 x 1024 microbatches on 1024 stages, together beyond 131072",
        ),
        (SIZE[:4], "--microbatches is missing"),
        (("--schedule", "1f1b", "--microbatches", "4"), "--pp is missing"),
        (("--schedule", "2f2b", *SIZE[2:]), "unknown schedule '2f2b'"),
        (("--schedule", "none.csv"), "none.csv is not a file"),
        (("--schedule", "", *SIZE[2:]), "unknown schedule ''"),
    ],
)
def test_what_is_no_time_no_size_and_no_schedule_is_refused(args, said, capsys):
    assert said in refused(capsys, 2, *args)


def test_exact_tells_its_status_bound_gap_and_work_as_plans_do(capsys):
    args = ("--schedule", "exact", "--pp", "3", "--microbatches", "5", "--forward", "2")
    told = json.loads(asked(capsys, *args, "--json"))
    assert told["ops_status"] == "optimal"
    assert told["ops_bound"] == pytest.approx(told["makespan"], rel=1e-3)
    assert told["ops_gap"] == pytest.approx(told["makespan"] / told["ops_bound"] - 1, abs=1e-9)
    assert 0 < told["ops_deterministic_s"] < 10
    text = asked(capsys, *args)
    assert f"op order optimal: makespan {told['makespan']:g}, bound " in text
    assert " deterministic seconds (no op order within the limit is below the bound)" in text
    other = json.loads(asked(capsys, *SIZE, "--json"))
    proofs = ("ops_status", "ops_bound", "ops_gap", "ops_deterministic_s")
    assert [other[name] for name in proofs] == [None] * 4
    assert "op order" not in asked(capsys, *SIZE)


def test_what_a_stage_may_hold_stands_beside_the_peak(capsys):
    assert "\npeak_memory: allowed are at most 4\n" in asked(
        capsys, "--schedule", "auto", *SIZE[2:]
    )
    assert "allowed" not in asked(capsys, *SIZE)


def test_a_limit_that_the_schedule_does_not_keep_is_infeasible(capsys):
    err = refused(capsys, 4, *SIZE, "--memory-limit", "3.5")
    assert "use --schedule auto, which orders its ops within one" in err
    assert err.startswith("error: 1f1b holds 4 microbatch activations on one stage")
    assert asked(capsys, *SIZE, "--memory-limit", "4")
    err = refused(capsys, 4, "--schedule", "zb-1p", *SIZE[2:], "--memory-limit", "0.5")
    assert "microbatch 0 alone" in err


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zb-v", "interleaved", "dualpipe-v"])
def test_a_schedule_written_as_csv_gives_the_same_figures_when_it_is_read(
    name, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    args = ["--schedule", name, "--pp", "3", "--microbatches", "6", "--weight", "0.7"]
    told = json.loads(asked(capsys, *args, "-o", "x.csv", "--json"))
    bytes_then = Path("x.csv").read_bytes()
    args = ["--schedule", "x.csv", "--weight", "0.7"]
    again = json.loads(asked(capsys, *args, "-o", "y.csv", "--json"))
    assert again | {"schedule": name} == told
    assert Path("y.csv").read_bytes() == bytes_then
    assert "x.csv exists" in refused(capsys, 2, *args, "-o", "x.csv")
    assert "--pp 4, but x.csv holds 3" in refused(capsys, 2, *args, "--pp", "4")
    assert asked(capsys, *args, "--pp", "3", "--microbatches", "6", "-o", "x.csv", "--force")


def test_two_models_on_a_stage_have_no_csv(tmp_path, capsys):
    args = ("--schedule", "dualpipe", "--pp", "4", "--microbatches", "8")
    err = refused(capsys, 2, *args, "-o", str(tmp_path / "x.csv"))
    assert "two copies of the model" in err
    assert not list(tmp_path.iterdir())


def test_a_file_whose_rows_wait_for_each_other_is_named(tmp_path, capsys):
    path = tmp_path / "x.csv"
    path.write_text("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n")
    err = refused(capsys, 4, "--schedule", str(path))
    assert "ranks wait for each other in a circle" in err
    assert "stage 1 (rank 1) sends the gradients of microbatch 0 to stage 0 only after" in err
    assert "\\n" not in err


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (LATE, 4, "neither gloo nor NCCL gets through these sends and receives; ranks wait"),
        (CROSSED, 4, "NCCL does not get through, though gloo does, these sends and receives"),
        (CROSSED, 4, "row 1 sends the activations of microbatch 1 to row 2 (0SEND_F1, column 5)"),
        (
            CROSSED.replace("1RECV_F0,1F0,1B0,1RECV_F1", "1RECV_F1,1RECV_F0,1F0,1B0"),
            2,
            "row 2, column 1: 1RECV_F1 (activations received of microbatch 1, stage 1) takes what",
        ),
    ],
)
def test_a_file_whose_own_sends_and_receives_hang_is_refused_and_nothing_written(
    text, code, said, tmp_path, capsys
):
    path = tmp_path / "x.csv"
    path.write_text(text)
    err = refused(capsys, code, "--schedule", str(path), "-o", str(tmp_path / "y.csv"))
    assert said in err
    assert "proven" not in err
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_said_to_be_proven_if_it_names_its_messages(tmp_path, capsys):
    path = tmp_path / "x.csv"
    path.write_text(CROSSED.replace("0RECV_B0,0SEND_F1", "0SEND_F1,0RECV_B0"))
    assert run(["pipeline", "--schedule", str(path), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["makespan"] == 9.0
    assert err.endswith("its sends and receives are proven free of deadlock on gloo and NCCL\n")
    path.write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    assert run(["pipeline", "--schedule", str(path), "--json"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "limit"), [("zb-1p", 4.0), ("zb-2p", 8.0), ("auto", 4.0), ("zb-h2", None)]
)
def test_what_limit_an_order_was_planned_under_is_told(name, limit, capsys):
    told = json.loads(asked(capsys, "--schedule", name, *SIZE[2:], "--json"))
    assert told["memory_limit"] == limit


def test_b_frees_half_unless_told_otherwise(capsys):
    told = json.loads(asked(capsys, *SIZE, "--json"))
    assert told["backward_frees"] == HALF == 0.5


def test_a_fault_in_a_file_is_told_with_row_and_column(tmp_path, capsys):
    path = tmp_path / "x.csv"
    path.write_text("0F0,0B0\n1F0,1B0x\n")
    err = refused(capsys, 2, "--schedule", str(path))
    assert "row 2, column 2: '1B0x' is not an action" in err


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["1f1b", "zb-h2", "zb-v"])
def test_as_many_stages_as_are_taken_run_and_are_not_all_drawn(name, capsys):
    pp = {"1f1b": "65536", "zb-h2": "65536", "zb-v": "32768"}[name]
    assert run(["pipeline", "--schedule", name, "--pp", pp, "--microbatches", "1"]) == 0
    text = capsys.readouterr().out
    assert f"drawn are 64 of {pp} stages" in text
    assert text.count("\n") < 250


def test_an_order_whose_losses_pytorch_mixes_up_is_noted_once(tmp_path, capsys):
    path = tmp_path / "x.csv"
    path.write_text("0F1,0B1,0F0,0B0\n1F1,1B1,1F0,1B0\n")
    assert run(["pipeline", "--schedule", str(path), "-o", str(tmp_path / "y.csv")]) == 0
    assert capsys.readouterr().err == (
        "PyTorch takes the losses of its last stage in the order of their forwards, of which"
        " number 0 is microbatch 1 here: its runtime would mix them up\n"
    )


GUIDE = (Path(__file__).parents[2] / "docs" / "schedules.md").read_text()
ADVICE = re.findall(
    r"^\| .* \| `([\w-]+)` \| `(--schedule .*?)` \| ([\d.]+) \| ([\d.]+) \|$", GUIDE, re.MULTILINE
)


def test_the_guide_to_schedules_has_rows_that_can_be_run():
    assert len(ADVICE) >= 8
    readme = Path(__file__).parents[2] / "README.md"
    assert "docs/schedules.md#which-one-to-take" in readme.read_text()


@pytest.mark.parametrize(("name", "options", "makespan", "holds"), ADVICE)
def test_what_the_guide_to_schedules_says_comes_out(name, options, makespan, holds, capsys):
    told = json.loads(asked(capsys, *options.split(), "--json"))
    assert (told["schedule"], told["makespan"]) == (name, float(makespan))
    assert told["peak_memory"] == float(holds)


def test_the_heuristic_may_lose_to_a_static_schedule_and_auto_does_not(capsys):
    args = (
        "--pp",
        "8",
        "--microbatches",
        "8",
        "--forward",
        "2",
        "--backward",
        "2",
        "--weight",
        "3",
    )
    ends = {
        name: json.loads(asked(capsys, "--schedule", name, *args, "--json"))["makespan"]
        for name in ("zb-1p", "zb-h1", "auto")
    }
    assert (ends["zb-1p"], ends["zb-h1"]) == (76, 70)
    assert ends["auto"] <= 70
    assert "`zb-1p` ends at 76, ZB-H1 at 70" in GUIDE
