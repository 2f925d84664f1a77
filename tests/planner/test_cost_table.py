import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.errors import Infeasible
from hydraplan.layout import rank_tokens, rank_tokens_max
from hydraplan.planner.placement.cost_table import cost_table, fits, num_levels
from hydraplan.planner.placement.degrees import allowed_levels, choose_levels
from tests.planner.cases import cost_model, long_tailed


@given(st.integers(1, 5000), st.integers(0, 4), st.integers(0, 5))
def test_a_full_cap_on_every_member_always_fits(cap: int, inner: int, outer: int) -> None:
    u, r = 1 << inner, 1 << outer
    one = np.array([cap * u * r]), np.array([u]), np.array([r])
    assert rank_tokens_max(*one).tolist() == [cap]


@pytest.mark.parametrize("u", [1, 2, 8])
@pytest.mark.parametrize("r", [1, 2, 3, 8, 12, 64])
def test_the_fullest_member_is_the_largest_of_all_members(u: int, r: int) -> None:
    length = np.concatenate([np.arange(4 * u * r + 2), [4095, 99_991, 1 << 40]])
    inner, outer = np.full_like(length, u), np.full_like(length, r)
    members = rank_tokens(length, inner, outer).reshape(len(length), u * r)
    assert rank_tokens_max(length, inner, outer).tolist() == members.max(axis=1).tolist()


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 700), st.integers(1, 40_000), st.sampled_from([1, 4, 12, 64]))
def test_the_floor_is_the_smallest_degree_whose_fullest_member_fits(
    cap: int, length: int, ranks: int
) -> None:
    cost = cost_model(ranks)
    possible = [
        level
        for level in range(num_levels(ranks))
        if any(
            rank_tokens_max(np.array([length]), np.array([u]), np.array([r]))[0] <= cap
            for u, r in cost.shapes(1 << level)
        )
    ]
    assert fits(cost, np.array([length]), cap).tolist() == [bool(possible)]
    if not possible:
        with pytest.raises(Infeasible):
            cost_table(cost, np.array([length]), cap)
        return
    table = cost_table(cost, np.array([length]), cap)
    assert table.floor.tolist() == [min(possible)]
    assert np.isfinite(table.load_s[0]).nonzero()[0].tolist() == possible


def test_each_degree_takes_its_cheapest_legal_shape_under_the_cap() -> None:
    cost = cost_model(ranks=32, pp=2)
    length = long_tailed(50, 3)
    table = cost_table(cost, length, 4096)
    for level in range(table.num_levels):
        for i in range(len(length)):
            costs = []
            for u, r in cost.shapes(1 << level):
                one = np.array([length[i]]), np.array([u]), np.array([r])
                if rank_tokens_max(*one)[0] <= 4096:
                    # the last stage is the costliest, it holds the loss
                    costs.append((cost.sequence_s(*one)[:, 1, 0].sum(), u))
            if costs:
                assert table.load_s[i, level] == pytest.approx(min(costs)[0], rel=1e-12)
                assert table.ulysses_size[i, level] == min(costs)[1]
            else:
                assert table.load_s[i, level] == np.inf


def test_a_degree_that_no_longer_pays_is_clipped() -> None:
    table = cost_table(cost_model(ranks=128), np.array([512]), 4096)
    allowed = allowed_levels(table, eta=1e9)[0]
    loads = table.load_s[0, allowed]
    assert (np.diff(loads) < 0).all()
    assert not allowed[-1]  # 4 tokens a rank only add latency


@given(st.floats(0, 2))
def test_the_guard_bounds_the_rank_work_of_every_allowed_degree(eta: float) -> None:
    table = cost_table(cost_model(ranks=64), long_tailed(40, 9), 2048)
    allowed = allowed_levels(table, eta)
    i = np.arange(40)
    base = table.rank_work_s[i, table.floor]
    assert allowed[i, table.floor].all()
    work = np.where(allowed, table.rank_work_s, 0)
    assert (work <= (1 + eta) * base[:, None] * (1 + 1e-12)).all()


def test_longer_sequences_never_get_smaller_degrees() -> None:
    length = np.arange(100, 60_000, 500)
    table = cost_table(cost_model(ranks=64), length, 4096)
    allowed = allowed_levels(table, 0.3)
    for limit_s in (0.001, 0.01, 0.1):
        level = choose_levels(table, np.isfinite(table.load_s), limit_s)
        meets = table.load_s[np.arange(len(length)), level] <= limit_s
        assert (np.diff(level[meets]) >= 0).all()
        assert (choose_levels(table, allowed, limit_s) >= table.floor).all()
