"""Messages of moved work between two lanes of a stage, a giver and a taker.

Four kinds of each form (rows of the MLP, heads): what goes out and comes back, forward and
backward. Shapes follow from the moves, so none travels. A send is posted and kept until later
ones push it out or the batch ends; a receive is posted when its sender cannot be far and waited
for where it is needed.

No two lanes wait for each other in a circle. All lanes of a stage run the same ops in the same
order, in each the same layers, and in a layer what needs another lane in one order: buckets,
heads that moved, rows that moved; backward the other way round. Sends do not wait. So each wait
has a place in one order that all lanes run through, and for what it waits for the peer needs to
wait at earlier places only: that of all lanes which waits at the earliest place goes on. To let go
of an old send is to wait for a receive at an earlier place. A rank gives or takes once a slot and
form, so a place has one message a pair.

By tag, messages go in the world group. In order (NCCL), they go in the stage's pool and have no
tags: both ends post theirs of all forms in the order above, which is the order they match in.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from hydraplan.errors import RunFailed, first_line
from hydraplan.kernels.exchange import count_moved, waited
from hydraplan.kernels.ring import TAG_LIMIT

OUT, BACK, BACKWARD_OUT, BACKWARD_BACK = range(4)
"""What a message carries: to the taker and from it, in forward and in backward."""

NAMES = ("to the taker", "back", "gradients to the taker", "gradients back")

SENDS_AHEAD = 4
"""Sends that may be on their way; any number is safe, more cost memory."""


@dataclass(slots=True)
class Outbox:
    """What a lane has sent and the other side may not have received yet."""

    _sent: deque[tuple["Link", int, Tensor, dist.Work]] = field(default_factory=deque)

    def add(self, link: "Link", carries: int, sent: Tensor, work: dist.Work) -> None:
        """Keep a tensor until its send is over."""
        self._sent.append((link, carries, sent, work))
        self._let_go(SENDS_AHEAD)

    def finish(self) -> None:
        """Wait until everything was received.

        Raises:
            RunFailed: A peer died or did not come in time.
        """
        self._let_go(0)

    def _let_go(self, most: int) -> None:
        while len(self._sent) > most:
            link, carries, _, work = self._sent.popleft()
            with link.named(carries), waited():
                work.wait()


@dataclass(frozen=True, slots=True)
class Coming:
    """A message on its way; it has been posted, unless a header goes before it."""

    link: "Link"
    carries: int
    buffer: Tensor
    work: dist.Work | None

    def wait(self) -> Tensor:
        """What came, one flat tensor."""
        with self.link.named(self.carries), waited():
            if self.work is None:
                self.link.check(self.carries, self.buffer)
                self.link.receive(self.buffer, self.carries).wait()
            else:
                self.work.wait()
        return self.buffer


@dataclass(frozen=True, slots=True)
class Link:
    """One end of what two lanes send each other about one microbatch and form.

    `peer`: world rank, in words `peer_name`. `what` travels, in words. `pool`: the group in which
    messages go in order, None for tags in the world group; `form` (0 or 1) and `microbatch` make
    the tags. `is_checked`: a header goes before each message.
    """

    peer: int
    peer_name: str
    what: str
    form: int
    microbatch: int
    outbox: Outbox
    pool: dist.ProcessGroup | None = None
    is_checked: bool = False

    def send(self, carries: int, *parts: Tensor) -> None:
        """Post tensors as one message."""
        flat = torch.cat([part.detach().reshape(-1) for part in parts])
        messages = [self._header(carries, flat), flat] if self.is_checked else [flat]
        for message in messages:
            with self.named(carries):
                work = dist.isend(message, self.peer, self.pool, self._tag(carries, message))
            assert work is not None
            self.outbox.add(self, carries, message, work)
        count_moved(flat.nbytes)

    def expect(self, carries: int, elements: int, like: Tensor) -> Coming:
        """Post the receive of a message of so many elements, of the type of `like`."""
        buffer = like.new_empty(elements)
        work = None if self.is_checked else self.receive(buffer, carries)
        return Coming(self, carries, buffer, work)

    def receive(self, buffer: Tensor, carries: int) -> dist.Work:
        """Post one receive."""
        with self.named(carries):
            work = dist.irecv(buffer, self.peer, self.pool, self._tag(carries, buffer))
        assert work is not None
        return work

    def check(self, carries: int, buffer: Tensor) -> None:
        """Receive a header and refuse any other message than the one waited for.

        Raises:
            RunFailed: It is another one.
        """
        wanted = self._header(carries, buffer)
        found = torch.empty_like(wanted)
        self.receive(found, carries).wait()
        if not torch.equal(found, wanted):
            raise RunFailed(
                f"{self._words(carries)}: its header is {found.tolist()}, {wanted.tolist()} was"
                " waited for (form, kind, microbatch, elements, bytes an element)",
                "start every worker with the same plan, options and version",
            )

    @contextmanager
    def named(self, carries: int) -> Iterator[None]:
        """Say what was under way, and with whom, when it fails."""
        try:
            yield
        except RuntimeError as error:
            raise RunFailed(f"{self._words(carries)}: {first_line(error)}") from error

    def _words(self, carries: int) -> str:
        return f"{self.what} moved between this lane and {self.peer_name}, {NAMES[carries]}"

    def _header(self, carries: int, message: Tensor) -> Tensor:
        about = [self.form, carries, self.microbatch, message.numel(), message.element_size()]
        return torch.tensor(about, device=message.device)

    def _tag(self, carries: int, message: Tensor) -> int:
        """A number that nothing else between these two lanes has."""
        if self.pool is not None:
            return 0
        is_header = self.is_checked and message.dtype == torch.int64
        return TAG_LIMIT + ((self.microbatch * 2 + self.form) * 4 + carries) * 2 + is_header
