"""Orders that others made, as choices: what a policy imitates before it learns by itself.

The kinds of each stage's ops are followed one after the other. Where the next is not there, the
stage waits for it, or takes what is there if it may not. Microbatches go by number.

Source: to clone a strong heuristic is Conductor's; which ones, and how an order becomes choices,
are ours.
"""

import numpy as np
from numpy.typing import NDArray

from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.compiled import compiled_in_place
from hydraplan.planner.pipeline.portfolio import orders_of
from hydraplan.planner.policy.env import Env, empty_env
from hydraplan.planner.policy.episode import NOBODY, WAIT, State, go_on, put, start
from hydraplan.planner.policy.features import fill_features
from hydraplan.planner.policy.gradient import Batch
from hydraplan.planner.policy.rollout import Trace, keep_choice, new_trace
from hydraplan.planner.policy.scored import Scenarios, scored_s
from hydraplan.planner.policy.template import template_kind
from hydraplan.planner.policy.world import Instance, World

TEMPLATE = -1
"""In place of the first kind: follow ZB-H1."""


def teachers(instance: Instance) -> IntArray:
    """Kinds of the ops of each stage, (orders, stages, 3 microbatches): ZB-H1 first, then rules."""
    stages, count = (instance.lane.op_s.shape[i] for i in (1, 4))
    found = orders_of(instance.expected(), instance.memory)
    kinds = np.full((1 + len(found.kind), stages, 3 * count), TEMPLATE, np.int64)
    for i in range(len(found.kind)):
        for s in range(stages):
            kinds[1 + i, s] = found.kind[i, found.node[i] == s]
    return kinds


def followed(instance: Instance, kinds: IntArray) -> tuple[Env, Trace]:
    """An episode for each of some orders of one instance, and all their choices."""
    env = empty_env([instance] * len(kinds))
    trace = new_trace(4 * kinds.size, len(kinds))
    count = follow(env, kinds, trace)
    assert count <= len(trace.actions)
    return env, trace


def follow(env: Env, kinds: IntArray, trace: Trace) -> int:
    """Play orders from the beginning; how many choices that were, as `rollout.play`."""
    choices: int = _follow(env.world, env.state, env.features, env.masks, kinds, trace)
    return choices


def best_of(instance: Instance, scenarios: Scenarios) -> Batch:
    """Choices of the order with the best score, of ZB-H1 and all rules."""
    env, trace = followed(instance, teachers(instance))
    n = int(scored_s(env, [scenarios]).argmin())
    of = np.arange(trace.first[n], trace.first[n + 1])
    none = np.zeros(len(of), np.float32)
    return Batch(trace.features[of], trace.masks[of], trace.actions[of], none, none)


@compiled_in_place
def _follow(
    world: World,
    state: State,
    features: FloatArray,
    masks: NDArray[np.bool_],
    kinds: IntArray,
    trace: Trace,
) -> int:
    row, room = 0, len(trace.actions)
    for n in range(len(masks)):
        mask, seen = masks[n], features[n]
        start(world, state, n)
        trace.first[n] = row
        while True:
            go_on(world, state, n, mask)
            s = state.stage[n]
            if s == NOBODY:
                break
            done = state.done[n, :, s]
            action = kinds[n, s, done[0] + done[1] + done[2]]
            if action == TEMPLATE:
                action = template_kind(
                    s, world.stages[n], world.microbatches[n], world.whole[n], done
                )
            if not mask[action]:
                action = WAIT if mask[WAIT] else int(mask.argmax())
            if row < room:
                fill_features(world, state, n, seen)
                keep_choice(trace, row, seen, mask, action)
            put(world, state, n, action)
            row += 1
        seen[:] = 0.0
    trace.first[len(masks)] = row
    return row
