"""Ends of moved work of one worker in one batch: what it gives to and takes from other lanes.

Made from the moves of a step, which all workers hold alike, before its first op. Uneven heads are
no matter of this: they are in the layouts.
"""

from dataclasses import dataclass, field

from hydraplan.config import ModelShape
from hydraplan.executor.groups import Groups
from hydraplan.executor.moved_rows import RowTrip
from hydraplan.executor.split_linear import WeightGradients
from hydraplan.heads import contiguous_split
from hydraplan.kernels.link import Link, Outbox
from hydraplan.kernels.loan import Loan
from hydraplan.kernels.packing import Bucket, rank_layout
from hydraplan.migration import HeadMove, Moves, RowMove
from hydraplan.model import FloatArray, Sequences

FORMS = {RowMove: "rows of the MLP", HeadMove: "heads"}
"""In words; the place is the number of the form in messages."""


@dataclass(frozen=True, slots=True)
class Moved:
    """By microbatch, the heads and rows of which a worker is one end; all it sent of them.

    `tokens` that it holds more of every microbatch, after F and after B, shape (2, microbatches).
    """

    tokens: FloatArray
    loans: dict[int, Loan] = field(default_factory=dict)
    rows: dict[int, RowTrip] = field(default_factory=dict)
    outbox: Outbox = field(default_factory=Outbox)


def moved_work(
    moves: Moves,
    placed: Sequences,
    model: ModelShape,
    groups: Groups,
    gradients: WeightGradients,
    tokens: FloatArray,
    is_checked: bool = False,
) -> Moved:
    """What moves from or to this worker, of moves that fit the batch.

    `is_checked`: a header goes before each message.
    """
    world, moved = groups.world, Moved(tokens)

    def end(move: RowMove | HeadMove) -> tuple[bool, Link] | None:
        """Whether this worker gives, and its link to the other one; None if it does neither."""
        if move.stage != world.stage or world.lane not in (move.giver, move.taker):
            return None
        is_giver = world.lane == move.giver
        peer = groups.world_rank(move.taker if is_giver else move.giver)
        pool = groups.pool if groups.is_ordered else None
        form = list(FORMS).index(type(move))
        words = world.describe(peer), FORMS[type(move)]
        return is_giver, Link(peer, *words, form, move.microbatch, moved.outbox, pool, is_checked)

    for rows in moves.rows:
        if found := end(rows):
            moved.rows[rows.microbatch] = RowTrip(rows.rows, *found, gradients)
    for heads in moves.heads:
        if found := end(heads):
            kept = model.num_heads - heads.heads
            split = contiguous_split(model.num_heads, model.num_kv_heads, [[kept, heads.heads]])
            bucket = _unsplit(placed, heads.microbatch, heads.giver)
            moved.loans[heads.microbatch] = Loan(bucket, split, *found)
    return moved


def _unsplit(placed: Sequences, microbatch: int, lane: int) -> Bucket:
    """The bucket of the sequences that lie on one lane alone."""
    buckets = rank_layout(placed, microbatch, lane).buckets
    return next(bucket for bucket in buckets if bucket.degree == 1)
