from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from hydraplan.activations import head_bytes
from hydraplan.heads import contiguous_split
from hydraplan.kernels.attention import choose_kernel
from hydraplan.kernels.exchange import totals
from hydraplan.kernels.link import Link, Outbox
from hydraplan.kernels.loan import Loan
from hydraplan.kernels.nested import nested_attention
from hydraplan.kernels.packing import rank_layout
from tests.builders import Place, placed_sequences
from tests.plans import tiny_model
from tests.processes import run_ranks

PLACES = [Place(9), Place(40, 0, 2, 1), Place(31), Place(23, 1), Place(1)]
"""Lane 0 has three sequences alone, not next to each other; lane 1 one."""


class TwoLanes:
    """Two lanes whose messages go through the world group."""

    batched_hops = True

    def inner(self, first_lane, size):
        return None

    def world_rank(self, lane):
        return lane


def one_lane(rank, heads, kv_heads, moved, dtype, made_again):
    """Output and gradients of q, k and v; lane 0 gives, no head if `moved` is 0."""
    placed = placed_sequences(PLACES)
    layout, outbox = rank_layout(placed, 0, rank), Outbox()
    loan = None
    if moved:
        bucket = next(b for b in rank_layout(placed, 0, 0).buckets if b.degree == 1)
        split = contiguous_split(heads, kv_heads, [[heads - moved, moved]])
        loan = Loan(bucket, split, rank == 0, Link(1 - rank, "the other", "heads", 1, 0, outbox))
    generator = torch.Generator().manual_seed(rank)
    shapes = [(layout.rows, n, 8) for n in (heads, kv_heads, kv_heads, heads)]
    q, k, v, dout = (torch.randn(s, generator=generator).to(dtype) for s in shapes)
    for x in (q, k, v):
        x.requires_grad_()
    kernel = choose_kernel(q.device, dtype)

    def run(*qkv):
        return nested_attention(*qkv, layout, TwoLanes(), kernel, loan)

    out = checkpoint(run, q, k, v, use_reentrant=False) if made_again else run(q, k, v)
    out.backward(dout)
    outbox.finish()
    return out.detach(), q.grad, k.grad, v.grad


class Echo:
    """A link of which the other end is not there: what comes is drawn."""

    def send(self, carries, *parts):
        pass

    def expect(self, carries, elements, like):
        drawn = torch.randn(elements).to(like.dtype)
        return SimpleNamespace(wait=lambda: drawn)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize(("moved", "kv"), [(4, 1), (5, 2), (8, 2)])
def test_a_taker_keeps_what_the_formula_says(moved, kv, dtype):
    model, layout = (
        tiny_model(8, 2, dtype=dtype),
        rank_layout(placed_sequences([Place(7, 1)]), 0, 1),
    )
    (bucket,) = rank_layout(placed_sequences([Place(30), Place(11)]), 0, 0).buckets
    loan = Loan(bucket, contiguous_split(8, 2, [[8 - moved, moved]]), False, Echo())
    kernel, held = choose_kernel(torch.device("cpu"), getattr(torch, dtype)), []
    for taken in (None, loan):
        q, k, v = (
            torch.randn(7, n, 8).to(getattr(torch, dtype)).requires_grad_() for n in (8, 2, 2)
        )
        saved = []

        def keep(tensor, saved=saved):
            saved.append(tensor.untyped_storage())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            out = nested_attention(q, k, v, layout, None, kernel, taken)
        held.append(sum({s.data_ptr(): s.nbytes() for s in saved}.values()))
        out.backward(torch.ones_like(out))
    assert held[1] - held[0] == 41 * head_bytes(model, moved, kv)


CASES = [
    (8, 2, 4, "float64", False), (8, 2, 3, "float64", True), (8, 2, 8, "float32", False),
    (8, 8, 3, "bfloat16", True), (8, 2, 5, "bfloat16", False),
]  # fmt: skip
"""Heads, KV heads, moved heads; the second and the last cut a KV group."""


@pytest.mark.dist
def test_heads_that_attend_elsewhere_give_the_bits_they_give_at_home():
    def entry(rank):
        said = []
        for heads, kv_heads, moved, dtype, again in CASES:
            args = heads, kv_heads, moved, getattr(torch, dtype), again
            before = totals().moved_bytes
            found = one_lane(rank, *args)
            sent = totals().moved_bytes - before
            wanted = one_lane(rank, heads, kv_heads, 0, *args[3:])
            off = [float((a - b).norm() / b.norm()) for a, b in zip(found, wanted, strict=True)]
            said.append([off, sent])
        return said

    rows = 9 + 31 + 1
    for rank, said in enumerate(run_ranks(entry, 2)):
        for (heads, kv_heads, moved, dtype, again), (off, sent) in zip(CASES, said, strict=True):
            is_cut = moved * kv_heads % heads > 0
            limit = {"float64": 1e-15, "float32": 1e-7, "bfloat16": 4e-3}[dtype] * is_cut
            assert off[:2] == [0, 0], (rank, moved, dtype)
            assert max(off) <= limit, (rank, moved, dtype)
            kv = -(-moved * kv_heads // heads)
            there, back = moved + 2 * kv, moved
            times = 1 + again
            units = times * there + back if rank == 0 else times * back + there
            assert sent == rows * 8 * np.dtype("f8").itemsize * units // WIDTH[dtype]


WIDTH = {"float64": 1, "float32": 2, "bfloat16": 4}
