"""What a stage may hold while it orders its ops: the limit every planned order keeps to."""

from dataclasses import dataclass

import numpy as np

from hydraplan.errors import Infeasible
from hydraplan.model import FloatArray, Op, OpKind, Schedule

HALF = 0.5
"""What B frees where no model says (`hydraplan.activations`): as published simulations assume."""

ROUNDING = 1e-9
"""Share of the limit by which sums of shares may round."""


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """Activations of the slots and what of them a stage may hold at once, in one unit.

    `live`: what each microbatch's slot holds between forward and backward, all chunks of a stage
    together, shape (microbatches,): rows of the fullest lane, or 1.0 each. `frees`: share of it
    that B frees; W frees the rest, BW all.
    """

    limit: float
    live: FloatArray
    frees: float = HALF

    def fits(self, held: float) -> bool:
        """Whether a stage may hold so much."""
        return held <= self.limit * (1 + ROUNDING)

    def check(self) -> None:
        """Raise Infeasible if some microbatch alone is beyond the limit."""
        m = int(self.live.argmax())
        if not self.fits(float(self.live[m])):
            raise Infeasible(
                f"microbatch {m} alone holds activations of {self.live[m]:.9g}, a stage may hold"
                f" {self.limit:.9g}",
                "allow a stage to hold more",
            )

    def whole(self) -> int:
        """How many microbatches fit one after the other, from the first, none of them freed."""
        return int(np.searchsorted(np.cumsum(self.live), self.limit * (1 + ROUNDING), "right"))

    def change(self, op: Op, num_chunks: int) -> float:
        """What an op adds to the activations of its stage; negative where it frees some."""
        return self.share(op.kind) * float(self.live[op.microbatch]) / num_chunks

    def share(self, kind: OpKind) -> float:
        """What an op of that kind adds, over what its slot holds in its chunk."""
        return {"F": 1.0, "B": -self.frees, "W": self.frees - 1.0, "BW": -1.0}[kind]

    def peak(self, ops: tuple[Op, ...], num_chunks: int) -> float:
        """Most activations a stage holds that runs these ops."""
        shares = {kind: self.share(kind) for kind in {op.kind for op in ops}}
        added = np.array([shares[op.kind] for op in ops], float)
        held = np.cumsum(
            added * self.live[np.array([op.microbatch for op in ops], np.int64)] / num_chunks
        )
        return float(held.max(initial=0.0))

    def most(self, schedule: Schedule, num_chunks: int) -> float:
        """Most activations that any stage of a schedule holds."""
        return max(self.peak(ops, num_chunks) for ops in schedule)


def even_memory(limit: float, num_microbatches: int, frees: float = HALF) -> Memory:
    """A limit of so many whole microbatches, all alike."""
    return Memory(limit, np.ones(num_microbatches), frees)
