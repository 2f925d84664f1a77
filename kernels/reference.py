"""Naive causal attention: the oracle of `verify` and the tests, and a kernel of last resort.

`reference_attention` is plain torch under autograd. `forward` and `backward` spell the same
mathematics out for packed segments, for devices and types that no fused kernel serves. Both
go over blocks of query rows, so that scores of a long sequence never exist at once. Written
for clarity, not speed.

T query rows, S key rows, G KV heads, M query heads of each, H = G * M, D head_dim.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hydraplan.kernels.merge import accumulator_dtype

MAX_SCORES = 2**21
"""Scores that exist at once, over all heads; 16 MiB in float64. Our choice."""


def reference_attention(q_THD: Tensor, k_TGD: Tensor, v_TGD: Tensor) -> Tensor:
    """Causal attention of one sequence, scale 1 / sqrt(D); shape (T, H, D), differentiable."""
    apply = cast(Any, _Blocked.apply)  # torch does not type it
    return cast(Tensor, apply(q_THD, k_TGD, v_TGD))


class _Blocked(torch.autograd.Function):
    """Runs `_attend_block` block by block, again in backward, where autograd differentiates it.

    By hand, since torch's checkpoint loads its compiler at the first call. The last and largest
    block comes first, so that its memory serves all others.
    """

    @staticmethod
    def forward(ctx: Any, q_THD: Tensor, k_TGD: Tensor, v_TGD: Tensor) -> Tensor:
        ctx.save_for_backward(q_THD, k_TGD, v_TGD)
        rows, heads, _ = q_THD.shape
        ctx.step = max(1, MAX_SCORES // max(1, heads * rows))
        out_THD = torch.empty_like(q_THD)
        for a in reversed(range(0, rows, ctx.step)):
            block = _block(q_THD, k_TGD, v_TGD, a, ctx.step)
            out_THD[a : a + ctx.step] = _attend_block(*block)
        return out_THD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout_THD: Tensor) -> tuple[Tensor, ...]:
        q_THD, k_TGD, v_TGD = ctx.saved_tensors
        dq, dk, dv = (torch.zeros_like(x) for x in (q_THD, k_TGD, v_TGD))
        for a in reversed(range(0, len(dout_THD), ctx.step)):
            block = _block(q_THD, k_TGD, v_TGD, a, ctx.step)
            leaves = [x.detach().requires_grad_() for x in block]
            with torch.enable_grad():
                out = _attend_block(*leaves)
            parts = torch.autograd.grad(out, leaves, dout_THD[a : a + ctx.step])
            for into, part in zip(_block(dq, dk, dv, a, ctx.step), parts, strict=True):
                into += part
        return dq, dk, dv


def _block(
    q_THD: Tensor, k_TGD: Tensor, v_TGD: Tensor, start: int, step: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Views of a block of queries and of all keys they may see."""
    return q_THD[start : start + step], k_TGD[: start + step], v_TGD[: start + step]


def _attend_block(q_THD: Tensor, k_SGD: Tensor, v_SGD: Tensor) -> Tensor:
    """Last T of S rows attend to the S rows before them and to themselves."""
    rows, heads, width = q_THD.shape
    q_TGMD = q_THD.unflatten(1, (k_SGD.shape[1], heads // k_SGD.shape[1]))
    score_GMTS = torch.einsum("tgmd,sgd->gmts", q_TGMD, k_SGD) / width**0.5
    visible_TS = _visible(rows, len(k_SGD), len(k_SGD) - rows, q_THD.device)
    share_GMTS = score_GMTS.masked_fill(~visible_TS, -torch.inf).softmax(-1)
    return torch.einsum("gmts,sgd->tgmd", share_GMTS, v_SGD).reshape(rows, heads, width)


def forward(
    q_THD: Tensor,
    k_SGD: Tensor,
    v_SGD: Tensor,
    cu_q: Sequence[int],
    cu_k: Sequence[int],
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Attention of every packed segment; output (T, H, D) and lse (H, T), as `cpu.forward`."""
    wide = accumulator_dtype(q_THD.dtype)
    rows, heads = q_THD.shape[:2]
    groups = k_SGD.shape[1]
    out_THD = torch.zeros_like(q_THD)
    lse_HT = q_THD.new_full((heads, rows), -torch.inf, dtype=wide)
    for q_rows, k_rows, skipped in _blocks(cu_q, cu_k, heads, causal):
        q_TGMD = q_THD[q_rows].to(wide).unflatten(1, (groups, heads // groups))
        score_GMTS = _scores(q_TGMD, k_SGD[k_rows].to(wide), skipped, scale)
        lse_GMT = score_GMTS.logsumexp(-1)
        share_GMTS = torch.exp(score_GMTS - lse_GMT[..., None])
        out_TGMD = torch.einsum("gmts,sgd->tgmd", share_GMTS, v_SGD[k_rows].to(wide))
        out_THD[q_rows] = out_TGMD.flatten(1, 2).to(q_THD.dtype)
        lse_HT[:, q_rows] = lse_GMT.flatten(0, 1)
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
    wide = accumulator_dtype(q_THD.dtype)
    heads, groups = q_THD.shape[1], k_SGD.shape[1]
    split = (groups, heads // groups)
    dq, dk, dv = (torch.zeros_like(x, dtype=wide) for x in (q_THD, k_SGD, v_SGD))
    for q_rows, k_rows, skipped in _blocks(cu_q, cu_k, heads, causal):
        q_TGMD, dout_TGMD, out_TGMD = (
            x[q_rows].to(wide).unflatten(1, split) for x in (q_THD, dout_THD, out_THD)
        )
        k, v = k_SGD[k_rows].to(wide), v_SGD[k_rows].to(wide)
        lse_GMT1 = lse_HT[:, q_rows].to(wide).unflatten(0, split)[..., None]
        share_GMTS = torch.exp(_scores(q_TGMD, k, skipped, scale) - lse_GMT1)
        dv[k_rows] += torch.einsum("gmts,tgmd->sgd", share_GMTS, dout_TGMD)
        delta_GMT1 = (dout_TGMD * out_TGMD).sum(-1).permute(1, 2, 0)[..., None]
        dshare_GMTS = torch.einsum("tgmd,sgd->gmts", dout_TGMD, v)
        dscore_GMTS = scale * share_GMTS * (dshare_GMTS - delta_GMT1)
        dq[q_rows] = torch.einsum("gmts,sgd->tgmd", dscore_GMTS, k).flatten(1, 2)
        dk[k_rows] += torch.einsum("gmts,tgmd->sgd", dscore_GMTS, q_TGMD)
    return dq.to(q_THD.dtype), dk.to(k_SGD.dtype), dv.to(v_SGD.dtype)


def _blocks(
    cu_q: Sequence[int], cu_k: Sequence[int], heads: int, causal: bool
) -> list[tuple[slice, slice, int | None]]:
    """Query and key rows of every block; third, how many queries of its segment precede it.

    The third is None where nothing is masked.
    """
    blocks: list[tuple[slice, slice, int | None]] = []
    for (q0, q1), (k0, k1) in zip(pairwise(cu_q), pairwise(cu_k), strict=True):
        if q1 == q0 or k1 == k0:
            continue
        step = max(1, MAX_SCORES // (heads * (k1 - k0)))
        for a in range(q0, q1, step):
            b = min(a + step, q1)
            last = k0 + b - q0 if causal else k1
            blocks.append((slice(a, b), slice(k0, last), a - q0 if causal else None))
    return blocks


def _scores(q_TGMD: Tensor, k_SGD: Tensor, skipped: int | None, scale: float) -> Tensor:
    score_GMTS = torch.einsum("tgmd,sgd->gmts", q_TGMD, k_SGD) * scale
    if skipped is None:
        return score_GMTS
    visible_TS = _visible(len(q_TGMD), len(k_SGD), skipped, q_TGMD.device)
    return score_GMTS.masked_fill(~visible_TS, -torch.inf)


def _visible(rows: int, keys: int, skipped: int, device: torch.device) -> Tensor:
    """Whether query row t, `skipped` rows into the sequence, sees key s; shape (rows, keys)."""
    row = torch.arange(skipped, skipped + rows, device=device)
    return torch.arange(keys, device=device)[None, :] <= row[:, None]
