"""Attention kernels in bfloat16 against float64, by the ratio test.

The error of a kernel is compared with that of attention written down plainly in bfloat16 (scores
and shares rounded, sums by the matrix product, gradients by autograd), both against the naive
kernel in float64 on the same rounded inputs. A kernel that keeps scores and sums wide is closer
than the plain one; it may be 1.5 times as far at most. The CPU's kernel, which a dry run meets, is
shown without a limit: torch's op sums gradients of keys in bfloat16 there. An error is
||x - x64|| / ||x64|| over a whole tensor.

Source: the tests of flash-attn judge kernels by such a ratio; limit and floor are ours.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from budget import Left, Row, Verdict
from scale import Heads, Scale
from torch import Tensor

from hydraplan.kernels.attention import KERNELS, AttentionKernel, why_not

PART = "kernels, ratio test"
LIMIT, FLOOR = 1.5, 1e-5
"""Most that a kernel's error may be of the plain one's; errors below the floor count as it."""

UNLIMITED = "cpu "
"""How rows of the kernel begin that has no limit."""

SEED = 7
NAMES = ("output", "lse", "dq", "dk", "dv")
FORWARD = 2
"""How many of the names are found by forward."""


class Case(NamedTuple):
    """One packed call: lengths of queries and keys, and its inputs in bfloat16."""

    name: str
    cu_q: tuple[int, ...]
    cu_k: tuple[int, ...]
    causal: bool
    dout: Tensor
    q: Tensor
    k: Tensor
    v: Tensor

    @property
    def call(self) -> tuple[tuple[int, ...], tuple[int, ...], bool, float]:
        """What every kernel takes after its tensors."""
        return self.cu_q, self.cu_k, self.causal, self.q.shape[2] ** -0.5


def kernel_rows(scale: Scale, left: Left) -> Iterator[Row]:
    """Two rows a kernel and number of heads, forward and backward: the worst ratio of all cases."""
    kernels, dtype = [], torch.bfloat16
    for name, kernel in KERNELS.items():
        reason = why_not(name, scale.target, dtype)
        if reason:
            yield Row(PART, name, verdict="absent", note=reason)
        else:
            kernels.append(kernel)
    for heads in scale.heads:
        yield from _rows_of(scale, heads, kernels, left)


def _rows_of(
    scale: Scale, heads: Heads, kernels: Sequence[AttentionKernel], left: Left
) -> Iterator[Row]:
    found: dict[str, list[tuple[float, str]]] = {}
    slowest_s = 0.0
    for name, cu_q, cu_k, causal in shapes(scale):
        if left.seconds() <= 2 * slowest_s:
            yield Row(PART, f"{heads.name}, {name}", verdict="left out", note="no time")
            continue
        before_s = left.seconds()
        case = drawn(scale, heads, name, cu_q, cu_k, causal)
        exact = run(KERNELS["reference"], case, torch.float64)
        plain = errors(plainly(case), exact)
        for kernel in kernels:
            ratios = ratio(errors(run(kernel, case, torch.bfloat16), exact), plain)
            for i, value in enumerate(ratios):
                way = "forward" if i < FORWARD else "backward"
                row = f"{kernel.name} {heads.name} {way}"
                found.setdefault(row, []).append((value, f"{NAMES[i]}, {name}"))
        slowest_s = max(slowest_s, before_s - left.seconds())
    shape = f"{heads.queries} / {heads.keys} heads"
    for row, values in found.items():
        worst, where = max(values, key=lambda pair: np.nan_to_num(pair[0], nan=np.inf))
        verdict: Verdict = "ok" if worst <= LIMIT else "no"
        if row.startswith(UNLIMITED):
            verdict = "measured"
        yield Row(PART, row, worst, "x plain bf16", verdict, f"{shape}; worst in {where}")


def shapes(scale: Scale) -> list[tuple[str, tuple[int, ...], tuple[int, ...], bool]]:
    """Name, borders of queries and keys, and whether causal, of every case."""
    packed, half = _borders(scale.packed), _borders([-(-n // 2) for n in scale.packed])
    cases = [
        ("packed", packed, packed, True),
        ("packed, half the keys", packed, half, False),
        ("packed, half the queries", half, packed, False),
    ]
    cases += [(f"{n} tokens", (0, n), (0, n), True) for n in scale.long_tokens]
    return cases


def _borders(lengths: Sequence[int]) -> tuple[int, ...]:
    return (0, *np.cumsum(lengths).tolist())


def drawn(
    scale: Scale,
    heads: Heads,
    name: str,
    cu_q: tuple[int, ...],
    cu_k: tuple[int, ...],
    causal: bool,
) -> Case:
    """A case with normal numbers, the same on every device."""
    generator = torch.Generator().manual_seed(SEED)
    shapes = ((cu_q, heads.queries), (cu_q, heads.queries), (cu_k, heads.keys), (cu_k, heads.keys))
    tensors = (
        torch.randn(cu[-1], count, scale.head_dim, generator=generator).bfloat16().to(scale.target)
        for cu, count in shapes
    )
    return Case(name, cu_q, cu_k, causal, *tensors)


def run(kernel: AttentionKernel, case: Case, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Output, lse and gradients of a kernel."""
    dout, q, k, v = (x.to(dtype) for x in (case.dout, case.q, case.k, case.v))
    out, lse = kernel.forward(q, k, v, *case.call)
    return out, lse, *kernel.backward(dout, q, k, v, out, lse, *case.call)


def plainly(case: Case) -> tuple[Tensor, ...]:
    """Output, lse and gradients in bfloat16, a segment and a KV head after the other."""
    leaves = [x.detach().clone().requires_grad_() for x in (case.q, case.k, case.v)]
    each = case.q.shape[1] // case.k.shape[1]
    out, lse = torch.zeros_like(case.q), case.q.new_zeros(case.q.shape[1], len(case.q)).float()
    for q_rows, k_rows in zip(pairwise(case.cu_q), pairwise(case.cu_k), strict=True):
        queries, keys = slice(*q_rows), slice(*k_rows)
        for head in range(case.k.shape[1]):
            held = slice(head * each, (head + 1) * each)
            part, part_lse = _plain_block(
                leaves[0][queries, held], leaves[1][keys, head], leaves[2][keys, head], case
            )
            part.backward(case.dout[queries, held])
            out[queries, held], lse[held, queries] = part.detach(), part_lse.detach()
    return out, lse, *(leaf.grad for leaf in leaves if leaf.grad is not None)


def _plain_block(q_TMD: Tensor, k_SD: Tensor, v_SD: Tensor, case: Case) -> tuple[Tensor, Tensor]:
    score_MTS = q_TMD.transpose(0, 1) @ k_SD.T * case.call[3]
    if case.causal:
        rows, keys = score_MTS.shape[1:]
        hidden = torch.ones(rows, keys, dtype=torch.bool, device=k_SD.device).triu(1)
        score_MTS = score_MTS.masked_fill(hidden, -torch.inf)
    share_MTS = score_MTS.softmax(-1, dtype=torch.float32).to(v_SD.dtype)
    return (share_MTS @ v_SD).transpose(0, 1), score_MTS.float().logsumexp(-1)


def errors(found: Sequence[Tensor], exact: Sequence[Tensor]) -> list[float]:
    """Relative L2 distance of every tensor."""
    return [float((a.double() - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True)]


def ratio(ours: Sequence[float], plain: Sequence[float]) -> list[float]:
    """Our errors over the plain ones, both at least the floor; what is no number stays so."""
    return [
        a / max(b, FLOOR) if not a <= FLOOR else FLOOR / max(b, FLOOR)
        for a, b in zip(ours, plain, strict=True)
    ]
