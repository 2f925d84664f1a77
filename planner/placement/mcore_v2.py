"""The packing-aware scheduler of Megatron-Core: third generation of its dynamic CP.

`default_dynamic_cp` of the dev branch since PR #5154 (read at d48bd6be). Degrees start from
memory, as before, but a sequence may take a wider one. Longest first, each sequence goes where
the busiest rank of the pool ends up least busy, among sets with room under the cap; what would
push it more than 5% beyond the longest sequence at a full cap waits for the next microbatch.
Most moves leave the busiest rank as it is, so sequences pile up on the oldest set that has
room: this balances less than it seems to.

Genuine costs O(sets x ranks) a sequence; here the maximum of the pool is kept, so one pass over
the sets suffices. Work is length squared over degree.
"""

import numpy as np

from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.compiled import compiled
from hydraplan.planner.placement.mcore_align import align
from hydraplan.planner.placement.mcore_fill import CRASHED, STUCK, grow_sets_ahead
from hydraplan.planner.placement.mcore_sets import RankSets, memory_degree, pushed_out

EXCESS = 1.05
"""Load a rank may have, as a share of that of the longest sequence at a full cap."""


def schedule_v2(
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

    Source: `docs/mcore-rules.md` section 3.
    """
    degree = memory_degree(length_tokens, num_ranks, max_tokens_per_rank, min_degree, sequence_id)
    by = np.argsort(-length_tokens, kind="stable")
    length, degree = length_tokens[by].astype(np.float64), degree[by]
    microbatch, rank_set = np.empty(len(by), np.int64), np.empty(len(by), np.int64)
    sizes: list[IntArray] = []
    rest = np.arange(len(by))
    while len(rest):
        set_of, set_size = np.empty(len(rest), np.int64), np.empty(num_ranks, np.int64)
        sets = _pack(
            length[rest], degree[rest], num_ranks, float(max_tokens_per_rank), set_of, set_size
        )
        grown = set_size[:sets].copy()
        outcome = grow_sets_ahead(grown, num_ranks)
        if outcome == CRASHED:
            raise pushed_out(len(sizes), num_ranks)
        if outcome == STUCK:
            set_of, grown = one_set(length[rest], num_ranks, max_tokens_per_rank)
        here = set_of >= 0
        microbatch[rest[here]], rank_set[rest[here]] = len(sizes), set_of[here]
        sizes.append(grown)
        rest = rest[~here]
    position = np.empty(len(by), np.int64)
    position[by] = np.arange(len(by))
    placed = RankSets(microbatch[position], rank_set[position], tuple(sizes))
    return align(placed, num_ranks, microbatch_multiple).places()


def one_set(
    length: FloatArray, num_ranks: int, max_tokens_per_rank: int
) -> tuple[IntArray, IntArray]:
    """One set of all ranks with what fits, longest first: set of each sequence, sizes of sets."""
    held = np.cumsum(length / num_ranks)
    return np.where(held <= max_tokens_per_rank, 0, -1), np.array([num_ranks])


@compiled
def _pack(
    length: FloatArray,
    degree: IntArray,
    num_ranks: int,
    cap_tokens: float,
    set_of: IntArray,
    set_size: IntArray,
) -> int:
    """Pack one microbatch, lengths descending; fills the last two arrays.

    Returns:
        Number of sets. A sequence left over has set -1.
    """
    load, held = np.zeros(num_ranks), np.zeros(num_ranks)
    limit = length[0] * cap_tokens * EXCESS
    sets, free, highest = 0, num_ranks, 0.0
    for i in range(len(length)):
        square = length[i] * length[i]
        best, chosen, size = np.inf, -1, 0
        for j in range(sets):
            d = set_size[j]
            if d >= degree[i] and held[j] + length[i] / d <= cap_tokens:
                score = max(highest, load[j] + square / d)
                if score < best or (score == best and d < size):
                    best, chosen, size = score, j, d
        d = degree[i]
        while d <= free:
            score = max(highest, square / d)
            if score < best or (score == best and d < size):
                best, chosen, size = score, sets, d
            d = d * 2 if i > 0 else num_ranks + 1  # the longest takes its smallest degree
        set_of[i] = -1
        if best <= limit:
            if chosen == sets:
                set_size[sets] = size
                sets, free = sets + 1, free - size
            load[chosen] += square / size
            held[chosen] += length[i] / size
            highest, set_of[i] = best, chosen
    return sets
