"""Whole episodes played by a policy in one compiled loop: what it sees, prefers and does.

Greedy, or drawn from the preferences with numbers that depend on the episode's seed and the choice
alone: so the same seed gives the same order, whatever else is played. All episodes of a call are
independent; samples of one instance are episodes of copies of it.

Source: ours.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hydraplan.errors import InputError, many
from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.compiled import compiled_in_place
from hydraplan.planner.policy.env import Env, empty_env
from hydraplan.planner.policy.episode import NOBODY, NUM_ACTIONS, State, go_on, put, start
from hydraplan.planner.policy.features import NUM_FEATURES, fill_features
from hydraplan.planner.policy.network import Floats, Policy, Weights, fill_logits
from hydraplan.planner.policy.world import Instance, World

GREEDY = -1
"""In place of a seed: take what is preferred most, the first of those alike."""


class Trace(NamedTuple):
    """Choices of several episodes, one after the other: (choices, ...).

    `first`: where the choices of each episode begin, (episodes + 1,). `log_prob` is that of the
    action under the policy that played.
    """

    features: Floats
    masks: NDArray[np.bool_]
    actions: IntArray
    log_prob: Floats
    first: IntArray

    def upto(self, count: int) -> "Trace":
        """Without the room after so many choices."""
        return Trace(
            self.features[:count], self.masks[:count], self.actions[:count],
            self.log_prob[:count], self.first,
        )  # fmt: skip


def new_trace(choices: int, episodes: int) -> Trace:
    """Room for so many."""
    return Trace(
        np.zeros((choices, NUM_FEATURES), np.float32), np.zeros((choices, NUM_ACTIONS), np.bool_),
        np.zeros(choices, np.int64), np.zeros(choices, np.float32),
        np.zeros(episodes + 1, np.int64),
    )  # fmt: skip


def rollouts(policy: Policy, instances: Sequence[Instance], seeds: Sequence[int]) -> Env:
    """One episode of each instance to its end; `env.makespan_s` and `schedule_of` read them.

    Args:
        seeds: From 0 up, (instances,), or `GREEDY`.

    Raises:
        InputError: There is not one seed for each instance.
    """
    if len(seeds) != len(instances):
        raise InputError(f"{many(len(seeds), 'seed')} for {many(len(instances), 'batch')}")
    env = empty_env(instances)
    play(policy.weights, env, np.asarray(seeds, np.int64), new_trace(0, len(instances)))
    return env


def samples(policy: Policy, instance: Instance, count: int, seed: int = 0) -> Env:
    """The greedy episode of an instance and so many drawn ones after it."""
    drawn = range(seed * count, (seed + 1) * count)
    return rollouts(policy, [instance] * (1 + count), [GREEDY, *drawn])


def play(weights: Weights, env: Env, seeds: IntArray, trace: Trace) -> int:
    """Play all episodes of an environment from their beginning; how many choices that were.

    Those are put into the trace as far as there is room; all of it if the number is no more.
    """
    hidden = np.zeros((3, max(NUM_FEATURES, len(weights.bias_1), len(weights.bias_2))), np.float32)
    logits = np.zeros(NUM_ACTIONS, np.float32)
    choices: int = _play(
        weights, env.world, env.state, env.features, env.masks, seeds, trace, hidden, logits
    )
    return choices


@compiled_in_place
def keep_choice(
    trace: Trace, row: int, features: FloatArray, mask: NDArray[np.bool_], action: int
) -> None:
    """Put what was seen, legal and done into a row of the trace."""
    for i in range(NUM_FEATURES):
        trace.features[row, i] = features[i]
    for a in range(NUM_ACTIONS):
        trace.masks[row, a] = mask[a]
    trace.actions[row] = action


@compiled_in_place
def _play(
    weights: Weights,
    world: World,
    state: State,
    features: FloatArray,
    masks: NDArray[np.bool_],
    seeds: IntArray,
    trace: Trace,
    hidden: Floats,
    logits: Floats,
) -> int:
    row, room = 0, len(trace.actions)
    for n in range(len(masks)):
        mask, seen = masks[n], features[n]
        start(world, state, n)
        trace.first[n] = row
        while True:
            go_on(world, state, n, mask)
            if state.stage[n] == NOBODY:
                break
            fill_features(world, state, n, seen)
            fill_logits(weights, seen, mask, hidden, logits)
            action = chosen(logits, seeds[n], row - trace.first[n])
            if row < room:
                keep_choice(trace, row, seen, mask, action)
                trace.log_prob[row] = _log_prob(logits, action)
            put(world, state, n, action)
            row += 1
        seen[:] = 0.0
    trace.first[len(masks)] = row
    return row


@compiled_in_place
def chosen(logits: Floats, seed: int, choice: int) -> int:
    """The action that an episode of that seed takes at a choice."""
    if seed < 0:
        return int(logits.argmax())
    return _drawn(logits, uniform(seed, choice))


@compiled_in_place
def uniform(seed: int, choice: int) -> float:
    """A number from 0 up to 1 that depends on seed and choice alone: splitmix64's finalizer."""
    x = np.uint64(seed) * np.uint64(0xD1342543DE82EF95) + np.uint64(choice + 1) * np.uint64(
        0x9E3779B97F4A7C15
    )
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    return float(x >> np.uint64(11)) / 9007199254740992.0


@compiled_in_place
def _total(logits: Floats, top: float) -> float:
    """Sum of what `exp` makes of the preferences above the largest."""
    total = 0.0
    for a in range(NUM_ACTIONS):
        total += np.exp(float(logits[a]) - top)
    return total


@compiled_in_place
def _drawn(logits: Floats, number: float) -> int:
    """The action that a number from 0 up to 1 draws by the preferences."""
    top, last = float(logits[logits.argmax()]), 0
    left = number * _total(logits, top)
    for a in range(NUM_ACTIONS):
        share = np.exp(float(logits[a]) - top)
        if share > 0.0:
            last = a
            if left < share:
                break
            left -= share
    return last


@compiled_in_place
def _log_prob(logits: Floats, action: int) -> float:
    top = float(logits[logits.argmax()])
    return float(logits[action]) - top - float(np.log(_total(logits, top)))
