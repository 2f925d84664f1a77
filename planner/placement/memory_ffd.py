"""Memory-sized baseline: degree from memory alone, token-capped first-fit decreasing.

Each sequence takes the smallest degree whose rows fit the cap, longest first, into the first
microbatch and the first aligned block with room. This is how memory-sized dynamic context
parallelism behaves when it packs to a cap; it is nobody's published scheduler.

Lanes of a block hold equal rows while degrees descend, so a block has room exactly when its
first lane has; a tree of row minima finds the first such lane in O(log).
"""

import numpy as np

from hydraplan.errors import Infeasible, many
from hydraplan.model import IntArray
from hydraplan.planner.compiled import compiled
from hydraplan.planner.placement.draft import Draft, Request, draft
from hydraplan.planner.placement.sizing import Sized, memory_floor


def place_first_fit(
    rows: IntArray, level: IntArray, length_tokens: IntArray, num_ranks: int, cap_tokens: int
) -> tuple[IntArray, IntArray, int]:
    """Place every sequence in the first block with room, degrees descending.

    Args:
        rows: Rows of each sequence's fullest member, at most `cap_tokens`.
        level: Level of its degree.

    Returns:
        Microbatch and first rank of each sequence, and the number of microbatches opened.
    """
    order = np.lexsort((np.arange(len(rows)), -length_tokens, -level))
    width = 1 << (num_ranks - 1).bit_length()
    degree = np.minimum(1 << level, num_ranks)
    filled = int((rows * degree).sum()) // (num_ranks * cap_tokens) + 1
    microbatches = 1 << (2 * filled).bit_length()
    while True:
        first, microbatch = np.full(len(rows), -1), np.full(len(rows), -1)
        if _place(
            rows[order],
            degree[order],
            num_ranks,
            width,
            microbatches,
            cap_tokens,
            first,
            microbatch,
        ):
            break
        microbatches *= 2
    first_rank, placed_in = np.empty_like(first), np.empty_like(microbatch)
    first_rank[order], placed_in[order] = first, microbatch
    return placed_in, first_rank, int(microbatch.max()) + 1


@compiled
def _place(
    rows: IntArray,
    degree_of: IntArray,
    num_ranks: int,
    width: int,
    num_microbatches: int,
    cap_tokens: int,
    first_of: IntArray,
    microbatch_of: IntArray,
) -> bool:
    """Fill `first_of` and `microbatch_of`; False if the microbatches do not suffice."""
    slots = width * num_microbatches
    lowest = np.full(2 * slots, cap_tokens + 1, np.int64)
    for m in range(num_microbatches):
        for lane in range(num_ranks):
            lowest[slots + m * width + lane] = 0
    for node in range(slots - 1, 0, -1):
        lowest[node] = min(lowest[2 * node], lowest[2 * node + 1])
    for i in range(len(rows)):
        degree = degree_of[i]
        usable = num_ranks // degree * degree
        room = cap_tokens - rows[i]
        slot = _first_at_most(lowest, slots, 0, room)
        while slot >= 0 and slot % width >= usable:
            slot = _first_at_most(lowest, slots, (slot // width + 1) * width, room)
        if slot < 0:
            return False
        first_of[i], microbatch_of[i] = slot % width, slot // width
        for leaf in range(slots + slot, slots + slot + degree):
            lowest[leaf] += rows[i]
        left, right = (slots + slot) >> 1, (slots + slot + degree - 1) >> 1
        while left > 0:
            for node in range(left, right + 1):
                lowest[node] = min(lowest[2 * node], lowest[2 * node + 1])
            left, right = left >> 1, right >> 1
    return True


@compiled
def _first_at_most(lowest: IntArray, slots: int, begin: int, limit: int) -> int:
    """First slot at or after `begin` that holds at most `limit` rows, or -1."""
    if begin >= slots:
        return -1
    node = slots + begin
    while lowest[node] > limit:
        while node & 1:
            node >>= 1
            if node == 0:
                return -1
        node += 1
        if node & (node - 1) == 0:
            return -1
    while node < slots:
        node = 2 * node if lowest[2 * node] <= limit else 2 * node + 1
    return node - slots


def place_memory_sized(request: Request) -> Draft:
    """The strategy `memory-ffd`: degrees from memory, packed to the cap.

    Raises:
        Infeasible: Packing needs more microbatches than were fixed, or a multiple needs more than
            there are sequences.
    """
    level = memory_floor(
        request.cost, request.sequences.length_tokens, request.cap_tokens, request.table.offered
    )
    found = request.sized(level)
    microbatch, first_rank, count = _packed(request, found)
    if request.microbatches is not None and count > request.microbatches:
        raise Infeasible(
            f"memory-ffd packs this batch into {count} microbatches,"
            f" --microbatches allows {request.microbatches}",
            "use --microbatches auto",
        )
    if request.microbatches is None and count > len(request.sequences):
        raise Infeasible(
            f"memory-ffd packs this batch into {count} microbatches, a multiple of"
            f" {request.microbatch_multiple}, but it has only"
            f" {many(len(request.sequences), 'sequence')}",
            "use a smaller --microbatch-multiple, or a larger --max-tokens-per-rank",
        )
    return draft(request, found, microbatch, first_rank, request.microbatches or count, "memory")


def place_memory_once(request: Request, found: Draft) -> None:
    """The packing alone, nothing scored."""
    sequences = request.sequences
    level = memory_floor(
        request.cost, sequences.length_tokens, request.cap_tokens, request.table.offered
    )
    _packed(request, request.sized(level))


def _packed(request: Request, found: Sized) -> tuple[IntArray, IntArray, int]:
    """First fit to the cap; where more microbatches are asked for, to the lowest cap they hold.

    There would otherwise be empty ones at the end.
    """
    length, ranks = request.sequences.length_tokens, request.cost.ranks
    packed = place_first_fit(found.rows, found.level, length, ranks, request.cap_tokens)
    wanted = request.microbatches or request.whole_multiple(packed[2])
    if wanted <= packed[2]:
        return packed
    low, high = int(found.rows.max()), request.cap_tokens
    while low < high:
        middle = (low + high) // 2
        tighter = place_first_fit(found.rows, found.level, length, ranks, middle)
        if tighter[2] <= wanted:
            packed, high = tighter, middle
        else:
            low = middle + 1
    return packed[0], packed[1], wanted
