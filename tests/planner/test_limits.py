"""What limits a batch: planted causes are named first, and nothing is where nothing is wrong."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hydraplan.cli.app import run
from hydraplan.files.planfile import open_plan, read_batch
from hydraplan.files.profilefile import write_profile
from hydraplan.metrics import shares
from hydraplan.planner.limits import LEAST_SHARE, what_limits
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.slots import slot_times
from tests.planner.cases import profile as analytic

SHAPE = ["--ranks", "8", "--pp", "4", "--max-tokens-per-rank", "16384", "--strategy", "memory-ffd"]


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """Plans rows, and gives the plan with the first screen of `show`: 24 lines."""
    monkeypatch.chdir(tmp_path)
    write_profile(Path("p.parquet"), analytic().header, [])

    def made(rows: list[int], *more: str):
        np.savetxt("rows.txt", rows, "%d")
        batch = ["--batch-sequences", str(len(rows)), "-o", "x.plan", "--force"]
        assert run(["plan", "rows.txt", "--profile", "p.parquet", *SHAPE, *batch, *more]) == 0
        capsys.readouterr()
        assert run(["show", "x.plan"]) == 0
        screen = "\n".join(capsys.readouterr().out.splitlines()[:24])
        plan = open_plan(Path("x.plan"))
        return what_limits(plan.header, read_batch(plan, 0)), screen

    return made


def test_one_overlong_sequence_is_named(planned) -> None:
    rows = [500] * 1_200
    rows[700] = 120_000
    found, screen = planned(rows)
    (named,) = [limit for limit in found if limit.cause == "sequence"]
    assert (named.sequence_id, named.length_tokens, named.degree) == (700, 120_000, 8)
    assert named.share > 0.1
    assert "sequence 700 (120,000 tokens on 8 ranks" in screen


def test_a_sequence_of_half_the_work_is_named_although_it_cannot_be_split_further(planned) -> None:
    rows = [900] * 500
    rows[77] = 120_000
    found, screen = planned(rows, "--strategy", "hydra")
    (named,) = [limit for limit in found if limit.cause == "sequence"]
    assert (named.sequence_id, named.degree) == (77, 8)
    assert named.share > 0.15
    assert "sequence 77 (120,000 tokens on 8 ranks" in screen


def test_one_slow_lane_is_named_with_its_speed(planned, tmp_path: Path) -> None:
    speeds = tmp_path / "speeds.txt"
    np.savetxt(speeds, [1, 1, 1, 1, 1, 0.5, 1, 1])
    found, screen = planned([1000] * 800, "--rank-speed", str(speeds))
    by_cause = {limit.cause: limit for limit in found}
    assert by_cause["lane"].lane == 5
    assert by_cause["lane"].share > 0.3
    assert "lane 5, at speed 0.50" in screen


def test_a_bad_order_of_microbatches_is_named_with_a_better_one(planned) -> None:
    rows = [*[400] * 1_100, *[16_000] * 8, *[400] * 700]
    found, screen = planned(rows, "--microbatch-order", "as-built")
    by_cause = {limit.cause: limit for limit in found}
    assert by_cause["order"].order in ("long-first", "sandwich")
    assert by_cause["order"].share > 0.02
    assert f"order of microbatches, as-built: {by_cause['order'].order} would be faster" in screen


def test_a_plan_of_equal_rows_has_fill_and_sync_and_nothing_to_mend(planned) -> None:
    found, screen = planned([2048] * 512)
    assert {limit.cause for limit in found} <= {"fill", "grad_sync"}
    assert "filling and draining the pipeline" in screen


def test_shares_are_what_the_counterfactual_saves_and_sorted(planned) -> None:
    rows = [500] * 1_200
    rows[700] = 120_000
    found, _ = planned(rows)
    plan = open_plan(Path("x.plan"))
    batch, cost = read_batch(plan, 0), plan.header.cost_model()
    placed = batch.sequences.placed()
    (row,) = np.flatnonzero(placed.sequence_id == 700)
    others = placed.take(np.delete(np.arange(len(placed)), row))

    def iteration_s(slots) -> float:
        return shares(simulate(slots, batch.schedule))["iteration_s"]

    whole = slot_times(cost, placed, batch.num_microbatches)
    spread = slot_times(cost, others, batch.num_microbatches)
    lanes_and_microbatches = spread.op_s.shape[-2] * spread.op_s.shape[-1]
    its_s = (whole.op_s - spread.op_s).sum(axis=(-2, -1)) / lanes_and_microbatches
    spread = replace(spread, op_s=spread.op_s + its_s[..., None, None])
    assert spread.op_s.sum() == pytest.approx(whole.op_s.sum())
    (named,) = [limit for limit in found if limit.cause == "sequence"]
    assert named.share == pytest.approx(1 - iteration_s(spread) / iteration_s(whole))
    all_shares = [limit.share for limit in found]
    assert all_shares == sorted(all_shares, reverse=True)
    assert min(all_shares) >= LEAST_SHARE
    assert len({limit.cause for limit in found}) == len(found)


def test_a_batch_of_one_sequence_is_not_taken_away(planned) -> None:
    found, _ = planned([5000])
    assert "sequence" not in {limit.cause for limit in found}
