"""Compiled differencing on lists against the method as the textbook has it, on full tuples."""

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydraplan.planner.placement.differencing import difference

Parts = list[tuple[int, list[int]]]


def twin(weight: list[int], num_parts: int) -> Parts:
    """All k sums of every tuple written out, heaviest first; whole numbers, so nothing rounds."""
    tuples = {i: [(w, [i])] + [(0, [])] * (num_parts - 1) for i, w in enumerate(weight)}
    heap = [(parts[-1][0] - parts[0][0], i) for i, parts in tuples.items()]
    heapq.heapify(heap)
    while len(heap) > 1:
        (_, a), (_, b) = heapq.heappop(heap), heapq.heappop(heap)
        pairs = zip(tuples[a], reversed(tuples.pop(b)), strict=True)
        merged = sorted(((x + y, p + q) for (x, p), (y, q) in pairs), key=lambda part: -part[0])
        tuples[a] = [(total - merged[-1][0], items) for total, items in merged]
        heapq.heappush(heap, (tuples[a][-1][0] - tuples[a][0][0], a))
    return tuples[heap[0][1]]


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 12))
def test_sums_are_those_of_the_textbook_method(weight: list[int], num_parts: int) -> None:
    part = difference(np.array(weight, float), num_parts)
    sums = np.bincount(part, weight, num_parts)
    wanted = [sum(weight[i] for i in items) for _, items in twin(weight, num_parts)]
    assert sorted(sums, reverse=True) == sorted(wanted, reverse=True)
    assert (np.diff(sums) <= 0).all()


@given(st.lists(st.floats(1e-3, 1e12), min_size=1, max_size=60), st.integers(1, 70))
def test_parts_differ_by_no_more_than_one_item(weight: list[float], num_parts: int) -> None:
    part = difference(np.array(weight), num_parts)
    assert part.shape == (len(weight),)
    assert 0 <= part.min() <= part.max() < num_parts
    sums = np.bincount(part, weight, num_parts)
    assert sums.max() - sums.min() <= max(weight) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("weight", "num_parts", "sums"),
    [
        ([8, 7, 6, 5, 4], 2, [16, 14]),
        ([5, 5, 5, 5], 3, [10, 5, 5]),
        ([9, 1, 1, 1], 4, [9, 1, 1, 1]),
        ([3, 3], 5, [3, 3, 0, 0, 0]),
    ],
)
def test_small_cases_by_hand(weight: list[float], num_parts: int, sums: list[float]) -> None:
    part = difference(np.array(weight, float), num_parts)
    assert np.bincount(part, weight, num_parts).tolist() == sums


def test_no_items_have_no_parts() -> None:
    assert len(difference(np.zeros(0), 3)) == 0
