"""Try a kernel on small cases before it is used: does it agree with the reference kernel?

Back ends come from other packages, versions and builds; what one computes wrongly here is told
in a line and the kernel is not chosen. It takes a few calls. Large cases and speed are not
tried.
"""

from itertools import accumulate
from math import log
from typing import NamedTuple

import torch
from torch import Tensor

from hydraplan.errors import first_line
from hydraplan.kernels import reference
from hydraplan.kernels.guarded import AttentionKernel
from hydraplan.kernels.merge import accumulator_dtype

TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
}
"""Largest relative L2 error of output, lse and gradients, a few times the rounding."""


class _Case(NamedTuple):
    """Rows of each segment, query and KV heads of a call."""

    q_sizes: tuple[int, ...]
    k_sizes: tuple[int, ...]
    causal: bool
    heads: int
    kv_heads: int

    @property
    def borders(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """cu_q and cu_k."""
        return (0, *accumulate(self.q_sizes)), (0, *accumulate(self.k_sizes))


CASES = (
    _Case((5, 1, 150), (5, 1, 150), True, 4, 2),
    _Case((129, 3), (2, 257), False, 2, 2),
    _Case((1, 1, 1), (130, 1, 70), False, 4, 1),
)
"""Heads in groups and alone; segments longer than the tiles of 128 rows, by one row too, and
shorter; one query a segment, where flash-attn 2 turns heads into rows."""

HEAD_DIM = 64
_ORACLE = AttentionKernel("reference", reference.forward, reference.backward, False)


def probe(kernel: AttentionKernel, device: torch.device, dtype: torch.dtype) -> str:
    """What is wrong with the kernel in a line, empty if nothing is.

    Keys and values are views with strides, as in a ring. Backward is given output and lse over
    other keys too: those of as much weight and of values zero, so half the output, lse + log 2.
    """
    for case in CASES:
        dout, q, k, v = _tensors(case, device, dtype)
        cu_q, cu_k = case.borders
        rest = (cu_q, cu_k, case.causal, HEAD_DIM**-0.5)
        exact = [x.double() for x in (dout, q, k, v)]
        out, lse = _ORACLE.forward(*exact[1:], *rest)
        wide_out, wide_lse = out / 2, lse + log(2)
        right = (out, lse, *_ORACLE.backward(*exact, wide_out, wide_lse, *rest))
        given = wide_out.to(dtype), wide_lse.to(accumulator_dtype(dtype))
        try:
            got = (*kernel.forward(q, k, v, *rest), *kernel.backward(dout, q, k, v, *given, *rest))
        # Whatever another package raises where device, build or version do not fit is why the
        # kernel is not chosen, and `doctor` says so.
        except Exception as error:
            return f"a small call failed: {first_line(error)}"
        for what, a, b in zip(("output", "lse", "dq", "dk", "dv"), got, right, strict=True):
            if a.shape != b.shape:
                return f"its {what} has shape {tuple(a.shape)}, not {tuple(b.shape)}"
            distance = float((a.double() - b).norm() / b.norm())
            if not distance <= TOLERANCE[dtype]:
                return f"its {what} is off by {distance:.1e} on a small case"
    return ""


def _tensors(case: _Case, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Upstream gradient, q, k and v."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, HEAD_DIM, generator=generator).to(device, dtype)

    rows, keys = sum(case.q_sizes), sum(case.k_sizes)
    dout, q = draw(rows, case.heads), draw(rows, case.heads)
    return dout, q, *draw(keys, 2, case.kv_heads).unbind(1)
