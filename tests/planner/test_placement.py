import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.model import IntArray
from hydraplan.planner.placement import lazy_heaps, lazy_split, memory_ffd
from hydraplan.planner.placement.block_tree import add_to_block, block_max, new_tree
from hydraplan.planner.placement.lazy_heaps import place_lazy_heaps
from hydraplan.planner.placement.lazy_split import place_lazy_split
from hydraplan.planner.placement.memory_ffd import place_first_fit

UNBOUNDED = 1 << 40


@st.composite
def batches(draw: st.DrawFn) -> tuple[IntArray, IntArray, IntArray, int, int]:
    """Whole-number loads (exact sums), rows, levels, ranks, microbatches."""
    ranks = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 32]))
    top = ranks.bit_length() - 1
    count = draw(st.integers(1, 60))
    level = np.array(draw(st.lists(st.integers(0, top), min_size=count, max_size=count)))
    load = np.array(draw(st.lists(st.integers(1, 1000), min_size=count, max_size=count)))
    rows = np.array(draw(st.lists(st.integers(1, 64), min_size=count, max_size=count)))
    return load, rows, level, ranks, draw(st.integers(1, 6))


def slots_of(
    amount: IntArray, level: IntArray, place: tuple[IntArray, IntArray], ranks: int, m: int
) -> IntArray:
    """Amount in every slot, counted one by one; checks alignment and range on the way."""
    total = np.zeros((ranks, m), np.int64)
    for i, (microbatch, first) in enumerate(zip(*place, strict=True)):
        degree = 1 << level[i]
        assert first % degree == 0
        assert 0 <= first <= ranks - degree
        assert 0 <= microbatch < m
        total[first : first + degree, microbatch] += amount[i]
    return total


@settings(deadline=None)
@given(batches())
def test_lazy_heaps_pick_what_a_scan_of_the_whole_pool_picks(batch: tuple) -> None:  # type: ignore[type-arg]
    load, rows, level, ranks, m = batch
    found = place_lazy_heaps(load.astype(float), rows, level, ranks, m, UNBOUNDED)
    assert found is not None
    held = np.zeros((ranks, m), np.int64)
    for i in np.lexsort((np.arange(len(load)), -level, -load)):
        degree, blocks = 1 << level[i], ranks >> level[i]
        candidates = []
        for item in range(blocks * m):
            microbatch = item % m
            first = (item // m + microbatch) % blocks * degree
            fullest = held[first : first + degree, microbatch].max()
            candidates.append((fullest, item, microbatch, first))
        _, _, microbatch, first = min(candidates)
        assert (found[0][i], found[1][i]) == (microbatch, first)
        held[first : first + degree, microbatch] += load[i]


@settings(deadline=None)
@given(batches(), st.integers(64, 400))
@pytest.mark.parametrize("place", [place_lazy_heaps, place_lazy_split])
def test_no_placement_ever_breaks_the_cap(place, batch: tuple, cap: int) -> None:  # type: ignore[no-untyped-def,type-arg]
    load, rows, level, ranks, m = batch
    found = place(load.astype(float), rows, level, ranks, m, cap)
    if found is not None:
        assert slots_of(rows, level, found, ranks, m).max() <= cap


@settings(deadline=None)
@given(batches())
def test_lazy_split_stays_within_one_share_of_the_mean(batch: tuple) -> None:  # type: ignore[type-arg]
    load, rows, level, _, m = batch
    ranks = 32  # a whole block, so that every degree can go anywhere
    found = place_lazy_split(load.astype(float), rows, level, ranks, m, UNBOUNDED)
    assert found is not None
    held = slots_of(load, level, found, ranks, m)
    assert held.sum() == (load << level).sum()
    assert held.max() <= held.mean() + load.max()


@settings(deadline=None)
@given(batches())
@pytest.mark.parametrize("place", [place_lazy_heaps, place_lazy_split])
def test_a_placement_is_found_whenever_every_rank_could_hold_everything(
    place, batch: tuple
) -> None:  # type: ignore[no-untyped-def,type-arg]
    load, rows, level, ranks, m = batch
    found = place(load.astype(float), rows, level, ranks, m, int(rows.sum()))
    assert found is not None
    assert (found[1] >= 0).all()


@settings(deadline=None, max_examples=30)
@given(batches(), st.integers(64, 300))
def test_compiled_loops_equal_their_python_source(batch: tuple, cap: int) -> None:  # type: ignore[type-arg]
    load, rows, level, ranks, m = batch
    order = np.argsort(-load, kind="stable")
    smallest = np.full(ranks.bit_length(), 1)
    results = []
    for run in (lazy_heaps._place, lazy_heaps._place.py_func):  # type: ignore[attr-defined]
        node, microbatch = np.full(len(load), -1), np.full(len(load), -1)
        trees = (*new_tree(m, ranks), *new_tree(m, ranks))
        done = run(
            load[order].astype(float), rows[order], level[order], smallest, ranks, m, cap,
            *trees, node, microbatch,
        )  # fmt: skip
        results.append((done, node.tolist(), microbatch.tolist()))
    assert results[0] == results[1]
    order = np.lexsort((-load, -level))
    results = []
    for run in (lazy_split._place, lazy_split._place.py_func):  # type: ignore[attr-defined]
        first, microbatch = np.full(len(load), -1), np.full(len(load), -1)
        done = run(
            load[order].astype(float), rows[order], level[order], np.ones_like(rows), ranks, m,
            cap, first, microbatch,
        )  # fmt: skip
        results.append((done, first.tolist(), microbatch.tolist()))
    assert results[0] == results[1]


@settings(deadline=None)
@given(batches(), st.integers(64, 200))
def test_first_fit_takes_the_first_block_with_room(batch: tuple, cap: int) -> None:  # type: ignore[type-arg]
    _, rows, level, ranks, _ = batch
    length = rows << level
    microbatch, first, count = place_first_fit(rows, level, length, ranks, cap)
    held = np.zeros((ranks, len(rows)), np.int64)
    for i in np.lexsort((np.arange(len(rows)), -length, -level)):
        degree = 1 << level[i]
        wanted = next(
            (m, lane)
            for m in range(len(rows))
            for lane in range(0, ranks // degree * degree, degree)
            if held[lane : lane + degree, m].max() + rows[i] <= cap
        )
        assert (microbatch[i], first[i]) == wanted
        held[wanted[1] : wanted[1] + degree, wanted[0]] += rows[i]
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


def test_lookups_grow_with_sequences_and_not_with_the_pool() -> None:
    touched = []
    for ranks in (64, 256, 1024):
        count = 4 * ranks
        rng = np.random.default_rng(0)
        load = np.sort(rng.lognormal(0, 1, count))[::-1].copy()
        level = rng.integers(0, 4, count)
        trees = (*new_tree(8, ranks), *new_tree(8, ranks))
        node, microbatch = np.full(count, -1), np.full(count, -1)
        done, looked_up = lazy_heaps._place(
            load, np.ones(count, np.int64), level, np.ones(ranks.bit_length(), np.int64), ranks,
            8, UNBOUNDED, *trees, node, microbatch,
        )  # fmt: skip
        assert done
        touched.append(looked_up / count)
    assert max(touched) < 60
    assert touched[2] < 1.5 * touched[0]
