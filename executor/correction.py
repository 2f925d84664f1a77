"""Online correction: what each step took tells who is slow, and coming batches are decided anew.

After a step the seconds that every rank worked (waiting excluded) stand beside those that the plan
predicts for the same work, moves included, so heavy data is no slow device (`belief`). When what is
believed changes, an event begins: each batch that comes up is decided once for these factors, and
runs so until the next event. If all ranks are nominal again, that is the plan itself.

The first batch of an event is decided between two steps, from everything up to the last one: a step
of waiting less than from the one before, for the time that `planning_s` tells. The batches after it
may be decided ahead (`ahead`).

What a decision bought is measured in its first step, against what would have been: the prediction
without it, times what steps took over their own prediction since the ranks have been so. Those are
predictions under the same factors, so an error of the model that both share cancels.

Rank 0 of a run has one `Corrections`, each trial of a simulation one. Does not send anything.

Source: ours; Conductor's abstract only says that the schedule adapts while a run goes on.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hydraplan.cost import CostModel
from hydraplan.errors import InputError
from hydraplan.executor.belief import PARTS, learn, named, unknown
from hydraplan.executor.predicted import loads_of
from hydraplan.files.decisionsfile import Change, Decided, in_force, with_change
from hydraplan.files.runfile import Correction, RunHeader
from hydraplan.memory_limit import fits_as_planned
from hydraplan.metrics import shares
from hydraplan.model import BatchPlan, FloatArray, Schedule
from hydraplan.planheader import PlanOptions
from hydraplan.planner.compiled import WAIT, is_cold
from hydraplan.planner.pipeline.memory import Memory
from hydraplan.planner.pipeline.portfolio import promised_s
from hydraplan.planner.pipeline.schedules import SCHEDULES
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.planner.placed_anew import placed_anew
from hydraplan.planner.planned import PLANNED
from hydraplan.planner.planned_ops import memory_of
from hydraplan.planner.policy.choose_moves import FORMS
from hydraplan.planner.policy.decide import decide
from hydraplan.planner.policy.rated import with_factors
from hydraplan.slots import SlotTimes, slot_times
from hydraplan.views import console

COMPARED = 32
"""Steps, at most, that a measured gain is compared with."""

Decide = Callable[[BatchPlan, FloatArray], tuple[Change, float, float]]
"""From a batch and factors (stages, lanes) to a change, and the iteration without and with it."""


class Worked(NamedTuple):
    """What a finished step tells: its batch, what that ran, how long, and seconds by rank.

    `busy_s` worked, `load_s` predicted for the same work on nominal ranks, by parts of the step
    (`in_parts`), shape (parts, stages, lanes).
    """

    step: int
    batch: int
    change: Change
    iteration_s: float
    busy_s: FloatArray
    load_s: FloatArray


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
        self._expected_s: dict[tuple[int, Change], float] = {}

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

    def open(self, batch: int) -> FloatArray | None:
        """The factors that a batch would be decided for if it came up now; None if it is."""
        factor = self._belief.factor
        is_decided = batch in self._made or bool((factor == 1.0).all())
        return None if is_decided else factor

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
        recent_s = np.sum([step.load_s for step in self._past[-2:]], axis=(0, 1))
        share = recent_s / recent_s.mean(axis=1, keepdims=True)
        load_s = np.where(worked.busy_s > 0, worked.load_s, 0.0)  # who did nothing tells nothing
        event, belief = self._belief.event, learn(self._belief, worked.busy_s, load_s, share)
        if belief.event > event:
            self._before, self._made, self._expected_s = self._made, {}, {}
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
        now = with_change(batch, change)
        slots = with_factors(loads_of(self._cost, now, change.moves, factor).slots, factor)
        return shares(simulate(slots, now.schedule))["iteration_s"]

    def _gain_s(self, worked: Worked, decided: Decided) -> float | None:
        """What would have been less what was; None where no step since the ranks changed is kept.

        What the plan is expected to take is its prediction, times measured over predicted of the
        steps since then, under the factors that are believed now.
        """
        belief = self._belief
        past = [step for step in self._past if step.step >= belief.began]
        known = self._expected_s  # of this event, so for these factors
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
    """Whether a run may change anything of its plan; refuse to change what cannot be.

    Raises:
        InputError: Forwards of the plan run at the same time as backwards.
    """
    asked = header.correction != "none" or header.migration or header.replays is not None
    chunks = len(header.plan.layers[0])
    if asked and header.plan.cost_model().route_name == "both":
        raise InputError(
            f"pipeline {header.plan.options.pipeline} runs two passes at the same time; such a plan"
            " is not corrected",
            "leave --correction and --migration out",
        )
    is_worker = "RANK" in os.environ  # whose command has said it
    if header.correction == "policy" and chunks > 1 and not is_worker:
        console.note(
            f"note: --correction policy orders one chunk a stage, the plan has {chunks}: the"
            " portfolio orders them"
        )
    return asked


def decide_by(
    cost: CostModel,
    options: PlanOptions,
    correction: Correction,
    migration: bool,
    *,
    on_gpu: bool = False,
    most_rows: int | None = None,
) -> Decide:
    """How a run decides that was asked for these; a decision without gain is no change.

    A new order holds no more than the plan allows; where it has no limit, than its own order.
    `on_gpu`: whether communicators count in the memory that the plan was given. `most_rows` of a
    slot that is placed anew, where that is less than the cap.
    """
    cap_tokens = min(options.max_tokens_per_rank, most_rows or options.max_tokens_per_rank)
    placing = options.model_copy(update={"max_tokens_per_rank": cap_tokens})

    def decided(batch: BatchPlan, factor: FloatArray) -> tuple[Change, float, float]:
        planned = slot_times(cost, batch.sequences.placed(), batch.num_microbatches)
        chunks, static = planned.op_s.shape[2], SCHEDULES.get(options.pipeline)

        def again(count: int) -> Schedule:
            return static.make(cost.pp, count, chunks) if static else ()

        def memory(slots: SlotTimes) -> Memory:
            found = memory_of(cost, options, slots)
            if options.live_limit_tokens is not None:
                return found
            most = memory_of(cost, options, planned).most(batch.schedule, chunks)
            return replace(found, limit=max(most, float(found.live.max())))

        def reorder(slots: SlotTimes) -> Schedule:
            several = correction == "policy" and chunks > 1
            return PLANNED["portfolio" if several else correction](slots, memory(slots))

        found = decide(
            cost,
            batch,
            factor,
            forms=FORMS if migration else (),
            reorder=None if correction == "none" else reorder,
            most_live_tokens=options.live_limit_tokens,
            anew=() if correction == "none" else placed_anew(cost, placing, batch, factor),
            cap_tokens=options.max_tokens_per_rank,
            promise=lambda slots: promised_s(slots, memory(slots)),
            fits=fits_as_planned(cost, options, batch, on_gpu),
            again=again if batch.schedule == again(batch.num_microbatches) else None,
        )
        schedule = None if found.schedule == batch.schedule else found.schedule
        return Change(schedule, found.moves, found.places), found.before_s, found.after_s

    return decided


def decide_of(header: RunHeader, cost: CostModel, most_rows: int | None = None) -> Decide:
    """How a run decides, by what its header says."""
    asked = header.plan.options, header.correction, header.migration
    on_gpu = header.plan.cluster is not None
    return decide_by(cost, *asked, on_gpu=on_gpu, most_rows=most_rows)


def remembered(decide: Decide, most: int) -> Decide:
    """The same, each of the last `most` decisions made once, for trials that believe the same."""
    known: dict[tuple[int, bytes], tuple[Change, float, float]] = {}

    def decided(batch: BatchPlan, factor: FloatArray) -> tuple[Change, float, float]:
        key = batch.batch, factor.tobytes()
        found = known.pop(key, None) or decide(batch, factor)
        known[key] = found
        if len(known) > most:
            del known[next(iter(known))]
        return found

    return decided


def waits_for_compiler(header: RunHeader) -> bool:
    """Whether the first decision of a run compiles loops; not all are there if some are."""
    loops = ["pipeline.simulator"]
    if header.correction != "none":
        loops += ["placement.fill", "pipeline.list_schedule"]
    if header.correction == "policy":
        loops += ["policy.rollout"]
    return any(is_cold(f"hydraplan.planner.{name}") for name in loops)


def warm_up(header: RunHeader, cost: CostModel, batch: BatchPlan) -> None:
    """Decide once for nothing, so that no decision waits for code to be compiled."""
    if header.correction != "none" or header.migration:
        if waits_for_compiler(header):
            console.note(WAIT)
        factor = np.ones((cost.pp, cost.ranks))
        factor[0, 0] = 2.0
        decide = decide_of(header, cost)
        Corrections(cost, {batch.batch: batch}, decide).predicted_s(
            batch, decide(batch, factor)[0], factor
        )


def in_parts(each_s: Sequence[FloatArray]) -> FloatArray:
    """Seconds of each rank's ops, first half and second, (2, stages, lanes).

    Args:
        each_s: Seconds of every op, an array (ops, lanes) a stage.
    """
    halves = [np.array_split(stage_s, PARTS) for stage_s in each_s]
    return np.stack([[half.sum(axis=0) for half in part] for part in zip(*halves, strict=True)])
