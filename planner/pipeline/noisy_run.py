"""Runs of a schedule under noise: many trials side by side, each second attributed to its cause.

Trials share op order and groups, so they run as lanes next to each other in one call of the
simulator, in blocks that fit a cache. Every trial is run again without each source, on the same
draws of all others: how much shorter it gets is what the source costs. Without noise a trial is
`simulate`, to the last bit.

Where time goes is counted over the ranks of a run: own work, as planned and as lengthened by each
source; waiting for a message (the part that is on the way, the part that is not sent yet), for
members of CP groups, for the stage's latest lane, for other stages at the end; gradient sync.

Source: our choice of causes; the counterfactual of the same draw is the "what-if" of
ByteDance's straggler study (OSDI 2025).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from hydraplan.metrics import peak_live_tokens
from hydraplan.model import FloatArray, IntArray, Schedule, Timeline
from hydraplan.planner.compiled import compiled
from hydraplan.planner.pipeline.noise import SOURCES, SPELL_SOURCES, Draws, Noise, draw, shape_of
from hydraplan.planner.pipeline.simulator import (
    JOINED,
    Load,
    OpTimes,
    load_of,
    op_arrays,
    run_ops,
    timeline,
    waits_for,
    way_of,
)
from hydraplan.slots import SlotTimes

CAUSES = ("compute", "stage_wait", "link_wait", "group_wait", "dp_bubble", "grad_sync")
"""Where a rank's time goes besides noise: own work as planned; waiting for a message not yet sent,
or for the others at the end; for one on its way; for members of its groups; for the latest lane of
its stage; exposed gradient sync."""

BLOCK = 1 << 18
"""Op times of the trials that run side by side; more would leave the cache."""


@dataclass(frozen=True, slots=True, eq=False)
class NoisyRun:
    """Trials of one batch; arrays of shape (trials,), seconds.

    `nominal_s`: the iteration without noise. `without_s`: the same trial without one source.
    `lost_s`: mean over ranks by cause, those of `CAUSES` and every active source; they add up to
    `iteration_s`. A source counts there what it adds to a rank's own work or to a message that the
    rank waits for; what it makes others wait stands under waiting, and is found by `without_s`.
    `peak_live_tokens`: of the op order, the same in every trial.
    """

    noise: Noise
    iteration_s: FloatArray
    nominal_s: float
    without_s: dict[str, FloatArray]
    lost_s: dict[str, FloatArray]
    peak_live_tokens: float

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
    barrier: bool = False,
) -> NoisyRun:
    """Run a batch so many times, each under draws of its own; see `noise.draw`.

    Args:
        node_ranks: Neighbouring lanes of a stage that are preempted together.
        barrier: Whether all lanes of a stage meet in every F and B, as experts spread over the pool
            make them.

    Raises:
        Infeasible: The op order of some stage can never go on.
    """
    if barrier:
        slots = replace(slots, component=np.zeros_like(slots.component))
    plain = run_ops(load_of(slots), schedule, way_of(slots))
    nominal_s = float(_iteration_s(slots, schedule, plain)[0])
    planned_s, found = _planned_s(slots, schedule), []
    for block in _blocks(slots, trials if noise.active else 1):
        draws = draw(noise, shape_of(slots, node_ranks), nominal_s, block, seed, step)
        load, lost_s = noisy_load(slots, draws), np.zeros(len(draws.spells.speed))
        times = run_ops(load, schedule, way_of(slots), draws.spells, lost_s)
        parts = _causes(slots, schedule, planned_s, draws, load, times, lost_s)
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
        peak_live_tokens=peak_live_tokens(schedule, slots.rows),
    )


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
    op_s = load.op_s
    for i, factor in enumerate(draws.op.values()):
        op_s = _times(op_s, factor) if i == 0 else op_s * factor
    lanes = load.component.shape[1]
    offset = np.repeat(np.arange(count) * lanes, lanes)
    travel_s = load.travel_s
    return Load(
        op_s if draws.op else _tiled(op_s, count),
        np.tile(load.component, count) + offset,
        _tiled(travel_s, count) if draws.message is None else _times(travel_s, draws.message),
        load.joined,
    )


def _tiled(array: FloatArray, count: int) -> FloatArray:
    return array if count == 1 else np.tile(array, count)


def _times(array: FloatArray, factor: FloatArray) -> FloatArray:
    """The array, its lanes once for every trial, times the factors."""
    apart = factor.reshape(*factor.shape[:-1], -1, array.shape[-1])
    result: FloatArray = (array[..., None, :] * apart).reshape(factor.shape)
    return result


def _blocks(slots: SlotTimes, trials: int) -> Iterator[range]:
    """Numbers of the trials, as many at a time as fit."""
    size = max(1, BLOCK // slots.op_s.size)
    for first in range(0, trials, size):
        yield range(first, min(first + size, trials))


def _stage_end_s(schedule: Schedule, times: OpTimes, lanes: int) -> tuple[FloatArray, FloatArray]:
    """End of every lane, (stages, trials, lanes), and of the latest, (stages, trials)."""
    last = np.array([len(ops) - 1 for ops in schedule])
    lane_end_s = times.end_s[np.arange(len(last)), last].reshape(len(last), -1, lanes)
    return lane_end_s, lane_end_s.max(axis=2)


def _iteration_s(
    slots: SlotTimes, schedule: Schedule, times: OpTimes, sync: FloatArray | float = 1.0
) -> FloatArray:
    _, stage_end_s = _stage_end_s(schedule, times, slots.rows.shape[0])
    result: FloatArray = (stage_end_s + slots.grad_sync_s[:, None] * sync).max(axis=0)
    return result


def _causes(
    slots: SlotTimes,
    schedule: Schedule,
    planned_s: FloatArray,
    draws: Draws,
    load: Load,
    times: OpTimes,
    lost_s: FloatArray,
) -> dict[str, FloatArray]:
    """Mean over ranks of the seconds each cause takes, (trials,)."""
    num_stages, lanes = len(schedule), slots.rows.shape[0]
    ranks = num_stages * lanes
    way, planned_way_s = way_of(slots), _tiled(load_of(slots).travel_s, draws.trials)[0, 0]
    totals = np.zeros((4, draws.trials * lanes))
    _waits(
        *op_arrays(schedule), way.before, way.after, load.travel_s,
        planned_way_s, times, totals,
    )  # fmt: skip
    waited, on_way, planned_way, busy = totals.reshape(4, draws.trials, lanes).sum(axis=2) / ranks
    lane_end_s, stage_end_s = _stage_end_s(schedule, times, lanes)
    sync_s = slots.grad_sync_s[:, None] * draws.sync
    total_s = (stage_end_s + sync_s).max(axis=0)
    end_s = lane_end_s.sum(axis=(0, 2)) / ranks
    own_s = planned_s
    added: dict[str, FloatArray] = {}
    compute_s = float(own_s.sum()) / ranks
    for name, factor in draws.op.items():
        after_s = _times(own_s, factor) if not added else own_s * factor
        before = own_s.sum() if not added else _by_trial(own_s, draws.trials)
        added[name] = (_by_trial(after_s, draws.trials) - before) / ranks
        own_s = after_s
    lost_of = np.zeros((len(SOURCES), draws.trials))
    trial = draws.spell_rank() % (draws.trials * lanes) // lanes
    np.add.at(lost_of, (draws.spells.source, trial), lost_s / ranks)
    added |= {name: lost_of[SOURCES.index(name)] for name in SPELL_SOURCES}
    added["link"] = on_way - planned_way + (sync_s - slots.grad_sync_s[:, None]).mean(axis=0)
    return added | {
        "compute": np.full(draws.trials, compute_s),
        "stage_wait": waited - on_way + total_s - (stage_end_s + sync_s).mean(axis=0),
        "link_wait": planned_way,
        "group_wait": end_s - waited - busy,
        "dp_bubble": stage_end_s.mean(axis=0) - end_s,
        "grad_sync": np.full(draws.trials, slots.grad_sync_s.mean()),
    }


def _by_trial(array: FloatArray, trials: int) -> FloatArray:
    """Sum over everything but the trial."""
    result: FloatArray = array.reshape(-1, trials, array.shape[-1] // trials).sum(axis=(0, 2))
    return result


def _planned_s(slots: SlotTimes, schedule: Schedule) -> FloatArray:
    """What the ops of the schedule take, those in pairs as such, shaped as `Load.op_s`."""
    _, stages, chunks, _, microbatches = slots.op_s.shape
    share = np.zeros((3, stages, chunks, microbatches, 1))
    halves = {"F": [0], "B": [1], "W": [2], "BW": [1, 2]}
    for s, ops in enumerate(schedule):
        for i, op in enumerate(ops):
            paired = op.joined or (i > 0 and ops[i - 1].joined)
            share[halves[op.kind], s, op.chunk, op.microbatch] = slots.joined if paired else 1.0
    planned_s: FloatArray = load_of(slots).op_s * share
    return planned_s


@compiled
def _waits(
    counts: IntArray,
    kind: IntArray,
    microbatch: IntArray,
    chunk: IntArray,
    before: IntArray,
    after: IntArray,
    travel_s: FloatArray,
    planned_s: FloatArray,
    times: OpTimes,
    totals: FloatArray,
) -> None:
    """Add up four kinds of seconds per lane, over all stages, into `totals`, (4, lanes).

    Waiting for a message; the part of it that the message is on its way; the share of that part
    that was planned; own work.
    """
    num_chunks, lanes = before.shape[1], totals.shape[1]
    position = np.zeros((2, before.size, planned_s.shape[0]), np.int64)
    for s in range(len(counts)):
        for i in range(counts[s]):
            if kind[s, i] != 2:
                way = 0 if kind[s, i] % JOINED == 0 else 1
                position[way, s * num_chunks + chunk[s, i], microbatch[s, i]] = i
    for s in range(len(counts)):
        for i in range(counts[s]):
            totals[3] += times.busy_s[s, i]
            if i > 0 and kind[s, i - 1] == JOINED:  # starts with the op before it
                continue
            parts = 2 if kind[s, i] == JOINED else 1
            for lane in range(lanes):
                free = times.end_s[s, i - 1, lane] if i > 0 else 0.0
                gap = times.start_s[s, i, lane] - free
                if gap <= 0:
                    continue
                totals[0, lane] += gap
                latest, on_way, planned = free, 0.0, 0.0
                for j in range(i, i + parts):
                    m = microbatch[s, j]
                    source, way = waits_for(kind[s, j], s, chunk[s, j], before, after)
                    if source < 0 or source // num_chunks == s:
                        continue
                    here = (s * num_chunks + chunk[s, j]) * (travel_s.shape[1] > 1)
                    taken = travel_s[way * (travel_s.shape[0] > 1), here, m, lane]
                    sent = times.end_s[source // num_chunks, position[way, source, m], lane]
                    if sent + taken > latest:
                        latest, on_way, planned = sent + taken, taken, planned_s[m, lane]
                if on_way > 0:
                    part = min(gap, on_way)
                    totals[1, lane] += part
                    totals[2, lane] += part * planned / on_way
