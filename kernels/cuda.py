"""Packed attention on CUDA: torch's built-in variable-length flash kernel, one call for all.

The aten pair that `torch.nn.attention.varlen` is built on, called directly, because the
public function would use its own log-sum-exp in backward where a ring needs the global one.
bfloat16 and float16, head_dim a multiple of 8 up to 256.

Not yet run on a GPU: written from the operator schemas and torch's own call of them.
`attention.choose_kernel` therefore compares it with the reference kernel before it is used.
The caller must leave out segments without queries or keys, for which flash kernels report
lse +inf.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from hydraplan.errors import InputError

MAX_HEAD_DIM = 256


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
    _check_head_dim(q_THD.shape[2])
    if len(cu_q) == 1:
        return torch.zeros_like(q_THD), _no_lse(q_THD)
    out_THD, lse_HT, *_ = torch.ops.aten._flash_attention_forward(
        *(_side_by_side(x) for x in (q_THD, k_SGD, v_SGD)),
        *_borders(cu_q, cu_k, causal, q_THD.device),
        0.0,
        causal,
        False,
        scale=scale,
    )
    assert lse_HT.shape == (q_THD.shape[1], q_THD.shape[0]), lse_HT.shape
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
    if len(cu_q) == 1:
        return torch.zeros_like(q_THD), torch.zeros_like(k_SGD), torch.zeros_like(v_SGD)
    no_dropout = torch.zeros(2, dtype=torch.uint64, device=q_THD.device)
    dq, dk, dv = torch.ops.aten._flash_attention_backward(
        dout_THD.contiguous(),
        *(_side_by_side(x) for x in (q_THD, k_SGD, v_SGD)),
        out_THD.contiguous(),
        lse_HT.contiguous(),
        *_borders(cu_q, cu_k, causal, q_THD.device),
        0.0,
        causal,
        no_dropout,
        torch.empty(0, device=q_THD.device),
        scale=scale,
    )
    return dq, dk, dv


def _borders(
    cu_q: Sequence[int], cu_k: Sequence[int], causal: bool, device: torch.device
) -> tuple[Tensor, Tensor, int, int]:
    """Segment borders on the device and the longest segment, of queries and of keys."""
    q_sizes, k_sizes = ([b - a for a, b in pairwise(cu)] for cu in (cu_q, cu_k))
    assert len(q_sizes) == len(k_sizes), (cu_q, cu_k)
    assert min(*q_sizes, *k_sizes) > 0, "segments without queries or keys must be left out"
    assert not causal or q_sizes == k_sizes, "a causal segment must be square"
    cu_q_device, cu_k_device = _on_device(tuple(cu_q), device), _on_device(tuple(cu_k), device)
    return cu_q_device, cu_k_device, max(q_sizes), max(k_sizes)


@lru_cache(maxsize=1024)
def _on_device(cu: tuple[int, ...], device: torch.device) -> Tensor:
    """The same borders serve every layer, so they are copied once."""
    if cu[-1] >= 2**31:
        raise InputError(f"{cu[-1]} rows in one attention call exceed the 32-bit limit of flash")
    return torch.tensor(cu, dtype=torch.int32, device=device)


def _side_by_side(x_THD: Tensor) -> Tensor:
    """The elements of each head must lie side by side; heads and rows may be strided."""
    return x_THD if x_THD.stride(2) == 1 else x_THD.contiguous()


def _no_lse(q_THD: Tensor) -> Tensor:
    return q_THD.new_full((q_THD.shape[1], q_THD.shape[0]), -torch.inf, dtype=torch.float32)


def _check_head_dim(head_dim: int) -> None:
    if head_dim % 8 or head_dim > MAX_HEAD_DIM:
        raise InputError(
            f"head_dim {head_dim} is not a multiple of 8 up to {MAX_HEAD_DIM}, as the CUDA kernel"
            " needs",
            "choose the kernel by name: reference",
        )
