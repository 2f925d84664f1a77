"""What a batch takes when work moves: the slots of a plan with moves.

Of a bucket whose members share its heads unevenly, every member takes as long as the bucket, since
its members meet (`bucket_time`). Of a pair each takes as long as `pair_time` says from a common
start, which `partner` of the slots lets the simulator keep. Calls, embedding and head stay with the
slot. A device factor multiplies all that a rank does, its own communication too, as in the
simulator. Links that several moves share are not modelled.

Source: our derivation, docs/migration.md.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hydraplan.cost import FORWARD, INPUT_GRADIENT
from hydraplan.migration import Moves
from hydraplan.planner.policy.bucket_time import bucket_s
from hydraplan.planner.policy.pair_time import pair_time
from hydraplan.planner.policy.rated import Pair, Rated
from hydraplan.slots import SlotTimes


def moved_slots(batch: Rated, moves: Moves) -> SlotTimes:
    """Slots with these moves, on devices as planned: `rated.with_factors` makes them real ones."""
    if not moves:
        return batch.slots
    added_s = np.zeros_like(batch.slots.op_s)
    layers = np.array(batch.cost.layers, float)
    for share in moves.shares:
        lanes = slice(share.first_rank, share.first_rank + share.ulysses_size * share.ring_size)
        planned_s = batch.parts.attention_s[:, batch.parts.bucket[share[1:5]]]
        taken_s = bucket_s(batch, share)
        for way in (FORWARD, INPUT_GRADIENT):
            more_s = taken_s[way] - planned_s[way] * batch.slow[share.stage, lanes]
            added = added_s[way, share.stage, :, lanes, share.microbatch]
            added += layers[share.stage, :, None] * more_s
    for pair in pairs(moves):
        for chunk, count in enumerate(batch.cost.layers[pair.stage]):
            timed = pair_time(batch, pair, count)
            alone, taken = timed(0, 0), timed(pair.rows, pair.heads)
            here = added_s[:, pair.stage, chunk, :, pair.microbatch]
            here[:, pair.giver] += np.subtract(taken.giver_s, alone.giver_s)
            here[:, pair.taker] += np.subtract(taken.taker_s, alone.taker_s)
    partner = np.empty((2, *added_s.shape[1:2], *added_s.shape[3:]), np.int64)
    partner[:] = np.arange(batch.cost.ranks)[:, None]
    for form, moved in enumerate((moves.rows, moves.heads)):
        for stage, m, giver, taker, _ in moved:
            partner[form, stage, [giver, taker], m] = taker, giver
    op_s = batch.slots.op_s + added_s / batch.factor[:, None, :, None]
    return replace(batch.slots, op_s=op_s, partner=partner)


def pairs(moves: Moves) -> Iterator[Pair]:
    """Every pair of lanes, with all that one gives the other."""
    found: dict[Pair, Pair] = {}
    for row in moves.rows:
        key = Pair(*row[:4])
        found[key] = key._replace(rows=row.rows)
    for head in moves.heads:
        key = Pair(*head[:4])
        found[key] = found.get(key, key)._replace(heads=head.heads)
    yield from found.values()
