"""What to change before a step, given how slow each device is: places, moves, and the op order.

Each placement that is offered, the plan's own first, is tried with moves and with an op order
planned anew, apart and together. All are scored by the simulator on the expected slots, without
noise. A change has to save the whole step more than `MARGIN`, and one that changes more than
another `MORE` beyond that one.

Source: Conductor joins a schedule that is planned again with migration; places, and when which is
worth it, are our choice.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hydraplan.activations import held_shares
from hydraplan.cost import CostModel
from hydraplan.metrics import live_peaks, planned_live_peaks, shares
from hydraplan.migration import Moves
from hydraplan.model import BatchPlan, FloatArray, Schedule
from hydraplan.places import Places, with_places
from hydraplan.planner.pipeline.memory import ROUNDING
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.planner.policy.choose_moves import FORMS, choose_moves
from hydraplan.planner.policy.moved import moved_slots
from hydraplan.planner.policy.rated import rated, with_factors
from hydraplan.slots import SlotTimes

MARGIN, MORE = 0.005, 0.002
"""Shares of the step that a change has to save, and what changes more."""

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
    places: Places | None = None


def decide(
    cost: CostModel,
    batch: BatchPlan,
    factor: FloatArray,
    *,
    forms: Collection[str] = FORMS,
    reorder: Reorder | None = None,
    most_live_tokens: float | None = None,
    anew: Collection[Places] = (),
    cap_tokens: int | None = None,
) -> Decision:
    """Choose for a batch of a plan, alike wherever it is asked.

    Args:
        factor: Times as long as planned that each device takes, (stages, lanes).
        forms: Forms of migration that may be used, of `choose_moves.FORMS`; none for no moves.
        reorder: Plans the op order anew; None keeps the plan's.
        most_live_tokens: Activations that a rank may hold at once, `allowed` if None.
        anew: Other placements, of as many microbatches.
        cap_tokens: Most tokens of a slot. Where nothing else limits what a rank holds, other
            placements may hold as many full slots as the plan holds slots; None for `allowed`.
    """
    most = allowed(cost, batch, most_live_tokens)
    full = most
    if most_live_tokens is None and cap_tokens is not None:
        full = max(most, cap_tokens * float(_held(cost, batch).max()))
    found: Decision | None = None
    for places in (None, *anew):
        sequences = batch.sequences if places is None else with_places(batch.sequences, places)
        placed = replace(batch, sequences=sequences)
        for each in _tried(cost, placed, factor, forms, reorder, full if places else most):
            if found is None:
                found = each
            less = MORE if found.after_s < found.before_s else MARGIN
            if each.after_s < (1 - less) * found.after_s:
                found = each._replace(before_s=found.before_s, places=places)
    assert found is not None
    return found


def _tried(
    cost: CostModel,
    batch: BatchPlan,
    factor: FloatArray,
    forms: Collection[str],
    reorder: Reorder | None,
    most_live_tokens: float,
) -> Iterator[Decision]:
    """A placement as it is, with moves, in another order, with both; what is held too much not."""
    known = rated(cost, batch.sequences.placed(), batch.num_microbatches, factor)
    still = Moves(), with_factors(known.slots, factor)

    def with_moves(batch: BatchPlan) -> tuple[Moves, SlotTimes]:
        moves = (
            choose_moves(known, forms, room(cost, batch, most_live_tokens)) if forms else still[0]
        )
        return (moves, with_factors(moved_slots(known, moves), factor)) if moves else still

    moved = with_moves(batch)
    yield from _scored(cost, batch, (still, moved), most_live_tokens)
    if reorder is None:
        return
    anew = replace(batch, schedule=reorder(moved[1]))
    if not _fits(cost, anew, moved[0], most_live_tokens):
        moved = with_moves(anew)
    yield from _scored(cost, anew, (still, moved), most_live_tokens)


def _scored(
    cost: CostModel,
    batch: BatchPlan,
    ways: Iterable[tuple[Moves, SlotTimes]],
    most_live_tokens: float,
) -> Iterator[Decision]:
    """Each of these that fits, with what it takes."""
    for moves, slots in dict(ways).items():
        if _fits(cost, batch, moves, most_live_tokens):
            after_s = shares(simulate(slots, batch.schedule))["iteration_s"]
            yield Decision(batch.schedule, moves, after_s, after_s)


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
    return np.asarray(np.maximum(0.0, most - peak) / _held(cost, batch))


def _held(cost: CostModel, batch: BatchPlan) -> FloatArray:
    """Slots that every stage holds at once, none of them in part, (stages, 1)."""
    one = np.ones((1, batch.num_microbatches), np.int64)
    return np.ceil(live_peaks(batch.schedule, one, held_shares(cost.model, cost.recompute)))
