"""A batch of a plan in a few bytes a sequence, as rank 0 sends it to workers on other machines.

Whole numbers of seven bits a byte, a column after the other. Sequences go in the order of
execution, so ids are told by their distance from the one before, and microbatches by how many they
hold. What follows from the rest (degree, rows of the fullest rank) and what workers do not ask for
(rows without a place, predictions, figures) stays behind. So 16 bytes a sequence are enough for ids
up to 2^19 apart, sequences below 2^28 tokens and pools up to 2^14 ranks; 9 or 10 are common. Ops
take three bytes each.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hydraplan.errors import RunFailed
from hydraplan.layout import rank_tokens_max
from hydraplan.model import BatchPlan, IntArray, Op, OpKind, Search, Sequences

KINDS: tuple[OpKind, ...] = ("F", "B", "W", "BW")

MAX_BYTES = 9
"""Bytes of the largest number, below 2^63."""


def encode_batch(batch: BatchPlan) -> bytes:
    """What workers need of a batch."""
    placed = batch.sequences.placed()
    ids, lengths = placed.sequence_id, placed.length_tokens
    index = np.arange(len(placed))
    ops = [op for stage in batch.schedule for op in stage]
    stages = [len(stage) for stage in batch.schedule]
    columns: list[IntArray] = [
        np.array([batch.batch, batch.num_microbatches, len(placed), len(stages), *stages]),
        np.bincount(placed.microbatch, minlength=batch.num_microbatches),
        _folded(np.diff(ids, prepend=0)),
        lengths,
        lengths - placed.valid_tokens,
        _folded(placed.order - _index_in_runs(placed.microbatch, index)),
        placed.first_rank,
        placed.ulysses_size,
        placed.ring_size,
        np.array([KINDS.index(op.kind) for op in ops]),
        np.array([op.microbatch for op in ops]),
        np.array([op.chunk for op in ops]),
    ]
    return to_bytes(np.concatenate(columns))


def decode_batch(raw: bytes) -> BatchPlan:
    """The batch as workers need it: rows on ranks only, no predictions and no figures.

    Raises:
        RunFailed: These are not the bytes of a batch.
    """
    numbers = _Numbers(from_bytes(raw))
    batch, num_microbatches, count, pp = numbers.take(4).tolist()
    stages = numbers.take(pp).tolist()
    microbatch = np.repeat(np.arange(num_microbatches), numbers.take(num_microbatches))
    ids = np.cumsum(_unfolded(numbers.take(count)))
    lengths, unlabelled = numbers.take(count), numbers.take(count)
    order = _unfolded(numbers.take(count)) + _index_in_runs(microbatch, np.arange(count))
    first, u, r = (numbers.take(count) for _ in range(3))
    kinds, of, chunks = (numbers.take(sum(stages)).tolist() for _ in range(3))
    if len(microbatch) != count or numbers.left or max(kinds, default=0) >= len(KINDS):
        raise RunFailed(_DAMAGED)
    ops = [Op(KINDS[kind], m, c) for kind, m, c in zip(kinds, of, chunks, strict=True)]
    ends = np.cumsum([0, *stages]).tolist()
    return BatchPlan(
        batch=batch,
        sequences=Sequences(
            sequence_id=ids,
            length_tokens=lengths,
            valid_tokens=lengths - unlabelled,
            microbatch=microbatch,
            order=order,
            first_rank=first,
            degree=u * r,
            ulysses_size=u,
            ring_size=r,
            rank_tokens_max=rank_tokens_max(lengths, u, r),
            predicted_s=np.zeros(count),
            status=("placed",) * count,
        ),
        num_microbatches=num_microbatches,
        schedule=tuple(tuple(ops[a:b]) for a, b in pairwise(ends)),
        strategy="",
        winner="",
        microbatch_order="",
        pipeline="",
        predicted_start_s=(),
        predicted_end_s=(),
        figures={},
        search=_NO_SEARCH,
    )


_NO_SEARCH = Search(0, 0, 0.0, 0.0, 0.0, 0, 0, 0.0, 0.0, 0.0, 0.0)
_DAMAGED = "what rank 0 sent is not a batch of a plan"


@dataclass(slots=True)
class _Numbers:
    """Numbers that are taken one column after the other."""

    values: IntArray
    taken: int = 0

    def take(self, count: int) -> IntArray:
        found = self.values[self.taken : self.taken + count]
        if len(found) != count:
            raise RunFailed(_DAMAGED)
        self.taken += count
        return found

    @property
    def left(self) -> int:
        return len(self.values) - self.taken


def to_bytes(values: IntArray) -> bytes:
    """Numbers from 0 to 2^63 - 1, seven bits a byte, lowest first; all but the last above 127."""
    assert values.min(initial=0) >= 0
    rest = values.astype(np.uint64)
    sizes = np.ones(len(rest), np.int64)
    for k in range(1, MAX_BYTES):
        sizes += rest >= np.uint64(1 << 7 * k)
    starts = np.cumsum(sizes) - sizes
    out = np.zeros(int(sizes.sum()), np.uint8)
    for k in range(MAX_BYTES):
        long = np.flatnonzero(sizes > k)
        low = (rest[long] >> np.uint64(7 * k)) & np.uint64(127)
        out[starts[long] + k] = low + 128 * (sizes[long] > k + 1)
    return out.tobytes()


def from_bytes(raw: bytes) -> IntArray:
    """The numbers that `to_bytes` was given.

    Raises:
        RunFailed: The last number has no end, or one is too large.
    """
    found = np.frombuffer(raw, np.uint8)
    ends = np.flatnonzero(found < 128)
    sizes = np.diff(ends, prepend=-1)
    if not len(ends) or ends[-1] != len(found) - 1 or sizes.max() > MAX_BYTES:
        raise RunFailed(_DAMAGED)
    starts = ends - sizes + 1
    place = np.arange(len(found)) - np.repeat(starts, sizes)
    parts = (found & 127).astype(np.int64) << 7 * place
    values: IntArray = np.add.reduceat(parts, starts)
    return values


def _index_in_runs(microbatch: IntArray, index: IntArray) -> IntArray:
    """Place of every sequence in its microbatch, 0, 1, ...; microbatches ascend."""
    found: IntArray = index - np.searchsorted(microbatch, microbatch)
    return found


def _folded(values: IntArray) -> IntArray:
    """0, -1, 1, -2, ... as 0, 1, 2, 3, ..."""
    result: IntArray = np.where(values < 0, -2 * values - 1, 2 * values)
    return result


def _unfolded(values: IntArray) -> IntArray:
    result: IntArray = np.where(values % 2 == 1, -(values + 1) // 2, values // 2)
    return result
