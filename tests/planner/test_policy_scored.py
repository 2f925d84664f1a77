"""Scores of orders under noise, against the simulator."""

from dataclasses import replace

import numpy as np
import pytest

from hydraplan.metrics import shares
from hydraplan.planner.pipeline.simulator import load_of, run_ops, timeline, way_of
from hydraplan.planner.pipeline.spells import NONE
from hydraplan.planner.policy.env import makespan_s, schedule_of
from hydraplan.planner.policy.rollout import rollouts
from hydraplan.planner.policy.scored import as_planned, scenarios_of, scored_s
from tests.planner.test_policy_env import instance
from tests.planner.test_policy_rollout import random_policy


def ran_s(slots, case, schedule) -> float:
    """What the simulator makes of it."""
    times = run_ops(load_of(slots), schedule, way_of(slots), case.windows)
    return shares(timeline(schedule, times, slots.grad_sync_s))["iteration_s"]


@pytest.mark.parametrize("seed", range(5))
def test_scores_are_what_the_simulator_makes_of_each_scenario(seed):
    policy, cases = random_policy(seed), [instance(seed + i) for i in range(2)]
    env = rollouts(policy, [c for c in cases for _ in range(3)], range(6))
    parts = [scenarios_of(case, np.random.default_rng(seed)) for case in cases]
    found = scored_s(env, parts)
    for n in range(6):
        case, part = cases[n // 3], parts[n // 3]
        assert part.weight.sum() == pytest.approx(1)
        taken_s = [
            ran_s(
                replace(case.lane, op_s=part.op_s[:, :, None, None, :, x]),
                case,
                schedule_of(env, n),
            )
            for x in range(len(part.weight))
        ]
        assert taken_s[0] == makespan_s(env)[n]
        assert scored_s(rollouts(policy, [case], [n]), [as_planned(case)])[0] == taken_s[0]
        assert found[n] == pytest.approx(float(np.array(taken_s) @ part.weight), rel=1e-12)


def test_scenarios_have_a_run_as_planned_jitter_of_mean_one_and_slow_stages():
    case = replace(instance(1, 5, 8), windows=NONE)
    many = [scenarios_of(case, np.random.default_rng(i)) for i in range(200)]
    ratio = np.stack([p.op_s / p.op_s[..., :1] for p in many])
    assert ratio[..., 1:5].mean() == pytest.approx(1, abs=0.01)
    assert ratio[..., 1:5].std() == pytest.approx(0.3, abs=0.02)
    slow = ratio[..., 5:]
    assert {*np.unique(slow.round(6)).tolist()} == {1.0, 1.4}
    assert ((slow > 1).any(axis=(1, 3)).sum(axis=1) == 1).all()
