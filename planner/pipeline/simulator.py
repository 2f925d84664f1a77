"""Run of a schedule over lanes x stages x microbatches.

Every stage works through its ops in order. An op starts on a lane when the lane is free and
its message is there; a slot without rows neither gets nor sends one. Lanes connected through
groups meet in every layer, so a connected set begins when its last lane begins and takes as
long as its busiest lane; lanes of which one works for the other begin together. BW, as 1F1B has
it, hands its gradient on when both halves are done; a forward joined with the backward after it
begins when both can and ends with it. After the last op of a stage's latest lane comes the exposed
gradient sync.

`simulate` is the noise-free run. `run_ops` takes what noise makes of the same slots: other op
times, other times on the way, slow spells of ranks (`noisy_run`).

Source: in-order longest path is standard; the rule for connected lanes is derived from the
executor, which runs one collective per group and layer in one global order.
"""

from typing import NamedTuple

import numpy as np

from hydraplan.errors import Infeasible
from hydraplan.model import FloatArray, IntArray, Schedule, Timeline
from hydraplan.planner.compiled import compiled
from hydraplan.planner.pipeline.spells import NONE, Spells, stretched_s
from hydraplan.planner.pipeline.together import merged, stops_of, together, with_partners
from hydraplan.route import Route, route
from hydraplan.slots import SlotTimes

_KINDS = {"F": 0, "B": 1, "W": 2, "BW": 3}
JOINED = 4
"""Kind of a forward that runs with the backward after it."""


class Load(NamedTuple):
    """What lanes have to do. Lanes come last, since runs walk over them.

    `op_s`: (3, stages, chunks, microbatches, lanes). `component`: lowest lane of each connected
    set, (microbatches, lanes). `travel_s`: seconds of a message to another stage, -inf for a slot
    without rows, (ways, nodes, microbatches, lanes), by the node that receives it; ways and nodes
    may be 1 where all are alike. `joined`: as in `SlotTimes`. `partner`: as there, but (forms,
    stages, microbatches, lanes), without forms where there is no migration.
    """

    op_s: FloatArray
    component: IntArray
    travel_s: FloatArray
    joined: float
    partner: IntArray


class OpTimes(NamedTuple):
    """Start, end and own work of every op, seconds, (stages, most ops of a stage, lanes)."""

    start_s: FloatArray
    end_s: FloatArray
    busy_s: FloatArray


def simulate(slots: SlotTimes, schedule: Schedule) -> Timeline:
    """Run every lane; arrays of the timeline have shape (ops of the stage, lanes), seconds.

    Raises:
        Infeasible: The op order of some stage can never go on.
    """
    return timeline(schedule, run_ops(load_of(slots), schedule, way_of(slots)), slots.grad_sync_s)


def load_of(slots: SlotTimes) -> Load:
    """The slots as runs take them."""
    travel_s = np.where(slots.rows > 0, slots.boundary_s, -np.inf).T
    partner = np.zeros((0, *slots.op_s.shape[1:2], *slots.component.shape), np.int64)
    if slots.partner is not None:
        partner = slots.partner
    return Load(
        np.ascontiguousarray(slots.op_s.swapaxes(-1, -2)),
        np.ascontiguousarray(slots.component.T),
        np.ascontiguousarray(travel_s)[None, None],
        slots.joined,
        np.ascontiguousarray(partner.swapaxes(-1, -2)),
    )


def way_of(slots: SlotTimes) -> Route:
    """The way through the chunks."""
    return slots.route or route("loop", *slots.op_s.shape[1:3])


def run_ops(
    load: Load,
    schedule: Schedule,
    way: Route,
    spells: Spells = NONE,
    lost_s: FloatArray | None = None,
) -> OpTimes:
    """When every op runs; what spells cost is added to `lost_s`, shape (spells,).

    Raises:
        Infeasible: The op order of some stage can never go on.
    """
    counts, kind, microbatch, chunk = op_arrays(schedule)
    times = OpTimes(*(np.empty((*kind.shape, load.op_s.shape[-1])) for _ in range(3)))
    if lost_s is None:
        lost_s = np.zeros(len(spells.speed))
    stuck = _run(
        counts, kind, microbatch, chunk, way.before, way.after, load, spells, lost_s, times
    )
    if stuck >= 0:
        raise stuck_at(stuck)
    return times


def stuck_at(stage: int) -> Infeasible:
    """Why no run comes to an end; `deadlock.circle` tells which ops wait for each other."""
    return Infeasible(f"ops wait for each other in a circle, stage {stage} cannot go on")


def timeline(schedule: Schedule, times: OpTimes, grad_sync_s: FloatArray) -> Timeline:
    """Op times as figures and files take them."""
    start, end, busy = (
        tuple(array[s, : len(ops)] for s, ops in enumerate(schedule)) for array in times
    )
    return Timeline(schedule, start, end, busy, grad_sync_s)


def op_arrays(schedule: Schedule) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Ops of each stage and their kind, microbatch and chunk, (stages, most ops)."""
    counts = np.array([len(ops) for ops in schedule], np.int64)
    shape = (len(schedule), int(counts.max()))
    kind, microbatch, chunk = (np.zeros(shape, np.int64) for _ in range(3))
    for s, ops in enumerate(schedule):
        kind[s, : len(ops)] = [JOINED if op.joined else _KINDS[op.kind] for op in ops]
        microbatch[s, : len(ops)] = [op.microbatch for op in ops]
        chunk[s, : len(ops)] = [op.chunk for op in ops]
    return counts, kind, microbatch, chunk


@compiled
def waits_for(
    kind: int, stage: int, chunk: int, before: IntArray, after: IntArray
) -> tuple[int, int]:
    """Node whose result an op needs, `NOWHERE` for none, and which: 0 forward, 1 backward."""
    if kind == 0 or kind == JOINED:
        return before[stage, chunk], 0
    here = stage * before.shape[1] + chunk
    if kind == 2:
        return here, 1
    if after[stage, chunk] < 0:
        return here, 0
    return after[stage, chunk], 1


@compiled
def feeds(kind: int, stage: int, chunk: int, before: IntArray, after: IntArray) -> int:
    """Stage of the next chunk that the result of an op goes to, -1 for none."""
    if kind == 2:
        return -1
    node = after[stage, chunk] if kind % JOINED == 0 else before[stage, chunk]
    return node // before.shape[1] if node >= 0 else -1


@compiled
def _stretch(
    stage: int,
    begin_s: FloatArray,
    work_s: FloatArray,
    stop: IntArray,
    spells: Spells,
    lost_s: FloatArray,
) -> None:
    """Lengthen the work of lanes that run into spells of theirs."""
    offset, begins_s, ends_s = stage * len(begin_s), spells.begin_s, spells.end_s
    if spells.first[offset] == spells.first[offset + len(begin_s)]:
        return
    first = 0
    while first < len(begin_s):
        end, latest = stop[first], begin_s[first]
        for lane in range(first + 1, end):
            latest = begin_s[lane] if begin_s[lane] > latest else latest
        for lane in range(first, end):
            low, high = spells.first[offset + lane], spells.first[offset + lane + 1]
            is_met = False
            for i in range(low, high):
                is_met |= begins_s[i] <= latest + work_s[lane] and ends_s[i] > latest
            if is_met:
                work_s[lane] = stretched_s(latest, work_s[lane], low, high, spells, lost_s)
        first = end


@compiled
def _run(
    counts: IntArray,
    kind: IntArray,
    microbatch: IntArray,
    chunk: IntArray,
    before: IntArray,
    after: IntArray,
    load: Load,
    spells: Spells,
    lost_s: FloatArray,
    times: OpTimes,
) -> int:
    """Fill the times of all ops; return -1, or the first stage that cannot go on.

    A stage runs until it waits, and is looked at again when an op it may wait for is done: work
    grows with ops and stages, not with their product.
    """
    op_s, component, travel_s, joined, partner = load
    num_stages, num_chunks = before.shape
    num_microbatches, num_lanes = component.shape
    nodes = num_stages * num_chunks
    done_at = np.full((2, nodes, num_microbatches), -1, np.int64)  # position of F, of B or BW
    position = np.zeros(num_stages, np.int64)
    idle, alone = np.zeros(num_lanes), np.arange(1, num_lanes + 1)
    stops = stops_of(component)
    stay_s = np.where(travel_s[0, 0] < 0, travel_s[0, 0], 0.0)  # slots without rows wait for none
    several_ways, several_nodes = travel_s.shape[0] > 1, travel_s.shape[1] > 1
    waiting, is_waiting = np.arange(num_stages), np.ones(num_stages, np.bool_)  # ring of stages
    first, length = 0, num_stages
    while length > 0:
        s = waiting[first]
        first, length, is_waiting[s] = (first + 1) % num_stages, length - 1, False
        while position[s] < counts[s]:
            i = position[s]
            parts = 2 if kind[s, i] == JOINED else 1
            ready = True
            for j in range(i, i + parts):
                source, way = waits_for(kind[s, j], s, chunk[s, j], before, after)
                ready &= source < 0 or done_at[way, source, microbatch[s, j]] >= 0
            if not ready:
                break
            begin, end, work = times.start_s[s, i], times.end_s[s, i], times.busy_s[s, i]
            begin[:] = idle if i == 0 else times.end_s[s, i - 1]
            for j in range(i, i + parts):
                k, m, c = kind[s, j], microbatch[s, j], chunk[s, j]
                source, way = waits_for(k, s, c, before, after)
                if source >= 0:
                    sent = times.end_s[source // num_chunks, done_at[way, source, m]]
                    here = (s * num_chunks + c) * several_nodes
                    on_way = travel_s[way * several_ways, here, m]
                    if source // num_chunks == s:
                        on_way = stay_s[m]
                    for lane in range(num_lanes):
                        arrival = sent[lane] + on_way[lane]
                        begin[lane] = arrival if arrival > begin[lane] else begin[lane]
                own = op_s[k % JOINED if k != 3 else 1, s, c, m]
                if k == 3:
                    both = op_s[2, s, c, m]
                    for lane in range(num_lanes):
                        total = own[lane] + both[lane]
                        work[lane] = total if j == i else work[lane] + total
                else:
                    for lane in range(num_lanes):
                        work[lane] = own[lane] if j == i else work[lane] + own[lane]
            stop = alone if kind[s, i] == 2 else stops[m]  # weight gradients meet nobody
            if parts == 2:
                for lane in range(num_lanes):
                    work[lane] *= joined
                stop = merged(stops[microbatch[s, i]], stops[m])
            if len(partner) > 0:
                for j in range(i, i + parts):
                    if kind[s, j] != 2:
                        with_partners(partner[:, s, microbatch[s, j]], stop, begin)
            if len(spells.first) > 0:
                _stretch(s, begin, work, stop, spells, lost_s)
            together(begin, work, stop, end)
            if parts == 2:
                for lane in range(num_lanes):
                    work[lane] /= 2
                times.start_s[s, i + 1], times.end_s[s, i + 1] = begin, end
                times.busy_s[s, i + 1] = work
            for j in range(i, i + parts):
                if kind[s, j] != 2:
                    way = 0 if kind[s, j] % JOINED == 0 else 1
                    done_at[way, s * num_chunks + chunk[s, j], microbatch[s, j]] = j
            for j in range(i, i + parts):
                other = feeds(kind[s, j], s, chunk[s, j], before, after)
                if other >= 0 and not is_waiting[other]:
                    waiting[(first + length) % num_stages] = other
                    length, is_waiting[other] = length + 1, True
            position[s] += parts
    for s in range(num_stages):
        if position[s] < counts[s]:
            return s
    return -1
