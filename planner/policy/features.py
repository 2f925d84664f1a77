"""What a policy sees when a stage chooses: numbers about it, its neighbours and the whole.

All of them come from the world, which holds only what is known before the first op, and from the
ops put down so far. Times are in units of the mean op or of P such; counts in shares of P or of M;
so one network serves any number of stages and microbatches. `docs/policy.md` tells each.

Source: ours; the papers give no features.
"""

import numpy as np

from hydraplan.model import FloatArray
from hydraplan.planner.compiled import compiled_in_place
from hydraplan.planner.pipeline.spells import Spells
from hydraplan.planner.policy.episode import HEAVIEST, LIGHTEST, B, F, State, W, microbatch_of
from hydraplan.planner.policy.template import template_kind
from hydraplan.planner.policy.world import World

SOON = 8.0
"""Mean ops ahead that a time is told of; later, and never, look the same."""

_OWN = (
    "f_time", "b_time", "w_time", "f_there", "b_there", "w_there", "f_in", "b_in", "in_flight",
    "owed", "held", "f_done", "b_done", "w_done", "work", "slack", "slow", "window_speed",
    "window_left", "next_speed", "next_in", "depth",
)  # fmt: skip
_NEAR = ("is", "free_in", "f_queue", "b_queue", "held", "slack", "slow", "window_speed")
_WHOLE = ("stages", "microbatches", "room", "frees", "travel", "progress", "idle")
_FIRST = ("next_load", "lightest_load", "heaviest_load")
_TEMPLATE = ("template_f", "template_b", "template_w")
NAMES = (
    *_OWN,
    *(f"{side}_{name}" for side in ("up", "down") for name in _NEAR),
    *_WHOLE,
    *_FIRST,
    *_TEMPLATE,
)
"""Names of the features, in order."""
NUM_FEATURES = len(NAMES)
NEAR, WHOLE = len(_OWN), len(_OWN) + 2 * len(_NEAR)
NUM_NEAR = len(_NEAR)


@compiled_in_place
def fill_features(world: World, state: State, n: int, out: FloatArray) -> None:
    """Fill the features of the stage that chooses, (NUM_FEATURES,); zeros at the end."""
    out[:] = 0.0
    s = state.stage[n]
    if s < 0:
        return
    last_s = _latest_s(world, state, n)
    _own(world, state, n, s, last_s, out)
    for side in range(2):
        other = s - 1 if side == 0 else s + 1
        if 0 <= other < world.stages[n]:
            at = NEAR + side * NUM_NEAR
            _near(world, state, n, other, last_s, out[at : at + NUM_NEAR])
    _whole(world, state, n, s, out[WHOLE:])


@compiled_in_place
def _latest_s(world: World, state: State, n: int) -> float:
    """When the last stage would be through if none waited from now on, seconds."""
    last_s = 0.0
    for stage in range(world.stages[n]):
        last_s = max(last_s, _through_s(state, n, stage))
    return last_s


@compiled_in_place
def _through_s(state: State, n: int, stage: int) -> float:
    """When the stage would be through if it never waited again, seconds."""
    return float(max(state.now_s[n], state.free_s[n, stage]) + state.work_s[n, stage])


@compiled_in_place
def _own(world: World, state: State, n: int, s: int, latest_s: float, out: FloatArray) -> None:
    p, count, unit_s, now_s = (
        world.stages[n],
        world.microbatches[n],
        world.unit_s[n],
        state.now_s[n],
    )
    for k in range(3):
        j = state.done[n, k, s]
        if j < state.done[n, F, 0]:
            out[k] = world.op_s[n, k, s, state.order[n, j]] / unit_s
        elif s == 0 and k == F and j < count:
            out[k] = world.op_s[n, k, s, microbatch_of(state.ends[n], world.by_load[n], F)] / unit_s
        out[11 + k] = j / count
    for k in (F, B):
        j = state.done[n, k, s]
        ready_s = state.ready_s[n, k, s, j] if j < count else np.inf
        out[3 + k] = 1.0 if ready_s <= now_s else 0.0
        out[6 + k] = min(SOON, max(0.0, ready_s - now_s) / unit_s)
    out[5] = 1.0 if state.done[n, W, s] < state.done[n, B, s] else 0.0
    out[8] = (state.done[n, F, s] - state.done[n, B, s]) / p
    out[9] = (state.done[n, B, s] - state.done[n, W, s]) / p
    out[10] = state.held[n, s] / world.most[n]
    out[14] = state.work_s[n, s] / (3 * count * unit_s)
    out[15] = (latest_s - _through_s(state, n, s)) / (p * unit_s)
    out[16] = world.slow[n, s]
    at = n * world.op_s.shape[2] + s
    _windows(world.windows, at, now_s, p * unit_s, out[17:21])
    out[21] = s / max(1, p - 1)


@compiled_in_place
def _windows(windows: Spells, at: int, now_s: float, span_s: float, out: FloatArray) -> None:
    """Speed now and until when; speed of the window that begins next, and when."""
    speed, next_speed, end_s, next_s = 1.0, 1.0, np.inf, np.inf
    for i in range(windows.first[at], windows.first[at + 1]):
        if windows.begin_s[i] > now_s:
            if windows.begin_s[i] < next_s:
                next_s, next_speed = windows.begin_s[i], windows.speed[i]
        elif windows.end_s[i] > now_s:
            speed *= windows.speed[i]
            end_s = min(end_s, windows.end_s[i])
    out[0], out[2] = speed, next_speed
    out[1] = 0.0 if speed == 1.0 else min(SOON, (end_s - now_s) / span_s)
    out[3] = min(SOON, (next_s - now_s) / span_s)


@compiled_in_place
def _near(world: World, state: State, n: int, s: int, latest_s: float, out: FloatArray) -> None:
    p, unit_s, now_s = world.stages[n], world.unit_s[n], state.now_s[n]
    out[0] = 1.0
    out[1] = min(SOON, max(0.0, state.free_s[n, s] - now_s) / unit_s)
    f_sent = world.microbatches[n] if s == 0 else state.done[n, F, s - 1]
    b_sent = state.done[n, F, s] if s == p - 1 else state.done[n, B, s + 1]
    out[2] = min(1.0, (f_sent - state.done[n, F, s]) / p)
    out[3] = (b_sent - state.done[n, B, s]) / p
    out[4] = state.held[n, s] / world.most[n]
    out[5] = (latest_s - _through_s(state, n, s)) / (p * unit_s)
    out[6] = world.slow[n, s]
    windows, at = world.windows, n * world.op_s.shape[2] + s
    out[7] = 1.0
    for i in range(windows.first[at], windows.first[at + 1]):
        if windows.begin_s[i] <= now_s < windows.end_s[i]:
            out[7] *= windows.speed[i]


@compiled_in_place
def _whole(world: World, state: State, n: int, s: int, out: FloatArray) -> None:
    p, count, unit_s = world.stages[n], world.microbatches[n], world.unit_s[n]
    ops, idle = 0, 0
    for stage in range(p):
        for k in range(3):
            ops += state.done[n, k, stage]
        idle += state.free_s[n, stage] <= state.now_s[n]
    out[0] = p / 16
    out[1] = np.log2(count) / 8
    out[2] = min(4.0, world.most[n] / world.mean[n, 0] / p)
    out[3] = world.frees[n]
    out[4] = world.mean[n, 1] / unit_s
    out[5] = ops / (3 * p * count)
    out[6] = idle / p
    if s == 0 and state.done[n, F, 0] < count:
        for i, action in enumerate((F, LIGHTEST, HEAVIEST)):
            m = microbatch_of(state.ends[n], world.by_load[n], action)
            out[7 + i] = world.load_s[n, m] / world.mean[n, 2]
    out[10 + template_kind(s, p, count, world.whole[n], state.done[n, :, s])] = 1.0
