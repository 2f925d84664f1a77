"""Who holds which rows: the one definition that planner, checker and engine share.

A sequence of L tokens on degree d = u * r ranks (u = ulysses_size, r = ring_size) is cut
without padding. Member i of the group has inner index i % u and ring index i // u.

* The ring cuts 0..L into 2r chunks at floor(L * j / 2r); ring index k owns chunks k and
  2r-1-k (zigzag), so that causal work is even.
* Inside a ring shard of n rows, inner index j owns rows floor(n*j/u) .. floor(n*(j+1)/u).

Source: zigzag pairing and nesting are standard in the field; cutting at floors instead of
padding is our choice.
"""

import numpy as np

from hydraplan.model import IntArray

MAX_RANKS = 1 << 16
"""Largest pool; beyond it a tree over the lanes would not fit a planner's memory."""

MAX_LENGTH_TOKENS = 1 << 40
"""Longest sequence: its products with 2 * ring_size stay within int64 for MAX_RANKS."""


def chunk_bounds(length_tokens: int, ring_size: int) -> list[int]:
    """Bounds of the 2 * ring_size zigzag chunks, in tokens; 2 * ring_size + 1 entries."""
    return [length_tokens * j // (2 * ring_size) for j in range(2 * ring_size + 1)]


def ring_shard(length_tokens: int, ring_size: int, ring_index: int) -> tuple[range, range]:
    """Front and back chunk of one ring index, as ranges of token positions."""
    bounds = chunk_bounds(length_tokens, ring_size)
    last = 2 * ring_size - 1 - ring_index
    return (
        range(bounds[ring_index], bounds[ring_index + 1]),
        range(bounds[last], bounds[last + 1]),
    )


def inner_bounds(shard_rows: int, ulysses_size: int) -> list[int]:
    """Cuts of a ring shard between its inner ranks, in rows; ulysses_size + 1 entries."""
    return [shard_rows * j // ulysses_size for j in range(ulysses_size + 1)]


def rank_positions(length_tokens: int, ulysses_size: int, ring_size: int, member: int) -> IntArray:
    """Token positions that one member of the group holds, ascending, shape (rows,)."""
    front, back = ring_shard(length_tokens, ring_size, member // ulysses_size)
    shard = np.concatenate([np.arange(front.start, front.stop), np.arange(back.start, back.stop)])
    cuts = inner_bounds(len(shard), ulysses_size)
    inner = member % ulysses_size
    return shard[cuts[inner] : cuts[inner + 1]].astype(np.int64)


def rank_tokens(length_tokens: IntArray, ulysses_size: IntArray, ring_size: IntArray) -> IntArray:
    """Exact rows of every member of every group, concatenated, shape (sum of degrees,).

    Sequence i contributes degree_i = ulysses_size_i * ring_size_i consecutive entries, in
    rank order; `expand` gives the matching sequence and member indices.
    """
    sequence, member = expand(ulysses_size * ring_size)
    length, u, r = length_tokens[sequence], ulysses_size[sequence], ring_size[sequence]
    inner, ring = member % u, member // u
    back = 2 * r - 1 - ring
    shard = (
        length * (ring + 1) // (2 * r)
        - length * ring // (2 * r)
        + length * (back + 1) // (2 * r)
        - length * back // (2 * r)
    )
    rows: IntArray = shard * (inner + 1) // u - shard * inner // u
    return rows


def rank_tokens_max(
    length_tokens: IntArray, ulysses_size: IntArray, ring_size: IntArray
) -> IntArray:
    """Most rows that any member holds, shape (num_sequences,), without listing the members.

    With L = 2r q + s, s of the 2r chunks have q + 1 tokens. No ring index owns such a chunk if
    s is 0. One owns two of them exactly if s does not divide 2r: chunk j is longer if
    a = s j mod 2r is at least 2r - s, its mirror as well if a is above that, and a takes every
    multiple of gcd(s, 2r). Source: derived here.
    """
    chunks = 2 * ring_size
    longer = length_tokens % chunks
    extra = np.where(longer == 0, 0, np.where(chunks % np.maximum(longer, 1) == 0, 1, 2))
    shard = 2 * (length_tokens // chunks) + extra
    rows: IntArray = -(-shard // ulysses_size)
    return rows


def expand(degree: IntArray) -> tuple[IntArray, IntArray]:
    """Index pairs (sequence, member) of all group members, each shape (sum of degrees,)."""
    sequence = np.repeat(np.arange(len(degree), dtype=np.int64), degree)
    starts = np.repeat(np.cumsum(degree) - degree, degree)
    return sequence, np.arange(len(sequence), dtype=np.int64) - starts


def legal_degrees(num_ranks: int) -> IntArray:
    """Degrees of a pool, ascending: the powers of two that fit, and the whole pool.

    Their index is called level: level k is degree min(2**k, num_ranks), an aligned block, or
    all ranks.
    """
    levels = (num_ranks - 1).bit_length() + 1
    result: IntArray = np.minimum(1 << np.arange(levels, dtype=np.int64), num_ranks)
    return result


def legal_ulysses(num_heads: int, num_kv_heads: int, limit: int) -> list[int]:
    """Powers of two up to `limit` into which the heads of a rank can be divided, ascending.

    A size u is legal if u divides the query heads, and KV heads divide evenly over u ranks
    or are replicated evenly (u a multiple of num_kv_heads). Heads are counted after tensor
    parallelism.
    """
    sizes, u = [], 1
    while u <= limit:
        if num_heads % u == 0 and (num_kv_heads % u == 0 or u % num_kv_heads == 0):
            sizes.append(u)
        u *= 2
    return sizes
