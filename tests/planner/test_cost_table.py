import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.errors import Infeasible
from hydraplan.layout import legal_degrees
from hydraplan.model import IntArray
from hydraplan.planner.placement.cost_table import (
    EXACT_UP_TO,
    LONGEST_EXACT,
    CostTable,
    cost_table,
    histogram,
)
from hydraplan.planner.placement.degrees import (
    choose_levels,
    falling_load_s,
    guard,
    within_guard,
)
from hydraplan.planner.placement.sizing import memory_floor
from tests.planner.cases import cost_model, long_tailed


def of_each(table: CostTable, column: IntArray) -> IntArray:
    """A column of the table as one entry a sequence."""
    return column[table.bucket]


def test_each_degree_takes_its_cheapest_legal_shape() -> None:
    cost = cost_model(ranks=32, pp=2)
    length = long_tailed(50, 3)
    table = cost_table(cost, length, 4096)
    for level, degree in enumerate(legal_degrees(32)):
        for i in range(len(length)):
            row = table.bucket[i]
            if level < table.floor[row]:
                assert table.load_s[row, level] == np.inf
                continue
            costs = []
            for u, r in cost.shapes(int(degree)):
                one = np.array([length[i]]), np.array([u]), np.array([r])
                costs.append((cost.sequence_s(*one)[:, :, 0].sum(axis=0).max(), u))
            assert table.load_s[row, level] == pytest.approx(min(costs)[0], rel=1e-12)
            assert table.ulysses_size[row, level] == min(costs)[1]


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 5000), st.integers(0, 1000), st.booleans())
def test_buckets_hold_like_lengths_of_one_memory_floor(count: int, seed: int, many: bool) -> None:
    count += 3000 * many
    length = long_tailed(count, seed)
    cost, cap = cost_model(ranks=24), 3000
    offered = np.ones(6, bool)
    floor = memory_floor(cost, length, cap, offered)
    bucket, shortest, held = histogram(length, floor)
    assert held.sum() == count
    assert held.tolist() == np.bincount(bucket).tolist()
    for row in range(len(held)):
        inside = length[bucket == row]
        assert length[shortest[row]] == inside.min()
        assert len(np.unique(floor[bucket == row])) == 1
        # 64 steps an octave, and lengths are whole numbers
        assert inside.max() - inside.min() < max(1, inside.min() / 64 + 1)
        if count <= EXACT_UP_TO or row >= len(held) - LONGEST_EXACT:
            assert inside.max() == inside.min()


def test_a_large_batch_keeps_its_work_and_its_costliest_sequence() -> None:
    cost = cost_model(ranks=64, pp=2)
    length = np.append(long_tailed(5000, 4), 300_000)
    table = cost_table(cost, length, 8192)
    assert len(table.count) < 1200
    work_s = 0.0
    for level, degree in enumerate(legal_degrees(64)):
        on = of_each(table, table.floor) == level
        costs = [
            cost.sequence_s(length[on], np.full(on.sum(), u), np.full(on.sum(), r))
            for u, r in cost.shapes(int(degree))
        ]
        work_s += float(np.min([c.sum(axis=0).max(axis=0) for c in costs], axis=0).sum()) * degree
    at_floor = table.rank_work_s[np.arange(len(table.floor)), table.floor]
    assert float(at_floor @ table.count) == pytest.approx(work_s, rel=2e-4)
    loads = [
        cost.sequence_s(np.array([300_000]), np.array([u]), np.array([r]))[:, :, 0]
        .sum(axis=0)
        .max()
        for degree in legal_degrees(64)[of_each(table, table.floor)[-1] :]
        for u, r in cost.shapes(int(degree))
    ]
    assert table.floor_s == pytest.approx(min(loads), rel=1e-12)


def test_what_no_degree_holds_is_refused_by_length() -> None:
    with pytest.raises(Infeasible, match="no degree up to 8 holds 8001 tokens in 1000"):
        cost_table(cost_model(ranks=8), np.array([10, 8001]), 1000)


def test_levels_that_are_not_offered_cost_infinitely_much() -> None:
    offered = np.array([False, True, False, True])
    table = cost_table(cost_model(ranks=8), np.array([100, 9000]), 2000, offered)
    assert np.isfinite(table.load_s).tolist() == [
        [False, True, False, True],
        [False, False, False, True],
    ]
    assert table.floor.tolist() == [1, 3]


def test_a_degree_that_no_longer_pays_is_clipped() -> None:
    table = cost_table(cost_model(ranks=128), np.array([512]), 4096)
    falling = falling_load_s(table)[0]
    pays = np.isfinite(falling)
    assert (np.diff(falling[pays]) < 0).all()
    assert not pays[-1]  # 4 tokens a rank only add latency


@given(st.floats(0, 2))
def test_the_guard_bounds_the_rank_work_of_every_allowed_degree(eta: float) -> None:
    table = cost_table(cost_model(ranks=64), long_tailed(40, 9), 2048)
    within = within_guard(table, eta)
    i = np.arange(len(table.floor))
    base = table.rank_work_s[i, table.floor]
    assert within[i, table.floor].all()
    work = np.where(within, table.rank_work_s, 0)
    assert (work <= (1 + eta) * base[:, None] * (1 + 1e-12)).all()
    beyond = np.where(within, np.inf, table.rank_work_s)
    assert (beyond >= (1 + eta) * base[:, None] * (1 - 1e-12)).all()


def test_longer_sequences_never_get_smaller_degrees() -> None:
    length = np.arange(100, 60_000, 500)
    table = cost_table(cost_model(ranks=64), length, 4096)
    for limit_s in (0.001, 0.01, 0.1):
        level = of_each(table, choose_levels(guard(table, np.inf), 1.0, limit_s))
        meets = table.load_s[table.bucket, level] <= limit_s
        assert (np.diff(level[meets]) >= 0).all()
        guarded = choose_levels(guard(table, 0.3), 1.0, limit_s)
        assert (guarded >= table.floor).all()
