"""Order of the microbatches: placement decides who shares one, this decides which comes first."""

import numpy as np

from hydraplan.model import FloatArray, IntArray

ORDERS = ("as-built", "long-first", "sandwich")
"""Names that `--microbatch-order` takes besides `auto`."""


def microbatch_order(name: str, load_s: FloatArray) -> IntArray:
    """Microbatches in execution order; entry i is the one that runs i-th.

    Args:
        name: `as-built` keeps the placement's order, `long-first` sorts by the busiest slot
            descending, `sandwich` puts light ones at both ends and heavy ones in the middle.
        load_s: Load of every slot, seconds, shape (lanes, microbatches).
    """
    busiest = load_s.max(axis=0)
    count = len(busiest)
    descending: IntArray = np.argsort(-busiest, kind="stable").astype(np.int64)
    if name == "as-built":
        return np.arange(count, dtype=np.int64)
    if name == "long-first":
        return descending
    assert name == "sandwich", name
    ascending = descending[::-1]
    return np.concatenate([ascending[0::2], ascending[1::2][::-1]])
