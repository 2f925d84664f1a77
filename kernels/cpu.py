"""Packed attention on the CPU: torch's flash kernel, one call a segment.

The aten op returns output and log-sum-exp; its backward takes any output and log-sum-exp, so
the global ones of a ring give exactly this block's share of the gradients. Grouped-query
heads are native. float64, float32, bfloat16 and float16.

Traps closed here: the op dies (SIGFPE) on a segment without queries or keys; it reads heads
whose elements do not lie side by side wrongly. Others are closed in `guarded`: it aligns the
causal mask of a rectangle to the top left, and takes uneven groups of heads for even ones.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from hydraplan.kernels.merge import accumulator_dtype


def forward(
    q_THD: Tensor,
    k_SGD: Tensor,
    v_SGD: Tensor,
    cu_q: Sequence[int],
    cu_k: Sequence[int],
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Attention of every segment; output (T, H, D) and lse (H, T) in the accumulator type.

    Rows of a segment without keys are zero with lse -inf.
    """
    out_THD = torch.zeros_like(q_THD)
    lse_HT = q_THD.new_full(
        (q_THD.shape[1], q_THD.shape[0]), -torch.inf, dtype=accumulator_dtype(q_THD.dtype)
    )
    for q_rows, k_rows in _segments(cu_q, cu_k):
        out_1HTD, lse_1HT = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            _head_major(q_THD[q_rows]),
            _head_major(k_SGD[k_rows]),
            _head_major(v_SGD[k_rows]),
            0.0,
            causal,
            scale=scale,
        )
        out_THD[q_rows] = out_1HTD[0].transpose(0, 1)
        lse_HT[:, q_rows] = lse_1HT[0]
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
    grads = tuple(torch.zeros_like(x) for x in (q_THD, k_SGD, v_SGD))
    for q_rows, k_rows in _segments(cu_q, cu_k):
        parts = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            _head_major(dout_THD[q_rows]),
            _head_major(q_THD[q_rows]),
            _head_major(k_SGD[k_rows]),
            _head_major(v_SGD[k_rows]),
            _head_major(out_THD[q_rows]),
            lse_HT[None, :, q_rows],
            0.0,
            causal,
            scale=scale,
        )
        for grad, rows, part in zip(grads, (q_rows, k_rows, k_rows), parts, strict=True):
            grad[rows] = part[0].transpose(0, 1)
    return grads[0], grads[1], grads[2]


def _segments(cu_q: Sequence[int], cu_k: Sequence[int]) -> Iterator[tuple[slice, slice]]:
    """Rows of every segment that has both queries and keys."""
    for (q0, q1), (k0, k1) in zip(pairwise(cu_q), pairwise(cu_k), strict=True):
        if q1 > q0 and k1 > k0:
            yield slice(q0, q1), slice(k0, k1)


def _head_major(x_THD: Tensor) -> Tensor:
    """As (1, heads, rows, head_dim), the order the op wants: a view wherever it reads it right.

    It takes any strides of heads and rows, but reads wrongly, without a word, where the
    elements of a head do not lie side by side.
    """
    if x_THD.stride(2) != 1:
        x_THD = x_THD.contiguous()
    return x_THD.transpose(0, 1)[None]
