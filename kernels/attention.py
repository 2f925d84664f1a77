"""Choose the attention kernel: what runs the score matrix of packed segments on one device.

A kernel is two plain functions over packed rows, `forward` and `backward`, with no autograd of
their own, so that the ring can run them block by block with the global log-sum-exp:

    forward(q[T,H,D], k[S,G,D], v[S,G,D], cu_q, cu_k, causal, scale) -> out[T,H,D], lse[H,T]
    backward(dout, q, k, v, out, lse, cu_q, cu_k, causal, scale) -> dq, dk, dv

`cu_q`, `cu_k` are segment borders on the host; segment i of the queries meets segment i of the
keys, all of it or, with `causal` (segments square), up to the diagonal.

A kernel is used only after it agreed with the reference kernel on a small case. No dropout,
no sliding window, no bias; q, k and v have one head_dim.
"""

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from hydraplan.errors import InputError, MissingDependency
from hydraplan.kernels import cpu, cuda, reference

log = logging.getLogger(__name__)

Forward = Callable[..., tuple[Tensor, Tensor]]
Backward = Callable[..., tuple[Tensor, Tensor, Tensor]]


class AttentionKernel(NamedTuple):
    """A kernel and how it is called: all packed segments in one call, or one call each."""

    name: str
    forward: Forward
    backward: Backward
    segments_in_one_call: bool


KERNELS = {
    kernel.name: kernel
    for kernel in (
        AttentionKernel("cpu", cpu.forward, cpu.backward, False),
        AttentionKernel("cuda", cuda.forward, cuda.backward, True),
        AttentionKernel("reference", reference.forward, reference.backward, False),
    )
}
NAMES = ("auto", "cpu", "cuda", "flash", "reference")

_HALF = (torch.bfloat16, torch.float16)
_PROBE_TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
}
"""Largest relative L2 error of output and gradients on the probe, a few times the rounding."""


@lru_cache
def choose_kernel(device: torch.device, dtype: torch.dtype, name: str = "auto") -> AttentionKernel:
    """The kernel `name` for tensors of `dtype` on `device`; the choice is logged once.

    "auto" takes the fused kernel of the device, and the reference kernel where there is none
    for this type.

    Raises:
        InputError: The name or the type is unknown.
        MissingDependency: The named kernel does not work here, with the reason.
    """
    if name not in NAMES:
        raise InputError(f"unknown attention kernel {name!r}", f"one of: {', '.join(NAMES)}")
    if dtype not in _PROBE_TOLERANCE:
        raise InputError(f"attention in {dtype} is not supported")
    wanted = device.type if name == "auto" else name
    reason = why_not(wanted, device, dtype)
    if reason and name != "auto":
        raise MissingDependency(
            f"attention kernel {name} cannot be used for {dtype} on {device}: {reason}",
            "see what works here: hydraplan doctor",
        )
    chosen = KERNELS["reference" if reason else wanted]
    if reason:
        log.warning("attention kernel: reference, slow, since %s: %s", wanted, reason)
    else:
        log.info("attention kernel: %s for %s on %s", chosen.name, dtype, device)
    return chosen


def kernel_report() -> list[tuple[str, bool, str]]:
    """Name, whether it works on this machine, and why not, of every kernel."""
    devices = {"cuda": torch.device("cuda", 0)}
    dtypes = {"cuda": torch.bfloat16}
    report = []
    for name in NAMES[1:]:
        device = devices.get(name, torch.device("cpu"))
        reason = why_not(name, device, dtypes.get(name, torch.float32))
        report.append((name, not reason, reason))
    return report


@lru_cache
def why_not(name: str, device: torch.device, dtype: torch.dtype) -> str:
    """Why a kernel cannot be used; empty if it can."""
    if name == "flash":
        return "the flash-attn package is not used yet; torch's own flash kernel is"
    if name not in KERNELS:
        return f"there is no kernel for {name} devices"
    if name == "cuda" and not torch.cuda.is_available():
        return "torch finds no CUDA device"
    if name != "reference" and name != device.type:
        return f"it runs on {name} devices only"
    if name == "cuda" and dtype not in _HALF:
        return "it takes float16 and bfloat16 only"
    return _probe(KERNELS[name], device, dtype)


def _probe(kernel: AttentionKernel, device: torch.device, dtype: torch.dtype) -> str:
    """Run two small segments, one causal call and one not, and compare with the reference."""
    if kernel.name == "reference":
        return ""
    generator = torch.Generator().manual_seed(0)
    oracle = KERNELS["reference"]
    for causal, cu_k in ((True, (0, 5, 12)), (False, (0, 3, 11))):
        q, dout, k, v = (
            torch.randn(rows, heads, 16, generator=generator).to(device, dtype)
            for rows, heads in ((12, 4), (12, 4), (cu_k[-1], 2), (cu_k[-1], 2))
        )
        case = ((0, 5, 12), cu_k, causal, 0.25)
        exact = [x.double() for x in (dout, q, k, v)]
        out, lse = oracle.forward(*exact[1:], *case)
        right = (out, lse, *oracle.backward(*exact, out, lse, *case))
        try:
            out, lse = kernel.forward(q, k, v, *case)
            got = (out, lse, *kernel.backward(dout, q, k, v, out, lse, *case))
        # what other packages raise where device, build or version do not fit; it is why the
        # kernel is not chosen, and `doctor` says so
        except (RuntimeError, AttributeError, NotImplementedError, TypeError) as error:
            return f"a small call failed: {str(error).splitlines()[0]}"
        for what, a, b in zip(("output", "lse", "dq", "dk", "dv"), got, right, strict=True):
            distance = float((a.double() - b).norm() / b.norm())
            if not distance <= _PROBE_TOLERANCE[dtype]:
                return f"its {what} is off by {distance:.1e} on a small case"
    return ""
