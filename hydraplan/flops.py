"""True work of a batch: flops of its sequences as packed, padding and recomputation left out.

Forward of a token: two flops a weight of the layers and of the head. Forward of attention: 4 x
pairs x heads x head_dim a layer, and a causal sequence of L tokens has L (L + 1) / 2 pairs, so what
counts is the sum over sequences of squared lengths, not the square of what a microbatch holds.
Backward is twice the forward: what a kernel computes again is no work of the model.

Source: the count of the field (Megatron-LM, PaLM's MFU), with exact pairs.
"""

from typing import NamedTuple

from hydraplan.config import ModelShape
from hydraplan.model import IntArray

PASSES = 3
"""Forward, and a backward of twice its flops."""


class BatchFlops(NamedTuple):
    """Flops of a batch, forward and backward, of all devices together."""

    linear: float
    attention: float

    @property
    def total(self) -> float:
        """Both."""
        return self.linear + self.attention


def batch_flops(model: ModelShape, length_tokens: IntArray) -> BatchFlops:
    """Model flops of sequences of these lengths, tokens, shape (num_sequences,)."""
    weights = model.num_layers * model.layer_parameters + model.hidden_size * model.vocab_size
    length = length_tokens.astype(float)
    pairs = float((length * (length + 1) / 2).sum())
    heads = model.num_heads * model.head_dim
    return BatchFlops(
        linear=PASSES * 2 * weights * float(length.sum()),
        attention=PASSES * 4 * pairs * heads * model.num_layers,
    )
