"""What flash kernels on CUDA want of their inputs, whoever ships them.

Segment borders on the device as 32-bit integers and the longest segment, heads whose elements
lie side by side, a head_dim of a few. The borders of a microbatch serve all its layers, so
they are copied to the device once.
"""

from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from hydraplan.errors import InputError

FLASH2_HEAD_DIM = 256
"""Largest head_dim of flash-attn 2, and of torch's kernel, which is made of it."""


@lru_cache(maxsize=1024)
def device_borders(
    cu_q: tuple[int, ...], cu_k: tuple[int, ...], device: torch.device
) -> tuple[Tensor, Tensor, int, int]:
    """Borders of queries and of keys on the device, the longest segment of queries and of keys.

    Raises:
        InputError: There are more rows than 32 bits count.
    """
    for cu in (cu_q, cu_k):
        if cu[-1] >= 2**31:
            raise InputError(
                f"{cu[-1]} rows in one attention call exceed the 32-bit limit of flash"
            )
    on_device = [torch.tensor(cu, dtype=torch.int32, device=device) for cu in (cu_q, cu_k)]
    longest = [max(b - a for a, b in pairwise(cu)) for cu in (cu_q, cu_k)]
    return on_device[0], on_device[1], longest[0], longest[1]


def side_by_side(x_THD: Tensor) -> Tensor:
    """The elements of each head must lie side by side; heads and rows may be strided."""
    return x_THD if x_THD.stride(2) == 1 else x_THD.contiguous()


def check_head_dim(head_dim: int, most: int, kernel: str, besides: tuple[int, ...] = ()) -> None:
    """Refuse a head_dim that is not a multiple of 8 up to `most`, nor one of `besides`.

    Raises:
        InputError: The kernel does not serve it.
    """
    if head_dim in besides or (head_dim % 8 == 0 and 0 < head_dim <= most):
        return
    others = "".join(f", or {n}" for n in besides)
    raise InputError(
        f"head_dim {head_dim} is not a multiple of 8 up to {most}{others}, as attention kernel"
        f" {kernel} needs",
        "choose the kernel by name: reference",
    )
