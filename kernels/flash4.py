"""Packed attention on CUDA by the flash-attn-4 package (extra `fa4`), one call for all segments.

Its private pair, since the public function gives autograd's backward the log-sum-exp of its own
forward, where a ring needs the global one. Kernels are compiled at their first call. float16
and bfloat16. Backward serves compute capability 9.x to 12.x (Hopper, Blackwell), so nothing
older is taken. head_dim is a multiple of 8 up to 256 on 9.x and up to 128 on the others, and
256 on 10.x and 11.x; that 12.x takes no more than 128 is our caution, for its shared memory.

Never run on a GPU: written from the source of flash-attn-4 4.0.0b36, a pre-release whose private
functions may change, and tested against a stand-in with its signatures. The genuine package took
these calls once on tensors without numbers, and compiled their kernels for 9.0, 10.0, 11.0 and 12.0
without a device. `attention` compares it with the reference kernel before it is used.
"""

from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from hydraplan.kernels.flash_inputs import check_head_dim, device_borders, side_by_side
from hydraplan.kernels.optional_package import Package
from hydraplan.kernels.optional_package import why_absent as why_no_package

PACKAGE = Package(
    distribution="flash-attn-4",
    module="flash_attn.cute.interface",
    functions=("_flash_attn_fwd", "_flash_attn_bwd"),
    lowest="4.0.0b36",
    below="5",
    extra="fa4",
)
HEAD_DIMS: dict[int, tuple[int, tuple[int, ...]]] = {
    9: (256, ()),
    10: (128, (256,)),
    11: (128, (256,)),
    12: (128, ()),
}
"""By major compute capability: the largest head_dim, and larger ones besides."""


def why_absent(device: torch.device) -> str:
    """Why the package cannot serve this CUDA device; empty if it can."""
    major, minor = torch.cuda.get_device_capability(device)
    if major not in HEAD_DIMS:
        return f"flash-attn-4 needs compute capability 9.x to 12.x, {device} has {major}.{minor}"
    return why_no_package(PACKAGE)


def forward(
    q_THD: Tensor,
    k_SGD: Tensor,
    v_SGD: Tensor,
    cu_q: Sequence[int],
    cu_k: Sequence[int],
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Attention of all segments; output (T, H, D) and lse (H, T) in float32.

    Raises:
        InputError: head_dim is not one the kernel serves on this device.
    """
    most, besides = HEAD_DIMS[_major(q_THD.device)]
    check_head_dim(q_THD.shape[2], most, "flash4", besides)
    out_THD, lse_HT, *_ = _interface()._flash_attn_fwd(
        *(side_by_side(x) for x in (q_THD, k_SGD, v_SGD)),
        **_borders(cu_q, cu_k, q_THD.device),
        softmax_scale=scale,
        causal=causal,
        return_lse=True,
    )
    return out_THD, lse_HT


def backward(
    dout_THD: Tensor,
    q_THD: Tensor,
    k_SGD: Tensor,
    v_SGD: Tensor,
    out_THD: Tensor,
    lse_HT: Tensor,
    cu_q: Sequence[int],
    cu_k: Sequence[int],
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v; `out_THD` and `lse_HT` are those over all keys, here or not."""
    dq, dk, dv = _interface()._flash_attn_bwd(
        *(side_by_side(x) for x in (q_THD, k_SGD, v_SGD, out_THD, dout_THD)),
        lse_HT.contiguous(),
        softmax_scale=scale,
        causal=causal,
        **_borders(cu_q, cu_k, q_THD.device),
    )
    return dq, dk, dv


def _borders(cu_q: Sequence[int], cu_k: Sequence[int], device: torch.device) -> dict[str, Any]:
    names = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
    return dict(zip(names, device_borders(tuple(cu_q), tuple(cu_k), device), strict=True))


@lru_cache
def _major(device: torch.device) -> int:
    return torch.cuda.get_device_capability(device)[0]


def _interface() -> Any:
    """The package's module, which carries no types; imported at first use."""
    return import_module(PACKAGE.module)
