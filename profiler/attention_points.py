"""Attention calls to time: the shapes in which plan and engine call the kernel.

A sequence on one rank, or the first step of a ring, is a causal square; the later steps of a
zigzag ring are full rectangles twice as tall or twice as wide. Heads are those that an inner
group of u ranks leaves to each, for every legal u. Work is counted exactly as
`hydraplan.cost` charges it: 4 * pairs * heads * head_dim forward, 2.5 times that backward.

It times single segments; that packed segments add up is assumed.
"""

from collections.abc import Sequence

import torch

from hydraplan.config import ModelShape
from hydraplan.cost import BACKWARD_FLOPS_RATIO
from hydraplan.files.profilefile import Measurement
from hydraplan.kernels.attention import AttentionKernel
from hydraplan.layout import legal_ulysses
from hydraplan.profiler.measure import Call, Point

LENGTHS_TOKENS = tuple(2**power for power in range(4, 18))
RECTANGLE_TOKENS = LENGTHS_TOKENS[2::2]
REFERENCE_TOKENS = 2048
"""Longest sequence for the reference kernel, which holds the whole score matrix."""

SEED = 20240607


def attention_points(
    model: ModelShape, kernel: AttentionKernel, device: torch.device
) -> list[Point]:
    """All attention points of a model; the sweep decides how many of them it can afford."""
    sizes = legal_ulysses(model.num_heads, model.num_kv_heads, model.num_heads)
    heads = [(model.num_heads // u, max(1, model.num_kv_heads // u)) for u in sizes]
    shapes = [(n, n, True, pair) for n in LENGTHS_TOKENS for pair in heads]
    shapes += [
        (rows, keys, False, pair)
        for n in RECTANGLE_TOKENS
        for rows, keys in ((n, n // 2), (n // 2, n))
        for pair in sorted({heads[0], heads[-1]})
    ]
    longest = REFERENCE_TOKENS if kernel.name == "reference" else LENGTHS_TOKENS[-1]
    return [_point(model, kernel, device, *s) for s in shapes if max(s[:2]) <= longest]


def attention_flops(
    query_rows: int, key_rows: int, causal: bool, num_heads: int, head_dim: int
) -> float:
    """Forward work of one call; a causal call is a square of which half counts, exactly."""
    pairs = query_rows * (query_rows + 1) / 2 if causal else float(query_rows * key_rows)
    return 4 * pairs * num_heads * head_dim


def _point(
    model: ModelShape,
    kernel: AttentionKernel,
    device: torch.device,
    query_rows: int,
    key_rows: int,
    causal: bool,
    heads: tuple[int, int],
) -> Point:
    num_heads, num_kv_heads = heads
    flops = attention_flops(query_rows, key_rows, causal, num_heads, model.head_dim)
    row = Measurement(
        component="attention",
        direction="forward",
        query_rows=query_rows,
        key_rows=key_rows,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        causal=causal,
        dtype=model.dtype,
        kernel=kernel.name,
        median_s=0.0,
        p10_s=0.0,
        p90_s=0.0,
        flops=flops,
        bytes=0.0,
    )

    def prepare() -> Sequence[Call]:
        generator = torch.Generator(device).manual_seed(SEED)
        dtype = getattr(torch, model.dtype)
        shapes = (
            (query_rows, num_heads),
            *2 * ((key_rows, num_kv_heads),),
            (query_rows, num_heads),
        )
        q, k, v, dout = (
            torch.randn(*shape, model.head_dim, generator=generator, device=device).to(dtype)
            for shape in shapes
        )
        cu_q, cu_k, scale = [0, query_rows], [0, key_rows], model.head_dim**-0.5
        out, lse = kernel.forward(q, k, v, cu_q, cu_k, causal, scale)
        backward = row._replace(direction="backward", flops=BACKWARD_FLOPS_RATIO * flops)
        return (
            Call(row, lambda: kernel.forward(q, k, v, cu_q, cu_k, causal, scale)),
            Call(
                backward,
                lambda: kernel.backward(dout, q, k, v, out, lse, cu_q, cu_k, causal, scale),
            ),
        )

    return Point(flops, prepare)
