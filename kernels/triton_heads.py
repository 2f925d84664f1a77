"""Gather the heads of every peer out of whole tensors and scatter them back, in Triton.

What `head_columns` does with a copy a peer and tensor, in one launch a tensor. A program moves a
block of rows of one head; a small table on the device says where a head lies in the flat buffer.
It does not depend on the number of rows, so that one table serves every layer and microbatch; it
is copied to the device at its first use and kept. A head that several peers hold is summed in
the accumulator's type and rounded once. Offsets are 64-bit.

Run in Triton's interpreter and compiled for several architectures; never run on a GPU.
`glue.choose_glue` therefore compares it with `head_columns` before it is used.

T rows, H heads of a whole tensor, D head_dim.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

from hydraplan.heads import Heads
from hydraplan.kernels.head_columns import head_counts
from hydraplan.kernels.merge import accumulator_dtype
from hydraplan.kernels.triton_merge import block_of

HeldHeads = tuple[tuple[Heads, ...], ...]
"""Heads by tensor and peer."""


def gather_heads(parts_THD: Sequence[Tensor], heads: Sequence[Sequence[Heads]]) -> Tensor:
    """The flat buffer of tensors (T, H, D), each head as often as peers hold it."""
    rows, _, width = parts_THD[0].shape
    flat = parts_THD[0].new_empty(rows * sum(head_counts(heads)) * width)
    held = _hashable(heads)
    block_rows, columns = block_of(width)
    for tensor, part_THD in enumerate(parts_THD):
        table = gather_table(held, tensor, flat.device)
        programs = triton.cdiv(rows, block_rows) * len(table)
        if programs:
            with torch.cuda.device_of(flat):
                _gather[(programs,)](
                    *(flat, part_THD, *part_THD.stride()),
                    *(table, len(table), rows, width, block_rows, columns),
                )
    return flat


def scatter_heads(
    flat: Tensor, rows: int, width: int, heads: Sequence[Sequence[Heads]], num_heads: Sequence[int]
) -> list[Tensor]:
    """Whole tensors (T, H, D) of a flat buffer, `num_heads` heads each.

    What several peers hold of one head is summed, in the accumulator type.
    """
    held = _hashable(heads)
    block_rows, columns = block_of(width)
    wholes_THD = []
    for tensor, count in enumerate(num_heads):
        whole_THD = flat.new_empty((rows, count, width))
        table = scatter_table(held, tensor, count, flat.device)
        programs = triton.cdiv(rows, block_rows) * count
        if programs:
            with torch.cuda.device_of(flat):
                _scatter[(programs,)](
                    *(whole_THD, flat, table, table.shape[1], count),
                    *(rows, width, WIDE[accumulator_dtype(flat.dtype)], block_rows, columns),
                )
        wholes_THD.append(whole_THD)
    return wholes_THD


WIDE = {torch.float32: tl.float32, torch.float64: tl.float64}
"""Triton's name of an accumulator type."""


@lru_cache(maxsize=1024)
def gather_table(heads: HeldHeads, tensor: int, device: torch.device) -> Tensor:
    """Of every column of a tensor in the buffer: its head and its place; (columns, 4), int64."""
    table = [(head, *place) for head, place in _places(heads, tensor)]
    return torch.tensor(table, dtype=torch.int64).view(-1, 4).to(device)


@lru_cache(maxsize=1024)
def scatter_table(heads: HeldHeads, tensor: int, num_heads: int, device: torch.device) -> Tensor:
    """Of every head of a tensor: its places; (heads, most places of a head, 3), int64.

    A head in fewer places has zeros behind them: no peer holds zero heads where it holds one.
    """
    places: list[list[Place]] = [[] for _ in range(num_heads)]
    for head, place in _places(heads, tensor):
        places[head].append(place)
    most = max([1, *map(len, places)])
    table = [[*found, *[(0, 0, 0)] * (most - len(found))] for found in places]
    return torch.tensor(table, dtype=torch.int64).view(num_heads, most, 3).to(device)


Place = tuple[int, int, int]
"""Where a head lies in the buffer: heads of the peers before its own, heads of its peer, heads
before it in a row of its peer."""


def _places(heads: HeldHeads, tensor: int) -> list[tuple[int, Place]]:
    """Heads of a tensor and their places, peer after peer."""
    counts = head_counts(heads)
    before = [0, *accumulate(counts)]
    return [
        (head, (before[peer], counts[peer], sum(len(x[peer]) for x in heads[:tensor]) + i))
        for peer, held in enumerate(heads[tensor])
        for i, head in enumerate(held)
    ]


def _hashable(heads: Sequence[Sequence[Heads]]) -> HeldHeads:
    return tuple(tuple(map(tuple, held)) for held in heads)


# Rows differ from batch to batch and must not make another kernel, which costs a compilation.
@triton.jit(do_not_specialize=["rows"])
def _gather(
    flat: tl.tensor,
    part: tl.tensor,
    part_row: tl.tensor,
    part_head: tl.tensor,
    part_dim: tl.tensor,
    table: tl.tensor,
    entries: tl.tensor,
    rows: tl.tensor,
    width: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    entry = table + tl.program_id(0) % entries * 4
    head, before = tl.load(entry), tl.load(entry + 1)
    count, column = tl.load(entry + 2), tl.load(entry + 3)
    row = (tl.program_id(0) // entries).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    dim = tl.arange(0, COLUMNS)
    held = (row < rows)[:, None] & (dim < width)[None, :]
    source = part + (row * part_row + head * part_head)[:, None] + (dim * part_dim)[None, :]
    target = flat + ((before * rows + row * count + column) * width)[:, None] + dim[None, :]
    tl.store(target, tl.load(source, mask=held), mask=held)


@triton.jit(do_not_specialize=["rows"])
def _scatter(
    whole: tl.tensor,
    flat: tl.tensor,
    table: tl.tensor,
    PLACES: tl.constexpr,
    heads: tl.tensor,
    rows: tl.tensor,
    width: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    head = (tl.program_id(0) % heads).to(tl.int64)
    row = (tl.program_id(0) // heads).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    dim = tl.arange(0, COLUMNS)
    held = (row < rows)[:, None] & (dim < width)[None, :]
    target = whole + ((row * heads + head) * width)[:, None] + dim[None, :]
    entry = table + head * PLACES * 3
    if PLACES == 1:
        value = _load_place(flat, entry, row, dim, rows, width)
    else:
        total = tl.zeros([ROWS, COLUMNS], WIDE)
        for place in range(PLACES):
            total += _load_place(flat, entry + place * 3, row, dim, rows, width).to(WIDE)
        value = total.to(whole.dtype.element_ty)
    tl.store(target, value, mask=held)


@triton.jit
def _load_place(
    flat: tl.tensor,
    entry: tl.tensor,
    row: tl.tensor,
    dim: tl.tensor,
    rows: tl.tensor,
    width: tl.constexpr,
) -> tl.tensor:
    """The block of one place, zero where there is none."""
    before, count, column = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2)
    source = flat + ((before * rows + row * count + column) * width)[:, None] + dim[None, :]
    # Not `held & (count > 0)`: Triton's interpreter makes integers of a block and a number's
    # comparison, and from 3.9 on takes no integers for a mask.
    rows_there = tl.where(count > 0, rows, 0)
    held = (row < rows_there)[:, None] & (dim < width)[None, :]
    return tl.load(source, mask=held, other=0.0)
