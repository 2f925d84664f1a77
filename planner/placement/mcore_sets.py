"""What the schedulers of Megatron-Core share: degrees from memory, and microbatches of rank sets.

In each of their microbatches the pool is cut into sets of ranks, side by side from rank 0. The
ranks of a set hold the same sequences, one rank belongs to one set, and no rank stays empty.
"""

from dataclasses import dataclass

import numpy as np

from hydraplan.errors import Infeasible
from hydraplan.model import IntArray


@dataclass(frozen=True, slots=True)
class RankSets:
    """Which microbatch and which of its sets holds each sequence.

    `microbatch` and `rank_set` (numbered inside the microbatch, from rank 0 on) have shape
    (num_sequences,); `sizes[m]` holds the ranks of every set of microbatch m.
    """

    microbatch: IntArray
    rank_set: IntArray
    sizes: tuple[IntArray, ...]

    def places(self) -> tuple[IntArray, IntArray, IntArray]:
        """Microbatch, first rank and degree of each sequence, each shape (num_sequences,)."""
        begin = np.cumsum([0, *(len(sizes) for sizes in self.sizes)])
        at = begin[self.microbatch] + self.rank_set
        first_rank = np.concatenate([np.cumsum(sizes) - sizes for sizes in self.sizes])
        return self.microbatch, first_rank[at], np.concatenate(self.sizes)[at]


def memory_degree(
    length_tokens: IntArray,
    num_ranks: int,
    max_tokens_per_rank: int,
    min_degree: int,
    sequence_id: IntArray | None,
) -> IntArray:
    """Smallest power of two of ranks that holds each sequence, but at least `min_degree`.

    Args:
        sequence_id: What messages call the sequences; their position where None.

    Raises:
        Infeasible: A sequence needs more ranks than there are. A pool that is no power of two
            does not count as a degree here.

    Source: `docs/mcore-rules.md` sections 1 and 2; nothing about load enters.
    """
    shares = -(-length_tokens // max_tokens_per_rank)
    power = np.int64(1) << np.frexp(shares - 1)[1].astype(np.int64)
    degree: IntArray = np.maximum(power, min_degree)
    for i in np.flatnonzero(degree > num_ranks)[:1]:
        widest = 1 << (num_ranks.bit_length() - 1)
        enough = -(-int(length_tokens.max()) // widest)
        raise Infeasible(
            f"sequence {i if sequence_id is None else sequence_id[i]} of {length_tokens[i]} tokens"
            f" needs degree {degree[i]} under {max_tokens_per_rank} tokens a rank, the pool has"
            f" {num_ranks} ranks; Megatron-Core takes powers of two only, and fails there with an"
            " assertion",
            f"use --max-tokens-per-rank {enough}, more --ranks, or another strategy",
        )
    return degree


def pushed_out(microbatch: int, num_ranks: int) -> Infeasible:
    """The error for a set that cannot grow because work behind it would leave the pool."""
    return Infeasible(
        f"microbatch {microbatch}: growing a set of ranks over the empty ones pushes work out of"
        f" the pool of {num_ranks} ranks, no power of two; Megatron-Core fails there with an"
        " IndexError",
        "use a power of two of --ranks, or another strategy",
    )
