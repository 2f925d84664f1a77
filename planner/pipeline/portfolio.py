"""Portfolio: one op order per rule of priority, all scored side by side under noise.

List scheduling makes an order a rule in a fraction of a millisecond. Every order is then walked
through on all noise scenarios at once, the same draws for all: one scenario without noise, the
others with jitter on every op and one stage slower than planned. The few best by half the
noise-free time and half the mean of the others are run on all lanes without noise; the fastest
there is returned. One lane stands for all: once their busiest, once their mean.

Source: ours; Conductor names a strong heuristic to clone, not this one.
"""

from dataclasses import dataclass
from itertools import product
from typing import cast

import numpy as np

from hydraplan.metrics import shares
from hydraplan.model import FloatArray, IntArray, Op, OpKind, Schedule
from hydraplan.planner.compiled import compiled
from hydraplan.planner.pipeline.list_schedule import (
    ARRIVAL,
    DEEPEST,
    LONGEST,
    NEVER,
    Rule,
    list_schedule,
)
from hydraplan.planner.pipeline.memory import Memory
from hydraplan.planner.pipeline.one_lane import mean_lane, one_lane
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.route import Route
from hydraplan.route import route as named
from hydraplan.slots import SlotTimes

SCENARIOS = 8
JITTER, STRAGGLER = 0.1, 1.2
"""Of the noise scenarios: spread (log-normal) of every op, slowness of the slow stage."""
FINALISTS = 6
"""Orders of each lane that are run on all lanes."""
WAITS = (
    (0.0, NEVER, NEVER),
    (0.0, NEVER, 0.5),
    (0.0, 0.75, NEVER),
    (0.0, 0.25, NEVER),
    (0.0, 0.5, 0.0),
    (1.0, NEVER, NEVER),
    (1.0, NEVER, 0.5),
)
"""Of a rule: `f_first`, `f_wait`, `w_wait`."""
ROOM = 1e-12
"""Relative: what sums of activations may round."""


def rules(num_chunks: int) -> list[Rule]:
    """Every rule that is tried; several chunks ask for other choices than one."""
    if num_chunks == 1:
        return [
            Rule(depth, f_first, f_wait, w_wait, backlog, by)
            for depth, (f_first, f_wait, w_wait), backlog, by in product(
                (1.0, 1.25, 1.5, 2.0, NEVER), WAITS, (0.0, 2.0, NEVER), (ARRIVAL, LONGEST)
            )
        ]
    return [
        Rule(depth, f_first, f_wait, w_wait, NEVER, by, whole)
        for depth, (f_first, f_wait, w_wait), by, whole in product(
            (0.75, 1.0, NEVER), WAITS, (ARRIVAL, DEEPEST, LONGEST), (0.0, 1.0)
        )
    ]


@dataclass(frozen=True, slots=True)
class Orders:
    """Op orders in which nothing waits for a later one, one a row: arrays (orders, ops).

    `kind` 0 F, 1 B, 2 W; `node` = stage * chunks + chunk. `score_s`, shape (orders, scenarios):
    seconds of every scenario, the first without noise. `rule`: the rule that made each.
    """

    kind: IntArray
    node: IntArray
    microbatch: IntArray
    score_s: FloatArray
    rule: FloatArray


def portfolio(times: SlotTimes, memory: Memory) -> Schedule:
    """The fastest of the finalists; deterministic.

    Raises:
        Infeasible: Some microbatch alone is beyond the limit.
    """
    memory.check()
    lanes = (one_lane,) if times.op_s.shape[3] == 1 else (one_lane, mean_lane)
    finalists = [order for lane in lanes for order in _best(lane(times), memory)]
    return min(finalists, key=lambda s: shares(simulate(times, s))["iteration_s"])


def _best(lane: SlotTimes, memory: Memory) -> list[Schedule]:
    """Different orders, best first."""
    found = scored_orders(lane, memory)
    _, different = np.unique(found.score_s, axis=0, return_index=True)  # same order, same times
    merit = (found.score_s[:, 0] + found.score_s[:, 1:].mean(axis=1)) / 2
    best = sorted(different.tolist(), key=lambda i: (merit[i], i))[:FINALISTS]
    return [schedule_of(found, i, *lane.op_s.shape[1:3]) for i in best]


def scored_orders(lane: SlotTimes, memory: Memory) -> Orders:
    """The order of every rule that does not get stuck, and its time in every scenario."""
    stages, chunks, _, count = lane.op_s.shape[1:]
    way = lane.route or named("loop", stages, chunks)
    op_s = np.ascontiguousarray(lane.op_s[:, :, :, 0].reshape(3, stages * chunks, count))
    tried = np.array(rules(chunks))
    kind, node, microbatch = (
        np.zeros((len(tried), 3 * stages * chunks * count), np.int64) for _ in range(3)
    )
    kept = _all_orders(
        tried, op_s, lane.boundary_s[0], way.before, way.after,
        memory.live.astype(float), memory.frees, memory.limit * (1 + ROOM), kind, node, microbatch,
    )  # fmt: skip
    kind, node, microbatch = kind[kept], node[kept], microbatch[kept]
    score_s = _walked(kind, node, microbatch, lane, op_s, way)
    return Orders(kind, node, microbatch, score_s, tried[kept])


def best_rules(lane: SlotTimes, memory: Memory, count: int) -> FloatArray:
    """So many rules whose orders end first without noise, one a row."""
    found = scored_orders(lane, memory)
    _, different = np.unique(found.score_s, axis=0, return_index=True)
    best = sorted(different.tolist(), key=lambda i: (found.score_s[i, 0], i))[:count]
    return found.rule[best]


def schedule_of(found: Orders, row: int, num_stages: int, num_chunks: int) -> Schedule:
    """One row as op lists of the stages."""
    stages: list[list[Op]] = [[] for _ in range(num_stages)]
    columns = (found.kind[row].tolist(), found.node[row].tolist(), found.microbatch[row].tolist())
    for kind, node, microbatch in zip(*columns, strict=True):
        stage, chunk = divmod(node, num_chunks)
        stages[stage].append(Op(cast(OpKind, "FBW"[kind]), microbatch, chunk))
    return tuple(tuple(ops) for ops in stages)


def scenarios(num_stages: int, num_chunks: int, num_microbatches: int) -> FloatArray:
    """Factors on the time of every op, (3, nodes, microbatches, scenarios); always the same."""
    rng = np.random.default_rng(0)
    shape = (3, num_stages * num_chunks, num_microbatches, SCENARIOS)
    factor: FloatArray = np.exp(JITTER * rng.standard_normal(shape, np.float32)).astype(float)
    factor[..., 0] = 1.0
    for scenario in range(1, SCENARIOS):
        slow = (scenario * num_stages // SCENARIOS) * num_chunks
        factor[:, slow : slow + num_chunks, :, scenario] *= STRAGGLER
    return factor


def _walked(
    kind: IntArray,
    node: IntArray,
    microbatch: IntArray,
    lane: SlotTimes,
    op_s: FloatArray,
    way: Route,
) -> FloatArray:
    """Seconds of every order in every scenario."""
    stages, chunks, _, count = lane.op_s.shape[1:]
    noisy_s = op_s[..., None] * scenarios(stages, chunks, count)
    score_s = np.zeros((len(kind), SCENARIOS))
    _walk(
        kind, node, microbatch, noisy_s, lane.boundary_s[0], way.before, way.after,
        lane.grad_sync_s, score_s,
    )  # fmt: skip
    return score_s


@compiled
def _all_orders(
    rules: FloatArray,
    op_s: FloatArray,
    boundary_s: FloatArray,
    before: IntArray,
    after: IntArray,
    live: FloatArray,
    frees: float,
    limit: float,
    kinds: IntArray,
    nodes: IntArray,
    microbatches: IntArray,
) -> "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]":
    """List-schedule under every rule; which of them came to an end."""
    done = np.zeros(len(rules), np.bool_)
    for i in range(len(rules)):
        done[i] = np.inf > list_schedule(
            rules[i], op_s, boundary_s, before, after, live, frees, limit,
            kinds[i], nodes[i], microbatches[i],
        )  # fmt: skip
    return done


@compiled
def _walk(
    kinds: IntArray,
    nodes: IntArray,
    microbatches: IntArray,
    op_s: FloatArray,
    boundary_s: FloatArray,
    before: IntArray,
    after: IntArray,
    grad_sync_s: FloatArray,
    score_s: FloatArray,
) -> None:
    """Fill the seconds of every order in every scenario; `op_s` (3, nodes, M, scenarios)."""
    num_stages, num_chunks = before.shape
    num_scenarios = op_s.shape[3]
    ended = np.zeros((2, *op_s.shape[1:]))
    for i in range(len(kinds)):
        free = np.zeros((num_stages, num_scenarios))
        for j in range(kinds.shape[1]):
            k, node, m = kinds[i, j], nodes[i, j], microbatches[i, j]
            s = node // num_chunks
            source, way = before[s, node - s * num_chunks], 0
            if k == 1:
                source, way = after[s, node - s * num_chunks], 1
                if source < 0:
                    source, way = node, 0
            elif k == 2:
                source, way = node, 1
            travel_s = boundary_s[m] if source >= 0 and source // num_chunks != s else 0.0
            for x in range(num_scenarios):
                begin = free[s, x]
                if source >= 0:
                    begin = max(begin, ended[way, source, m, x] + travel_s)
                free[s, x] = begin + op_s[k, node, m, x]
                if k < 2:
                    ended[k, node, m, x] = free[s, x]
        for x in range(num_scenarios):
            score_s[i, x] = 0.0
            for s in range(num_stages):
                score_s[i, x] = max(score_s[i, x], free[s, x] + grad_sync_s[s])
