"""The largest cap at which full slots fit a device, whatever their groups and their order.

A static schedule says itself what a stage holds. Where ops are planned only later, nothing is known
but the limit they keep to, so a schedule stands in for all of them that fills the limit in every
way there is (`holding`): whatever keeps to it needs no more.

Source: ours.
"""

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

import numpy as np

from hydraplan.activations import held_shares
from hydraplan.cost import CostModel
from hydraplan.errors import Infeasible
from hydraplan.host import GIB
from hydraplan.layout import legal_degrees
from hydraplan.memory import MESSAGES_AHEAD, Engine, group_row_bytes, stage_bytes
from hydraplan.memory_limit import largest_term
from hydraplan.model import FloatArray, IntArray, Op, OpKind, Schedule

ASKED_TOKENS = 4096
"""Cap at which schedules are compared. Our choice: all that grows with it is in proportion."""


MISSED = 0.03
"""Share of a device that a derived cap leaves free. Chosen: measured peaks pass predicted ones by
up to 2.4 % where B and W are apart (docs/execution.md), and allocators leave fragments."""


class Held(NamedTuple):
    """Ops of every stage, and caps that each microbatch holds, at most 1.0, (microbatches,)."""

    schedule: Schedule
    caps: FloatArray


def fullest(cost: CostModel, schedules: Sequence[Schedule]) -> Held:
    """Every microbatch holds the cap; a stage runs the ops, of several schedules, that need most.

    Which those are is asked at one cap.
    """
    chosen = list(schedules[0])
    if len(schedules) > 1:
        needed = [
            stage_bytes(cost, each, np.full((1, _count(each)), ASKED_TOKENS)).sum(axis=0)
            for each in schedules
        ]
        most = np.argmax(needed, axis=0).tolist()
        chosen = [schedules[index][stage] for stage, index in enumerate(most)]
    return Held(tuple(chosen), np.ones(_count(tuple(chosen))))


def _count(schedule: Schedule) -> int:
    return 1 + max(op.microbatch for ops in schedule for op in ops)


def holding(cost: CostModel, live_microbatches: int) -> Held:
    """Ops that hold as many caps of activations as they may, in each way to fill that limit.

    A slot counts against it by what it holds at most from F on, a chunk of a stage like any other
    (`hydraplan.planner.planned_ops.memory_of`). So the fullest ways hold one kind, beside the slot
    that B comes to: slots after F in the first k chunks, or slots of one chunk that wait for W.
    Each way begins when the one before has ended. These are no ops that could run.
    """
    shares = held_shares(cost.model, cost.recompute)
    most, chunks = max(shares), cost.route.num_chunks
    every, rest = range(chunks), live_microbatches - most
    ops: list[Op] = []
    sizes: list[float] = []

    def run(kinds: tuple[OpKind, ...], slots: range, of_chunks: range) -> None:
        ops.extend(Op(kind, m, chunk) for m in slots for chunk in of_chunks for kind in kinds)

    def slots(caps: float) -> range:
        """New microbatches that hold so many caps together."""
        first = len(sizes)
        sizes.extend(min(1.0, caps - i) for i in range(ceil(caps)))
        return range(first, len(sizes))

    def last() -> None:
        slot = slots(1.0)
        run(("F",), slot, every)
        run(("B", "W"), slot, every[::-1])

    # All gradients are there, and messages on their way, before the first way and after the last.
    run(("F", "B", "W"), slots(MESSAGES_AHEAD), every)
    for k in range(1, chunks + 1):
        held = slots(rest / most * chunks / k)
        run(("F",), held, range(k))
        last()
        run(("B", "W"), held, range(k))
    for chunk in every:
        held = slots(rest / shares.after_input * chunks)
        run(("F", "B"), held, range(chunk, chunk + 1))
        last()
        run(("W",), held, range(chunk, chunk + 1))
    run(("F", "B", "W"), slots(MESSAGES_AHEAD), every)
    return Held((tuple(ops),) * cost.pp, np.array(sizes))


def largest_cap(
    cost: CostModel,
    held: Held,
    limit_bytes: float,
    on_gpu: bool,
    engine: Engine = "hydraplan",
) -> int:
    """Most tokens of a rank in a microbatch so that slots fit, whatever their groups.

    Every row is in the group that takes most, and every slot keeps as many logits as one of fewer
    rows might.

    Args:
        held: Of so many microbatches that stages hold as many as they ever do.

    Raises:
        Infeasible: One token a rank does not fit; the stage and its largest term are named.
    """
    shapes = {
        shape for degree in legal_degrees(cost.ranks).tolist() for shape in cost.shapes(degree)
    }
    extra = np.max([group_row_bytes(cost, u, r) for u, r in shapes], axis=0)
    inner = len({u for u, _ in shapes if u > 1})
    communicators = (1 + (cost.ranks > 1) + 2 * (cost.pp > 1) + inner) if on_gpu else 0

    def needed(cap: int) -> IntArray:
        rows = np.ceil(held.caps * cap).astype(np.int64)[None]
        groups = extra[:, None, None] * rows
        return stage_bytes(cost, held.schedule, rows, engine, communicators, groups, at_most=True)

    def fits(cap: int) -> bool:
        return bool(needed(cap).sum(axis=0).max() <= limit_bytes)

    if not fits(1):
        least = needed(1)
        stage = int(least.sum(axis=0).argmax())
        raise Infeasible(
            f"one token a rank needs {least[:, stage].sum() / GIB:.2f} GiB on stage {stage}, most"
            f" of it {largest_term(least, stage)}, a device has {limit_bytes / GIB:.2f}",
            "plan with more stages (--pp) or devices of a rank (--tp)",
        )
    known, beyond = 1, 2
    while fits(beyond):
        known, beyond = beyond, 2 * beyond
    while beyond - known > 1:
        middle = (known + beyond) // 2
        known, beyond = (middle, beyond) if fits(middle) else (known, middle)
    return known
