"""Online correction: what each step took tells who is slow, and coming batches are decided anew.

After a step the seconds that every rank worked (waiting excluded) stand beside those that the plan
predicts for the same work, moves included, so heavy data is no slow device (`estimates`). When
what is believed changes, or has drifted by more than `DRIFT`, an event begins: each batch that
comes up is decided once for these factors, and runs so until the next event. If all ranks are
nominal again, that is the plan itself.

Deciding falls between two steps, from everything up to the last one: a step of waiting less than
from the one before, for the milliseconds that `planning_s` tells.

What a decision bought is measured in its first step, against what would have been: the prediction
without it, times what steps took over their own prediction since the ranks have been so. Those are
predictions under the same factors, so an error of the model that both share cancels.

Rank 0 of a run has one `Corrections`, each trial of a simulation one. Does not send anything.

Source: ours; Conductor's abstract only says that the schedule adapts while a run goes on.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hydraplan.cost import CostModel
from hydraplan.errors import InputError
from hydraplan.executor.change import with_change
from hydraplan.executor.predicted import loads_of
from hydraplan.files.decisionsfile import Change, Decided, Slow, in_force
from hydraplan.files.runfile import Correction, RunHeader
from hydraplan.metrics import shares
from hydraplan.model import BatchPlan, FloatArray, Schedule, Timeline
from hydraplan.planheader import PlanOptions
from hydraplan.planner.pipeline.portfolio import fastest
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.planner.planned_ops import memory_of
from hydraplan.planner.policy.choose_moves import FORMS
from hydraplan.planner.policy.decide import decide
from hydraplan.planner.policy.estimates import Estimates, nominal, observe
from hydraplan.planner.policy.rated import with_factors
from hydraplan.slots import SlotTimes

DRIFT = 0.1
"""Logarithm by which a factor may differ from what was decided on."""

COMPARED = 32
"""Steps, at most, that a measured gain is compared with."""

NAMED = 3
"""Ranks that a reason tells of."""

Decide = Callable[[BatchPlan, FloatArray], tuple[Change, float, float]]
"""From a batch and factors (stages, lanes) to a change, and the iteration without and with it."""


class Worked(NamedTuple):
    """What a finished step tells: its batch, what that ran, how long, and seconds by rank.

    `busy_s` worked, `load_s` predicted for the same work on nominal ranks, shape (stages, lanes).
    """

    step: int
    batch: int
    change: Change
    iteration_s: float
    busy_s: FloatArray
    load_s: FloatArray


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
        share: Load of each rank over the mean of its stage, as planned for the last steps.
    """
    before, seen = belief.seen, observe(belief.seen, busy_s, load_s)
    drift = np.abs(seen.log_factor - np.log(belief.factor))
    if not (seen.changed | (drift > DRIFT)).any():
        return replace(belief, seen=seen)
    moved = seen.changed | (drift > DRIFT)
    began = np.where(seen.since >= 0, seen.since, seen.steps - 1)
    fell = seen.changed & (seen.since < 0)
    began = np.where(fell & (before.log_factor > 0), seen.below_from, began)
    began = np.where(fell & (before.log_factor < 0), seen.above_from, began)
    ranks = [(int(s), int(lane)) for s, lane in np.argwhere(moved)]
    ranks.sort(key=lambda rank: (-abs(float(drift[rank])), rank))
    told = [_told(rank, belief, seen, began, share) for rank in ranks[:NAMED]]
    if len(ranks) > NAMED:
        told.append(f"{len(ranks) - NAMED} more ranks changed")
    first = min(int(began[moved].min()), seen.steps - 1)
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
        Slow(int(s), int(lane), int(belief.seen.since[s, lane]), float(belief.factor[s, lane]))
        for s, lane in np.argwhere(belief.factor != 1.0)
    )


class Corrections:
    """Decisions of a run or trial, from its first step on.

    The order of calls is that of the steps: `coming` before each, `done` after it.
    """

    def __init__(self, cost: CostModel, batches: Mapping[int, BatchPlan], decide: Decide) -> None:
        self._cost, self._batches, self._decide = cost, batches, decide
        self._belief = unknown(cost.pp, cost.ranks)
        self._made: dict[int, Change] = {}
        self._before: dict[int, Change] = {}
        self._past: list[Worked] = []

    def coming(self, step: int, batch: BatchPlan) -> Decided | None:
        """The decision that takes effect in this step, if one does; gains are not measured yet."""
        belief = self._belief
        if belief.event == 0 or batch.batch in self._made:
            return None
        is_first, began_s = not self._made, time.perf_counter()
        kind, change = "leave", Change()
        if (belief.factor == 1.0).all():
            old = self._before.get(batch.batch, Change())
            kind = "undo" if any(self._before.values()) else kind
            without_s, with_s = (self.predicted_s(batch, c, belief.factor) for c in (old, change))
        else:
            change, without_s, with_s = self._decide(batch, belief.factor)
            kind = change.kind or ("undo" if any(self._before.values()) else kind)
        planning_s = time.perf_counter() - began_s
        self._made[batch.batch] = change
        if not (is_first or change):
            return None
        return Decided(
            step=step,
            batch=batch.batch,
            event=belief.event,
            kind=kind,
            reason=belief.reason,
            slow=named(belief),
            without_s=without_s,
            predicted_gain_s=without_s - with_s,
            measured_gain_s=None,
            planning_s=planning_s,
            change=change,
        )

    @property
    def factor(self) -> FloatArray:
        """Times as long as nominal that ranks are believed to take, (stages, lanes)."""
        return self._belief.seen.factor

    def change(self, batch: int) -> Change:
        """What a batch runs at present."""
        return self._made.get(batch, Change())

    def done(self, worked: Worked, decided: Decided | None) -> Decided | None:
        """Take in a finished step; the decision that took effect in it, with what it gained."""
        if decided is not None:
            decided = decided._replace(measured_gain_s=self._gain_s(worked, decided))
        self._past = [*self._past, worked][-COMPARED:]
        load_s = np.sum([step.load_s for step in self._past[-2:]], axis=0)
        share = load_s / load_s.mean(axis=1, keepdims=True)
        event, belief = self._belief.event, learn(self._belief, *worked[-2:], share)
        if belief.event > event:
            self._before, self._made = self._made, {}
        self._belief = belief
        return decided

    def again(self, worked: Worked, rows: Iterable[Decided]) -> None:
        """Take in a step of a run that is gone on with, after those before it, and its decisions.

        Raises:
            InputError: Its decision is of another event than its steps tell of.
        """
        for row in rows:
            if row.step == worked.step:
                if row.event != self._belief.event:
                    raise InputError(
                        f"the decision of step {row.step} is of event {row.event}, the op times of"
                        f" the run tell of {self._belief.event} until then",
                        "put back the files that the run wrote, or resume with the version that"
                        " wrote them",
                    )
                self._made[row.batch] = row.change
        self.done(worked, None)

    def predicted_s(self, batch: BatchPlan, change: Change, factor: FloatArray) -> float:
        """Noise-free iteration of a batch so changed, if ranks take `factor` times as long."""
        slots = with_factors(loads_of(self._cost, batch, change.moves, factor).slots, factor)
        return shares(simulate(slots, with_change(batch, change).schedule))["iteration_s"]

    def _gain_s(self, worked: Worked, decided: Decided) -> float | None:
        """What would have been less what was; None where no step since the ranks changed is kept.

        What the plan is expected to take is its prediction, times measured over predicted of the
        steps since then, under the factors that are believed now.
        """
        belief = self._belief
        past = [step for step in self._past if step.step >= belief.began]
        known: dict[tuple[int, Change], float] = {}
        for step in past:
            key = (step.batch, step.change)
            if key not in known:
                known[key] = self.predicted_s(self._batches[step.batch], step.change, belief.factor)
        predicted_s = sum(known[step.batch, step.change] for step in past)
        if predicted_s <= 0:
            return None
        ratio = sum(step.iteration_s for step in past) / predicted_s
        return decided.without_s * ratio - worked.iteration_s


class Replay:
    """The decisions of another run, at the same steps; asked as `Corrections` is.

    `factor`: what the other run believed of the ranks.
    """

    def __init__(self, rows: Iterable[Decided], stages: int, lanes: int) -> None:
        self._rows = tuple(rows)
        self._step = 0
        self.factor = np.ones((stages, lanes))

    def coming(self, step: int, batch: BatchPlan) -> Decided | None:
        """The decision that took effect in this step, if one did; its gain is measured anew."""
        self._step = step
        found = [row for row in self._rows if row.step == step]
        if not found:
            return None
        self.factor = np.ones_like(self.factor)
        for rank in found[0].slow:
            self.factor[rank.stage, rank.lane] = rank.factor
        return found[0]._replace(measured_gain_s=None, planning_s=0.0)

    def change(self, batch: int) -> Change:
        """What a batch runs at present."""
        return in_force(self._rows, self._step, batch)

    def done(self, worked: Worked, decided: Decided | None) -> Decided | None:
        """The decision; nothing is learnt."""
        return decided

    def again(self, worked: Worked, rows: Iterable[Decided]) -> None:
        """Nothing is learnt from the steps of a run that is gone on with."""


def asked_for(header: RunHeader) -> bool:
    """Whether a run may change anything of its plan."""
    return header.correction != "none" or header.migration or header.replays is not None


def decide_by(
    cost: CostModel, options: PlanOptions, correction: Correction, migration: bool
) -> Decide:
    """How a run decides that was asked for these; a decision without gain is no change."""

    def reorder(slots: SlotTimes) -> Schedule:
        return fastest(slots, memory_of(cost, options, slots))

    def decided(batch: BatchPlan, factor: FloatArray) -> tuple[Change, float, float]:
        found = decide(
            cost,
            batch,
            factor,
            forms=FORMS if migration else (),
            reorder=None if correction == "none" else reorder,
            most_live_tokens=options.live_limit_tokens,
        )
        schedule = None if found.schedule == batch.schedule else found.schedule
        return Change(schedule, found.moves), found.before_s, found.after_s

    return decided


def seconds(timeline: Timeline) -> FloatArray:
    """Seconds that every rank worked, shape (stages, lanes)."""
    return np.stack([busy_s.sum(axis=0) for busy_s in timeline.busy_s])
