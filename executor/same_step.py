"""Before a step all workers prove to each other that they run the same batch in the same order.

Members of a group wait for each other in every exchange, so one that takes its buckets in another
order, or holds another batch, would make all of them wait. Each worker tells a hash of its batch,
and for every microbatch one of the exchanges it is about to run, in its order. All of them know
the plan, and so what each lane has to say; all refuse together and name who differs.

The hash of a lane is a polynomial in the hashes of its buckets, so those of all lanes come from one
walk over the buckets of the plan. Eight bytes a microbatch and worker travel, outside the clock.
"""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from hydraplan.errors import RunFailed, StalePlan
from hydraplan.executor.groups import World
from hydraplan.executor.transport import reason
from hydraplan.kernels.packing import RankLayout
from hydraplan.migration import NO_MOVES, Moves
from hydraplan.model import BatchPlan, Sequences

Hashes = NDArray[np.uint64]

BASE = np.uint64(0x9E3779B97F4A7C15)
"""Odd, so that no bucket of a long list drops out of a hash of 64 bits."""

HASHED_COLUMNS = (
    "sequence_id",
    "length_tokens",
    "valid_tokens",
    "microbatch",
    "order",
    "first_rank",
    "ulysses_size",
    "ring_size",
)
"""All that a worker needs to know of a sequence; their order is that of execution."""


def check_same_step(
    world: World, batch: BatchPlan, layouts: Sequence[RankLayout], moves: Moves = NO_MOVES
) -> None:
    """Refuse to start a step that some worker would run in another way; collective.

    `layouts` are those of this lane, one a microbatch, as it is going to run them.

    Raises:
        StalePlan: A worker holds another batch or other moves than rank 0.
        RunFailed: A worker runs exchanges in another order than the plan, or did not come in time.
    """
    held = _gathered(world, np.array([batch_hash(batch), _hash(repr(moves))], np.uint64))
    for rank, other in np.argwhere(held != held[0]).tolist():
        raise StalePlan(
            f"{world.describe(rank)} holds {('another', 'other moves for')[other]} batch"
            f" {batch.batch} than rank 0",
            "start every host with the same plan folder and the same version of hydraplan",
        )
    wanted = planned_hashes(batch.sequences.placed(), batch.num_microbatches, world.ranks)
    said = _gathered(world, lane_hashes(layouts)).reshape(world.pp, world.ranks, -1)
    for stage, lane, microbatch in np.argwhere(said != wanted).tolist():
        rank = stage * world.ranks + lane
        raise RunFailed(
            f"{world.describe(rank)} runs the exchanges of microbatch {microbatch} of batch"
            f" {batch.batch} in another order than the plan has them",
            "start every host with the same version of hydraplan",
        )


def batch_hash(batch: BatchPlan) -> int:
    """A hash of all that decides what workers do with a batch, 64 bits."""
    placed = batch.sequences.placed()
    said = hashlib.blake2b(digest_size=8)
    for name in HASHED_COLUMNS:
        said.update(np.ascontiguousarray(getattr(placed, name), np.int64).tobytes())
    ops = [(op.kind, op.microbatch, op.chunk) for stage in batch.schedule for op in stage]
    said.update(repr((batch.batch, batch.num_microbatches, len(placed), ops)).encode())
    return int.from_bytes(said.digest(), "little")


def _hash(said: str) -> int:
    return int.from_bytes(hashlib.blake2b(said.encode(), digest_size=8).digest(), "little")


def lane_hashes(layouts: Iterable[RankLayout]) -> Hashes:
    """What a lane says of the exchanges it runs, shape (microbatches,)."""
    found = []
    for layout in layouts:
        chain = np.zeros(1, np.uint64)
        for bucket in layout.buckets:
            shape = bucket.first_rank, bucket.ulysses_size, bucket.ring_size
            chain = chain * BASE + _bucket_hash(shape, bucket.sequence_id)
        found.append(chain)
    return np.concatenate(found)


def planned_hashes(placed: Sequences, num_microbatches: int, num_ranks: int) -> Hashes:
    """What every lane has to say, shape (lanes, microbatches); `placed` in execution order."""
    buckets: list[dict[tuple[int, int, int], list[int]]] = [{} for _ in range(num_microbatches)]
    columns = (placed.microbatch, placed.first_rank, placed.ulysses_size, placed.ring_size)
    for sequence_id, m, *shape in zip(
        placed.sequence_id.tolist(), *(column.tolist() for column in columns), strict=True
    ):
        first, u, r = shape
        buckets[m].setdefault((first, u, r), []).append(sequence_id)
    hashes = np.zeros((num_ranks, num_microbatches), np.uint64)
    for m, found in enumerate(buckets):
        for (first, u, r), ids in found.items():
            lanes = slice(first, first + u * r)
            hashes[lanes, m] = hashes[lanes, m] * BASE + _bucket_hash((first, u, r), ids)
    return hashes


def _bucket_hash(shape: tuple[int, int, int], sequence_ids: Sequence[int]) -> np.uint64:
    raw = np.array([*shape, *sequence_ids], np.int64).tobytes()
    return np.uint64(int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little"))


def _gathered(world: World, mine: NDArray[np.generic]) -> Hashes:
    """What every worker says, shape (workers, ...)."""
    told = torch.from_numpy(mine.astype(np.uint64).view(np.int64))
    everyone = [torch.empty_like(told) for _ in range(world.pp * world.ranks)]
    try:
        dist.all_gather(everyone, told)
    except RuntimeError as error:
        raise RunFailed(f"before the step: {reason(error)}") from error
    return torch.stack(everyone).numpy().view(np.uint64)
