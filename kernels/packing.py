"""Index maps of one lane in one microbatch: which rows, in which order, meet which keys.

The sequences of a microbatch that share (first_rank, ulysses_size, ring_size) form a bucket:
their rows are exchanged together and go through the kernel in one packed call a ring step.
Buckets run one after the other, ordered by their first sequence in the global order of the
microbatch. Which sequences form a bucket, and the order of buckets, does not depend on the
lane, so blocking collectives cannot wait in a circle whatever groups overlap.

Inside a bucket three row orders occur:

* local: this lane's rows, a sequence after the other, positions ascending;
* peer-major: what the inner all-to-all delivers, a peer after the other;
* shard: rows of the whole ring shard, a sequence after the other, positions ascending, so
  the front chunk of each sequence lies before its back chunk.

Pure numpy; knows nothing of torch. Attends to no padding: there is none.

Source: the three cases of a zigzag ring step are standard in the field; keeping front and
back lists of each ring index, since unpadded halves differ in size, and leaving out segments
that have no query or no key are our choice.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hydraplan.errors import InputError
from hydraplan.heads import HeadSplit
from hydraplan.layout import chunk_bounds, inner_bounds, rank_positions
from hydraplan.model import IntArray, Sequences

BucketKey = tuple[int, int, int]
"""first_rank, ulysses_size and ring_size of a bucket."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class RowMap:
    """Some rows of a packed tensor by number, ascending, or all of them in another order."""

    index: IntArray

    @property
    def run(self) -> slice | None:
        """The slice that ascending rows are, if they are one."""
        if len(self.index) == 0:
            return slice(0, 0)
        first, last = int(self.index[0]), int(self.index[-1])
        return slice(first, last + 1) if last - first + 1 == len(self.index) else None


@dataclass(frozen=True, slots=True, eq=False)
class RingStep:
    """Which queries of the own shard meet which keys of the shard at hand.

    `shard_rows`: rows of the keys at hand. `q_rows`, `k_rows`: chosen rows of the two shards,
    None for all. `cu_q`, `cu_k`: borders of the packed segments, each with at least one query
    and one key. `causal` holds for the own shard only, whose segments are square.
    """

    shard_rows: int
    q_rows: RowMap | None
    k_rows: RowMap | None
    cu_q: tuple[int, ...]
    cu_k: tuple[int, ...]
    causal: bool


@dataclass(frozen=True, slots=True, eq=False)
class Bucket:
    """Sequences of one microbatch that live on the same lanes in the same way.

    `order` is the place of the first one in the microbatch, the same on every lane.
    `rows`: this lane's rows of the bucket in the local packed tensor, ascending.
    `peer_rows`: rows each inner peer brings. `to_peers`: shard row of each peer-major row,
    `to_shard` its inverse; None where both orders are the same. `heads`: who computes which
    heads, None for an even split.
    """

    first_rank: int
    ulysses_size: int
    ring_size: int
    member: int
    order: int
    sequence_id: tuple[int, ...]
    rows: RowMap
    peer_rows: tuple[int, ...]
    to_peers: RowMap | None
    to_shard: RowMap | None
    steps: tuple[RingStep, ...]
    heads: HeadSplit | None = None

    @property
    def degree(self) -> int:
        """Lanes of the group."""
        return self.ulysses_size * self.ring_size

    @property
    def inner(self) -> int:
        """Place of this lane in its Ulysses group."""
        return self.member % self.ulysses_size

    @property
    def ring(self) -> int:
        """Place of this lane in its ring."""
        return self.member // self.ulysses_size


@dataclass(frozen=True, slots=True, eq=False)
class RankLayout:
    """Everything one lane holds of one microbatch.

    `rows` counts its rows, zero is legal. `positions`, `sequence`: true position inside its
    sequence and sequence_id of every row, shape (rows,).
    """

    buckets: tuple[Bucket, ...]
    rows: int
    positions: IntArray
    sequence: IntArray


def rank_layout(
    placed: Sequences,
    microbatch: int,
    lane: int,
    head_splits: Mapping[BucketKey, HeadSplit] | None = None,
) -> RankLayout:
    """Layout of `lane` in `microbatch`; `placed` holds only rows on ranks, in execution order.

    A member that holds no row of any sequence of a bucket still has that bucket, since it
    takes part in its collectives. `head_splits` of buckets whose heads are not divided evenly
    must be the same on all lanes.

    Raises:
        InputError: A head split is for another group size or ring than its bucket's.
    """
    first, degree = placed.first_rank, placed.degree
    here = (placed.microbatch == microbatch) & (first <= lane) & (lane < first + degree)
    mine = placed.take(np.flatnonzero(here))
    keys = np.stack([mine.first_rank, mine.ulysses_size, mine.ring_size], axis=1)
    held = [
        rank_positions(int(length), int(u), int(r), lane - int(base))
        for length, (base, u, r) in zip(mine.length_tokens, keys, strict=True)
    ]
    counts = np.array([len(positions) for positions in held], np.int64)
    starts = np.cumsum(counts) - counts
    splits = head_splits or {}
    members: dict[BucketKey, list[int]] = {}
    for i, (base, u, r) in enumerate(keys.tolist()):
        members.setdefault((base, u, r), []).append(i)
    return RankLayout(
        buckets=tuple(
            _bucket(mine, np.array(group, np.int64), starts, counts, lane, splits.get(key))
            for key, group in members.items()
        ),
        rows=int(counts.sum()),
        positions=np.concatenate([np.zeros(0, np.int64), *held]),
        sequence=np.repeat(mine.sequence_id, counts),
    )


def _bucket(
    mine: Sequences,
    group: IntArray,
    starts: IntArray,
    counts: IntArray,
    lane: int,
    heads: HeadSplit | None,
) -> Bucket:
    """The bucket of the sequences `group` of this lane, whose local rows start at `starts`."""
    lead = group[0]
    base, u, r = (int(a[lead]) for a in (mine.first_rank, mine.ulysses_size, mine.ring_size))
    if heads is not None and (heads.ulysses_size, heads.ring_size) != (u, r):
        raise InputError(
            f"head split for {heads.ulysses_size} x {heads.ring_size} members is given to the"
            f" bucket of {u} x {r} from lane {base} on"
        )
    member = lane - base
    chunks = np.diff([chunk_bounds(int(n), r) for n in mine.length_tokens[group]], axis=1)
    front, back = chunks[:, :r].T, chunks[:, : r - 1 : -1].T
    shard = front[member // u] + back[member // u]
    peer = np.concatenate(
        [np.repeat(np.arange(u), np.diff(inner_bounds(int(n), u))) for n in shard]
    )
    to_peers = np.argsort(peer, kind="stable")
    moved = bool((np.diff(peer) < 0).any())
    return Bucket(
        first_rank=base,
        ulysses_size=u,
        ring_size=r,
        member=member,
        order=int(mine.order[lead]),
        sequence_id=tuple(mine.sequence_id[group].tolist()),
        rows=RowMap(_ranges(starts[group], counts[group])),
        peer_rows=tuple(np.bincount(peer, minlength=u).tolist()),
        to_peers=RowMap(to_peers) if moved else None,
        to_shard=RowMap(np.argsort(to_peers)) if moved else None,
        steps=tuple(_ring_step(front, back, member // u, hop) for hop in range(r)),
        heads=heads,
    )


def _ring_step(front: IntArray, back: IntArray, ring: int, hop: int) -> RingStep:
    """What ring index `ring` does with keys that came `hop` hops; chunks (ring_size, sequences).

    Keys of a lower ring index lie, with their front chunk, before all own queries, and with
    their back chunk after them; all keys of a higher one lie between the own chunks.
    """
    source = (ring - hop) % len(front)
    own, held = front[ring] + back[ring], front[source] + back[source]
    q_start, k_start = np.cumsum(own) - own, np.cumsum(held) - held
    q_count, k_count = own, held
    if source < ring:
        k_count = front[source]
    elif source > ring:
        q_start, q_count = q_start + front[ring], back[ring]
    met = (q_count > 0) & (k_count > 0)
    q_rows = _ranges(q_start[met], q_count[met])
    k_rows = _ranges(k_start[met], k_count[met])
    return RingStep(
        shard_rows=int(held.sum()),
        q_rows=None if len(q_rows) == own.sum() else RowMap(q_rows),
        k_rows=None if len(k_rows) == held.sum() else RowMap(k_rows),
        cu_q=(0, *np.cumsum(q_count[met]).tolist()),
        cu_k=(0, *np.cumsum(k_count[met]).tolist()),
        causal=hop == 0,
    )


def _ranges(starts: IntArray, counts: IntArray) -> IntArray:
    """All of start .. start + count, one range after the other."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - counts), counts) + np.arange(total, dtype=np.int64)
