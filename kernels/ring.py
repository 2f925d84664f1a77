"""The outer zigzag ring: keys and values go round, queries stay.

At hop s a lane holds the keys of the lane s places before it. The next hop is posted before
the kernel runs, so it travels meanwhile. Partial outputs are merged in the accumulator type
and cast once. Backward sends keys and values round again, and behind them, one hop later,
the accumulator of their gradients: every lane adds its share, the last hop brings it home.

Messages go through the world group with tags, so rings need no process groups of their own.
Empty messages are not sent: both ends know the rows.

N, S rows of the own shard and of the one at hand, H, G query and KV heads, D head_dim.

Source: Ring Attention and its zigzag order are standard in the field; sending in the world
group, uneven hops and the tags are our choice.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from hydraplan.errors import InputError
from hydraplan.kernels.attention import AttentionKernel
from hydraplan.kernels.exchange import Neighbours, post, wait
from hydraplan.kernels.glue import choose_glue
from hydraplan.kernels.merge import accumulator_dtype
from hydraplan.kernels.packing import RingStep
from hydraplan.kernels.rows import add, take

FORWARD_KV, BACKWARD_KV, BACKWARD_GRADIENT, INNER = 0, 1, 2, 3
"""What a message carries."""

TAG_LIMIT = 2**20
"""Tags of rings lie below; those of pipeline messages start here."""

MAX_RING_SIZE = 1_024


def tag(carries: int, order: int, hop: int) -> int:
    """Tag of a ring message, below `TAG_LIMIT`.

    Distinct for every kind and hop of 256 neighbouring buckets. Two messages between the same
    lanes with the same tag are of another layer or microbatch, and are posted in the same
    order on both sides.
    """
    assert 0 <= carries < 4
    assert 0 <= hop < MAX_RING_SIZE
    return (order % 256 * 4 + carries) * MAX_RING_SIZE + hop


def check_ring(ring_size: int) -> None:
    """Refuse a ring longer than its tags can count.

    Raises:
        InputError: The ring is too long.
    """
    if ring_size > MAX_RING_SIZE:
        raise InputError(f"ring_size {ring_size} exceeds {MAX_RING_SIZE}, the longest ring")


def ring_forward(
    q_NHD: Tensor,
    k_NGD: Tensor,
    v_NGD: Tensor,
    steps: tuple[RingStep, ...],
    lanes: Neighbours | None,
    kernel: AttentionKernel,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Causal attention of the own queries over all keys of the ring.

    Returns the output (N, H, D) in the input type and lse (H, N) in the accumulator type.
    `lanes` may be None for a ring of one.
    """
    if len(steps) == 1:
        return kernel.forward(q_NHD, k_NGD, v_NGD, steps[0].cu_q, steps[0].cu_k, True, scale)
    assert lanes is not None
    kv_S2GD = torch.stack((k_NGD, v_NGD), dim=1)
    merge_rows = choose_glue(q_NHD.device, q_NHD.dtype).merge_rows
    out_NHD = torch.zeros_like(q_NHD, dtype=accumulator_dtype(q_NHD.dtype))
    lse_NH = out_NHD.new_full(q_NHD.shape[:2], -torch.inf)
    for hop, step in enumerate(steps):
        coming, works = _next_keys(kv_S2GD, steps, hop, FORWARD_KV, lanes)
        if len(step.cu_q) > 1:
            k_SGD, v_SGD = take(kv_S2GD, step.k_rows).unbind(1)
            part_THD, part_HT = kernel.forward(
                take(q_NHD, step.q_rows), k_SGD, v_SGD, step.cu_q, step.cu_k, step.causal, scale
            )
            merge_rows(out_NHD, lse_NH, step.q_rows, part_THD, part_HT)
        wait(works)
        kv_S2GD = coming
    return out_NHD.to(q_NHD.dtype), lse_NH.T


def ring_backward(
    dout_NHD: Tensor,
    q_NHD: Tensor,
    k_NGD: Tensor,
    v_NGD: Tensor,
    out_NHD: Tensor,
    lse_HN: Tensor,
    steps: tuple[RingStep, ...],
    lanes: Neighbours | None,
    kernel: AttentionKernel,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v of the own shard, in the input type."""
    if len(steps) == 1:
        cu_q, cu_k = steps[0].cu_q, steps[0].cu_k
        return kernel.backward(
            dout_NHD, q_NHD, k_NGD, v_NGD, out_NHD, lse_HN, cu_q, cu_k, True, scale
        )
    assert lanes is not None
    wide = accumulator_dtype(q_NHD.dtype)
    kv_S2GD = torch.stack((k_NGD, v_NGD), dim=1)
    dq_NHD = torch.zeros_like(q_NHD, dtype=wide)
    dkv_S2GD = torch.zeros_like(kv_S2GD, dtype=wide)
    gradient_works: list[dist.Work] = []
    for hop, step in enumerate(steps):
        coming, works = _next_keys(kv_S2GD, steps, hop, BACKWARD_KV, lanes)
        shares: list[Tensor] = []
        if len(step.cu_q) > 1:
            k_SGD, v_SGD = take(kv_S2GD, step.k_rows).unbind(1)
            dq_THD, *shares = kernel.backward(
                *(take(x, step.q_rows) for x in (dout_NHD, q_NHD)),
                *(k_SGD, v_SGD),
                *(take(out_NHD, step.q_rows), take(lse_HN.T, step.q_rows).T),
                *(step.cu_q, step.cu_k, step.causal, scale),
            )
            add(dq_NHD, step.q_rows, dq_THD)
        wait(gradient_works)
        for sum_SGD, share_SGD in zip(dkv_S2GD.unbind(1), shares, strict=False):
            add(sum_SGD, step.k_rows, share_SGD)
        leaving, rows = dkv_S2GD, steps[(hop + 1) % len(steps)].shard_rows
        dkv_S2GD = leaving.new_empty((rows, *leaving.shape[1:]))
        message = tag(BACKWARD_GRADIENT, lanes.order, hop)
        gradient_works = post(leaving, dkv_S2GD, lanes, message)
        wait(works)
        kv_S2GD = coming
    wait(gradient_works)
    dk_NGD, dv_NGD = dkv_S2GD.to(k_NGD.dtype).unbind(1)
    return dq_NHD.to(q_NHD.dtype), dk_NGD, dv_NGD


def _next_keys(
    kv_S2GD: Tensor, steps: tuple[RingStep, ...], hop: int, carries: int, lanes: Neighbours
) -> tuple[Tensor, list[dist.Work]]:
    """Start to pass the keys at hand on; the buffer of those to come, and what to wait for."""
    if hop + 1 == len(steps):
        return kv_S2GD, []
    coming = kv_S2GD.new_empty((steps[hop + 1].shard_rows, *kv_S2GD.shape[1:]))
    return coming, post(kv_S2GD, coming, lanes, tag(carries, lanes.order, hop))
