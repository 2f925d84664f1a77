"""Which work to move in a batch when some ranks are slow: uneven heads, then rows, then heads.

Heads inside a nested group come first, since its exchange is paid anyway. Rows of the MLP come
next, for what stays unequal, and heads of whole sequences last, where rows do not even a pair out.
Pairs are symmetric: the slowest rank gives to the fastest, the next to the next, until one gains
nothing. A move is made only if its messages hide behind what the giver keeps, in F and in B, and if
it saves its slot more than `MARGIN`; of those it is the one after which the pair is done earliest.
Only slow devices give: loads that differ by plan are the planner's to even out.

Decided on factors that hold for many steps (`estimates`), so that all microbatches of a stage are
treated alike, and one slot's noise is never chased.

Source: symmetric pairing and the overlap condition are named in Conductor's abstract; the order of
forms, margins and limits are ours (docs/migration.md).
"""

from collections.abc import Callable, Collection
from functools import cache, lru_cache

import numpy as np

from hydraplan.activations import foreign_shares
from hydraplan.heads import weighted_split
from hydraplan.migration import BLOCK_ROWS, HeadMove, HeadShares, Moves, RowMove
from hydraplan.model import FloatArray
from hydraplan.moved_work import share_tokens
from hydraplan.planner.policy.bucket_time import bucket_s
from hydraplan.planner.policy.moved import moved_slots
from hydraplan.planner.policy.pair_time import PairTime, pair_time
from hydraplan.planner.policy.pairing import ROUNDING, last_where
from hydraplan.planner.policy.rated import Pair, Rated, with_factors

FORMS = ("shares", "rows", "heads")
"""Forms of migration, in the order in which they are preferred."""

MARGIN = 0.02
"""Share of its slot that a move has to save; below it an error of the model could lose."""

WAYS = (1.0, 0.5, 0.25)
"""Powers of members' factors by which heads are shared, the first that memory allows."""

SLOW = 1.05
"""Factor over the fastest rank of a stage from which a rank gives work away."""


def choose_moves(
    batch: Rated, forms: Collection[str] = FORMS, room: FloatArray | None = None
) -> Moves:
    """Moves of a batch on devices of known speed; none where all are alike.

    Args:
        room: Tokens whose activations each rank may hold besides its own, in each slot, (stages,
            lanes); None for any.
    """
    factor = batch.factor
    if room is None:
        room = np.full(factor.shape, np.inf)
    left = np.repeat(room[:, :, None], batch.slots.rows.shape[1], axis=2)
    stages = np.flatnonzero(factor.max(axis=1) > SLOW * factor.min(axis=1)).tolist()
    moves = Moves()
    if "shares" in forms:
        moves = Moves(
            shares=tuple(s for stage in stages for s in _shares(batch, stage, left[stage]))
        )
    if not {"rows", "heads"} & set(forms):
        return moves
    slots = with_factors(moved_slots(batch, moves), factor)
    work_s = slots.op_s.sum(axis=(0, 2))
    paired = [
        pair
        for stage in stages
        for m in range(work_s.shape[2])
        for pair in _pairs(batch, stage, m, work_s[stage, :, m], forms, left[stage, :, m])
    ]
    return moves._replace(
        rows=tuple(RowMove(*pair[:4], pair.rows) for pair in paired if pair.rows),
        heads=tuple(HeadMove(*pair[:4], pair.heads) for pair in paired if pair.heads),
    )


def _shares(batch: Rated, stage: int, left: FloatArray) -> list[HeadShares]:
    """Uneven heads of every nested bucket that they make faster; takes their tokens from `left`.

    Where members have no room for heads by their speed, those go half or a quarter of the way.
    """
    cost, found = batch.cost, []
    for m, first, u, r in batch.parts.bucket:
        lanes = slice(first, first + u * r)
        slow = batch.slow[stage, lanes]
        if u == 1 or slow.max() <= SLOW * slow.min():
            continue
        for way in WAYS:
            member_s = tuple(map(tuple, (slow**way).reshape(r, u).tolist()))
            counts = _counts(cost.num_heads, cost.num_kv_heads, member_s)
            share = HeadShares(stage, m, first, u, r, counts)
            more = share_tokens(cost, batch.placed, share)
            if (more <= left[lanes, m]).all():
                break
        else:
            continue
        even = _counts(cost.num_heads, cost.num_kv_heads, ((1.0,) * u,) * r)
        before_s = float(bucket_s(batch, share._replace(counts=even)).sum())
        if float(bucket_s(batch, share).sum()) < (1 - MARGIN) * before_s:
            found.append(share)
            left[lanes, m] -= more
    return found


@lru_cache(maxsize=4096)
def _counts(
    num_heads: int, num_kv_heads: int, member_s: tuple[tuple[float, ...], ...]
) -> tuple[tuple[int, ...], ...]:
    """Heads of every member, `[ring index][inner index]`."""
    split = weighted_split(num_heads, num_kv_heads, member_s)
    return tuple(tuple(len(held) for held in shard) for shard in split.q_heads)


def _pairs(
    batch: Rated,
    stage: int,
    microbatch: int,
    work_s: FloatArray,
    forms: Collection[str],
    room: FloatArray,
) -> list[Pair]:
    """Pairs of one slot; `work_s` of every lane."""
    factor = batch.factor[stage]
    is_slow = factor > SLOW * factor.min()
    order = np.argsort(-work_s, kind="stable")
    found = []
    for giver, taker in zip(order[is_slow[order]], order[~is_slow[order]][::-1], strict=False):
        pair = Pair(stage, microbatch, int(giver), int(taker))
        best, saved_s = _best(batch, pair, forms, float(room[taker]))
        if saved_s <= MARGIN * float(work_s[giver]):
            break
        found.append(best)
    return found


def _best(batch: Rated, pair: Pair, forms: Collection[str], room: float) -> tuple[Pair, float]:
    """What the pair moves, and the seconds by which it is done earlier."""
    timed = pair_time(batch, pair, sum(batch.cost.layers[pair.stage]))
    row_share, head_share = foreign_shares(batch.cost.model)
    rows = heads = 0
    if "rows" in forms:
        most = min(room / row_share, float(batch.slots.rows[pair.giver, pair.microbatch]))
        rows = BLOCK_ROWS * _most(lambda n: timed(n * BLOCK_ROWS, 0), int(most) // BLOCK_ROWS)
        room -= row_share * rows
    tokens = int(batch.parts.whole_tokens[pair.giver, pair.microbatch])
    if "heads" in forms and tokens:
        groups, each = batch.cost.num_kv_heads, batch.cost.num_heads // batch.cost.num_kv_heads
        most = groups * min(1.0, room / (head_share * tokens))
        heads = each * _most(lambda n: timed(rows, n * each), int(most))
    return pair._replace(rows=rows, heads=heads), timed(0, 0).end_s - timed(rows, heads).end_s


def _most(timed: Callable[[int], PairTime], most: int) -> int:
    """How many units end the pair earliest, of those whose trips hide; 0 if none does."""
    run = cache(timed)

    def is_hidden(count: int) -> bool:
        return run(count).wait_s <= ROUNDING * sum(run(count).giver_s)

    def is_better(count: int) -> bool:
        return run(count).end_s < run(count - 1).end_s

    return last_where(last_where(most, is_hidden), is_better)
