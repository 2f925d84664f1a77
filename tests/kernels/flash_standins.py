"""Stand-ins for flash-attn 2 and flash-attn-4: their signatures, our reference kernel's numbers.

The parameters, their order and their defaults were read with `ast` from flash_attn-2.8.3.tar.gz,
flash_attn/flash_attn_interface.py, and flash_attn_4-4.0.0b36-py3-none-any.whl,
flash_attn/cute/interface.py. What the stand-ins insist on, those packages check or assume: 32-bit
borders, strides, the longest segments, lse (H, T) in float32, gradients written in place. Where a
segment has no key they report lse +inf and garbage, as flash kernels may.
"""

import ast
import sys
from inspect import Parameter, Signature
from itertools import pairwise
from types import ModuleType
from typing import NamedTuple

import torch

from hydraplan.kernels import flash2, flash4, optional_package, reference

SIGNATURES = {
    "_flash_attn_varlen_forward": (
        "q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p,"
        " softmax_scale, causal, window_size_left=-1, window_size_right=-1, softcap=0.0,"
        " alibi_slopes=None, return_softmax=False, block_table=None, leftpad_k=None,"
        " seqused_k=None, zero_tensors=False"
    ),
    "_flash_attn_varlen_backward": (
        "dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,"
        " max_seqlen_k, dropout_p, softmax_scale, causal, window_size_left, window_size_right,"
        " softcap, alibi_slopes, deterministic, rng_state=None, zero_tensors=False"
    ),
    "_flash_attn_fwd": (
        "q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, seqused_q=None, seqused_k=None,"
        " max_seqlen_q=None, max_seqlen_k=None, min_seqlen_k=None, page_table=None,"
        " softmax_scale=None, causal=False, softcap=None, window_size_left=None,"
        " window_size_right=None, learnable_sink=None, tile_mn=None, mma_pv_is_rs=None,"
        " intra_wg_overlap=None, num_threads=384, num_splits=1, pack_gqa=None, _arch=None,"
        " score_mod=None, mask_mod=None, block_sparse_tensors=None, return_lse=False, out=None,"
        " lse=None, aux_tensors=None, aux_scalars=None, q_descale=None, k_descale=None,"
        " v_descale=None, gather_kv_indices=None, scheduler_metadata=None,"
        " seqlen_k_per_split=None, disable_scheduler_metadata=False,"
        " gather_bwd_recompute_p=False"
    ),
    "_flash_attn_bwd": (
        "q, k, v, out, dout, lse, softmax_scale=None, causal=False, softcap=0.0,"
        " window_size_left=None, window_size_right=None, m_block_size=64, n_block_size=128,"
        " num_threads=256, pack_gqa=False, num_stages_Q=2, num_stages_dO=2, SdP_swapAB=False,"
        " dKV_swapAB=False, dQ_swapAB=False, AtomLayoutMSdP=2, AtomLayoutNdKV=2,"
        " AtomLayoutMdQ=2, V_in_regs=False, cu_seqlens_q=None, cu_seqlens_k=None,"
        " seqused_q=None, seqused_k=None, max_seqlen_q=None, max_seqlen_k=None,"
        " deterministic=False, dq=None, dk=None, dv=None, score_mod=None, score_mod_bwd=None,"
        " mask_mod=None, aux_tensors=None, aux_scalars=None, block_sparse_tensors=None,"
        " dlse=None, learnable_sink=None"
    ),
}
OURS = {
    "q", "k", "v", "out", "dout", "lse", "softmax_lse", "dq", "dk", "dv", "cu_seqlens_q",
    "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "softmax_scale", "causal", "return_lse",
}  # fmt: skip
"""Parameters that say what to compute; all others must have the value that means "plain"."""
PLAIN = {"dropout_p": 0.0, "window_size_left": -1, "window_size_right": -1, "softcap": 0.0,
         "alibi_slopes": None, "deterministic": False}  # fmt: skip
"""... where the package has no default."""


class Call(NamedTuple):
    """What the package got: all arguments by name, defaults included."""

    name: str
    given: dict


def signature(name):
    """The signature as the package has it."""
    (function,) = ast.parse(f"def f({SIGNATURES[name]}): 0").body
    names = [argument.arg for argument in function.args.args]
    defaults = [ast.literal_eval(node) for node in function.args.defaults]
    no_default = [Parameter.empty] * (len(names) - len(defaults))
    return Signature(
        Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=default)
        for name, default in zip(names, no_default + defaults, strict=True)
    )


def standin(name, calls, spoil):
    """A function with the package's signature that notes its calls; `spoil` changes its answer."""
    shape = signature(name)
    forward = name in ("_flash_attn_varlen_forward", "_flash_attn_fwd")

    def function(*args, **kwargs):
        bound = shape.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        calls.append(Call(name, dict(given)))
        for what, value in given.items():
            if what not in OURS:
                default = shape.parameters[what].default
                plain = PLAIN[what] if default is Parameter.empty else default
                assert value == plain, f"{what}={value}"
        return (_forward if forward else _backward)(name, given, spoil)

    return function


def _forward(name, given, spoil):
    assert given.get("return_lse", True)
    borders = _borders(given)
    q, k, v = (_readable(given[n]) for n in "qkv")
    out, lse = reference.forward(q, k, v, *borders, given["causal"], given["softmax_scale"])
    for (q0, q1), (k0, k1) in zip(*map(pairwise, borders), strict=True):
        if k0 == k1:
            out[q0:q1], lse[:, q0:q1] = torch.nan, torch.inf
    out, lse = spoil(out, lse)
    extras = 2 if name == "_flash_attn_varlen_forward" else 3
    return (out, lse, *extras * [None])


def _backward(name, given, _):
    borders = _borders(given)
    dout, q, k, v, out = (_readable(given[n]) for n in ("dout", "q", "k", "v", "out"))
    lse = given.get("lse", given.get("softmax_lse"))
    assert (lse.shape, lse.dtype) == ((q.shape[1], len(q)), torch.float32)
    assert lse.is_contiguous()
    assert out.dtype == dout.dtype == q.dtype
    grads = reference.backward(
        *(dout, q, k, v, out, lse), *borders, given["causal"], given["softmax_scale"]
    )
    if name == "_flash_attn_bwd":
        return grads
    for what, grad in zip(("dq", "dk", "dv"), grads, strict=True):
        assert _readable(given[what]).dtype == q.dtype
        given[what].copy_(grad)
    return torch.zeros(1)


def _borders(given):
    """Both as the reference kernel takes them."""
    borders = []
    for what in "qk":
        cu, longest = given[f"cu_seqlens_{what}"], given[f"max_seqlen_{what}"]
        assert cu.dtype == torch.int32
        assert cu.is_contiguous()
        borders.append(tuple(cu.tolist()))
        assert longest == max(b - a for a, b in pairwise(borders[-1]))
    return borders


def _readable(x):
    assert x.stride(-1) == 1
    assert x.dtype in (torch.float16, torch.bfloat16)
    return x


def install(monkeypatch, versions=None, capability=(9, 0), spoil=lambda out, lse: (out, lse)):
    """Put both packages into sys.modules, as if on a GPU; returns the list of their calls."""
    calls: list[Call] = []
    versions = {"flash-attn": "2.8.3", "flash-attn-4": "4.0.0b36"} | (versions or {})
    for package in (flash2.PACKAGE, flash4.PACKAGE):
        parts = package.module.split(".")
        for depth in range(1, len(parts) + 1):
            name = ".".join(parts[:depth])
            monkeypatch.setitem(sys.modules, name, sys.modules.get(name) or ModuleType(name))
        for function in package.functions:
            replacement = standin(function, calls, spoil)
            monkeypatch.setattr(sys.modules[package.module], function, replacement, raising=False)
    monkeypatch.setattr(optional_package.metadata, "version", versions.__getitem__)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    flash4._major.cache_clear()
    return calls
