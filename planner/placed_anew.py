"""A batch placed anew while a run goes on, for lanes that have become slow.

In as many microbatches as the plan has, its op order still fits: they are numbered so that the
heaviest new one runs where the heaviest planned one did, the next where the next did. In more of
them (`MORE`) each holds less, so that more fit into the memory that the plan fills; they need
another order. Few points of the search are tried, that of the plan first, since a step waits.

A lane runs its sequences on every stage, so its speed is one number. There are two that make
sense, and both are tried: that of its slowest rank, right where this rank's stage holds all others
up, and that of the lane's costliest stage, which a slow rank of a light stage hardly changes.

Source: HyDra plans for lanes of known speed; doing so while a run goes on is ours.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hydraplan.cost import CostModel
from hydraplan.model import BatchPlan, FloatArray, IntArray, Sequences
from hydraplan.places import Places, places_of
from hydraplan.planheader import MAX_SPEED, MIN_SPEED, PlanOptions, reorder_within
from hydraplan.planner.open_request import open_request
from hydraplan.planner.placement.search import first_points, point_again
from hydraplan.planner.placement.trial import drafted, finalist_of, time_s, trial_of
from hydraplan.slots import SlotTimes, slot_times

POINTS, FINALISTS = 3, 2
"""Points that are placed besides that of the plan; placements that are sized exactly and run."""

MORE = 1.3
"""Times as many microbatches as the plan has, tried besides as many."""

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
        for count in sorted({batch.num_microbatches, round(MORE * batch.num_microbatches)}):
            placed = _placed(cost, options, batch, tuple((speed / cost.slow).tolist()), count)
            if placed is None:
                continue
            if count == batch.num_microbatches:
                placed = _numbered_as(slots, slot_times(cost, placed, count), placed)
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
        speed = np.clip(np.round(1 / slow, DIGITS), MIN_SPEED, MAX_SPEED)
        if speed.tobytes() not in seen:
            seen.add(speed.tobytes())
            yield speed


def _placed(
    cost: CostModel, options: PlanOptions, batch: BatchPlan, speed: tuple[float, ...], count: int
) -> Sequences | None:
    """The placement in so many microbatches that is fastest on lanes of these speeds."""
    slowed = replace(cost, rank_speed=speed)
    request = open_request(
        slowed, options.model_copy(update={"rank_speed": speed}), batch.sequences
    )
    if request.allowed([count]) != [count]:
        return None
    request = replace(request, microbatches=count)
    points = first_points(request)[:POINTS]
    if batch.winner == "load-driven":
        points.insert(0, point_again(request, batch.search, count))
    tries = [each for each in (trial_of(request, point) for point in points) if each]
    likely = sorted(tries, key=lambda each: each.estimate_s)[:FINALISTS]
    runs = [finalist_of(request, each) for each in likely]
    if not runs:
        return None
    return drafted(request, min(runs, key=time_s)).sequences


def _numbered_as(planned: SlotTimes, new: SlotTimes, placed: Sequences) -> Sequences:
    """Its microbatches numbered so that they are as heavy, one by one, as those of the plan."""
    heaviest = _by_load(planned)
    number = np.empty_like(heaviest)
    number[_by_load(new)] = heaviest
    return replace(placed, microbatch=number[placed.microbatch])


def _by_load(slots: SlotTimes) -> IntArray:
    """Microbatches by their fullest slot, the heaviest first."""
    return np.argsort(-slots.load_s.max(axis=0), kind="stable")
