"""Messages in a world of processes: all-to-all in groups of each size, and point to point.

Inside a node aligned groups of 2, 4, 8 ... ranks exchange, all groups at once; across nodes every
rank with its peer on the next node, all at once, so that what they share (a switch, a network card)
is shared as in a step. Both sides send and receive. Bytes are those that leave a rank. Of each size
the slowest rank counts.

Rank 0 decides how often each size is repeated and tells all others, so all make the same calls, in
rounds over all sizes, so that a slow phase of the machine spoils no size.
"""

import os
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from hydraplan.files.profilefile import Measurement, Name
from hydraplan.profiler.measure import MIN_REPEATS, Run, Timed, wall_timer, wants_more, with_times

GROWTH = 4
SENT_BYTES = tuple(GROWTH**power for power in range(5, 14))
NUM_REQUIRED = 6
"""Sizes measured on any machine, up to 1 MiB: below that there is only latency to see."""

ROUNDS = 3

BATCH = 5
"""Exchanges between two questions whether to go on; asking costs a message."""


class Place(NamedTuple):
    """Where this process stands: its rank in the world, ranks of a node, its device."""

    rank: int
    size: int
    local_size: int
    device: torch.device

    @property
    def num_nodes(self) -> int:
        """Nodes of the world; every one has as many ranks."""
        return self.size // self.local_size


class Exchange(NamedTuple):
    """One kind of message: its component, ranks that meet, and what sends so many bytes.

    `make` gives None to a rank that has nobody to talk to.
    """

    component: Name
    ranks: int
    make: Callable[[int], Run | None]


def place(device: torch.device) -> Place:
    """Of this process in the world that is there; torchrun tells how many ranks a node has."""
    size = dist.get_world_size()
    return Place(dist.get_rank(), size, int(os.environ.get("LOCAL_WORLD_SIZE", size)), device)


def exchanges(here: Place) -> list[Exchange]:
    """All kinds of messages of this world; makes their groups, the same on all ranks."""
    found: list[Exchange] = []
    ranks = 2
    while ranks <= here.local_size:
        groups = [
            [first + i for i in range(ranks)]
            for node in range(here.num_nodes)
            for first in range(
                node * here.local_size,
                (node + 1) * here.local_size - ranks + 1,
                ranks,
            )
        ]
        found.append(_all_to_all("all_to_all", groups, here))
        if ranks == 2:
            found.append(_p2p("p2p", groups, here))
        ranks *= 2
    if here.num_nodes > 1:
        across = [
            [2 * pair * here.local_size + i, (2 * pair + 1) * here.local_size + i]
            for pair in range(here.num_nodes // 2)
            for i in range(here.local_size)
        ]
        found.append(_all_to_all("fabric_all_to_all", across, here))
        found.append(_p2p("fabric_p2p", across, here))
    return found


def measure_exchanges(here: Place, budget_s: float) -> list[Measurement]:
    """Time every kind over growing sizes, for about `budget_s` seconds; the same on all ranks."""
    kinds = exchanges(here)
    backend = "nccl" if here.device.type == "cuda" else "gloo"
    rows = []
    for kind in kinds:
        for sent_bytes, samples in _sizes(kind, here, budget_s / len(kinds)).items():
            row = Measurement(
                kind.component,
                "send",
                dtype="uint8",
                kernel=backend,
                bytes=float(sent_bytes),
                ranks=kind.ranks,
            )
            rows.append(_slowest(with_times(row, samples)))
    return rows


def _sizes(kind: Exchange, here: Place, budget_s: float) -> dict[int, list[Timed]]:
    """Samples of every size that there is time for."""
    began, last_s = time.perf_counter(), 0.0
    samples: dict[int, list[Timed]] = {}
    for part in range(ROUNDS):
        for index, size in enumerate(SENT_BYTES):
            left_s = (part + 1) / ROUNDS * budget_s - (time.perf_counter() - began)
            is_known = part > 0 and size in samples
            fits = part == 0 and GROWTH * last_s * (MIN_REPEATS + 1) < left_s
            if not _from_rank_0(is_known or index < NUM_REQUIRED or fits):
                break
            run = _settled(kind.make(size), here.device)
            run()
            slice_s = left_s / (len(SENT_BYTES) - index)
            new: list[Timed] = []
            while _from_rank_0(wants_more(len(new), sum(s.seconds for s in new), slice_s)):
                new += [wall_timer(run) for _ in range(BATCH)]
            samples.setdefault(size, []).extend(new)
            last_s = float(np.median([s.seconds for s in new]))
    return samples


def _settled(run: Run | None, device: torch.device) -> Run:
    """The exchange until it is through; nothing for a rank without a peer."""

    def settled() -> None:
        if run is not None:
            run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return settled


def _slowest(row: Measurement) -> Measurement:
    """The row with the times of the slowest rank."""
    times = torch.tensor([row.p10_s, row.median_s, row.p90_s], dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    p10_s, median_s, p90_s = times.tolist()
    return row._replace(p10_s=p10_s, median_s=median_s, p90_s=p90_s)


def _from_rank_0(answer: bool) -> bool:
    told = torch.tensor([answer])
    dist.broadcast(told, 0)
    return bool(told.item())


def _all_to_all(component: Name, groups: list[list[int]], here: Place) -> Exchange:
    """In groups of any size; each rank sends its buffer but for its own part."""
    ranks = len(groups[0])
    made = [dist.new_group(members) for members in groups]
    mine = next((g for g, members in zip(made, groups, strict=True) if here.rank in members), None)

    def make(sent_bytes: int) -> Run | None:
        if mine is None:
            return None
        part = -(-sent_bytes // (ranks - 1))
        sent = torch.zeros(ranks * part, dtype=torch.uint8, device=here.device)
        received = torch.empty_like(sent)
        return lambda: dist.all_to_all_single(received, sent, group=mine)

    return Exchange(component, ranks, make)


def _p2p(component: Name, pairs: list[list[int]], here: Place) -> Exchange:
    """Between two ranks, both ways at once."""
    peers = {pair[side]: pair[1 - side] for pair in pairs for side in (0, 1)}
    peer = peers.get(here.rank)

    def make(sent_bytes: int) -> Run | None:
        if peer is None:
            return None
        sent = torch.zeros(sent_bytes, dtype=torch.uint8, device=here.device)
        received = torch.empty_like(sent)

        def exchange() -> None:
            works = dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, sent, peer), dist.P2POp(dist.irecv, received, peer)]
            )
            for work in works:
                work.wait()

        return exchange

    return Exchange(component, 2, make)
