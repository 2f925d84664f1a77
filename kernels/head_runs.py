"""Run a kernel on heads that do not all share one ratio of query to KV heads.

Grouped-query kernels assume that every KV head serves equally many query heads, and answer
wrongly, without a word, where some serve fewer. A member of an uneven head split holds such
heads, and KV heads that it only passes on. Each run of equal ratio is a call of its own on
views of the columns; heads do not see each other, so the results are those of one call.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hydraplan.heads import HeadRun
from hydraplan.kernels.attention import AttentionKernel
from hydraplan.kernels.merge import accumulator_dtype


def by_runs(
    kernel: AttentionKernel, runs: Sequence[HeadRun], num_heads: int, num_kv_heads: int
) -> AttentionKernel:
    """The kernel for a member with so many heads, in `runs`; itself if one run holds them all.

    A KV head in no run gets gradients of zero. No head at all is legal.
    """
    if list(runs) == [HeadRun(slice(0, num_heads), slice(0, num_kv_heads))]:
        return kernel

    def forward(q_THD: Tensor, k_SGD: Tensor, v_SGD: Tensor, *case: Any) -> tuple[Tensor, Tensor]:
        out_THD = torch.empty_like(q_THD)
        lse_HT = q_THD.new_empty((num_heads, len(q_THD)), dtype=accumulator_dtype(q_THD.dtype))
        for run in runs:
            keys = (x[:, run.kv] for x in (k_SGD, v_SGD))
            out_THD[:, run.q], lse_HT[run.q] = kernel.forward(q_THD[:, run.q], *keys, *case)
        return out_THD, lse_HT

    def backward(
        dout_THD: Tensor,
        q_THD: Tensor,
        k_SGD: Tensor,
        v_SGD: Tensor,
        out_THD: Tensor,
        lse_HT: Tensor,
        *case: Any,
    ) -> tuple[Tensor, Tensor, Tensor]:
        dq_THD = torch.empty_like(q_THD)
        dk_SGD, dv_SGD = torch.zeros_like(k_SGD), torch.zeros_like(v_SGD)
        for run in runs:
            queries = (x[:, run.q] for x in (dout_THD, q_THD))
            keys = (x[:, run.kv] for x in (k_SGD, v_SGD))
            dq_THD[:, run.q], dk_SGD[:, run.kv], dv_SGD[:, run.kv] = kernel.backward(
                *queries, *keys, out_THD[:, run.q], lse_HT[run.q], *case
            )
        return dq_THD, dk_SGD, dv_SGD

    return kernel._replace(forward=forward, backward=backward)
