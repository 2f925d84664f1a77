"""A batch placed anew while a run goes on, for lanes that have become slow.

In as many microbatches as the plan has, its op order still fits: they are numbered so that the
heaviest new one runs where the heaviest planned one did, the next where the next did. In more of
them (`MORE`) each holds less, so that more fit into the memory that the plan fills; they need
another order. Few points of the search are tried, that of the plan first, since a step waits.

A lane runs its sequences on every stage, so its speed is one number. There are two that make
sense, and both are tried: that of its slowest rank, right where this rank's stage holds all others
up, and that of the lane's costliest stage, which a slow rank of a light stage hardly changes.

A lane below half speed is also left out where that is legal (`placement.spared`): all members of a
group wait for its slowest, so one lane at a twentieth makes nearly all others idle. Where the cap
leaves no room without it, microbatches become more. It stays in the pool and runs empty slots.

Source: HyDra plans for lanes of known speed; doing so while a run goes on is ours.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hydraplan.cost import CostModel
from hydraplan.model import BatchPlan, FloatArray, IntArray, Sequences
from hydraplan.places import Places, places_of
from hydraplan.planheader import MAX_SPEED, MIN_SPEED, PlanOptions, reorder_within
from hydraplan.planner.open_request import open_request
from hydraplan.planner.placement.draft import Request
from hydraplan.planner.placement.search import first_points, point_again
from hydraplan.planner.placement.spared import open_levels, with_something
from hydraplan.planner.placement.trial import drafted, finalist_of, time_s, trial_of
from hydraplan.slots import SlotTimes, slot_times

POINTS, FINALISTS = 3, 2
"""Points that are placed besides that of the plan; placements that are sized exactly and run."""

MORE = 1.3
"""Times as many microbatches as the plan has, tried besides as many."""

SPARED = 0.5
"""Speed over that of the fastest lane, below which lanes are spared too: what is split over one of
them is done sooner on half as many lanes without it."""

PACKED = 1.1
"""Microbatches without the spared lanes, over what their tokens need at least."""

DIGITS = 3
"""Of a speed, so that factors that differ by less than noise ask for the same."""


def placed_anew(
    cost: CostModel, options: PlanOptions, batch: BatchPlan, factor: FloatArray
) -> list[Places]:
    """Other placements of a batch; none where the plan's strategy is another, or rows keep order.

    Args:
        factor: Times as long as planned that each device takes, (stages, lanes).
    """
    is_free = reorder_within(options.reorder, len(batch.sequences)) == "batch"
    if options.strategy != "hydra" or not is_free:
        return []
    slots = slot_times(cost, batch.sequences.placed(), batch.num_microbatches)
    found = [places_of(batch.sequences)]
    for speed in speeds(slots.op_s.sum(axis=(0, 2, 4)), factor):
        for request in _requests(cost, options, batch, speed / cost.slow):
            placed = _placed(request, batch)
            if placed is None:
                continue
            if request.microbatches == batch.num_microbatches:
                new = slot_times(cost, placed, batch.num_microbatches)
                placed = _numbered_as(slots, new, placed)
            if (places := places_of(placed)) not in found:
                found.append(places)
    return found[1:]


def speeds(load_s: FloatArray, factor: FloatArray) -> Iterator[FloatArray]:
    """Speeds of the lanes over those of the plan, each another than nominal, (lanes,).

    Args:
        load_s: Load of every rank as planned, (stages, lanes).
    """
    seen = {np.ones(factor.shape[1]).tobytes()}
    most_s, slowed_s = load_s.max(axis=0), (load_s * factor).max(axis=0)
    costliest = np.divide(slowed_s, most_s, out=np.ones_like(most_s), where=most_s > 0)
    for slow in (factor.max(axis=0), costliest):
        known = np.maximum(slow, 1 / MAX_SPEED)
        speed = np.clip(np.round(1 / known, DIGITS), MIN_SPEED, MAX_SPEED)
        if speed.tobytes() not in seen:
            seen.add(speed.tobytes())
            yield speed


def _requests(
    cost: CostModel, options: PlanOptions, batch: BatchPlan, speed: FloatArray
) -> Iterator[Request]:
    """What is asked for on lanes of these speeds: all of them, and without those too slow."""
    known = tuple(speed.tolist())
    slowed = replace(cost, rank_speed=known)
    asked = options.model_copy(update={"rank_speed": known})
    request = open_request(slowed, asked, batch.sequences)
    planned = batch.num_microbatches
    for count in sorted({planned, round(MORE * planned)}):
        if request.allowed([count]) == [count]:
            yield replace(request, microbatches=count)
    spared = tuple(np.flatnonzero(speed < SPARED * speed.max()).tolist())
    if spared:
        tokens, free = int(request.sequences.length_tokens.sum()), len(speed) - len(spared)
        needed = math.ceil(PACKED * tokens / (free * request.cap_tokens))
        without = replace(
            request, spared=spared, table=open_levels(request.table, cost.ranks, spared)
        )
        for count in request.allowed({max(planned, needed), max(round(MORE * planned), needed)}):
            yield replace(without, microbatches=count)


def _placed(request: Request, batch: BatchPlan) -> Sequences | None:
    """The fastest placement of those that are tried."""
    count = request.microbatches
    assert count is not None
    points = first_points(request)[:POINTS]
    if batch.winner == "load-driven":
        points.insert(0, point_again(request, batch.search, count))
    tries = [each for each in (trial_of(request, point) for point in points) if each]
    likely = sorted(tries, key=lambda each: each.estimate_s)[:FINALISTS]
    runs = [finalist_of(request, each) for each in likely]
    if not runs:
        return None
    placed = drafted(request, min(runs, key=time_s)).sequences
    if not request.spared:
        return placed
    return with_something(request.cost, placed, count, request.spared)


def _numbered_as(planned: SlotTimes, new: SlotTimes, placed: Sequences) -> Sequences:
    """Its microbatches numbered so that they are as heavy, one by one, as those of the plan."""
    heaviest = _by_load(planned)
    number = np.empty_like(heaviest)
    number[_by_load(new)] = heaviest
    return replace(placed, microbatch=number[placed.microbatch])


def _by_load(slots: SlotTimes) -> IntArray:
    """Microbatches by their fullest slot, the heaviest first."""
    return np.argsort(-slots.load_s.max(axis=0), kind="stable")
