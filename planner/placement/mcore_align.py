"""How Megatron-Core rounds the number of microbatches up for interleaved pipelines.

Microbatches are visited from the last to the first, and round again; each that holds two sets of
ranks or more is halved. The half of higher ranks stays in its place, the half of lower ranks
becomes the last microbatch, and each grows over the ranks it lost. Nothing is ever merged.
"""

import numpy as np

from hydraplan.errors import Infeasible, many
from hydraplan.model import IntArray
from hydraplan.planner.placement.mcore_fill import grow_sets
from hydraplan.planner.placement.mcore_sets import RankSets, pushed_out


def align(placed: RankSets, num_ranks: int, multiple: int) -> RankSets:
    """Halve microbatches until their number is a multiple of `multiple`.

    Raises:
        Infeasible: Every microbatch holds a single set, or a half cannot grow over the pool.

    Source: `docs/mcore-rules.md` section 2; where the halves go was reconstructed from
    reference case 13.
    """
    microbatch, rank_set = placed.microbatch.copy(), placed.rank_set.copy()
    sizes = list(placed.sizes)
    at, whole = len(sizes) - 1, 0
    while len(sizes) % multiple:
        if whole == len(sizes):
            raise Infeasible(
                f"{many(whole, 'microbatch')} cannot become a multiple of {multiple}: each holds a"
                " single set of ranks, and microbatches are halved between sets; Megatron-Core"
                " fails there with an assertion, no tail microbatch has enough ids to split",
                "use a smaller --microbatch-multiple, or another strategy",
            )
        if len(sizes[at]) > 1:
            cut = first_of_upper_half(sizes[at], num_ranks)
            low, high = sizes[at][:cut].copy(), sizes[at][cut:].copy()
            for half in (low, high):  # unlike elsewhere, a set never stops short of doubling
                if not grow_sets(half, num_ranks, 2 * num_ranks):
                    raise pushed_out(at, num_ranks)
            here, lower = microbatch == at, rank_set < cut
            microbatch[here & lower] = len(sizes)
            rank_set[here & ~lower] -= cut
            sizes[at] = high
            sizes.append(low)
            whole = 0
        else:
            whole += 1
        at = (at - 1) % len(sizes)
    return RankSets(microbatch, rank_set, tuple(sizes))


def first_of_upper_half(sizes: IntArray, num_ranks: int) -> int:
    """The first set that begins at or after half the pool; sizes must not ascend."""
    first_rank = np.cumsum(sizes) - sizes
    return int(np.searchsorted(2 * first_rank, num_ranks))
