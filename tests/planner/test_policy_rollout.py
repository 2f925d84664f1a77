"""Whole episodes in one loop against the network written out and `Env.step`."""

import numpy as np
import pytest

from hydraplan.planner.pipeline.memory import even_memory
from hydraplan.planner.pipeline.schedules import zb_h1
from hydraplan.planner.policy.env import env_of, makespan_s, schedule_of, step
from hydraplan.planner.policy.episode import WAIT
from hydraplan.planner.policy.network import Policy, Weights, new_weights
from hydraplan.planner.policy.rollout import (
    GREEDY,
    new_trace,
    play,
    rollouts,
    samples,
    uniform,
)
from hydraplan.planner.policy.world import Instance
from tests.planner.lanes import lane_times
from tests.planner.test_policy_env import instance

MASK_64 = (1 << 64) - 1


def random_policy(seed: int, hidden: int = 12, spread: float = 0.5) -> Policy:
    """A network with preferences of its own."""
    rng = np.random.default_rng(seed)
    found = new_weights(rng, hidden)
    return Policy(Weights(*(a + rng.normal(0, spread, a.shape).astype(np.float32) for a in found)))


def logits_of(weights: Weights, features: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The network in double precision, by its definition."""
    values = features.astype(np.float32).astype(float)
    for into, bias in (weights[0:2], weights[2:4]):
        values = np.maximum(0.0, values @ into.astype(float) + bias)
    logits = values @ weights.into_3.astype(float) + weights.bias_3
    kind = int(features[-3:].argmax())
    if mask[kind]:
        logits[kind] += weights.head_start[0]
    elif mask[WAIT]:
        logits[WAIT] += weights.head_start[0]
    return np.where(mask, logits, -np.inf)


def splitmix(seed: int, choice: int) -> float:
    """`uniform` again, in whole numbers."""
    x = (seed * 0xD1342543DE82EF95 + (choice + 1) * 0x9E3779B97F4A7C15) & MASK_64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK_64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK_64
    return ((x ^ (x >> 31)) >> 11) / 2**53


@pytest.mark.parametrize("seed", range(6))
def test_an_episode_is_what_the_network_written_out_does_step_by_step(seed):
    policy, cases = random_policy(seed), [instance(4 * seed + i) for i in range(4)]
    seeds = np.array([GREEDY, 0, 17, (1 << 62) + 5])
    env, trace = env_of(cases), new_trace(5_000, 4)
    count = play(policy.weights, env, seeds, trace)
    assert count == trace.first[4] < 5_000
    for n, case in enumerate(cases):
        twin, row = env_of([case]), int(trace.first[n])
        while not twin.ended[0]:
            logits = logits_of(policy.weights, twin.features[0], twin.masks[0])
            share = np.exp(logits - logits.max())
            below = np.cumsum(share / share.sum())
            action = int(trace.actions[row])
            if seeds[n] == GREEDY:
                assert logits[action] >= logits.max() - 1e-4
            else:
                number = splitmix(int(seeds[n]), row - int(trace.first[n]))
                assert below[action] - share[action] / share.sum() - 1e-4 <= number
                assert number <= below[action] + 1e-4
            assert abs(trace.log_prob[row] - np.log(share[action] / share.sum())) < 1e-3
            assert (trace.masks[row] == twin.masks[0]).all()
            assert (trace.features[row] == twin.features[0].astype(np.float32)).all()
            step(twin, np.array([action]))
            row += 1
        assert row == trace.first[n + 1]
        assert schedule_of(twin, 0) == schedule_of(env, n)
        assert makespan_s(twin)[0] == makespan_s(env)[n]


@pytest.mark.parametrize(("seed", "choice"), [(0, 0), (1, 0), (0, 1), (7, 123_456), (1 << 62, 3)])
def test_numbers_of_choices_are_those_of_whole_number_arithmetic(seed, choice):
    assert uniform(seed, choice) == splitmix(seed, choice)


def test_numbers_of_choices_are_even_and_differ_by_seed_and_choice():
    numbers = np.array([[uniform(s, c) for c in range(200)] for s in range(50)])
    assert len(np.unique(numbers)) == numbers.size
    counts = np.histogram(numbers, 10, (0, 1))[0]
    assert np.abs(counts - 1_000).max() < 120
    assert abs(np.corrcoef(numbers[:, :-1].ravel(), numbers[:, 1:].ravel())[0, 1]) < 0.05


def test_a_sample_depends_on_its_seed_alone():
    policy, case = random_policy(1, spread=0.1), instance(9, 5, 8)
    found = samples(policy, case, 6, seed=3)
    assert len(found.masks) == 7
    again = samples(policy, case, 6, seed=3)
    assert [schedule_of(again, n) for n in range(7)] == [schedule_of(found, n) for n in range(7)]
    alone = rollouts(policy, [instance(8), case, case], [4, GREEDY, 18])
    assert schedule_of(alone, 1) == schedule_of(found, 0)
    assert schedule_of(alone, 2) == schedule_of(found, 1)
    assert len({schedule_of(found, n) for n in range(1, 7)}) > 1


def test_a_new_network_prefers_zb_h1():
    policy = Policy(new_weights(np.random.default_rng(0)))
    case = Instance(lane_times(np.ones((3, 4, 9)), 0.1), even_memory(4, 9))
    assert schedule_of(rollouts(policy, [case], [GREEDY]), 0) == zb_h1(4, 9)


def test_a_trace_without_room_still_counts():
    policy, case = random_policy(2), instance(5)
    env = env_of([case])
    whole, none = new_trace(1_000, 1), new_trace(0, 1)
    count = play(policy.weights, env, np.array([3]), whole)
    assert play(policy.weights, env, np.array([3]), none) == count > 1
    assert len(none.actions) == 0
    assert none.first.tolist() == [0, count]
