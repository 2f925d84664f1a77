"""Pack a few sequences into one microbatch by trying everything, where the cap fits to a row.

Depth first, longest sequence first, lowest degree first; a filling of the lanes that has failed
with the same sequences left is not tried again. It gives up after a number of steps, and says
nothing of loads: the last resort of batches that keep their order.

Source: exhaustive search, standard.
"""

import numpy as np
from numpy.typing import NDArray

from hydraplan.model import IntArray

FEW = 12
"""Sequences up to which everything is tried."""
STEPS = 5_000
"""Blocks tried before it gives up."""


def pack_few(
    rows: IntArray, possible: NDArray[np.bool_], degrees: IntArray, num_ranks: int, cap_tokens: int
) -> tuple[IntArray, IntArray] | None:
    """Level and first rank of every sequence; None if nothing was found.

    Args:
        rows: Rows of each sequence's fullest member, shape (num_sequences, num_levels).
        possible: Which levels a sequence may take, same shape.
        degrees: Ranks of each level.
    """
    if len(rows) > FEW:
        return None
    order = np.argsort(-np.where(possible, rows * degrees, 0).max(axis=1), kind="stable").tolist()
    chosen: list[tuple[int, int]] = []
    failed: set[tuple[int, tuple[int, ...]]] = set()
    steps = 0

    def packed(held: tuple[int, ...]) -> bool:
        nonlocal steps
        at = len(chosen)
        if at == len(order):
            return True
        if (at, held) in failed:
            return False
        for level in np.flatnonzero(possible[order[at]]).tolist():
            degree, needs = int(degrees[level]), int(rows[order[at], level])
            for first in range(0, num_ranks - degree + 1, degree):
                inside = held[first : first + degree]
                steps += 1
                if steps > STEPS or max(inside) + needs > cap_tokens:
                    continue
                chosen.append((level, first))
                filled = tuple(lane + needs for lane in inside)
                if packed(held[:first] + filled + held[first + degree :]):
                    return True
                chosen.pop()
        failed.add((at, held))
        return False

    if not packed((0,) * num_ranks):
        return None
    by_sequence = np.empty((len(rows), 2), np.int64)
    by_sequence[order] = chosen
    return by_sequence[:, 0], by_sequence[:, 1]
