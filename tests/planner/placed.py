"""Random work for the placement structures, and slow counting of what a placement holds."""

from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from hydraplan.layout import legal_degrees
from hydraplan.model import FloatArray, IntArray

UNBOUNDED = 1 << 40
"""A cap that never binds."""


class Work(NamedTuple):
    """Whole-number loads (exact sums), rows, levels; ranks, microbatches."""

    load: FloatArray
    rows: IntArray
    level: IntArray
    ranks: int
    microbatches: int


POOLS = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 24, 32, 33]


@st.composite
def works(draw: st.DrawFn, pools: tuple[int, ...] = tuple(POOLS)) -> Work:
    """Sequences of every level, the whole pool too, on pools of any size."""
    ranks, count = draw(st.sampled_from(pools)), draw(st.integers(1, 60))
    top = len(legal_degrees(ranks)) - 1
    level = draw(st.lists(st.integers(0, top), min_size=count, max_size=count))
    load = draw(st.lists(st.integers(1, 1000), min_size=count, max_size=count))
    rows = draw(st.lists(st.integers(1, 64), min_size=count, max_size=count))
    arrays = np.array(load, float), np.array(rows), np.array(level)
    return Work(*arrays, ranks, draw(st.integers(1, 6)))


def in_slots(
    amount: IntArray | FloatArray, work: Work, microbatch: IntArray, first_rank: IntArray
) -> FloatArray:
    """Amount in every slot, counted one by one; checks alignment and range on the way."""
    total = np.zeros((work.ranks, work.microbatches))
    degrees = legal_degrees(work.ranks)
    for i, (m, first) in enumerate(zip(microbatch, first_rank, strict=True)):
        degree = degrees[work.level[i]]
        assert first % degree == 0
        assert 0 <= first <= work.ranks - degree
        assert 0 <= m < work.microbatches
        total[first : first + degree, m] += amount[i]
    return total


def blocks_of(ranks: int, level: int) -> list[range]:
    """Lanes of the aligned blocks of a level; the whole pool is one."""
    degree = int(legal_degrees(ranks)[level])
    return [range(b * degree, (b + 1) * degree) for b in range(ranks // degree)]
