"""Largest differencing: items into k parts of nearly the same weight.

Every item begins as a tuple of k parts, one of them with its weight and the others empty. The
two tuples with the largest spread (heaviest part less lightest) are merged, the heaviest part of
one with the lightest of the other and so on, and what all parts have in common is taken off,
until one tuple is left.

Empty parts are not stored: a tuple is a linked list of the others, heaviest first, so that
merging costs what both tuples hold rather than k. Nothing here knows of tokens or caps.

Source: Karmarkar and Karp's method, its k-way form as standard; the lists are ours.
"""

import numpy as np

from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.compiled import compiled
from hydraplan.planner.placement.heap import drop_top, push, sift_down


@compiled
def difference(weight: FloatArray, num_parts: int) -> IntArray:
    """Part of every item, shape (num_items,); parts are numbered heaviest first.

    Ties go to the tuple that began with the earlier item.
    """
    count = len(weight)
    part = np.zeros(count, np.int64)
    if num_parts == 1 or count == 0:
        return part
    # a part bears the name of one of its items; its items hang on that one as a chain
    value, lighter = weight.copy(), np.full(count, -1, np.int64)
    chain, last = np.full(count, -1, np.int64), np.arange(count)
    head, size = np.arange(count), np.ones(count, np.int64)
    keys, items = np.empty(count), np.empty(count, np.int64)
    for i in range(count):
        push(keys, items, 0, i, -weight[i], i)
    left, right = np.empty(num_parts, np.int64), np.empty(num_parts, np.int64)
    for tuples in range(count, 1, -1):
        a = items[0]
        drop_top(keys, items, 0, tuples)
        b = items[0]
        p = _listed(left, lighter, head[a])
        q = _listed(right, lighter, head[b])
        shared = max(0, p + q - num_parts)
        for i in range(shared):
            to, gone = left[p - shared + i], right[q - 1 - i]
            value[to] += value[gone]
            chain[last[to]] = gone
            last[to] = last[gone]
        if shared > 1:
            sums = left[p - shared : p].copy()
            left[p - shared : p] = sums[np.argsort(-value[sums], kind="mergesort")]
        size[a] = p + q - shared
        head[a] = _joined(value, lighter, left, p - shared, p, right, q - shared)
        if size[a] == num_parts:
            _take_off(value, lighter, head[a])
        keys[0], items[0] = -value[head[a]], a
        sift_down(keys, items, 0, tuples - 1)
    node, number = head[items[0]], 0
    while node >= 0:
        item = node
        while item >= 0:
            part[item] = number
            item = chain[item]
        node, number = lighter[node], number + 1
    return part


@compiled
def _listed(into: IntArray, lighter: IntArray, node: int) -> int:
    """Write the parts of a tuple into an array, heaviest first; their number."""
    size = 0
    while node >= 0:
        into[size] = node
        node, size = lighter[node], size + 1
    return size


@compiled
def _joined(
    value: FloatArray,
    lighter: IntArray,
    left: IntArray,
    alone: int,
    end: int,
    right: IntArray,
    right_end: int,
) -> int:
    """Link three descending runs into one list: `left[:alone]`, `right[:right_end]`, the sums.

    The sums are `left[alone:end]`. Returns the heaviest part.
    """
    i, j, s = 0, 0, alone
    head = before = -1
    while i < alone or j < right_end or s < end:
        node = -1
        if i < alone:
            node = left[i]
        if j < right_end and (node < 0 or value[right[j]] > value[node]):
            node = right[j]
        if s < end and (node < 0 or value[left[s]] > value[node]):
            node = left[s]
        if i < alone and node == left[i]:
            i += 1
        elif j < right_end and node == right[j]:
            j += 1
        else:
            s += 1
        if before < 0:
            head = node
        else:
            lighter[before] = node
        before = node
    lighter[before] = -1
    return head


@compiled
def _take_off(value: FloatArray, lighter: IntArray, head: int) -> None:
    """Take the lightest part's weight off every part of a tuple."""
    lightest, node = 0.0, head
    while node >= 0:
        lightest = value[node]
        node = lighter[node]
    node = head
    while node >= 0:
        value[node] -= lightest
        node = lighter[node]
