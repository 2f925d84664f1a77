from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydraplan.layout import legal_degrees
from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.placement.fill import fill
from hydraplan.planner.placement.forest import new_forest
from hydraplan.planner.placement.repair import Options
from hydraplan.planner.placement.waiting import MAX_QUERIES
from tests.planner.placed import UNBOUNDED, blocks_of


class Filling(NamedTuple):
    """Sequences in the order they are placed; whole-number loads, so that sums are exact."""

    load_s: FloatArray
    floor: IntArray
    length: IntArray
    ranks: int
    microbatches: int
    cap: int
    slow: FloatArray


@st.composite
def fillings(draw: st.DrawFn) -> Filling:
    ranks, microbatches = draw(st.sampled_from([1, 2, 3, 5, 8, 12, 16])), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    count, levels = draw(st.integers(1, 40)), len(legal_degrees(ranks))
    load_s = np.ceil(rng.integers(1, 500, count)[:, None] / legal_degrees(ranks)) + 3.0
    load_s[:, 1:][load_s[:, 1:] >= np.minimum.accumulate(load_s, axis=1)[:, :-1]] = np.inf
    floor = np.minimum(rng.integers(0, 3, count), np.isfinite(load_s).sum(axis=1) - 1)
    floor = np.array(
        [np.flatnonzero(np.isfinite(r))[f] for r, f in zip(load_s, floor, strict=True)]
    )
    load_s[np.arange(levels) < floor[:, None]] = np.inf
    cap = draw(st.sampled_from([40, 120, UNBOUNDED]))
    slow = rng.choice([1.0, 2.0], ranks) if draw(st.booleans()) else np.ones(ranks)
    return Filling(load_s, floor, rng.integers(1, 60, count), ranks, microbatches, cap, slow)


def filled(f: Filling, limit_s: float) -> tuple[bool, int, list[IntArray], FloatArray]:
    count = len(f.floor)
    forest = new_forest(f.ranks, f.microbatches, f.slow)
    options = Options(np.arange(count), f.load_s, f.length, legal_degrees(f.ranks), f.cap)
    level, microbatch, node, rows = (np.zeros(count, np.int64) for _ in range(4))
    load_s = np.zeros(count)
    places = level, microbatch, node, load_s, rows
    done, queries = fill(forest, options, np.arange(count), f.floor, limit_s, *places)
    width = 1 << (f.ranks - 1).bit_length()
    first = (node - (width >> level)) << level
    return done, queries, [level, microbatch, first, rows], forest.highest[:, 1]


@given(fillings(), st.integers(1, 1500))
def test_each_takes_the_lowest_degree_that_a_scan_of_the_pool_finds_under_the_limit(
    f: Filling, limit_s: int
) -> None:
    done, _, (level, microbatch, first, rows), peaks = filled(f, limit_s)
    held_s, held = np.zeros((2, f.microbatches, f.ranks))
    degrees = legal_degrees(f.ranks)
    for i in range(len(f.floor)):
        best = (np.inf, -1, -1, -1)
        for k in range(f.floor[i], len(degrees)):
            cost_s = f.load_s[i, k]
            needs = min(-(-f.length[i] // degrees[k]) + (2 if k else 0), f.cap)
            if cost_s >= best[0] or cost_s == np.inf:
                continue
            ways = [
                (held_s[m, lanes].max(), m, lanes[0], f.slow[list(lanes)].max())
                for m in range(f.microbatches)
                for lanes in blocks_of(f.ranks, k)
                if held[m, lanes].max() + needs <= f.cap
            ]
            if ways:  # the least loaded, the first of equals
                load, m, start, slow = min(ways, key=lambda w: w[:3])
                if load + cost_s * slow < best[0]:
                    best = (load + cost_s * slow, k, m, start)
            if best[0] <= limit_s:
                break
        if best[1] < 0:
            assert not done
            return
        assert (level[i], microbatch[i], first[i]) == best[1:]
        lanes = slice(first[i], first[i] + degrees[level[i]])
        held_s[microbatch[i], lanes] += f.load_s[i, level[i]] * f.slow[lanes].max()
        held[microbatch[i], lanes] += rows[i]
    assert done
    assert held.max() <= f.cap
    assert peaks.tolist() == held_s.max(axis=1).tolist()


@pytest.mark.parametrize("cap", [60, UNBOUNDED])
def test_what_is_asked_does_not_grow_with_the_pool(cap: int) -> None:
    rng = np.random.default_rng(1)
    asked = []
    for ranks in (64, 1500, 16_384):
        degrees = legal_degrees(ranks)
        load_s = np.ceil(1000 / degrees) + rng.integers(1, 9, 200)[:, None]
        zeros = np.zeros(200, np.int64)
        length = rng.integers(1, 50, 200)
        one = Filling(load_s, zeros, length, ranks, 2, cap, np.ones(ranks))
        done, queries, _, _ = filled(one, 5000.0)
        assert queries <= 200 * MAX_QUERIES
        assert done or cap < UNBOUNDED
        asked.append(queries)
    if cap == UNBOUNDED:
        assert max(asked) <= 1.5 * min(asked)


def test_a_lower_limit_splits_more() -> None:
    rng = np.random.default_rng(2)
    degrees = legal_degrees(16)
    load_s = rng.integers(50, 400, 100)[:, None] / degrees + 2.0
    f = Filling(load_s, np.zeros(100, np.int64), rng.integers(1, 50, 100), 16, 4, UNBOUNDED,
                np.ones(16))  # fmt: skip
    work = [float((2 ** filled(f, limit)[2][0]).sum()) for limit in (1e9, 500.0, 400.0)]
    assert work == sorted(work)
    assert work[0] == 100
