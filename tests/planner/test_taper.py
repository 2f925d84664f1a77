from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.metrics import balance
from hydraplan.model import FloatArray
from hydraplan.planner.pipeline.fast_run import one_lane_s
from hydraplan.planner.pipeline.schedules import one_f_one_b
from hydraplan.planner.placement.draft import Request
from hydraplan.planner.placement.forest import filled_forest, new_forest
from hydraplan.planner.placement.hydra import place_hydra, place_once
from hydraplan.planner.placement.place import place_filling
from hydraplan.planner.placement.search import tapered_point, tapered_points
from hydraplan.planner.placement.taper import best_shape, shapes
from hydraplan.planner.plan import without_taper
from tests.planner.cases import long_tailed, options, request_for

THIRD = 0.28
"""F over F + B + W where B and W together take about 2.6 times as long."""


@given(st.integers(1, 200), st.integers(2, 64), st.floats(0.01, 1), st.floats(0.05, 0.95))
def test_shares_rise_and_then_fall(count: int, stages: int, least: float, forward: float) -> None:
    tried = shapes(count, stages, least, forward)
    assert tried.shape[1] == count
    assert (tried[0] == 1).all()
    assert tried.max(axis=1) == pytest.approx(1)
    assert tried.min() > 0
    for share in tried:
        top = int(share.argmax())
        assert (np.diff(share[: top + 1]) >= -1e-12).all()
        assert (np.diff(share[top:]) <= 1e-12).all()
        if count > 1:
            assert min(share[0], share[-1]) >= least * (1 - 1e-9)


def one_lane(stages: int, last: float) -> FloatArray:
    """Shares of F, B and W of stages of which the last costs so many times as much."""
    f = np.full(stages, THIRD)
    profile = np.stack([f, (1 - f) * 0.85, (1 - f) * 0.15])[:, :, None]
    profile[:, -1] *= last
    return profile


@pytest.mark.parametrize(
    ("stages", "count", "last", "gain"),
    [(4, 32, 1, 1.025), (8, 48, 1, 1.04), (4, 32, 1.2, 1.06), (8, 48, 1.2, 1.07), (8, 3, 1, 1)],
)
def test_the_same_work_takes_less_time(stages: int, count: int, last: float, gain: float) -> None:
    """No placement: 1F1B itself, with as much work in as many microbatches.

    Hill climbing over all shapes finds 1.039, 1.054, 1.070 and 1.095.
    """
    profile, schedule = one_lane(stages, last), one_f_one_b(stages, count)
    even_s = one_lane_s(profile, np.ones((1, count)), schedule)
    if last == 1:
        assert even_s == pytest.approx(count + stages - 1)
    tried = shapes(count, stages, 0.1, THIRD)
    best = best_shape(tried, count, 0.0, lambda load_s: one_lane_s(profile, load_s, schedule))
    taken_s = one_lane_s(profile, (best * count / best.sum())[None], schedule)
    assert even_s / taken_s >= gain


@settings(max_examples=30)
@given(st.integers(1, 6), st.integers(1, 12), st.integers(0, 99))
def test_runs_side_by_side_are_those_one_by_one(stages: int, count: int, seed: int) -> None:
    load_s = np.random.default_rng(seed).random((5, count)) + 0.01
    profile, schedule = one_lane(stages, 1.3), one_f_one_b(stages, count)
    alone = [float(one_lane_s(profile, row[None], schedule)[0]) for row in load_s]
    assert one_lane_s(profile, load_s, schedule).tolist() == alone


@given(st.integers(1, 16), st.integers(1, 5), st.integers(0, 99))
def test_a_head_start_lies_on_every_slot_of_its_microbatch(
    ranks: int, count: int, seed: int
) -> None:
    head_s = np.random.default_rng(seed).random(count)
    forest = new_forest(ranks, count, None, head_s)
    assert forest.highest[:, 1] == pytest.approx(head_s)
    assert (forest.leads[:, 1] == head_s.min()).all()
    none = np.zeros(0, np.int64)
    empty = filled_forest(ranks, count, none, none, np.zeros(0), none)
    assert (empty.leads[:, 1] == 0).all()


@settings(max_examples=25)
@given(st.sampled_from([1, 3, 8, 12, 16]), st.integers(4, 12), st.integers(0, 99), st.booleans())
def test_filling_leaves_each_microbatch_its_share(
    ranks: int, count: int, seed: int, one_is_slow: bool
) -> None:
    """Everything is placed, within the cap, and no microbatch ends above its share of the limit."""
    length = np.random.default_rng(seed).integers(20, 400, 24 * ranks)
    speed = (0.5, *[1.0] * (ranks - 1)) if one_is_slow and ranks > 1 else None
    request = request_for(length, ranks=ranks, rank_speed=speed)
    point = tapered_point(request, count, 0.3, 0.2)
    assert point.shape is not None
    limit_s = point.limit_s * request.cost.mean_slow
    placed = place_filling(
        request.table, length, ranks, count, 4096, request.slow, limit_s, point.shape
    )
    if placed is None:  # the cap leaves no room
        return
    heaviest_s = float(request.table.load_s[:, 0].max()) * float(request.cost.slow.max())
    assert (placed.peak_s <= point.shape * limit_s + heaviest_s).all()
    assert (placed.microbatch >= 0).all()
    assert (placed.microbatch < count).all()


@pytest.fixture
def request_open() -> Request:
    return request_for(long_tailed(400, 3, longest=20_000), pp=4, ranks=8)


def test_tapered_points_are_there_only_when_asked(request_open: Request) -> None:
    assert tapered_points(request_open, 60) == []
    asked = replace(request_open, tapered=True)
    points = tapered_points(asked, 60)
    assert points
    assert {p.num_microbatches for p in points} <= {48, 60, 75}
    assert all(p.shape is not None and p.shape.max() == 1 for p in points)
    assert 24 < asked.window.memory < 48
    assert all(p.shape.sum() >= asked.window.memory for p in points if p.shape is not None)
    assert tapered_points(replace(asked, orders=("long-first",)), 60) == []
    assert tapered_points(request_for(np.full(50, 300), pp=1, microbatch_shape="tapered"), 24) == []
    fixed = replace(asked, microbatches=50)
    few = tapered_points(asked, 20)  # fewer than the tokens ask for
    assert min(p.num_microbatches for p in few) >= asked.window.memory
    assert {p.num_microbatches for p in tapered_points(fixed, 50)} == {50}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"microbatch_order": "as-built"}, ""),
        ({"microbatch_order": "searched"}, ""),
        ({"strategy": "exact"}, "strategy exact builds none"),
        ({"pp": 1}, "one stage has no pipeline to fill"),
        ({"reorder": "window:8"}, "--reorder window:8 fixes what is first and last"),
        ({"microbatch_order": "sandwich"}, "--microbatch-order sandwich sorts microbatches"),
    ],
)
def test_an_order_or_strategy_that_takes_no_tapered_microbatches_is_named(
    changes: dict[str, object], reason: str
) -> None:
    said = without_taper(options(microbatch_shape="tapered", **changes))
    assert said == (reason and f"--microbatch-shape tapered has no effect: {reason}")
    assert without_taper(options(**changes)) == ""
    if changes.get("strategy") is None:
        asked = request_for(np.full(50, 300), microbatch_shape="tapered", **changes)
        assert (tapered_points(asked, 24) == []) == bool(reason)


def test_several_strategies_have_tapered_microbatches_if_one_builds_them() -> None:
    asked = options(microbatch_shape="tapered", strategy="memory-ffd", microbatch_order="as-built")
    assert without_taper(asked, ["memory-ffd", "hydra"]) == ""
    assert without_taper(asked, ["memory-ffd", "exact"]).endswith("memory-ffd, exact build none")


def test_a_tapered_plan_is_faster_and_says_so(request_open: Request) -> None:
    even = place_hydra(request_open)
    found = place_hydra(replace(request_open, tapered=True))
    assert found.iteration_s < even.iteration_s * 0.985
    assert found.microbatch_order == "as-built"
    assert 0 < found.search.taper < 1
    assert found.search.slack > 0
    assert np.isnan(even.search.taper)
    assert found.search.load_driven_slot_imbalance == even.search.load_driven_slot_imbalance
    assert found.search.num_candidates > even.search.num_candidates
    assert sorted(found.sequences.sequence_id) == sorted(even.sequences.sequence_id)
    place_once(replace(request_open, tapered=True), found)


@settings(max_examples=10)
@given(st.integers(0, 999), st.sampled_from([3, 8]), st.integers(1, 4), st.sampled_from([1, 4]))
def test_asking_for_tapered_microbatches_costs_next_to_no_time(
    seed: int, ranks: int, pp: int, multiple: int
) -> None:
    """Right and wrong costs together decide, so one of the two may be up to that much worse."""
    length = long_tailed(80, seed, longest=3000 * ranks)
    request = request_for(length, ranks=ranks, pp=pp, microbatch_multiple=multiple)
    even, found = place_hydra(request), place_hydra(replace(request, tapered=True))
    assert found.iteration_s <= even.iteration_s * 1.05
    assert found.num_microbatches % multiple == 0
    assert found.sequences.rank_tokens_max.max() <= 4096


def test_balance_of_a_tapered_plan_is_that_of_its_slots() -> None:
    """The figures hide nothing: slots that are uneven on purpose count as uneven."""
    share = np.minimum(1, 0.1 + 0.2 * np.arange(40))
    figures = balance(np.outer(np.ones(4), share), float("nan"))
    assert figures["slot_imbalance"] == pytest.approx(40 / share.sum())
    assert figures["microbatch_spread"] == pytest.approx(10)
    assert figures["rank_imbalance"] == pytest.approx(1)
