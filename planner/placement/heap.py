"""A binary min-heap on flat arrays, for compiled code: keys, and items that break ties.

Smaller key first, then smaller item, so the order never depends on history.
"""

import numpy as np
from numpy.typing import NDArray

from hydraplan.model import IntArray
from hydraplan.planner.compiled import compiled

Keys = NDArray[np.float64]


@compiled
def sift_down(keys: Keys, items: IntArray, start: int, size: int) -> None:
    """Restore the heap in `start : start + size` after its top has grown."""
    i = 0
    key, item = keys[start], items[start]
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        right = child + 1
        if right < size:
            a, b = start + child, start + right
            if keys[b] < keys[a] or (keys[b] == keys[a] and items[b] < items[a]):
                child = right
        at = start + child
        if keys[at] < key or (keys[at] == key and items[at] < item):
            keys[start + i], items[start + i] = keys[at], items[at]
            i = child
        else:
            break
    keys[start + i], items[start + i] = key, item


@compiled
def push(keys: Keys, items: IntArray, start: int, size: int, key: float, item: int) -> None:
    """Add an entry to a heap of `size` entries; the caller counts it."""
    i = size
    while i > 0:
        parent = (i - 1) // 2
        at = start + parent
        if keys[at] < key or (keys[at] == key and items[at] < item):
            break
        keys[start + i], items[start + i] = keys[at], items[at]
        i = parent
    keys[start + i], items[start + i] = key, item


@compiled
def drop_top(keys: Keys, items: IntArray, start: int, size: int) -> None:
    """Remove the top of a heap of `size` entries; the caller counts it."""
    last = start + size - 1
    keys[start], items[start] = keys[last], items[last]
    sift_down(keys, items, start, size - 1)
