"""Noise-free run of a schedule over lanes x stages x microbatches.

Every stage works through its ops in order. An op starts on a lane when the lane is free and
its message is there; a slot without rows neither gets nor sends one. Lanes connected through
groups meet in every layer, so a connected set begins when its last lane begins and takes as
long as its busiest lane. BW, as 1F1B has it, hands its gradient on when both halves are done;
a forward joined with the backward after it begins when both can and ends with it. After the last
op of a stage's latest lane comes the exposed gradient sync.

Source: in-order longest path is standard; the rule for connected lanes is derived from the
executor, which runs one collective per group and layer in one global order.
"""

import numpy as np

from hydraplan.errors import Infeasible
from hydraplan.model import FloatArray, IntArray, Schedule, Timeline
from hydraplan.planner.compiled import compiled
from hydraplan.route import route
from hydraplan.slots import SlotTimes

_KINDS = {"F": 0, "B": 1, "W": 2, "BW": 3}
JOINED = 4
"""Kind of a forward that runs with the backward after it."""


def simulate(slots: SlotTimes, schedule: Schedule) -> Timeline:
    """Run every lane; arrays of the timeline have shape (ops of the stage, lanes), seconds.

    Raises:
        Infeasible: The op order of some stage can never go on.
    """
    counts, kind, microbatch, chunk = op_arrays(schedule)
    shape = (*kind.shape, slots.rows.shape[0])
    start, end, busy = (np.zeros(shape) for _ in range(3))
    way = slots.route or route("loop", *slots.op_s.shape[1:3])
    stuck = _run(
        counts, kind, microbatch, chunk, way.before, way.after, slots.op_s, slots.joined,
        slots.rows, slots.component, slots.boundary_s, start, end, busy,
    )  # fmt: skip
    if stuck >= 0:
        raise Infeasible(f"the op order of stage {stuck} waits for an op that never comes")
    return Timeline(
        schedule=schedule,
        start_s=tuple(start[s, :n] for s, n in enumerate(counts)),
        end_s=tuple(end[s, :n] for s, n in enumerate(counts)),
        busy_s=tuple(busy[s, :n] for s, n in enumerate(counts)),
        grad_sync_s=slots.grad_sync_s,
    )


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
def _end(
    kind: int,
    microbatches: IntArray,
    component: IntArray,
    begin: FloatArray,
    work: FloatArray,
    free: FloatArray,
) -> None:
    """Fill when every lane is free again; connected lanes begin with the last and end together."""
    if kind == 2:  # weight gradients meet nobody
        free[:] = begin + work
        return
    lane = 0
    while lane < len(free):
        after, latest, longest = lane + 1, begin[lane], work[lane]
        while after < len(free):
            connected = False
            for m in microbatches:
                connected |= component[after, m] == component[after - 1, m]
            if not connected:
                break
            latest, longest = max(latest, begin[after]), max(longest, work[after])
            after += 1
        free[lane:after] = latest + longest
        lane = after


@compiled
def _run(
    counts: IntArray,
    kind: IntArray,
    microbatch: IntArray,
    chunk: IntArray,
    before: IntArray,
    after: IntArray,
    op_s: FloatArray,
    joined: float,
    rows: IntArray,
    component: IntArray,
    boundary_s: FloatArray,
    start: FloatArray,
    end: FloatArray,
    busy: FloatArray,
) -> int:
    """Fill start, end and busy; return -1, or a stage that cannot go on."""
    num_stages, num_chunks = before.shape
    num_lanes, num_microbatches = component.shape
    nodes = num_stages * num_chunks
    done_at = np.full((2, nodes, num_microbatches), -1, np.int64)  # position of F, of B or BW
    position = np.zeros(num_stages, np.int64)
    free = np.zeros((num_stages, num_lanes))
    begin, work = np.empty(num_lanes), np.empty(num_lanes)
    remaining = counts.sum()
    while remaining > 0:
        moved = False
        for s in range(num_stages):
            while position[s] < counts[s]:
                i = position[s]
                parts = 2 if kind[s, i] == JOINED else 1
                ready = True
                for j in range(i, i + parts):
                    source, way = waits_for(kind[s, j], s, chunk[s, j], before, after)
                    ready &= source < 0 or done_at[way, source, microbatch[s, j]] >= 0
                if not ready:
                    break
                begin[:], work[:] = free[s], 0.0
                for j in range(i, i + parts):
                    k, m, c = kind[s, j], microbatch[s, j], chunk[s, j]
                    source, way = waits_for(k, s, c, before, after)
                    from_stage = source // num_chunks
                    for lane in range(num_lanes):
                        if source >= 0 and rows[lane, m] > 0:
                            arrival = end[from_stage, done_at[way, source, m], lane]
                            if from_stage != s:
                                arrival += boundary_s[lane, m]
                            begin[lane] = max(begin[lane], arrival)
                        if k == 3:
                            work[lane] += op_s[1, s, c, lane, m] + op_s[2, s, c, lane, m]
                        else:
                            work[lane] += op_s[k % JOINED, s, c, lane, m]
                if parts == 2:
                    work *= joined
                _end(kind[s, i], microbatch[s, i : i + parts], component, begin, work, free[s])
                for j in range(i, i + parts):
                    start[s, j], end[s, j], busy[s, j] = begin, free[s], work / parts
                    if kind[s, j] != 2:
                        way = 0 if kind[s, j] % JOINED == 0 else 1
                        done_at[way, s * num_chunks + chunk[s, j], microbatch[s, j]] = j
                position[s] += parts
                remaining -= parts
                moved = True
        if not moved:
            for s in range(num_stages):
                if position[s] < counts[s]:
                    return s
    return -1
