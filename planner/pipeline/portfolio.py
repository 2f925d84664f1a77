"""Portfolio: one op order per rule of priority, all scored side by side under noise.

List scheduling makes an order a rule in a fraction of a millisecond, on one lane that stands for
all: their busiest, their mean, and the busiest with its ops evened more and more. Orders made for
even ops are regular; they lose some time as planned, and less than others when something is slow.
Every order is then walked through on all noise scenarios at once (`scenarios`), on the busiest lane
and on the mean one. The few best of each, by score and by the time as planned, run on all lanes
beside the static schedules within the limit; the best score is returned.

Source: ours; Conductor names a strong heuristic to clone, not this one.
"""

from dataclasses import dataclass, fields, replace
from functools import cache
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
from hydraplan.planner.pipeline.noise import Shape
from hydraplan.planner.pipeline.one_lane import mean_lane, one_lane
from hydraplan.planner.pipeline.scenarios import factors, scorer, weights
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.planner.pipeline.static_orders import ROOM, static_orders
from hydraplan.route import route as named
from hydraplan.slots import SlotTimes

FINALISTS = 4
"""Orders that are run on all lanes, of each lane and measure."""
EVENED = (0.75, 0.25, 0.0)
"""Powers to which the differences of ops are brought where ops are planned on evened times."""
ONE_CHUNK = (
    (1.0, 1.0, NEVER, NEVER),
    (1.0, 1.0, NEVER, 0.5),
    (1.5, 0.0, NEVER, NEVER),
    (1.5, 0.0, NEVER, 0.5),
    (1.5, 1.0, NEVER, 0.5),
    (2.0, 0.0, NEVER, NEVER),
    (2.0, 0.0, NEVER, 0.5),
    (2.0, 1.0, NEVER, NEVER),
    (NEVER, 0.0, NEVER, NEVER),
    (NEVER, 0.0, 0.75, NEVER),
    (NEVER, 0.0, 0.25, NEVER),
)
CHUNKS = (
    (NEVER, 0.0, NEVER, NEVER),
    (NEVER, 1.0, NEVER, NEVER),
    (NEVER, 0.0, 0.75, NEVER),
)
"""Of a rule: `depth`, `f_first`, `f_wait`, `w_wait`. What is left of all combinations on real and
made-up batches: what others add to the best time and the best score is below 0.1% on average."""


def rules(num_chunks: int) -> list[Rule]:
    """Every rule that is tried; several chunks ask for other choices than one."""
    if num_chunks == 1:
        return [Rule(*first, by=by) for first, by in product(ONE_CHUNK, (ARRIVAL, LONGEST))]
    ties = product(CHUNKS, (ARRIVAL, DEEPEST, LONGEST), (0.0, 1.0))
    return [Rule(*first, by=by, whole=whole) for first, by, whole in ties]


@dataclass(frozen=True, slots=True)
class Orders:
    """Op orders in which nothing waits for a later one, one a row: arrays (orders, ops).

    `kind` 0 F, 1 B, 2 W; `node` = stage * chunks + chunk. `rule`: the rule that made each, and
    `end_s` when its last op ends on the lane it was made for.
    """

    kind: IntArray
    node: IntArray
    microbatch: IntArray
    rule: FloatArray
    end_s: FloatArray

    def rows(self, which: IntArray) -> "Orders":
        """Some of them."""
        return Orders(*(getattr(self, f.name)[which] for f in fields(self)))


def portfolio(times: SlotTimes, memory: Memory) -> Schedule:
    """The best by `scenarios.scorer` of finalists and static schedules; deterministic.

    Of those with the same score it is the one that holds least, a static one first.

    Raises:
        Infeasible: Some microbatch alone is beyond the limit.
    """
    score_s, chunks = scorer(times), times.op_s.shape[2]
    schedules = [*static_orders(times, memory), *finalists(times, memory)]
    scores = [score_s(schedule) for schedule in schedules]
    best = [each for each, taken_s in zip(schedules, scores, strict=True) if taken_s == min(scores)]
    return min(best, key=lambda schedule: memory.most(schedule, chunks))


def promised_s(times: SlotTimes, memory: Memory) -> float:
    """Seconds, about, of the best order: the first end of all rules on the busiest lane alone."""
    return float(orders_of(one_lane(times), memory).end_s.min(initial=np.inf))


def fastest(times: SlotTimes, memory: Memory) -> Schedule:
    """The finalist that is fastest on all lanes, without noise. Errors as `portfolio`."""
    return min(finalists(times, memory), key=lambda s: shares(simulate(times, s))["iteration_s"])


def finalists(times: SlotTimes, memory: Memory) -> list[Schedule]:
    """Orders that are among the best of one lane, under noise or without. Errors as `portfolio`."""
    memory.check()
    stages, chunks = times.op_s.shape[1:3]
    lanes = [one_lane(times), mean_lane(times)][: times.op_s.shape[3]]
    found = different([orders_of(lane, memory) for lane in (*lanes, *_evened(lanes[0]))], stages)
    best: set[int] = set()
    for lane in lanes:
        score_s = walked_s(found, lane)
        for merit in (score_s[:, 0], score_s @ weights(stages)):
            best |= {*np.argsort(merit, kind="stable")[:FINALISTS].tolist()}
    return [schedule_of(found, i, stages, chunks) for i in sorted(best)]


def _evened(lane: SlotTimes) -> list[SlotTimes]:
    """Lanes on which ops differ less, or not at all."""
    mean_s = float(lane.op_s.mean())
    return [replace(lane, op_s=lane.op_s**power * mean_s ** (1 - power)) for power in EVENED]


def orders_of(lane: SlotTimes, memory: Memory) -> Orders:
    """The order of every rule that does not get stuck."""
    stages, chunks, _, count = lane.op_s.shape[1:]
    way = lane.route or named("loop", stages, chunks)
    op_s = np.ascontiguousarray(lane.op_s[:, :, :, 0].reshape(3, stages * chunks, count))
    tried = np.array(rules(chunks))
    kind, node, microbatch = (
        np.zeros((len(tried), 3 * stages * chunks * count), np.int64) for _ in range(3)
    )
    end_s = np.zeros(len(tried))
    _all_orders(
        tried, op_s, lane.boundary_s[0], way.before, way.after, memory.live.astype(float),
        memory.frees, memory.limit * (1 + ROOM), kind, node, microbatch, end_s,
    )  # fmt: skip
    return Orders(kind, node, microbatch, tried, end_s).rows(np.flatnonzero(end_s < np.inf))


def different(parts: list[Orders], stages: int) -> Orders:
    """All of them, each once: those whose stages run the same ops are the same."""
    found = Orders(*(np.concatenate([getattr(o, f.name) for o in parts]) for f in fields(Orders)))
    digest = np.zeros((len(found.kind), stages), np.int64)
    _digest(found.kind, found.node, found.microbatch, digest)
    return found.rows(np.sort(np.unique(digest, axis=0, return_index=True)[1]))


def best_rules(lane: SlotTimes, memory: Memory, count: int) -> FloatArray:
    """So many rules whose orders end first without noise, one a row."""
    found = different([orders_of(lane, memory)], lane.op_s.shape[1])
    return found.rule[np.argsort(found.end_s, kind="stable")[:count]]


def schedule_of(found: Orders, row: int, num_stages: int, num_chunks: int) -> Schedule:
    """One row as op lists of the stages."""
    stages: list[list[Op]] = [[] for _ in range(num_stages)]
    columns = (found.kind[row].tolist(), found.node[row].tolist(), found.microbatch[row].tolist())
    for kind, node, microbatch in zip(*columns, strict=True):
        stage, chunk = divmod(node, num_chunks)
        stages[stage].append(_op(kind, microbatch, chunk))
    return tuple(tuple(ops) for ops in stages)


@cache
def _op(kind: int, microbatch: int, chunk: int) -> Op:
    """An op, made once: schedules are made of the same ones again and again."""
    return Op(cast(OpKind, "FBW"[kind]), microbatch, chunk)


def walked_s(found: Orders, lane: SlotTimes) -> FloatArray:
    """Seconds of every order in every scenario of `scenarios.factors`, (orders, scenarios)."""
    stages, chunks, _, count = lane.op_s.shape[1:]
    way = lane.route or named("loop", stages, chunks)
    factor = factors(Shape(stages, chunks, count, 1)).reshape(3, stages * chunks, count, -1)
    noisy_s = lane.op_s.reshape(3, stages * chunks, count, 1) * factor
    score_s = np.zeros((len(found.kind), factor.shape[-1]))
    _walk(
        found.kind, found.node, found.microbatch, noisy_s, lane.boundary_s[0], way.before,
        way.after, lane.grad_sync_s, score_s,
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
    end_s: FloatArray,
) -> None:
    """List-schedule under every rule; fills when each ends, infinite where it gets stuck."""
    for i in range(len(rules)):
        end_s[i] = list_schedule(
            rules[i], op_s, boundary_s, before, after, live, frees, limit,
            kinds[i], nodes[i], microbatches[i],
        )  # fmt: skip


@compiled
def _digest(kinds: IntArray, nodes: IntArray, microbatches: IntArray, digest: IntArray) -> None:
    """Fill a number for the ops of every stage in their order; (orders, stages)."""
    num_nodes = 1 + nodes[0].max()
    for i in range(len(kinds)):
        for j in range(kinds.shape[1]):
            stage = nodes[i, j] * digest.shape[1] // num_nodes
            op = (microbatches[i, j] * num_nodes + nodes[i, j]) * 3 + kinds[i, j] + 1
            digest[i, stage] = (digest[i, stage] * 1_000_003 + op) % 2_147_483_647


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
