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
from hydraplan.kernels.glue import choose_glue
from hydraplan.kernels.head_columns import head_counts


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
    counts = head_counts(heads)
    own = counts[peers.own]
    glue = choose_glue(parts_THD[0].device, parts_THD[0].dtype)
    send = glue.gather_heads(parts_THD, heads)
    received = send.new_empty((sum(peer_rows), own, width))
    there, back = [rows * n * width for n in counts], [n * own * width for n in peer_rows]
    all_to_all(received.view(-1), send, back, there, peers)
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
    rows, width, counts = peer_rows[peers.own], parts_NHD[0].shape[2], head_counts(heads)
    own = counts[peers.own]
    send = torch.cat(list(parts_NHD), dim=1).view(-1)
    there, back = [n * own * width for n in peer_rows], [rows * n * width for n in counts]
    received = send.new_empty(sum(back))
    all_to_all(received, send, back, there, peers)
    glue = choose_glue(send.device, send.dtype)
    return glue.scatter_heads(received, rows, width, heads, num_heads)
