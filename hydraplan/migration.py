"""What moves in a step: work that a slow rank gives to fast ones of its stage, as data.

Three forms, each of one slot (stage, lane, microbatch), alike in F, B and W and in every layer of
the stage. `HeadShares`: the members of a nested group take unequally many heads. `RowMove`: rows of
the MLP go to another lane. `HeadMove`: heads of sequences that are not split go to another lane.
All ranks of a stage hold the same moves, and they change only between steps.

Which moves are worth it is decided in `planner.policy`; kernels and executor carry them out.

Source: Conductor moves heads and parts of the MLP between paired workers; uneven heads inside a
group and the form of this record are ours.
"""

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from hydraplan.config import ModelShape
from hydraplan.errors import InputError
from hydraplan.heads import HeadSplit, contiguous_split
from hydraplan.model import IntArray, Sequences

BLOCK_ROWS = 16
"""Rows of the MLP that move together; kernels of fewer take another path, with other roundings."""


class HeadShares(NamedTuple):
    """Query heads of every member of one bucket, `counts[ring index][inner index]`."""

    stage: int
    microbatch: int
    first_rank: int
    ulysses_size: int
    ring_size: int
    counts: tuple[tuple[int, ...], ...]

    def split(self, num_heads: int, num_kv_heads: int) -> HeadSplit:
        """Contiguous ranges of so many heads."""
        return _split(num_heads, num_kv_heads, self.counts)


@lru_cache(maxsize=1024)
def _split(num_heads: int, num_kv_heads: int, counts: tuple[tuple[int, ...], ...]) -> HeadSplit:
    return contiguous_split(num_heads, num_kv_heads, counts)


class RowMove(NamedTuple):
    """The last `rows` rows of the giver's slot take the MLP at the taker."""

    stage: int
    microbatch: int
    giver: int
    taker: int
    rows: int


class HeadMove(NamedTuple):
    """The last `heads` query heads of the giver's unsplit sequences attend at the taker."""

    stage: int
    microbatch: int
    giver: int
    taker: int
    heads: int


class Moves(NamedTuple):
    """All moves of a step."""

    shares: tuple[HeadShares, ...] = ()
    rows: tuple[RowMove, ...] = ()
    heads: tuple[HeadMove, ...] = ()

    def __bool__(self) -> bool:
        return any(self)

    @property
    def total(self) -> int:
        """Moves of all forms."""
        return sum(map(len, self))

    def to_json(self) -> dict[str, list[list[Any]]]:
        """Plain lists, a field of each form."""
        return {name: [list(move) for move in moves] for name, moves in self._asdict().items()}


NO_MOVES = Moves()


def check_moves(moves: Moves, num_heads: int, placed: Sequences, rows: IntArray, pp: int) -> None:
    """Refuse moves that do not belong to a batch.

    Args:
        num_heads: Query heads of a rank, of which tensor parallelism leaves it some.
        rows: Rows of every slot, shape (lanes, microbatches).

    Raises:
        InputError: A slot, rank or bucket is not there, a slot gives or takes twice in one form,
            or more moves than there is.
    """
    lanes, microbatches = rows.shape
    every: list[HeadShares | RowMove | HeadMove] = [*moves.shares, *moves.rows, *moves.heads]
    for each in every:
        if not (0 <= each.stage < pp and 0 <= each.microbatch < microbatches):
            raise _refused(each, f"the batch has {pp} stages and {microbatches} microbatches")
    _check_pairs(moves.rows, lanes)
    _check_pairs(moves.heads, lanes)
    keys = set(
        zip(
            *(
                getattr(placed, name).tolist()
                for name in ("microbatch", "first_rank", "ulysses_size", "ring_size")
            ),
            strict=True,
        )
    )
    for share in moves.shares:
        if tuple(share[1:5]) not in keys:
            raise _refused(share, "no sequence of the microbatch lies so")
        sizes = {len(counts) for counts in share.counts}
        if len(share.counts) != share.ring_size or sizes != {share.ulysses_size}:
            raise _refused(share, "counts are not one of every member")
        sums = {sum(counts) for counts in share.counts}
        if sums != {num_heads} or any(n < 0 for counts in share.counts for n in counts):
            raise _refused(share, f"the heads of a ring shard are not {num_heads}")
    seen = Counter(share[:5] for share in moves.shares)
    for key, count in seen.items():
        if count > 1:
            raise _refused(key, "the bucket is named twice")
    for move in moves.rows:
        held = int(rows[move.giver, move.microbatch])
        if not 0 < move.rows <= held or move.rows % BLOCK_ROWS:
            raise _refused(move, f"rows are not a multiple of {BLOCK_ROWS} from 1 to {held}")
    for pair in moves.heads:
        if not 0 < pair.heads <= num_heads:
            raise _refused(pair, f"heads are not from 1 to {num_heads}")
        if (pair.microbatch, pair.giver, 1, 1) not in keys:
            raise _refused(pair, "the giver has no unsplit sequence there")


def _check_pairs(moves: Iterable[RowMove | HeadMove], lanes: int) -> None:
    """A rank gives or takes at most once in a slot."""
    busy: set[tuple[int, int, int]] = set()
    for move in moves:
        ranks = {move.giver, move.taker}
        if len(ranks) < 2 or not all(0 <= rank < lanes for rank in ranks):
            raise _refused(move, f"giver and taker are not two of lanes 0..{lanes - 1}")
        for rank in ranks:
            if (move.stage, move.microbatch, rank) in busy:
                raise _refused(move, f"lane {rank} gives or takes twice in this slot")
            busy.add((move.stage, move.microbatch, rank))


def _refused(move: tuple[Any, ...], why: str) -> InputError:
    return InputError(f"{move}: {why}", "make the decision again for this batch")


def moves_of(found: Any) -> Moves:
    """Moves from what `to_json` gave, read back from a file; `check_moves` ties them to a batch.

    Raises:
        InputError: It is of another form.
    """
    if not isinstance(found, dict) or set(found) != set(Moves._fields):
        raise InputError(f"moves are not an object of {', '.join(Moves._fields)}")
    made: dict[str, tuple[Any, ...]] = {}
    for name, form in (("shares", HeadShares), ("rows", RowMove), ("heads", HeadMove)):
        entries = found[name]
        if not isinstance(entries, list):
            raise InputError(f"moves: {name} is no list")
        made[name] = tuple(_one(form, entry) for entry in entries)
    return Moves(**made)


def _one(form: Any, entry: Any) -> Any:
    fields = form._fields
    if not isinstance(entry, list) or len(entry) != len(fields):
        raise InputError(f"moves: {entry!r:.60} has not the fields {', '.join(fields)}")
    values = list(entry)
    if form is HeadShares:
        counts = values.pop()
        if not isinstance(counts, list) or not all(isinstance(c, list) for c in counts):
            raise InputError(f"moves: counts {counts!r:.60} are no lists")
        flat = [n for shard in counts for n in shard]
    else:
        flat, counts = [], None
    for value in (*values, *flat):
        if type(value) is not int or not 0 <= value < 2**31:
            raise InputError(f"moves: {value!r:.60} is no whole number from 0 on")
    return form(*values, *(() if counts is None else (tuple(map(tuple, counts)),)))


def head_splits(
    shares: Iterable[HeadShares], model: ModelShape, stage: int
) -> dict[int, dict[tuple[int, int, int], HeadSplit]]:
    """Splits of a stage's uneven buckets: by microbatch, then (first rank, ulysses, ring size)."""
    splits: dict[int, dict[tuple[int, int, int], HeadSplit]] = {}
    for share in shares:
        if share.stage == stage:
            split = share.split(model.num_heads, model.num_kv_heads)
            splits.setdefault(share.microbatch, {})[share[2:5]] = split
    return splits


def busy_rows(moves: Moves, rows: IntArray, stage: int) -> IntArray:
    """Rows whose MLP every slot of a stage works on, shape (lanes, microbatches)."""
    worked = rows.copy()
    for move in moves.rows:
        if move.stage == stage:
            worked[move.giver, move.microbatch] -= move.rows
            worked[move.taker, move.microbatch] += move.rows
    return np.asarray(worked)
