"""How two schedulers of Megatron-Core form one microbatch: buckets of equal work, then rank sets.

Generations `mcore-main` and `mcore-v1` share this. The sequences left are cut, in their order,
into buckets of about equal work; the buckets are emptied from the first on. A sequence opens a
new set of ranks while enough ranks are free, else it joins the least loaded set of its degree.
Work is length squared over degree: no linear term, no communication, no memory but in degrees.

What holds up the first sequence of a bucket never ends (free ranks only shrink, and its degree
gets no set without them), so a bucket once held up is passed over and one walk over the
sequences places what repeated scans would. Heaps keep the sets of a degree; sets too full for
the current sequence wait apart until one arrives that is short enough.

Does not grow sets over ranks left empty (`mcore_fill`), nor take sequences off again
(`mcore_trim`).
"""

import numpy as np

from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.compiled import compiled
from hydraplan.planner.placement.heap import drop_top, push, sift_down

BUCKET_EXCESS = 1.1
"""A bucket is closed before its work exceeds this share of the mean."""

BALANCED = 0.05
"""Loads of a pool count as even when they differ by at most this share of the largest."""


@compiled
def cut_buckets(work: FloatArray, kind: IntArray, num_kinds: int) -> IntArray:
    """Number of the bucket of each sequence, ascending, shape (num_sequences,).

    A bucket is meant for each kind (distinct degree) present, but there may be more of them,
    and a bucket may hold several kinds.

    Source: `docs/mcore-rules.md` section 1, step 1.
    """
    present = np.zeros(num_kinds, np.bool_)
    total = 0.0
    for i in range(len(work)):
        present[kind[i]] = True
        total += work[i]
    wanted = present.sum()
    limit = BUCKET_EXCESS * (total / wanted)
    bucket_of = np.empty(len(work), np.int64)
    bucket, begin, filled = 0, 0, 0.0
    for i in range(len(work)):
        exceeds = filled + work[i] > limit
        if i > begin and (exceeds or len(work) - i <= wanted - 2 * bucket):
            bucket, begin, filled = bucket + 1, i, 0.0
        bucket_of[i] = bucket
        filled += work[i]
    return bucket_of


@compiled
def place_group(
    work: FloatArray,
    share: FloatArray,
    kind: IntArray,
    degrees: IntArray,
    num_ranks: int,
    cap_tokens: float,
    set_of: IntArray,
    set_kind: IntArray,
    set_load: FloatArray,
) -> int:
    """Place what one microbatch takes of the sequences left; fills the last three arrays.

    Args:
        work: Load of each sequence on each of its ranks, length squared over degree.
        share: Its length over its degree; must not ascend within a kind if the cap binds.
        kind: Its degree, as index into `degrees`.
        cap_tokens: Most `share` that a set may hold in sum; infinite where nothing is packed.
        set_of: Set of each sequence, -1 if it is left over, shape (num_sequences,).
        set_kind: Kind of each set, in order of creation and of ranks, shape (num_ranks,).
        set_load: Sum of `work` on each rank of a set, shape (num_ranks,).

    Returns:
        Number of sets. Members of a set are placed in list order.

    Source: `docs/mcore-rules.md` section 1, steps 2 to 6, and section 2. That one walk and
    heaps suffice is derived here.
    """
    bucket_of = cut_buckets(work, kind, len(degrees))
    start = np.zeros(len(degrees) + 1, np.int64)
    for k in range(len(degrees)):
        start[k + 1] = start[k] + num_ranks // degrees[k]
    ready, waiting = np.zeros(len(degrees), np.int64), np.zeros(len(degrees), np.int64)
    ready_load, ready_set = np.empty(start[-1]), np.empty(start[-1], np.int64)
    waiting_share, waiting_set = np.empty(start[-1]), np.empty(start[-1], np.int64)
    pool_load, pool_set = np.empty(num_ranks), np.empty(num_ranks, np.int64)
    held = np.zeros(num_ranks)
    sets, free, highest, held_up, narrower = 0, num_ranks, 0.0, -1, False
    set_of[:] = -1
    for i in range(len(work)):
        k = kind[i]
        begin = start[k]
        if bucket_of[i] == held_up:
            continue
        if free < degrees[k] and ready[k] + waiting[k] == 0:
            held_up = bucket_of[i]
            continue
        if free >= degrees[k]:
            chosen, sets, free = sets, sets + 1, free - degrees[k]
            set_kind[chosen], set_load[chosen] = k, 0.0
            push(ready_load, ready_set, begin, ready[k], -1.0, chosen)  # on top of every other
            push(pool_load, pool_set, 0, chosen, 0.0, chosen)
            ready[k] += 1
        else:
            while waiting[k] > 0 and waiting_share[begin] + share[i] <= cap_tokens:
                back = waiting_set[begin]
                push(ready_load, ready_set, begin, ready[k], set_load[back], back)
                drop_top(waiting_share, waiting_set, begin, waiting[k])
                ready[k], waiting[k] = ready[k] + 1, waiting[k] - 1
            if ready[k] == 0:
                break
            chosen = ready_set[begin]
        set_of[i] = chosen
        set_load[chosen] += work[i]
        held[chosen] += share[i]
        highest = max(highest, set_load[chosen])
        if held[chosen] + share[i] <= cap_tokens:
            ready_load[begin] = set_load[chosen]
            sift_down(ready_load, ready_set, begin, ready[k])
        else:
            drop_top(ready_load, ready_set, begin, ready[k])
            push(waiting_share, waiting_set, begin, waiting[k], held[chosen], chosen)
            ready[k], waiting[k] = ready[k] - 1, waiting[k] + 1
        narrower = narrower or degrees[k] < degrees[set_kind[0]]
        if narrower and free == 0:
            while pool_load[0] != set_load[pool_set[0]]:
                pool_load[0] = set_load[pool_set[0]]
                sift_down(pool_load, pool_set, 0, sets)
            if highest - pool_load[0] <= BALANCED * highest:
                break
    return sets
