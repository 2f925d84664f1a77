"""Lanes that are spared: nothing is on them that could be elsewhere, whatever places it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.layout import legal_degrees
from hydraplan.planner.placement.search import first_points
from hydraplan.planner.placement.spared import open_levels, spared_blocks, with_something
from hydraplan.planner.placement.trial import finalist_of, trial_of
from hydraplan.slots import slot_times
from tests.planner.cases import long_tailed, request_for


def sparing(request, spared):
    """The same request without these lanes."""
    table = open_levels(request.table, request.cost.ranks, spared)
    return replace(request, spared=spared, table=table)


def lanes_of(placed):
    return [
        set(range(first, first + degree))
        for first, degree in zip(placed.first_rank, placed.degree, strict=True)
    ]


@pytest.mark.parametrize(
    ("ranks", "spared", "blocks"),
    [(8, (1,), [[1], [0], [0], [0]]), (8, (0, 5), [[0, 5], [0, 2], [0, 1], [0]]),
     (3, (2,), [[2], [], [0]]), (6, (4, 5), [[4, 5], [2], [], [0]])],
)  # fmt: skip
def test_blocks_with_a_spared_lane(ranks, spared, blocks):
    levels = range(len(legal_degrees(ranks)))
    assert [spared_blocks(ranks, level, spared).tolist() for level in levels] == blocks


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 999), ranks=st.sampled_from([2, 3, 6, 8]), count=st.integers(20, 60),
    slow=st.floats(3, 100), data=st.data(),
)  # fmt: skip
def test_only_what_no_other_place_holds_is_on_a_spared_lane(seed, ranks, count, slow, data):
    spared = tuple(
        sorted(data.draw(st.sets(st.integers(0, ranks - 1), min_size=1, max_size=ranks - 1)))
    )
    values = long_tailed(count, seed, longest=4096 * ranks)
    speed = tuple(1 / slow if lane in spared else 1.0 for lane in range(ranks))
    asked = request_for(values, ranks=ranks, rank_speed=speed, microbatches=count)
    request = sparing(asked, spared)
    found = [each for each in (trial_of(request, p) for p in first_points(request)) if each]
    assert found
    for trial in found[:4]:
        placed = finalist_of(request, trial).built.placed
        assert sorted(placed.sequence_id) == sorted(request.sequences.sequence_id)
        slots = slot_times(request.cost, placed, count)
        assert slots.rows.max() <= request.cap_tokens
        floor = legal_degrees(ranks)[request.table.floor[request.table.bucket]]
        for lanes, least in zip(lanes_of(placed), floor, strict=True):
            if lanes & set(spared):
                degree, level = len(lanes), legal_degrees(ranks).tolist().index(len(lanes))
                blocks = range(max(1, ranks // degree))
                assert spared_blocks(ranks, level, spared).tolist() == list(blocks)
                assert degree == least


def test_no_lane_is_left_without_any_op_that_takes_time():
    request = request_for(
        long_tailed(20, 1, 4000), ranks=4, microbatches=10, rank_speed=(1.0, 1.0, 0.1, 1.0)
    )
    spared = sparing(request, (2,))
    trial = next(filter(None, (trial_of(spared, p) for p in first_points(spared))))
    placed = finalist_of(spared, trial).built.placed
    assert not any(2 in lanes for lanes in lanes_of(placed))
    kept = with_something(spared.cost, placed, 10, (2,))
    assert np.array_equal(kept.first_rank, placed.first_rank)  # empty slots take time
    fit = spared.cost.fit
    free = {
        name: rate.model_copy(update={"call_s": 0.0})
        for name in type(fit).model_fields
        if hasattr(rate := getattr(fit, name), "call_s")
    }
    cost = replace(spared.cost, fit=fit.model_copy(update=free))
    kept = with_something(cost, placed, 10, (2,))
    moved = np.flatnonzero(kept.first_rank != placed.first_rank)
    assert placed.length_tokens[moved].tolist() == [placed.length_tokens[placed.degree == 1].min()]
    assert kept.first_rank[moved].tolist() == [2]
