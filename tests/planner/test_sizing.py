from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.cost import CostModel
from hydraplan.errors import Infeasible
from hydraplan.layout import legal_degrees, rank_tokens, rank_tokens_max
from hydraplan.model import IntArray
from hydraplan.planner.placement.cost_table import all_levels, cost_table
from hydraplan.planner.placement.degrees import offered_levels
from hydraplan.planner.placement.sizing import (
    Sized,
    fits,
    memory_floor,
    raised,
    shape_table,
    sized,
)
from tests.planner.cases import cost_model, long_tailed

ENGINES = ("nested", "ring")


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


def most_rows(length: int, u: int, r: int) -> int:
    """Rows of the fullest member, counted over all members."""
    return int(rank_tokens(np.array([length]), np.array([u]), np.array([r])).max())


def possible_levels(cost: CostModel, length: int, cap: int) -> list[int]:
    return [
        level
        for level, degree in enumerate(legal_degrees(cost.ranks))
        if any(most_rows(length, u, r) <= cap for u, r in cost.shapes(int(degree)))
    ]


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 700), st.integers(1, 40_000), st.sampled_from([1, 4, 12, 64]))
def test_the_floor_is_the_smallest_degree_whose_fullest_member_fits(
    cap: int, length: int, ranks: int
) -> None:
    cost, one, every = cost_model(ranks), np.array([length]), all_levels(ranks)
    possible = possible_levels(cost, length, cap)
    assert fits(cost, one, cap, every).tolist() == [bool(possible)]
    if not possible:
        assert memory_floor(cost, one, cap, every).tolist() == [len(every)]
        with pytest.raises(Infeasible):
            cost_table(cost, one, cap)
        return
    table = cost_table(cost, one, cap)
    assert memory_floor(cost, one, cap, every).tolist() == [min(possible)]
    assert table.floor.tolist() == [min(possible)]
    assert np.isfinite(table.load_s[0]).nonzero()[0].tolist() == list(
        range(min(possible), len(every))
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_the_floor_of_every_pool_is_found_by_brute_force(engine: str) -> None:
    """All pools from 1 to 70 ranks, caps from one token on, every second level left out too."""
    rng = np.random.default_rng(3)
    for ranks in range(1, 71):
        cost = replace(cost_model(ranks), engine=engine)
        degrees = legal_degrees(ranks)
        for cap in (1, 2, 40):
            length = np.unique(
                np.concatenate([rng.integers(1, cap * ranks + 3, 3), [1, cap, cap * ranks]])
            )
            for offered in (all_levels(ranks), np.arange(len(degrees)) % 2 == ranks % 2):
                floor = memory_floor(cost, length, cap, offered)
                for i, one in enumerate(length.tolist()):
                    usable = [k for k in possible_levels(cost, one, cap) if offered[k]]
                    assert floor[i] == min(usable, default=len(degrees)), (ranks, cap, one)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("cap", [None, 1, 2, 3, 5, 30, 4096])
def test_a_level_gets_its_cheapest_shape_that_fits(engine: str, cap: int | None) -> None:
    rng = np.random.default_rng(4)
    for ranks in (*range(1, 10), 12, 16, 24, 31, 48, 64, 65, 70):
        cost = replace(cost_model(ranks, pp=2), engine=engine)
        degrees = legal_degrees(ranks)
        length = np.concatenate([rng.integers(1, 9, 4), (cap or 9) * degrees, [12_345]])
        level = rng.integers(0, len(degrees), len(length))
        found = sized(cost, length, level, cap)
        assert (found.level == level).all()
        for i in range(len(length)):
            ways = []
            for u, r in cost.shapes(int(degrees[level[i]])):
                one = np.array([length[i]]), np.array([u]), np.array([r])
                rows = most_rows(int(length[i]), u, r)
                over = cap is not None and rows > cap
                ways.append((over, cost.sequence_s(*one)[:, :, 0].sum(axis=0).max(), rows, u))
            over, load_s, rows, u = min(ways)
            assert found.load_s[i] == pytest.approx(load_s, rel=1e-12)
            here = found.ulysses_size[i], found.ring_size[i]
            assert here[0] * here[1] == degrees[level[i]]
            assert found.rows[i] == most_rows(int(length[i]), *map(int, here))
            assert (found.rows[i] > (cap or 1 << 62)) == over


def test_the_whole_pool_is_a_degree_of_exact_rows() -> None:
    """A pool that is no power of two holds a sequence as `layout.rank_tokens` cuts it."""
    for ranks in (3, 5, 6, 12, 24, 37, 70):
        cost = cost_model(ranks)
        top = len(legal_degrees(ranks)) - 1
        length = np.arange(1, 6 * ranks)
        found = sized(cost, length, np.full_like(length, top))
        assert (found.ulysses_size * found.ring_size == ranks).all()
        for i, one in enumerate(length):
            shape = found.ulysses_size[i : i + 1], found.ring_size[i : i + 1]
            members = rank_tokens(np.array([one]), *shape)
            assert len(members) == ranks
            assert members.sum() == one
            assert found.rows[i] == members.max()


def with_shape(cost: CostModel, length: IntArray, level: IntArray, last: bool) -> Sized:
    """Levels in their first or last legal shape, whatever that holds."""
    table, degree = shape_table(cost), legal_degrees(cost.ranks)[level]
    row = table[level]
    u = np.where(last, row.max(axis=1), 1)
    load_s = np.ones(len(level))
    return Sized(level, load_s, rank_tokens_max(length, u, degree // u), u, degree // u)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 70), st.sampled_from(ENGINES), st.integers(1, 50), st.integers(0, 999),
    st.booleans(), st.integers(0, 3),
)  # fmt: skip
def test_what_exceeds_the_cap_goes_to_the_lowest_level_that_holds_it(
    ranks: int, engine: str, cap: int, seed: int, last: bool, kept: int
) -> None:
    cost = replace(cost_model(ranks), engine=engine)
    rng = np.random.default_rng(seed)
    levels = len(legal_degrees(ranks))
    offered = np.arange(levels) >= min(kept, levels - 1)
    length = rng.integers(1, cap * ranks + 1, 20)
    length = length[fits(cost, length, cap, offered)]
    if not len(length):
        return
    floor = memory_floor(cost, length, cap, offered)
    level = np.maximum(floor - rng.integers(0, 2, len(length)), 0)
    before = with_shape(cost, length, level, last)
    after = raised(cost, length, before, cap, offered)
    over = before.rows > cap
    assert (after.rows <= cap).all()
    assert (after.level == np.where(over, floor, level)).all()
    for name in ("load_s", "rows", "ulysses_size", "ring_size"):
        assert (getattr(after, name) == getattr(before, name))[~over].all()
    u, r = after.ulysses_size, after.ring_size
    assert (u * r == legal_degrees(ranks)[after.level]).all()
    assert (after.rows == rank_tokens_max(length, u, r)).all()
    again = raised(cost, length, after, cap, offered)
    assert (again.level == after.level).all()


@given(st.integers(1, 400), st.integers(0, 9), st.none() | st.integers(0, 400))
def test_offered_levels_keep_to_the_least_degree_and_the_number_of_groups(
    ranks: int, step: int, most: int | None
) -> None:
    degrees = legal_degrees(ranks)
    least = int(degrees[min(step, len(degrees) - 1)])
    offered = offered_levels(ranks, least, most)
    assert (degrees[offered] >= least).all()
    blocks = sum(ranks // int(d) for d in degrees[offered] if d > 1)
    if most is None:
        assert (offered == (degrees >= least)).all()
        return
    assert blocks <= most
    assert offered[0] == (least == 1)  # single ranks are no group
    out = [k for k in range(1, len(degrees)) if degrees[k] >= least and not offered[k]]
    if out:
        # the lowest go first: with the last of them back there would be too many
        assert not offered[1 : max(out)].any()
        assert blocks + ranks // int(degrees[max(out)]) > most


def test_offered_levels_of_a_pool_of_24() -> None:
    assert legal_degrees(24).tolist() == [1, 2, 4, 8, 16, 24]
    # pairs, fours, eights, the one aligned block of 16, the pool: 12 + 6 + 3 + 1 + 1 sets
    assert offered_levels(24, 1, 23).tolist() == [True] * 6
    assert offered_levels(24, 1, 22).tolist() == [True, False, True, True, True, True]
    assert offered_levels(24, 1, 1).tolist() == [True, False, False, False, False, True]
    assert offered_levels(24, 8, None).tolist() == [False, False, False, True, True, True]
    assert offered_levels(24, 24, 0).tolist() == [False] * 6


def test_bucketed_levels_are_sized_for_every_sequence_by_itself() -> None:
    cost = cost_model(ranks=16)
    length = long_tailed(300, 5)
    level = np.random.default_rng(5).integers(0, 5, 300)
    found = sized(cost, length, level)
    alone = [sized(cost, length[i : i + 1], level[i : i + 1]) for i in range(300)]
    assert found.load_s.tolist() == [float(s.load_s[0]) for s in alone]
    assert found.rows.tolist() == [int(s.rows[0]) for s in alone]
