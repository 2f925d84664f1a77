"""Seconds of two ranks of which one gives rows of the MLP, or heads of whole sequences, or both.

Forward a layer is attention of whole sequences, output projection, MLP, QKV of the next layer;
backward is the other way round. Where one of the two has a split sequence, groups meet once a
layer, and both begin every layer anew; else the taker may get ahead. W meets nobody: the taker adds
the gradients of foreign rows.

A message between a slow and a fast rank takes as long as the slow one needs.

Source: our derivation, docs/migration.md.
"""

from typing import NamedTuple

import numpy as np

from hydraplan.cost import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
from hydraplan.costfit import LinkFit
from hydraplan.layout import legal_degrees
from hydraplan.model import FloatArray
from hydraplan.planner.policy.messages import Sent, head_messages, row_messages
from hydraplan.planner.policy.moves import Layer, PairRun, Part, Trip, parts_run
from hydraplan.planner.policy.rated import Pair, Rated
from hydraplan.topology import group_link


class PairTime(NamedTuple):
    """F, B and W seconds of giver and taker, (3,) each; how long the giver waits in F and B."""

    giver_s: FloatArray
    taker_s: FloatArray
    wait_s: float

    @property
    def end_s(self) -> float:
        """Of the one that takes longer over all three."""
        return float(max(self.giver_s.sum(), self.taker_s.sum()))


def pair_time(batch: Rated, pair: Pair, layers: int) -> PairTime:
    """What both take for the parts of so many layers that work could move in, moves included."""
    runs = [pair_run_of(batch, pair, layers, way) for way in (FORWARD, INPUT_GRADIENT)]
    if batch.cost.recompute == "full":
        runs[1] = PairRun(*(sum(both) for both in zip(*runs, strict=True)))
    slow = batch.slow[pair.stage]
    row_s = layers * float(batch.parts.mlp_s[WEIGHT_GRADIENT])
    rows = batch.slots.rows[:, pair.microbatch]
    w_s = [
        row_s * float(slow[lane] * (rows[lane] + more))
        for lane, more in ((pair.giver, -pair.rows), (pair.taker, pair.rows))
    ]
    return PairTime(
        np.array([*(run.giver_s for run in runs), w_s[0]]),
        np.array([*(run.taker_s for run in runs), w_s[1]]),
        sum(run.giver_wait_s for run in runs),
    )


def pair_run_of(batch: Rated, pair: Pair, layers: int, way: int) -> PairRun:
    """One pass, `FORWARD` or `INPUT_GRADIENT`, from a common start."""
    cost, parts, m = batch.cost, batch.parts, pair.microbatch
    rows, tokens = batch.slots.rows[:, m], parts.whole_tokens[:, m]
    whole_s: FloatArray = parts.whole_s[way, :, m]
    if way == INPUT_GRADIENT and cost.recompute == "full":
        whole_s = whole_s - parts.whole_s[FORWARD, :, m]
    none_s = np.zeros(len(rows))
    link, width = pair_link(batch, pair), cost.element_bytes
    sends = link.bytes_per_s, link.latency_s
    backward = way == INPUT_GRADIENT
    qkv_s, output_s, mlp_s = (
        np.asarray(rows * row_s[way], float) for row_s in (parts.qkv_s, parts.output_s, parts.mlp_s)
    )
    groups = -(-pair.heads * cost.num_kv_heads // cost.num_heads)
    heads = head_messages(tokens, cost.model.head_dim, width, *sends, backward)
    attention = _part(
        batch, pair, (none_s, whole_s, none_s), pair.heads / cost.num_heads, heads,
        pair.heads, groups,
    )  # fmt: skip
    ends = (qkv_s, output_s) if backward else (output_s, qkv_s)
    linears = _part(
        batch, pair, (ends[0], mlp_s, ends[1]), pair.rows / max(1, int(rows[pair.giver])),
        row_messages(len(rows), cost.model.hidden_size, width, *sends), pair.rows, 0,
    )  # fmt: skip
    order = [linears, attention] if backward else [attention, linears]
    if not parts.is_split[[pair.giver, pair.taker], m].any():
        return parts_run(order, layers)
    return PairRun(*(layers * seconds for seconds in parts_run(order)))


def _part(
    batch: Rated,
    pair: Pair,
    part_s: tuple[FloatArray, FloatArray, FloatArray],
    share: float,
    messages: tuple[Sent, Sent],
    units: int,
    groups: int,
) -> Part:
    """A part of a layer of both; `part_s` before, in and after what moves, on nominal lanes."""
    slow = batch.slow[pair.stage]
    own, other = (
        Layer(*(float(seconds[lane] * slow[lane]) for seconds in part_s))
        for lane in (pair.giver, pair.taker)
    )
    if not units:
        return Part(own, other, own.movable_s, None)
    late = float(max(slow[pair.giver], slow[pair.taker]))
    out_s, back_s = (late * message.seconds(pair.giver, units, groups) for message in messages)
    foreign_s = share * float(part_s[1][pair.giver] * slow[pair.taker])
    return Part(own, other, (1 - share) * own.movable_s, Trip(out_s, foreign_s, back_s))


def pair_link(batch: Rated, pair: Pair) -> LinkFit:
    """Link of the smallest aligned group that holds both."""
    degrees = legal_degrees(batch.cost.ranks).tolist()
    shared = (d for d in degrees[:-1] if pair.giver // d == pair.taker // d)
    return group_link(batch.cost.fit, batch.cost.world, next(shared, degrees[-1]))
