import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.layout import legal_degrees
from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.placement.block_tree import block_max
from hydraplan.planner.placement.forest import (
    Forest,
    bar,
    change,
    filled_forest,
    least_loaded,
    new_forest,
)
from hydraplan.planner.placement.min_max_forest import MAX_COMPARED, place_forest
from tests.planner.placed import UNBOUNDED, Work, blocks_of, in_slots, works

SPEEDS = (0.25, 0.5, 1.0, 2.0, 3.0)
"""Slowness of lanes; sums of whole-number loads times these are exact."""


def lanes_of(forest: Forest, level: int, node: int) -> range:
    """Lanes of a node of a level."""
    width = forest.added.shape[1] // 2
    return blocks_of(forest.num_ranks, level)[node - (width >> level)]


class Scanned:
    """The same slots as plain arrays; every question is a scan."""

    def __init__(self, ranks: int, microbatches: int, slow: FloatArray | None) -> None:
        self.degrees = legal_degrees(ranks)
        self.slow = np.ones(ranks) if slow is None else slow
        self.held = np.zeros((microbatches, ranks))
        self.rows = np.zeros((microbatches, ranks), np.int64)
        self.barred = [np.zeros((microbatches, ranks // d), np.bool_) for d in self.degrees]

    def least_loaded(self, level: int) -> tuple[float, int, int]:
        """Load, microbatch and block; the first microbatch of equals, there the first block."""
        microbatches, blocks = self.barred[level].shape
        degree = self.degrees[level]
        lanes = self.held[:, : blocks * degree].reshape(microbatches, blocks, degree)
        load = np.where(self.barred[level], np.inf, lanes.max(axis=2))
        return float(load.min()), *map(int, divmod(int(load.argmin()), blocks))

    def change(self, m: int, lanes: range, seconds: float, rows: int) -> None:
        self.held[m, lanes] += seconds * self.slow[lanes].max()
        self.rows[m, lanes] += rows


@pytest.mark.parametrize("seed", range(2))
def test_the_least_loaded_block_is_what_a_scan_finds(seed: int) -> None:
    """All pools of 1 to 70 ranks; blocks are filled, emptied, barred and allowed at random."""
    rng = np.random.default_rng(seed)
    for ranks in range(1, 71):
        microbatches = int(rng.integers(1, 10))
        slow = rng.choice(SPEEDS, ranks) if rng.random() < 0.5 else None
        forest, scanned = (f(ranks, microbatches, slow) for f in (new_forest, Scanned))
        width = forest.added.shape[1] // 2
        levels = len(legal_degrees(ranks))
        assert forest.leads.shape[0] == levels
        there: list[tuple[int, int, range, float, int]] = []
        for _ in range(30):
            level = int(rng.integers(levels))
            block = int(rng.integers(len(blocks_of(ranks, level))))
            m, node = int(rng.integers(microbatches)), (width >> level) + block
            lanes = blocks_of(ranks, level)[block]
            action = rng.random()
            if action < 0.45:
                seconds, rows = float(rng.integers(0, 9)), int(rng.integers(0, 9))
                there.append((m, node, lanes, seconds, rows))
                change(forest, m, node, seconds, rows)
                scanned.change(m, lanes, seconds, rows)
            elif action < 0.7 and there:
                m, node, lanes, seconds, rows = there.pop(int(rng.integers(len(there))))
                change(forest, m, node, -seconds, -rows)
                scanned.change(m, lanes, -seconds, -rows)
            elif action < 0.85:
                bar(forest, m, node, level, True)
                scanned.barred[level][m, block] = True
            else:
                for j, b in np.argwhere(scanned.barred[level])[:3]:
                    bar(forest, j, (width >> level) + b, level, False)
                    scanned.barred[level][j, b] = False
            for k in range(levels):
                found_m, found_node, load = least_loaded(forest, k)
                wanted = scanned.least_loaded(k)
                assert load == wanted[0]
                if load < np.inf:
                    assert (found_m, found_node - (width >> k)) == wanted[1:]
        for k in range(levels):
            for block, lanes in enumerate(blocks_of(ranks, k)):
                for m in range(microbatches):
                    node = (width >> k) + block
                    held = block_max(forest.added, forest.highest, m, node)
                    rows = block_max(forest.rows_added, forest.rows_highest, m, node)
                    assert held == scanned.held[m, lanes].max()
                    assert rows == scanned.rows[m, lanes].max()


def test_slots_that_fill_and_empty_again_are_free() -> None:
    forest = new_forest(12, 2)
    change(forest, 0, 1, 5.0, 7)
    change(forest, 1, 1, 4.0, 2)
    assert least_loaded(forest, 4) == (1, 1, 4.0)
    change(forest, 0, 1, -5.0, -7)
    assert least_loaded(forest, 4) == (0, 1, 0.0)
    assert block_max(forest.rows_added, forest.rows_highest, 0, 1) == 0


def test_a_group_is_as_slow_as_its_slowest_lane() -> None:
    forest = new_forest(6, 1, np.array([1.0, 1.0, 1.0, 4.0, 0.5, 0.5]))
    assert forest.slow[[1, 4, 5, 6]].tolist() == [4.0, 1.0, 4.0, 0.5]
    change(forest, 0, 5, 1.0, 0)  # lanes 2 and 3
    assert block_max(forest.added, forest.highest, 0, 5) == 4.0
    fast = new_forest(6, 1, np.full(6, 0.5))
    change(fast, 0, 1, 1.0, 0)
    assert block_max(fast.added, fast.highest, 0, 1) == 0.5


def scan_placement(
    work: Work, cap: int, slow: FloatArray | None
) -> tuple[list[int], list[int]] | None:
    """Each sequence goes where it is done first; then the less loaded, then the first block."""
    slots = Scanned(work.ranks, work.microbatches, slow)
    microbatch, first = [-1] * len(work.load), [-1] * len(work.load)
    for i in np.lexsort((np.arange(len(work.load)), -work.level, -work.load)):
        possible = []
        for m in range(work.microbatches):
            for lanes in blocks_of(work.ranks, work.level[i]):
                if slots.rows[m, lanes].max() + work.rows[i] <= cap:
                    load = slots.held[m, lanes].max()
                    done = load + work.load[i] * slots.slow[lanes].max()
                    possible.append((done, load, m, lanes.start, lanes))
        if not possible:
            return None
        _, _, m, start, lanes = min(possible, key=lambda p: p[:4])
        slots.change(m, lanes, work.load[i], work.rows[i])
        microbatch[i], first[i] = m, start
    return microbatch, first


def first_ranks(work: Work, node: IntArray) -> IntArray:
    width = 1 << (work.ranks - 1).bit_length()
    return (node - (width >> work.level)) << work.level


SMALL = (1, 2, 3, 4, 5, 6, 7, 8, 10)
"""Pools whose slots are too few for the limit on compared blocks to matter."""


@settings(max_examples=60)
@given(works(SMALL), st.sampled_from([70, 150, 400, UNBOUNDED]), st.integers(0, 99), st.booleans())
def test_each_sequence_goes_where_a_scan_of_the_pool_would_put_it(
    work: Work, cap: int, seed: int, uneven: bool
) -> None:
    assert work.ranks * work.microbatches < MAX_COMPARED
    slow = np.random.default_rng(seed).choice(SPEEDS, work.ranks) if uneven else None
    found = place_forest(*work, cap, slow)
    wanted = scan_placement(work, cap, slow)
    if wanted is None:
        assert found is None
        return
    assert found is not None
    forest, microbatch, node = found
    first = first_ranks(work, node)
    assert (microbatch.tolist(), first.tolist()) == wanted
    assert in_slots(work.rows, work, microbatch, first).max() <= cap
    slots = Scanned(work.ranks, work.microbatches, slow)
    for i in range(len(work.load)):
        slots.change(microbatch[i], lanes_of(forest, work.level[i], node[i]), work.load[i], 0)
    assert forest.highest[:, 1].tolist() == slots.held.max(axis=1).tolist()


@settings(max_examples=40)
@given(works())
def test_pools_of_any_size_are_filled_as_by_a_scan(work: Work) -> None:
    found = place_forest(*work, UNBOUNDED)
    wanted = scan_placement(work, UNBOUNDED, None)
    assert found is not None
    assert wanted is not None
    assert found[1].tolist() == wanted[0]
    assert first_ranks(work, found[2]).tolist() == wanted[1]


@given(works())
def test_a_forest_filled_at_once_is_the_one_filled_step_by_step(work: Work) -> None:
    found = place_forest(*work, UNBOUNDED)
    assert found is not None
    forest, microbatch, node = found
    filled = filled_forest(work.ranks, work.microbatches, microbatch, node, work.load, work.rows)
    for name in Forest._fields:
        assert np.array_equal(getattr(filled, name), getattr(forest, name)), name


@pytest.mark.parametrize("lanes", [2, 65, 300])
def test_room_on_the_very_last_lane_is_found(lanes: int) -> None:
    # one lane is left emptier in rows, fuller in seconds; a last single needs its room
    count = lanes - 1
    load = np.array([*[5.0] * count, 6.0, 1.0])
    rows = np.array([*[8] * count, 1, 5])
    level = np.zeros(lanes + 1, np.int64)
    found = place_forest(load, rows, level, lanes, 1, 10)
    assert found is not None
    assert not found[0].barred[0, -lanes:].any() or lanes & (lanes - 1)
