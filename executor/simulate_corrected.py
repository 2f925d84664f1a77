"""`execute --simulate` with corrections: each trial walks through the steps and decides by itself.

A trial keeps its straggler over all steps, so what the first steps tell is of use in later ones. It
meets the draws that it would meet without corrections; the same step as planned, on these draws,
stands beside it as the run without `CORRECTION`. The deciding is the code of real runs.

Seconds worked are those of the simulator, without what ranks wait for partners where work moves.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from hydraplan.executor.change import checked
from hydraplan.executor.correction import Corrections, Replay, Worked, in_parts
from hydraplan.executor.predicted import Loads, loads_of
from hydraplan.files.decisionsfile import Change, Decided
from hydraplan.files.runfile import RunHeader
from hydraplan.files.trialsfile import CORRECTION, Trials
from hydraplan.migration import NO_MOVES
from hydraplan.model import BatchPlan, FloatArray, Timeline
from hydraplan.planner.pipeline.noise import SOURCES, Draws, Noise, draw, shape_of
from hydraplan.planner.pipeline.noisy_run import iteration_s, noisy_run, noisy_timeline, trial_s
from hydraplan.slots import SlotTimes

Deciding = Corrections | Replay


class Ran(NamedTuple):
    """A step: its batch in the order that it ran, the change that was, when ops ran, decisions."""

    batch: BatchPlan
    change: Change
    timeline: Timeline
    decided: Decided | None
    tried: Trials


def run_trial(
    trial: int,
    visited: Sequence[BatchPlan],
    deciding: Deciding,
    run: RunHeader,
    noise: Noise,
    meet: Callable[[SlotTimes], SlotTimes],
) -> list[Ran]:
    """All steps of a trial.

    Args:
        visited: The batches, in turn.
        meet: What is done to slots before they are run.
    """
    cost, found = run.plan.cost_model(), []
    planned = [
        meet(loads_of(cost, b, NO_MOVES, np.ones((cost.pp, cost.ranks))).slots) for b in visited
    ]
    planned_s = [iteration_s(slots, b.schedule) for slots, b in zip(planned, visited, strict=True)]
    known: dict[tuple[int, Change], tuple[BatchPlan, Loads]] = {}
    for step in range(run.steps):
        at = step % len(visited)
        batch, plain = visited[at], planned[at]
        decided = deciding.coming(step, batch)
        change = deciding.change(batch.batch)
        shape, trials = shape_of(plain, cost.node_ranks), range(trial, trial + 1)
        draws = draw(noise, shape, planned_s[at], trials, run.seed, step)
        if (key := (batch.batch, change)) not in known:
            ran = checked(run.plan, batch, change, "a decision").batch
            known[key] = ran, loads_of(cost, ran, change.moves, straggling(draws))
        now, loads = known[key]
        slots = meet(loads.slots)
        drawn = draws
        if (here := shape_of(slots, cost.node_ranks)) != shape:  # of more microbatches
            drawn = draw(noise, here, planned_s[at], trials, run.seed, step)
        timeline = loads.busy(noisy_timeline(slots, now.schedule, drawn))
        noisy = noisy_run(
            slots,
            now.schedule,
            noise,
            trials=1,
            seed=run.seed,
            step=step,
            node_ranks=cost.node_ranks,
            first=trial,
            planned_s=planned_s[at],
        )
        tried = Trials(
            noisy.iteration_s,
            planned_s[at],
            noisy.lost_s | {CORRECTION: np.zeros(1)},
            noisy.without_s | {CORRECTION: trial_s(plain, batch.schedule, draws)},
        )
        parts = in_parts(timeline.busy_s), in_parts(loads.of_ops(now.schedule))
        worked = Worked(step, batch.batch, change, float(noisy.iteration_s[0]), *parts)
        found.append(Ran(now, change, timeline, deciding.done(worked, decided), tried))
    return found


def beside(trials: Sequence[Trials]) -> Trials:
    """The same step of several trials as one."""
    first = trials[0]
    return Trials(
        np.concatenate([each.iteration_s for each in trials]),
        first.nominal_s,
        {name: np.concatenate([t.lost_s[name] for t in trials]) for name in first.lost_s},
        {name: np.concatenate([t.without_s[name] for t in trials]) for name in first.without_s},
    )


def straggling(draws: Draws) -> FloatArray:
    """Times as long as planned that each rank of a single trial takes in all its steps."""
    shape, spells = draws.shape, draws.spells
    factor = np.ones(shape.stages * shape.lanes)
    is_one = spells.source == SOURCES.index("straggler")
    np.divide.at(factor, draws.spell_rank()[is_one], spells.speed[is_one])
    return factor.reshape(shape.stages, shape.lanes)
