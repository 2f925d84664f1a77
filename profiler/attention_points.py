"""Attention calls to time: the shapes in which plan and engine call the kernel.

A sequence on one rank, or the first step of a ring, is a causal square; the later steps of a
zigzag ring are full rectangles twice as tall or twice as wide. Heads are those that an inner
group of u ranks leaves to each, for every legal u. Work is counted exactly as
`hydraplan.cost` charges it: 4 * pairs * heads * head_dim forward, 2.5 times that backward.

A few points pack several sequences into one, as microbatches do.
"""

from collections.abc import Sequence

import torch

from hydraplan.config import ModelShape
from hydraplan.cost import BACKWARD_FLOPS_RATIO
from hydraplan.files.profilefile import Measurement
from hydraplan.kernels.attention import AttentionKernel
from hydraplan.layout import legal_ulysses
from hydraplan.profiler.measure import Call, Point

LENGTHS_TOKENS = tuple(
    sorted({2**power for power in range(4, 18)} | {3 * 2**power for power in range(4, 16)})
)
RECTANGLE_TOKENS = tuple(2**power for power in range(6, 18, 2))
PACKED_TOKENS = (1024, 4096, 16384)
PACKED_SEGMENTS = 8
"""Packed points hold so many sequences of one length, together as many tokens."""

REFERENCE_TOKENS = 2048
"""Longest sequence for the reference kernel, which holds the whole score matrix."""

SEED = 20240607


def attention_points(
    model: ModelShape, kernel: AttentionKernel, device: torch.device
) -> list[Point]:
    """All attention points of a model; the sweep decides how many of them it can afford."""
    sizes = legal_ulysses(model.num_heads, model.num_kv_heads, model.num_heads)
    heads = [(model.num_heads // u, max(1, model.num_kv_heads // u)) for u in sizes]
    shapes = [(n, n, True, pair, 1) for n in LENGTHS_TOKENS for pair in heads]
    shapes += [
        (rows, keys, False, pair, 1)
        for n in RECTANGLE_TOKENS
        for rows, keys in ((n, n // 2), (n // 2, n))
        for pair in sorted({heads[0], heads[-1]})
    ]
    packed = [n // PACKED_SEGMENTS for n in PACKED_TOKENS]
    shapes += [(n, n, True, heads[0], PACKED_SEGMENTS) for n in packed]
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
    segments: int,
) -> Point:
    """One shape of call; several segments lie packed one after the other, alike in length."""
    num_heads, num_kv_heads = heads
    flops = segments * attention_flops(query_rows, key_rows, causal, num_heads, model.head_dim)
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
        flops=flops,
        calls=1 if kernel.segments_in_one_call else segments,
    )

    def prepare() -> Sequence[Call]:
        generator = torch.Generator(device).manual_seed(SEED)
        dtype = getattr(torch, model.dtype)
        shapes = (
            (segments * query_rows, num_heads),
            *2 * ((segments * key_rows, num_kv_heads),),
            (segments * query_rows, num_heads),
        )
        q, k, v, dout = (
            torch.randn(*shape, model.head_dim, generator=generator, device=device).to(dtype)
            for shape in shapes
        )
        cu_q, cu_k = ([n * i for i in range(segments + 1)] for n in (query_rows, key_rows))
        scale = model.head_dim**-0.5
        out, lse = kernel.forward(q, k, v, cu_q, cu_k, causal, scale)
        backward = row._replace(direction="backward", flops=BACKWARD_FLOPS_RATIO * flops)
        return (
            Call(row, lambda: kernel.forward(q, k, v, cu_q, cu_k, causal, scale)),
            Call(
                backward,
                lambda: kernel.backward(dout, q, k, v, out, lse, cu_q, cu_k, causal, scale),
            ),
        )

    return Point("attention", flops, prepare)
