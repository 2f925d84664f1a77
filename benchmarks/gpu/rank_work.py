"""What one rank computes in one slot of a plan, which of these slots differ, and which to replay.

A slot is a lane in a microbatch. What it computes follows from the sequences it shares: of each the
length, `ulysses_size`, `ring_size` and the lane's place in the ring; the place inside an inner
group moves a row at most. Slots alike in all that are one shape. Of the shapes a bounded number is
replayed: sorted by predicted time, they are taken at equal steps from the lightest to the heaviest.

Work is counted from the index maps of the engine, in integers: pairs of a query row and a key row
times the query heads that this rank holds. The sums over a group are those of whole sequences, to
the last pair, which a test holds for every shape.

Predicted are the seconds of one decoder layer without any link: what a rank waits on the wire
cannot be replayed on one device.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from hydraplan.config import MAX_RATE
from hydraplan.cost import CostModel
from hydraplan.costfit import LinkFit, RateFit
from hydraplan.heads import even_split
from hydraplan.kernels.packing import RankLayout
from hydraplan.layout import expand
from hydraplan.model import FloatArray, IntArray, Sequences
from hydraplan.slots import slot_times

Shape = tuple[tuple[int, int, int, int], ...]
"""Length, ulysses_size, ring_size and ring index of every sequence of a slot, sorted."""


@dataclass(frozen=True, slots=True)
class SlotWork:
    """One slot to replay, and how many are alike.

    `predicted_s`: F, B and W of one decoder layer; `attention_s`: F and B of its attention alone.
    """

    lane: int
    microbatch: int
    count: int
    predicted_s: tuple[float, ...]
    attention_s: tuple[float, ...]


def distinct_slots(cost: CostModel, placed: Sequences, num_microbatches: int) -> list[SlotWork]:
    """One slot of every shape that has rows, the first by microbatch and lane."""
    layer_s, rows = layer_seconds(cost, placed, num_microbatches)
    attention_s, _ = layer_seconds(cost, placed, num_microbatches, has_linears=False)
    first: dict[Shape, tuple[int, int]] = {}
    counts: dict[Shape, int] = {}
    for (microbatch, lane), shape in sorted(slot_shapes(placed).items()):
        if rows[lane, microbatch]:
            first.setdefault(shape, (lane, microbatch))
            counts[shape] = counts.get(shape, 0) + 1
    return [
        SlotWork(
            lane,
            microbatch,
            counts[shape],
            tuple(layer_s[:, lane, microbatch].tolist()),
            tuple(attention_s[:2, lane, microbatch].tolist()),
        )
        for shape, (lane, microbatch) in first.items()
    ]


def slot_shapes(placed: Sequences) -> dict[tuple[int, int], Shape]:
    """Shape of every slot (microbatch, lane) that takes part in a sequence."""
    sequence, member = expand(placed.degree)
    columns = (
        placed.microbatch[sequence],
        placed.first_rank[sequence] + member,
        placed.length_tokens[sequence],
        placed.ulysses_size[sequence],
        placed.ring_size[sequence],
        member // placed.ulysses_size[sequence],
    )
    found: dict[tuple[int, int], list[tuple[int, int, int, int]]] = {}
    for microbatch, lane, *part in np.stack(columns, axis=1).tolist():
        length, u, r, ring = part
        found.setdefault((microbatch, lane), []).append((length, u, r, ring))
    return {slot: tuple(sorted(parts)) for slot, parts in found.items()}


def chosen(slots: Sequence[SlotWork], most: int) -> list[SlotWork]:
    """At most so many slots, at equal steps by predicted time, the lightest and heaviest included.

    Of one alone the middle.
    """
    by_time = sorted(slots, key=lambda slot: (sum(slot.predicted_s), slot.microbatch, slot.lane))
    if len(by_time) <= most:
        return by_time
    if most == 1:
        return [by_time[len(by_time) // 2]]
    places = np.round(np.linspace(0, len(by_time) - 1, most)).astype(int)
    return [by_time[i] for i in places]


def layer_seconds(
    cost: CostModel, placed: Sequences, num_microbatches: int, has_linears: bool = True
) -> tuple[FloatArray, IntArray]:
    """F, B, W seconds of one decoder layer of every slot, links free, and rows of every slot.

    Shapes (3, lanes, microbatches) and (lanes, microbatches). Three stages of a layer each are
    costed, since the first has the embedding and the last the head. Without linears what is left
    is attention.
    """
    free = LinkFit(bytes_per_s=MAX_RATE, latency_s=0.0)
    links = ("node_all_to_all", "node_p2p", "fabric_all_to_all", "fabric_p2p")
    fit = cost.fit.model_copy(update=dict.fromkeys(links, free))
    fit = fit.model_copy(update={"pod_p2p": None, "devices_per_pod": None})
    if not has_linears:
        nothing = RateFit(call_s=0.0, flops_per_s=MAX_RATE)
        names = ("linear_forward", "linear_input", "linear_weight")
        fit = fit.model_copy(update=dict.fromkeys(names, nothing))
    alone = replace(cost, fit=fit, pp=3, layers=((1,), (1,), (1,)), route_name="loop")
    times = slot_times(alone, placed, num_microbatches)
    return times.op_s[:, 1, 0], times.rows


def attention_pairs(layout: RankLayout, num_heads: int, num_kv_heads: int) -> int:
    """Query rows x key rows x query heads that this rank computes in one layer, all ring hops."""
    total = 0
    for bucket in layout.buckets:
        u, r = bucket.ulysses_size, bucket.ring_size
        split = bucket.heads or even_split(num_heads, num_kv_heads, u, r)
        heads = len(split.q_heads[bucket.ring][bucket.inner])
        for step in bucket.steps:
            sizes = zip(pairwise(step.cu_q), pairwise(step.cu_k), strict=True)
            for (q0, q1), (k0, k1) in sizes:
                n, keys = q1 - q0, k1 - k0
                total += heads * (n * (n + 1) // 2 if step.causal else n * keys)
    return total


def whole_pairs(placed: Sequences, num_heads: int) -> int:
    """The same of whole sequences, as the plan's costs count them: L (L + 1) / 2 a query head."""
    lengths: list[int] = placed.length_tokens.tolist()
    return num_heads * sum(n * (n + 1) // 2 for n in lengths)
