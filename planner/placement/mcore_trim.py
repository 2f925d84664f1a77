"""How Megatron-Core's first generation evens a microbatch: the busiest ranks give work back.

The set of the busiest rank loses the sequence it got last, as long as that narrows the gap
between busiest and idlest rank. What is given back goes to the end of the list of the next
microbatch, which is not sorted again; so a pool can end up with sets that are not aligned to
their size. Later generations switched this off: it makes counts of microbatches uneven.
"""

import numpy as np

from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.compiled import compiled
from hydraplan.planner.placement.mcore_buckets import BALANCED


@compiled
def trim_sets(set_of: IntArray, work: FloatArray, set_load: FloatArray) -> IntArray:
    """Take sequences off the busiest sets, in place; needs a pool without empty ranks.

    Args:
        set_of: Set of each sequence, -1 for none; becomes -1 for what is taken off.
        work: Load of each sequence on each of its ranks.
        set_load: Load on each rank of every set.

    Returns:
        The sequences taken off, in that order.

    Source: `docs/mcore-rules.md` section 1, step 7.
    """
    before = np.full(len(work), -1, np.int64)
    last = np.full(len(set_load), -1, np.int64)
    for i in range(len(work)):
        if set_of[i] >= 0:
            before[i], last[set_of[i]] = last[set_of[i]], i
    removed = np.empty(len(work), np.int64)
    count = 0
    while True:
        busiest = set_load.argmax()
        load = set_load[busiest]
        slack = load - set_load.min()
        i = last[busiest]
        if slack <= BALANCED * load or before[i] < 0:
            break
        set_load[busiest] = load - work[i]
        if set_load.max() - set_load.min() >= slack:
            set_load[busiest] = load
            break
        set_of[i], last[busiest] = -1, before[i]
        removed[count] = i
        count += 1
    return removed[:count]
