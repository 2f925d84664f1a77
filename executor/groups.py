"""Process groups of a run: one world, one pool a stage, and the inner groups a plan names.

World rank = stage x ranks + lane. Every group is created once, before the first step, in one
sorted order on all ranks, since creation is collective; the outer ring needs no group, it
sends in the world group with tags. Nothing is created or destroyed between steps.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch.distributed as dist

from hydraplan.model import Sequences


@dataclass(frozen=True, slots=True)
class World:
    """Place of this process: `ranks` lanes on each of `pp` stages."""

    rank: int
    pp: int
    ranks: int

    @property
    def stage(self) -> int:
        """Pipeline stage of this process."""
        return self.rank // self.ranks

    @property
    def lane(self) -> int:
        """Rank of this process inside its stage's pool."""
        return self.rank % self.ranks

    def describe(self, rank: int) -> str:
        """A world rank in words: what people need to find the process."""
        return f"rank {rank} (stage {rank // self.ranks}, lane {rank % self.ranks})"


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of this process's own stage, as the kernels ask for them."""

    world: World
    by_range: dict[tuple[int, int], dist.ProcessGroup]

    def inner(self, first_lane: int, size: int) -> dist.ProcessGroup:
        """Group of `size` consecutive lanes of this stage."""
        return self.by_range[first_lane, size]

    def world_rank(self, lane: int) -> int:
        """World rank of a lane of this stage."""
        return self.world.stage * self.world.ranks + lane

    @property
    def pool(self) -> dist.ProcessGroup:
        """All lanes of this stage."""
        return self.by_range[0, self.world.ranks]


def inner_ranges(batches: Iterable[Sequences]) -> set[tuple[int, int]]:
    """(first lane, size) of every inner Ulysses group that some placed batch uses."""
    ranges: set[tuple[int, int]] = set()
    for placed in batches:
        wide = placed.take(np.flatnonzero(placed.ulysses_size > 1))
        for first, size, rings in zip(
            wide.first_rank.tolist(),
            wide.ulysses_size.tolist(),
            wide.ring_size.tolist(),
            strict=True,
        ):
            ranges |= {(first + ring * size, size) for ring in range(rings)}
    return ranges


def create_groups(world: World, ranges: set[tuple[int, int]], timeout_s: float) -> Groups:
    """Create the pools and inner groups of all stages; collective over the world."""
    mine = {}
    for stage in range(world.pp):
        for first, size in sorted(ranges | {(0, world.ranks)}):
            start = stage * world.ranks + first
            group = dist.new_group(
                list(range(start, start + size)), timeout=timedelta(seconds=timeout_s)
            )
            if stage == world.stage:
                mine[first, size] = group
    return Groups(world, mine)
