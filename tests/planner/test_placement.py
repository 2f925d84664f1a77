import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.layout import legal_degrees
from hydraplan.planner.placement import memory_ffd
from hydraplan.planner.placement.block_tree import add_to_block, block_max, new_tree
from hydraplan.planner.placement.lazy_heaps import place_lazy_heaps
from hydraplan.planner.placement.lazy_split import place_lazy_split
from hydraplan.planner.placement.memory_ffd import place_first_fit
from tests.planner.placed import UNBOUNDED, Work, blocks_of, in_slots, works


def mirrored(lane: int, microbatch: int, width: int) -> int:
    """Where a microbatch counts this lane: bit by bit, halves change sides as its number says."""
    bits = width.bit_length() - 1
    return lane ^ sum((microbatch >> j & 1) << (bits - 1 - j) for j in range(bits))


@settings(max_examples=60)
@given(works())
def test_lazy_heaps_pick_what_a_scan_of_the_whole_pool_picks(work: Work) -> None:
    """The least loaded block; of equals the first as its microbatch counts, then microbatch."""
    found = place_lazy_heaps(*work, UNBOUNDED)
    assert found is not None
    width = 1 << (work.ranks - 1).bit_length()
    held = np.zeros((work.ranks, work.microbatches))
    for i in np.lexsort((np.arange(len(work.load)), -work.level, -work.load)):
        _, _, m, lanes = min(
            (held[lanes, m].max(), mirrored(lanes.start, m, width) >> work.level[i], m, lanes)
            for m in range(work.microbatches)
            for lanes in blocks_of(work.ranks, work.level[i])
        )
        assert (found[0][i], found[1][i]) == (m, lanes.start)
        held[lanes, m] += work.load[i]


@settings(max_examples=60)
@given(works())
def test_lazy_split_picks_the_least_loaded_block_of_what_is_open(work: Work) -> None:
    """By a scan: blocks of a pool are its binary digits, halved when a smaller degree takes one."""
    found = place_lazy_split(*work, UNBOUNDED)
    assert found is not None
    degrees = legal_degrees(work.ranks)
    held = np.zeros((work.ranks, work.microbatches))
    digits = [k for k in range(work.ranks.bit_length()) if work.ranks >> k & 1]
    digit_lanes = {k: work.ranks >> (k + 1) << (k + 1) for k in digits}
    opened: dict[tuple[int, int], int] = {}  # (microbatch, first lane): lanes
    for i in np.lexsort((np.arange(len(work.load)), -work.load, -work.level)):
        degree = int(degrees[work.level[i]])
        if degree & (degree - 1):  # a pool that is no block: the least loaded microbatch
            m = int(held[0].argmin())
            assert (found[0][i], found[1][i]) == (m, 0)
            held[:, m] += work.load[i]
            continue
        for k in digits:
            if 1 << k >= degree:
                for m in range(work.microbatches):
                    if not any(b == m and a <= digit_lanes[k] < a + n
                               for (b, a), n in opened.items()):  # fmt: skip
                        opened[m, digit_lanes[k]] = 1 << k
        _, m, first = min((held[a, m], m, a) for m, a in opened)
        while opened[m, first] > degree:
            opened[m, first] //= 2
            opened[m, first + opened[m, first]] = opened[m, first]
        assert (found[0][i], found[1][i]) == (m, first)
        held[first : first + degree, m] += work.load[i]


@given(works(), st.integers(64, 400))
@pytest.mark.parametrize("place", [place_lazy_heaps, place_lazy_split])
def test_no_placement_ever_breaks_the_cap(place, work: Work, cap: int) -> None:  # type: ignore[no-untyped-def]
    found = place(*work, cap)
    if found is not None:
        assert in_slots(work.rows, work, *found).max() <= cap


@given(works())
@pytest.mark.parametrize("place", [place_lazy_heaps, place_lazy_split])
def test_a_placement_is_found_whenever_every_rank_could_hold_everything(place, work: Work) -> None:  # type: ignore[no-untyped-def]
    found = place(*work, int(work.rows.sum()))
    assert found is not None
    held = in_slots(work.load, work, *found)
    assert held.sum() == work.load @ legal_degrees(work.ranks)[work.level]


@settings(max_examples=60)
@given(works(), st.integers(64, 200))
def test_first_fit_takes_the_first_block_with_room(work: Work, cap: int) -> None:
    degree = legal_degrees(work.ranks)[work.level]
    length = work.rows * degree
    microbatch, first, count = place_first_fit(work.rows, work.level, length, work.ranks, cap)
    held = np.zeros((work.ranks, len(work.rows)), np.int64)
    for i in np.lexsort((np.arange(len(work.rows)), -length, -work.level)):
        wanted = next(
            (m, lanes)
            for m in range(len(work.rows))
            for lanes in blocks_of(work.ranks, work.level[i])
            if held[lanes, m].max() + work.rows[i] <= cap
        )
        assert (microbatch[i], first[i]) == (wanted[0], wanted[1].start)
        held[wanted[1], wanted[0]] += work.rows[i]
    assert count == microbatch.max() + 1


@given(st.integers(0, 40), st.integers(-1, 10), st.lists(st.integers(0, 9), min_size=1))
def test_the_row_tree_finds_the_first_slot_with_room(
    begin: int, limit: int, held: list[int]
) -> None:
    slots = 1 << (len(held) - 1).bit_length()
    lowest = np.full(2 * slots, 99)
    lowest[slots : slots + len(held)] = held
    for node in range(slots - 1, 0, -1):
        lowest[node] = min(lowest[2 * node], lowest[2 * node + 1])
    wanted = next((i for i in range(begin, len(held)) if held[i] <= limit), -1)
    assert memory_ffd._first_at_most(lowest, slots, begin, limit) == wanted


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 7), st.integers(0, 9)), max_size=30))
def test_the_block_tree_knows_the_fullest_lane_of_every_block(
    adds: list[tuple[int, int, int]],
) -> None:
    added, highest = new_tree(1, 8)
    lanes = np.zeros(8)
    for level, at, amount in adds:
        block = at % (8 >> level)
        add_to_block(added, highest, 0, (8 >> level) + block, float(amount))
        lanes[block << level : (block + 1) << level] += amount
    for level in range(4):
        for block in range(8 >> level):
            wanted = lanes[block << level : (block + 1) << level].max()
            assert block_max(added, highest, 0, (8 >> level) + block) == wanted
