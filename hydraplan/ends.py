"""What lies at the ends of the route: the embedding, and the final norm, head and loss.

Measured profiles have both; where a fit has none, they are derived: the embedding moves a row
twice in F and three times in W, the head is a linear at the rate of a layer's, and its logits (four
bytes each) are read or written three times in F and in B.

Source: ours.
"""

import numpy as np

from hydraplan.config import DTYPE_BYTES, ModelShape
from hydraplan.costfit import CostFit
from hydraplan.model import FloatArray

LOGIT_BYTES = 4


def embedding_bytes(model: ModelShape) -> int:
    """Bytes of one row of activations."""
    return model.hidden_size * DTYPE_BYTES[model.dtype]


def head_flops(model: ModelShape) -> int:
    """Flops of one row through the head, in each of its three passes."""
    return 2 * model.hidden_size * model.vocab_size


def embedding_s(fit: CostFit, model: ModelShape) -> tuple[FloatArray, FloatArray]:
    """Seconds of each op (F, B, W) where the route begins: for a row, and fixed; (3,) each."""
    row_s, call_s = np.zeros(3), np.zeros(3)
    moved = embedding_bytes(model)
    for index, times, link in ((0, 2, fit.embedding_forward), (2, 3, fit.embedding_weight)):
        if link is None:
            row_s[index] = times * (moved / fit.memory_bytes_per_s)
        else:
            row_s[index], call_s[index] = moved / link.bytes_per_s, link.latency_s
    return row_s, call_s


def loss_s(fit: CostFit, model: ModelShape, tp: int) -> tuple[FloatArray, FloatArray]:
    """Seconds of each op (F, B, W) where the route ends: for a row, and fixed; (3,) each."""
    row_s, call_s = np.zeros(3), np.zeros(3)
    head = head_flops(model) / tp
    logits_s = 3 * (LOGIT_BYTES * model.vocab_size / tp / fit.memory_bytes_per_s)
    linears = (fit.linear_forward, fit.linear_input, fit.linear_weight)
    losses = (fit.loss_forward, fit.loss_input, fit.loss_weight)
    for index, (linear, loss) in enumerate(zip(linears, losses, strict=True)):
        rate = linear if loss is None else loss
        row_s[index], call_s[index] = head / rate.flops_per_s, rate.call_s
        if loss is None and index < 2:
            row_s[index] += logits_s
    return row_s, call_s
