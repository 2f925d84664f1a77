"""Process groups of a run: one world, one pool a stage, and the inner groups a plan names.

World rank = stage x ranks + lane. Every group is created once, before the first step, in one
sorted order on all ranks, since creation is collective, and used once in that order, since a
communicator may be built at its first use. Nothing is created or destroyed between steps. The
outer ring needs no group, it sends in the world group with tags, and so do inner groups beyond
the most that were asked for.

Where messages between stages have no tags, the stages of a lane share two more groups, one a
way, so that a receive of one way never holds up a send of the other.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from hydraplan.executor.message_header import WAYS
from hydraplan.executor.settings import DeviceName
from hydraplan.model import Sequences


@dataclass(frozen=True, slots=True)
class World:
    """Place of this process: `ranks` lanes on each of `pp` stages; what all compute on."""

    rank: int
    pp: int
    ranks: int
    device: DeviceName = "cpu"

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
    """Groups of this process's own stage, as the kernels ask for them.

    `ways`: communicators between the stages of this lane, by way; none where messages have tags.
    `batched_hops`: one call posts both messages of a ring hop. `is_ordered`: messages have no tags.
    """

    world: World
    by_range: dict[tuple[int, int], dist.ProcessGroup]
    ways: dict[str, dist.ProcessGroup] = field(default_factory=dict)
    batched_hops: bool = True
    is_ordered: bool = False

    def inner(self, first_lane: int, size: int) -> dist.ProcessGroup | None:
        """Group of `size` consecutive lanes of this stage, None if it was not created."""
        return self.by_range.get((first_lane, size))

    def world_rank(self, lane: int) -> int:
        """World rank of a lane of this stage."""
        return self.world.stage * self.world.ranks + lane

    @property
    def pool(self) -> dist.ProcessGroup:
        """All lanes of this stage."""
        return self.by_range[0, self.world.ranks]


def inner_ranges(
    batches: Iterable[Sequences], max_groups: int | None = None
) -> set[tuple[int, int]]:
    """(first lane, size) of every inner Ulysses group that some placed batch uses.

    Of more than `max_groups`, those that serve most sequences, lower lanes first.
    """
    used: Counter[tuple[int, int]] = Counter()
    for placed in batches:
        wide = placed.take(np.flatnonzero(placed.ulysses_size > 1))
        for first, size, rings in zip(
            wide.first_rank.tolist(),
            wide.ulysses_size.tolist(),
            wide.ring_size.tolist(),
            strict=True,
        ):
            used.update((first + ring * size, size) for ring in range(rings))
    ranked = sorted(used, key=lambda group: (-used[group], group))
    return set(ranked[:max_groups])


def create_groups(
    world: World,
    ranges: set[tuple[int, int]],
    timeout_s: float,
    *,
    ordered: bool = False,
    batched_hops: bool = True,
) -> Groups:
    """Create the pools and inner groups of all stages; collective over the world.

    `ordered`: messages between stages have no tags, so each way has a group of its own.
    """

    def create(ranks: range) -> dist.ProcessGroup:
        group: dist.ProcessGroup = dist.new_group(list(ranks), timeout=timedelta(seconds=timeout_s))
        return group

    mine, ways = {}, {}
    for stage in range(world.pp):
        for first, size in sorted(ranges | {(0, world.ranks)}):
            start = stage * world.ranks + first
            group = create(range(start, start + size))
            if stage == world.stage and first <= world.lane < first + size:
                mine[first, size] = group
    if ordered and world.pp > 1:
        for lane in range(world.ranks):
            for way in WAYS:
                group = create(range(lane, world.pp * world.ranks, world.ranks))
                if lane == world.lane:
                    ways[way] = group
    return Groups(world, mine, ways, batched_hops, ordered)


def warm_up(groups: Groups, device: torch.device) -> None:
    """Use the world group and then every group of this process once, in one sorted order.

    All members of a group come to it in turn, and the lowest unfinished one has all of them, so
    no communicator is built while some of its members build another.
    """
    inner = [groups.by_range[key] for key in sorted(groups.by_range)]
    ways = [groups.ways[way] for way in sorted(groups.ways)]
    for group in (None, *inner, *ways):
        dist.all_reduce(torch.zeros(1, device=device), group=group)
