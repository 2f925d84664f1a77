"""Learning: gradients against differences, advantages, repeatable and resumable runs."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hydraplan.errors import InputError
from hydraplan.planner.pipeline.memory import even_memory
from hydraplan.planner.pipeline.portfolio import orders_of, schedule_of
from hydraplan.planner.policy import env as envs
from hydraplan.planner.policy import train
from hydraplan.planner.policy.checkpoint import load_learner, save_learner
from hydraplan.planner.policy.cloning import best_of, followed, teachers
from hydraplan.planner.policy.draws import MOST, STAGES, drawn
from hydraplan.planner.policy.gradient import (
    CLIP,
    Batch,
    adam,
    clipped,
    cloned,
    forward,
    joined,
    no_moments,
)
from hydraplan.planner.policy.network import Weights, new_weights
from hydraplan.planner.policy.policy_file import load_with, save_policy
from hydraplan.planner.policy.rollout import new_trace, play
from hydraplan.planner.policy.scored import as_planned
from hydraplan.planner.policy.train import (
    Learner,
    Settings,
    advance,
    advantages,
    begun,
    training,
)
from hydraplan.planner.policy.validation import gains, validation, validation_of
from hydraplan.planner.policy.world import Instance
from tests.planner.lanes import iteration_s, lane_times
from tests.planner.test_policy_env import instance
from tests.planner.test_policy_rollout import random_policy

TINY = Settings(seed=3, steps=12_000, group=4, choices=2_000, hidden=8, cloned=2)
ROW = {
    "steps": 0.0,
    **dict.fromkeys(("greedy_percent", "drawn_percent", "greedy_over_rules_percent"), 0.0),
}
"""Figures of a checkpoint."""


def played(seed: int, episodes: int = 3) -> Batch:
    """Choices of some episodes, with advantages and log probabilities of their own."""
    rng, policy = np.random.default_rng(seed), random_policy(seed)
    env, trace = envs.env_of([instance(seed)] * episodes), new_trace(5_000, episodes)
    trace = trace.upto(play(policy.weights, env, np.arange(episodes), trace))
    advantage = rng.normal(0, 1, len(trace.actions)).astype(np.float32)
    shifted = trace.log_prob + rng.normal(0, 0.3, len(advantage)).astype(np.float32)
    return Batch(trace.features, trace.masks, trace.actions, advantage, shifted)


def in_double(weights: Weights) -> Weights:
    return Weights(*(a.astype(float) for a in weights))  # type: ignore[arg-type]


def test_batches_see_the_preferences_of_the_loop():
    policy, trace = random_policy(5), new_trace(5_000, 2)
    env = envs.env_of([instance(5)] * 2)
    trace = trace.upto(play(policy.weights, env, np.arange(2), trace))
    found = forward(policy.weights, trace.features, trace.masks).log_probs
    rows = np.arange(len(trace.actions))
    assert np.abs(found[rows, trace.actions] - trace.log_prob).max() < 1e-4
    assert (np.isfinite(found) == trace.masks).all()


def clipped_loss(weights: Weights, batch: Batch, bonus: float) -> float:
    """PPO's loss by its definition."""
    logs = forward(weights, batch.features, batch.masks).log_probs
    ratio = np.exp(logs[np.arange(len(logs)), batch.actions] - batch.log_prob)
    least = np.minimum(
        ratio * batch.advantage, np.clip(ratio, 1 - CLIP, 1 + CLIP) * batch.advantage
    )
    entropy = -(np.exp(logs) * np.where(batch.masks, logs, 0)).sum(axis=1)
    return float(-least.mean() - bonus * entropy.mean())


def cloned_loss(weights: Weights, batch: Batch, _: float) -> float:
    logs = forward(weights, batch.features, batch.masks).log_probs
    return float(-logs[np.arange(len(logs)), batch.actions].mean())


@pytest.mark.parametrize(
    ("gradient", "loss"),
    [(clipped, clipped_loss), (lambda w, b, _: cloned(w, b), cloned_loss)],
)
def test_gradients_are_those_of_the_losses(gradient, loss):
    batch, rng = played(7), np.random.default_rng(0)
    weights = in_double(random_policy(8).weights)
    found = gradient(weights, batch, 0.1)
    for name, values in weights._asdict().items():
        if name == "head_start":
            continue
        for _ in range(6):
            at = tuple(rng.integers(0, n) for n in values.shape)
            slopes = []
            for step in (1e-6, -1e-6):
                moved = values.copy()
                moved[at] += step
                slopes.append(loss(weights._replace(**{name: moved}), batch, 0.1))
            expected = (slopes[0] - slopes[1]) / 2e-6
            assert getattr(found, name)[at] == pytest.approx(expected, abs=2e-5)


def test_adam_moves_every_weight_by_the_rate_at_first_and_gradients_are_scaled_down():
    weights = random_policy(1).weights
    slope = Weights(*(np.full_like(a, 3.0) for a in weights))
    moved, moments = adam(weights, slope, no_moments(weights), 0.01)
    for old, new in zip(weights, moved, strict=True):
        assert new.dtype == np.float32
        assert old - new == pytest.approx(np.full_like(old, 0.01), abs=1e-5)
    assert float(np.linalg.norm(moments.first / np.float32(0.1))) == pytest.approx(0.5, rel=1e-3)


def test_batches_are_shuffled_whole():
    batch = joined([played(1), played(2)])
    parts = batch.shuffled(np.random.default_rng(0))
    assert sorted(np.concatenate([p.log_prob for p in parts])) == sorted(batch.log_prob)
    assert batch.rows(np.zeros(0, np.int64)).shuffled(np.random.default_rng(0)) == []


def test_following_a_rule_gives_its_order():
    case = Instance(lane_times(np.random.default_rng(0).uniform(1, 2, (3, 4, 1)) * np.ones(9), 0.2),
                    even_memory(4, 9))  # fmt: skip
    found, kinds = orders_of(case.lane, case.memory), teachers(case)
    env, trace = followed(case, kinds)
    assert len(kinds) == 1 + len(found.kind)
    for n in range(len(found.kind)):
        order = schedule_of(found, n, 4, 1)
        assert envs.makespan_s(env)[1 + n] <= iteration_s(case.lane, order) + 1e-9
        assert [[op.kind for op in ops] for ops in envs.schedule_of(env, 1 + n)] == [
            [op.kind for op in ops] for ops in order
        ]
    best = int(envs.makespan_s(env).argmin())
    choices = trace.actions[trace.first[best] : trace.first[best + 1]]
    assert (best_of(case, as_planned(case)).actions == choices).all()


def test_drawn_batches_have_all_that_an_order_may_have_to_cope_with():
    cases = [drawn(np.random.default_rng([9, i])) for i in range(150)]
    sizes = np.array([case.lane.op_s.shape for case in cases])
    assert {*sizes[:, 1].tolist()} == {*STAGES}
    assert 4 <= sizes[:, 4].min() < 8 < 64 < sizes[:, 4].max() <= MOST
    limits = np.array([case.memory.limit / p for case, p in zip(cases, sizes[:, 1], strict=True)])
    assert (limits < 0.9).any()
    assert (limits > 2.2).any()
    assert 0.2 < (limits == 1).mean() < 0.7
    assert 0.4 < np.mean([np.ptp(c.memory.live) > 0 for c in cases]) < 0.9
    loads = [np.ptp(c.lane.load_s) / c.lane.load_s.mean() for c in cases]
    assert 0.05 < np.mean(np.array(loads) > 0.6) < 0.3  # those from lengths
    assert 0.15 < np.mean([len(c.windows.speed) > 0 for c in cases]) < 0.5
    assert 0.1 < np.mean([c.slow is not None for c in cases]) < 0.5
    assert drawn(np.random.default_rng(1), 5, 7).lane.op_s.shape == (3, 5, 1, 1, 7)


@pytest.fixture
def _small(monkeypatch):
    """Batches of 4 stages and 8 microbatches."""
    monkeypatch.setattr(train, "drawn", lambda random: drawn(random, 4, 8))


def test_advantages_compare_episodes_of_a_batch_and_leave_out_batches_that_end_alike():
    ends_s = np.array([[10.0, 12.0], [100.0, 100.0]])
    found = advantages(ends_s, "group")
    assert found[0] == pytest.approx([1 / (1 + 0.0005 * 11), -1 / (1 + 0.0005 * 11)])
    assert found[1].tolist() == [0, 0]
    control = advantages(ends_s, "batch")
    assert (control[0] > 0.9).all()
    assert (control[1] < -0.9).all()


@pytest.mark.usefixtures("_small")
def test_the_same_seed_learns_the_same_and_another_does_not():
    one, other = (advance(TINY, begun(TINY))[0] for _ in range(2))
    assert all((a == b).all() for a, b in zip(one.weights, other.weights, strict=True))
    third = advance(replace(TINY, seed=4), begun(replace(TINY, seed=4)))[0]
    assert (third.weights.into_1 != one.weights.into_1).any()


@pytest.mark.usefixtures("_small")
def test_a_run_that_goes_on_from_a_checkpoint_makes_the_same_policy(tmp_path: Path):
    held = validation(3)
    whole = list(training(TINY, None, held))
    assert [m is not None for *_, m in whole[:1]] == [True]
    assert sum(m is not None for *_, m in whole) >= 3
    file = tmp_path / "checkpoint.npz"
    told = {**ROW, "steps": float(whole[2][0].steps)}
    save_learner(TINY, whole[2][0], [told], file)
    start, history = load_learner(TINY, file)
    assert history == [told]
    rest = list(training(TINY, start, held))
    assert len(rest) == len(whole) - 3 > 0
    for one, other in zip(whole[-1][0].weights, rest[-1][0].weights, strict=True):
        assert (one == other).all()
    assert [m for *_, m in rest] == [m for *_, m in whole[3:]]


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path):
    file, learner = tmp_path / "checkpoint.npz", begun(TINY)
    save_learner(TINY, learner, [ROW], file)
    with pytest.raises(InputError, match="is of a run with"):
        load_learner(replace(TINY, seed=4), file)
    other = random_policy(0).weights
    for weights, said in ((learner.weights, "moments that are not"), (other, "not 8 hidden units")):
        save_learner(TINY, Learner(weights, no_moments(other), 0, 0), [ROW], file)
        with pytest.raises(InputError, match=said):
            load_learner(TINY, file)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"rounds": "-1"}, "must be at least 0"),
        ({"steps": "9" * 5000}, "is damaged"),
        ({"adam_steps": "1e3"}, "is damaged"),
        ({"steps": "7"}, "figures that do not lead to its 7 choices"),
        ({"history": "[]"}, "figures that do not lead to its 0 choices"),
        ({"history": "[" * 100_000}, "is damaged"),
        ({"history": "[{}]"}, "figures that do not lead"),
        ({"history": '[{"steps": NaN}]'}, "0.steps: must be a finite number"),
        ({"history": json.dumps([{**ROW, "steps": 5}])}, "figures that do not lead"),
        ({"history": json.dumps([ROW, {"steps": 0}])}, "figures that do not lead"),
    ],
)
def test_a_checkpoint_whose_texts_no_run_writes_is_refused(tmp_path: Path, changed, said: str):
    file, weights = tmp_path / "checkpoint.npz", new_weights(np.random.default_rng(0), TINY.hidden)
    save_learner(TINY, Learner(weights, no_moments(weights), 0, 0), [ROW], file)
    policy, more = load_with(file, ("first", "second"))
    save_policy(replace(policy, about=policy.about | changed), file, more)
    with pytest.raises(InputError, match=said):
        load_learner(TINY, file)


def test_validation_pairs_a_policy_with_zb_h1_and_the_best_rule():
    cases = [Instance(lane_times(np.ones((3, 3, 7)), 0.1), even_memory(3, 7))] * 2
    held = validation_of([*cases, instance(5)])
    assert (held.rule_s <= held.template_s).all()
    held = validation_of(cases)
    found = gains(begun(replace(TINY, cloned=0)).weights, held)  # which follows ZB-H1
    assert found["greedy_percent"] == found["greedy_interval"] == 0
    assert found["drawn_percent"] < 0
    expected = 100 * (np.mean(held.rule_s / held.template_s) - 1)
    assert found["greedy_over_rules_percent"] == pytest.approx(expected)


@pytest.mark.slow
def test_episodes_compared_within_their_batch_teach_and_those_across_batches_do_not(monkeypatch):
    """The control: the same start, the same choices to play, only the baseline differs."""
    monkeypatch.setattr(train, "drawn", straggling)
    held = validation_of([straggling(np.random.default_rng([1, i])) for i in range(60)])
    gained = {}
    for baseline in ("group", "batch"):
        settings = Settings(steps=1_500_000, choices=32_768, cloned=40, baseline=baseline)
        *_, last = (m for *_, m in training(settings, None, held) if m is not None)
        gained[baseline] = last["greedy_percent"], last["drawn_percent"]
    start = gains(begun(Settings(cloned=40)).weights, held)
    assert gained["group"][0] > start["greedy_percent"] + 0.3
    assert gained["group"][1] > start["drawn_percent"] + 0.5
    assert gained["batch"][1] < start["drawn_percent"] + 0.3


def straggling(random: np.random.Generator) -> Instance:
    """Stages that differ, devices that differ, one of them slow; room for P microbatches."""
    p = int(random.choice([4, 8]))
    count = int(random.integers(p, 3 * p))
    slow = random.uniform(0.9, 1.1, p)
    slow[random.integers(p)] *= random.uniform(1.1, 1.6)
    return Instance(
        lane_times(np.ones((3, p, count)), random.uniform(0, 0.2)), even_memory(p, count), slow
    )
