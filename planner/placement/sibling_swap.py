"""Sibling swap: even out what ranks carry over the whole iteration, slots left as they are.

Placement fills low lanes first, in every microbatch again. Swapping the two halves of any
aligned block, with all they hold, keeps every group an aligned block and every slot load, and
only renames lanes. Microbatch after microbatch, each block gives its heavier half to the lanes
that carry less so far.

Source: our own derivation.
"""

import numpy as np

from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.compiled import compiled
from hydraplan.planner.placement.block_tree import Tree


@compiled
def swapped(added: Tree, num_ranks: int, microbatch: IntArray, node: IntArray) -> IntArray:
    """New node of every sequence; only `first_rank` changes by it.

    Args:
        added: Seconds added to each node, (M, 2 * width), as in `block_tree`.
        microbatch: Microbatch of every sequence, with its `node`.
    """
    num_microbatches, width = len(added), added.shape[1] // 2
    carried = np.zeros(2 * width)
    flips = np.zeros((num_microbatches, 2 * width), np.bool_)
    renamed = np.zeros(2 * width, np.int64)
    renamed[1] = 1
    for m in range(num_microbatches):
        here = _sums(added[m], width)
        blocks = 0  # whole ones of the height that is being looked at
        for old in range(1, width):
            if old & (old - 1) == 0:
                blocks = num_ranks // (width // old)
            new = renamed[old]
            uneven = here[2 * old] - here[2 * old + 1]
            flip = old - _first(old) < blocks and (
                uneven * (carried[2 * new] - carried[2 * new + 1]) > 0
            )
            flips[m, old] = flip
            renamed[2 * old] = 2 * new + (1 if flip else 0)
            renamed[2 * old + 1] = 2 * new + (0 if flip else 1)
        for old in range(1, 2 * width):
            carried[renamed[old]] += here[old]
    result = np.empty_like(node)
    for i in range(len(node)):
        depth = 0
        while node[i] >> (depth + 1) > 0:
            depth += 1
        old = new = 1
        while depth > 0:
            depth -= 1
            right = node[i] >> depth & 1
            new = 2 * new + (right ^ flips[microbatch[i], old])
            old = 2 * old + right
        result[i] = new
    return result


@compiled
def _first(node: int) -> int:
    """First node of the same height: the highest power of two in it."""
    first = 1
    while 2 * first <= node:
        first *= 2
    return first


@compiled
def _sums(added: FloatArray, width: int) -> FloatArray:
    """Seconds all lanes below each node carry, additions above it not counted."""
    total = np.empty(2 * width)
    for node in range(2 * width - 1, 0, -1):
        lanes = width // _first(node)
        below = total[2 * node] + total[2 * node + 1] if node < width else 0.0
        total[node] = below + added[node] * lanes
    return total
