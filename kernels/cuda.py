"""Packed attention on CUDA: torch's built-in variable-length flash kernel, one call for all.

The aten pair that `torch.nn.attention.varlen` is built on, called directly, because the
public function would use its own log-sum-exp in backward where a ring needs the global one.
bfloat16 and float16, head_dim a multiple of 8 up to 256.

Not yet run on a GPU: written from the operator schemas and torch's own call of them.
`attention.choose_kernel` therefore compares it with the reference kernel before it is used.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from hydraplan.kernels.flash_inputs import (
    FLASH2_HEAD_DIM,
    check_head_dim,
    device_borders,
    side_by_side,
)


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
    check_head_dim(q_THD.shape[2], FLASH2_HEAD_DIM, "cuda")
    out_THD, lse_HT, *_ = torch.ops.aten._flash_attention_forward(
        *(side_by_side(x) for x in (q_THD, k_SGD, v_SGD)),
        *device_borders(tuple(cu_q), tuple(cu_k), q_THD.device),
        0.0,
        causal,
        False,
        scale=scale,
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
    no_dropout = torch.zeros(2, dtype=torch.uint64, device=q_THD.device)
    dq, dk, dv = torch.ops.aten._flash_attention_backward(
        dout_THD.contiguous(),
        *(side_by_side(x) for x in (q_THD, k_SGD, v_SGD)),
        out_THD.contiguous(),
        lse_HT.contiguous(),
        *device_borders(tuple(cu_q), tuple(cu_k), q_THD.device),
        0.0,
        causal,
        no_dropout,
        torch.empty(0, device=q_THD.device),
        scale=scale,
    )
    return dq, dk, dv
