"""What is believed of the devices of a run, and the events that it is made of.

Estimates change a little with every step; decisions rest on factors that stay, so that a batch is
decided once and not after every step. A new event begins where a factor is set or dropped
(`estimates`), or has drifted by more than `DRIFT` from what is acted on.

Source: ours.
"""

from dataclasses import dataclass, replace

import numpy as np

from hydraplan.files.decisionsfile import Slow
from hydraplan.model import FloatArray
from hydraplan.planner.policy.estimates import Estimates, nominal, observe

PARTS = 2
"""Parts of a step that are observed one after the other: a rank that is slow in both is slow."""

DRIFT = 0.1
"""Logarithm by which a factor may differ from what is acted on."""

NAMED = 3
"""Ranks that a reason tells of."""


@dataclass(frozen=True, slots=True)
class Belief:
    """What is believed of the devices: estimates, factors that are acted on, which event that is.

    `began`: the first step in which the ranks that changed were as they are. `reason` in words.
    """

    seen: Estimates
    factor: FloatArray
    event: int = 0
    began: int = 0
    reason: str = ""


def unknown(stages: int, lanes: int) -> Belief:
    """Before the first step."""
    return Belief(nominal(stages, lanes), np.ones((stages, lanes)))


def learn(belief: Belief, busy_s: FloatArray, load_s: FloatArray, share: FloatArray) -> Belief:
    """What is believed after one more step.

    Args:
        busy_s: Seconds that each rank worked, (`PARTS`, stages, lanes); `load_s` predicted alike.
        share: Load of each rank over the mean of its stage, as planned for the last steps.
    """
    seen, acted = belief.seen, np.log(belief.factor)
    changed = np.zeros(acted.shape, np.bool_)
    for part_busy_s, part_load_s in zip(busy_s, load_s, strict=True):
        seen = observe(seen, part_busy_s, part_load_s)
        changed |= seen.changed
    drift = np.abs(seen.log_factor - acted)
    moved = (changed & (drift > 0)) | (drift > DRIFT)
    if not moved.any():
        return replace(belief, seen=seen)
    began = np.where(seen.since >= 0, seen.since, seen.steps - 1)
    began = np.where((seen.since < 0) & (acted > 0), seen.below_from, began)
    began = np.where((seen.since < 0) & (acted < 0), seen.above_from, began) // PARTS
    ranks = [(int(s), int(lane)) for s, lane in np.argwhere(moved)]
    ranks.sort(key=lambda rank: (-abs(float(drift[rank])), rank))
    told = [_told(rank, belief, seen, began, share) for rank in ranks[:NAMED]]
    if len(ranks) > NAMED:
        told.append(f"{len(ranks) - NAMED} more ranks changed")
    first = min(int(began[moved].min()), seen.steps // PARTS - 1)
    return Belief(seen, seen.factor, belief.event + 1, first, "; ".join(told))


def _told(
    rank: tuple[int, int], belief: Belief, seen: Estimates, began: FloatArray, share: FloatArray
) -> str:
    """What a rank does since when, and whether data or device is the reason."""
    factor, name = float(seen.factor[rank]), f"stage {rank[0]}, lane {rank[1]}"
    if factor == 1.0:
        return f"{name} takes as long as planned again, since step {int(began[rank])}"
    was = float(belief.factor[rank])
    if was != 1.0:
        return f"{name} takes {factor:.2f}x as long as planned by now, {was:.2f}x before"
    return (
        f"{name} takes {factor:.2f}x as long as planned since step {int(began[rank])}; its load is"
        f" {share[rank]:.2f} of its stage's mean by plan, so it is the device, not the data"
    )


def named(belief: Belief) -> tuple[Slow, ...]:
    """All ranks whose factor is not 1, by stage and lane."""
    return tuple(
        Slow(
            int(s),
            int(lane),
            int(belief.seen.since[s, lane]) // PARTS,
            float(belief.factor[s, lane]),
        )
        for s, lane in np.argwhere(belief.factor != 1.0)
    )
