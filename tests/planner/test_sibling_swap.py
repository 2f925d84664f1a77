import numpy as np
import pytest
from hypothesis import given, settings

from hydraplan.layout import legal_degrees
from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.placement.forest import Forest
from hydraplan.planner.placement.min_max_forest import place_forest
from hydraplan.planner.placement.sibling_swap import swapped
from tests.planner.placed import UNBOUNDED, Work, blocks_of, in_slots, works


def placed(work: Work) -> tuple[Forest, IntArray, IntArray]:
    found = place_forest(*work, UNBOUNDED)
    assert found is not None
    return found


def first_ranks(work: Work, node: IntArray) -> IntArray:
    width = 1 << (work.ranks - 1).bit_length()
    return (node - (width >> work.level)) << work.level


def seconds(work: Work, microbatch: IntArray, node: IntArray) -> FloatArray:
    """Load of every slot; checks that every group is an aligned block of the pool."""
    return in_slots(work.load, work, microbatch, first_ranks(work, node))


@given(works(tuple(range(1, 71))))
def test_a_swap_renames_lanes_and_changes_no_slot(work: Work) -> None:
    forest, microbatch, node = placed(work)
    new = swapped(forest.added, work.ranks, microbatch, node)
    width = forest.added.shape[1] // 2
    for k in range(len(legal_degrees(work.ranks))):  # nobody changes degree
        here = new[work.level == k] - (width >> k)
        assert ((here >= 0) & (here < len(blocks_of(work.ranks, k)))).all()
    before, after = seconds(work, microbatch, node), seconds(work, microbatch, new)
    for m in range(work.microbatches):
        assert sorted(before[:, m]) == sorted(after[:, m])
    if width > work.ranks:  # the whole pool has no halves to swap
        whole = node == 1
        assert (new[whole] == 1).all()


@settings(max_examples=40)
@given(works((5, 6, 12, 23, 24, 33)))
def test_sequences_that_shared_lanes_still_share_them(work: Work) -> None:
    """One renaming of lanes a microbatch: blocks that were nested or apart stay so."""
    forest, microbatch, node = placed(work)
    new = swapped(forest.added, work.ranks, microbatch, node)
    first = [first_ranks(work, n) for n in (node, new)]
    degree = legal_degrees(work.ranks)[work.level]
    for m in range(work.microbatches):
        inside = np.flatnonzero(microbatch == m)
        shared = [
            np.minimum.outer((a + degree)[inside], (a + degree)[inside])
            - np.maximum.outer(a[inside], a[inside])
            for a in first
        ]
        assert (np.maximum(shared[0], 0) == np.maximum(shared[1], 0)).all()


@pytest.mark.parametrize("ranks", [8, 12, 24, 64, 100])
def test_what_ranks_carry_over_the_iteration_gets_even(ranks: int) -> None:
    """Few sequences of any degree: by themselves they pile up on the low lanes."""
    before, after = [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        level = rng.integers(0, len(legal_degrees(ranks)), 64)
        load = rng.integers(1, 50, 64).astype(float)
        work = Work(load, np.ones_like(level), level, ranks, 32)
        forest, microbatch, node = placed(work)
        new = swapped(forest.added, ranks, microbatch, node)
        for excess, at in ((before, node), (after, new)):
            total = seconds(work, microbatch, at).sum(axis=1)
            excess.append(total.max() / total.mean() - 1)
    assert np.mean(after) < np.mean(before)
    if ranks & (ranks - 1) == 0:  # else some lanes stay outside of all larger blocks
        assert np.mean(after) < 0.5 * np.mean(before)


def test_a_worked_example() -> None:
    """Two lanes, a heavy and a light sequence in each of two microbatches: they change sides."""
    work = Work(np.array([5.0, 5.0, 1.0, 1.0]), np.ones(4, int), np.zeros(4, int), 2, 2)
    microbatch, node = np.array([0, 1, 0, 1]), np.array([2, 2, 3, 3])
    added = np.zeros((2, 4))
    added[microbatch, node] = work.load
    new = swapped(added, 2, microbatch, node)
    assert new.tolist() == [2, 3, 3, 2]
    assert seconds(work, microbatch, new).sum(axis=1).tolist() == [6.0, 6.0]


@settings(max_examples=20)
@given(works((8,)))
def test_even_halves_are_left_alone(work: Work) -> None:
    """Only a difference is a reason: where all lanes carry the same they keep their names."""
    whole = work._replace(level=np.full_like(work.level, 3))
    forest, microbatch, node = placed(whole)
    assert (swapped(forest.added, 8, microbatch, node) == node).all()
