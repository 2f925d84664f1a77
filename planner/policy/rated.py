"""A batch on devices of known speed: what moves are decided and scored on.

Source: ours.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from hydraplan.cost import CostModel
from hydraplan.model import FloatArray, Sequences
from hydraplan.planner.policy.layer_parts import LayerParts, layer_parts
from hydraplan.slots import SlotTimes, slot_times


@dataclass(frozen=True, slots=True, eq=False)
class Rated:
    """A batch of a plan, and its devices.

    `slots`, `parts`: as planned. `factor`: times as long as planned that each rank takes for
    anything, (stages, lanes); `slow`: the same over a nominal rank of the cost model, of which
    the plan may know some.
    """

    cost: CostModel
    placed: Sequences
    slots: SlotTimes
    parts: LayerParts
    factor: FloatArray
    slow: FloatArray


class Pair(NamedTuple):
    """What one lane gives another in a slot: rows of the MLP, heads of whole sequences, or both."""

    stage: int
    microbatch: int
    giver: int
    taker: int
    rows: int = 0
    heads: int = 0


def rated(cost: CostModel, placed: Sequences, num_microbatches: int, factor: FloatArray) -> Rated:
    """A batch, and how many times as long as planned each rank takes, (stages, lanes)."""
    slots = slot_times(cost, placed, num_microbatches)
    parts = layer_parts(cost, placed, num_microbatches)
    return Rated(cost, placed, slots, parts, factor, factor * cost.slow)


def with_factors(slots: SlotTimes, factor: FloatArray) -> SlotTimes:
    """The slots on devices that take so many times as long, (stages, lanes)."""
    return replace(slots, op_s=slots.op_s * factor[:, None, :, None])
