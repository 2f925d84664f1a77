"""What a plan moves between ranks and stages: bytes of groups, activations, gradients.

Volumes are counted from the algorithm. The seconds that groups spend on their exchanges are
part of `hydraplan.cost`, since hops hide behind compute.
"""

import numpy as np

from hydraplan.config import ACCUMULATOR_BYTES
from hydraplan.cost import CostModel
from hydraplan.model import FloatArray, Sequences
from hydraplan.topology import group_link, stage_link


def sent_bytes(cost: CostModel, placed: Sequences) -> FloatArray:
    """Bytes the members of each sequence's group send in one step, (num_sequences,).

    All layers, forward and backward, summed over members; counted from actual rows, since
    the members' rows add up to the length. Zero at degree 1.
    """
    u, r = placed.ulysses_size.astype(float), placed.ring_size.astype(float)
    kv_heads = np.maximum(cost.num_kv_heads, u)
    row_elements = placed.length_tokens * float(cost.model.head_dim)
    accumulator = ACCUMULATOR_BYTES[cost.model.dtype]
    inner = 2 * cost.element_bytes * (u - 1) / u * 2 * (cost.num_heads + kv_heads)
    hops = 2 * kv_heads * (2 * cost.element_bytes * (r - 1) + accumulator * np.where(r > 1, r, 0))
    result: FloatArray = cost.tp * cost.model.num_layers * row_elements * (inner + hops)
    return result


def boundary_s(cost: CostModel, rows: FloatArray) -> FloatArray:
    """Seconds to hand `rows` rows of activations to the next stage, over the slowest link."""
    link = stage_link(cost.fit, cost.world)
    moved = rows * cost.model.hidden_size * cost.element_bytes / cost.tp
    result: FloatArray = link.latency_s + moved / link.bytes_per_s
    return result


def grad_sync_s(cost: CostModel) -> FloatArray:
    """Exposed all-reduce of each stage's gradients over its pool, shape (stages,).

    A ring all-reduce in accumulator precision after the last backward, as the executor does
    it.
    """
    if cost.ranks == 1:
        return np.zeros(cost.pp)
    link = group_link(cost.fit, cost.world, cost.ranks)
    parameters = np.array(cost.layers, float).sum(axis=1) * cost.model.layer_parameters
    begins, ends = cost.route.ends()
    for stage, _ in begins + ends:  # embedding, and head
        parameters[stage] += cost.model.vocab_size * cost.model.hidden_size
    moved = 2 * (cost.ranks - 1) / cost.ranks * parameters / cost.tp
    moved *= ACCUMULATOR_BYTES[cost.model.dtype]
    result: FloatArray = moved / link.bytes_per_s + 2 * (cost.ranks - 1) * link.latency_s
    return result
