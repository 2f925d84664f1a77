"""`validate` of a plan in which a row was changed: which rule, the first rows, how many."""

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hydraplan.cli.app import run
from hydraplan.files.profilefile import write_profile
from tests.builders import Place
from tests.planner.cases import long_tailed
from tests.planner.cases import profile as analytic
from tests.plans import write_test_plan


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Ten rows of one length on one lane, in one microbatch: orders count up with the rows."""
    monkeypatch.chdir(tmp_path)
    write_profile(Path("p.parquet"), analytic().header, [])
    np.savetxt("lengths.txt", [100] * 10, "%d")
    shape = ["--ranks", "1", "--max-tokens-per-rank", "4096", "--microbatches", "1"]
    inputs = ["lengths.txt", "--profile", "p.parquet", "--strategy", "memory-ffd"]
    assert run(["plan", *inputs, *shape, "--batch-sequences", "10", "-o", "a.plan"]) == 0
    return "a.plan"


def change(name: str, column: str, row: int, value: object) -> None:
    path = Path("a.plan") / name
    table = pq.read_table(path)
    values = table.column(column).to_pylist()
    values[row] = value
    field = table.schema.field(column)
    index = table.schema.get_field_index(column)
    changed = table.set_column(index, field, pa.array(values, field.type))
    pq.write_table(changed, "new.parquet", row_group_size=max(1, table.num_rows))
    os.replace("new.parquet", path)


@pytest.mark.parametrize("speeds", [[0.05, 1.0], [1.0, 0.05]])
def test_a_plan_of_few_rows_on_a_very_slow_lane_is_valid(
    speeds: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_profile(Path("p.parquet"), analytic().header, [])
    np.savetxt("lengths.txt", [3, 3, 200], "%d")
    np.savetxt("speeds.txt", speeds)
    shape = ["--ranks", "2", "--pp", "4", "--max-tokens-per-rank", "8192", "--batch-sequences", "3"]
    inputs = ["lengths.txt", "--profile", "p.parquet", "--rank-speed", "speeds.txt"]
    assert run(["plan", *inputs, *shape, "-o", "a.plan"]) == 0
    assert run(["validate", "a.plan"]) == 0


def test_rows_that_break_one_rule_stand_together_and_are_counted(
    plan: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for row in range(10):
        change("sequences.parquet", "order", row, 9 - row)
    capsys.readouterr()
    assert run(["validate", plan]) == 1
    out, err = capsys.readouterr()
    first = "batch 0: sequence 0 has order 9 in microbatch 0, the global order gives 0"
    assert out.splitlines() == [
        "order: broken 10 times",
        f"  {first}",
        "  batch 0: sequence 1 has order 8 in microbatch 0, the global order gives 1",
        "  batch 0: sequence 2 has order 7 in microbatch 0, the global order gives 2",
        "  and 7 more",
    ]
    assert err.splitlines() == [
        f"error: a.plan breaks order 10 times; the first: {first}",
        "",
        "hint: its files were changed or damaged after planning; make the plan again",
    ]


def test_every_broken_rule_is_counted_by_itself(
    plan: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change("sequences.parquet", "order", 0, 5)
    change("schedule.parquet", "op", 1, "F")
    capsys.readouterr()
    assert run(["validate", plan, "--json"]) == 1
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["rules"] == {"order": 1, "schedule": 2}
    assert len(found["broken"]) == found["num_broken"] == 3
    assert "breaks order, schedule 3 times; the first: batch 0: sequence 0 has order 5" in err


def test_a_wrong_figure_is_named_with_both_values(
    plan: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change("batches.parquet", "slot_imbalance", 0, 2.0)
    capsys.readouterr()
    assert run(["validate", plan]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "figures: broken once",
        "  batch 0: slot_imbalance is stored as 2, this plan has 1",
    ]
    assert "breaks figures once; the first: batch 0: slot_imbalance" in err


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("load_target_s", 1.0, "load_target_s is 1, "),
        ("theta", 0.3, "theta is 0.3 with eta "),
        ("eta", 0.07, "with eta 0.07, not 0.5/0.25/0.125 with 0.03/0.05/0.1"),
        ("taper", 0.15, "a load-driven plan was found at eta, load_target_s, taper, theta, not"),
        ("memory_s", 99.0, "memory_s is stored as 99, this batch has"),
        ("num_candidates", 10_000, "num_candidates is 10000, hydra tries at most"),
        ("window_max", 9_999, "window_max is stored as 9999, this plan has"),
    ],
)
def test_a_search_that_cannot_have_been_is_told_in_words(
    column: str, value: float, said: str, plan: str, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savetxt("mixed.txt", long_tailed(60, 3, longest=30_000), "%d")
    inputs = ["mixed.txt", "--profile", "p.parquet", "--reorder", "none", "--force", "--pp", "2"]
    shape = ["--ranks", "8", "--max-tokens-per-rank", "4096", "--batch-sequences", "60"]
    assert run(["plan", *inputs, *shape, "-o", plan]) == 0
    assert run(["validate", plan]) == 0
    change("batches.parquet", column, 0, value)
    capsys.readouterr()
    assert run(["validate", plan]) == 1
    out, err = capsys.readouterr()
    assert said in out
    assert err.startswith("error: a.plan breaks figures ")


def test_an_order_of_ops_that_waits_for_itself_is_told_rank_by_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stage 0 wants the gradients of microbatch 1 before stage 1 gets what it needs before."""
    monkeypatch.chdir(tmp_path)
    places = [Place(100, 0, 2, 1, microbatch) for microbatch in range(2)]
    write_test_plan(Path("a.plan"), [places], pp=2, ranks=2)
    for position, microbatch in enumerate([1, 1, 0, 0]):
        change("schedule.parquet", "op", position, ["F", "BW"][position % 2])
        change("schedule.parquet", "microbatch", position, microbatch)
    assert run(["validate", "a.plan"]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "deadlock: broken once",
        "  batch 0: no transport gets through this order of ops; ranks wait for each other in a"
        " circle (tagged: non-blocking with tags, as gloo):",
        "    stage 1 (ranks 2..3) sends the gradients of microbatch 1 to stage 0"
        " only after it has received the activations of microbatch 0 from stage 0",
        "    stage 0 (ranks 0..1) sends the activations of microbatch 0 to stage 1"
        " only after it has received the gradients of microbatch 1 from stage 1",
    ]
    circle = (
        "no transport gets through this"
        " order of ops; ranks wait for each other in a circle (tagged: non-blocking with tags, as"
        " gloo): stage 1 (ranks 2..3) sends the gradients of microbatch 1 to stage 0"
        " only after it has received the activations of microbatch 0 from stage 0;"
        " stage 0 (ranks 0..1) sends the activations of microbatch 0 to stage 1"
        " only after it has received the gradients of microbatch 1 from stage 1"
    )
    said = f"error: a.plan breaks deadlock once; the first: batch 0: {circle}"
    assert err.splitlines()[0] == said
    for command in (
        ["execute", "a.plan", "--simulate", "-o", "a.run"],
        ["execute", "a.plan"],
        ["export", "a.plan", "--format", "chrome", "-o", "a.json"],
        ["export", "a.plan", "--format", "pytorch-csv", "-o", "a.csv"],
        ["show", "a.plan", "--view", "gantt"],
        ["show", "a.plan", "--view", "summary"],
        ["show", "a.plan", "--json"],
    ):
        assert run(command) == 1
        assert capsys.readouterr().err == (
            f"error: a.plan, batch 0: {circle}\n\n"
            "hint: change the order of one of these ops, or make the plan again\n"
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.plan"]
    assert run(["validate", "a.plan", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["rules"] == {"deadlock": 1}
    assert found["num_broken"] == len(found["broken"]) == 1


def test_another_legal_order_of_ops_is_noted_where_it_runs_and_refused_by_the_check(
    plan: str, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savetxt("lengths.txt", [100, 200, 400, 800], "%d")
    shape = ["--ranks", "1", "--max-tokens-per-rank", "800", "--microbatches", "4"]
    inputs = ["lengths.txt", "--profile", "p.parquet", "--pipeline", "gpipe", "--force"]
    assert run(["plan", *inputs, *shape, "--batch-sequences", "4", "-o", plan]) == 0
    capsys.readouterr()
    assert run(["execute", plan, "--simulate"]) == 0
    assert capsys.readouterr().err == ""
    change("schedule.parquet", "microbatch", 6, 3)
    change("schedule.parquet", "microbatch", 7, 2)
    noted = (
        "note: a.plan, batch 0: its predicted times are not those of its op order, so its figures"
        " do not hold; see hydraplan validate a.plan\n"
    )
    for command in (
        ["execute", plan, "--simulate"],
        ["export", plan, "--format", "chrome", "-o", "a.json"],
        ["show", plan, "--view", "gantt"],
    ):
        assert run(command) == 0
        assert capsys.readouterr().err == noted
    assert run(["validate", plan]) == 1
    assert "predicted_start_s of stage 0 is not when its ops start" in capsys.readouterr().out


def test_a_valid_plan_says_on_which_transports_it_was_proven(
    plan: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(["validate", plan]) == 0
    out = capsys.readouterr().out
    assert out.endswith(", figures; no deadlock on tagged, fifo, ordered, blocking transports\n")


def test_one_degree_for_all_never_stands_where_the_fastest_load_driven_plan_is_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was compared with the balanced plan alone, and `validate` refused what came out."""
    monkeypatch.chdir(tmp_path)
    write_profile(Path("p.parquet"), analytic().header, [])
    np.savetxt("lengths.txt", [3, 17, 5000], "%d")
    shape = [
        "--ranks",
        "2",
        "--pp",
        "4",
        "--max-tokens-per-rank",
        "8192",
        "--recompute",
        "selective",
    ]
    asked = ["lengths.txt", "--profile", "p.parquet", *shape, "--batch-sequences", "3"]
    assert run(["plan", *asked, "-o", "a.plan"]) == 0
    assert run(["validate", "a.plan"]) == 0, capsys.readouterr().err
