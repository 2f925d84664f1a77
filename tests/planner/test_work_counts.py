"""Placement works on what it touches, never on the whole pool.

Two proofs. The counters of the compiled loops (heap entries touched, forest queries, sequences
looked at) do not grow with the pool while the sequences stay the same, and where the cap binds they
stay within a fixed number a sequence. And the plain Python of the same loops runs about as many
lines on 65,536 ranks as on 512, times the ratio of the logarithms: a loop over the pool anywhere
would add a line a rank.

Not counted is what happens once a placement: arrays of the size of all slots are set up (for a
pool that is no power of two, or a placement that no forest made, `forest._build` fills them in a
loop), and the sibling swap at the end walks over all slots once.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from math import log2
from pathlib import Path

import numpy as np
import pytest

from hydraplan.layout import legal_degrees
from hydraplan.model import IntArray
from hydraplan.planner.placement import lazy_heaps, lazy_split, min_max_forest, waiting
from hydraplan.planner.placement.block_tree import new_tree
from hydraplan.planner.placement.forest import filled_forest, new_forest
from hydraplan.planner.placement.repair import Options, repair
from tests.planner.counted import POOLS
from tests.planner.placed import UNBOUNDED, Work

ROOT = Path(__file__).parents[2]
COUNT = 200


def nowhere() -> tuple[IntArray, IntArray]:
    return np.full(COUNT, -1), np.full(COUNT, -1)


def heap_entries(work: Work, cap: int) -> tuple[bool, int]:
    order = np.lexsort((-work.level, -work.load))
    smallest = np.full(len(legal_degrees(work.ranks)), np.iinfo(np.int64).max)
    np.minimum.at(smallest, work.level, work.rows)
    trees = (*new_tree(work.microbatches, work.ranks), *new_tree(work.microbatches, work.ranks))
    return lazy_heaps._place(
        work.load[order], work.rows[order], work.level[order], smallest, work.ranks,
        work.microbatches, cap, *trees, *nowhere(),
    )  # fmt: skip


def split_entries(work: Work, cap: int) -> tuple[bool, int]:
    order = np.lexsort((-work.load, -work.level))
    pool = np.zeros(work.microbatches), np.zeros(work.microbatches, np.int64)
    return lazy_split._place(
        work.load[order], work.rows[order], work.level[order], work.ranks, work.microbatches,
        cap, *pool, *nowhere(),
    )  # fmt: skip


def forest_queries(work: Work, cap: int) -> tuple[bool, int]:
    order = np.lexsort((-work.level, -work.load))
    forest = new_forest(work.ranks, work.microbatches)
    return min_max_forest.place(forest, order, work.load, work.rows, work.level, cap, *nowhere())


def work_on(ranks: int, widest: str, full: bool) -> Work:
    """The same sequences on any pool; `widest` "pool" lets degrees grow with it."""
    rng = np.random.default_rng(0)
    load, rows = np.sort(rng.lognormal(0, 1, COUNT))[::-1].copy(), rng.integers(1, 50, COUNT)
    top = len(legal_degrees(ranks)) - 1
    level = rng.integers(0, 4 if widest == "8" else top + 1, COUNT)
    if full:  # cheap in seconds, so the first choice of all that follow, and filled to the cap
        level[-1], rows[-1], load[-1] = top, 60, load[0] + 1e-3
        level[-2], rows[-2], load[-2] = top, 6, 2 * load[0]
        rows[:-2] = 1
    return Work(load, rows, level, ranks, 2)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("cap", [UNBOUNDED, 400, 60])
@pytest.mark.parametrize("widest", ["8", "pool"])
@pytest.mark.parametrize(
    ("count", "limit"),
    [
        (heap_entries, lazy_heaps.MAX_SET_ASIDE + 1),
        (split_entries, lazy_split.MAX_TOUCHED),
        (forest_queries, waiting.MAX_QUERIES),
    ],
)
def test_what_is_touched_does_not_grow_with_the_pool(
    count: Callable[[Work, int], tuple[bool, int]], limit: int, widest: str, cap: int, full: bool
) -> None:
    touched = []
    for ranks in (64, 256, 1024, 4096, 16_384):
        done, here = count(work_on(ranks, widest, full), cap)
        assert done or cap < UNBOUNDED
        assert here <= COUNT * limit
        touched.append(here / log2(ranks))
    if cap == UNBOUNDED:  # else a small pool is too full to be compared with a large one
        assert touched[-1] <= touched[0]
        assert max(touched) <= 1.5 * touched[0]


def test_the_forest_asks_once_for_every_sequence_where_nothing_is_in_the_way() -> None:
    for ranks in (64, 1500, 16_384):
        assert forest_queries(work_on(ranks, "pool", False), UNBOUNDED) == (True, COUNT)


def test_a_full_pool_is_not_asked_for_lane_by_lane() -> None:
    """A wide sequence fills the microbatch that everything else would like best."""
    for ranks in (64, 4096, 16_384):
        work = work_on(ranks, "8", True)
        assert heap_entries(work, 60)[1] < 20 * COUNT
        assert forest_queries(work, 60)[1] <= COUNT * waiting.MAX_QUERIES
        assert split_entries(work, 60)[1] < 2 * COUNT


def test_repair_looks_at_the_same_sequences_on_any_pool() -> None:
    """All of them crowd on the first lanes; each step looks at those of one slot."""
    looked = []
    for ranks in (64, 1500, 16_384):
        degrees = legal_degrees(ranks)
        width = 1 << (ranks - 1).bit_length()
        work = work_on(ranks, "8", False)
        node = (width >> work.level) + np.arange(COUNT) % 4
        columns = [np.zeros(COUNT, np.int64), node, work.level.copy(), work.load.copy()]
        forest = filled_forest(ranks, 2, *columns[:2], work.load, work.rows)
        table = work.load[:, None] * (1 << work.level)[:, None] / degrees
        options = Options(np.arange(COUNT), table, work.rows << work.level, degrees, UNBOUNDED)
        moves, here = repair(forest, options, *columns, work.rows, 0.0, 100)
        assert moves > 50
        looked.append(here)
    assert max(looked) <= 1.1 * min(looked)


def test_plain_python_runs_no_loop_over_the_pool() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.planner.counted"],
        cwd=ROOT,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    small, large = POOLS
    allowed = 1.2 * log2(large) / log2(small)
    found = json.loads(done.stdout)
    assert len(found) == 11
    for name, (on_small, on_large) in found.items():
        assert on_large <= allowed * on_small, name
        assert allowed * on_small < on_large + large, name  # or a loop would not be seen
