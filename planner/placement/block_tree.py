"""Add/max trees over the lanes of each microbatch: what an aligned block holds, in O(log R).

Row m of a tree is a binary heap over `width` lanes (a power of two, at least R). Node
`(width >> k) + b` is aligned block b of level k; the root is the whole pool, whatever R is, since
lanes beyond R only ever carry what the whole pool carries. `added[m, n]` was added to every lane
below n, `highest[m, n]` is the maximum below n counting additions at n and below, not above.
"""

import numpy as np
from numpy.typing import NDArray

from hydraplan.planner.compiled import compiled

Tree = NDArray[np.float64]


def new_tree(num_microbatches: int, num_ranks: int) -> tuple[Tree, Tree]:
    """Empty `added` and `highest`, each (num_microbatches, 2 * width)."""
    width = 1 << (num_ranks - 1).bit_length()
    shape = (num_microbatches, 2 * width)
    return np.zeros(shape), np.zeros(shape)


@compiled
def num_blocks(num_ranks: int, level: int) -> int:
    """Aligned blocks of a level; the whole pool is one."""
    return max(1, num_ranks >> level)


@compiled
def block_max(added: Tree, highest: Tree, microbatch: int, node: int) -> float:
    """Largest value among the lanes of a block."""
    value = highest[microbatch, node]
    above = node >> 1
    while above > 0:
        value += added[microbatch, above]
        above >>= 1
    return value  # type: ignore[no-any-return]


@compiled
def carried(added: Tree, microbatch: int, node: int) -> float:
    """What was added to all lanes of a block, at it and above."""
    value = 0.0
    while node > 0:
        value += added[microbatch, node]
        node >>= 1
    return value


@compiled
def add_to_block(added: Tree, highest: Tree, microbatch: int, node: int, amount: float) -> None:
    """Raise every lane of a block by `amount`."""
    added[microbatch, node] += amount
    highest[microbatch, node] += amount
    above = node >> 1
    while above > 0:
        left, right = highest[microbatch, 2 * above], highest[microbatch, 2 * above + 1]
        highest[microbatch, above] = added[microbatch, above] + max(left, right)
        above >>= 1
