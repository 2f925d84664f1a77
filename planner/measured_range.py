"""Where a plan asks for sizes far beyond those that its profile measured.

A fit knows nothing of twice the largest size it has seen: kernels change their ways, caches end.
So each component is named whose largest call or message in a batch is further out.

Source: the factor is that of our brief; sizes are those of the engine's calls and messages.
"""

from collections.abc import Sequence

import numpy as np

from hydraplan.cost import CostModel
from hydraplan.ends import embedding_bytes
from hydraplan.files.profilefile import TermError
from hydraplan.model import BatchPlan
from hydraplan.slots import slot_rows

FAR = 2.0
"""Times the largest measured size beyond which costs are called extrapolated."""

Asked = dict[str, float]
"""Largest size in a plan, by name of the fit's coefficient: rows of a call, bytes of a message."""


def largest_sizes(cost: CostModel, batch: BatchPlan) -> Asked:
    """Largest call and message of every component in a batch."""
    placed = batch.sequences.placed()
    if not len(placed):
        return {}
    u, r = placed.ulysses_size, placed.ring_size
    held = placed.length_tokens / (u * r)
    call_rows = np.where(r > 1, placed.length_tokens / (2 * r), placed.length_tokens)
    rows = float(slot_rows(placed, cost.ranks, batch.num_microbatches).max())
    kv_heads = np.maximum(cost.num_kv_heads, u)
    head_bytes = cost.model.head_dim * cost.element_bytes
    hops = np.where(r > 1, 2 * held * kv_heads * head_bytes, 0)
    exchanged = held * (cost.num_heads + 2 * kv_heads) * head_bytes * (u - 1) / u
    boundary = rows * cost.model.hidden_size * cost.element_bytes if cost.pp > 1 else 0.0
    attention = float(call_rows.max())
    return {
        "attention_forward": attention,
        "attention_backward": attention,
        "linear_forward": rows,
        "linear_input": rows,
        "linear_weight": rows,
        "loss_forward": rows,
        "loss_input": rows,
        "loss_weight": rows,
        "embedding_forward": rows * embedding_bytes(cost.model),
        "embedding_weight": rows * embedding_bytes(cost.model),
        "node_all_to_all": float(exchanged.max()),
        "node_p2p": max(float(hops.max()), boundary),
    }


def together(found: Sequence[Asked]) -> Asked:
    """The largest of all batches."""
    names = {name for asked in found for name in asked}
    return {name: max(asked.get(name, 0.0) for asked in found) for name in sorted(names)}


def extrapolated(terms: Sequence[TermError], asked: Asked) -> list[str]:
    """A line for every component that is asked for more than `FAR` times what was measured."""
    return [
        f"{term.name} is extrapolated: the plan has {asked[term.name]:,.0f} {term.unit} a"
        f" {'call' if term.unit == 'rows' else 'message'}, measured were at most"
        f" {term.largest:,.0f}; give the profile more --seconds"
        for term in terms
        if asked.get(term.name, 0.0) > FAR * term.largest
    ]
