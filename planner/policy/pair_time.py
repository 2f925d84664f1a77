"""Seconds of two ranks of which one gives rows of the MLP, or heads of whole sequences, or both.

Forward a layer is attention of whole sequences, output projection, MLP, QKV of the next layer;
backward is the other way round. Where one of the two has a split sequence, groups meet once a
layer, and both begin every layer anew; else the taker may get ahead. W meets nobody: the taker adds
the gradients of foreign rows.

A message between a slow and a fast rank takes as long as the slow one needs.

Source: our derivation, docs/migration.md.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hydraplan.cost import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
from hydraplan.costfit import LinkFit
from hydraplan.layout import legal_degrees
from hydraplan.planner.policy.messages import Sent, head_messages, row_messages
from hydraplan.planner.policy.moves import Layer, PairRun, Part, Trip, parts_run
from hydraplan.planner.policy.rated import Pair, Rated
from hydraplan.topology import group_link


class PairTime(NamedTuple):
    """F, B and W seconds of giver and taker; how long the giver waits in F and B together."""

    giver_s: tuple[float, float, float]
    taker_s: tuple[float, float, float]
    wait_s: float

    @property
    def end_s(self) -> float:
        """Of the one that takes longer over all three."""
        return max(sum(self.giver_s), sum(self.taker_s))


Timed = Callable[[int, int], PairTime]
"""What both take if so many rows and heads move."""


def pair_time(batch: Rated, pair: Pair, layers: int) -> Timed:
    """For two ranks of a slot, what both take for the parts of `layers` layers work moves in."""
    forward, backward = (_pass(batch, pair, layers, way) for way in (FORWARD, INPUT_GRADIENT))
    slow = batch.slow[pair.stage]
    row_s = layers * float(batch.parts.mlp_s[WEIGHT_GRADIENT])
    held = batch.slots.rows[:, pair.microbatch]
    giver_w, taker_w = ((row_s * float(slow[i]), int(held[i])) for i in (pair.giver, pair.taker))
    remakes = batch.cost.recompute == "full"

    def timed(rows: int, heads: int) -> PairTime:
        f, b = forward(rows, heads), backward(rows, heads)
        if remakes:
            b = PairRun(*(x + y for x, y in zip(f, b, strict=True)))
        return PairTime(
            (f.giver_s, b.giver_s, giver_w[0] * (giver_w[1] - rows)),
            (f.taker_s, b.taker_s, taker_w[0] * (taker_w[1] + rows)),
            f.giver_wait_s + b.giver_wait_s,
        )

    return timed


def _pass(batch: Rated, pair: Pair, layers: int, way: int) -> Callable[[int, int], PairRun]:
    """One pass, `FORWARD` or `INPUT_GRADIENT`, from a common start."""
    cost, parts, m, ranks = batch.cost, batch.parts, pair.microbatch, [pair.giver, pair.taker]
    rows, tokens = batch.slots.rows[ranks, m], parts.whole_tokens[ranks, m]
    whole_s = parts.whole_s[way, ranks, m]
    if way == INPUT_GRADIENT and cost.recompute == "full":
        whole_s = whole_s - parts.whole_s[FORWARD, ranks, m]
    slow = batch.slow[pair.stage, ranks]
    meets, is_backward = bool(parts.is_split[ranks, m].any()), way == INPUT_GRADIENT
    link = pair_link(batch, pair)
    shape = (cost.model.hidden_size, cost.element_bytes, link.bytes_per_s, link.latency_s)
    qkv_s, output_s, mlp_s = (
        slow * rows * row_s[way] for row_s in (parts.qkv_s, parts.output_s, parts.mlp_s)
    )
    ends = (qkv_s, output_s) if is_backward else (output_s, qkv_s)
    linears = _moving(
        (ends[0], mlp_s, ends[1]), slow, int(rows[0]), row_messages(2, *shape)
    )  # fmt: skip
    none_s, sent = np.zeros(2), head_messages(tokens, cost.model.head_dim, *shape[1:], is_backward)
    attention = _moving((none_s, slow * whole_s, none_s), slow, cost.num_heads, sent)
    each = cost.num_heads // cost.num_kv_heads

    def run(rows: int, heads: int) -> PairRun:
        order = [attention(heads, -(-heads // each)), linears(rows, 0)]
        if is_backward:
            order.reverse()
        if not meets:
            return parts_run(order, layers)
        return PairRun(*(layers * seconds for seconds in parts_run(order)))

    return run


def _moving(
    part_s: tuple[np.ndarray, ...], slow: np.ndarray, total: int, messages: tuple[Sent, Sent]
) -> Callable[[int, int], Part]:
    """A part of a layer, by what of `total` units moves; `part_s` of giver and taker."""
    own, other = (Layer(*(float(seconds[i]) for seconds in part_s)) for i in (0, 1))
    late = float(slow.max())
    unit_s = float(part_s[1][0] / slow[0] * slow[1]) / max(1, total)

    def moved(units: int, groups: int) -> Part:
        if not units:
            return Part(own, other, own.movable_s, None)
        out_s, back_s = (late * message.seconds(0, units, groups) for message in messages)
        kept_s = own.movable_s * (total - units) / total
        return Part(own, other, kept_s, Trip(out_s, unit_s * units, back_s))

    return moved


def pair_link(batch: Rated, pair: Pair) -> LinkFit:
    """Link of the smallest aligned group that holds both."""
    degrees = legal_degrees(batch.cost.ranks).tolist()
    shared = (d for d in degrees[:-1] if pair.giver // d == pair.taker // d)
    return group_link(batch.cost.fit, batch.cost.world, next(shared, degrees[-1]))
