"""What a sequence costs and how many rows it puts on its ranks, exactly, at a chosen degree.

Levels count degrees: level k is degree min(2**k, R) (`layout.legal_degrees`). Each degree is
cut into the cheapest legal (ulysses_size, ring_size) whose fullest member fits the cap.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hydraplan.cost import CostModel
from hydraplan.layout import legal_degrees, rank_tokens_max
from hydraplan.model import FloatArray, IntArray

IN_CACHE = 1 << 13
"""Sequences priced at a time: temporaries of this size stay in a core's cache."""


@dataclass(frozen=True, slots=True)
class Sized:
    """Sequences at their degrees; arrays of shape (num_sequences,).

    `load_s`: seconds F + B + W that a sequence adds to each member on its costliest stage if it
    shares its exchanges with no other (an upper bound of what it adds). `rows`: rows of its
    fullest member.
    """

    level: IntArray
    load_s: FloatArray
    rows: IntArray
    ulysses_size: IntArray
    ring_size: IntArray


def shape_table(cost: CostModel) -> IntArray:
    """Legal ulysses_size of every level, shape (num_levels, most choices); 0 fills up."""
    shapes = [cost.shapes(int(degree)) for degree in legal_degrees(cost.ranks)]
    table = np.zeros((len(shapes), max(map(len, shapes))), np.int64)
    for level, choices in enumerate(shapes):
        table[level, : len(choices)] = [u for u, _ in choices]
    return table


def load_of(cost: CostModel, length_tokens: IntArray, u: IntArray, r: IntArray) -> FloatArray:
    """F + B + W seconds of each sequence on its costliest stage, (num_sequences,).

    Stages weigh attention and rows differently, so sequences can differ in which is costliest;
    sums of these are an upper bound of what a slot costs on any stage.
    """
    layers = np.array(cost.layers, float).sum(axis=1)
    kinds = np.unique(np.stack([layers, cost.row_s.sum(axis=(0, 2))], axis=1), axis=0)
    result = np.zeros(len(u))
    for start in range(0, len(u), IN_CACHE):
        part = slice(start, start + IN_CACHE)
        attention_s = cost.attention_s(length_tokens[part], u[part], r[part]).sum(axis=0)
        rows = length_tokens[part] / (u[part] * r[part])
        for num_layers, row_s in kinds:
            result[part] = np.maximum(result[part], num_layers * attention_s + row_s * rows)
    return result


def sized(
    cost: CostModel,
    length_tokens: IntArray,
    level: IntArray,
    cap_tokens: int | None = None,
) -> Sized:
    """Cost and rows of every sequence at its level, in the cheapest shape that fits the cap.

    Where no shape of the level fits, `rows` exceeds the cap: that is for the caller to see.
    """
    table, degree = shape_table(cost), legal_degrees(cost.ranks)[level]
    load_s = np.full(len(level), np.inf)
    rows = np.zeros(len(level), np.int64)
    ulysses = np.ones(len(level), np.int64)
    over = np.ones(len(level), bool)
    for choice in range(table.shape[1]):
        legal = table[level, choice] > 0
        u = np.where(legal, table[level, choice], 1)
        here = rank_tokens_max(length_tokens, u, degree // u)
        here_over = here > (cap_tokens or np.iinfo(np.int64).max)
        here_s = load_of(cost, length_tokens, u, degree // u)
        cheaper = (here_s < load_s) & (here_over == over)
        better = legal & (cheaper | (over & ~here_over))
        load_s = np.where(better, here_s, load_s)
        rows = np.where(better, here, rows)
        ulysses = np.where(better, u, ulysses)
        over = np.where(better, here_over, over)
    return Sized(level, load_s, rows, ulysses, degree // ulysses)


def raised(
    cost: CostModel,
    length_tokens: IntArray,
    found: Sized,
    cap_tokens: int,
    offered: NDArray[np.bool_],
) -> Sized:
    """The same, with every sequence that exceeds the cap on the lowest offered level that holds it.

    Rows can exceed by one or two where a level was chosen for a whole bucket of lengths.
    """
    over = np.flatnonzero(found.rows > cap_tokens)
    if not len(over):
        return found
    floor = memory_floor(cost, length_tokens[over], cap_tokens, offered)
    level = found.level.copy()
    level[over] = floor
    fixed = sized(cost, length_tokens[over], level[over], cap_tokens)
    columns = {}
    for name in ("load_s", "rows", "ulysses_size", "ring_size"):
        column = getattr(found, name).copy()
        column[over] = getattr(fixed, name)
        columns[name] = column
    return Sized(level, **columns)


def memory_floor(
    cost: CostModel, length_tokens: IntArray, cap_tokens: int, offered: NDArray[np.bool_]
) -> IntArray:
    """Lowest offered level whose rows fit the cap; num_levels where none does, (num_sequences,).

    Args:
        offered: Which levels may be used at all, shape (num_levels,).
    """
    table, degrees = shape_table(cost), legal_degrees(cost.ranks)
    levels = len(degrees)
    at_least = np.searchsorted(degrees, -(-length_tokens // cap_tokens))
    level = at_least.astype(np.int64)
    open_rows = np.flatnonzero(level < levels)
    while len(open_rows):
        k, length = level[open_rows], length_tokens[open_rows]
        fits = np.zeros(len(k), bool)
        for choice in range(table.shape[1]):
            u = table[k, choice]
            legal = (u > 0) & offered[k]
            u = np.maximum(u, 1)
            fits |= legal & (rank_tokens_max(length, u, degrees[k] // u) <= cap_tokens)
        open_rows = open_rows[~fits]
        level[open_rows] += 1
        open_rows = open_rows[level[open_rows] < levels]
    return level


def fits(
    cost: CostModel, length_tokens: IntArray, cap_tokens: int, offered: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Which sequences some offered degree holds, shape (num_sequences,)."""
    result: NDArray[np.bool_] = memory_floor(cost, length_tokens, cap_tokens, offered) < len(
        offered
    )
    return result
