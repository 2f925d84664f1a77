"""Critical-path search: ops of an order moved forward where the iteration waits for them.

One lane in several noise scenarios. A turn picks one scenario and an op on its critical path, and
puts it some places earlier on its stage, where the order stays legal and within memory. If the mean
over scenarios gets no worse, or by no more than a temperature that falls to zero, the order stays.
The number of turns is fixed and drawn numbers follow a seed, so the same slots give the same order.

An order is a list of ops over all stages in which each comes after what it waits for; a move
within a stage keeps such a list or closes a circle, which makes it illegal.

Source: insertion on the critical path is standard for job shops; scenarios and annealing as in our
notes.
"""

from typing import NamedTuple

import numpy as np

from hydraplan.model import FloatArray, IntArray, Op, OpKind, Schedule
from hydraplan.planner.compiled import compiled

FARTHEST = 4
"""Places by which an op may come earlier in one turn."""

HEAT = 0.0001
"""Temperature at the beginning, over the score."""

F, B, W = 0, 1, 2


class Lane(NamedTuple):
    """One lane with one chunk a stage, in several scenarios.

    `op_s`: (3, stages, microbatches, scenarios), `travel_s` (microbatches,), `sync_s` (stages,),
    `weight` (scenarios,). `change`: what an op adds to what its stage holds, (3, microbatches),
    which is at most `most`.
    """

    op_s: FloatArray
    travel_s: FloatArray
    sync_s: FloatArray
    weight: FloatArray
    change: FloatArray
    most: float


def search(lane: Lane, schedule: Schedule, turns: int, seed: int = 0) -> Schedule:
    """The best order found from this one in so many turns; BW becomes B and W.

    It may be the given one: none is taken that is worse.
    """
    code = _coded(schedule)
    best = code.copy()
    _search(lane, code, best, turns, seed)
    kinds: tuple[OpKind, OpKind, OpKind] = ("F", "B", "W")
    return tuple(tuple(Op(kinds[c % 3], c // 3) for c in stage) for stage in best.tolist())


def score_s(lane: Lane, schedule: Schedule) -> float:
    """Weighted mean over the scenarios; infinite if the order cannot go on."""
    code, room = _coded(schedule), _room(lane)
    return float(_walk(lane, code, room, place_of(code)))


def _coded(schedule: Schedule) -> IntArray:
    """A number an op, 3 microbatch + kind, (stages, places)."""
    return np.array(
        [
            ["FBW".index(kind) + 3 * op.microbatch for op in ops for kind in op.kind]
            for ops in schedule
        ]
    )


class Room(NamedTuple):
    """What a walk fills: ends of ops (stages, places, scenarios), of scenarios, and how it went."""

    end_s: FloatArray
    iteration_s: FloatArray
    next: IntArray


@compiled
def _room(lane: Lane) -> Room:
    _, stages, count, scenarios = lane.op_s.shape
    return Room(
        np.zeros((stages, 3 * count, scenarios)), np.zeros(scenarios), np.zeros(stages, np.int64)
    )


@compiled
def place_of(code: IntArray) -> IntArray:
    """Place of every op on its stage, (stages, 3 microbatches), by its code."""
    place = np.zeros_like(code)
    for s in range(code.shape[0]):
        for i in range(code.shape[1]):
            place[s, code[s, i]] = i
    return place


@compiled
def _source(code: int, stage: int, stages: int) -> int:
    """Stage of what an op waits for, -1 for none: its own where B follows F, or W follows B."""
    kind = code % 3
    if kind == F:
        return stage - 1
    if kind == B:
        return stage + 1 if stage + 1 < stages else stage
    return stage


@compiled
def _walk(lane: Lane, code: IntArray, room: Room, place: IntArray) -> float:
    """Fill when ops end; the weighted mean, infinite if stages wait for each other."""
    _, stages, count, scenarios = lane.op_s.shape
    room.next[:] = 0
    left, moved, down = stages * 3 * count, True, False
    while moved:
        moved, down = False, not down
        for step in range(stages):
            s = step if down else stages - 1 - step  # forwards go down the stages, backwards up
            while room.next[s] < 3 * count:
                i = room.next[s]
                c = code[s, i]
                k, m, source, waits = c % 3, c // 3, _source(c, s, stages), c
                if k == W or (k == B and source == s):
                    waits = c - 1
                at = -1
                if source >= 0:
                    at = place[source, waits]
                    if at >= room.next[source]:
                        break
                travel_s = lane.travel_s[m] if source >= 0 and source != s else 0.0
                for x in range(scenarios):
                    begin = room.end_s[s, i - 1, x] if i > 0 else 0.0
                    if source >= 0:
                        begin = max(begin, room.end_s[source, at, x] + travel_s)
                    room.end_s[s, i, x] = begin + lane.op_s[k, s, m, x]
                room.next[s] = i + 1
                left -= 1
                moved = True
    if left > 0:
        return np.inf
    total = 0.0
    for x in range(scenarios):
        room.iteration_s[x] = 0.0
        for s in range(stages):
            room.iteration_s[x] = max(
                room.iteration_s[x], room.end_s[s, 3 * count - 1, x] + lane.sync_s[s]
            )
        total += lane.weight[x] * room.iteration_s[x]
    return total


@compiled
def _critical(
    lane: Lane, code: IntArray, room: Room, place: IntArray, x: int, path: IntArray
) -> int:
    """Fill stage and place of ops on the critical path of a scenario, last first; their number."""
    stages = code.shape[0]
    s, i = 0, code.shape[1] - 1
    for other in range(stages):
        if room.end_s[other, i, x] + lane.sync_s[other] >= room.iteration_s[x]:
            s = other
    length = 0
    while True:
        path[length, 0], path[length, 1] = s, i
        length += 1
        c = code[s, i]
        m, source = c // 3, _source(c, s, stages)
        before_s = room.end_s[s, i - 1, x] if i > 0 else 0.0
        come_s = -1.0
        if source >= 0 and source != s:
            come_s = room.end_s[source, place[source, c], x] + lane.travel_s[m]
        if come_s > before_s:
            s, i = source, place[source, c]
        elif i > 0:
            i -= 1
        else:
            return length


@compiled
def _may_swap(first: int, second: int) -> bool:
    """Whether the second op may come before the first on their stage."""
    return first // 3 != second // 3


@compiled
def _held(lane: Lane, code: IntArray, s: int) -> float:
    """Most that a stage holds."""
    held, most = 0.0, 0.0
    for c in code[s]:
        held += lane.change[c % 3, c // 3]
        most = max(most, held)
    return most


@compiled
def _search(lane: Lane, code: IntArray, best: IntArray, turns: int, seed: int) -> None:
    stages, places = code.shape
    room, place = _room(lane), place_of(code)
    path = np.zeros((2 * stages * places, 2), np.int64)
    now_s = _walk(lane, code, room, place)
    best_s, length, looked = now_s, 0, True
    np.random.seed(seed)
    for turn in range(turns):
        if looked:
            x = np.random.randint(len(lane.weight))
            length = _critical(lane, code, room, place, x, path)
            looked = False
        at = np.random.randint(length)
        s, i = path[at, 0], path[at, 1]
        j = i - 1 - np.random.randint(FARTHEST)
        if j < 0:
            continue
        legal = True
        for t in range(j, i):
            legal &= _may_swap(code[s, t], code[s, i])
        if not legal:
            continue
        _put(code, place, s, i, j)
        heat_s = HEAT * best_s * (1 - turn / turns)
        tried_s = np.inf
        if _held(lane, code, s) <= lane.most:
            tried_s = _walk(lane, code, room, place)
        if tried_s <= now_s or np.random.random() * heat_s > tried_s - now_s:
            now_s, looked = tried_s, True
            if tried_s < best_s:
                best_s = tried_s
                best[:] = code
        else:
            _put(code, place, s, j, i)
            if np.random.random() < 0.25:
                # The walk above is of the order that was left: paths need one of this again.
                _walk(lane, code, room, place)
                looked = True


@compiled
def _put(code: IntArray, place: IntArray, s: int, i: int, j: int) -> None:
    """Take the op at place i of a stage to place j, those between one place the other way."""
    c, way = code[s, i], 1 if j > i else -1
    for t in range(i, j, way):
        code[s, t] = code[s, t + way]
        place[s, code[s, t]] = t
    code[s, j], place[s, c] = c, j
