import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.errors import Infeasible, InputError
from hydraplan.metrics import shares
from hydraplan.planner.pipeline.memory import Memory, even_memory
from hydraplan.planner.pipeline.schedules import zb_h1
from hydraplan.planner.pipeline.simulator import load_of, run_ops, simulate, timeline, way_of
from hydraplan.planner.pipeline.spells import NONE, sorted_spells
from hydraplan.planner.policy.env import (
    Env,
    env_of,
    makespan_s,
    reset,
    schedule_of,
    step,
    template_actions,
)
from hydraplan.planner.policy.episode import WAIT, B, F, W
from hydraplan.planner.policy.features import NAMES
from hydraplan.planner.policy.world import Instance
from tests.planner.lanes import lane_times
from tests.planner.policy_oracle import ACTIONS, Oracle
from tests.planner.policy_seen import seen


def instance(seed: int, most_stages: int = 5, most_microbatches: int = 8) -> Instance:
    """Unequal everything: ops, messages, activations, devices, windows, and a limit that binds."""
    rng = np.random.default_rng(seed)
    p, m = int(rng.integers(1, most_stages + 1)), int(rng.integers(2, most_microbatches + 1))
    op_s = rng.lognormal(0, 0.5, (3, p, m))
    if seed % 3 == 0:
        op_s = rng.integers(1, 3, (3, p, m)).astype(float)  # many events at the same time
    lane = lane_times(op_s, rng.uniform(0, 0.3, m) * (seed % 2))
    lane = replace(lane, grad_sync_s=rng.uniform(0, 1, p))
    live = rng.uniform(0.5, 1.5, m)
    memory = Memory(float(rng.uniform(max(live), p * 1.5 + 0.5)), live, float(rng.uniform()))
    windows = NONE
    if seed % 4:
        count = int(rng.integers(1, 4))
        begin_s = rng.uniform(0, 3 * m, count)
        windows = sorted_spells(
            p, rng.integers(0, p, count), begin_s, begin_s + rng.uniform(0, 2 * m, count),
            rng.choice([0.0, 0.5, 0.8], count), np.zeros(count, np.int64),
        )  # fmt: skip
    return Instance(lane, memory, rng.uniform(1, 2, p) if seed % 5 else None, windows)


def chosen(env: Env, rng: np.random.Generator) -> np.ndarray:
    """Some legal action of every episode."""
    return np.array([rng.choice(np.flatnonzero(m)) if m.any() else 0 for m in env.masks])


def simulated_s(case: Instance, schedule) -> float:
    """What the simulator makes of an order on the expected times and windows."""
    slots = case.expected()
    times = run_ops(load_of(slots), schedule, way_of(slots), case.windows)
    return shares(timeline(schedule, times, slots.grad_sync_s))["iteration_s"]


@given(st.integers(0, 1 << 30))
@settings(deadline=None, max_examples=60)
def test_every_episode_ends_in_a_legal_order_that_takes_what_the_simulator_says(seed):
    cases, rng = [instance(seed + i) for i in range(4)], np.random.default_rng(seed)
    env, steps = env_of(cases), 0
    while not env.ended.all():
        assert (env.masks.any(axis=1) == ~env.ended).all()
        assert np.isfinite(env.features).all()
        step(env, chosen(env, rng))
        steps += 1
    for n, case in enumerate(cases):
        schedule, (_, p, _, _, m) = schedule_of(env, n), case.lane.op_s.shape
        every = {(kind, j) for kind in "FBW" for j in range(m)}
        assert [{op[:2] for op in ops} for ops in schedule] == [every] * p
        assert [len(ops) for ops in schedule] == [3 * m] * p
        assert case.memory.fits(case.memory.most(schedule, 1))
        assert simulated_s(case, schedule) == makespan_s(env)[n]
        assert steps <= 6 * 3 * 5 * 8


@given(st.integers(0, 1 << 30))
@settings(deadline=None, max_examples=25)
def test_plain_definitions_choose_at_the_same_times_under_the_same_masks_and_see_the_same(seed):
    case, rng = instance(seed), np.random.default_rng(seed)
    env, oracle = env_of([case]), Oracle(case)
    while not env.ended[0]:
        assert oracle.stage == env.state.stage[0]
        assert oracle.now_s == env.state.now_s[0]
        assert oracle.legal() == {ACTIONS[a] for a in np.flatnonzero(env.masks[0])}
        found = dict(zip(NAMES, env.features[0].tolist(), strict=True))
        for name, value in seen(oracle).items():
            assert found[name] == value, name
        assert sum(found[f"template_{k}"] for k in "fbw") == 1
        action = chosen(env, rng)
        step(env, action)
        oracle.act(ACTIONS[action[0]])
    assert oracle.stage is None
    assert oracle.schedule() == schedule_of(env, 0)
    assert oracle.now_s == makespan_s(env)[0]


def test_the_oracle_and_the_environment_name_the_same_features():
    assert {*seen(Oracle(instance(1))), "template_f", "template_b", "template_w"} == {*NAMES}
    assert len(set(NAMES)) == len(NAMES)


@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 1 << 30))
@settings(deadline=None, max_examples=40)
def test_following_the_template_gives_zb_h1_whatever_the_times(stages, count, seed):
    times = lane_times(np.random.default_rng(seed).lognormal(0, 1, (3, stages, count)), 0.2)
    case = Instance(times, even_memory(stages, count))
    env = env_of([case])
    while not env.ended[0]:
        told = env.features[0, -3:].argmax()
        action = template_actions(env)[0]
        assert action == told or (action not in (F, B, W) and not env.masks[0, told])
        step(env, np.array([action]))
    assert schedule_of(env, 0) == zb_h1(stages, count)
    assert makespan_s(env)[0] == shares(simulate(times, zb_h1(stages, count)))["iteration_s"]


def test_the_docs_tell_every_feature():
    text = (Path(__file__).parents[2] / "docs" / "policy.md").read_text()
    assert f"One vector of {len(NAMES)} numbers" in text
    assert [name for name in NAMES if f"`{re.sub('^(up|down)_', '', name)}`" not in text] == []


def test_episodes_do_not_depend_on_those_beside_them_and_repeat():
    cases = [instance(seed) for seed in range(20, 28)]

    def played(of: list[Instance], at: int) -> tuple[list[bytes], float]:
        env, rng = env_of(of), np.random.default_rng(at)
        for _ in range(2):
            reset(env)
            rng, told = np.random.default_rng(at), []
            while not env.ended.all():
                if not env.ended[at % len(of)]:
                    told.append(env.features[at % len(of)].tobytes())
                actions = np.array([m.argmax() for m in env.masks])
                if env.masks[at % len(of)].any():
                    actions[at % len(of)] = rng.choice(np.flatnonzero(env.masks[at % len(of)]))
                step(env, actions)
        return told, float(makespan_s(env)[at % len(of)])

    for at in range(len(cases)):
        alone = [cases[at]] * len(cases)
        assert played(cases, at) == played(alone, at)


def test_stages_that_all_wait_for_each_other_go_on_without_having_lost_time():
    # Stage 1 leaves B 0 and waits for F 1, which stage 0 leaves and waits for B 0.
    case = Instance(lane_times(np.ones((3, 2, 2))), even_memory(2, 2))
    env = env_of([case])
    assert env.state.stage[0] == 0
    assert env.masks[0].tolist() == [True, False, False, True, False, False]
    step(env, np.array([WAIT]))
    assert (env.state.stage[0], env.state.now_s[0]) == (1, 2.0)
    assert env.masks[0].tolist() == [False, True, False, True, False, False]
    step(env, np.array([WAIT]))
    # F 1 ran at 1 and at 2, then B 0 at 3 and at 4: nobody had another choice.
    assert env.state.free_s[0].tolist() == [5.0, 4.0]
    assert env.state.kinds[0, 0, :3].tolist() == [F, F, B]
    assert env.state.kinds[0, 1, :3].tolist() == [F, F, B]
    while not env.ended[0]:
        step(env, template_actions(env))
    assert makespan_s(env)[0] == simulated_s(case, schedule_of(env, 0)) == 8.0


def test_the_first_stage_takes_the_next_the_lightest_or_the_heaviest_microbatch():
    op_s = np.ones((3, 1, 4)) * [2.0, 3.0, 1.0, 4.0]
    env = env_of([Instance(lane_times(op_s), even_memory(4, 4))])
    for action in (5, 4, 0):
        step(env, np.array([action]))
    while not env.ended[0]:
        step(env, np.array([env.masks[0].argmax()]))
    forwards = [op.microbatch for op in schedule_of(env, 0)[0] if op.kind == "F"]
    assert forwards == [3, 2, 0, 1]


def test_an_illegal_action_is_refused_and_changes_nothing():
    env = env_of([instance(3), instance(4)])
    before = env.features.copy()
    wrong = np.array([env.masks[0].argmax(), env.masks[1].argmin()])
    for actions in (wrong, np.array([wrong[0], 6]), np.array([wrong[0], -1])):
        with pytest.raises(InputError, match=r"not legal in episode 1"):
            step(env, actions)
    assert (env.features == before).all()


def test_an_instance_of_another_form_is_refused():
    lane, memory = lane_times(np.ones((3, 2, 3))), even_memory(2, 3)
    with pytest.raises(InputError, match="2 chunks"):
        Instance(lane_times(np.ones((3, 2, 2, 3))), memory)
    with pytest.raises(InputError, match="no rows"):
        Instance(replace(lane, rows=np.array([[1, 0, 1]])), memory)
    with pytest.raises(InputError, match="not above zero"):
        Instance(lane, memory, np.array([1.0, 0.0]))
    with pytest.raises(InputError, match="activations of 4"):
        Instance(lane, even_memory(2, 4))
    with pytest.raises(Infeasible):
        Instance(lane, even_memory(0.5, 3))
