"""Nested context parallelism: an inner Ulysses group in an outer zigzag ring, per sequence.

One autograd Function runs the attention of a whole microbatch in one layer. Per bucket
(sequences on the same lanes in the same way, see `packing`): an all-to-all in the inner group
gives each lane a few heads of its ring shard; the ring computes and merges; an all-to-all
brings the output home. Backward runs the buckets in reverse with the transposes. Everything
is packed and nothing is padded.

Every lane of a group must call it, rows or not, forward and backward, with the same
recomputation policy: a lane that leaves out a bucket makes its group wait.

T rows of this lane, H query heads, G KV heads, D head_dim.

Source: HyDra's abstract states the nesting of an inner Ulysses group in a shallow outer ring;
the order of buckets, one Function for all of them and their fusing are ours.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from hydraplan.errors import RunFailed
from hydraplan.kernels.attention import AttentionKernel
from hydraplan.kernels.packing import Bucket, RankLayout
from hydraplan.kernels.ring import Neighbours, check_ring, ring_backward, ring_forward
from hydraplan.kernels.rows import permute, put, take
from hydraplan.kernels.ulysses import check_heads, heads_to_rows, rows_to_heads


class Groups(Protocol):
    """Where the lanes of my stage are found."""

    def inner(self, first_lane: int, size: int) -> dist.ProcessGroup:
        """Group of `size` lanes of my stage from `first_lane` on."""

    def world_rank(self, lane: int) -> int:
        """Global rank of a lane of my stage."""


def nested_attention(
    q_THD: Tensor,
    k_TGD: Tensor,
    v_TGD: Tensor,
    layout: RankLayout,
    groups: Groups | None,
    kernel: AttentionKernel,
) -> Tensor:
    """Causal attention of every sequence of the microbatch, scale 1 / sqrt(D); differentiable.

    Rows are this lane's, packed in the order of `layout`. `groups` may be None if every degree
    is one.

    Raises:
        InputError: Heads cannot be cut evenly by a group, or a ring is too long.
        RunFailed: A member of a group failed or did not come in time.
    """
    assert len(q_THD) == len(k_TGD) == len(v_TGD) == layout.rows, (q_THD.shape, layout.rows)
    for bucket in layout.buckets:
        check_heads(q_THD.shape[1], k_TGD.shape[1], bucket.ulysses_size)
        check_ring(bucket.ring_size)
        assert bucket.degree == 1 or groups is not None, "degree above one needs groups"
    apply = cast(Any, _NestedAttention.apply)  # torch does not type it
    return cast(Tensor, apply(q_THD, k_TGD, v_TGD, layout, groups, kernel))


class _NestedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q_THD: Tensor,
        k_TGD: Tensor,
        v_TGD: Tensor,
        layout: RankLayout,
        groups: Groups | None,
        kernel: AttentionKernel,
    ) -> Tensor:
        ctx.layout, ctx.groups, ctx.kernel = layout, groups, kernel
        ctx.scale = q_THD.shape[2] ** -0.5
        ctx.num_heads = [x.shape[1] for x in (q_THD, k_TGD, v_TGD)]
        out_THD = torch.empty_like(q_THD, memory_format=torch.contiguous_format)
        # Without history, so that saving parts of it makes no reference cycle.
        kept_THD = out_THD.detach()
        saved: list[Tensor] = []
        for bucket in layout.buckets:
            with _named(bucket):
                parts = [take(x, bucket.rows) for x in (q_THD, k_TGD, v_TGD)]
                q, k, v = _to_heads(parts, bucket, groups)
                lanes = _neighbours(bucket, groups)
                out, lse = ring_forward(q, k, v, bucket.steps, lanes, kernel, ctx.scale)
                (rows,) = _to_rows([out], [q_THD.shape[1]], bucket, groups)
                put(out_THD, bucket.rows, rows)
                if bucket.ulysses_size == 1:
                    out = take(kept_THD, bucket.rows)
                saved += [q, k, v, out, lse]
        ctx.save_for_backward(*saved)
        return out_THD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout_THD: Tensor) -> tuple[Tensor | None, ...]:
        # Read once: under activation checkpointing a second look raises.
        saved = ctx.saved_tensors
        dout_THD = dout_THD.contiguous()
        groups: Groups | None = ctx.groups
        num_heads: list[int] = ctx.num_heads
        grads = [dout_THD.new_empty((len(dout_THD), n, dout_THD.shape[2])) for n in num_heads]
        for i, bucket in reversed(list(enumerate(ctx.layout.buckets))):
            q, k, v, out, lse = saved[5 * i : 5 * i + 5]
            with _named(bucket):
                (dout,) = _to_heads([take(dout_THD, bucket.rows)], bucket, groups)
                lanes = _neighbours(bucket, groups)
                parts = ring_backward(
                    dout, q, k, v, out, lse, bucket.steps, lanes, ctx.kernel, ctx.scale
                )
                for grad, rows in zip(
                    grads, _to_rows(parts, num_heads, bucket, groups), strict=True
                ):
                    put(grad, bucket.rows, rows)
        return *grads, None, None, None


def _to_heads(parts: Sequence[Tensor], bucket: Bucket, groups: Groups | None) -> list[Tensor]:
    """Rows of this lane to heads of the ring shard, in shard order."""
    if bucket.ulysses_size == 1:
        return list(parts)
    received = rows_to_heads(parts, bucket.peer_rows, _inner_group(bucket, groups))
    return [permute(part, bucket.to_shard) for part in received]


def _to_rows(
    parts: Sequence[Tensor], num_heads: Sequence[int], bucket: Bucket, groups: Groups | None
) -> list[Tensor]:
    """Heads of the ring shard, in shard order, to the rows of this lane."""
    if bucket.ulysses_size == 1:
        return list(parts)
    ready = [permute(part, bucket.to_peers) for part in parts]
    group = _inner_group(bucket, groups)
    return heads_to_rows(ready, num_heads, bucket.peer_rows, len(bucket.rows), group)


def _inner_group(bucket: Bucket, groups: Groups | None) -> dist.ProcessGroup:
    assert groups is not None
    first = bucket.first_rank + bucket.ring * bucket.ulysses_size
    return groups.inner(first, bucket.ulysses_size)


def _neighbours(bucket: Bucket, groups: Groups | None) -> Neighbours | None:
    if bucket.ring_size == 1:
        return None
    assert groups is not None
    base = bucket.first_rank + bucket.inner
    following, previous = (
        groups.world_rank(base + (bucket.ring + hop) % bucket.ring_size * bucket.ulysses_size)
        for hop in (1, -1)
    )
    return Neighbours(following, previous, bucket.order)


@contextmanager
def _named(bucket: Bucket) -> Iterator[None]:
    """Say which sequences and lanes were at work when communication fails."""
    try:
        yield
    except RuntimeError as error:
        if bucket.degree == 1:
            raise
        last = bucket.first_rank + bucket.degree - 1
        ids = ", ".join(map(str, bucket.sequence_id[:4]))
        more = ", ..." if len(bucket.sequence_id) > 4 else ""
        raise RunFailed(
            f"attention of sequences {ids}{more} on lanes {bucket.first_rank}..{last} failed on"
            f" member {bucket.member}: {str(error).splitlines()[0]}"
        ) from error
