"""How Megatron-Core keeps every rank busy: the narrowest set of ranks doubles.

Sets lie side by side from rank 0, empty ranks behind them. A set that doubles pushes those
behind it up. Where the pool is no power of two this can push work out of the pool, where the
genuine schedulers crash. The third generation looks ahead, but only at the set itself.
"""

from hydraplan.model import IntArray
from hydraplan.planner.compiled import compiled


@compiled
def grow_sets(set_size: IntArray, num_ranks: int, widest: int) -> bool:
    """Double sizes in place, the smallest set of lowest rank first, until no rank is empty.

    Args:
        set_size: Ranks of each set, from rank 0 on; at least one set, sum at most `num_ranks`.
        widest: Most ranks that a set may grow to.

    Returns:
        False if work would be pushed out of the pool.

    Source: `docs/mcore-rules.md` section 1, step 8. Sets are numbered from rank 0 on, so the
    oldest set of a size is the one of lowest rank.
    """
    used = set_size.sum()
    while used < num_ranks:
        smallest = set_size.min()
        grown = min(2 * smallest, widest)
        for j in range(len(set_size)):
            if set_size[j] == smallest and used < num_ranks:
                used += grown - smallest
                if used > num_ranks:
                    return False
                set_size[j] = grown
    return True


FULL, CRASHED, STUCK = 0, 1, 2
"""What `grow_sets_ahead` can come to."""


@compiled
def grow_sets_ahead(set_size: IntArray, num_ranks: int) -> int:
    """As `grow_sets`, but skip sets whose own growth would run past the pool.

    Returns:
        `FULL`; `CRASHED` if a set has room to grow but pushes those behind it out of the pool;
        `STUCK` if none of the smallest has room.

    Source: `docs/mcore-rules.md` section 3. That a set looks at its own end alone is our reading:
    the genuine one crashes in this step, which a look at the whole pool would rule out.
    """
    used = set_size.sum()
    while used < num_ranks:
        smallest = set_size.min()
        grown = min(2 * smallest, num_ranks)
        chosen, end = -1, 0
        for j in range(len(set_size)):
            if chosen < 0 and set_size[j] == smallest and end + grown <= num_ranks:
                chosen = j
            end += set_size[j]
        if chosen < 0:
            return STUCK
        used += grown - smallest
        if used > num_ranks:
            return CRASHED
        set_size[chosen] = grown
    return FULL
