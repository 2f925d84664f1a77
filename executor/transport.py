"""Activations and gradients between the stages of one lane: non-blocking, tagged or in order.

Messages go in the order of the lowered list. Shapes come from the plan (rows of the slot
x hidden_size), so no shape ever travels, and none travels of a slot without rows.

* Tagged (gloo): a receive is posted `RECEIVES_AHEAD` places before its own in the list, which
  tags make safe, so that data can come while a stage works.
* In order (NCCL, which knows no tags): what is issued is the lowered list itself, which is free of
  deadlock on ordered transports too; forward and backward messages have a communicator each.

A send is a rendezvous on gloo and never says by itself that it is over, so its tensor is kept
until `SENDS_AHEAD` later ones are posted, or to the end of the batch, and then waited for. That
is never worse than to send blocking, and lowered lists are free of deadlock even then.

Where messages are checked, a header goes before each one (`message_header`); it is waited for at
the place of the receive in the list, and none is posted ahead.
"""

import re
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from hydraplan.errors import RunFailed, first_line
from hydraplan.executor.groups import World
from hydraplan.executor.message_header import difference, header
from hydraplan.planner.pipeline.lowering import Message

FIRST_TAG = 2**20
"""Tags below belong to the ring attention of the kernels."""

RECEIVES_AHEAD = 4
"""Receives posted before their turn, by tag. Any number is safe; more cost memory."""

SENDS_AHEAD = 4
"""Sends that may be on their way when the list goes on. Any number is safe; more cost memory,
fewer make a stage wait for one that lags behind."""

NAMES = {"forward": "activation", "backward": "gradient"}


@dataclass(slots=True)
class Transport:
    """Messages of one batch on one process.

    `rows[microbatch]` of this lane and `hidden_size` give each shape; `receives` are those of
    the lowered list of this lane, in its order. `ways`: communicators where messages go in order,
    none where they have tags. `plan_digest`: of the plan, where messages are checked.
    `sent_bytes` and `waited_s` grow: bytes of messages, headers left out; seconds in which the
    worker did nothing but wait for one.
    """

    world: World
    rows: list[int]
    num_chunks: int
    hidden_size: int
    dtype: torch.dtype
    receives: Iterator[Message]
    device: torch.device
    ways: Mapping[str, dist.ProcessGroup] = field(default_factory=dict)
    plan_digest: str | None = None
    sent_bytes: int = 0
    waited_s: float = 0.0
    _posted: dict[Message, tuple[Tensor, dist.Work]] = field(default_factory=dict)
    _sent: deque[tuple[Message, Tensor, dist.Work]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        if not self.ways and self.plan_digest is None:
            for _ in range(RECEIVES_AHEAD):
                self.post()

    def post(self) -> None:
        """Make room for the next message; to be called at every receive of the list.

        Raises:
            RunFailed: The peer did not come in time, or brings another message than this one.
        """
        message = next(self.receives, None)
        if message is None:
            return
        if self.plan_digest is not None:
            self._check(message, self.plan_digest)
        with self._named(message, "from", message.from_stage) as peer:
            buffer = self._empty(message)
            self._posted[message] = buffer, self._start("receive", buffer, peer, message)

    def receive(self, message: Message) -> Tensor:
        """Wait for a posted message, shape (rows, hidden_size); empty if the slot has no rows."""
        if not self.rows[message.microbatch]:
            return self._empty(message)
        buffer, work = self._posted.pop(message)
        with self._named(message, "from", message.from_stage):
            self._wait(work)
        return buffer

    def send(self, message: Message, tensor_TC: Tensor) -> None:
        """Post one message, shape (rows, hidden_size)."""
        rows = self.rows[message.microbatch]
        assert tensor_TC.shape == (rows, self.hidden_size), (message, tensor_TC.shape)
        parts = [tensor_TC.contiguous()]
        if self.plan_digest is not None:
            about = header(message, rows, self.hidden_size, tensor_TC.dtype, self.plan_digest)
            parts.insert(0, about.to(self.device))
        with self._named(message, "to", message.to_stage) as peer:
            for part in parts:
                is_header = part is not parts[-1]
                work = self._start("send", part, peer, message, is_header=is_header)
                self._sent.append((message, part, work))
        self.sent_bytes += parts[-1].nbytes
        self._let_go(SENDS_AHEAD * len(parts))

    def finish(self) -> None:
        """Wait until every send of the batch has been received."""
        assert not self._posted, list(self._posted)
        self._let_go(0)

    def _check(self, message: Message, plan_digest: str) -> None:
        """Receive the header of a message and refuse any other than the one waited for."""
        wanted = header(
            message, self.rows[message.microbatch], self.hidden_size, self.dtype, plan_digest
        )
        found = torch.empty_like(wanted, device=self.device)
        with self._named(message, "from", message.from_stage) as peer:
            self._wait(self._start("receive", found, peer, message, is_header=True))
        wrong = difference(found, wanted)
        if wrong:
            raise RunFailed(
                f"{self._words(message, 'from', peer)}: {wrong}",
                "start every worker with the same plan, options and version",
            )

    def _start(
        self, kind: str, tensor: Tensor, peer: int, message: Message, *, is_header: bool = False
    ) -> dist.Work:
        """Post one tensor to or from a peer: by tag, or next in order on the way's communicator."""
        issue = dist.isend if kind == "send" else dist.irecv
        if self.ways:
            work = issue(tensor, peer, group=self.ways[message.way])
        else:
            work = issue(tensor, peer, tag=self._tag(message, is_header))
        assert work is not None
        return work

    def _wait(self, work: dist.Work) -> None:
        began_s = time.perf_counter()
        work.wait()
        self.waited_s += time.perf_counter() - began_s

    def _let_go(self, most: int) -> None:
        """Wait for the oldest sends until at most so many are on their way."""
        while len(self._sent) > most:
            message, _, work = self._sent.popleft()
            with self._named(message, "to", message.to_stage):
                self._wait(work)

    @contextmanager
    def _named(self, message: Message, preposition: str, stage: int) -> Iterator[int]:
        """World rank of this lane on another stage; says what failed on the way there."""
        peer = stage * self.world.ranks + self.world.lane
        try:
            yield peer
        except RuntimeError as error:
            words = self._words(message, preposition, peer)
            raise RunFailed(f"{words}: {reason(error)}") from error

    def _words(self, message: Message, preposition: str, peer: int) -> str:
        where = f" for chunk {message.to_chunk}" if self.num_chunks > 1 else ""
        what = f"{NAMES[message.way]} of microbatch {message.microbatch}{where}"
        return f"{what} {preposition} {self.world.describe(peer)}"

    def _empty(self, message: Message) -> Tensor:
        shape = self.rows[message.microbatch], self.hidden_size
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def _tag(self, message: Message, is_header: bool) -> int:
        """A number nothing else between the two stages has."""
        slot = message.microbatch * self.num_chunks + message.to_chunk
        return FIRST_TAG + 4 * slot + 2 * (message.way == "backward") + is_header


def reason(error: Exception) -> str:
    """First line of what went wrong, without gloo's file names and guesses."""
    return re.sub(r"\[\S+:\d+\] ", "", first_line(error).partition(". This is typically")[0])[:240]
