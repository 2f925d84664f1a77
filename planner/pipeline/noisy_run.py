"""Runs of a schedule under noise: many trials side by side, and what each source of noise costs.

Trials share op order and groups, so they run as lanes next to each other in one call of the
simulator, in blocks that fit a cache. Every trial is run again without each source, on the same
draws of all others: how much shorter it gets is what the source costs. Without noise a trial is
`simulate`, to the last bit.

Source: our choice; the counterfactual of the same draw is the what-if question of ByteDance's
straggler study (OSDI 2025).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from hydraplan.model import FloatArray, Schedule, Timeline
from hydraplan.planner.pipeline.causes import (
    CAUSES,
    causes_s,
    ends_s,
    times_of_trials,
)
from hydraplan.planner.pipeline.causes import planned_s as work_s
from hydraplan.planner.pipeline.noise import Draws, Noise, draw, shape_of
from hydraplan.planner.pipeline.simulator import Load, OpTimes, load_of, run_ops, timeline, way_of
from hydraplan.slots import SlotTimes

BLOCK = 1 << 18
"""Op times of the trials that run side by side; more would leave the cache."""


@dataclass(frozen=True, slots=True, eq=False)
class NoisyRun:
    """Trials of one batch; arrays of shape (trials,), seconds.

    `nominal_s`: the iteration without noise. `without_s`: the same trial without one source.
    `lost_s`: mean over ranks by cause, those of `CAUSES` and every active source; they add up to
    `iteration_s`. A source counts there what it adds to a rank's own work or to a message that the
    rank waits for; what it makes others wait stands under waiting, and is found by `without_s`.
    """

    noise: Noise
    iteration_s: FloatArray
    nominal_s: float
    without_s: dict[str, FloatArray]
    lost_s: dict[str, FloatArray]

    def cost_s(self, source: str) -> FloatArray:
        """What each trial is longer by because of this source."""
        return self.iteration_s - self.without_s[source]


def noisy_run(
    slots: SlotTimes,
    schedule: Schedule,
    noise: Noise,
    *,
    trials: int,
    seed: int = 0,
    step: int = 0,
    node_ranks: int = 1,
    first: int = 0,
    planned_s: float | None = None,
) -> NoisyRun:
    """Run a batch so many times, each under draws of its own; see `noise.draw`.

    Args:
        node_ranks: Neighbouring lanes of a stage that are preempted together.
        first: Number of the first trial.
        planned_s: The iteration without noise that draws are scaled by, None for that of the
            schedule; for changes of a plan that meet the draws of the plan.

    Raises:
        Infeasible: The op order of some stage can never go on.
    """
    nominal_s = iteration_s(slots, schedule) if planned_s is None else planned_s
    own_s, found = work_s(slots, schedule), []
    for block in _blocks(slots, first, trials if noise.active else 1):
        draws = draw(noise, shape_of(slots, node_ranks), nominal_s, block, seed, step)
        load, lost_s = noisy_load(slots, draws), np.zeros(len(draws.spells.speed))
        times = run_ops(load, schedule, way_of(slots), draws.spells, lost_s)
        parts = causes_s(slots, schedule, own_s, draws, load, times, lost_s)
        without = {
            name: trial_s(slots, schedule, draws.without(name))
            if noise.without(name).active
            else np.full(len(block), nominal_s)
            for name in noise.active
        }
        found.append(
            {"iteration": _iteration_s(slots, schedule, times, draws.sync)}
            | {f"lost {name}": lost for name, lost in parts.items()}
            | {f"without {name}": taken_s for name, taken_s in without.items()}
        )
    repeat = 1 if noise.active else trials
    whole = {name: np.concatenate([f[name] for f in found]).repeat(repeat) for name in found[0]}
    return NoisyRun(
        noise=noise,
        iteration_s=whole["iteration"],
        nominal_s=nominal_s,
        without_s={name: whole[f"without {name}"] for name in noise.active},
        lost_s={name: whole[f"lost {name}"] for name in (*CAUSES, *noise.active)},
    )


def iteration_s(slots: SlotTimes, schedule: Schedule) -> float:
    """The iteration without noise."""
    plain = run_ops(load_of(slots), schedule, way_of(slots))
    return float(_iteration_s(slots, schedule, plain)[0])


def with_pool_barrier(slots: SlotTimes) -> SlotTimes:
    """The same, all lanes of a stage meeting in every F and B, as experts over the pool make them.

    What they exchange there is not counted, only that they wait for each other.
    """
    return replace(slots, component=np.zeros_like(slots.component))


def trial_s(slots: SlotTimes, schedule: Schedule, draws: Draws) -> FloatArray:
    """Iteration time of every trial, (trials,): what scores an op order on given draws."""
    times = run_ops(noisy_load(slots, draws), schedule, way_of(slots), draws.spells)
    return _iteration_s(slots, schedule, times, draws.sync)


def noisy_timeline(slots: SlotTimes, schedule: Schedule, draws: Draws) -> Timeline:
    """When every op of a single trial runs."""
    assert draws.trials == 1, draws.trials
    times = run_ops(noisy_load(slots, draws), schedule, way_of(slots), draws.spells)
    return timeline(schedule, times, slots.grad_sync_s * draws.sync[:, 0])


def noisy_load(slots: SlotTimes, draws: Draws) -> Load:
    """The slots of all trials side by side, with the factors of their draws."""
    load, count = load_of(slots), draws.trials
    op_s = load.op_s if draws.op else _tiled(load.op_s, count)
    for factor in draws.op.values():
        op_s = times_of_trials(op_s, factor)
    travel_s = _tiled(load.travel_s, count)
    if draws.message is not None:
        travel_s = times_of_trials(load.travel_s, draws.message)
    lanes = load.component.shape[1]
    offset = np.repeat(np.arange(count) * lanes, lanes)
    partner = np.tile(load.partner, count) + offset
    return Load(op_s, np.tile(load.component, count) + offset, travel_s, load.joined, partner)


def _tiled(array: FloatArray, count: int) -> FloatArray:
    return array if count == 1 else np.tile(array, count)


def _blocks(slots: SlotTimes, first: int, trials: int) -> Iterator[range]:
    """Numbers of the trials, as many at a time as fit."""
    size = max(1, BLOCK // slots.op_s.size)
    for begin in range(first, first + trials, size):
        yield range(begin, min(begin + size, first + trials))


def _iteration_s(
    slots: SlotTimes, schedule: Schedule, times: OpTimes, sync: FloatArray | float = 1.0
) -> FloatArray:
    _, stage_end_s = ends_s(schedule, times, slots.rows.shape[0])
    result: FloatArray = (stage_end_s + slots.grad_sync_s[:, None] * sync).max(axis=0)
    return result
