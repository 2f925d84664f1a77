"""A kernel behind the checks that every back end needs: what they answer wrongly without a word.

A kernel is two plain functions over packed rows, `forward` and `backward`, with no autograd of
their own, so that the ring can run them block by block with the global log-sum-exp:

    forward(q[T,H,D], k[S,G,D], v[S,G,D], cu_q, cu_k, causal, scale) -> out[T,H,D], lse[H,T]
    backward(dout, q, k, v, out, lse, cu_q, cu_k, causal, scale) -> dq, dk, dv

`cu_q`, `cu_k` are segment borders on the host; segment i of the queries meets segment i of the
keys, all of it or, with `causal` (segments square), up to the diagonal. Rows of a segment
without keys are zero with lse -inf, and get and give no gradient. lse has the accumulator type.

Checked here, once for all back ends: q, k and v of one head_dim (some kernels take a second one
for v, some read past its end); query heads that KV heads divide evenly; borders that begin at
0, never fall and end at the rows; causal segments that are square (kernels align the mask to
either corner); an lse of (H, T) (some versions give it by rows). A kernel that takes all segments
in one call gets none that is empty: flash kernels report lse +inf there, or die.

Borders are checked once for every layer that uses them. That heads of several ratios go in
calls of their own is the matter of `head_runs`.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from hydraplan.errors import InputError
from hydraplan.heads import check_groups
from hydraplan.kernels.merge import accumulator_dtype

Forward = Callable[..., tuple[Tensor, Tensor]]
Backward = Callable[..., tuple[Tensor, Tensor, Tensor]]
Borders = tuple[int, ...]


class AttentionKernel(NamedTuple):
    """A kernel and how it is called: all packed segments in one call, or one call each."""

    name: str
    forward: Forward
    backward: Backward
    segments_in_one_call: bool


def guarded(kernel: AttentionKernel) -> AttentionKernel:
    """The kernel, its arguments checked; both functions raise as said here.

    Raises:
        InputError: Heads cannot be grouped, or v has another head_dim than q and k.
    """

    def forward(
        q_THD: Tensor,
        k_SGD: Tensor,
        v_SGD: Tensor,
        cu_q: Sequence[int],
        cu_k: Sequence[int],
        causal: bool,
        scale: float,
    ) -> tuple[Tensor, Tensor]:
        cu_q, cu_k = tuple(cu_q), tuple(cu_k)
        _check_shapes(q_THD, k_SGD, v_SGD)
        all_full = check_borders(cu_q, cu_k, causal, len(q_THD), len(k_SGD))
        if all_full or not kernel.segments_in_one_call:
            out_THD, lse_HT = kernel.forward(q_THD, k_SGD, v_SGD, cu_q, cu_k, causal, scale)
            _check_lse(lse_HT, q_THD)
            return out_THD, lse_HT
        out_THD, lse_HT = torch.zeros_like(q_THD), _no_lse(q_THD)
        q_rows, k_rows, *full = _full_segments(cu_q, cu_k)
        if q_rows:
            out_THD[q_rows], lse_HT[:, q_rows] = kernel.forward(
                *(q_THD[q_rows], k_SGD[k_rows], v_SGD[k_rows]), *full, causal, scale
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
        cu_q, cu_k = tuple(cu_q), tuple(cu_k)
        _check_shapes(q_THD, k_SGD, v_SGD)
        assert dout_THD.shape == out_THD.shape == q_THD.shape, (dout_THD.shape, out_THD.shape)
        _check_lse(lse_HT, q_THD)
        all_full = check_borders(cu_q, cu_k, causal, len(q_THD), len(k_SGD))
        if all_full or not kernel.segments_in_one_call:
            return kernel.backward(
                dout_THD, q_THD, k_SGD, v_SGD, out_THD, lse_HT, cu_q, cu_k, causal, scale
            )
        dq, dk, dv = (torch.zeros_like(x) for x in (q_THD, k_SGD, v_SGD))
        q_rows, k_rows, *full = _full_segments(cu_q, cu_k)
        if q_rows:
            dq[q_rows], dk[k_rows], dv[k_rows] = kernel.backward(
                *(dout_THD[q_rows], q_THD[q_rows], k_SGD[k_rows], v_SGD[k_rows]),
                *(out_THD[q_rows], lse_HT[:, q_rows], *full, causal, scale),
            )
        return dq, dk, dv

    return kernel._replace(forward=forward, backward=backward)


@lru_cache(maxsize=4096)
def check_borders(cu_q: Borders, cu_k: Borders, causal: bool, q_rows: int, k_rows: int) -> bool:
    """Whether every segment has queries and keys, and there is one.

    Wrong borders are a fault of the caller's, hence assertions.
    """
    assert len(cu_q) == len(cu_k), f"borders of {len(cu_q)} and {len(cu_k)} segments"
    for what, cu, rows in (("queries", cu_q, q_rows), ("keys", cu_k, k_rows)):
        assert cu[0] == 0, f"borders of {what} begin at {cu[0]}, not at 0"
        assert cu[-1] == rows, f"borders of {what} end at {cu[-1]}, not at the {rows} rows"
        assert all(a <= b for a, b in pairwise(cu)), f"borders of {what} fall: {cu}"
    assert not causal or cu_q == cu_k, "a causal segment must be square"
    return len(cu_q) > 1 and all(a < b for cu in (cu_q, cu_k) for a, b in pairwise(cu))


def _full_segments(cu_q: Borders, cu_k: Borders) -> tuple[list[int], list[int], Borders, Borders]:
    """Rows of queries and of keys that are in a segment with both, and its borders among them."""
    q_rows: list[int] = []
    k_rows: list[int] = []
    full_q, full_k = [0], [0]
    for (q0, q1), (k0, k1) in zip(pairwise(cu_q), pairwise(cu_k), strict=True):
        if q1 > q0 and k1 > k0:
            q_rows += range(q0, q1)
            k_rows += range(k0, k1)
            full_q.append(len(q_rows))
            full_k.append(len(k_rows))
    return q_rows, k_rows, tuple(full_q), tuple(full_k)


def _check_shapes(q_THD: Tensor, k_SGD: Tensor, v_SGD: Tensor) -> None:
    check_groups(q_THD.shape[1], k_SGD.shape[1])
    if not q_THD.shape[2] == k_SGD.shape[2] == v_SGD.shape[2]:
        widths = ", ".join(str(x.shape[2]) for x in (q_THD, k_SGD, v_SGD))
        raise InputError(
            f"q, k and v have head_dim {widths}; attention of several is not supported",
            "pad v to the head_dim of q and cut the output",
        )
    assert k_SGD.shape == v_SGD.shape, (k_SGD.shape, v_SGD.shape)


def _check_lse(lse_HT: Tensor, q_THD: Tensor) -> None:
    rows, heads, _ = q_THD.shape
    shape, wide = tuple(lse_HT.shape), accumulator_dtype(q_THD.dtype)
    assert shape == (heads, rows), f"lse has shape {shape}, not (heads, rows) = {(heads, rows)}"
    assert lse_HT.dtype == wide, f"lse is {lse_HT.dtype}, not {wide}"


def _no_lse(q_THD: Tensor) -> Tensor:
    wide = accumulator_dtype(q_THD.dtype)
    return q_THD.new_full((q_THD.shape[1], len(q_THD)), -torch.inf, dtype=wide)
