"""Heads of sequences that are not split attend at another lane of the stage.

One end of a loan, giver or taker, beside the buckets of a microbatch in one layer. The giver sends
q, k and v of some heads before its own buckets, computes the rest of its heads meanwhile and takes
the outputs after all buckets; the taker attends after its own buckets. Backward alike: gradients of
the outputs go out, those of q, k and v come back, and the taker has kept what they need. So a loan
is one bucket more, the last one in both directions, on two lanes and without a collective.

Where a KV group is cut, its KV head goes to the taker as well as it stays, and what both found of
its gradients is summed in the accumulator's type.

T rows of the giver's bucket, H query heads, G KV heads, D head_dim; h and g those that moved.

Source: Conductor moves heads of attention between paired workers; the rest is our derivation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hydraplan.heads import HeadSplit
from hydraplan.kernels.attention import AttentionKernel
from hydraplan.kernels.head_runs import by_runs
from hydraplan.kernels.link import BACK, BACKWARD_BACK, BACKWARD_OUT, OUT, Coming, Link
from hydraplan.kernels.merge import accumulator_dtype
from hydraplan.kernels.packing import Bucket
from hydraplan.kernels.rows import put, take

KEPT, MOVED = 0, 1
"""Members of the split of a loan."""


@dataclass(frozen=True, slots=True)
class Loan:
    """What one end knows.

    `bucket`: the giver's unsplit sequences, on either end. `split`: of one ring shard, whose two
    members are the giver and the taker.
    """

    bucket: Bucket
    split: HeadSplit
    is_giver: bool
    link: Link

    @property
    def rows(self) -> int:
        """Rows of the giver's bucket."""
        return len(self.bucket.rows.index)

    def columns(self, member: int) -> list[slice]:
        """Columns of q, k and v that one of both ends has, each a range."""
        q_heads, kv_heads = self.split.q_heads[0][member], self.split.kv_heads[member]
        q, kv = (slice(h[0], h[-1] + 1) if h else slice(0, 0) for h in (q_heads, kv_heads))
        return [q, kv, kv]

    def counts(self) -> list[int]:
        """Moved heads of q, k and v."""
        return [columns.stop - columns.start for columns in self.columns(MOVED)]

    def kernel(self, kernel: AttentionKernel, member: int) -> AttentionKernel:
        """The kernel for the heads of one end."""
        q_heads, kv_heads = self.split.q_heads[0][member], self.split.kv_heads[member]
        return by_runs(kernel, self.split.runs[0][member], len(q_heads), len(kv_heads))

    def start(self, q_THD: Tensor, k_TGD: Tensor, v_TGD: Tensor) -> Coming:
        """Before the own buckets of forward; for the taker the tensors are its own."""
        width, (heads, *kv_heads) = q_THD.shape[2], self.counts()
        if self.is_giver:
            self.link.send(OUT, *self._moved((q_THD, k_TGD, v_TGD)))
            return self.link.expect(BACK, self.rows * heads * width, q_THD)
        return self.link.expect(OUT, self.rows * (heads + sum(kv_heads)) * width, q_THD)

    def finish(
        self, coming: Coming, out_THD: Tensor, kernel: AttentionKernel, scale: float
    ) -> list[Tensor]:
        """After the own buckets: outputs are in place at the giver; what the taker has to keep."""
        width = out_THD.shape[2]
        flat = coming.wait()
        if self.is_giver:
            columns = self.columns(MOVED)[0]
            put(out_THD[:, columns], self.bucket.rows, flat.view(self.rows, -1, width))
            return []
        q_ThD, k_TgD, v_TgD = self._parted(flat, self.counts(), width)
        cu, run = self.bucket.steps[0].cu_q, self.kernel(kernel, MOVED)
        out_ThD, lse_hT = run.forward(q_ThD, k_TgD, v_TgD, cu, cu, True, scale)
        self.link.send(BACK, out_ThD)
        return [q_ThD, k_TgD, v_TgD, out_ThD, lse_hT]

    def start_backward(self, dout_THD: Tensor) -> Coming:
        """Before the own buckets of backward; for the taker the gradient is its own."""
        width, counts = dout_THD.shape[2], self.counts()
        if self.is_giver:
            self.link.send(BACKWARD_OUT, *self._moved((dout_THD,)))
            return self.link.expect(BACKWARD_BACK, self.rows * sum(counts) * width, dout_THD)
        return self.link.expect(BACKWARD_OUT, self.rows * counts[0] * width, dout_THD)

    def finish_backward(
        self,
        coming: Coming,
        saved: Sequence[Tensor],
        grads: Sequence[Tensor],
        kernel: AttentionKernel,
        scale: float,
    ) -> None:
        """After the own buckets: gradients (T, heads, D) of q, k and v have what was found."""
        width, counts = grads[0].shape[2], self.counts()
        flat = coming.wait()
        if self.is_giver:
            for i, part in enumerate(self._parted(flat, counts, width)):
                self._add(grads[i], part, self.columns(KEPT)[i].stop, self.columns(MOVED)[i])
            return
        (dout_ThD,) = self._parted(flat, counts[:1], width)
        cu, run = self.bucket.steps[0].cu_q, self.kernel(kernel, MOVED)
        parts = run.backward(dout_ThD, *saved, cu, cu, True, scale)
        self.link.send(BACKWARD_BACK, *parts)

    def _add(self, grad_THD: Tensor, part_ThD: Tensor, kept_end: int, moved: slice) -> None:
        """Put what the taker found in its columns, and add it where the giver found a share too."""
        rows, both = self.bucket.rows, max(kept_end - moved.start, 0)
        place_THD = grad_THD[:, moved]
        if both:
            wide = accumulator_dtype(part_ThD.dtype)
            own_ThD = take(place_THD, rows)[:, :both].to(wide)
            summed = (own_ThD + part_ThD[:, :both].to(wide)).to(part_ThD.dtype)
            part_ThD = torch.cat([summed, part_ThD[:, both:]], dim=1)
        put(place_THD, rows, part_ThD)

    def _moved(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Moved heads of the giver's rows."""
        columns = self.columns(MOVED)[: len(parts)]
        return [take(x, self.bucket.rows)[:, c] for x, c in zip(parts, columns, strict=True)]

    def _parted(self, flat: Tensor, counts: Sequence[int], width: int) -> list[Tensor]:
        sizes = [self.rows * count * width for count in counts]
        parts = zip(flat.split(sizes), counts, strict=True)
        return [part.view(self.rows, count, width) for part, count in parts]
