"""What an order is worth where ops take longer than expected: the mean over noise scenarios.

As the portfolio scores (`pipeline.scenarios`): half the time as planned, a quarter each the means
of runs with jitter on every op and of runs with a slow stage; announced windows are in all of them.
The draws are others, so that what is learned or measured on them was not chosen on those that
plans are scored on.

All scenarios of an order run side by side in one walk, with the scenario as the last axis.

Source: ours.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.compiled import compiled
from hydraplan.planner.pipeline.scenarios import JITTER, STRAGGLER
from hydraplan.planner.pipeline.spells import Spells, stretched_s
from hydraplan.planner.policy.env import Env
from hydraplan.planner.policy.world import Instance

JITTERS, STRAGGLERS = 4, 8
"""Runs with jitter; most stages that are slow in turn."""


class Scenarios(NamedTuple):
    """Op times (3, stages, microbatches, scenarios), the first as planned, and the weights.

    `windows`: of every stage.
    """

    op_s: FloatArray
    weight: FloatArray
    windows: Spells


def scenarios_of(instance: Instance, random: np.random.Generator) -> Scenarios:
    """Draw those of one batch."""
    op_s = instance.expected().op_s[:, :, 0, 0, :, None]
    stages = op_s.shape[1]
    count, spread = min(stages, STRAGGLERS), np.log1p(JITTER**2)
    jitter = random.lognormal(-spread / 2, spread**0.5, (*op_s.shape[:3], JITTERS))
    slow = np.ones((stages, 1, count))
    slow[random.permutation(stages)[:count], 0, np.arange(count)] = STRAGGLER
    slow = np.broadcast_to(slow, (*op_s.shape[:3], count))
    factor = np.concatenate([np.ones_like(op_s), jitter, slow], axis=3)
    weight = np.repeat([1 / 2, 1 / 4 / JITTERS, 1 / 4 / count], [1, JITTERS, count])
    return Scenarios(op_s * factor, weight, instance.windows)


def as_planned(instance: Instance) -> Scenarios:
    """The run without noise alone."""
    op_s = instance.expected().op_s[:, :, 0, 0, :, None]
    return Scenarios(np.ascontiguousarray(op_s), np.ones(1), instance.windows)


def scored_s(env: Env, parts: Sequence[Scenarios]) -> FloatArray:
    """Score of every episode, seconds, (episodes,); all have ended.

    Args:
        parts: Of each batch, whose episodes follow each other, as many of each.
    """
    each = len(env.masks) // len(parts)
    scores = [walked_s(env, i * each, each, part) @ part.weight for i, part in enumerate(parts)]
    return np.concatenate(scores)


def walked_s(env: Env, first: int, count: int, part: Scenarios) -> FloatArray:
    """Seconds of so many episodes of one batch, from the first on, (episodes, scenarios)."""
    of, stages = slice(first, first + count), part.op_s.shape[1]
    taken_s = np.zeros((count, len(part.weight)))
    windows, lost_s = part.windows, np.zeros(len(part.windows.speed))
    if not len(windows.first):
        windows = windows._replace(first=np.zeros(stages + 1, np.int64))
    _walk(
        env.state.kinds[of], env.state.order[of], part.op_s, env.world.travel_s[first],
        env.world.sync_s[first], windows, lost_s, taken_s,
    )  # fmt: skip
    return taken_s


@compiled
def _walk(
    kinds: IntArray,
    order: IntArray,
    op_s: FloatArray,
    travel_s: FloatArray,
    sync_s: FloatArray,
    windows: Spells,
    lost_s: FloatArray,
    taken_s: FloatArray,
) -> None:
    """Fill the seconds of every order, (orders, scenarios); a stage runs until it has to wait."""
    _, stages, count, scenarios = op_s.shape
    ended = np.zeros((2, stages, count, scenarios))
    free, done = np.zeros((stages, scenarios)), np.zeros((3, stages), np.int64)
    for n in range(len(kinds)):
        free[:], done[:] = 0.0, 0
        left = 3 * stages * count
        while left > 0:
            for s in range(stages):
                low, high = windows.first[s], windows.first[s + 1]
                while True:
                    i = done[0, s] + done[1, s] + done[2, s]
                    if i == 3 * count:
                        break
                    k = kinds[n, s, i]
                    j = done[k, s]
                    source, way = s, k  # whose result the op needs; W needs none that is not there
                    if k == 0:
                        source = s - 1
                    elif k == 1 and s + 1 < stages:
                        source = s + 1
                    elif k == 1:
                        way = 0
                    if k < 2 and source >= 0 and done[way, source] <= j:
                        break
                    m = order[n, j]
                    away_s = travel_s[m] if source != s else 0.0
                    for x in range(scenarios):
                        begin_s = free[s, x]
                        if k < 2 and source >= 0:
                            begin_s = max(begin_s, ended[way, source, j, x] + away_s)
                        work_s = op_s[k, s, m, x]
                        if low < high:
                            work_s = stretched_s(begin_s, work_s, low, high, windows, lost_s)
                        free[s, x] = begin_s + work_s
                        if k < 2:
                            ended[k, s, j, x] = free[s, x]
                    done[k, s] += 1
                    left -= 1
        for x in range(scenarios):
            for s in range(stages):
                taken_s[n, x] = max(taken_s[n, x], free[s, x] + sync_s[s])
