"""Where the time of ranks goes in a run: each second of each rank has one cause.

Own work, as planned and as lengthened by each source of noise; waiting for a message (the part on
its way, the part not sent yet), for members of CP groups, for the latest lane of the stage,
for other stages at the end; gradient sync. Of the wait for other stages, what a stage has less to
do than the costliest counts as `stage_skew`: it must wait that long at least. What noise makes
others wait stands under waiting; what a source costs in all is asked of runs without it
(`noisy_run`).

Source: our choice.
"""

import numpy as np

from hydraplan.model import FloatArray, IntArray, Schedule
from hydraplan.planner.compiled import compiled
from hydraplan.planner.pipeline.noise import SOURCES, SPELL_SOURCES, Draws, Factors
from hydraplan.planner.pipeline.simulator import (
    JOINED,
    Load,
    OpTimes,
    load_of,
    op_arrays,
    waits_for,
    way_of,
)
from hydraplan.slots import SlotTimes

CAUSES = (
    "compute", "stage_wait", "stage_skew", "link_wait", "group_wait", "dp_bubble", "grad_sync"
)  # fmt: skip
"""Where a rank's time goes besides noise: own work as planned; waiting for a message not yet sent,
or for the others at the end; of that, what stages differ by in planned work; for one on its way;
for members of its groups; for the latest lane of its stage; exposed gradient sync."""


def times_of_trials(array: FloatArray, factor: Factors) -> FloatArray:
    """The array, its lanes once for every trial if they are those of one, times the factors."""
    apart = factor.reshape(*factor.shape[:-1], -1, array.shape[-1])
    result: FloatArray = (array[..., None, :] * apart).reshape(factor.shape)
    return result


def ends_s(schedule: Schedule, times: OpTimes, lanes: int) -> tuple[FloatArray, FloatArray]:
    """End of every lane, (stages, trials, lanes), and of the latest, (stages, trials)."""
    last = np.array([len(ops) - 1 for ops in schedule])
    lane_end_s = times.end_s[np.arange(len(last)), last].reshape(len(last), -1, lanes)
    return lane_end_s, lane_end_s.max(axis=2)


def planned_s(slots: SlotTimes, schedule: Schedule) -> FloatArray:
    """What the ops of the schedule take without noise, pairs as such, shaped as `Load.op_s`."""
    _, stages, chunks, _, microbatches = slots.op_s.shape
    share = np.zeros((3, stages, chunks, microbatches, 1))
    halves = {"F": [0], "B": [1], "W": [2], "BW": [1, 2]}
    for s, ops in enumerate(schedule):
        for i, op in enumerate(ops):
            paired = op.joined or (i > 0 and ops[i - 1].joined)
            share[halves[op.kind], s, op.chunk, op.microbatch] = slots.joined if paired else 1.0
    result: FloatArray = load_of(slots).op_s * share
    return result


def causes_s(
    slots: SlotTimes,
    schedule: Schedule,
    own_s: FloatArray,
    draws: Draws,
    load: Load,
    times: OpTimes,
    lost_s: FloatArray,
) -> dict[str, FloatArray]:
    """Mean over ranks of the seconds each cause takes, (trials,); they add up to the iteration.

    Args:
        own_s: From `planned_s`.
        lost_s: Seconds that each spell of the draws took, from the run.
    """
    trials, lanes = draws.trials, slots.rows.shape[0]
    ranks, way = len(schedule) * lanes, way_of(slots)
    planned_way_s = np.tile(load_of(slots).travel_s[0, 0], trials)
    totals = np.zeros((4, trials * lanes))
    _waits(*op_arrays(schedule), way.before, way.after, load.travel_s, planned_way_s, times, totals)
    waited, on_way, planned_way, busy = totals.reshape(4, trials, lanes).sum(axis=2) / ranks
    lane_end_s, stage_end_s = ends_s(schedule, times, lanes)
    end_s = lane_end_s.sum(axis=(0, 2)) / ranks
    sync_s = slots.grad_sync_s[:, None] * draws.sync
    total_s = (stage_end_s + sync_s).max(axis=0)
    stage_wait_s = waited - on_way + total_s - (stage_end_s + sync_s).mean(axis=0)
    stage_s = own_s.sum(axis=(0, 2, 3)).mean(axis=1)
    skew_s = np.minimum(stage_wait_s, stage_s.max() - stage_s.mean())
    found = {
        "compute": np.full(trials, own_s.sum() / ranks),
        "stage_wait": stage_wait_s - skew_s,
        "stage_skew": skew_s,
        "link_wait": planned_way,
        "group_wait": end_s - waited - busy,
        "dp_bubble": stage_end_s.mean(axis=0) - end_s,
        "grad_sync": np.full(trials, slots.grad_sync_s.mean()),
    }
    before_s = found["compute"]
    for name, factor in draws.op.items():
        own_s = times_of_trials(own_s, factor)
        after_s = own_s.reshape(-1, trials, lanes).sum(axis=(0, 2)) / ranks
        found[name], before_s = after_s - before_s, after_s
    lost_of = np.zeros((len(SOURCES), trials))
    trial = draws.spell_rank() % (trials * lanes) // lanes
    np.add.at(lost_of, (draws.spells.source, trial), lost_s / ranks)
    found |= {name: lost_of[SOURCES.index(name)] for name in SPELL_SOURCES}
    found["link"] = on_way - planned_way + (sync_s - slots.grad_sync_s[:, None]).mean(axis=0)
    return found


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
