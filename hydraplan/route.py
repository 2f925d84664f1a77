"""The way of a microbatch through the chunks of all stages, forward; backward is the way back.

* `loop`: chunk 0 of every stage, then chunk 1 of every stage, and so on (1F1B with one chunk,
  interleaved with more).
* `v`: down the stages in chunk 0, up again in chunk 1; the first stage holds embedding and loss.
* `both`: two copies of the model, chunk 0 run from the first stage on, chunk 1 from the last, each
  by half of the microbatches (DualPipe).

Source: Megatron-LM's interleaving, ZB-V and DualPipe, as published.
"""

from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Literal

import numpy as np

from hydraplan.model import IntArray

RouteName = Literal["loop", "v", "both"]
NOWHERE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """Neighbours of each chunk; a node is `stage * chunks + chunk`, `NOWHERE` stands for none.

    `before`, `after`: nodes that forward comes from and goes to, shape (stages, chunks).
    """

    before: IntArray
    after: IntArray

    @property
    def num_chunks(self) -> int:
        """Chunks of a stage."""
        return int(self.before.shape[1])

    def nodes(self) -> list[tuple[int, int]]:
        """(stage, chunk) of every chunk in the order of the model, copy after copy."""
        found = []
        for node in np.flatnonzero(self.before == NOWHERE).tolist():
            while node != NOWHERE:
                found.append((node // self.num_chunks, node % self.num_chunks))
                node = int(self.after.flat[node])
        return found

    def ends(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """(stage, chunk) where forward begins, and where it ends."""
        first, last = np.argwhere(self.before == NOWHERE), np.argwhere(self.after == NOWHERE)
        return [(int(s), int(c)) for s, c in first], [(int(s), int(c)) for s, c in last]


@cache
def route(name: RouteName, num_stages: int, num_chunks: int) -> Route:
    """The way through so many stages; `v` and `both` have two chunks."""
    stages = range(num_stages)
    if name == "loop":
        ways = [[(s, c) for c in range(num_chunks) for s in stages]]
    elif name == "v":
        ways = [[(s, 0) for s in stages] + [(s, 1) for s in reversed(stages)]]
    else:
        ways = [[(s, 0) for s in stages], [(s, 1) for s in reversed(stages)]]
    assert name == "loop" or num_chunks == 2, (name, num_chunks)
    before = np.full((num_stages, num_chunks), NOWHERE)
    after = before.copy()
    for way in ways:
        for (s, c), (to_s, to_c) in pairwise(way):
            after[s, c] = to_s * num_chunks + to_c
            before[to_s, to_c] = s * num_chunks + c
    return Route(before, after)
