"""The second generation of Megatron-Core's dynamic CP, the first that packs and pipelines.

`default_dynamic_cp` as PR #2000 brought it, on the dev branch from 2026-04-07 to 2026-06-26
(read at 056d9c0f); most likely the baseline of the HyDra paper, which is an inference. Degrees
come from memory alone; a rank's sequences of a microbatch are one packed sequence, whose length
over degree stays within the cap. When the next sequence finds neither room nor free ranks the
microbatch ends, even if others would fit, so memory is filled to some 70%.
"""

from hydraplan.model import IntArray
from hydraplan.planner.placement.mcore_align import align
from hydraplan.planner.placement.mcore_groups import group_sets
from hydraplan.planner.placement.mcore_sets import memory_degree


def schedule_v1(
    length_tokens: IntArray,
    num_ranks: int,
    max_tokens_per_rank: int,
    min_degree: int = 1,
    microbatch_multiple: int = 1,
    sequence_id: IntArray | None = None,
) -> tuple[IntArray, IntArray, IntArray]:
    """Microbatch, first rank and degree of each sequence, in input order, shape (num_sequences,).

    Args:
        length_tokens: All at least 1; equal lengths keep their order.
        sequence_id: What messages call the sequences; their position where None.

    Raises:
        Infeasible: Where the genuine scheduler fails: a sequence needs too many ranks, work is
            pushed out of a pool that is no power of two, or nothing can be halved.

    Source: `docs/mcore-rules.md` section 2.
    """
    degree = memory_degree(length_tokens, num_ranks, max_tokens_per_rank, min_degree, sequence_id)
    placed = group_sets(length_tokens, degree, num_ranks, float(max_tokens_per_rank), False)
    return align(placed, num_ranks, microbatch_multiple).places()
