from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.planner.placement.fewest_runs import _first_fit, split_heaviest
from hydraplan.planner.placement.pack_few import FEW, pack_few
from hydraplan.planner.placement.place import Placement
from hydraplan.planner.placement.runs import CLOSE, cut

COLUMN = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=8)


@settings(deadline=None, max_examples=150, derandomize=True)
@given(COLUMN, st.integers(1, 10), st.integers(50, 200))
def test_no_cut_within_the_capacity_has_a_smaller_largest_run(
    rows: list[tuple[int, int]], count: int, capacity: int
) -> None:
    work, held = np.array(rows, float).T
    count = min(count, len(rows))
    largest = []
    for inner in combinations(range(1, len(rows)), count - 1):
        parts = np.split(np.arange(len(rows)), inner)
        if max(held[p].sum() for p in parts) <= capacity:
            largest.append(max(work[p].sum() for p in parts))
    bounds = cut(work, held, count, capacity)
    if bounds is None:
        assert not largest
        return
    assert bounds[0] == 0
    assert bounds[-1] == len(rows)
    assert len(bounds) == count + 1
    assert (np.diff(bounds) > 0).all()
    assert np.add.reduceat(held, bounds[:-1]).max() <= capacity
    assert np.add.reduceat(work, bounds[:-1]).max() <= min(largest) * (1 + 2 * CLOSE)


def test_runs_end_where_the_work_that_is_left_is_shared_evenly() -> None:
    bounds = cut(np.array([3.0, 1, 1, 1, 3, 3, 1, 1, 1, 3]), np.ones(10), 3, 100)
    assert bounds is not None
    assert bounds.tolist() == [0, 4, 6, 10]


def test_more_runs_than_rows_are_as_many_as_rows() -> None:
    bounds = cut(np.ones(3), np.ones(3), 7, 1)
    assert bounds is not None
    assert bounds.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("waiting", "first", "room", "taken"),
    [
        ([1, 1, 1, 1, 1], 0, 10, [0, 4]),  # 7, then 3; the 4 of the same window still waits
        ([1, 1, 1, 1, 1], 0, 12, [0, 2]),
        ([1, 1, 1, 1, 1], 0, 24, [0, 1, 2, 3]),  # all of window 0, then what fits of window 1
        ([0, 1, 0, 0, 1], 1, 10, [1, 4]),  # nothing else waits
        ([0, 0, 0, 1, 1], 3, 6, [3]),
    ],
)
def test_a_microbatch_takes_the_longest_that_fit_of_one_window_after_the_other(
    waiting: list[int], first: int, room: int, taken: list[int]
) -> None:
    length, window = np.array([7, 6, 5, 4, 3]), np.array([0, 0, 0, 1, 1])
    if room == 10 and first == 0:
        window = np.zeros(5, np.int64)
    found = _first_fit(length, window, np.array(waiting, bool), first, room)
    assert found.tolist() == taken


def nowhere(rows: object) -> Placement:
    one = np.zeros(1, np.int64)
    return Placement(one, one, one, np.zeros(1), 0.0)


def test_the_heaviest_microbatches_are_halved_until_there_are_enough() -> None:
    whole = [(np.arange(4), nowhere(0)), (np.arange(4, 8), nowhere(0))]
    found = split_heaviest(nowhere, whole, np.array([1.0, 1, 1, 1, 4, 2, 2, 1]), 4)
    assert [rows.tolist() for rows, _ in found] == [[0, 1, 2, 3], [4], [5], [6, 7]]
    every = split_heaviest(nowhere, whole, np.ones(8), 20)
    assert [rows.tolist() for rows, _ in every] == [[i] for i in range(8)]


def test_what_cannot_be_halved_stays_whole() -> None:
    whole = [(np.arange(4), nowhere(0)), (np.arange(4, 6), nowhere(0))]
    found = split_heaviest(
        lambda rows: None if len(rows) > 1 else nowhere(rows), whole, np.ones(6), 3
    )
    assert [rows.tolist() for rows, _ in found] == [[0, 1, 2, 3], [4], [5]]


def test_a_cap_filled_to_the_last_row_is_packed_by_trying_everything() -> None:
    rows = np.array([[15, 8], [15, 8], [15, 8], [9, 5], [8, 4], [6, 3]])
    degrees = np.array([1, 2, 4])
    rows = np.column_stack([rows, [4, 4, 4, 3, 2, 2]])
    found = pack_few(rows, np.ones_like(rows, bool), degrees, 4, 18)
    assert found is not None
    level, first = found
    held = np.zeros(4, np.int64)
    for i, (k, at) in enumerate(zip(level, first, strict=True)):
        assert at % degrees[k] == 0
        held[at : at + degrees[k]] += rows[i, k]
    assert held.max() <= 18


def test_packing_gives_up_where_nothing_fits_or_too_much_would_have_to_be_tried() -> None:
    one = np.ones(1, np.int64)
    assert pack_few(np.full((3, 1), 5), np.ones((3, 1), bool), one, 2, 9) is None
    many = np.ones((FEW + 1, 1), np.int64)
    assert pack_few(many, many > 0, one, 64, 9) is None
