"""The largest cap at which full slots fit a device, whatever their groups and their order.

A static schedule says itself what a stage holds. Where ops are planned only later, nothing is known
but the limit they keep to, so a schedule stands in for all of them that fills the limit in every
way there is (`holding`): whatever keeps to it needs no more.

Source: ours.
"""

from collections.abc import Sequence
from itertools import product
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


SMALL = 0.01
"""Caps that are not worth a slot of their own."""


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
    that B or W comes to: slots after F in the first k chunks, or slots of one chunk that wait for
    W. Each way begins when the one before has ended. These are no ops that could run.
    """
    shares = held_shares(cost.model, cost.recompute)
    most, waiting, chunks = max(shares), shares.after_input, cost.route.num_chunks
    every = range(chunks)
    ops: list[Op] = []
    sizes: list[float] = []

    def run(kinds: tuple[OpKind, ...], slots: range, of_chunks: Sequence[int]) -> None:
        ops.extend(Op(kind, m, chunk) for m in slots for chunk in of_chunks for kind in kinds)

    def slots(caps: float) -> range:
        """New microbatches that hold so many caps together."""
        first = len(sizes)
        sizes.extend(min(1.0, caps - i) for i in range(ceil(caps)))
        return range(first, len(sizes))

    def wait(caps: float, of_chunks: Sequence[int]) -> range:
        """Slots that hold so many caps as they wait for W; F of each has to fit first."""
        first = len(sizes)
        while caps > SMALL:
            size = min(1.0, caps / most)
            run(("F", "B"), slots(size), of_chunks)
            caps -= size * waiting
        return range(first, len(sizes))

    def begin(slot: range) -> None:
        run(("F",), slot, every)
        run(("B",), slot, every[::-1])

    ways = [("F", every[:k]) for k in range(1, chunks + 1)]
    ways += [("B", every[chunk : chunk + 1]) for chunk in every]
    # All gradients are there, and messages on their way, before the first way and after the last.
    run(("F", "B", "W"), slots(MESSAGES_AHEAD), every)
    for (kind, of_chunks), is_w in product(ways, (False, True)):
        at_hand = slots(1.0)
        room = (live_microbatches - (waiting if is_w else most)) * chunks / len(of_chunks)
        if is_w:
            begin(at_hand)
        if kind == "F":
            held = slots(room / most)
            run(("F",), held, of_chunks)
        else:
            held = wait(room, of_chunks)
        if not is_w:
            begin(at_hand)
        run(("W",), at_hand, every)
        run(("B", "W") if kind == "F" else ("W",), held, of_chunks)
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

    def room(cap: int) -> float:
        return limit_bytes - float(needed(cap).sum(axis=0).max())

    known, known_room = 1, room(1)
    if known_room < 0:
        least = needed(1)
        stage = int(least.sum(axis=0).argmax())
        raise Infeasible(
            f"one token a rank needs {least[:, stage].sum() / GIB:.2f} GiB on stage {stage}, most"
            f" of it {largest_term(least, stage)}, {limit_bytes / GIB:.2f} may be used",
            "plan with more stages (--pp) or devices of a rank (--tp)",
        )
    beyond, beyond_room = 1024, room(1024)
    while beyond_room >= 0:
        known, known_room, beyond = beyond, beyond_room, 8 * beyond
        beyond_room = room(beyond)
    turn = 0
    while beyond - known > 1:
        # Bytes are nearly in proportion; every third turn halves, whatever they are.
        share = 0.5 if turn % 3 == 2 else known_room / (known_room - beyond_room)
        middle = min(beyond - 1, known + max(1, int(share * (beyond - known))))
        if (left := room(middle)) >= 0:
            known, known_room = middle, left
        else:
            beyond, beyond_room = middle, left
        turn += 1
    return known
