"""The inner all-to-all: from all heads of a few rows to a few heads of many rows, and back.

Tensors that travel together are fused on the head axis, so each direction is one collective.
Which heads a peer holds is handed in, any heads and any number of them, none included. A KV
head that several peers hold is sent to each of them, and on the way back their gradients are
summed. Peers bring different numbers of rows, zero included; nothing is padded.

T rows of this lane, N rows of the ring shard, H heads of a whole tensor, h those one member
holds, D head_dim.

Source: DeepSpeed-Ulysses (all-to-all over heads), stated; replicating KV heads is common
practice; fusing, uneven heads and uneven rows are our choice.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from hydraplan.heads import Heads
from hydraplan.kernels.exchange import Peers, all_to_all
from hydraplan.kernels.merge import accumulator_dtype


def rows_to_heads(
    parts_THD: Sequence[Tensor],
    heads: Sequence[Sequence[Heads]],
    peer_rows: Sequence[int],
    peers: Peers,
) -> list[Tensor]:
    """Trade rows for heads: each (T, H, D) becomes (N, h, D), rows peer-major.

    `heads[i][peer]`: the heads of tensor i that a peer holds.
    """
    rows, _, width = parts_THD[0].shape
    widths = _widths(heads)
    sizes = [rows * n * width for n in widths]
    send = parts_THD[0].new_empty(sum(sizes))
    for peer, places in enumerate(_slots(send, rows, width, heads)):
        for place, part, held in zip(places, parts_THD, heads, strict=True):
            place.copy_(part[:, _columns(held[peer])])
    received = send.new_empty((sum(peer_rows), widths[peers.own], width))
    back = [n * widths[peers.own] * width for n in peer_rows]
    all_to_all(received.view(-1), send, back, sizes, peers)
    return list(received.split([len(held[peers.own]) for held in heads], dim=1))


def heads_to_rows(
    parts_NHD: Sequence[Tensor],
    heads: Sequence[Sequence[Heads]],
    num_heads: Sequence[int],
    peer_rows: Sequence[int],
    peers: Peers,
) -> list[Tensor]:
    """Trade heads for rows, the transpose of `rows_to_heads`: each (N, h, D) becomes (T, H, D).

    `num_heads` are the heads of each whole tensor. What peers hold of one replicated head is
    summed, in the accumulator type.
    """
    rows, width, widths = peer_rows[peers.own], parts_NHD[0].shape[2], _widths(heads)
    send = torch.cat(list(parts_NHD), dim=1).view(-1)
    sizes = [rows * n * width for n in widths]
    received = send.new_empty(sum(sizes))
    there = [n * widths[peers.own] * width for n in peer_rows]
    all_to_all(received, send, sizes, there, peers)
    pieces = zip(*_slots(received, rows, width, heads), strict=True)
    return [_join(*whole) for whole in zip(pieces, heads, num_heads, strict=True)]


def _join(pieces_THD: Sequence[Tensor], heads: Sequence[Heads], num_heads: int) -> Tensor:
    """One whole tensor of the pieces of all peers, what several hold of one head summed."""
    narrow, (rows, _, width) = pieces_THD[0].dtype, pieces_THD[0].shape
    if sum(map(len, heads)) == num_heads:
        whole_THD = pieces_THD[0].new_empty((rows, num_heads, width))
        for piece_THD, held in zip(pieces_THD, heads, strict=True):
            whole_THD[:, _columns(held)] = piece_THD
        return whole_THD
    sum_THD = pieces_THD[0].new_zeros((rows, num_heads, width), dtype=accumulator_dtype(narrow))
    for piece_THD, held in zip(pieces_THD, heads, strict=True):
        sum_THD[:, _columns(held)] += piece_THD
    return sum_THD.to(narrow)


def _widths(heads: Sequence[Sequence[Heads]]) -> list[int]:
    """Heads that each peer holds, of all tensors together."""
    return [sum(map(len, held)) for held in zip(*heads, strict=True)]


def _slots(
    flat: Tensor, rows: int, width: int, heads: Sequence[Sequence[Heads]]
) -> list[tuple[Tensor, ...]]:
    """Views of a buffer of peer after peer: (rows, heads of the peer, width) of every tensor."""
    widths = _widths(heads)
    slots = flat.split([rows * n * width for n in widths])
    return [
        slot.view(rows, n, width).split([len(held[peer]) for held in heads], dim=1)
        for peer, (slot, n) in enumerate(zip(slots, widths, strict=True))
    ]


def _columns(heads: Heads) -> slice | list[int]:
    """An index of these heads: a view where they are one range."""
    if not heads:
        return slice(0, 0)
    first, last = heads[0], heads[-1]
    return slice(first, last + 1) if last - first + 1 == len(heads) else list(heads)
