"""Merge a partial attention result into the accumulators of the ring in one pass, in Triton.

The arithmetic of `merge`, fused: outputs and log-sum-exps are read once and written once, where
they lie, where torch's ops make a dozen temporaries. A program merges a block of rows of one
head. Parts are read in any type and widened to the type of the accumulators in registers; a row
that saw no key weighs nothing by selection. Offsets are 64-bit.

Run in Triton's interpreter and compiled for several architectures; never run on a GPU.
`glue.choose_glue` therefore compares it with `merge` before it is used.

N rows of the accumulators, T rows of the part, H heads, D head_dim.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hydraplan.kernels.packing import RowMap
from hydraplan.kernels.rows import index_on

BLOCK = 2048
"""Elements of a program, four vectors of four a thread; not tuned, since never measured."""


def block_of(width: int) -> tuple[int, int]:
    """Rows and columns of a program's block, powers of two, for heads of `width` elements."""
    columns = int(triton.next_power_of_2(width))
    return max(1, BLOCK // columns), columns


def merge_rows(
    out_NHD: Tensor, lse_NH: Tensor, rows: RowMap | None, part_THD: Tensor, part_HT: Tensor
) -> None:
    """Merge a part into the ascending `rows` of the accumulators, in place; any strides."""
    count, heads, width = part_THD.shape
    run = slice(None) if rows is None else rows.run
    index = None
    if run:
        out_NHD, lse_NH = out_NHD[run], lse_NH[run]
    else:
        assert rows is not None
        index = index_on(rows, out_NHD.device)
    block_rows, columns = block_of(width)
    programs = triton.cdiv(count, block_rows) * heads
    if programs == 0:
        return
    with torch.cuda.device_of(out_NHD):
        _merge[(programs,)](
            *(out_NHD, *out_NHD.stride()),
            *(lse_NH, *lse_NH.stride()),
            index,
            *(part_THD, *part_THD.stride()),
            *(part_HT, *part_HT.stride()),
            *(count, heads, width, block_rows, columns),
        )


# What differs from batch to batch must not make another kernel, which costs a compilation.
@triton.jit(
    do_not_specialize=["count", "part_lse_head"], do_not_specialize_on_alignment=["lse", "part_lse"]
)
def _merge(
    out: tl.tensor,
    out_row: tl.tensor,
    out_head: tl.tensor,
    out_dim: tl.tensor,
    lse: tl.tensor,
    lse_row: tl.tensor,
    lse_head: tl.tensor,
    index: tl.tensor,
    part: tl.tensor,
    part_row: tl.tensor,
    part_head: tl.tensor,
    part_dim: tl.tensor,
    part_lse: tl.tensor,
    part_lse_head: tl.tensor,
    part_lse_row: tl.tensor,
    count: tl.tensor,
    heads: tl.tensor,
    width: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    head = (tl.program_id(0) % heads).to(tl.int64)
    row = (tl.program_id(0) // heads).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < count
    # A row's place in the accumulators: the row itself, or where its index map puts it.
    place = row
    if index is not None:
        place = tl.load(index + row, mask=inside, other=0)
    lse_at = lse + place * lse_row + head * lse_head
    a = tl.load(lse_at, mask=inside, other=0.0)
    b = tl.load(part_lse + head * part_lse_head + row * part_lse_row, mask=inside, other=0.0)
    b = b.to(a.dtype)
    most = tl.maximum(a, b)
    most = tl.where(most > float("-inf"), most, 0.0)
    a_sum, b_sum = tl.exp(a - most), tl.exp(b - most)
    total = a_sum + b_sum
    tl.store(lse_at, most + tl.log(total), mask=inside)
    dim = tl.arange(0, COLUMNS)
    held = inside[:, None] & (dim < width)[None, :]
    out_at = out + (place * out_row + head * out_head)[:, None] + (dim * out_dim)[None, :]
    part_at = part + (row * part_row + head * part_head)[:, None] + (dim * part_dim)[None, :]
    a_share = (a_sum / total)[:, None] * tl.load(out_at, mask=held, other=0.0)
    b_share = (b_sum / total)[:, None] * tl.load(part_at, mask=held, other=0.0).to(a.dtype)
    a_share = tl.where((a > float("-inf"))[:, None], a_share, 0.0)
    b_share = tl.where((b > float("-inf"))[:, None], b_share, 0.0)
    tl.store(out_at, a_share + b_share, mask=held)
