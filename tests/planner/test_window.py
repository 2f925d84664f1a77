import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydraplan.planner.placement.cost_table import cost_table
from hydraplan.planner.placement.degrees import guard
from hydraplan.planner.placement.load_target import solve
from hydraplan.planner.placement.window import (
    ALL_UP_TO,
    SPREAD,
    Window,
    best_count,
    counts_over,
    counts_to_try,
    least_imbalance,
    microbatch_window,
)
from tests.planner.cases import cost_model, long_tailed


def test_tokens_bound_the_window_from_below() -> None:
    length = np.full(64, 1000)
    table = cost_table(cost_model(ranks=4), length, 4000)
    # 64,000 tokens on 4 ranks of 4,000; attention of 1,000 tokens adds a little to linear work
    window = microbatch_window(table, length, 4, 4000)
    assert window.memory == 4
    assert window.low in (4, 5)


def test_the_least_splittable_sequence_bounds_it_from_above() -> None:
    cost = cost_model(ranks=8)
    length = np.array([60_000, *[2000] * 40])
    table = cost_table(cost, length, 8192)
    window = microbatch_window(table, length, 8, 8192)
    floor_s = min(
        cost.sequence_s(np.array([60_000]), np.array([u]), np.array([r])).sum()
        for u, r in cost.shapes(8)
    )
    work_s = table.rank_work_s.min(axis=1) @ table.count
    assert window.high == int(work_s // (8 * floor_s))


def test_a_pool_too_small_for_its_longest_sequence_has_an_empty_window() -> None:
    length = np.array([60_000, *[200] * 40])
    table = cost_table(cost_model(ranks=8), length, 8192)
    assert microbatch_window(table, length, 8, 8192).is_empty


def test_the_best_count_is_near_the_best_of_a_sweep() -> None:
    ranks, stages = 64, 8
    length = long_tailed(2000, 1, longest=30_000)
    table = cost_table(cost_model(ranks=ranks, pp=stages), length, 8192)
    guarded = guard(table, 0.3)

    def iteration_s(m: int) -> float:
        work = solve(table, guarded, ranks * m, 1.0).rank_work_s
        return (m + stages - 1) * (work / (ranks * m) + table.fixed_s)

    window = microbatch_window(table, length, ranks, 8192)
    best = min(iteration_s(m) for m in range(window.low, 200))
    star = round(np.clip(best_count(table, window, ranks, stages), window.low, 199))
    assert iteration_s(star) <= 1.02 * best


def test_one_stage_has_no_fill_and_wants_the_fewest_microbatches() -> None:
    length = long_tailed(200, 2)
    table = cost_table(cost_model(ranks=16), length, 8192)
    window = microbatch_window(table, length, 16, 8192)
    assert best_count(table, window, 16, 1) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("best", [0.0, 3.0, 25.0, 1e6])
def test_counts_include_the_ends_of_an_open_window_and_never_go_below_memory(best: float) -> None:
    short, long = Window(4, 4 + ALL_UP_TO - 1, 3), Window(20, 90, 5)
    assert set(range(4, 4 + ALL_UP_TO)) <= set(counts_to_try(best, short, 10**6))
    counts = counts_to_try(best, long, 10**6)
    # 0.65 and 0.8 of the low end, and up to one and a half of the high end as well
    assert {13, 16, 20, 90, 108, 135} <= set(counts)
    assert all(5 < m <= 135 for m in counts)


def test_an_empty_window_is_searched_from_what_memory_asks_for() -> None:
    counts = counts_to_try(12.0, Window(40, 9, 20), 10**6)
    assert min(counts) == 20
    assert max(counts) > 20


def test_there_are_never_more_microbatches_than_sequences_unless_memory_asks() -> None:
    assert max(counts_to_try(50.0, Window(2, 90, 2), 7)) <= 7


def test_a_second_look_covers_an_open_window_and_no_empty_one() -> None:
    assert counts_over(Window(4, 9, 4)) == [4, 5, 6, 7, 8, 9]
    counts = counts_over(Window(18, 1000, 18))
    assert (counts[0], counts[-1], len(counts)) == (18, 1000, SPREAD)
    assert counts_over(Window(9, 4, 2)) == []


def test_pigeonholes_bound_the_imbalance() -> None:
    equal, ones = np.full(10, 2.0), np.ones(10, np.int64)
    assert least_imbalance(equal, ones, 0.0, 10) == 1.0
    assert least_imbalance(equal, ones, 0.0, 9) == pytest.approx(4.0 / (20 / 9))
    assert least_imbalance(equal, ones, 1.0, 5) == 1.0
    assert least_imbalance(equal, 2 * ones, 0.0, 20) == 1.0
    assert least_imbalance(np.array([9.0, 1.0]), ones[:2], 1.0, 2) == pytest.approx(10 / 6)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 40)), min_size=1), st.integers(1, 50))
def test_buckets_of_pieces_are_as_good_as_single_pieces(
    kinds: list[tuple[int, int]], slots: int
) -> None:
    load_s, count = np.array(kinds, float)[:, 0], np.array(kinds)[:, 1]
    single = np.sort(np.repeat(load_s, count))[::-1]
    fullest = max((k + 1) * single[k * slots] for k in range(-(-len(single) // slots)))
    wanted = (3.0 + fullest) / (3.0 + single.sum() / slots)
    assert least_imbalance(load_s, count, 3.0, slots) == pytest.approx(wanted)


@pytest.mark.parametrize("seed", range(20))
def test_no_placement_beats_the_pigeonhole_bound(seed: int) -> None:
    random = np.random.default_rng(seed)
    load_s = random.integers(1, 9, 6).astype(float)
    best = min(
        np.bincount(slots, load_s, 3).max() for slots in itertools.product(range(3), repeat=6)
    )
    bound = least_imbalance(load_s, np.ones(6, np.int64), 0.0, 3)
    assert bound <= best / (load_s.sum() / 3) + 1e-12
