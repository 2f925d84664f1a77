"""A Llama-shaped decoder as functions over a dictionary of named weights.

RMSNorm, rotary embedding by the true position inside each sequence, grouped-query attention,
SwiGLU, untied head, no biases. Rows of all sequences are packed: activations have shape
(rows, hidden). Attention and linears are handed in, so that the workers' nested attention and
split linears and the one-process reference run the same layer. A linear is handed what it takes in
together with the cheap function that makes it, which it may call again instead of keeping the rows.
Weights live in the accumulator's precision and are cast where they are used; a weight's initial
value depends only on its name and the seed, so stages and reference agree without talking. No
dropout, no caching, no tensor parallelism.

Shape letters: T rows, C hidden_size, H query heads, G KV heads, D head_dim.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from hydraplan.config import ModelShape

ROPE_BASE = 500_000.0
NORM_EPSILON = 1e-5
LOSS_CHUNK_ELEMENTS = 2**22
"""Most logits that are alive at once when a microbatch needs more than one chunk."""

ACCUMULATOR = {
    torch.float64: torch.float64,
    torch.float32: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
}
"""Precision of weights, gradients, norms and loss for a compute dtype."""

Weights = dict[str, Tensor]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(q_THD, k_TGD, v_TGD) -> out_THD."""

Make = Callable[..., Tensor]
"""The rows x_TI of some linears, from few and cheap operations on what is kept anyway."""

Linears = Callable[[Make, Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]]
"""(make, inputs, weights) -> make(*inputs) @ weight_IO in its precision, (T, O), of each weight."""


class MlpWeights(NamedTuple):
    """Weights of the second half of a layer."""

    norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


Mlp = Callable[[Tensor], Tensor]
"""x_TC -> what norm and SwiGLU make of it, (T, C), for any rows."""

Shared = Callable[[Mlp, Tensor, MlpWeights], Tensor]
"""(mlp, x_TC, weights) -> mlp(x_TC), some of whose rows another lane may have computed."""


def weight_shapes(
    model: ModelShape, layers: range, has_embedding: bool, has_head: bool
) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights of some consecutive layers; matrices are (in, out)."""
    hidden, ffn = model.hidden_size, model.ffn_hidden_size
    query, key = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    shapes: dict[str, tuple[int, ...]] = {}
    if has_embedding:
        shapes["embedding"] = (model.vocab_size, hidden)
    for layer in layers:
        shapes |= {
            f"layers.{layer}.attention_norm": (hidden,),
            f"layers.{layer}.query": (hidden, query),
            f"layers.{layer}.key": (hidden, key),
            f"layers.{layer}.value": (hidden, key),
            f"layers.{layer}.output": (query, hidden),
            f"layers.{layer}.mlp_norm": (hidden,),
            f"layers.{layer}.gate": (hidden, ffn),
            f"layers.{layer}.up": (hidden, ffn),
            f"layers.{layer}.down": (ffn, hidden),
        }
    if has_head:
        shapes |= {"final_norm": (hidden,), "head": (hidden, model.vocab_size)}
    return shapes


def initial_weights(
    shapes: dict[str, tuple[int, ...]],
    seed: int,
    compute: torch.dtype,
    device: torch.device | None = None,
) -> Weights:
    """Weights that require gradients: ones for norms, else normal with variance 1 / rows.

    Drawn on the CPU in float64 and rounded to the accumulator of `compute`, so every process that
    asks for a name under one seed and dtype holds the same bits.
    """
    weights = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            value = torch.ones(shape, dtype=torch.float64)
        else:
            key = hashlib.sha256(f"{seed}/{name}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "little") >> 1)
            fan_in = shape[1] if name == "embedding" else shape[0]
            value = torch.randn(shape, generator=generator, dtype=torch.float64) * fan_in**-0.5
        weights[name] = value.to(device, ACCUMULATOR[compute]).requires_grad_()
    return weights


def embed(weights: Weights, ids_T: Tensor, compute: torch.dtype) -> Tensor:
    """Activations (T, C) of token ids."""
    return functional.embedding(ids_T, weights["embedding"]).to(compute)


def plain_linears(
    make: Make, inputs: Sequence[Tensor], weights: Sequence[Tensor]
) -> Sequence[Tensor]:
    """Linears as autograd differentiates them: both gradients in one backward pass."""
    x_TI = make(*inputs)
    return [x_TI @ weight_IO.to(x_TI.dtype) for weight_IO in weights]


def rotary_angles(
    model: ModelShape, positions_T: Tensor, compute: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every row's position, each (T, 1, D / 2), from float64 angles."""
    half = model.head_dim // 2
    index = torch.arange(half, dtype=torch.float64, device=positions_T.device)
    frequency = ROPE_BASE ** (-index / half)
    angle = positions_T.to(torch.float64)[:, None, None] * frequency
    precision = ACCUMULATOR[compute]
    return angle.cos().to(precision), angle.sin().to(precision)


def decoder_layer(
    weights: Weights,
    layer: int,
    model: ModelShape,
    x_TC: Tensor,
    rotary: tuple[Tensor, Tensor],
    attend: Attend,
    linears: Linears = plain_linears,
    shared: Shared | None = None,
) -> Tensor:
    """One layer on packed rows, (T, C) to (T, C)."""

    def weight(name: str) -> Tensor:
        return weights[f"layers.{layer}.{name}"]

    def times(make: Make, inputs: Sequence[Tensor], *names: str) -> Sequence[Tensor]:
        return linears(make, inputs, [weight(name) for name in names])

    rows, dim = x_TC.shape[0], model.head_dim
    q, k, v = times(norm, (x_TC, weight("attention_norm")), "query", "key", "value")
    q_THD = _rotate(q.view(rows, model.num_heads, dim), rotary)
    k_TGD = _rotate(k.view(rows, model.num_kv_heads, dim), rotary)
    v_TGD = v.view(rows, model.num_kv_heads, dim)
    out = attend(q_THD, k_TGD, v_TGD).reshape(rows, model.num_heads * dim)
    x_TC = x_TC + times(_as_it_is, (out,), "output")[0]

    def mlp(x_TC: Tensor) -> Tensor:
        gate, up = times(norm, (x_TC, weight("mlp_norm")), "gate", "up")
        return times(gated, (gate, up), "down")[0]

    if shared is None:
        return x_TC + mlp(x_TC)
    names = ("mlp_norm", "gate", "up", "down")
    return x_TC + shared(mlp, x_TC, MlpWeights(*map(weight, names)))


def head_logits(weights: Weights, x_TC: Tensor, linears: Linears = plain_linears) -> Tensor:
    """Final norm and head, (T, C) to (T, vocab_size)."""
    return linears(norm, (x_TC, weights["final_norm"]), (weights["head"],))[0]


def loss_sum(
    weights: Weights, x_TC: Tensor, labels_T: Tensor, linears: Linears = plain_linears
) -> Tensor:
    """Sum of cross entropies of the rows that carry a label (>= 0), a float64 scalar.

    Logits that fit `LOSS_CHUNK_ELEMENTS` are kept for backward; more are made in chunks of
    rows and made again in backward, so memory is bounded whatever the rows. Then the head's
    linear is a plain one, since to put its weight off is to keep the gradient of all logits.
    """
    chunk = max(1, LOSS_CHUNK_ELEMENTS // weights["head"].shape[1])
    if x_TC.shape[0] <= chunk:
        return _chunk_loss(x_TC, labels_T, weights, linears)
    parts = [
        checkpoint(_chunk_loss, x, labels, weights, use_reentrant=False, preserve_rng_state=False)
        for x, labels in zip(x_TC.split(chunk), labels_T.split(chunk), strict=True)
    ]
    return torch.stack(parts).sum()


def _chunk_loss(
    x_TC: Tensor, labels_T: Tensor, weights: Weights, linears: Linears = plain_linears
) -> Tensor:
    logits = head_logits(weights, x_TC, linears).to(weights["head"].dtype)
    per_row = functional.cross_entropy(logits, labels_T, ignore_index=-1, reduction="none")
    return per_row.double().sum()


def _as_it_is(x: Tensor) -> Tensor:
    return x


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """SwiGLU's product, (T, F)."""
    return functional.silu(gate) * up


def norm(x_TC: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm in the weight's precision, (T, C)."""
    # A view, so that the gradients of both uses add up first, as they do where B makes this again.
    x = x_TC.view_as(x_TC).to(weight.dtype)
    scale = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + NORM_EPSILON)
    return (x * scale * weight).to(x_TC.dtype)


def _rotate(x_THD: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    cosine, sine = rotary
    first, second = x_THD.to(cosine.dtype).chunk(2, dim=-1)
    turned = torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
    return turned.to(x_THD.dtype)
