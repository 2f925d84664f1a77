"""List scheduling: one lane's ops are put down one after the other, under a rule of priority.

Every stage knows the earliest time at which it could take up something, and what that would be;
the stage with the earliest puts its op down, its message sets out, and those it concerns choose
again. A rule says how many forwards run ahead, what goes first, whether to wait for an op that is
about to arrive, and when weight gradients have piled up too high. A forward needs room in memory;
W gives room back and is always at hand, so with one chunk a rule cannot get stuck. With several,
room for the chunks to come is kept, either of every microbatch or of the oldest only.

Forwards enter the first stage in the order of their numbers.

Source: list scheduling is classic (Graham); ranking B, F, W and filling gaps with W follow the
Zero Bubble heuristic; the rules here are ours.
"""

from typing import NamedTuple

import numpy as np

from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.compiled import compiled

NEVER = np.inf
ARRIVAL, LONGEST, DEEPEST = 0.0, 1.0, 2.0
"""What goes first among ops of one kind: what came first, the longest, the last chunk."""


class Rule(NamedTuple):
    """One rule of priority; all numbers, so that many make an array.

    `depth`: forwards in flight, in units of the stages still to come (1.0: as 1F1B). `f_first`:
    1.0 where F goes before B. `f_wait`, `w_wait`: share of its own time by which an F may hold up
    a B (a W both) that is about to arrive; infinite: never wait. `backlog`: weight gradients that
    may wait before they go first. `by`: `ARRIVAL`, `LONGEST` or `DEEPEST`. `whole`: 1.0 keeps
    room for all chunks of every microbatch, 0.0 for those of the oldest.
    """

    depth: float = NEVER
    f_first: float = 0.0
    f_wait: float = NEVER
    w_wait: float = NEVER
    backlog: float = NEVER
    by: float = ARRIVAL
    whole: float = 1.0


@compiled
def list_schedule(
    rule: FloatArray,
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
) -> float:
    """Fill the order in which ops are put down; when the last ends, infinite if the rule got stuck.

    Args:
        rule: A `Rule` as array, shape (7,).
        op_s: Seconds of F, B, W, shape (3, stages x chunks, microbatches).
        live, frees, limit: As in `memory.Memory`.
        kinds, nodes, microbatches: To fill, one entry an op; 0 F, 1 B, 2 W; stage * chunks + chunk.
    """
    num_stages, num_chunks = before.shape
    num_nodes, num_microbatches = num_stages * num_chunks, len(live)
    ready = np.full((3, num_nodes, num_microbatches), np.inf)
    low = np.zeros((3, num_nodes), np.int64)  # microbatches to look at: low .. high - 1
    high = np.zeros((3, num_nodes), np.int64)
    free, held = np.zeros(num_stages), np.zeros(num_stages)
    begun = np.zeros((num_stages, num_microbatches), np.int64)  # chunks forwarded
    flying, waiting = np.zeros(num_stages, np.int64), np.zeros(num_stages, np.int64)
    returned, oldest = np.zeros(num_microbatches, np.int64), 0
    choice, at = np.zeros((num_stages, 3), np.int64), np.full(num_stages, np.inf)
    stale = np.ones(num_stages, np.bool_)
    first = -1
    for node in range(num_nodes):
        if before[node // num_chunks, node % num_chunks] < 0:
            first = node
    ready[0, first, 0], high[0, first] = 0.0, 1
    for placed in range(3 * num_nodes * num_microbatches):
        earliest, s = np.inf, -1
        for stage in range(num_stages):
            if stale[stage]:
                at[stage] = _choose(
                    rule, stage, num_stages, op_s, ready, low, high, free[stage], held[stage],
                    live, limit, begun, flying[stage], waiting[stage], oldest, choice[stage],
                )  # fmt: skip
                stale[stage] = False
            if at[stage] < earliest:
                earliest, s = at[stage], stage
        if s < 0:
            return np.inf
        k, node, m = choice[s, 0], choice[s, 1], choice[s, 2]
        chunk = node - s * num_chunks
        kinds[placed], nodes[placed], microbatches[placed] = k, node, m
        end = earliest + op_s[k, node, m]
        ready[k, node, m] = np.inf
        while low[k, node] < high[k, node] and ready[k, node, low[k, node]] == np.inf:
            low[k, node] += 1
        free[s], stale[s] = end, True
        part = live[m] / num_chunks
        if k == 0:
            if rule[6] == 0.0:
                held[s] += part
            elif begun[s, m] == 0:
                held[s] += live[m]
            begun[s, m] += 1
            flying[s] += 1
            to, way = after[s, chunk], 0
            if to < 0:
                to, way = node, 1
            if node == first and m + 1 < num_microbatches:
                _arrive(ready, low, high, 0, node, m + 1, 0.0)
        elif k == 1:
            held[s] -= frees * part
            flying[s] -= 1
            waiting[s] += 1
            to, way = before[s, chunk], 1
            _arrive(ready, low, high, 2, node, m, end)
            returned[m] += 1
            while oldest < num_microbatches and returned[oldest] == num_nodes:
                oldest += 1
                stale[:] = True
        else:
            held[s] -= (1 - frees) * part
            waiting[s] -= 1
            to, way = -1, 1
        if to >= 0:
            other = to // num_chunks
            _arrive(ready, low, high, way, to, m, end + (boundary_s[m] if other != s else 0.0))
            stale[other] = True
    return float(free.max())


@compiled
def _arrive(
    ready: FloatArray,
    low: IntArray,
    high: IntArray,
    kind: int,
    node: int,
    microbatch: int,
    time_s: float,
) -> None:
    """An op can be taken up from now on."""
    ready[kind, node, microbatch] = time_s
    if low[kind, node] >= high[kind, node]:
        low[kind, node], high[kind, node] = microbatch, microbatch + 1
    low[kind, node] = min(low[kind, node], microbatch)
    high[kind, node] = max(high[kind, node], microbatch + 1)


@compiled
def _choose(
    rule: FloatArray,
    stage: int,
    num_stages: int,
    op_s: FloatArray,
    ready: FloatArray,
    low: IntArray,
    high: IntArray,
    free_s: float,
    held: float,
    live: FloatArray,
    limit: float,
    begun: IntArray,
    flying: int,
    waiting: int,
    oldest: int,
    choice: IntArray,
) -> float:
    """When the stage takes up its next op, infinite if there is none; fills kind, node, number."""
    num_chunks = op_s.shape[1] // num_stages
    here = range(stage * num_chunks, (stage + 1) * num_chunks)
    ahead = rule[0] * (num_stages - stage if num_chunks == 1 else num_stages * num_chunks)
    full = flying > 0 and flying >= ahead
    time_s = np.inf
    for node in here:
        for k in range(3):
            for m in range(low[k, node], high[k, node]):
                if max(free_s, ready[k, node, m]) < time_s and (
                    k > 0
                    or _may(rule, stage, m, num_chunks, full, held, live, limit, begun, oldest)
                ):
                    time_s = max(free_s, ready[k, node, m])
    if time_s == np.inf:
        return time_s
    best_rank, best_key = -1.0, np.inf
    for node in here:
        for k in range(3):
            rank = 1.0 - 0.5 * k + (rule[1] == 0.0 and k == 1)
            if k == 2 and waiting > rule[4]:
                rank = 3.0
            for m in range(low[k, node], high[k, node]):
                if rank < best_rank or ready[k, node, m] > time_s:
                    continue
                key = ready[k, node, m]
                if rule[5] == 1.0:
                    key = -op_s[k, node, m]
                elif rule[5] == 2.0:
                    key = -float(node)
                if rank == best_rank and key >= best_key:
                    continue
                if k > 0 or _may(
                    rule, stage, m, num_chunks, full, held, live, limit, begun, oldest
                ):
                    best_rank, best_key = rank, key
                    choice[0], choice[1], choice[2] = k, node, m
    kind = choice[0]
    wait = rule[2] if kind == 0 else rule[3]
    if kind == 1 or best_rank == 3.0 or wait == np.inf or (kind == 0 and rule[1] == 1.0):
        return time_s
    before_s = time_s + (1 - wait) * op_s[kind, choice[1], choice[2]]
    for node in here:
        for k in range(int(kind == 0), 2):
            for m in range(low[k, node], high[k, node]):
                if time_s < ready[k, node, m] < before_s and (
                    k > 0
                    or _may(rule, stage, m, num_chunks, full, held, live, limit, begun, oldest)
                ):
                    before_s = ready[k, node, m]
                    choice[0], choice[1], choice[2] = k, node, m
    return float(max(time_s, ready[choice[0], choice[1], choice[2]]))


@compiled
def _may(
    rule: FloatArray,
    stage: int,
    microbatch: int,
    num_chunks: int,
    full: bool,
    held: float,
    live: FloatArray,
    limit: float,
    begun: IntArray,
    oldest: int,
) -> bool:
    """Whether a forward is not too far ahead, has room, and leaves what others count on."""
    if full and (num_chunks == 1 or microbatch != oldest):
        return False
    if rule[6] == 1.0:
        return bool(begun[stage, microbatch] > 0 or held + live[microbatch] <= limit)
    needed = held + live[microbatch] / num_chunks
    if microbatch != oldest:
        needed += live[oldest] * (num_chunks - begun[stage, oldest]) / num_chunks
    return bool(needed <= limit)
