"""What a decoder layer keeps of its rows between the ops of a microbatch, in bytes.

F keeps what B and W need, or what B makes it from again. B leaves for W both factors of every
weight's gradient, the rows that went into each linear and the gradients of those that came out, and
frees the rest; W makes nothing again, since it may talk to nobody. Attention keeps no scores (its
kernels make them again). The embedding, the head and the rotary angles, which come once a stage or
less, are left out; tensor parallelism divides all alike.

Symbols: C hidden_size, F ffn_hidden_size, H query and G KV heads, D head_dim, b bytes an element,
a bytes an accumulator.

Source: the Zero Bubble paper counts both factors so (32 of 34 units of C for its layer, scores
apart); the terms here are those of `hydraplan.executor.decoder`, and a test holds them against it.
"""

from typing import Literal, NamedTuple

from hydraplan.config import ACCUMULATOR_BYTES, DTYPE_BYTES, ModelShape

Recompute = Literal["none", "selective", "full"]
"""What B makes again: nothing; norms and SwiGLU's product, which cost little; the whole layer, its
attention with the exchanges of its groups included."""


class Shares(NamedTuple):
    """What a slot holds after F, and after B until W, over what F keeps if nothing is made again.

    After B it is more than after F where B has made again what W needs.
    """

    after_forward: float
    after_input: float


def forward_bytes(model: ModelShape, recompute: Recompute = "none") -> int:
    """Bytes that F keeps of a row in one layer.

    Of each of the two norms its input and the normalised row in the accumulator's precision, the
    result and a scale; q, k, v, the attention's output, a log-sum-exp a head; of SwiGLU the gate
    before and after silu, up, and their product. Selective: of a norm its input, of SwiGLU gate
    and up. Full: what goes into the layer.
    """
    b, a = DTYPE_BYTES[model.dtype], ACCUMULATOR_BYTES[model.dtype]
    if recompute == "full":
        return b * model.hidden_size
    attention = head_bytes(model, model.num_heads, model.num_kv_heads)
    if recompute == "selective":
        return 2 * b * (model.hidden_size + model.ffn_hidden_size) + attention
    norms = 2 * (2 * a * model.hidden_size + b * model.hidden_size + a)
    return norms + attention + 4 * b * model.ffn_hidden_size


def waiting_bytes(model: ModelShape) -> int:
    """Bytes that B leaves of a row in one layer for W, whatever was made again.

    What went in: both norms' results, the attention's output, SwiGLU's product. Gradients of
    what came out: q, k, v, gate, up, and C each of the attention's and the MLP's last linear.
    """
    went_in = 2 * model.hidden_size + _query(model) + model.ffn_hidden_size
    came_out = 2 * model.hidden_size + _query(model) + 2 * _key(model) + 2 * model.ffn_hidden_size
    return DTYPE_BYTES[model.dtype] * (went_in + came_out)


def foreign_row(model: ModelShape, recompute: Recompute = "none") -> Shares:
    """What a row of the MLP that another lane gave takes after F, and after B, of a whole token.

    After F what goes in, and gate and up, which the rest is made from again unless all is; after B
    both factors of its three gradients.
    """
    b, whole = DTYPE_BYTES[model.dtype], forward_bytes(model)
    kept, waits = (c * model.hidden_size + f * model.ffn_hidden_size for c, f in ((1, 2), (2, 3)))
    return Shares(0.0 if recompute == "full" else b * kept / whole, b * waits / whole)


def head_bytes(model: ModelShape, num_heads: int, num_kv_heads: int) -> int:
    """Bytes that attention keeps of a row for some heads: q, k, v, output and log-sum-exp."""
    columns = 2 * model.head_dim * (num_heads + num_kv_heads)
    return DTYPE_BYTES[model.dtype] * columns + ACCUMULATOR_BYTES[model.dtype] * num_heads


def foreign_shares(model: ModelShape) -> tuple[float, float]:
    """Most that rows of the MLP and heads of attention from another lane take, of a whole token.

    The latter are all heads of a token.
    """
    heads = head_bytes(model, model.num_heads, model.num_kv_heads)
    return max(foreign_row(model)), heads / forward_bytes(model)


def held_shares(model: ModelShape, recompute: Recompute = "none") -> Shares:
    """What a slot holds at either time; if nothing is made again B frees 1/4 to 2/5."""
    whole = forward_bytes(model)
    return Shares(forward_bytes(model, recompute) / whole, waiting_bytes(model) / whole)


def _query(model: ModelShape) -> int:
    return model.num_heads * model.head_dim


def _key(model: ModelShape) -> int:
    return model.num_kv_heads * model.head_dim
