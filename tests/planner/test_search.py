from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.planner.figures import batch_figures
from hydraplan.planner.placement.draft import Request
from hydraplan.planner.placement.hydra import place_hydra, place_once
from hydraplan.planner.placement.search import (
    Point,
    filling_point,
    finer_points,
    first_counts,
    first_points,
)
from tests.planner.cases import long_tailed, options, request_for


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Batches of all kinds on pools of any size, some with slow lanes."""
    ranks, seed = draw(st.sampled_from([1, 2, 6, 8, 12, 16])), draw(st.integers(0, 999))
    length = long_tailed(draw(st.integers(3, 60)), seed, longest=3000 * ranks)
    return request_for(
        length,
        ranks=ranks,
        pp=draw(st.integers(1, 4)),
        microbatch_multiple=draw(st.sampled_from([1, 1, 2, 3])),
        rank_speed=(0.5, *[1.0] * (ranks - 1)) if draw(st.booleans()) else None,
        engine=draw(st.sampled_from(["nested", "ring"])),
    )


@settings(max_examples=20)
@given(requests())
def test_points_come_best_first_and_no_two_are_alike(request: Request) -> None:
    points = first_points(request)
    promised = [p.promise_s for p in points]
    assert promised == sorted(promised)
    assert min(promised) > 0
    ways = [
        (p.num_microbatches, p.target.level.tobytes() if np.isnan(p.slack) else p.slack)
        for p in points
    ]
    assert len(set(ways)) == len(points)
    for p in points:
        assert p.num_microbatches % request.microbatch_multiple == 0
        assert p.num_microbatches in first_counts(request)
        assert 0 < p.num_microbatches <= len(request.sequences)


@settings(max_examples=20)
@given(requests())
def test_a_point_promises_no_less_than_its_work_and_fill_take(request: Request) -> None:
    cost, table = request.cost, request.table
    for p in (*first_points(request), *finer_points(request)):
        slots = cost.ranks * p.num_microbatches
        # a target is solved to 1e-5; its work never exceeds what all slots hold
        assert p.target.rank_work_s <= slots * p.target.load_target_s * (1 + 1e-9)
        slot_s = p.target.rank_work_s / slots + table.fixed_s
        assert p.promise_s >= (p.num_microbatches + cost.pp - 1) * slot_s
        if not np.isnan(p.slack):
            assert p.limit_s >= (1 + p.slack) * p.target.load_target_s
            assert np.isnan(p.theta)


def test_a_fixed_number_of_microbatches_is_the_only_one_tried() -> None:
    length = long_tailed(64, 1)
    request = request_for(length, microbatches=20)
    assert {p.num_microbatches for p in first_points(request)} == {20}
    too_few = replace(request, microbatches=request.window.memory - 1)
    assert first_points(too_few) == []


def test_an_empty_window_has_no_finer_points() -> None:
    request = request_for(np.array([30_000, *[200] * 40]), ranks=8)
    assert request.window.is_empty
    assert finer_points(request) == []


def test_more_slack_fills_higher() -> None:
    request = request_for(long_tailed(64, 2))
    points: list[Point] = [filling_point(request, 12, slack) for slack in (0.01, 0.05, 0.2)]
    limits = [p.limit_s for p in points]
    assert limits == sorted(limits)
    assert len({p.target.load_target_s for p in points}) == 1


@settings(max_examples=12)
@given(requests())
def test_a_draft_says_what_the_simulator_says(request: Request) -> None:
    draft = place_hydra(request)
    ops = request.schedule(request.cost.pp, draft.num_microbatches)
    figures, _ = batch_figures(
        request.cost, draft.sequences, draft.num_microbatches, ops,
        options(max_tokens_per_rank=request.cap_tokens),
        draft.search.load_target_s,
    )  # fmt: skip
    assert draft.iteration_s == pytest.approx(figures["iteration_s"], rel=1e-12)
    assert draft.slot_imbalance == pytest.approx(figures["slot_imbalance"], rel=1e-12)
    assert draft.num_microbatches % request.microbatch_multiple == 0
    place_once(request, draft)  # the point it names can be placed again


@settings(max_examples=12)
@given(requests())
def test_what_the_search_tells_fits_together(request: Request) -> None:
    draft, again = place_hydra(request), place_hydra(request)
    found = draft.search
    for name in ("microbatch", "first_rank", "degree"):
        assert (getattr(draft.sequences, name) == getattr(again.sequences, name)).all()
    assert draft.iteration_s == again.iteration_s
    assert not draft.iteration_s > found.memory_s  # NaN where it does not exist
    assert found.num_rejected < found.num_candidates
    assert (found.window_min, found.window_max) == (request.window.low, request.window.high)
    if draft.winner == "load-driven":
        assert draft.iteration_s in (found.load_driven_s, found.fastest_load_driven_s)
        assert found.load_target_s > 0
        assert np.isnan(found.theta) != np.isnan(found.slack)
    if not np.isnan(found.load_driven_s):
        assert found.fastest_load_driven_s <= found.load_driven_s
        assert found.load_driven_slot_imbalance >= 1
