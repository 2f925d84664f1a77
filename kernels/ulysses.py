"""The inner all-to-all: from all heads of a few rows to a few heads of many rows, and back.

Tensors that travel together are fused on the head axis, so each direction is one collective.
Heads are cut evenly over the group; KV heads fewer than the group are sent to several peers,
each of which computes with a whole head, and on the way back their gradients are summed.
Peers bring different numbers of rows, zero included; nothing is padded.

T rows of this lane, N rows of the ring shard, H heads, D head_dim, u size of the group.

Source: DeepSpeed-Ulysses (all-to-all over heads), stated; replicating KV heads is common
practice; fusing and uneven rows are our choice.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from hydraplan.errors import InputError
from hydraplan.kernels.exchange import all_to_all
from hydraplan.kernels.merge import accumulator_dtype


def check_heads(num_heads: int, num_kv_heads: int, ulysses_size: int) -> None:
    """Refuse a group size that would cut a KV group unevenly.

    Kernels assume that all KV heads serve equally many query heads; with an uneven cut they
    would answer wrongly and silently.

    Raises:
        InputError: Heads cannot be divided evenly.
    """
    if num_heads % num_kv_heads:
        raise InputError(f"{num_heads} query heads are not a multiple of {num_kv_heads} KV heads")
    if num_heads % ulysses_size:
        raise InputError(
            f"ulysses_size {ulysses_size} does not divide {num_heads} query heads",
            "use a smaller ulysses_size and a larger ring_size",
        )
    if num_kv_heads % ulysses_size and ulysses_size % num_kv_heads:
        raise InputError(
            f"ulysses_size {ulysses_size} cuts {num_kv_heads} KV heads unevenly:"
            " neither divides the other",
            "use a smaller ulysses_size and a larger ring_size",
        )


def rows_to_heads(
    parts_THD: Sequence[Tensor], peer_rows: Sequence[int], group: dist.ProcessGroup
) -> list[Tensor]:
    """Trade rows for heads: each (T, H, D) becomes (N, max(1, H / u), D), rows peer-major."""
    size = len(peer_rows)
    rows, _, width = parts_THD[0].shape
    heads = [max(1, part.shape[1] // size) for part in parts_THD]
    send_uTHD = parts_THD[0].new_empty((size, rows, sum(heads), width))
    for slot, part in zip(send_uTHD.split(heads, dim=2), parts_THD, strict=True):
        copies = max(1, size // part.shape[1])
        cut = part.unflatten(1, (size // copies, slot.shape[2])).transpose(0, 1)
        slot.unflatten(0, (size // copies, copies)).copy_(cut[:, None])
    received = send_uTHD.new_empty((sum(peer_rows), sum(heads), width))
    all_to_all(received, send_uTHD.flatten(0, 1), peer_rows, [rows] * size, group)
    return list(received.split(heads, dim=1))


def heads_to_rows(
    parts_NHD: Sequence[Tensor],
    num_heads: Sequence[int],
    peer_rows: Sequence[int],
    rows: int,
    group: dist.ProcessGroup,
) -> list[Tensor]:
    """Trade heads for rows, the transpose of `rows_to_heads`: each becomes (T, H, D).

    `num_heads` are the heads of each whole tensor. What peers hold of one replicated head is
    summed, in the accumulator type.
    """
    size = len(peer_rows)
    width = parts_NHD[0].shape[2]
    heads = [part.shape[1] for part in parts_NHD]
    send = torch.cat(list(parts_NHD), dim=1) if len(parts_NHD) > 1 else parts_NHD[0].contiguous()
    received = send.new_empty((size * rows, sum(heads), width))
    all_to_all(received, send, [rows] * size, peer_rows, group)
    whole = []
    for part, count in zip(
        received.unflatten(0, (size, rows)).split(heads, dim=2), num_heads, strict=True
    ):
        if count < size:
            copies_GcTD = part.squeeze(2).unflatten(0, (count, size // count))
            wide = accumulator_dtype(part.dtype)
            whole.append(copies_GcTD.sum(1, dtype=wide).to(part.dtype).transpose(0, 1))
        else:
            whole.append(part.transpose(0, 1).flatten(1, 2))
    return whole
