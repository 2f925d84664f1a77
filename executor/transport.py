"""Activations and gradients between the stages of one lane: non-blocking, tagged or in order.

Messages go in the order of the lowered list. Shapes come from the plan (rows of the slot
x hidden_size), so no shape ever travels, and none travels of a slot without rows. A receive is
posted `RECEIVES_AHEAD` places before its own in the list, which tags make safe, so that data can
come while a stage works. On a GPU tags mean nothing (NCCL) and none is posted ahead: what is issued
is then the lowered list itself, which is free of deadlock on ordered transports too.

A send is a rendezvous on gloo and never says by itself that it is over, so its tensor is kept
until `SENDS_AHEAD` later ones are posted, or to the end of the batch, and then waited for. That
is never worse than to send blocking, and lowered lists are free of deadlock even then.
"""

import re
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from hydraplan.errors import RunFailed
from hydraplan.executor.groups import World
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
    the lowered list of this lane, in its order. On a CPU messages are told apart by their tags.
    """

    world: World
    rows: list[int]
    num_chunks: int
    hidden_size: int
    dtype: torch.dtype
    receives: Iterator[Message]
    device: torch.device
    _posted: dict[Message, tuple[Tensor, dist.Work]] = field(default_factory=dict)
    _sent: deque[tuple[Message, Tensor, dist.Work]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        if self.device.type == "cpu":
            for _ in range(RECEIVES_AHEAD):
                self.post()

    def post(self) -> None:
        """Make room for the next message; to be called at every receive of the list."""
        message = next(self.receives, None)
        if message is not None:
            with self._named(message, "from", message.from_stage) as peer:
                buffer = self._empty(message)
                work = dist.irecv(buffer, peer, tag=self._tag(message))
            assert work is not None
            self._posted[message] = buffer, work

    def receive(self, message: Message) -> Tensor:
        """Wait for a posted message, shape (rows, hidden_size); empty if the slot has no rows."""
        if not self.rows[message.microbatch]:
            return self._empty(message)
        buffer, work = self._posted.pop(message)
        with self._named(message, "from", message.from_stage):
            work.wait()
        return buffer

    def send(self, message: Message, tensor_TC: Tensor) -> None:
        """Post one message, shape (rows, hidden_size)."""
        shape = self.rows[message.microbatch], self.hidden_size
        assert tensor_TC.shape == shape, (message, tensor_TC.shape)
        tensor_TC = tensor_TC.contiguous()
        with self._named(message, "to", message.to_stage) as peer:
            work = dist.isend(tensor_TC, peer, tag=self._tag(message))
        assert work is not None
        self._sent.append((message, tensor_TC, work))
        self._let_go(SENDS_AHEAD)

    def finish(self) -> None:
        """Wait until every send of the batch has been received."""
        assert not self._posted, list(self._posted)
        self._let_go(0)

    def _let_go(self, most: int) -> None:
        """Wait for the oldest sends until at most so many are on their way."""
        while len(self._sent) > most:
            message, _, work = self._sent.popleft()
            with self._named(message, "to", message.to_stage):
                work.wait()

    @contextmanager
    def _named(self, message: Message, preposition: str, stage: int) -> Iterator[int]:
        """World rank of this lane on another stage; says what failed on the way there."""
        peer = stage * self.world.ranks + self.world.lane
        try:
            yield peer
        except RuntimeError as error:
            where = f" for chunk {message.to_chunk}" if self.num_chunks > 1 else ""
            what = f"{NAMES[message.way]} of microbatch {message.microbatch}{where}"
            named = f"{what} {preposition} {self.world.describe(peer)}"
            raise RunFailed(f"{named}: {reason(error)}") from error

    def _empty(self, message: Message) -> Tensor:
        shape = self.rows[message.microbatch], self.hidden_size
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def _tag(self, message: Message) -> int:
        """A number no other message between the two stages has."""
        slot = message.microbatch * self.num_chunks + message.to_chunk
        return FIRST_TAG + 2 * slot + (message.way == "backward")


def reason(error: Exception) -> str:
    """First line of what went wrong, without gloo's file names and guesses."""
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    return re.sub(r"\[\S+:\d+\] ", "", lines[0].partition(". This is typically")[0])[:240]
