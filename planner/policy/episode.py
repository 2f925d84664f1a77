"""State of an episode and how an action changes it; all of one instance, compiled.

Ops are put down in the order in which stages can take them up. A stage that is idle chooses among
the ops that are there; each begins when the stage is free and its message has come, exactly as the
simulator has it. After `WAIT` what was there stays until something else has come, so that no op of
the order begins later than it could. Ops of a kind keep the order in which the first stage took
the microbatches. Memory counts at the begin of an op, as in `memory.Memory.peak`.

Stages may all wait for each other, which no run of an order does. Then the one that could go on
first gives up its wait: it takes what it left, at the time it could have taken it, and so the clock
goes back. There is always one, since a stage without a choice of its own is never stuck for good:
the last stage runs whatever arrives, and W gives back room.

Source: ours; Conductor gives the four actions, not their semantics.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.compiled import compiled_in_place
from hydraplan.planner.pipeline.spells import stretched_s
from hydraplan.planner.policy.world import World

F, B, W, WAIT, LIGHTEST, HEAVIEST = range(6)
"""Actions. On the first stage F is the next microbatch; `LIGHTEST` and `HEAVIEST` are F too,
where load or activations are others."""
NUM_ACTIONS = 6
NOBODY = -1


class State(NamedTuple):
    """Where each episode stands; n is the instance, j a place in the order of microbatches.

    `done`: ops begun, (n, 3, stages). `ready_s`: when the F or B of a place can be taken up,
    infinite if nobody knows yet, (n, 2, stages, places). `order`: microbatch of each place that is
    taken, `taken` those microbatches. `ends`: first of them left by number, first and last by load,
    (n, 3). `left`: kinds that were there when the stage chose to wait, (n, 3, stages).
    `held`: activations. `work_s`: expected seconds of the ops to come. `kinds`: ops in the order
    of each stage, (n, stages, 3 places). `at_s`: when each stage can take up its next op of a kind,
    infinite if it has none in sight, (n, 3, stages). `stage`: who chooses, `NOBODY` at the end, at
    `now_s`; `may_wait`: whether it may wait. `lost_s`: what windows cost, (windows,), which nobody
    reads.
    """

    done: IntArray
    ready_s: FloatArray
    order: IntArray
    taken: NDArray[np.bool_]
    ends: IntArray
    left: NDArray[np.bool_]
    free_s: FloatArray
    held: FloatArray
    work_s: FloatArray
    kinds: IntArray
    at_s: FloatArray
    stage: IntArray
    now_s: FloatArray
    may_wait: NDArray[np.bool_]
    lost_s: FloatArray


def new_state(world: World) -> State:
    """Room for the episodes of a world; `begin` starts each."""
    n, _, p, m = world.op_s.shape
    return State(
        np.zeros((n, 3, p), np.int64), np.zeros((n, 2, p, m)), np.zeros((n, m), np.int64),
        np.zeros((n, m), np.bool_), np.zeros((n, 3), np.int64), np.zeros((n, 3, p), np.bool_),
        np.zeros((n, p)), np.zeros((n, p)), np.zeros((n, p)), np.zeros((n, p, 3 * m), np.int64),
        np.zeros((n, 3, p)), np.zeros(n, np.int64), np.zeros(n), np.ones(n, np.bool_),
        np.zeros(len(world.windows.speed)),
    )  # fmt: skip


@compiled_in_place
def begin(world: World, state: State, n: int, mask: NDArray[np.bool_]) -> None:
    """Start the episode of an instance over, up to its first choice; fills its mask."""
    start(world, state, n)
    go_on(world, state, n, mask)


@compiled_in_place
def start(world: World, state: State, n: int) -> None:
    """Start the episode of an instance over; `go_on` comes next."""
    stages, count = world.stages[n], world.microbatches[n]
    state.done[n], state.ready_s[n], state.left[n] = 0, np.inf, False
    state.ready_s[n, 0, 0] = 0.0
    state.taken[n], state.free_s[n], state.held[n] = False, 0.0, 0.0
    state.ends[n, 0], state.ends[n, 1], state.ends[n, 2] = 0, 0, count - 1
    for s in range(stages):
        state.work_s[n, s] = 0.0
        for k in range(3):
            for m in range(count):
                state.work_s[n, s] += world.op_s[n, k, s, m]
        _look(world, state, n, s)


@compiled_in_place
def microbatch_of(ends: IntArray, by_load: IntArray, action: int) -> int:
    """What F of the first stage takes while there is any left; one row of `ends` and `by_load`."""
    if action == F:
        return int(ends[0])
    return int(by_load[ends[1 if action == LIGHTEST else 2]])


@compiled_in_place
def has_room(world: World, state: State, n: int, stage: int) -> bool:
    """Whether the stage may hold its next forward; a first stage: any of those it could take."""
    if stage > 0:
        m = state.order[n, state.done[n, F, stage]]
        return bool(state.held[n, stage] + world.live[n, m] <= world.most[n])
    for action in (F, LIGHTEST, HEAVIEST):
        m = microbatch_of(state.ends[n], world.by_load[n], action)
        if state.held[n, 0] + world.live[n, m] <= world.most[n]:
            return True
    return False


@compiled_in_place
def _look(world: World, state: State, n: int, stage: int) -> None:
    """Note when a stage can take up its next op of each kind."""
    free_s = state.free_s[n, stage]
    for k in range(3):
        j, at_s = state.done[n, k, stage], np.inf
        if k == W:
            if j < state.done[n, B, stage]:
                at_s = free_s
        elif (
            j < world.microbatches[n]
            and state.ready_s[n, k, stage, j] < np.inf
            and (k == B or has_room(world, state, n, stage))
        ):
            at_s = max(free_s, state.ready_s[n, k, stage, j])
        state.at_s[n, k, stage] = at_s


@compiled_in_place
def _fill_mask(world: World, state: State, n: int, mask: NDArray[np.bool_]) -> int:
    """Fill which actions the stage that chooses may take, (6,); how many those are."""
    s, now_s = state.stage[n], state.now_s[n]
    mask[:] = False
    if s == NOBODY:
        return 0
    for k in range(3):
        mask[k] = not state.left[n, k, s] and state.at_s[n, k, s] <= now_s
    f_comes = s > 0 and not mask[F] and not state.left[n, F, s]
    if f_comes:  # unless none is left, or the next is known to find no room
        j = state.done[n, F, s]
        f_comes = j < world.microbatches[n] and (
            j >= state.done[n, F, 0] or has_room(world, state, n, s)
        )
    b_comes = not mask[B] and not state.left[n, B, s] and state.done[n, B, s] < state.done[n, F, s]
    mask[WAIT] = state.may_wait[n] and (f_comes or b_comes)
    if s == 0 and mask[F]:
        ends, by_load = state.ends[n], world.by_load[n]
        m = microbatch_of(ends, by_load, F)
        light = microbatch_of(ends, by_load, LIGHTEST)
        heavy = microbatch_of(ends, by_load, HEAVIEST)
        load_s, live = world.load_s[n], world.live[n]
        held, most = state.held[n, 0], world.most[n]
        mask[F] = held + live[m] <= most
        mask[LIGHTEST] = held + live[light] <= most and not _alike(load_s, live, light, m)
        mask[HEAVIEST] = (
            held + live[heavy] <= most
            and not _alike(load_s, live, heavy, m)
            and not _alike(load_s, live, heavy, light)
        )
    return int(mask.sum())


@compiled_in_place
def _alike(load_s: FloatArray, live: FloatArray, one: int, other: int) -> bool:
    """Whether taking one microbatch or the other is the same choice."""
    return bool(load_s[one] == load_s[other] and live[one] == live[other])


@compiled_in_place
def act(world: World, state: State, n: int, action: int, mask: NDArray[np.bool_]) -> None:
    """Take a legal action, and go on to the next choice; fills its mask."""
    put(world, state, n, action)
    go_on(world, state, n, mask)


@compiled_in_place
def put(world: World, state: State, n: int, action: int) -> None:
    """Take a legal action; `go_on` comes next."""
    if action == WAIT:
        s = state.stage[n]
        for k in range(3):
            state.left[n, k, s] |= state.at_s[n, k, s] <= state.now_s[n]
    else:
        _run(world, state, n, action)


@compiled_in_place
def _run(world: World, state: State, n: int, action: int) -> None:
    """Put an op of the stage that chooses down."""
    s, k = state.stage[n], F if action > WAIT else action
    j = state.done[n, k, s]
    if s == 0 and k == F:
        state.order[n, j] = microbatch_of(state.ends[n], world.by_load[n], action)
        _take(state.taken[n], state.ends[n], world.by_load[n], state.order[n, j])
    m = state.order[n, j]
    live, work_s = world.live[n, m], world.op_s[n, k, s, m]
    begin_s = state.free_s[n, s]
    if k != W:
        begin_s = max(begin_s, state.ready_s[n, k, s, j])
    state.work_s[n, s] -= work_s
    windows, at = world.windows, n * world.op_s.shape[2] + s
    if windows.first[at] < windows.first[at + 1]:
        low, high = windows.first[at], windows.first[at + 1]
        work_s = stretched_s(begin_s, work_s, low, high, windows, state.lost_s)
    end_s = begin_s + work_s
    state.kinds[n, s, state.done[n, :, s].sum()] = k
    state.free_s[n, s] = end_s
    state.left[n, :, s] = False
    state.done[n, k, s] += 1
    if k == F:
        state.held[n, s] += live
        if s + 1 < world.stages[n]:
            state.ready_s[n, F, s + 1, j] = end_s + world.travel_s[n, m]
        else:
            state.ready_s[n, B, s, j] = end_s
        if s == 0 and j + 1 < world.microbatches[n]:
            state.ready_s[n, F, 0, j + 1] = 0.0
    elif k == B:
        state.held[n, s] -= world.frees[n] * live
        if s > 0:
            state.ready_s[n, B, s - 1, j] = end_s + world.travel_s[n, m]
    else:
        state.held[n, s] -= (1 - world.frees[n]) * live
    for stage in range(max(0, s - 1), min(s + 2, world.stages[n])):
        _look(world, state, n, stage)


@compiled_in_place
def _take(taken: NDArray[np.bool_], ends: IntArray, by_load: IntArray, microbatch: int) -> None:
    """Note that the first stage has taken a microbatch."""
    taken[microbatch] = True
    while ends[0] < len(taken) and taken[ends[0]]:
        ends[0] += 1
    while ends[1] < len(taken) and taken[by_load[ends[1]]]:
        ends[1] += 1
    while ends[2] >= 0 and taken[by_load[ends[2]]]:
        ends[2] -= 1


@compiled_in_place
def go_on(world: World, state: State, n: int, mask: NDArray[np.bool_]) -> None:
    """Run what nobody has a choice about, up to the next choice or the end; fills the mask."""
    while True:
        s, now_s = NOBODY, np.inf
        for at_all in (False, True):  # if all that could go on wait for each other: at all
            for stage in range(world.stages[n]):
                for k in range(3):
                    if state.at_s[n, k, stage] < now_s and (at_all or not state.left[n, k, stage]):
                        s, now_s = stage, state.at_s[n, k, stage]
            state.may_wait[n] = not at_all
            if s != NOBODY:
                break
        if s != NOBODY and not state.may_wait[n]:
            state.left[n, :, s] = False
        state.stage[n], state.now_s[n] = s, now_s
        if _fill_mask(world, state, n, mask) != 1:
            break
        _run(world, state, n, int(mask.argmax()))
    if state.stage[n] == NOBODY:
        end_s = 0.0
        for s in range(world.stages[n]):
            end_s = max(end_s, state.free_s[n, s] + world.sync_s[n, s])
        state.now_s[n] = end_s
