"""Every exchange of the kernels passes through here: what is sent is counted, waits are timed.

Totals of this process that only grow, so whoever wants the share of an op takes the difference of
two `totals`. Bytes are those of rows that leave this lane: what an all-to-all hands to itself
stays. A wait counts less the CPU time that the thread spends in it; on a GPU the host does not wait
for an exchange, so none is seen.

Kept for the process and not for a call, since autograd calls the kernels again on its own.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch.distributed as dist
from torch import Tensor


@dataclass(slots=True)
class Exchanged:
    """Bytes that rings and all-to-alls sent to other lanes, and seconds of waiting for them."""

    ring_bytes: int = 0
    all_to_all_bytes: int = 0
    wait_s: float = 0.0


_TOTALS = Exchanged()


def totals() -> Exchanged:
    """A copy of the totals so far."""
    return replace(_TOTALS)


def all_to_all(
    received: Tensor,
    send: Tensor,
    receive_rows: Sequence[int],
    send_rows: Sequence[int],
    group: dist.ProcessGroup,
) -> None:
    """Trade rows (the first axis) with the lanes of a group; rows of each, in group order."""
    leaving = sum(send_rows) - send_rows[dist.get_rank(group)]
    _TOTALS.all_to_all_bytes += leaving * send[:1].nelement() * send.element_size()
    began_s = _waited_s()
    dist.all_to_all_single(received, send, list(receive_rows), list(send_rows), group=group)
    _TOTALS.wait_s += max(0.0, _waited_s() - began_s)


def post(
    send: Tensor, receive: Tensor, next_rank: int, previous_rank: int, tag: int
) -> list[dist.Work]:
    """Start to send to one lane of a ring and to receive from another; nothing where empty."""
    ops = []
    if send.numel():
        _TOTALS.ring_bytes += send.nbytes
        ops.append(dist.P2POp(dist.isend, send, next_rank, tag=tag))
    if receive.numel():
        ops.append(dist.P2POp(dist.irecv, receive, previous_rank, tag=tag))
    return list(dist.batch_isend_irecv(ops)) if ops else []


def wait(works: Sequence[dist.Work]) -> None:
    """Wait for what was posted."""
    began_s = _waited_s()
    for work in works:
        work.wait()
    _TOTALS.wait_s += max(0.0, _waited_s() - began_s)


def _waited_s() -> float:
    """A clock that stands still while this thread computes."""
    return time.perf_counter() - time.thread_time()
