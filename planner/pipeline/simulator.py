"""Noise-free run of a schedule over lanes x stages x microbatches.

Every stage works through its ops in order. An op starts on a lane when the lane is free and
its message is there; a slot without rows neither gets nor sends one. Lanes connected through
groups meet in every layer, so a connected set begins when its last lane begins and takes as
long as its busiest lane. 1F1B's BW hands its gradient on when both halves are done. After the
last op of a stage's latest lane comes the exposed gradient sync.

Source: in-order longest path is standard; the rule for connected lanes is derived from the
executor, which runs one collective per group and layer in one global order.
"""

import numpy as np

from hydraplan.errors import Infeasible
from hydraplan.model import FloatArray, IntArray, Schedule, Timeline
from hydraplan.planner.compiled import compiled
from hydraplan.slots import SlotTimes

_KINDS = {"F": 0, "B": 1, "W": 2, "BW": 3}


def simulate(slots: SlotTimes, schedule: Schedule) -> Timeline:
    """Run every lane; arrays of the timeline have shape (ops of the stage, lanes), seconds.

    Raises:
        Infeasible: The op order of some stage can never go on.
    """
    counts, kind, microbatch, chunk = op_arrays(schedule)
    shape = (*kind.shape, slots.rows.shape[0])
    start, end, busy = (np.zeros(shape) for _ in range(3))
    stuck = _run(
        counts, kind, microbatch, chunk, slots.op_s, slots.rows, slots.component, slots.boundary_s,
        start, end, busy,
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
        kind[s, : len(ops)] = [_KINDS[op.kind] for op in ops]
        microbatch[s, : len(ops)] = [op.microbatch for op in ops]
        chunk[s, : len(ops)] = [op.chunk for op in ops]
    return counts, kind, microbatch, chunk


@compiled
def _run(
    counts: IntArray,
    kind: IntArray,
    microbatch: IntArray,
    chunk: IntArray,
    op_s: FloatArray,
    rows: IntArray,
    component: IntArray,
    boundary_s: FloatArray,
    start: FloatArray,
    end: FloatArray,
    busy: FloatArray,
) -> int:
    """Fill start, end and busy; return -1, or a stage that cannot go on."""
    num_stages = len(counts)
    num_chunks = op_s.shape[2]
    num_lanes, num_microbatches = component.shape
    virtual = num_stages * num_chunks
    done_at = np.full((2, virtual, num_microbatches), -1, np.int64)  # position of F, of B or BW
    position = np.zeros(num_stages, np.int64)
    free = np.zeros((num_stages, num_lanes))
    begin, work = np.empty(num_lanes), np.empty(num_lanes)
    remaining = counts.sum()
    while remaining > 0:
        moved = False
        for s in range(num_stages):
            while position[s] < counts[s]:
                i = position[s]
                k, m, c = kind[s, i], microbatch[s, i], chunk[s, i]
                v = c * num_stages + s
                backward = 0 if k == 0 else 1
                source = v - 1 if k == 0 else v + 1
                if k == 2 or source == virtual:
                    source, backward = v, 1 if k == 2 else 0
                ready_at = -1
                if source >= 0:
                    ready_at = done_at[backward, source, m]
                    if ready_at < 0:
                        break
                from_stage = source % num_stages
                for lane in range(num_lanes):
                    begin[lane] = free[s, lane]
                    if source >= 0 and rows[lane, m] > 0:
                        arrival = end[from_stage, ready_at, lane]
                        if from_stage != s:
                            arrival += boundary_s[lane, m]
                        begin[lane] = max(begin[lane], arrival)
                    if k == 3:
                        work[lane] = op_s[1, s, c, lane, m] + op_s[2, s, c, lane, m]
                    else:
                        work[lane] = op_s[k, s, c, lane, m]
                lane = 0
                while lane < num_lanes:
                    after = lane + 1
                    latest, longest = begin[lane], work[lane]
                    while after < num_lanes and component[after, m] == component[lane, m]:
                        latest, longest = max(latest, begin[after]), max(longest, work[after])
                        after += 1
                    for member in range(lane, after):
                        start[s, i, member] = begin[member]
                        busy[s, i, member] = work[member]
                        # weight gradients meet nobody
                        if k == 2:
                            end[s, i, member] = begin[member] + work[member]
                        else:
                            end[s, i, member] = latest + longest
                        free[s, member] = end[s, i, member]
                    lane = after
                if k != 2:
                    done_at[0 if k == 0 else 1, v, m] = i
                position[s] += 1
                remaining -= 1
                moved = True
        if not moved:
            for s in range(num_stages):
                if position[s] < counts[s]:
                    return s
    return -1
