from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from hydraplan.files.lengths import Lengths
from hydraplan.files.planfile import open_plan, read_batch, write_plan
from hydraplan.invariants import check_plan
from hydraplan.metrics import shares
from hydraplan.model import BatchPlan, Search
from hydraplan.planheader import PlanHeader
from hydraplan.planner.figures import check_figures
from hydraplan.planner.pipeline.one_lane import one_lane
from hydraplan.planner.pipeline.ops_claims import ops_claims
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.planner.plan import plan_batch, prepare
from hydraplan.slots import slot_times
from tests.planner.cases import long_tailed, options, profile


@cache
def planned(pipeline: str = "exact") -> tuple[PlanHeader, BatchPlan]:
    asked = options(
        batch_sequences=12, ranks=2, pp=2, strategy="memory-ffd", microbatches=3,
        max_tokens_per_rank=8192, pipeline=pipeline, microbatch_order="searched",
    )  # fmt: skip
    lengths = Lengths("t", "sequences", long_tailed(12, 5, longest=4000))
    header, batches = prepare(lengths, profile(), asked, 1)
    return header, plan_batch(batches.cost, asked, 0, batches[0])


def claims(**changes: object) -> list[str]:
    """Of the plan, with some fields of its search replaced."""
    header, made = planned()
    slots = slot_times(header.cost_model(), made.sequences.placed(), made.num_microbatches)
    search = replace(made.search, **changes)  # type: ignore[arg-type]
    return list(ops_claims("exact", search, slots, made.schedule))


def test_an_exact_order_says_what_is_proven_and_can_be_checked_and_read(tmp_path: Path) -> None:
    header, made = planned()
    assert made.search.ops_status == "optimal"
    assert 0 < made.search.ops_deterministic_s <= 1.0
    slots = slot_times(header.cost_model(), made.sequences.placed(), made.num_microbatches)
    lane_s = shares(simulate(one_lane(slots), made.schedule))["iteration_s"]
    assert made.search.ops_time_s == pytest.approx(lane_s, rel=1e-12)
    assert 0 <= made.search.ops_gap < 1e-3
    write_plan(tmp_path / "x.plan", header, [made])
    opened = open_plan(tmp_path / "x.plan")
    read = read_batch(opened, 0)
    for name in ("ops_status", "ops_time_s", "ops_bound_s", "ops_deterministic_s"):
        assert getattr(read.search, name) == getattr(made.search, name)
    assert check_plan(opened.header, read) == check_figures(opened.header, read) == []


def test_the_same_batch_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.plan", "b.plan"):
        planned.cache_clear()
        header, made = planned()
        write_plan(tmp_path / name, header, [made])
    first, second = ((tmp_path / n / "batches.parquet").read_bytes() for n in ("a.plan", "b.plan"))
    assert first == second


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ops_status": "best"}, "ops_status is 'best', not optimal or feasible"),
        ({"ops_status": ""}, "ops_status is '', not optimal or feasible"),
        ({"ops_time_s": 1.0}, "ops_time_s is stored as 1, this op order has"),
        ({"ops_time_s": float("nan")}, "ops_time_s is stored as nan, this op order has"),
        ({"ops_bound_s": 1.0}, "ops_bound_s is 1, this op order has"),
        ({"ops_bound_s": 0.0}, "ops_bound_s is 0, this op order has"),
        ({"ops_bound_s": float("nan")}, "ops_bound_s is nan, this op order has"),
        ({"ops_deterministic_s": -1.0}, "ops_deterministic_s is -1, no time"),
        ({"ops_deterministic_s": float("inf")}, "ops_deterministic_s is inf, no time"),
    ],
)
def test_a_claim_that_cannot_be_is_named(changes: dict[str, object], message: str) -> None:
    assert claims() == []
    found = claims(**changes)
    assert len(found) == 1
    assert message in found[0]


def test_optimal_means_that_the_bound_is_reached_but_for_rounding() -> None:
    _, made = planned()
    low_s = made.search.ops_bound_s * 0.9
    found = claims(ops_bound_s=low_s)
    assert len(found) == 1
    assert found[0].startswith("called optimal, but the op order has")
    assert claims(ops_bound_s=low_s, ops_status="feasible") == []


@pytest.mark.parametrize("claim", [{"ops_status": "optimal"}, {"ops_bound_s": 1.0}])
def test_other_schedules_claim_nothing(claim: dict[str, object]) -> None:
    header, made = planned("1f1b")
    assert check_figures(header, made) == []
    claimed: Search = replace(made.search, **claim)  # type: ignore[arg-type]
    found = check_figures(header, replace(made, search=claimed))
    assert len(found) == 1
    assert "belong to schedule exact alone" in found[0]
