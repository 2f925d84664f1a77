"""The decision process of op orders: many episodes at once, each on an instance of its own.

An episode plans one batch. Whenever a stage has a choice, the caller gets features and a mask of
legal actions (`episode`, `features`) and says one action; what leaves no choice runs by itself.
At the end the episode has an op order that is legal and keeps to the memory limit, and the return
is minus its makespan: to the last bit what the simulator makes of the order on the same expected
times and windows. No chance is involved: the same actions give the same episode.

A policy is trained on it (`train`) and plans with it (`policy_order`).

Source: an MDP over F, B, W and waiting is Conductor's; states, features and when a stage chooses
are ours, since the paper gives none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from hydraplan.errors import InputError, many
from hydraplan.model import FloatArray, IntArray, Op, OpKind, Schedule
from hydraplan.planner.compiled import compiled_in_place
from hydraplan.planner.policy.episode import NOBODY, NUM_ACTIONS, WAIT, State, act, begin, new_state
from hydraplan.planner.policy.features import NUM_FEATURES, fill_features
from hydraplan.planner.policy.template import template_kind
from hydraplan.planner.policy.world import Instance, World, world_of


@dataclass(frozen=True, slots=True, eq=False)
class Env:
    """Episodes side by side; arrays are filled in place by `reset` and `step`.

    `features` (n, NUM_FEATURES) and `masks` (n, NUM_ACTIONS) are those of the next choice, all
    zero for an episode that has ended.
    """

    world: World
    state: State
    features: FloatArray
    masks: NDArray[np.bool_]

    @property
    def ended(self) -> NDArray[np.bool_]:
        """Which episodes are over, (n,)."""
        over: NDArray[np.bool_] = self.state.stage == NOBODY
        return over


def env_of(instances: Sequence[Instance]) -> Env:
    """An environment at the first choice of each instance; they may differ in size."""
    env = empty_env(instances)
    reset(env)
    return env


def empty_env(instances: Sequence[Instance]) -> Env:
    """The same before any episode has begun: for `reset`, or `rollout.play`."""
    world, n = world_of(instances), len(instances)
    return Env(
        world, new_state(world), np.zeros((n, NUM_FEATURES)), np.zeros((n, NUM_ACTIONS), np.bool_)
    )


def reset(env: Env) -> None:
    """Start all episodes over."""
    _reset(env.world, env.state, env.features, env.masks)


def step(env: Env, actions: IntArray) -> None:
    """Act in every episode that has not ended, (n,); all or, if one is illegal, none.

    Raises:
        InputError: An action is not legal, or there is not one whole number an episode.
    """
    if actions.shape != env.state.stage.shape or actions.dtype.kind not in "iu":
        raise InputError(
            f"actions of {actions.dtype} and shape {actions.shape} are not one whole number for"
            f" each of {many(len(env.masks), 'episode')}"
        )
    n = _illegal(env.masks, env.state.stage, actions)
    if n >= 0:
        legal = ", ".join(map(str, np.flatnonzero(env.masks[n]).tolist()))
        raise InputError(
            f"action {int(actions[n])} is not legal in episode {n}",
            f"stage {int(env.state.stage[n])} may take {legal}",
        )
    _step(env.world, env.state, actions, env.features, env.masks)


def template_actions(env: Env) -> IntArray:
    """Actions that follow ZB-H1, (n,): its next op, or else to wait for it, or else any op."""
    actions = np.zeros(len(env.masks), np.int64)
    _template_actions(env.world, env.state, env.masks, actions)
    return actions


def makespan_s(env: Env) -> FloatArray:
    """Seconds of each batch, exposed gradient sync included, (n,); minus the return.

    All episodes have ended.
    """
    assert env.ended.all()
    return env.state.now_s.copy()


def schedule_of(env: Env, n: int) -> Schedule:
    """The op order of an episode that has ended."""
    assert env.ended[n]
    stages, count = int(env.world.stages[n]), int(env.world.microbatches[n])
    order = env.state.order[n, :count].tolist()
    schedule = []
    for kinds in env.state.kinds[n, :stages, : 3 * count].tolist():
        places = [iter(order), iter(order), iter(order)]
        schedule.append(tuple(Op(cast(OpKind, "FBW"[k]), next(places[k])) for k in kinds))
    return tuple(schedule)


@compiled_in_place
def _reset(world: World, state: State, features: FloatArray, masks: NDArray[np.bool_]) -> None:
    for n in range(len(masks)):
        begin(world, state, n, masks[n])
        fill_features(world, state, n, features[n])


@compiled_in_place
def _illegal(masks: NDArray[np.bool_], stage: IntArray, actions: IntArray) -> int:
    """First episode that has not ended and whose action is not legal, -1 for none."""
    for n in range(len(masks)):
        if stage[n] >= 0 and not (0 <= actions[n] < masks.shape[1] and masks[n, actions[n]]):
            return n
    return -1


@compiled_in_place
def _step(
    world: World,
    state: State,
    actions: IntArray,
    features: FloatArray,
    masks: NDArray[np.bool_],
) -> None:
    for n in range(len(masks)):
        if state.stage[n] >= 0:
            act(world, state, n, actions[n], masks[n])
            fill_features(world, state, n, features[n])


@compiled_in_place
def _template_actions(
    world: World, state: State, masks: NDArray[np.bool_], actions: IntArray
) -> None:
    for n in range(len(masks)):
        s = state.stage[n]
        if s < 0:
            continue
        k = template_kind(
            s, world.stages[n], world.microbatches[n], world.whole[n], state.done[n, :, s]
        )
        if masks[n, k]:
            actions[n] = k
        elif masks[n, WAIT]:
            actions[n] = WAIT
        else:
            actions[n] = masks[n].argmax()
