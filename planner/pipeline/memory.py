"""What a stage may hold while it orders its ops: the limit every planned order keeps to."""

from dataclasses import dataclass

import numpy as np

from hydraplan.metrics import INPUT_GRADIENT_FREES
from hydraplan.model import FloatArray, Op


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """Activations of the slots and what of them a stage may hold at once, in one unit.

    `live`: what each microbatch's slot holds between forward and backward, all chunks of a stage
    together, shape (microbatches,): rows of the fullest lane, or 1.0 each. `frees`: share of it
    that B frees; W frees the rest, BW all.
    """

    limit: float
    live: FloatArray
    frees: float = INPUT_GRADIENT_FREES

    def change(self, op: Op, num_chunks: int) -> float:
        """What an op adds to the activations of its stage; negative where it frees some."""
        share = {"F": 1.0, "B": -self.frees, "W": self.frees - 1.0, "BW": -1.0}[op.kind]
        return share * float(self.live[op.microbatch]) / num_chunks

    def peak(self, ops: tuple[Op, ...], num_chunks: int) -> float:
        """Most activations a stage holds that runs these ops."""
        held = np.cumsum([0.0, *(self.change(op, num_chunks) for op in ops)])
        return float(held.max())


def even_memory(limit: float, num_microbatches: int, frees: float = INPUT_GRADIENT_FREES) -> Memory:
    """A limit of so many whole microbatches, all alike."""
    return Memory(limit, np.ones(num_microbatches), frees)
