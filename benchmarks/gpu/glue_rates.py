"""Triton's kernels between attention and exchanges against torch's ops: numbers, bytes a second.

Merging a part into a ring's accumulators and moving heads to peers and back are bound by memory,
so a rate is the bytes that have to be read and written once over the time, beside that of a copy
on the same device. At full size results are compared once more, as `glue` does on small cases:
copies to the bit, sums within rounding.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from budget import Left, Row, Verdict
from rates import median_s
from scale import Scale
from torch import Tensor

from hydraplan.config import load_model
from hydraplan.heads import Heads, even_split
from hydraplan.kernels.glue import TORCH, Glue, triton_glue, why_no_triton
from hydraplan.kernels.packing import RowMap

PART = "Triton kernels"
MERGE_ROUNDING = 1e-5
"""Relative and absolute, of a merge in float32."""


class Move(NamedTuple):
    """One thing to do with either set of functions: bytes it has to move, and how near it must be.

    `run` gives the tensors by which the two are compared; what it changes in place is copied first
    if asked. `rounding` 0 asks for equal bits.
    """

    name: str
    moved_bytes: int
    rounding: float
    run: Callable[[Glue, bool], Sequence[Tensor]]


def glue_rows(scale: Scale, left: Left) -> Iterator[Row]:
    """A row a move, of Triton's kernel if it works here and of torch's ops."""
    torch.manual_seed(0)
    source = torch.randint(255, (scale.glue_rows * 2**13,), dtype=torch.uint8, device=scale.target)
    target = torch.empty_like(source)
    copy = 2 * len(source) / median_s(scale, left, lambda: target.copy_(source))
    yield Row(PART, "copy", copy / 1e9, "GB/s", note=f"{len(source):,} bytes read and written")
    reason = why_no_triton(scale.target, torch.bfloat16)
    if reason:
        yield Row(PART, "triton", verdict="absent", note=reason)
    for move in moves(scale):
        if not left.seconds():
            yield Row(PART, move.name, verdict="left out", note="no time")
            continue
        twin = rate(scale, left, move, TORCH)
        yield Row(
            PART, f"{move.name}, torch", twin / 1e9, "GB/s", note=f"{twin / copy:.0%} of copy"
        )
        if not reason:
            triton = triton_glue()
            verdict, told = compared(move, triton)
            ours = rate(scale, left, move, triton)
            note = f"{told}; {ours / copy:.0%} of copy, {ours / twin:.2f} x torch's ops"
            yield Row(PART, f"{move.name}, triton", ours / 1e9, "GB/s", verdict, note)


def rate(scale: Scale, left: Left, move: Move, glue: Glue) -> float:
    """Bytes a second of a move."""
    return move.moved_bytes / median_s(scale, left, lambda: move.run(glue, False))


def compared(move: Move, glue: Glue) -> tuple[Verdict, str]:
    """Whether a move has the numbers of torch's ops, in words."""
    for a, b in zip(move.run(glue, True), move.run(TORCH, True), strict=True):
        same = torch.equal(a, b) or bool(
            move.rounding and torch.allclose(a, b, rtol=move.rounding, atol=MERGE_ROUNDING)
        )
        if not same:
            return "no", f"off by up to {float((a.double() - b.double()).abs().max()):.1e}"
    return "ok", "as torch's ops" if move.rounding else "torch's bits"


def moves(scale: Scale) -> Iterator[Move]:
    """Merges into all rows and into some; heads to eight peers and back, KV heads on one or two."""
    model, rows = load_model(scale.model), scale.glue_rows
    heads, kv_heads, width = model.num_heads, model.num_kv_heads, model.head_dim

    def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(shape, device=scale.target).to(dtype)

    out, lse = random(rows, heads, width, dtype=torch.float32), random(rows, heads).float()
    some = np.flatnonzero(np.arange(rows) % 16 >= 8)
    for name, row_map in (("all rows", None), ("runs of rows", RowMap(some))):
        count = rows if row_map is None else len(some)
        part, part_lse = random(count, heads, width), random(heads, count).float()

        def merge(
            glue: Glue, copied: bool, rows=row_map, part=part, part_lse=part_lse
        ) -> Sequence[Tensor]:
            into = (out.clone(), lse.clone()) if copied else (out, lse)
            glue.merge_rows(*into, rows, part, part_lse)
            return into

        moved = count * heads * ((4 + 2 + 4) * width + 3 * 4)
        yield Move(f"merge, {name}", moved, MERGE_ROUNDING, merge)
    parts = [random(rows, n, width) for n in (heads, kv_heads, kv_heads)]
    counts = [heads, kv_heads, kv_heads]
    for peers in (kv_heads, 2 * kv_heads):
        split = even_split(heads, kv_heads, peers, 1)
        held: list[Sequence[Heads]] = [split.q_heads[0], split.kv_heads, split.kv_heads]
        flat = TORCH.gather_heads(parts, held)
        whole = sum(part.nbytes for part in parts)
        name = f"{peers} peers"

        def gather(glue: Glue, copied: bool, held=held) -> Sequence[Tensor]:
            return [glue.gather_heads(parts, held)]

        yield Move(f"gather heads, {name}", 2 * flat.nbytes, 0.0, gather)
        rounding = torch.finfo(torch.bfloat16).eps if peers > kv_heads else 0.0

        def scatter(glue: Glue, copied: bool, held=held, flat=flat) -> Sequence[Tensor]:
            return glue.scatter_heads(flat, rows, width, held, counts)

        yield Move(f"scatter heads, {name}", flat.nbytes + whole, rounding, scatter)
