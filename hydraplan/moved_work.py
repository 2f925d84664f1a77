"""What moved work sends, and what it keeps where it is done: bytes, and tokens of activations.

Counted from the rows and heads that move, as the executor sends and keeps them. A giver is counted
as if it kept all of its own, which is a little more than it does.

Source: derived here; counted on the wire, and in the tensors that are kept, in the tests.
"""

import numpy as np

from hydraplan.activations import foreign_row, forward_bytes, head_bytes
from hydraplan.config import ACCUMULATOR_BYTES
from hydraplan.cost import CostModel
from hydraplan.heads import HeadSplit, even_split
from hydraplan.layout import rank_tokens
from hydraplan.migration import HeadShares, Moves
from hydraplan.model import FloatArray, IntArray, Sequences
from hydraplan.traffic import member_bytes


def moved_bytes(cost: CostModel, placed: Sequences, moves: Moves) -> IntArray:
    """Bytes that each rank sends more in a step, or fewer, shape (stages, lanes).

    Rows: x out and y back, their gradients backward. Heads: q, k, v out and the output back,
    gradients of the output out and of q, k, v back. Uneven heads: by what the all-to-alls and
    hops grow. Where B makes whole layers again, forward counts twice.
    """
    sent = np.zeros((cost.pp, cost.ranks), np.int64)
    forwards = 2 if cost.recompute == "full" else 1
    layers = [sum(chunks) for chunks in cost.layers]
    shape = cost.model.head_dim, cost.element_bytes, ACCUMULATOR_BYTES[cost.model.dtype]
    for share in moves.shares:
        even, uneven = _even(cost, share), share.split(cost.num_heads, cost.num_kv_heads)
        lanes = slice(share.first_rank, share.first_rank + share.ulysses_size * share.ring_size)
        for length in _lengths(placed, share):
            forward, backward = member_bytes(length, uneven, *shape)
            forward, backward = np.stack([forward, backward]) - member_bytes(length, even, *shape)
            sent[share.stage, lanes] += layers[share.stage] * (forwards * forward + backward)
    row_bytes = cost.model.hidden_size * cost.element_bytes
    for move in moves.rows:
        both = layers[move.stage] * (forwards + 1) * move.rows * row_bytes
        sent[move.stage, [move.giver, move.taker]] += both
    column_bytes = cost.model.head_dim * cost.element_bytes
    for heads in moves.heads:
        key = HeadShares(heads.stage, heads.microbatch, heads.giver, 1, 1, ())
        size = layers[heads.stage] * sum(_lengths(placed, key)) * column_bytes
        there = heads.heads + 2 * _kv_heads(cost, heads.heads)
        sent[heads.stage, heads.giver] += size * (forwards * there + heads.heads)
        sent[heads.stage, heads.taker] += size * (forwards * heads.heads + there)
    return sent


def moved_tokens(
    cost: CostModel, placed: Sequences, moves: Moves, num_microbatches: int
) -> FloatArray:
    """Tokens of activations that each slot holds more, shape (2, stages, lanes, microbatches).

    First after F, then after B. A token is what F keeps of a row if nothing is made again. A member
    with fewer heads than its share is counted with its share.
    """
    tokens = np.zeros((2, cost.pp, cost.ranks, num_microbatches))
    after_forward, after_input = foreign_row(cost.model, cost.recompute)
    for move in moves.rows:
        tokens[:, move.stage, move.taker, move.microbatch] += [
            after_forward * move.rows,
            after_input * move.rows,
        ]
    if cost.recompute == "full":
        return tokens
    whole = forward_bytes(cost.model)
    for heads in moves.heads:
        key = HeadShares(heads.stage, heads.microbatch, heads.giver, 1, 1, ())
        kept = _head_bytes(cost, heads.heads, _kv_heads(cost, heads.heads))
        more = sum(_lengths(placed, key)) * kept / whole
        tokens[0, heads.stage, heads.taker, heads.microbatch] += more
    for share in moves.shares:
        lanes = slice(share.first_rank, share.first_rank + share.ulysses_size * share.ring_size)
        tokens[0, share.stage, lanes, share.microbatch] += share_tokens(cost, placed, share)
    return tokens


def share_tokens(cost: CostModel, placed: Sequences, share: HeadShares) -> FloatArray:
    """Tokens of activations that each member holds more after F by uneven heads, (members,)."""
    tokens = np.zeros(share.ulysses_size * share.ring_size)
    if cost.recompute == "full":
        return tokens
    uneven = _kept(cost, share.split(cost.num_heads, cost.num_kv_heads))
    more_bytes = np.maximum(0, uneven - _kept(cost, _even(cost, share)))
    for length in _lengths(placed, share):
        shape = np.array([[length], [share.ulysses_size], [share.ring_size]], np.int64)
        shard = rank_tokens(*shape).reshape(share.ring_size, -1).sum(axis=1, keepdims=True)
        tokens += (shard * more_bytes).reshape(-1) / forward_bytes(cost.model)
    return tokens


def _even(cost: CostModel, share: HeadShares) -> HeadSplit:
    return even_split(cost.num_heads, cost.num_kv_heads, share.ulysses_size, share.ring_size)


def _kv_heads(cost: CostModel, heads: int) -> int:
    """KV heads that the last `heads` query heads need."""
    return -(-heads * cost.num_kv_heads // cost.num_heads)


def _head_bytes(cost: CostModel, num_heads: int, num_kv_heads: int) -> int:
    """What some heads of a rank keep of a row, on all devices that share it."""
    return head_bytes(cost.model, cost.tp * num_heads, cost.tp * num_kv_heads)


def _kept(cost: CostModel, split: HeadSplit) -> IntArray:
    """Bytes that every member keeps of a row of its ring shard, (ring_size, ulysses_size)."""
    return np.array(
        [
            [
                _head_bytes(cost, len(q_heads), len(kv_heads))
                for q_heads, kv_heads in zip(shard, split.kv_heads, strict=True)
            ]
            for shard in split.q_heads
        ],
        np.int64,
    )


def _lengths(placed: Sequences, share: HeadShares) -> list[int]:
    """Lengths of the sequences of a bucket."""
    here = placed.microbatch == share.microbatch
    for name in ("first_rank", "ulysses_size", "ring_size"):
        here &= getattr(placed, name) == getattr(share, name)
    found: list[int] = placed.length_tokens[here].tolist()
    return found
