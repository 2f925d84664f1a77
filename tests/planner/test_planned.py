from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.activations import Shares
from hydraplan.errors import Infeasible
from hydraplan.files.lengths import Lengths
from hydraplan.invariants import check_plan
from hydraplan.metrics import peak_live_tokens
from hydraplan.model import BatchPlan, Schedule
from hydraplan.planheader import LIVE_STAGES, PlanHeader
from hydraplan.planner import open_request
from hydraplan.planner.figures import check_figures
from hydraplan.planner.pipeline.memory import Memory, even_memory
from hydraplan.planner.pipeline.one_lane import reordered
from hydraplan.planner.pipeline.order import ORDERS, microbatch_order, searched_order
from hydraplan.planner.pipeline.scenarios import scorer
from hydraplan.planner.pipeline.schedules import SCHEDULES, Layout, one_f_one_b, zb_h1
from hydraplan.planner.pipeline.static_orders import static_names, static_orders, within
from hydraplan.planner.plan import plan_batch, prepare
from hydraplan.planner.planned import (
    PLANNED,
    auto,
    canonical,
    fastest_of,
    plan_ops,
)
from hydraplan.planner.planned_ops import stand_ins
from hydraplan.route import route
from tests.planner.cases import long_tailed, options, profile
from tests.planner.lanes import iteration_s, lane_times, random_lanes


def test_every_planned_schedule_has_a_memory_limit_by_default() -> None:
    assert PLANNED.keys() == LIVE_STAGES.keys()
    assert options(pp=3, pipeline="zb-2p").live_microbatches == 6
    assert options(pp=3, pipeline="auto").live_limit_tokens == 3 * 4096
    assert options(pp=3, pipeline="auto", live_microbatches=5).live_microbatches == 5
    assert options(pp=3).live_limit_tokens is None


def test_a_search_runs_what_the_limit_has_room_for() -> None:
    one = Layout("loop", 1)
    assert stand_ins(options(pp=3, pipeline="auto"), one) == ("zb-h1",)
    assert stand_ins(options(pp=3, pipeline="auto", live_microbatches=4), one) == ("zb-h1",)
    both = options(pp=3, pipeline="auto", live_microbatches=5)
    assert stand_ins(both, one) == ("zb-h2", "zb-h1")
    assert stand_ins(options(pp=3, pipeline="zb-2p"), one) == ("zb-h2", "zb-h1")
    assert stand_ins(options(pp=3, pipeline="1f1b"), one) == ("1f1b",)
    assert stand_ins(options(pp=3, pipeline="auto"), Layout("v", 2)) == ("zb-v",)
    assert stand_ins(options(pp=3, pipeline="exact"), Layout("loop", 3)) == ("interleaved",)


@pytest.mark.parametrize(
    ("pipeline", "live"),
    [("zb-1p", None), ("zb-2p", None), pytest.param("auto", 8, marks=pytest.mark.slow)],
)
def test_neither_tapering_nor_more_memory_makes_a_plan_slower(
    pipeline: str, live: int | None
) -> None:
    """Ops planned later may gain less from either than the schedule that stood in for them."""
    length = Lengths("t", "sequences", long_tailed(200, 3, longest=30_000))
    plans = []
    for shape, stands in (("even", ("zb-h1",)), ("even", None), ("tapered", None)):
        asked = options(
            batch_sequences=200, pp=4, pipeline=pipeline, live_microbatches=live, chunks=1,
            microbatch_shape=shape,
        )  # fmt: skip
        header, batches = prepare(length, profile(), asked, 1)
        with pytest.MonkeyPatch.context() as patch:
            if stands:
                patch.setattr(open_request, "stand_ins", lambda *_: stands)  # noqa: B023
            plans.append(plan_batch(batches.cost, asked, 0, batches[0]))
        assert check_figures(header, plans[-1]) == []
    times_s = [made.figures["iteration_s"] for made in plans]
    assert times_s[0] >= times_s[1] >= times_s[2]


def test_of_equally_fast_orders_the_one_that_holds_least_is_taken() -> None:
    """ZB-H1 ends when ZB-H2 does, whose stages begin later and then never wait."""
    times = lane_times(np.ones((3, 4, 12)))
    enough, plenty = (auto(times, even_memory(limit, 12)) for limit in (7.0, 12.0))
    assert enough == plenty == SCHEDULES["zb-h1"].make(4, 12, 1)


def test_only_schedules_on_the_same_way_are_rivals() -> None:
    assert static_names(lane_times(np.ones((3, 2, 3)))) == ["gpipe", "1f1b", "zb-h1", "zb-h2"]
    assert static_names(lane_times(np.ones((3, 2, 2, 3)))) == ["interleaved"]
    assert static_names(lane_times(np.ones((3, 2, 2, 3)), way=route("v", 2, 2))) == ["zb-v"]


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 4), st.integers(1, 3), st.integers(1, 7))
def test_no_static_schedule_is_faster_than_auto_under_equal_memory(
    seed: int, stages: int, lanes: int, count: int
) -> None:
    rng = np.random.default_rng(seed)
    times = random_lanes(seed, stages, lanes, count)
    live = times.rows.max(axis=0).astype(float)
    memory = Memory(float(live.max()) * rng.uniform(1, 2 * stages + 1), live, rng.uniform(0, 1))
    best = PLANNED["auto"](times, memory)
    assert within(best, memory, 1)
    assert peak_live_tokens(best, times.rows, Shares(1.0, 1 - memory.frees)) <= memory.limit * (
        1 + 1e-9
    )
    for schedule in rivals(times.op_s.shape[1], count):
        if within(schedule, memory, 1):
            assert iteration_s(times, best) <= iteration_s(times, schedule) * (1 + 1e-12)


def rivals(stages: int, count: int) -> list[Schedule]:
    return [SCHEDULES[name].make(stages, count, 1) for name in ("gpipe", "1f1b", "zb-h1", "zb-h2")]


@settings(max_examples=8, deadline=None)
@given(
    st.integers(0, 1 << 30), st.integers(1, 5), st.integers(1, 11), st.integers(1, 7),
    st.sampled_from([1, 2]),
)  # fmt: skip
def test_no_static_schedule_has_a_better_score_than_the_portfolio_under_equal_memory(
    seed: int, stages: int, lanes: int, count: int, chunks: int
) -> None:
    rng = np.random.default_rng(seed)
    times = random_lanes(seed, stages, lanes, count)
    if chunks == 2:
        times = replace(times, op_s=np.repeat(times.op_s, 2, axis=2))
    live = times.rows.max(axis=0).astype(float)
    memory = Memory(float(live.max()) * rng.uniform(1, 2 * stages + 1), live)
    score_s = scorer(times)
    best = PLANNED["portfolio"](times, memory)
    assert within(best, memory, chunks)
    for schedule in static_orders(times, memory):
        assert score_s(best) <= score_s(schedule)


@settings(max_examples=2, deadline=None)
@given(st.integers(0, 1 << 30))
def test_nor_in_any_microbatch_order(seed: int) -> None:
    times = random_lanes(seed, 3, 2, 6)
    memory = Memory(400.0, times.rows.max(axis=0).astype(float))
    orders = {name: microbatch_order(name, times.load_s) for name in ORDERS}
    best = plan_ops("auto", times, memory, orders, search=True)
    now = reordered(times, best.order)
    assert best.iteration_s == pytest.approx(iteration_s(now, best.schedule), rel=1e-12)
    rivals = [plan_ops(name, times, memory, orders, search=True) for name in ("zb-h1", "zb-h2")]
    for rival in rivals:
        assert best.iteration_s <= rival.iteration_s * (1 + 1e-12)
    under_noise = plan_ops("portfolio", times, memory, orders, search=True)
    now = reordered(times, under_noise.order)
    assert under_noise.score_s == scorer(now)(under_noise.schedule)
    for rival in rivals:
        rival_s = scorer(reordered(times, rival.order))(rival.schedule)
        assert under_noise.score_s <= rival_s or not within(
            rival.schedule, replace(memory, live=memory.live[rival.order]), 1
        )


def test_searched_beats_named_orders_where_they_are_poor() -> None:
    load = np.random.default_rng(1).uniform(0.3, 2, 16)
    times = lane_times(np.ones((3, 4, 16)) * load)
    found = searched_order(times, one_f_one_b(4, 16))
    assert sorted(found.tolist()) == list(range(16))
    known_s = [
        iteration_s(reordered(times, microbatch_order(name, times.load_s)), one_f_one_b(4, 16))
        for name in ORDERS
    ]
    assert iteration_s(reordered(times, found), one_f_one_b(4, 16)) < 0.99 * min(known_s)
    assert found.tolist() == searched_order(times, one_f_one_b(4, 16)).tolist()


def test_exact_numbers_microbatches_as_they_enter() -> None:
    op_s = np.ones((3, 2, 4))
    op_s[..., 0] = 3.0
    times, memory = lane_times(op_s), even_memory(2, 4)
    found = plan_ops("exact", times, memory, {"as-built": np.arange(4)}, search=True)
    entry = [op.microbatch for op in found.schedule[0] if op.kind == "F"]
    assert entry == [0, 1, 2, 3]
    assert found.iteration_s == iteration_s(reordered(times, found.order), found.schedule)
    assert (
        found.iteration_s < plan_ops("exact", times, memory, {"as-built": np.arange(4)}, False)[0]
    )


def test_fill_of_a_searched_order_is_that_of_the_best_canonical_one() -> None:
    even = lane_times(np.ones((3, 4, 8)))
    assert canonical("zb-h1", even, even_memory(4, 8)) == zb_h1(4, 8)
    found = canonical("portfolio", even, even_memory(4, 8))
    assert iteration_s(even, found) == 27
    assert within(found, even_memory(4, 8), 1)


def planned(**changes: object) -> tuple[PlanHeader, BatchPlan]:
    asked = options(batch_sequences=40, ranks=4, **changes)
    length = long_tailed(40, 5, longest=12_000)
    header, batches = prepare(Lengths("t", "sequences", length), profile(), asked, 1)
    return header, plan_batch(batches.cost, asked, 0, batches[0])


@pytest.mark.parametrize("pipeline", PLANNED)
@pytest.mark.parametrize("strategy", ["hydra", "memory-ffd"])
def test_a_planned_batch_is_valid_and_keeps_to_its_memory(pipeline: str, strategy: str) -> None:
    header, batch = planned(
        pipeline=pipeline,
        strategy=strategy,
        microbatch_order="auto" if strategy == "hydra" else "as-built",
    )
    assert check_plan(header, batch) == []
    assert check_figures(header, batch) == []
    assert "live-tokens" in header.invariants
    limit = header.options.live_limit_tokens
    assert limit is not None
    assert batch.figures["peak_live_tokens"] <= limit * (1 + 1e-9)
    if strategy == "memory-ffd":
        assert batch.microbatch_order == "as-built"


def test_auto_plans_no_slower_than_the_static_schedules_of_its_memory() -> None:
    _, best = planned(pipeline="auto", strategy="memory-ffd", microbatch_order="searched")
    for pipeline in ("1f1b", "zb-h1"):
        for order in (*ORDERS, "searched"):
            _, rival = planned(pipeline=pipeline, strategy="memory-ffd", microbatch_order=order)
            assert best.figures["iteration_s"] <= rival.figures["iteration_s"] * (1 + 1e-12)


def test_a_searched_order_of_a_static_schedule_is_valid() -> None:
    header, batch = planned(pipeline="1f1b", microbatch_order="searched")
    assert check_plan(header, batch) == check_figures(header, batch) == []


def test_a_plan_that_holds_more_than_it_may_is_named() -> None:
    header, batch = planned(pipeline="auto", live_microbatches=2)
    assert check_plan(header, batch) == []
    tight = header.options.model_copy(update={"live_microbatches": 1})
    found = check_plan(header.model_copy(update={"options": tight}), batch)
    assert len(found) == 1
    assert "are held at once, the limit is 1 x 4096" in found[0]
    silent = header.model_copy(update={"invariants": header.invariants[:-1]})
    assert "does not promise live-tokens" in check_figures(silent, batch)[0]


def test_a_static_schedule_beyond_the_limit_is_refused() -> None:
    with pytest.raises(Infeasible, match=r"schedule gpipe holds activations of .* 1 x 4096 are"):
        planned(pipeline="gpipe", live_microbatches=1)


@pytest.mark.parametrize(
    ("taken_s", "held", "taken"),
    [
        ([2.0, 1.0, 3.0], [1, 9, 1], 1),
        ([1.0000000005, 1.0, 1.0000000004], [2, 9, 1], 2),  # on both sides of a rounded 1.0
        ([1.0, 1.0 + 1e-15], [5, 5], 0),
        ([1.00000001, 1.0], [1, 9], 1),
        ([float("inf"), float("inf")], [9, 9], 0),
        ([float("inf"), 2.0], [1, 9], 1),
    ],
)
def test_of_what_ends_alike_but_for_rounding_that_which_holds_least_is_taken(
    taken_s: list[float], held: list[int], taken: int
) -> None:
    assert fastest_of(range(len(held)), taken_s, held.__getitem__) == taken
