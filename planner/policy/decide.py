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
from hydraplan.places import Places, at_places
from hydraplan.planner.pipeline.memory import ROUNDING
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.planner.policy.choose_moves import FORMS, choose_moves
from hydraplan.planner.policy.moved import moved_slots
from hydraplan.planner.policy.rated import rated, with_factors
from hydraplan.slots import SlotTimes

MARGIN, MORE = 0.005, 0.002
"""Shares of the step that a change has to save, and what changes more."""

REORDERED = 2
"""Placements that get a new op order, which is what takes most time."""

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
    promise: Callable[[SlotTimes], float] | None = None,
    fits: Callable[[BatchPlan, Moves], bool] | None = None,
    again: Callable[[int], Schedule] | None = None,
) -> Decision:
    """Choose for a batch of a plan, alike wherever it is asked.

    Args:
        factor: Times as long as planned that each device takes, (stages, lanes).
        forms: Forms of migration that may be used, of `choose_moves.FORMS`; none for no moves.
        reorder: Plans the op order anew; None keeps the plan's.
        most_live_tokens: Activations that a rank may hold at once, `allowed` if None.
        anew: Other placements; of another number of microbatches only with `reorder` or `again`.
        cap_tokens: Most tokens of a slot. Where nothing else limits what a rank holds, other
            placements may hold as much as the plan would if its slots were full; None for
            `allowed`.
        promise: About what slots take in a new order, quick to tell; those of the `REORDERED`
            least are ordered anew. None to order all.
        fits: What a batch must keep to besides, in its op order and with moves; None for nothing.
        again: The plan's op order for another number of microbatches; None where it has none.
    """
    most = allowed(cost, batch, most_live_tokens)
    full = most
    if most_live_tokens is None and cap_tokens is not None:
        full = max(most, cap_tokens * float(_at_once(cost, batch).max()))
    known = [
        _candidate(cost, batch, places, factor, forms, full if places else most)
        for places in (None, *anew)
    ]
    planned_s = shares(simulate(known[0].still.slots, batch.schedule))["iteration_s"]
    found = Decision(batch.schedule, Moves(), planned_s, planned_s)  # fits or not, it runs else

    def goal_s() -> float:
        """What the next one has to stay below."""
        return (1 - (MORE if found.after_s < found.before_s else MARGIN)) * found.after_s

    def tried(each: Candidate, ordered: BatchPlan, ways: Iterable[Way]) -> None:
        nonlocal found
        for decision in _scored(cost, ordered, ways, each.most_live_tokens):
            is_faster = decision.after_s < goal_s()
            if is_faster and (fits is None or fits(ordered, decision.moves)):
                found = decision._replace(before_s=planned_s, places=each.places)

    as_planned = known
    if again is not None:
        of_count = [p for p in anew if p.num_microbatches != batch.num_microbatches]
        as_planned = known + [
            _candidate(cost, batch, places, factor, forms, full, again) for places in of_count
        ]
    for each in as_planned:
        if each.batch.schedule:
            ways = (each.still, each.moved)
            tried(each, each.batch, [way for way in ways if each.places or way.moves])
    if reorder is not None:
        likely = sorted(
            known, key=lambda each: 0.0 if promise is None else promise(each.moved.slots)
        )
        for each in likely[: None if promise is None else REORDERED]:
            if each.least_s < goal_s():
                ordered = replace(each.batch, schedule=reorder(each.moved.slots))
                tried(each, ordered, (each.still, each.moved_in(ordered)))
    return found


class Way(NamedTuple):
    """Moves, and the slots with them on devices as they are."""

    moves: Moves
    slots: SlotTimes


class Candidate(NamedTuple):
    """A placement: the batch at its places, `schedule` empty where the plan's does not fit it.

    `moved`: with moves for that schedule. `moved_in`: with moves for another, the same ones if they
    fit. `least_s`: the work of its busiest rank, which no order undercuts; 0 if moves are open.
    """

    places: Places | None
    batch: BatchPlan
    still: Way
    moved: Way
    moved_in: Callable[[BatchPlan], Way]
    least_s: float
    most_live_tokens: float


def _candidate(
    cost: CostModel,
    batch: BatchPlan,
    places: Places | None,
    factor: FloatArray,
    forms: Collection[str],
    most_live_tokens: float,
    again: Callable[[int], Schedule] = lambda count: (),
) -> Candidate:
    if places is not None:
        count = places.num_microbatches
        schedule = batch.schedule if count == batch.num_microbatches else again(count)
        batch = replace(at_places(batch, places), schedule=schedule)
    known = rated(cost, batch.sequences.placed(), batch.num_microbatches, factor)
    still = Way(Moves(), with_factors(known.slots, factor))

    def with_moves(ordered: BatchPlan) -> Way:
        if not forms:
            return still
        moves = choose_moves(known, forms, room(cost, ordered, most_live_tokens))
        return Way(moves, with_factors(moved_slots(known, moves), factor)) if moves else still

    moved = with_moves(batch) if batch.schedule else still

    def moved_in(ordered: BatchPlan) -> Way:
        is_chosen = bool(batch.schedule) and _fits(cost, ordered, moved.moves, most_live_tokens)
        return moved if is_chosen else with_moves(ordered)

    busiest_s = float(moved.slots.op_s.sum(axis=(0, 2, 4)).max())
    least_s = busiest_s if batch.schedule or not forms else 0.0
    return Candidate(places, batch, still, moved, moved_in, least_s, most_live_tokens)


def _scored(
    cost: CostModel,
    batch: BatchPlan,
    ways: Iterable[Way],
    most_live_tokens: float,
) -> Iterator[Decision]:
    """Each of these that fits, with what it takes."""
    for moves, slots in dict(ways).items():  # the same moves once
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
    return np.ceil(_at_once(cost, batch))


def _at_once(cost: CostModel, batch: BatchPlan) -> FloatArray:
    """What every stage holds at once, over what a slot holds after F, (stages, 1)."""
    one = np.ones((1, batch.num_microbatches), np.int64)
    return live_peaks(batch.schedule, one, held_shares(cost.model, cost.recompute))
