"""Packed attention on CUDA by the flash-attn 2 package (extra `fa2`), one call for all segments.

Its private variable-length pair, since the public function keeps the log-sum-exp that a ring
needs to itself, and in backward uses its own. float16 and bfloat16, head_dim a multiple of 8
up to 256, compute capability 8.0 and above (its readme names Ampere, Ada and Hopper; its build
makes code for Blackwell too).

Never run on a GPU: written from the Python and C++ source of flash-attn 2.8.3, tested against a
stand-in with its signatures. The genuine Python part took these calls once, with our reference
in the place of its compiled part. `attention` compares it with the reference kernel before it is
used.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from hydraplan.kernels.flash_inputs import (
    FLASH2_HEAD_DIM,
    check_head_dim,
    device_borders,
    side_by_side,
)
from hydraplan.kernels.optional_package import Package
from hydraplan.kernels.optional_package import why_absent as why_no_package

PACKAGE = Package(
    distribution="flash-attn",
    module="flash_attn.flash_attn_interface",
    functions=("_flash_attn_varlen_forward", "_flash_attn_varlen_backward"),
    lowest="2.8.3",
    below="3",
    extra="fa2",
)
LEAST_CAPABILITY = (8, 0)


def why_absent(device: torch.device) -> str:
    """Why the package cannot serve this CUDA device; empty if it can."""
    capability = torch.cuda.get_device_capability(device)
    if capability < LEAST_CAPABILITY:
        major, minor = capability
        return f"flash-attn 2 needs compute capability 8.0 or above, {device} has {major}.{minor}"
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
        InputError: head_dim is not one the kernel serves.
    """
    check_head_dim(q_THD.shape[2], FLASH2_HEAD_DIM, "flash2")
    cu_q_device, cu_k_device, longest_q, longest_k = device_borders(
        tuple(cu_q), tuple(cu_k), q_THD.device
    )
    out_THD, lse_HT, *_ = _interface()._flash_attn_varlen_forward(
        *(side_by_side(x) for x in (q_THD, k_SGD, v_SGD)),
        cu_seqlens_q=cu_q_device,
        cu_seqlens_k=cu_k_device,
        max_seqlen_q=longest_q,
        max_seqlen_k=longest_k,
        dropout_p=0.0,
        softmax_scale=scale,
        causal=causal,
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
    cu_q_device, cu_k_device, longest_q, longest_k = device_borders(
        tuple(cu_q), tuple(cu_k), q_THD.device
    )
    q_THD, k_SGD, v_SGD = (side_by_side(x) for x in (q_THD, k_SGD, v_SGD))
    dq, dk, dv = (torch.empty_like(x) for x in (q_THD, k_SGD, v_SGD))
    _interface()._flash_attn_varlen_backward(
        side_by_side(dout_THD),
        *(q_THD, k_SGD, v_SGD, side_by_side(out_THD), lse_HT.contiguous(), dq, dk, dv),
        cu_seqlens_q=cu_q_device,
        cu_seqlens_k=cu_k_device,
        max_seqlen_q=longest_q,
        max_seqlen_k=longest_k,
        dropout_p=0.0,
        softmax_scale=scale,
        causal=causal,
        window_size_left=-1,
        window_size_right=-1,
        softcap=0.0,
        alibi_slopes=None,
        deterministic=False,
    )
    return dq, dk, dv


def _interface() -> Any:
    """The package's module, which carries no types; imported at first use."""
    return import_module(PACKAGE.module)
