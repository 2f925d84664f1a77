"""Every exchange of the kernels passes through here: what is sent is counted, waits are timed.

Totals of this process that only grow, so whoever wants the share of an op takes the difference of
two `totals`. Bytes are those of rows that leave this lane: what an all-to-all hands to itself
stays. A wait counts less the CPU time that the thread spends in it; on a GPU the host does not wait
for an exchange, so none is seen.

Kept for the process and not for a call, since autograd calls the kernels again on its own.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch.distributed as dist
from torch import Tensor


@dataclass(slots=True)
class Exchanged:
    """Bytes sent to other lanes: rings, all-to-alls, moved work; seconds of waiting for them."""

    ring_bytes: int = 0
    all_to_all_bytes: int = 0
    moved_bytes: int = 0
    wait_s: float = 0.0

    @property
    def sent_bytes(self) -> int:
        """Bytes sent to other lanes, in any way."""
        return self.ring_bytes + self.all_to_all_bytes + self.moved_bytes


_TOTALS = Exchanged()


def totals() -> Exchanged:
    """A copy of the totals so far."""
    return replace(_TOTALS)


class Peers(NamedTuple):
    """An inner group: world ranks of its members, `own` place among them, the group if it has one.

    Without a group of its own its messages go through the world group under `tag`.
    """

    ranks: tuple[int, ...]
    own: int
    group: dist.ProcessGroup | None
    tag: int


class Neighbours(NamedTuple):
    """World ranks of the next and the previous lane of a ring; how messages to them are posted.

    `order` of the bucket. `batched`: one call posts what is sent and received. Else even ring
    indices, `sends_first`, post what they send before what they receive and odd ones after it,
    so that a ring moves on even where a lane's messages wait for each other.
    """

    next_rank: int
    previous_rank: int
    order: int
    batched: bool
    sends_first: bool


def all_to_all(
    received: Tensor,
    send: Tensor,
    receive_rows: Sequence[int],
    send_rows: Sequence[int],
    peers: Peers,
) -> None:
    """Trade rows (the first axis) with the lanes of a group; rows of each, in group order."""
    leaving = sum(send_rows) - send_rows[peers.own]
    _TOTALS.all_to_all_bytes += leaving * send[:1].nelement() * send.element_size()
    rows = list(receive_rows), list(send_rows)
    with waited():
        if peers.group is not None:
            dist.all_to_all_single(received, send, *rows, group=peers.group)
        else:
            _trade(received.split(rows[0]), send.split(rows[1]), peers)


def _trade(received: Sequence[Tensor], send: Sequence[Tensor], peers: Peers) -> None:
    """An all-to-all of messages in the world group."""
    ops = []
    for i, rank in enumerate(peers.ranks):
        if i != peers.own:
            ops += _sides(send[i], received[i], rank, rank, peers.tag)
    received[peers.own].copy_(send[peers.own])
    for work in dist.batch_isend_irecv(ops) if ops else []:
        work.wait()


def post(send: Tensor, receive: Tensor, lanes: Neighbours, tag: int) -> list[dist.Work]:
    """Start to send to one lane of a ring and to receive from another; nothing where empty."""
    _TOTALS.ring_bytes += send.nbytes
    ops = _sides(send, receive, lanes.next_rank, lanes.previous_rank, tag)
    if lanes.batched:
        return list(dist.batch_isend_irecv(ops)) if ops else []
    works = (op.op(op.tensor, op.peer, tag=tag) for op in (ops if lanes.sends_first else ops[::-1]))
    return [work for work in works if work is not None]


def _sides(send: Tensor, receive: Tensor, target: int, source: int, tag: int) -> list[dist.P2POp]:
    """What is sent, then what is received, each only if there is any."""
    ops = []
    if send.numel():
        ops.append(dist.P2POp(dist.isend, send, target, tag=tag))
    if receive.numel():
        ops.append(dist.P2POp(dist.irecv, receive, source, tag=tag))
    return ops


def wait(works: Sequence[dist.Work]) -> None:
    """Wait for what was posted."""
    with waited():
        for work in works:
            work.wait()


def count_moved(sent_bytes: int) -> None:
    """Count a message of moved work."""
    _TOTALS.moved_bytes += sent_bytes


@contextmanager
def waited() -> Iterator[None]:
    """Time a wait for other lanes."""
    began_s = _waited_s()
    yield
    _TOTALS.wait_s += max(0.0, _waited_s() - began_s)


def _waited_s() -> float:
    """A clock that stands still while this thread computes."""
    return time.perf_counter() - time.thread_time()
