"""`export`: plans and runs as traces and as PyTorch's schedules, and what is refused."""

import json
from pathlib import Path

import pytest

from hydraplan.cli.app import run
from hydraplan.files.pytorch_csv import read_csv
from tests.builders import Place
from tests.files.test_chrome_trace import check_trace
from tests.plans import write_test_plan

PLACES = [Place(100), Place(60, first_rank=1, microbatch=1), Place(200, ring_size=2, microbatch=2)]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, capsys):
    """A plan of two batches on 2 x 2 ranks, in which slots without rows occur, and a run of it."""
    monkeypatch.chdir(tmp_path)
    write_test_plan(Path("a.plan"), [PLACES, PLACES[1:]], pp=2, ranks=2)
    assert run(["execute", "a.plan", "--simulate", "--steps", "3", "-o", "a.run"]) == 0
    capsys.readouterr()


def test_a_plan_and_a_run_give_a_sound_trace_with_an_arrow_for_every_message(capsys):
    for source, told in (("a.plan", "plan a.plan, batch 0"), ("a.run", "run a.run, step 2")):
        assert run(["export", source, "--format", "chrome", "-o", f"{source}.json"]) == 0
        out = capsys.readouterr().out
        assert told in out
        assert "mode simulated" in out
        trace = json.loads(Path(f"{source}.json").read_text())
        tracks, arrows = check_trace(trace["traceEvents"])
        assert len(tracks) == 4
        filled = 4  # slots of batch 0 that hold rows, over both lanes
        assert len(arrows) == 2 * filled
        assert trace["otherData"]["mode"] == "simulated"


def test_a_simulated_step_is_drawn_as_its_plan(capsys):
    assert run(["export", "a.plan", "--format", "chrome", "-o", "p.json", "--batch", "1"]) == 0
    assert run(["export", "a.run", "--format", "chrome", "-o", "r.json", "--step", "1"]) == 0
    plan, ran = (json.loads(Path(name).read_text()) for name in ("p.json", "r.json"))
    assert plan["traceEvents"] == ran["traceEvents"]


def test_a_trace_of_more_events_than_viewers_open_is_refused_and_told_how_many_lanes_fit(
    monkeypatch, capsys
):
    args = ["export", "a.plan", "--format", "chrome", "-o", "x.json"]
    assert run(args) == 0
    number = len(json.loads(Path("x.json").read_text())["traceEvents"])
    Path("x.json").unlink()
    capsys.readouterr()
    monkeypatch.setattr("hydraplan.files.chrome_trace.MOST_EVENTS", number - 1)
    assert run(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"error: a trace of {number} events, beyond the {number - 1} that viewers open" in err
    assert "hint: show fewer lanes, as --lanes 0..0" in err
    assert not Path("x.json").exists()
    assert run([*args, "--lanes", "0..0"]) == 0
    shown = json.loads(Path("x.json").read_text())["traceEvents"]
    assert {e["tid"] for e in shown} == {0}
    monkeypatch.setattr("hydraplan.files.chrome_trace.MOST_EVENTS", 5)
    assert run([*args, "--lanes", "1", "--force"]) == 2
    assert "one lane is too many already" in capsys.readouterr().err


def test_a_lane_is_shown_as_rank_of_its_stage():
    assert run(["export", "a.run", "--format", "chrome", "-o", "x.json", "--lanes", "1"]) == 0
    named = [
        e["args"]["name"]
        for e in json.loads(Path("x.json").read_text())["traceEvents"]
        if e["ph"] == "M"
    ]
    assert named == ["stage 0", "lane 1, rank 1", "stage 1", "lane 1, rank 3"]


@pytest.mark.parametrize("messages", [[], ["--messages"]])
def test_the_op_order_comes_out_as_pytorch_csv(messages, capsys):
    for source in ("a.plan", "a.run"):
        args = ["export", source, "--format", "pytorch-csv", "-o", f"{source}.csv", *messages]
        assert run(args) == 0
    first, second = Path("a.plan.csv"), Path("a.run.csv")
    assert first.read_bytes() == second.read_bytes()
    found = read_csv(first)
    assert (found.route, found.num_chunks, found.num_microbatches) == ("loop", 1, 3)
    assert ("0SEND_F0" in first.read_text()) == bool(messages)
    capsys.readouterr()
    assert run(["pipeline", "--schedule", "a.plan.csv", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pp"] == 2


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["a.plan", "--format", "megatron", "-o", "x"], 2, "Megatron-LM takes no op order"),
        (["a.plan", "--format", "svg", "-o", "x"], 2, "svg"),
        (["a.plan", "--format", "chrome", "-o", "x", "--step", "0"], 2, "--step names no part"),
        (["a.run", "--format", "chrome", "-o", "x", "--batch", "0"], 2, "--batch names no part"),
        (["a.plan", "--format", "chrome", "-o", "x", "--batch", "2"], 2, "batch 2 is not in"),
        (["a.run", "--format", "chrome", "-o", "x", "--step", "3"], 2, "step 3 is not in"),
        (["a.plan", "--format", "chrome", "-o", "x", "--messages"], 2, "--messages is of pytorch"),
        (
            ["a.plan", "--format", "pytorch-csv", "-o", "x", "--lanes", "0"],
            2,
            "--lanes is of chrome",
        ),
        *(
            (
                ["a.plan", "--format", "chrome", "-o", "x", "--lanes", text],
                2,
                f"--lanes {text} names",
            )
            for text in ("2", "0..2", "1..0", "0-1", "", "..", "x", "\u0663", "9" * 5000)
        ),
        (["a.plan", "--format", "chrome", "-o", "a.run"], 2, "a.run exists"),
        (["a.plan", "--format", "chrome", "-o", "none/x"], 2, "folder none"),
        (["none", "--format", "chrome", "-o", "x"], 2, "neither a plan nor a run"),
    ],
)
def test_what_cannot_be_exported_is_refused_and_writes_nothing(args, code, said, capsys):
    before = sorted(Path().iterdir())
    assert run(["export", *args]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert sorted(Path().iterdir()) == before


def test_a_run_needs_its_plan_beside_it(capsys):
    Path("a.plan").rename("b.plan")
    assert run(["export", "a.run", "--format", "chrome", "-o", "x"]) == 2
    assert "lies neither beside it nor" in capsys.readouterr().err


def test_defaults_of_the_file_and_the_environment_that_have_no_use_are_no_fault(
    monkeypatch, capsys
):
    """Flags of the same kind are refused: whoever gives one means it."""
    Path("hydraplan.toml").write_text(
        "[export]\nmessages = true\n[execute]\ntimeout = 9\nlearning-rate = 0.1\n"
    )
    monkeypatch.setenv("HYDRAPLAN_PIPELINE_JOINED", "1.5")
    for command in (
        ["export", "a.plan", "--format", "chrome", "-o", "c.json"],
        ["execute", "a.plan", "--simulate"],
        ["pipeline", "--schedule", "1f1b", "--pp", "2", "--microbatches", "3"],
    ):
        assert run(command) == 0, capsys.readouterr().err
    assert run(["export", "a.plan", "--format", "pytorch-csv", "-o", "c.csv"]) == 0
    assert "0SEND_F0" in Path("c.csv").read_text()
    capsys.readouterr()
    for flag in (["--timeout", "9"], ["--learning-rate", "0.1"], ["--data", "x.idx"]):
        assert run(["execute", "a.plan", "--simulate", *flag]) == 2
        error, _, hint = capsys.readouterr().err.splitlines()
        assert error == f"error: {flag[0]} has no use with --simulate, nothing is trained"
        assert hint == f"hint: leave {flag[0]} out"
