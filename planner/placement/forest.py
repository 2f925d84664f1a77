"""The min-max forest: the least loaded block of any degree, exactly, under adding and removing.

One tree over the lanes of each microbatch. A node of height h keeps, for every level k <= h, the
least `max load of a block` among the level-k blocks below it; a tournament over the
microbatches then gives the least of all. A query walks down one path, O(log R + log M). An
addition to a block changes the levels along one path, O(log^2 R + log R log M). Nothing is ever
stale, so loads may fall as well, which repair needs.

Source: our own derivation.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hydraplan.model import IntArray
from hydraplan.planner.compiled import compiled
from hydraplan.planner.placement.block_tree import Tree, add_to_block, new_tree, num_blocks
from hydraplan.planner.placement.spared import is_closed, spared_blocks

Floats = NDArray[np.float64]


class Forest(NamedTuple):
    """Loads and rows of all slots. W is the width of the trees, a power of two of at least R.

    `slow`: slowness of the slowest lane of each block, 1 if all are nominal; entry 0 is that of
    the fastest lane, (2 W,).
    `added`, `highest`: seconds, as in `block_tree`, (M, 2 W). `barred`: 0, or infinite for a
    block that may not be chosen, (M, 2 W). `best`: entry `start[h] + block * (h + 1) + k` is
    the least maximum of a level-k block under a block of height h, additions above not
    counted, (M, about 4 W). `leads[k, j]`: tournament of the microbatches at level k,
    (levels, 2 * power of two of at least M). `rows_added`, `rows_highest`: rows, (M, 2 W).
    """

    num_ranks: int
    slow: Floats
    added: Tree
    highest: Tree
    barred: Tree
    start: IntArray
    best: Floats
    leads: Floats
    rows_added: Tree
    rows_highest: Tree


def new_forest(
    num_ranks: int,
    num_microbatches: int,
    slow: Floats | None = None,
    head_start_s: Floats | None = None,
    spared: Sequence[int] = (),
) -> Forest:
    """Empty slots.

    Args:
        slow: Slowness of every lane, shape (num_ranks,); None for 1.
        head_start_s: What every slot of a microbatch seems to hold before anything is placed,
            seconds, shape (num_microbatches,); None for 0. It ends up with so much less.
        spared: Lanes whose blocks are barred at levels that have others.
    """
    added, highest = new_tree(num_microbatches, num_ranks)
    if head_start_s is not None:
        added[:, 1] = head_start_s
    rows_added, rows_highest = new_tree(num_microbatches, num_ranks)
    width = added.shape[1] // 2
    levels = width.bit_length()
    height = np.arange(levels)
    start = np.concatenate([[0], np.cumsum((width >> height) * (height + 1))])
    best = np.zeros((num_microbatches, int(start[-1])))
    leads = np.full((levels, 2 << (num_microbatches - 1).bit_length()), np.inf)
    leads[:, leads.shape[1] // 2 :][:, :num_microbatches] = 0.0
    for at in range(leads.shape[1] // 2 - 1, 0, -1):
        leads[:, at] = np.minimum(leads[:, 2 * at], leads[:, 2 * at + 1])
    barred = np.zeros_like(added)
    slowest = np.ones(2 * width)
    if slow is not None:
        slowest[:] = slow.min()  # beyond the pool nobody is slow
        slowest[width : width + num_ranks] = slow
        for node in range(width - 1, 0, -1):
            slowest[node] = max(slowest[2 * node], slowest[2 * node + 1])
    trees = added, highest, barred, start, best, leads, rows_added, rows_highest
    forest = Forest(num_ranks, slowest, *trees)
    if num_ranks < width or head_start_s is not None or spared:
        for level in range(levels):
            first = (width >> level) + num_blocks(num_ranks, level)
            barred[:, first : (width >> level) * 2] = np.inf
            if not is_closed(num_ranks, level, spared):
                barred[:, (width >> level) + spared_blocks(num_ranks, level, spared)] = np.inf
        _build(forest)
    return forest


def filled_forest(
    num_ranks: int,
    num_microbatches: int,
    microbatch: IntArray,
    node: IntArray,
    load_s: Floats,
    rows: IntArray,
    slow: Floats | None = None,
) -> Forest:
    """The forest of a placement that was found some other way, in one pass over its nodes."""
    forest = new_forest(num_ranks, num_microbatches, slow)
    _add_all(forest, microbatch, node, load_s, rows)
    _build(forest)
    return forest


@compiled
def _add_all(
    forest: Forest, microbatch: IntArray, node: IntArray, load_s: Floats, rows: IntArray
) -> None:
    for i in range(len(node)):
        forest.added[microbatch[i], node[i]] += load_s[i] * forest.slow[node[i]]
        forest.rows_added[microbatch[i], node[i]] += rows[i]


@compiled
def _build(forest: Forest) -> None:
    """Everything that follows from `added`, `rows_added` and `barred`."""
    levels, width = forest.leads.shape[0], forest.added.shape[1] // 2
    for m in range(len(forest.added)):
        highest, rows_highest = forest.highest[m], forest.rows_highest[m]
        for node in range(2 * width - 1, 0, -1):
            highest[node] = forest.added[m, node]
            rows_highest[node] = forest.rows_added[m, node]
            if node < width:
                highest[node] += max(highest[2 * node], highest[2 * node + 1])
                rows_highest[node] += max(rows_highest[2 * node], rows_highest[2 * node + 1])
            _refresh(forest, m, node)
        for level in range(levels):
            _lead(forest, level, m)


@compiled
def _height(width: int, node: int) -> int:
    height = 0
    while node << height < width:
        height += 1
    return height


@compiled
def _refresh(forest: Forest, m: int, node: int) -> None:
    """Recompute what a node keeps, from its children."""
    width = forest.added.shape[1] // 2
    h = _height(width, node)
    at = forest.start[h] + (node - (width >> h)) * (h + 1)
    best = forest.best[m]
    if h > 0:
        left = forest.start[h - 1] + (2 * node - (width >> (h - 1))) * h
        for k in range(h):
            best[at + k] = forest.added[m, node] + min(best[left + k], best[left + h + k])
    best[at + h] = forest.highest[m, node] + forest.barred[m, node]


@compiled
def _lead(forest: Forest, level: int, m: int) -> None:
    """Play the tournament of a level again after microbatch m changed."""
    leads = forest.leads[level]
    root = forest.start[forest.leads.shape[0] - 1]
    at = len(leads) // 2 + m
    value = forest.best[m, root + level]
    if leads[at] == value:
        return
    leads[at] = value
    at >>= 1
    while at > 0:
        value = min(leads[2 * at], leads[2 * at + 1])
        if leads[at] == value:
            return
        leads[at] = value
        at >>= 1


@compiled
def least_loaded(forest: Forest, level: int) -> tuple[int, int, float]:
    """Microbatch, node and maximum load of the least loaded block of a level.

    The first of equals; the load is infinite if every block of the level is barred.
    """
    leads = forest.leads[level]
    at, half = 1, len(leads) // 2
    while at < half:
        at = 2 * at if leads[2 * at] <= leads[2 * at + 1] else 2 * at + 1
    m = at - half
    width = forest.added.shape[1] // 2
    best = forest.best[m]
    node, h = 1, forest.leads.shape[0] - 1
    while h > level:
        left = forest.start[h - 1] + (2 * node - (width >> (h - 1))) * h
        node = 2 * node if best[left + level] <= best[left + h + level] else 2 * node + 1
        h -= 1
    return m, node, leads[1]


@compiled
def change(forest: Forest, m: int, node: int, seconds: float, rows: int) -> None:
    """Add to every lane of a block what takes a nominal lane so long; both may be negative.

    A group works at the speed of its slowest lane.
    """
    seconds *= forest.slow[node]
    add_to_block(forest.rows_added, forest.rows_highest, m, node, rows)
    width, levels = forest.added.shape[1] // 2, forest.leads.shape[0]
    best, added, highest = forest.best[m], forest.added[m], forest.highest[m]
    h = _height(width, node)
    at = forest.start[h] + (node - (width >> h)) * (h + 1)
    for k in range(h + 1):
        best[at + k] += seconds
    added[node] += seconds
    highest[node] += seconds
    above = node >> 1
    while above > 0:
        left = at if node & 1 == 0 else at - h - 1
        right = left + h + 1
        h += 1
        at = forest.start[h] + (above - (width >> h)) * (h + 1)
        changed = False
        for k in range(h):
            value = added[above] + min(best[left + k], best[right + k])
            if best[at + k] != value:
                best[at + k] = value
                changed = True
        top = added[above] + max(highest[2 * above], highest[2 * above + 1])
        if highest[above] != top:
            highest[above] = top
            changed = True
        best[at + h] = top + forest.barred[m, above]
        if not changed:
            return
        node = above
        above >>= 1
    for level in range(levels):
        _lead(forest, level, m)


@compiled
def bar(forest: Forest, m: int, node: int, level: int, barred: bool) -> None:
    """Forbid or allow choosing a block of a level."""
    forest.barred[m, node] = np.inf if barred else 0.0
    _refresh(forest, m, node)
    width = forest.added.shape[1] // 2
    h, above = level + 1, node >> 1
    best = forest.best[m]
    while above > 0:
        at = forest.start[h] + (above - (width >> h)) * (h + 1)
        left = forest.start[h - 1] + (2 * above - (width >> (h - 1))) * h
        lower = min(best[left + level], best[left + h + level])
        best[at + level] = forest.added[m, above] + lower
        above >>= 1
        h += 1
    _lead(forest, level, m)
