"""Costs learnt from runs whose ops took what other costs say: no worker, all numbers made up."""

import json
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from hydraplan.cli.app import run
from hydraplan.costfit import CostFit
from hydraplan.errors import InputError
from hydraplan.executor.run_costs import left_note, run_costs
from hydraplan.files.decisionsfile import Change
from hydraplan.files.planfile import open_plan, read_batch
from hydraplan.files.profilefile import read_profile, write_profile
from hydraplan.files.runfile import open_run
from hydraplan.migration import HeadShares, Moves, RowMove
from hydraplan.profiler.left_profile import left_profile, parts
from hydraplan.profiler.refit import Refit, refit
from hydraplan.profiler.run_ops import _used
from tests.builders import Place
from tests.planner.cases import mix
from tests.planner.cases import profile as analytic
from tests.plans import write_test_plan
from tests.profiler.made_run import attention, measured_run, off

TRUTH = analytic().header.fit
SHAPE = ["--ranks", "4", "--batch-sequences", "128", "--max-tokens-per-rank"]
SMALL = [*SHAPE, "65536"]
TWO_STAGES = [*SHAPE, "131072", "--pp", "2", "--microbatches", "4"]


def planned(
    folder: Path, name: str, fit: CostFit, shape: list[str] = SMALL, longest: str = "32K"
) -> Path:
    """A plan of long-tailed lengths by such costs."""
    np.savetxt(folder / "lengths.txt", mix(longest, 128, 1), "%d")
    profile = folder / f"{name}.profile.parquet"
    write_profile(profile, analytic().header.model_copy(update={"fit": fit}), [])
    asked = [str(folder / "lengths.txt"), "--profile", str(profile), *shape]
    assert run(["plan", *asked, "-o", str(folder / f"{name}.plan")]) == 0
    return folder / f"{name}.plan"


def learned(run_path: Path, plan: Path) -> Refit:
    found = run_costs(open_run(run_path), plan)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan by costs that have half the attention."""
    folder = tmp_path_factory.mktemp("wrong")
    return planned(folder, "wrong", off(TRUTH, attention(0.5)), TWO_STAGES, "128K")


def ratio(found: Refit, name: str) -> float:
    return next(part.beside for part in parts(found) if part.name == name)


@pytest.mark.parametrize(
    ("factor", "shape", "longest", "measured"),
    [
        (0.5, SMALL, "32K", 1.12),
        (1.5, SMALL, "32K", 1.093),
        (0.5, TWO_STAGES, "128K", 1.166),
    ],
)
def test_a_wrong_profile_shows_and_the_plan_by_what_its_run_taught_is_balanced(
    factor: float, shape: list[str], longest: str, measured: float, tmp_path: Path
) -> None:
    plan = planned(tmp_path, "wrong", off(TRUTH, attention(factor)), shape, longest)
    found = learned(measured_run(tmp_path / "wrong.run", plan, TRUTH), plan)
    assert found.rung == "part"
    left = left_profile(found)
    assert left is not None
    assert ratio(found, "attention") == pytest.approx(1 / factor, rel=0.08)
    spread = found.slot_imbalance(found.ops.taken_s)
    assert found.slot_imbalance(found.old_s) < 1.01
    assert spread == pytest.approx(measured, abs=0.01)
    assert found.slot_imbalance(found.new_s) == pytest.approx(measured, abs=0.03)
    again = planned(tmp_path, "again", found.new, shape, longest)
    mended = learned(measured_run(tmp_path / "again.run", again, TRUTH, seed=1), again)
    assert left_profile(mended) is None
    assert mended.slot_imbalance(mended.ops.taken_s) - 1 < 0.4 * (spread - 1)


def test_costs_that_hold_give_no_warning_and_a_slower_machine_alone_is_one_multiplier(
    tmp_path: Path,
) -> None:
    plan = planned(tmp_path, "right", TRUTH)
    for factor, said in ((1.0, ""), (1.3, ""), (2.0, "all alike, beyond 50%")):
        truth = off(TRUTH, lambda term, factor=factor: factor)
        found = learned(measured_run(tmp_path / f"{factor}.run", plan, truth), plan)
        assert found.rung == "one"
        assert found.times == pytest.approx(factor, rel=0.06)
        note = left_note(found, tmp_path / "x.run")
        assert (said in note) if said else note == ""


def test_terms_are_told_one_by_one_where_runs_tell_them(wrong: Path, tmp_path: Path) -> None:
    """Backward of attention is off by another factor than its forward and than linears."""
    truth = off(TRUTH, lambda t: 1.6 if t.field == "attention_backward" else 1.0)
    found = learned(measured_run(tmp_path / "a.run", wrong, truth, sigma=0.01), wrong)
    assert found.rung == "term"
    told = {part.name: part.times for part in parts(found)}
    assert told["attention_backward"] == pytest.approx(3.2, rel=0.08)
    assert told["attention_forward"] == pytest.approx(2.0, rel=0.08)


def test_if_all_sequences_are_alike_one_multiplier_is_all_that_is_told(tmp_path: Path) -> None:
    batch = [Place(256, lane, 1, 1, m) for m in range(6) for lane in range(2)]
    plan = write_test_plan(tmp_path / "a.plan", [batch], pp=1, ranks=2)
    truth = off(open_plan(plan).header.fit, attention(2.0))
    found = learned(measured_run(tmp_path / "a.run", plan, truth), plan)
    assert found.rung in ("one", "pass")
    taken_s, fitted_s = found.ops.taken_s, found.new_s
    assert np.median(np.abs(fitted_s / taken_s - 1)) < 0.03


def test_a_lane_without_a_sequence_counts_as_empty_wherever_it_is(tmp_path: Path) -> None:
    for used in (0, 2):
        batch = [Place(256, used, 1, 1, m) for m in range(3)]
        plan = write_test_plan(tmp_path / f"{used}.plan", [batch], pp=1, ranks=3)
        fit = open_plan(plan).header.fit
        found = learned(measured_run(tmp_path / f"{used}.run", plan, fit, sigma=0.0), plan)
        assert found.slot_imbalance(found.old_s) == pytest.approx(3.0)


def test_a_slow_rank_is_a_device_and_no_cost(wrong: Path, tmp_path: Path) -> None:
    def slow(stage: int, lane: int, step: int) -> float:
        return 1.5 if (stage, lane) == (1, 2) else 1.0

    found = learned(measured_run(tmp_path / "a.run", wrong, TRUTH, slow=slow), wrong)
    assert list(found.slow) == [(1, 2)]
    assert found.slow[1, 2] == pytest.approx(1.5, rel=0.03)
    assert ratio(found, "attention") == pytest.approx(2.0, rel=0.05)


def test_a_rank_that_is_slow_on_purpose_is_divided_out(wrong: Path, tmp_path: Path) -> None:
    def slow(stage: int, lane: int, step: int) -> float:
        return 3.0 if (stage, lane) == (0, 1) and 2 <= step <= 3 else 1.0

    path = measured_run(tmp_path / "a.run", wrong, TRUTH, slow=slow, injected=("0.1=3@2-3",))
    found = learned(path, wrong)
    assert found.slow == {}
    assert ratio(found, "attention") == pytest.approx(2.0, rel=0.05)


def test_the_first_step_is_left_out_and_the_last_16_count(wrong: Path, tmp_path: Path) -> None:
    """The first step takes twice as long, and all before the last 16 five times."""
    path = measured_run(
        tmp_path / "a.run", wrong, TRUTH, steps=20, slow=lambda s, r, step: 5.0 if step < 4 else 1.0
    )
    found = learned(path, wrong)
    assert found.ops.steps == 16
    assert found.times @ found.ops.term_s == pytest.approx(found.ops.taken_s, rel=0.12)
    attention_s = found.ops.term_s[:4].sum()
    assert (found.times[:4, None] * found.ops.term_s[:4]).sum() == pytest.approx(
        2 * attention_s, rel=0.1
    )


def test_slots_whose_work_moved_and_on_a_gpu_those_that_share_a_sequence_tell_nothing(
    tmp_path: Path,
) -> None:
    batch = [Place(64, lane, 1, 1, 0) for lane in range(4)] + [Place(64, 0, 2, 1, 1)]
    plan = open_plan(write_test_plan(tmp_path / "a.plan", [batch], pp=1, ranks=4))
    read, cost = read_batch(plan, 0), plan.header.cost_model()
    took = tuple(np.ones((len(ops), 4)) for ops in read.schedule)

    def used(change: Change, device: str = "cpu") -> tuple[dict[int, set[int]], bool]:
        (here,), is_whole = _used(cost, read, change, took, device)
        places = [(read.schedule[0][i].microbatch, lane) for i, lane in np.argwhere(here).tolist()]
        return {m: {lane for at, lane in places if at == m} for m in (0, 1)}, is_whole

    assert used(Change()) == ({0: {0, 1, 2, 3}, 1: {0, 1}}, True)
    assert used(Change(), "cuda") == ({0: {0, 1, 2, 3}, 1: set()}, False)
    rows = Moves(rows=(RowMove(0, 0, 1, 3, 16),))
    assert used(Change(moves=rows)) == ({0: {0, 2}, 1: {0, 1}}, False)
    shares = Moves(shares=(HeadShares(0, 1, 0, 2, 1, ((6, 2),)),))
    assert used(Change(moves=shares)) == ({0: {0, 1, 2, 3}, 1: set()}, False)


@pytest.mark.parametrize(
    ("header", "steps", "said"),
    [
        ({"mode": "simulated"}, 3, "was simulated"),
        ({"paced": True}, 3, "was paced: its parts took as long as the plan's costs say"),
        ({"dtype": "float64"}, 3, "computed in float64, the plan's costs are of bfloat16"),
        ({}, 0, "has 0 finished steps, at least 2 are needed"),
        ({}, 1, "has 1 finished step, at least 2 are needed"),
    ],
)
def test_a_run_that_tells_nothing_of_costs_is_refused_and_execute_says_nothing(
    header: dict[str, object], steps: int, said: str, wrong: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = measured_run(tmp_path / "a.run", wrong, TRUTH, steps=steps, **header)
    assert run_costs(open_run(path), wrong) is None
    output = tmp_path / "new.profile.parquet"
    assert run(["profile", "--refit", str(path), "-o", str(output)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert not output.exists()


def test_the_command_writes_a_profile_that_says_where_it_is_from_and_plan_takes_it(
    wrong: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = measured_run(wrong.parent / "told.run", wrong, TRUTH)
    output = tmp_path / "new.profile.parquet"
    for asked in (
        ["--refit", str(path), "-o", str(output)],
        ["-o", str(output), f"--refit={path}"],
    ):
        output.unlink(missing_ok=True)
        capsys.readouterr()
        assert run(["profile", *asked]) == 0
        out, err = capsys.readouterr()
        assert "attention_forward" in out
        assert "slot_imbalance of the plan" in out
        assert max(map(len, out.split("Error of ops")[0].splitlines()[:-2])) <= 80
        assert err == f"wrote {output}\n"
    header = read_profile(output).header
    assert header.mode == "analytic"
    assert header.model == analytic().header.model
    assert "refitted from told.run, 3 steps: learned attention, linear; links kept" in header.device
    assert header.fit.node_p2p == TRUTH.node_p2p
    assert header.fit.attention_forward.flops_per_s == pytest.approx(
        TRUTH.attention_forward.flops_per_s, rel=0.06
    )
    again = [str(wrong.parent / "lengths.txt"), "--profile", str(output), *TWO_STAGES]
    assert run(["plan", *again, "-o", str(tmp_path / "a.plan")]) == 0


def test_json_is_one_object_with_terms_ops_and_slots(
    wrong: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = measured_run(wrong.parent / "json.run", wrong, TRUTH)
    output = tmp_path / "new.profile.parquet"
    assert run(["profile", "refit", str(path), "-o", str(output), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert next(iter(told)) == "schema_version"
    assert told["costs"]["multipliers"] == "part"
    assert told["held_out_error"]["part"] < 0.5 * told["held_out_error"]["one"]
    by_name = {term["name"]: term for term in told["terms"]}
    work = by_name["attention_forward.work"]
    assert work["times"] == pytest.approx(work["old"] / work["new"])
    assert sum(term["share"] for term in told["terms"]) == pytest.approx(1.0)
    all_ops = told["costs"]["ops"][-1]
    assert all_ops["ops_of"] == "all"
    assert all_ops["refitted_error_p90"] < 0.5 * all_ops["error_p90"]
    assert told["costs_left_profile"]["part"] in ("attention", "linear")
    assert CostFit.model_validate(told["fit"]) == read_profile(output).header.fit


def test_what_stands_at_the_output_stays_unless_forced(
    wrong: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = measured_run(wrong.parent / "force.run", wrong, TRUTH)
    output = tmp_path / "new.profile.parquet"
    output.write_text("mine")
    assert run(["profile", "--refit", str(path), "-o", str(output)]) == 2
    assert "add --force" in capsys.readouterr().err
    assert output.read_text() == "mine"
    assert run(["profile", "--refit", str(path), "-o", str(output), "--force"]) == 0


def test_damaged_files_and_another_plan_are_exit_2_and_name_the_file(
    wrong: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = str(tmp_path / "new.profile.parquet")

    def refused(path: Path) -> str:
        assert run(["profile", "--refit", str(path), "-o", output]) == 2
        return capsys.readouterr().err.splitlines()[0]

    path = measured_run(wrong.parent / "damaged.run", wrong, TRUTH)
    whole = (path / "ops.parquet").read_bytes()
    table = pq.read_table(path / "ops.parquet")
    (path / "ops.parquet").write_bytes(whole[: len(whole) // 2])
    assert "ops.parquet" in refused(path)
    pq.write_table(table.filter(pc.not_equal(table.column("lane"), 1)), path / "ops.parquet")
    assert "ops.parquet: step 1, stage 0 lacks rows of some lane" in refused(path)
    alone = measured_run(tmp_path / "alone.run", wrong, TRUTH)
    assert "the plan wrong.plan of run" in refused(alone)
    assert "is not a folder" in refused(tmp_path / "none.run")


def test_usage_without_a_run_is_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    for asked in (["--refit"], ["--refit="], ["refit"], ["--refit", "x.run"]):
        assert run(["profile", *asked]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert "Traceback" not in err


def test_nothing_is_left_where_no_op_had_rows(tmp_path: Path) -> None:
    batch = [Place(64, 0, 1, 1, 0), Place(64, 0, 1, 1, 1)]
    plan = write_test_plan(tmp_path / "a.plan", [batch], pp=1, ranks=2)
    fit = open_plan(plan).header.fit
    path = measured_run(
        tmp_path / "a.run", plan, fit, slow=lambda s, r, step: float(r)
    )  # lane 0 took nothing
    opened = open_run(path)
    with pytest.raises(InputError, match="has no op that tells costs"):
        refit(opened, open_plan(plan), lambda stage, lane, step: 1.0)


@pytest.mark.parametrize("seconds", [9e11, 1e-6, 5e-324])
def test_ops_far_from_all_costs_end_in_a_profile_or_in_words(
    tmp_path: Path, seconds: float, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = write_test_plan(tmp_path / "a.plan", [[Place(40), Place(33, 1)]], pp=1, ranks=2)
    path = measured_run(tmp_path / "a.run", plan, open_plan(plan).header.fit)
    table = pq.read_table(path / "ops.parquet")
    start_s = table.column("start_s").to_numpy()
    for name, values in (("busy_s", np.full(len(start_s), seconds)), ("end_s", start_s + seconds)):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(name), [values])
    pq.write_table(table, path / "ops.parquet", row_group_size=len(start_s) // 4)
    output = tmp_path / "n.profile.parquet"
    code = run(["profile", "--refit", str(path), "-o", str(output)])
    out, err = capsys.readouterr()
    if seconds < 1e-300:  # no clock tells that from nothing
        assert code == 2
        assert "has no op that tells costs" in err
    else:
        assert code == 0, err
        assert "nan" not in out
        read_profile(output)


def test_no_damage_of_a_runs_files_ends_otherwise_than_with_a_line_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = [Place(40), Place(33, 1), Place(50, 0, 2, 1, 1), Place(16, 0, 1, 1, 2)]
    plan = write_test_plan(tmp_path / "a.plan", [batch], pp=2, ranks=2)
    path = measured_run(tmp_path / "a.run", plan, open_plan(plan).header.fit)
    asked = ["--refit", str(path), "-o", str(tmp_path / "n.profile.parquet"), "--force"]
    rng = np.random.default_rng(0)
    for name in ("ops", "steps", "decisions"):
        file = path / f"{name}.parquet"
        whole = file.read_bytes()
        for _ in range(15):
            damaged = bytearray(whole)
            for place in rng.integers(0, len(whole), 3).tolist():
                damaged[place] ^= int(rng.integers(1, 256))
            file.write_bytes(damaged[: rng.integers(0, 2 * len(whole))])
            code, err = run(["profile", *asked]), capsys.readouterr().err
            assert code in (0, 2), err
            assert code == 0 or str(path) in err.splitlines()[0]
        file.write_bytes(whole)
    assert run(["profile", *asked]) == 0
