"""token-balance: two levels of differencing and the smallest number of microbatches that holds."""

from itertools import count

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hydraplan.model import IntArray
from hydraplan.planner.placement.differencing import difference
from hydraplan.planner.placement.token_balance import balance_tokens

lengths = st.lists(st.integers(1, 100), min_size=1, max_size=50)


def fullest(
    length: IntArray, group: IntArray, num_groups: int, num_microbatches: int
) -> tuple[IntArray, int]:
    """Microbatch of every sequence, differenced group by group, and rows of the fullest slot."""
    microbatch, most = np.zeros(len(length), np.int64), 0
    for g in range(num_groups):
        inside = np.flatnonzero(group == g)
        microbatch[inside] = difference(length[inside].astype(float) ** 2, num_microbatches)
        held = np.bincount(microbatch[inside], length[inside], num_microbatches)
        most = max(most, int(held.max()))
    return microbatch, most


@given(lengths, st.integers(1, 6), st.integers(100, 300), st.integers(1, 4))
def test_the_first_number_of_microbatches_that_holds_is_taken(
    values: list[int], num_groups: int, cap: int, step: int
) -> None:
    length = np.array(values, np.int64)
    found = balance_tokens(length, length, num_groups, cap, count(step, step))
    assert found is not None
    microbatch, group, number = found
    assert np.array_equal(group, difference(length.astype(float) ** 2, num_groups))
    expected, most = fullest(length, group, num_groups, number)
    assert np.array_equal(microbatch, expected)
    assert most <= cap
    assert all(fullest(length, group, num_groups, m)[1] > cap for m in range(step, number, step))


@given(lengths, st.integers(1, 6), st.integers(100, 300), st.integers(1, 8))
def test_a_fixed_number_holds_or_nothing_is_found(
    values: list[int], num_groups: int, cap: int, number: int
) -> None:
    length = np.array(values, np.int64)
    found = balance_tokens(length, length, num_groups, cap, [number])
    group = difference(length.astype(float) ** 2, num_groups)
    holds = fullest(length, group, num_groups, number)[1] <= cap
    assert (found is not None) == holds


def test_a_long_sequence_keeps_its_group_for_itself() -> None:
    length = np.array([100, 20, 20, 20, 20, 20], np.int64)
    found = balance_tokens(length, length, 2, 100, count(1))
    assert found is not None
    microbatch, group, number = found
    assert group.tolist() == [0, 1, 1, 1, 1, 1]
    assert (microbatch.tolist(), number) == ([0] * 6, 1)
