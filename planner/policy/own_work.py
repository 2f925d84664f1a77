"""What every rank itself works on when work moves: slots without what it waits for its partners.

`moved` says when members of a bucket and partners of a pair are done, which holds waiting. Here
each has what it computes: its heads of a bucket, its rows, and what it took over. Against this the
seconds that a rank was busy tell its speed, whatever speed its moves were decided for.

Source: ours; the parts are those of `layer_parts`.
"""

import numpy as np

from hydraplan.cost import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
from hydraplan.migration import HeadShares, Moves
from hydraplan.model import FloatArray
from hydraplan.planner.policy.rated import Rated


def own_work_s(batch: Rated, moves: Moves) -> FloatArray:
    """Seconds of own work with these moves on devices as planned, shaped as `SlotTimes.op_s`."""
    cost, parts = batch.cost, batch.parts
    work_s = batch.slots.op_s.copy()
    layers = np.array(cost.layers, float)
    planned_slow = batch.slow / batch.factor
    for share in moves.shares:
        lanes = slice(share.first_rank, share.first_rank + share.ulysses_size * share.ring_size)
        slow = planned_slow[share.stage, lanes]
        more_s = _share_s(batch, share) * slow
        for way in (FORWARD, INPUT_GRADIENT):
            here = work_s[way, share.stage, :, lanes, share.microbatch]
            here += layers[share.stage, :, None] * more_s[way]
    mlp_s = parts.mlp_s.copy()
    if cost.recompute == "full":
        mlp_s[INPUT_GRADIENT] += mlp_s[FORWARD]
    pairs: list[tuple[tuple[int, int, int, int], FloatArray]] = []
    for row in moves.rows:
        pairs.append((row[:4], row.rows * mlp_s))
    for head in moves.heads:
        given_s = np.zeros(3)
        share_of = head.heads / cost.num_heads
        given_s[:WEIGHT_GRADIENT] = share_of * parts.whole_s[:, head.giver, head.microbatch]
        pairs.append((head[:4], given_s))
    for (stage, m, giver, taker), given_s in pairs:
        for lane, sign in ((giver, -1), (taker, 1)):
            each_s = sign * float(planned_slow[stage, lane]) * given_s
            work_s[:, stage, :, lane, m] += each_s[:, None] * layers[stage]
    return np.asarray(np.maximum(work_s, 0.0))


def _share_s(batch: Rated, share: HeadShares) -> FloatArray:
    """What each member computes of a layer's attention beyond an even share, (2, members)."""
    parts, place = batch.parts.attention, batch.parts.bucket[share[1:5]]
    even_s = parts.own_s[:, place] + (share.ring_size - 1) * parts.step_s[:, place]
    counts = np.array(share.counts, float).ravel()
    more_s = even_s[:, None] * (counts * share.ulysses_size / batch.cost.num_heads - 1)
    if batch.cost.recompute == "full":
        more_s[INPUT_GRADIENT] += more_s[FORWARD]
    return np.asarray(more_s)
