"""Nested context parallelism: an inner Ulysses group in an outer zigzag ring, per sequence.

One autograd Function runs the attention of a whole microbatch in one layer. Per bucket
(sequences on the same lanes in the same way, see `packing`): an all-to-all in the inner group
gives each lane a few heads of its ring shard, evenly or as the bucket's head split says; the
ring computes and merges; an all-to-all brings the output home. Backward runs the buckets in
reverse with the transposes. Heads that moved to another lane (`loan`) travel meanwhile.
Everything is packed and nothing is padded.

Every lane of a group must call it, rows or not, forward and backward, with the same
recomputation policy: a lane that leaves out a bucket makes its group wait.

T rows of this lane, H query heads, G KV heads, D head_dim.

Source: HyDra's abstract states the nesting of an inner Ulysses group in a shallow outer ring;
the order of buckets, one Function for all of them and their fusing are ours.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from hydraplan.errors import InputError, RunFailed, first_line
from hydraplan.heads import Heads, HeadSplit, check_groups, even_split
from hydraplan.kernels.attention import AttentionKernel
from hydraplan.kernels.exchange import Neighbours, Peers
from hydraplan.kernels.head_runs import by_runs
from hydraplan.kernels.loan import KEPT, Loan
from hydraplan.kernels.packing import Bucket, RankLayout
from hydraplan.kernels.ring import INNER, check_ring, ring_backward, ring_forward, tag
from hydraplan.kernels.rows import permute, put, take
from hydraplan.kernels.ulysses import heads_to_rows, rows_to_heads


class Groups(Protocol):
    """Where the lanes of my stage are found."""

    @property
    def batched_hops(self) -> bool:
        """Whether one call posts both messages of a ring hop."""

    def inner(self, first_lane: int, size: int) -> dist.ProcessGroup | None:
        """Group of `size` lanes of my stage from `first_lane` on, None if it was not created."""

    def world_rank(self, lane: int) -> int:
        """Global rank of a lane of my stage."""


def nested_attention(
    q_THD: Tensor,
    k_TGD: Tensor,
    v_TGD: Tensor,
    layout: RankLayout,
    groups: Groups | None,
    kernel: AttentionKernel,
    loan: Loan | None = None,
) -> Tensor:
    """Causal attention of every sequence of the microbatch, scale 1 / sqrt(D); differentiable.

    Rows are this lane's, packed in the order of `layout`. `groups` may be None if every degree
    is one. `loan`: heads that this lane gives to another or takes from one.

    Raises:
        InputError: Heads cannot be grouped or are not those of a head split, or a ring is too
            long.
        RunFailed: A member of a group failed or did not come in time.
    """
    assert len(q_THD) == len(k_TGD) == len(v_TGD) == layout.rows, (q_THD.shape, layout.rows)
    check_groups(q_THD.shape[1], k_TGD.shape[1])
    for bucket in layout.buckets:
        _check_split(bucket, q_THD.shape[1], k_TGD.shape[1])
        check_ring(bucket.ring_size)
        assert bucket.degree == 1 or groups is not None, "degree above one needs groups"
    apply = cast(Any, _NestedAttention.apply)  # torch does not type it
    return cast(Tensor, apply(q_THD, k_TGD, v_TGD, layout, groups, kernel, loan))


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
        loan: Loan | None,
    ) -> Tensor:
        ctx.layout, ctx.groups, ctx.kernel, ctx.loan = layout, groups, kernel, loan
        ctx.scale = q_THD.shape[2] ** -0.5
        ctx.num_heads = [x.shape[1] for x in (q_THD, k_TGD, v_TGD)]
        out_THD = torch.empty_like(q_THD, memory_format=torch.contiguous_format)
        # Without history, so that saving parts of it makes no reference cycle.
        kept_THD = out_THD.detach()
        saved: list[Tensor] = []
        coming = loan and loan.start(q_THD, k_TGD, v_TGD)
        for bucket in layout.buckets:
            with _named(bucket):
                member = _Member(bucket, groups, ctx.num_heads, loan)
                q, k, v = member.to_heads([take(x, bucket.rows) for x in (q_THD, k_TGD, v_TGD)])
                run = member.kernel(kernel)
                out, lse = ring_forward(q, k, v, bucket.steps, member.neighbours, run, ctx.scale)
                (rows,) = member.to_rows([out])
                put(member.own(0, out_THD), bucket.rows, rows)
                if bucket.ulysses_size == 1:
                    out = take(member.own(0, kept_THD), bucket.rows)
                saved += [q, k, v, out, lse]
        if loan and coming:
            saved += loan.finish(coming, out_THD, kernel, ctx.scale)
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
        loan: Loan | None = ctx.loan
        coming = loan and loan.start_backward(dout_THD)
        for i, bucket in reversed(list(enumerate(ctx.layout.buckets))):
            q, k, v, out, lse = saved[5 * i : 5 * i + 5]
            with _named(bucket):
                member = _Member(bucket, groups, num_heads, loan)
                (dout,) = member.to_heads([take(dout_THD, bucket.rows)])
                run = member.kernel(ctx.kernel)
                parts = ring_backward(
                    dout, q, k, v, out, lse, bucket.steps, member.neighbours, run, ctx.scale
                )
                for n, rows in enumerate(member.to_rows(parts)):
                    put(member.own(n, grads[n]), bucket.rows, rows)
        if loan and coming:
            kept = saved[5 * len(ctx.layout.buckets) :]
            loan.finish_backward(coming, kept, grads, ctx.kernel, ctx.scale)
        return *grads, None, None, None, None


def _check_split(bucket: Bucket, num_heads: int, num_kv_heads: int) -> None:
    split = bucket.heads
    if split is not None and (split.num_heads, split.num_kv_heads) != (num_heads, num_kv_heads):
        raise InputError(
            f"head split of {split.num_heads} query and {split.num_kv_heads} KV heads is given for"
            f" {num_heads} and {num_kv_heads}"
        )


@dataclass(frozen=True, slots=True)
class _Member:
    """One lane in one bucket: its heads, its peers and its neighbours.

    `num_heads` of q, k and v. A lane that gives heads away has the others of its unsplit bucket.
    """

    bucket: Bucket
    groups: Groups | None
    num_heads: Sequence[int]
    loan: Loan | None = None

    @property
    def split(self) -> HeadSplit:
        """Who computes which heads."""
        bucket, (q_heads, kv_heads, _) = self.bucket, self.num_heads
        return bucket.heads or even_split(q_heads, kv_heads, bucket.ulysses_size, bucket.ring_size)

    @property
    def lent(self) -> Loan | None:
        """The loan that takes heads of this bucket."""
        loan = self.loan
        return loan if loan and loan.is_giver and self.bucket.degree == 1 else None

    def own(self, part: int, x: Tensor) -> Tensor:
        """What is computed here of q (or its output), k or v, numbers 0 to 2."""
        return x if self.lent is None else x[:, self.lent.columns(KEPT)[part]]

    def kernel(self, kernel: AttentionKernel) -> AttentionKernel:
        """The kernel for the heads of this lane."""
        if self.lent is not None:
            return self.lent.kernel(kernel, KEPT)
        split, ring, inner = self.split, self.bucket.ring, self.bucket.inner
        held = len(split.q_heads[ring][inner]), len(split.kv_heads[inner])
        return by_runs(kernel, split.runs[ring][inner], *held)

    def to_heads(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Rows of q, k, v or of q alone to this lane's heads of the shard, in shard order."""
        bucket = self.bucket
        if bucket.ulysses_size == 1:
            return [self.own(n, part) for n, part in enumerate(parts)]
        heads = self._heads[: len(parts)]
        received = rows_to_heads(parts, heads, bucket.peer_rows, self._peers)
        return [permute(part, bucket.to_shard) for part in received]

    def to_rows(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """This lane's heads of the shard, in shard order, to its rows of q, k, v or of q alone."""
        bucket = self.bucket
        if bucket.ulysses_size == 1:
            return list(parts)
        ready = [permute(part, bucket.to_peers) for part in parts]
        heads, num_heads = self._heads[: len(parts)], self.num_heads[: len(parts)]
        return heads_to_rows(ready, heads, num_heads, bucket.peer_rows, self._peers)

    @property
    def _heads(self) -> list[tuple[Heads, ...]]:
        """Heads of every peer, of q, k and v."""
        q_heads, kv_heads = self.split.q_heads[self.bucket.ring], self.split.kv_heads
        return [q_heads, kv_heads, kv_heads]

    @property
    def _peers(self) -> Peers:
        """The inner group of this lane."""
        assert self.groups is not None
        bucket, size = self.bucket, self.bucket.ulysses_size
        first = bucket.first_rank + bucket.ring * size
        ranks = tuple(self.groups.world_rank(first + i) for i in range(size))
        group = self.groups.inner(first, size)
        return Peers(ranks, bucket.inner, group, tag(INNER, bucket.order, 0))

    @property
    def neighbours(self) -> Neighbours | None:
        """The lanes before and after this one in its ring, None for a ring of one."""
        bucket = self.bucket
        if bucket.ring_size == 1:
            return None
        assert self.groups is not None
        base = bucket.first_rank + bucket.inner
        following, previous = (
            self.groups.world_rank(
                base + (bucket.ring + hop) % bucket.ring_size * bucket.ulysses_size
            )
            for hop in (1, -1)
        )
        batched, sends_first = self.groups.batched_hops, bucket.ring % 2 == 0
        return Neighbours(following, previous, bucket.order, batched, sends_first)


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
            f" member {bucket.member}: {first_line(error)}"
        ) from error
