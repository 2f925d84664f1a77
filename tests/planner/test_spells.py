import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.planner.pipeline.spells import Spells, sorted_spells, stretched_s

ENDLESS = math.inf


def spells(*found: tuple[float, float, float]) -> Spells:
    """Spells of one rank, from (begin, end, speed)."""
    begin, end, speed = (np.array(column, float) for column in zip(*found, strict=True))
    none = np.zeros(len(found), np.int64)
    return sorted_spells(1, none, begin, end, speed, none)


def stretched(begin_s: float, work_s: float, *found: tuple[float, float, float]) -> tuple:  # type: ignore[type-arg]
    """Seconds taken, and seconds lost to each spell."""
    lost_s = np.zeros(len(found))
    taken_s = stretched_s(begin_s, work_s, 0, len(found), spells(*found), lost_s)
    return taken_s, lost_s.tolist()


@pytest.mark.parametrize(
    ("begin_s", "work_s", "found", "taken_s", "lost_s"),
    [
        (0, 3, [(5, 9, 0.5)], 3, [0]),  # over before it begins
        (9, 3, [(5, 9, 0.5)], 3, [0]),  # begins when it is over
        (0, 3, [(3, 9, 0.5)], 3, [0]),  # ends as it begins
        (6, 1, [(5, 9, 0.5)], 2, [1]),  # all inside
        (4, 2, [(5, 9, 0.5)], 3, [1]),  # one second before, one at half speed
        (8, 2, [(5, 9, 0.5)], 2.5, [0.5]),  # one second at half speed, then 1.5
        # in steps of 2 s: 2 s of work done, 1, 0.5 where both hold, 1, and 3.5 s after them
        (0, 8, [(2, 6, 0.5), (4, 8, 0.5)], 11.5, [2, 1.5]),
        (2, 1, [(1, 4, 0)], 3, [2]),  # stands still until 4
        (4, 2, [(0, ENDLESS, 0.25)], 8, [6]),  # for ever
        (2, 0, [(1, 4, 0.5)], 0, [0]),  # no work
    ],
)
def test_only_the_part_of_an_op_inside_a_spell_is_stretched(
    begin_s: float,
    work_s: float,
    found: list[tuple[float, float, float]],
    taken_s: float,
    lost_s: list[float],
) -> None:
    assert stretched(begin_s, work_s, *found) == (taken_s, lost_s)


def test_a_rank_that_stands_still_waits_even_with_nothing_to_do() -> None:
    assert stretched(2, 0, (1, 4, 0.0)) == (2, [2])


SPELLS = st.lists(
    st.tuples(st.floats(0, 20), st.floats(0, 10), st.sampled_from([0.0, 0.25, 0.5, 1.0])),
    min_size=1,
    max_size=4,
).map(lambda found: [(begin, begin + length, speed) for begin, length, speed in found])


@settings(max_examples=100)
@given(st.floats(0, 20), st.floats(0, 20), st.floats(0, 5), SPELLS)
def test_beginning_later_never_ends_earlier_and_losses_add_up(
    begin_s: float, work_s: float, later_s: float, found: list[tuple[float, float, float]]
) -> None:
    taken_s, lost_s = stretched(begin_s, work_s, *found)
    assert taken_s >= work_s * (1 - 1e-12)
    assert taken_s - sum(lost_s) == pytest.approx(work_s, abs=1e-9)
    assert begin_s + later_s + stretched(begin_s + later_s, work_s, *found)[0] >= (
        begin_s + taken_s - 1e-9
    )
    fewer_s, _ = stretched(begin_s, work_s, *found[1:]) if found[1:] else (work_s, [])
    assert fewer_s <= taken_s + 1e-9


def test_spells_lie_by_rank_in_the_order_given() -> None:
    found = sorted_spells(
        3, np.array([2, 0, 2]), np.array([1.0, 2.0, 3.0]), np.full(3, 9.0), np.full(3, 0.5),
        np.array([7, 8, 6]),
    )  # fmt: skip
    assert found.first.tolist() == [0, 1, 1, 3]
    assert found.begin_s.tolist() == [2, 1, 3]
    assert found.source.tolist() == [8, 7, 6]
