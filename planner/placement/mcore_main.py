"""The first generation of Megatron-Core's dynamic CP, the only one on its main branch.

BalancedCPScheduler (read at d98e8a64, 2026-08-22). A rank runs its sequences of a microbatch in
turn, with a barrier after each microbatch: nothing is packed, so the cap binds every sequence
alone, and the genuine one demands a single pipeline stage. Degrees come from memory alone. A
microbatch that ends with few free ranks can queue hundreds of short sequences on one of them.
"""

import numpy as np

from hydraplan.model import IntArray
from hydraplan.planner.placement.mcore_groups import group_sets
from hydraplan.planner.placement.mcore_sets import memory_degree


def schedule_main(
    length_tokens: IntArray,
    num_ranks: int,
    max_tokens_per_rank: int,
    sequence_id: IntArray | None = None,
) -> tuple[IntArray, IntArray, IntArray]:
    """Microbatch, first rank and degree of each sequence, in input order, shape (num_sequences,).

    Args:
        length_tokens: All at least 1; equal lengths keep their order.
        sequence_id: What messages call the sequences; their position where None.

    Raises:
        Infeasible: Where the genuine scheduler fails: a sequence needs too many ranks, or work
            is pushed out of a pool that is no power of two.

    Source: `docs/mcore-rules.md` section 1.
    """
    degree = memory_degree(length_tokens, num_ranks, max_tokens_per_rank, 1, sequence_id)
    return group_sets(length_tokens, degree, num_ranks, np.inf, True).places()
