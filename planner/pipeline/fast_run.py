"""How long a placement takes, and nothing else: what a search over placements asks thousandfold.

The same run as `simulator.simulate`, to the last second, without keeping when each op ran. Slots
are kept as what they are made of (rows and one layer's attention), from which every op's time
follows, so nothing of the size stages x lanes x microbatches is built.
"""

from dataclasses import dataclass

import numpy as np

from hydraplan.cost import CostModel
from hydraplan.model import FloatArray, IntArray, Schedule, Sequences
from hydraplan.planner.compiled import compiled
from hydraplan.planner.pipeline.simulator import (
    feeds,
    op_arrays,
    stuck_at,
    waits_for,
)
from hydraplan.planner.pipeline.together import stops_of, together
from hydraplan.route import Route
from hydraplan.route import route as loop
from hydraplan.slots import buckets, check_size, padding_tokens
from hydraplan.traffic import boundary_s, grad_sync_s


@dataclass(frozen=True, slots=True)
class Slots:
    """What the slots of a placement hold; arrays of shape (microbatches, lanes).

    `attention_s`: one layer's attention, forward and backward, shape (2, microbatches, lanes).
    `padded`: rows with padding. `filled`: whether the slot holds rows. `component`: as in
    `slots.SlotTimes`. `load_s`: F + B + W on the costliest stage.
    """

    cost: CostModel
    attention_s: FloatArray
    padded: FloatArray
    filled: "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]"
    component: IntArray
    boundary_s: FloatArray
    load_s: FloatArray


def slots_of(cost: CostModel, placed: Sequences, num_microbatches: int) -> Slots:
    """The slots of a placement; `placed` holds only rows on ranks, in any order."""
    check_size(cost.pp, cost.ranks, num_microbatches)
    shape = (num_microbatches, cost.ranks)
    rows, component = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    _fill(
        placed.length_tokens, placed.microbatch, placed.first_rank, placed.ulysses_size,
        placed.ring_size, rows, component,
    )  # fmt: skip
    bucket, lead = buckets(placed)
    shared_s = cost.attention_s(placed.length_tokens, placed.ulysses_size, placed.ring_size, bucket)
    attention_s = np.zeros((2, *shape))
    _spread(
        shared_s, placed.microbatch[lead], placed.first_rank[lead], placed.degree[lead], attention_s
    )
    padded = (rows + padding_tokens(rows, cost.tp)).astype(float)
    return Slots(
        cost=cost,
        attention_s=attention_s,
        padded=padded,
        filled=rows > 0,
        component=component,
        boundary_s=boundary_s(cost, padded),
        load_s=_load_s(cost, attention_s.sum(axis=0), padded),
    )


def _load_s(cost: CostModel, attention_s: FloatArray, padded: FloatArray) -> FloatArray:
    """F + B + W of every slot on its costliest stage, seconds."""
    layers = np.array(cost.layers, float).sum(axis=1)
    stages = np.stack([cost.call_s.sum(axis=(0, 2)), cost.row_s.sum(axis=(0, 2)), layers], axis=1)
    load_s = np.zeros(padded.shape)
    for call_s, row_s, here in np.unique(stages, axis=0):
        np.maximum(load_s, call_s + row_s * padded + here * attention_s, out=load_s)
    return load_s if cost.rank_speed is None else load_s * cost.slow


def iteration_s(
    slots: Slots, schedule: Schedule, order: IntArray, scale: FloatArray | None = None
) -> float:
    """Seconds from the first op to the end of gradient sync, as `metrics.shares` defines them.

    Args:
        order: `order[i]` is the microbatch that runs i-th.
        scale: Factor on all ops of every slot, shape (microbatches, lanes); None for one.
    """
    cost = slots.cost
    counts, kind, microbatch, chunk = op_arrays(schedule)
    lane_end = np.zeros((len(schedule), cost.ranks))
    stuck = _run(
        counts, kind, order[microbatch], chunk, cost.route.before, cost.route.after,
        cost.call_s, cost.row_s,
        np.array(cost.layers, float), slots.attention_s, slots.padded, slots.filled,
        slots.component, slots.boundary_s, cost.slow if scale is None else cost.slow * scale,
        lane_end,
    )  # fmt: skip
    if stuck >= 0:
        raise stuck_at(stuck)
    return float((lane_end.max(axis=1) + grad_sync_s(cost)).max())


def profile_of(cost: CostModel, length_tokens: IntArray) -> FloatArray:
    """Shares of F, B and W of every stage and chunk, (3, stages, chunks), over the whole batch.

    Split as if every sequence was alone on one rank; the costliest stage adds up to 1.
    """
    one = np.ones_like(length_tokens)
    attention_s = cost.attention_s(length_tokens, one, one).sum(axis=1)
    ops_s = cost.row_s * float(length_tokens.sum())
    ops_s[:2] += np.array(cost.layers, float) * attention_s[:, None, None]
    shares: FloatArray = ops_s / ops_s.sum(axis=(0, 2)).max()
    return shares


def one_lane_s(
    profile: FloatArray, load_s: FloatArray, schedule: Schedule, route: Route | None = None
) -> FloatArray:
    """Seconds of runs on one lane, or on lanes that are all alike, one a row.

    Args:
        profile: How a load is spread over ops and stages, from `profile_of`.
        load_s: Loads of the microbatches in order, shape (runs, microbatches).
        route: The way through the chunks; None for chunk by chunk through all stages.
    """
    counts, kind, microbatch, chunk = op_arrays(schedule)
    lane_end = np.zeros((len(schedule), len(load_s)))
    padded = np.ascontiguousarray(load_s.T)
    alone = np.broadcast_to(np.arange(len(load_s)), padded.shape).copy()
    zero, none = np.zeros((2, *padded.shape)), np.zeros_like(profile)
    way = route or loop("loop", *profile.shape[1:])
    _run(
        counts, kind, microbatch, chunk, way.before, way.after, none, profile, none[0], zero,
        padded, padded > 0, alone, zero[0], np.ones(len(load_s)), lane_end,
    )  # fmt: skip
    taken_s: FloatArray = lane_end.max(axis=0)
    return taken_s


@compiled
def _fill(
    length_tokens: IntArray,
    microbatch: IntArray,
    first_rank: IntArray,
    ulysses_size: IntArray,
    ring_size: IntArray,
    rows: IntArray,
    component: IntArray,
) -> None:
    """Exact rows (`layout.rank_tokens`) and connected sets of lanes of every slot."""
    num_microbatches, lanes = rows.shape
    crossing = np.zeros((num_microbatches, lanes + 1), np.int64)
    for i in range(len(length_tokens)):
        length, m, u, r = length_tokens[i], microbatch[i], ulysses_size[i], ring_size[i]
        first, chunks = first_rank[i], 2 * ring_size[i]
        for ring in range(r):
            back = chunks - 1 - ring
            shard = length * (ring + 1) // chunks - length * ring // chunks
            shard += length * (back + 1) // chunks - length * back // chunks
            done = 0
            for inner in range(u):
                stop = shard * (inner + 1) // u
                rows[m, first + ring * u + inner] += stop - done
                done = stop
        crossing[m, first + 1] += 1
        crossing[m, first + u * r] -= 1
    for m in range(num_microbatches):
        over = 0
        for lane in range(lanes):
            over += crossing[m, lane]
            component[m, lane] = component[m, lane - 1] if over > 0 else lane


@compiled
def _spread(
    shared_s: FloatArray,
    microbatch: IntArray,
    first_rank: IntArray,
    degree: IntArray,
    attention_s: FloatArray,
) -> None:
    """Add what every exchange costs to the slots of its members."""
    for i in range(len(microbatch)):
        m = microbatch[i]
        for lane in range(first_rank[i], first_rank[i] + degree[i]):
            attention_s[0, m, lane] += shared_s[0, i]
            attention_s[1, m, lane] += shared_s[1, i]


@compiled
def _run(
    counts: IntArray,
    kind: IntArray,
    microbatch: IntArray,
    chunk: IntArray,
    before: IntArray,
    after: IntArray,
    call_s: FloatArray,
    row_s: FloatArray,
    layers: FloatArray,
    attention_s: FloatArray,
    padded: FloatArray,
    filled: "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]",
    component: IntArray,
    boundary_s: FloatArray,
    slow: FloatArray,
    lane_end: FloatArray,
) -> int:
    """As `simulator._run`; fills `lane_end`, (stages, lanes). `slow`: (lanes,) or per slot."""
    num_stages, num_chunks = before.shape
    num_microbatches, num_lanes = component.shape
    nodes = num_stages * num_chunks
    ended = np.empty((2, nodes, num_microbatches, num_lanes))
    done = np.zeros((2, nodes, num_microbatches), np.bool_)
    slow = np.ascontiguousarray(np.broadcast_to(slow, padded.shape))
    stop, begin_s, work_s = stops_of(component), np.empty(num_lanes), np.empty(num_lanes)
    travel_s = np.where(filled, boundary_s, -np.inf)  # slots without rows wait for nothing
    stay_s = np.where(filled, 0.0, -np.inf)
    position = np.zeros(num_stages, np.int64)
    waiting, is_waiting = np.arange(num_stages), np.ones(num_stages, np.bool_)  # ring of stages
    first, length = 0, num_stages
    while length > 0:
        s = waiting[first]
        first, length, is_waiting[s] = (first + 1) % num_stages, length - 1, False
        free = lane_end[s]
        while position[s] < counts[s]:
            i = position[s]
            k, m, c = kind[s, i], microbatch[s, i], chunk[s, i]
            here = s * num_chunks + c
            source, way = waits_for(k, s, c, before, after)
            if source >= 0 and not done[way, source, m]:
                break
            travels = source // num_chunks != s
            call, per_row = call_s[min(k, 2), s, c], row_s[min(k, 2), s, c]
            if k == 3:
                call, per_row = call + call_s[1, s, c], per_row + row_s[1, s, c]
            per_layer = 0.0 if k == 2 else layers[s, c]
            exchange, rows, slowness = attention_s[min(k, 1), m], padded[m], slow[m]
            for lane in range(num_lanes):
                work = call + per_row * rows[lane] + per_layer * exchange[lane]
                work_s[lane] = work * slowness[lane]
            if source >= 0:
                sent_s, on_way_s = (
                    ended[way, source, m],
                    (travel_s if travels else stay_s)[m],
                )
                for lane in range(num_lanes):
                    arrival = sent_s[lane] + on_way_s[lane]
                    begin_s[lane] = arrival if arrival > free[lane] else free[lane]
            else:
                begin_s[:] = free
            if k == 2:  # weight gradients meet nobody
                free[:] = begin_s + work_s
            else:
                together(begin_s, work_s, stop[m], free)
                ended[min(k, 1), here, m] = free
                done[min(k, 1), here, m] = True
            other = feeds(k, s, c, before, after)
            if other >= 0 and not is_waiting[other]:
                waiting[(first + length) % num_stages] = other
                length, is_waiting[other] = length + 1, True
            position[s] += 1
    for s in range(num_stages):
        if position[s] < counts[s]:
            return s
    return -1
