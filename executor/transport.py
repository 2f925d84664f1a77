"""Activations and gradients between the stages of one lane: tagged and non-blocking.

Shapes come from the plan (rows of the slot x hidden_size), so no shape ever travels. Both
sides know when a slot has no rows, and then nothing is sent. Receives are posted a fixed
window ahead in the order they will be consumed; a send is a rendezvous on gloo, so it is
posted, its tensor kept alive, and waited for at the end of the batch.
"""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from hydraplan.errors import RunFailed
from hydraplan.executor.groups import World
from hydraplan.model import Op

FIRST_TAG = 2**20
"""Tags below belong to the ring attention of the kernels."""

RECEIVE_WINDOW = 4
"""Receives posted ahead of their use. Any value is safe; more costs memory."""

Kind = Literal["activation", "gradient"]
_TAG_OFFSET: dict[Kind, int] = {"activation": 0, "gradient": 1}


@dataclass(slots=True)
class Transport:
    """Messages of one batch on one process.

    `rows[microbatch]` of this lane and `hidden_size` give each shape; `ops` is the op order
    of this stage, which fixes the order of receives.
    """

    world: World
    ops: tuple[Op, ...]
    rows: list[int]
    hidden_size: int
    dtype: torch.dtype
    _waiting: Iterator[tuple[Kind, int]] = field(init=False)
    _posted: deque[tuple[Kind, int, Tensor, dist.Work]] = field(init=False)
    _sent: list[tuple[Kind, int, Tensor, dist.Work]] = field(init=False)

    def __post_init__(self) -> None:
        self._waiting = iter(self._receive_order())
        self._posted = deque()
        self._sent = []
        for _ in range(RECEIVE_WINDOW):
            self._post()

    def receive(self, kind: Kind, microbatch: int) -> Tensor:
        """Wait for one message, shape (rows, hidden_size); empty if the slot has no rows."""
        if self.rows[microbatch] == 0:
            return torch.zeros(0, self.hidden_size, dtype=self.dtype)
        *posted, buffer, work = self._posted.popleft()
        assert posted == [kind, microbatch], (posted, kind, microbatch)
        self._wait(work, f"{kind} of microbatch {microbatch} from", self._source(kind))
        self._post()
        return buffer

    def send(self, kind: Kind, microbatch: int, tensor: Tensor) -> None:
        """Post one message to the next (activation) or previous (gradient) stage."""
        assert tensor.shape == (self.rows[microbatch], self.hidden_size), tensor.shape
        if self.rows[microbatch] == 0:
            return
        tensor = tensor.detach().contiguous()
        work = dist.isend(tensor, self._target(kind), tag=_tag(kind, microbatch))
        assert work is not None
        self._sent.append((kind, microbatch, tensor, work))

    def finish(self) -> None:
        """Wait until every send of the batch has been received."""
        assert not self._posted
        for kind, microbatch, _, work in self._sent:
            self._wait(work, f"{kind} of microbatch {microbatch} to", self._target(kind))
        self._sent.clear()

    def _wait(self, work: dist.Work, what: str, peer: int) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            raise RunFailed(f"{what} {self.world.describe(peer)}: {reason(error)}") from error

    def _receive_order(self) -> list[tuple[Kind, int]]:
        order: list[tuple[Kind, int]] = []
        for op in self.ops:
            if self.rows[op.microbatch] == 0:
                continue
            if op.kind == "F" and self.world.stage > 0:
                order.append(("activation", op.microbatch))
            elif op.kind == "BW" and self.world.stage < self.world.pp - 1:
                order.append(("gradient", op.microbatch))
        return order

    def _post(self) -> None:
        following = next(self._waiting, None)
        if following is None:
            return
        kind, microbatch = following
        buffer = torch.empty(self.rows[microbatch], self.hidden_size, dtype=self.dtype)
        work = dist.irecv(buffer, self._source(kind), tag=_tag(kind, microbatch))
        assert work is not None
        self._posted.append((kind, microbatch, buffer, work))

    def _source(self, kind: Kind) -> int:
        """World rank that messages of a kind come from."""
        return self.world.rank + self.world.ranks * (-1 if kind == "activation" else 1)

    def _target(self, kind: Kind) -> int:
        """World rank that messages of a kind go to."""
        return self.world.rank + self.world.ranks * (1 if kind == "activation" else -1)


def _tag(kind: Kind, microbatch: int) -> int:
    return FIRST_TAG + 2 * microbatch + _TAG_OFFSET[kind]


def reason(error: Exception) -> str:
    """First line of what went wrong, without gloo's file names."""
    lines = str(error).strip().splitlines()
    return re.sub(r"\[\S+:\d+\] ", "", lines[0])[:240] if lines else type(error).__name__
