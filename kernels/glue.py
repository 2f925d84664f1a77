"""Choose what runs between attention and exchanges: torch's ops, or Triton kernels on CUDA.

Three functions, bound by memory and not by arithmetic: merge a partial result into the ring's
accumulators, gather the heads of every peer, scatter them back. In Triton each is one launch a
tensor; torch's ops do the same in many.

The Triton kernels are used on CUDA where Triton is installed and they agreed with torch's ops on
small cases, and on the CPU under Triton's interpreter (TRITON_INTERPRET=1), which is how they are
tested. `HYDRAPLAN_TRITON=off` switches them off. torch for CUDA brings Triton along, so it is no
dependency of ours.
"""

import logging
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hydraplan.errors import InputError, first_line
from hydraplan.heads import Heads
from hydraplan.kernels import head_columns, merge
from hydraplan.kernels.merge import accumulator_dtype
from hydraplan.kernels.packing import RowMap

log = logging.getLogger(__name__)

SWITCH = "HYDRAPLAN_TRITON"
"""Environment variable: "auto" or "off"."""


class Glue(NamedTuple):
    """The three functions, as `merge` and `head_columns` define them."""

    name: str
    merge_rows: Callable[[Tensor, Tensor, RowMap | None, Tensor, Tensor], None]
    gather_heads: Callable[[Sequence[Tensor], Sequence[Sequence[Heads]]], Tensor]
    scatter_heads: Callable[
        [Tensor, int, int, Sequence[Sequence[Heads]], Sequence[int]], list[Tensor]
    ]


TORCH = Glue("torch", merge.merge_rows, head_columns.gather_heads, head_columns.scatter_heads)


@lru_cache
def choose_glue(device: torch.device, dtype: torch.dtype) -> Glue:
    """The functions for tensors of `dtype` on `device`; the choice is logged once.

    Raises:
        InputError: `HYDRAPLAN_TRITON` is neither auto nor off.
    """
    reason = why_no_triton(device, dtype)
    if not reason:
        log.info("merge and head moves: triton for %s on %s", dtype, device)
        return triton_glue()
    level = logging.WARNING if device.type == "cuda" else logging.INFO
    log.log(level, "merge and head moves: torch's ops on %s, since triton: %s", device, reason)
    return TORCH


def glue_report() -> tuple[str, bool, str]:
    """The name "triton", whether its kernels work on this machine, and why not."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    reason = why_no_triton(device, torch.bfloat16)
    return "triton", not reason, reason


def triton_glue() -> Glue:
    """The Triton kernels, whether they work or not.

    Raises:
        ImportError: Triton is not installed.
    """
    heads = import_module("hydraplan.kernels.triton_heads")
    merges = import_module("hydraplan.kernels.triton_merge")
    return Glue("triton", merges.merge_rows, heads.gather_heads, heads.scatter_heads)


@lru_cache
def why_no_triton(device: torch.device, dtype: torch.dtype) -> str:
    """Why the Triton kernels are not used; empty if they are.

    Raises:
        InputError: `HYDRAPLAN_TRITON` is neither auto nor off.
    """
    switch = os.environ.get(SWITCH, "auto")
    if switch not in ("auto", "off"):
        raise InputError(f"{SWITCH}={switch} is neither auto nor off")
    if switch == "off":
        return f"switched off by {SWITCH}=off"
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if device.type != "cuda" and not (interpreted and device.type == "cpu"):
        found = "" if torch.cuda.is_available() else ", and torch finds none"
        return f"it runs on CUDA devices only{found}"
    try:
        triton = triton_glue()
    # what a package raises that is absent, or built for another machine or torch
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        return f"it cannot be imported: {first_line(error)}"
    return disagreement(triton, device, dtype)


HELD: Sequence[Sequence[Heads]] = (((2, 3), (0, 1, 4)), ((1,), (0, 1)))
"""Heads of a probe: five query and two KV heads on two peers, one of them on both."""


def disagreement(glue: Glue, device: torch.device, dtype: torch.dtype) -> str:
    """In what `glue` differs from torch's ops on small cases, or how it fails; empty if neither."""
    try:
        wrong = _wrong_merge(glue, device, dtype) or _wrong_heads(glue, device, dtype)
    # Triton compiles on the first call, with an assembler and a C compiler that may be absent or
    # old, and each of them fails in ways of its own; it is why Triton is not chosen, and is said.
    except Exception as error:
        return f"a small call failed: {first_line(error)}"
    return wrong


def _wrong_merge(glue: Glue, device: torch.device, dtype: torch.dtype) -> str:
    """Merges into a run of rows, others and all of them; some rows saw no key on either side."""
    wide, drawn = accumulator_dtype(dtype), _Drawn(device)
    for rows in (slice(2, 12), slice(1, 20, 2), slice(None)):
        index = np.arange(20)[rows]
        row_map = None if len(index) == 20 else RowMap(index)
        right = drawn(wide, 20, 3, 24), drawn(wide, 20, 3)
        part, part_lse = drawn(dtype, len(index), 3, 24), drawn(wide, 3, len(index))
        right[1][::3] = part_lse[:, ::2] = -torch.inf
        part_lse[1] += 80.0
        got = right[0].clone(), right[1].clone()
        TORCH.merge_rows(*right, row_map, part, part_lse)
        glue.merge_rows(*got, row_map, part, part_lse)
        off = 1e-12 if wide == torch.float64 else 1e-5
        for what, a, b in zip(("output", "lse"), got, right, strict=True):
            if not torch.allclose(a, b, rtol=off, atol=off):
                return f"a merged {what} is wrong on a small case"
    return ""


def _wrong_heads(glue: Glue, device: torch.device, dtype: torch.dtype) -> str:
    """Gathers and scatters uneven heads: copies to the bit, sums within one rounding."""
    drawn = _Drawn(device)
    parts = drawn(dtype, 7, 5, 24), drawn(dtype, 7, 2, 24)
    flat = TORCH.gather_heads(parts, HELD)
    if not torch.equal(glue.gather_heads(parts, HELD), flat):
        return "gathered heads are wrong on a small case"
    got, right = (x.scatter_heads(flat, 7, 24, HELD, (5, 2)) for x in (glue, TORCH))
    if not torch.equal(got[0], right[0]):
        return "scattered heads are wrong on a small case"
    if not torch.allclose(got[1], right[1], rtol=torch.finfo(dtype).eps, atol=0.0):
        return "summed heads are wrong on a small case"
    return ""


class _Drawn:
    """Random tensors, the same on every device."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.generator = device, torch.Generator().manual_seed(0)

    def __call__(self, dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator).to(self.device, dtype)
