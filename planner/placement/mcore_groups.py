"""One microbatch after another, as the first two generations of Megatron-Core make them.

Longest first, each microbatch takes what `mcore_buckets` gives it, then its sets grow over the
ranks left empty. What is left over, in its order, is the list of the next. The number of
microbatches is whatever comes out.
"""

import numpy as np

from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.compiled import compiled
from hydraplan.planner.placement.mcore_buckets import place_group
from hydraplan.planner.placement.mcore_fill import grow_sets
from hydraplan.planner.placement.mcore_sets import RankSets, pushed_out
from hydraplan.planner.placement.mcore_trim import trim_sets


def group_sets(
    length_tokens: IntArray, degree: IntArray, num_ranks: int, cap_tokens: float, trims: bool
) -> RankSets:
    """Place every sequence, microbatch by microbatch.

    Args:
        degree: Ranks of each sequence before sets grow, at most `num_ranks`.
        cap_tokens: Most length over degree that a set may hold in sum; may be infinite.
        trims: Whether the busiest sets give work back.

    Raises:
        Infeasible: Work is pushed out of a pool that is no power of two.

    Source: `docs/mcore-rules.md` sections 1 and 2; ties of length keep the input order.
    """
    by = np.argsort(-length_tokens, kind="stable")
    length, degree = length_tokens[by].astype(np.float64), degree[by]
    degrees, kind = np.unique(degree, return_inverse=True)
    count = len(by)
    microbatch, rank_set, set_size, set_end = (np.empty(count, np.int64) for _ in range(4))
    groups = _groups(
        length * length / degree,
        length / degree,
        kind,
        degrees,
        num_ranks,
        cap_tokens,
        trims,
        microbatch,
        rank_set,
        set_size,
        set_end,
    )
    if groups < 0:
        raise pushed_out(-groups - 1, num_ranks)
    position = np.empty(count, np.int64)
    position[by] = np.arange(count)
    sizes = np.split(set_size[: set_end[groups - 1]], set_end[: groups - 1])
    return RankSets(microbatch[position], rank_set[position], tuple(sizes))


@compiled
def _groups(
    work: FloatArray,
    share: FloatArray,
    kind: IntArray,
    degrees: IntArray,
    num_ranks: int,
    cap_tokens: float,
    trims: bool,
    microbatch: IntArray,
    rank_set: IntArray,
    set_size: IntArray,
    set_end: IntArray,
) -> int:
    """Fill the last four arrays; the number of microbatches, or -1 - m if m crashes."""
    rest = np.arange(len(work))
    set_of = np.empty(len(work), np.int64)
    set_kind, set_load = np.empty(num_ranks, np.int64), np.empty(num_ranks)
    group, begin = 0, 0
    while len(rest) > 0:
        here, left_work = set_of[: len(rest)], work[rest]
        sets = place_group(
            left_work,
            share[rest],
            kind[rest],
            degrees,
            num_ranks,
            cap_tokens,
            here,
            set_kind,
            set_load,
        )
        sizes = set_size[begin : begin + sets]
        sizes[:] = degrees[set_kind[:sets]]
        left = rest[here < 0]
        if trims and sizes.sum() == num_ranks:
            removed = trim_sets(here, left_work, set_load[:sets])
            left = np.concatenate((left, rest[removed]))
        if not grow_sets(sizes, num_ranks, num_ranks):
            return -1 - group
        for i in range(len(rest)):
            if here[i] >= 0:
                microbatch[rest[i]], rank_set[rest[i]] = group, here[i]
        begin += sets
        set_end[group] = begin
        rest = left
        group += 1
    return group
