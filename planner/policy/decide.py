"""What to change before a step, given how slow each device is: moves, and the op order.

Both are scored by the simulator on the expected slots, without noise; what does not save the whole
step more than `MARGIN` is left as it is.

Source: Conductor joins a schedule that is planned again with migration; when it is worth it is our
choice.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hydraplan.activations import held_shares
from hydraplan.cost import CostModel
from hydraplan.metrics import live_peaks, planned_live_peaks, shares
from hydraplan.migration import Moves
from hydraplan.model import BatchPlan, FloatArray, Schedule
from hydraplan.planner.pipeline.memory import ROUNDING
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.planner.policy.choose_moves import FORMS, choose_moves
from hydraplan.planner.policy.moved import moved_slots
from hydraplan.planner.policy.rated import rated, with_factors
from hydraplan.slots import SlotTimes

MARGIN = 0.005
"""Share of the step that a change has to save."""

SPARE = 0.03
"""Share by which a rank may hold more than the fullest rank of a plan without a limit."""

Reorder = Callable[[SlotTimes], Schedule]
"""An op order for slots on devices as they are, microbatches as they are numbered."""


class Decision(NamedTuple):
    """What the next step runs: the plan's own where nothing is gained.

    `before_s`, `after_s`: the iteration on these devices as planned, and with the change.
    """

    schedule: Schedule
    moves: Moves
    before_s: float
    after_s: float


def decide(
    cost: CostModel,
    batch: BatchPlan,
    factor: FloatArray,
    *,
    forms: Collection[str] = FORMS,
    reorder: Reorder | None = None,
    most_live_tokens: float | None = None,
) -> Decision:
    """Choose for a batch of a plan, alike wherever it is asked.

    Args:
        factor: Times as long as planned that each device takes, (stages, lanes).
        forms: Forms of migration that may be used, of `choose_moves.FORMS`; none for no moves.
        reorder: Plans the op order anew; None keeps the plan's.
        most_live_tokens: Activations that a rank may hold at once, `allowed` if None.
    """
    most = allowed(cost, batch, most_live_tokens)
    known = rated(cost, batch.sequences.placed(), batch.num_microbatches, factor)
    now = with_factors(known.slots, factor)
    before_s = _iteration_s(now, batch.schedule)
    found = Decision(batch.schedule, Moves(), before_s, before_s)
    if forms:
        moves = choose_moves(known, forms, room(cost, batch, most))
        if moves:
            slots = with_factors(moved_slots(known, moves), factor)
            after_s = _iteration_s(slots, batch.schedule)
            if after_s < (1 - MARGIN) * found.after_s:
                found, now = found._replace(moves=moves, after_s=after_s), slots
    if reorder is not None:
        schedule = reorder(now)
        anew, moves = replace(batch, schedule=schedule), found.moves
        if moves and not _fits(cost, anew, moves, most):
            moves = choose_moves(known, forms, room(cost, anew, most))
            now = with_factors(moved_slots(known, moves), factor)
        after_s = _iteration_s(now, schedule)
        if after_s < (1 - MARGIN) * found.after_s and _fits(cost, anew, moves, most):
            found = found._replace(schedule=schedule, moves=moves, after_s=after_s)
    return found


def _fits(cost: CostModel, batch: BatchPlan, moves: Moves, most_live_tokens: float) -> bool:
    """Whether no rank holds more than it may, with moves and in the op order of the batch."""
    peak = float(planned_live_peaks(cost, batch, moves).max())
    return peak <= most_live_tokens * (1 + ROUNDING)


def allowed(cost: CostModel, batch: BatchPlan, most_live_tokens: float | None = None) -> float:
    """Tokens that a rank may hold: the limit, or where there is none little more than planned.

    A little, since ranks of a balanced plan are all full, and uneven heads need some.
    """
    if most_live_tokens is not None:
        return most_live_tokens
    return (1 + SPARE) * float(planned_live_peaks(cost, batch).max())


def room(cost: CostModel, batch: BatchPlan, most_live_tokens: float | None = None) -> FloatArray:
    """Tokens that each rank may hold besides its own in every slot, (stages, lanes).

    In all slots that its stage holds at once, so that it never holds more than the most.
    """
    peak = planned_live_peaks(cost, batch)
    most = allowed(cost, batch, most_live_tokens)
    one = np.ones((1, batch.num_microbatches), np.int64)
    held = np.ceil(live_peaks(batch.schedule, one, held_shares(cost.model, cost.recompute)))
    return np.asarray(np.maximum(0.0, most - peak) / held)


def _iteration_s(slots: SlotTimes, schedule: Schedule) -> float:
    return shares(simulate(slots, schedule))["iteration_s"]
