"""Everything in a decoder layer that is not attention: what to time at how many rows.

The seven matrix products with RMSNorm, rotary embedding, SwiGLU and residuals, as one graph
with the attention output as a second input, so no stand-in for attention is timed. Its three
passes are timed apart:

* forward, with the graph recorded, as training does;
* input gradient: `autograd.grad` of the layer's outputs by its two inputs only;
* weight gradient: the seven products X^T dY, added to a gradient that exists.

Asking autograd for weight gradients alone would compute most of the input gradient again, so
input + weight would exceed the one backward that 1F1B really runs. Input and weight gradient
as above add up to it; what is left out is the gradient of the two norm vectors.

The layer is written as the executor writes it (weights in the accumulator's precision, cast
where they are used), but again here: the profiler must not import the executor.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from hydraplan.config import ModelShape
from hydraplan.files.profilefile import Measurement
from hydraplan.profiler.measure import Call, Point

ROWS = tuple(4**power for power in range(8))
SEED = 20240608
NORM_EPSILON = 1e-5


class Layer(NamedTuple):
    """Weights of one layer, (in, out) each, and norm vectors, (hidden,)."""

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor
    attention_norm: Tensor
    mlp_norm: Tensor


def linear_points(
    model: ModelShape, device: torch.device, row_counts: Sequence[int] = ROWS
) -> list[Point]:
    """One point a row count, all on the same weights."""
    generator = torch.Generator(device).manual_seed(SEED)
    layer = _make_layer(model, device, generator)
    gradients = [torch.zeros_like(weight) for weight in layer[:7]]
    return [_point(model, device, generator, layer, gradients, rows) for rows in row_counts]


def layer_forward(
    model: ModelShape, layer: Layer, x: Tensor, attention: Tensor, rotary: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Layer output (rows, hidden) and q, k, v (rows, heads, head_dim), attention given.

    Args:
        model: Shape of the model.
        layer: Weights.
        x: Layer input, (rows, hidden).
        attention: Attention output, (rows, num_heads * head_dim).
        rotary: Cosine and sine of each row's position, (rows, 1, head_dim / 2) each.
    """
    rows, dim = x.shape[0], model.head_dim
    normed = _norm(x, layer.attention_norm)
    q = (normed @ layer.q.to(x.dtype)).view(rows, model.num_heads, dim)
    k = (normed @ layer.k.to(x.dtype)).view(rows, model.num_kv_heads, dim)
    v = (normed @ layer.v.to(x.dtype)).view(rows, model.num_kv_heads, dim)
    y = x + attention @ layer.o.to(x.dtype)
    normed = _norm(y, layer.mlp_norm)
    gated = functional.silu(normed @ layer.gate.to(x.dtype)) * (normed @ layer.up.to(x.dtype))
    return y + gated @ layer.down.to(x.dtype), _rotate(q, rotary), _rotate(k, rotary), v


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.to(weight.dtype)
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + NORM_EPSILON)
    return (wide * scale * weight).to(x.dtype)


def _rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    cosine, sine = rotary
    first, second = x.to(cosine.dtype).chunk(2, dim=-1)
    turned = torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
    return turned.to(x.dtype)


def _make_layer(model: ModelShape, device: torch.device, generator: torch.Generator) -> Layer:
    hidden, ffn, dtype = model.hidden_size, model.ffn_hidden_size, _accumulator(model)
    query, key = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    shapes = (
        *((hidden, query), (hidden, key), (hidden, key), (query, hidden)),
        *((hidden, ffn), (hidden, ffn), (ffn, hidden)),
    )
    weights = [
        torch.randn(*shape, generator=generator, device=device, dtype=dtype)
        .mul_(shape[0] ** -0.5)
        .requires_grad_()
        for shape in shapes
    ]
    norms = [torch.ones(hidden, device=device, dtype=dtype).requires_grad_() for _ in range(2)]
    return Layer(*weights, *norms)


def _accumulator(model: ModelShape) -> torch.dtype:
    return torch.float64 if model.dtype == "float64" else torch.float32


def _point(
    model: ModelShape,
    device: torch.device,
    generator: torch.Generator,
    layer: Layer,
    gradients: Sequence[Tensor],
    rows: int,
) -> Point:
    flops = 2.0 * rows * model.layer_parameters
    row = Measurement(
        component="linear",
        direction="forward",
        query_rows=rows,
        key_rows=0,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        causal=False,
        dtype=model.dtype,
        kernel="torch",
        median_s=0.0,
        p10_s=0.0,
        p90_s=0.0,
        flops=flops,
        bytes=0.0,
    )
    dtype = getattr(torch, model.dtype)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device, dtype=dtype)

    def prepare() -> Sequence[Call]:
        x = random(rows, model.hidden_size).requires_grad_()
        attention = random(rows, model.num_heads * model.head_dim).requires_grad_()
        angles = torch.arange(rows, device=device, dtype=torch.float64)[:, None, None] / (
            1 + torch.arange(model.head_dim // 2, device=device)
        )
        rotary = angles.cos().to(_accumulator(model)), angles.sin().to(_accumulator(model))
        outputs = layer_forward(model, layer, x, attention, rotary)
        seeds = [random(*output.shape) for output in outputs]
        products = [
            (gradient, random(rows, weight.shape[0]), random(rows, weight.shape[1]))
            for gradient, weight in zip(gradients, layer[:7], strict=True)
        ]

        def weight_gradient() -> None:
            for gradient, given, upstream in products:
                gradient.add_(given.t() @ upstream)

        return (
            Call(row, lambda: layer_forward(model, layer, x, attention, rotary)),
            Call(
                row._replace(direction="input"),
                lambda: torch.autograd.grad(outputs, (x, attention), seeds, retain_graph=True),
            ),
            Call(row._replace(direction="weight"), weight_gradient),
        )

    return Point(flops, prepare)
