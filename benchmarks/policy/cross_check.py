"""Our trainer beside MaskablePPO of sb3-contrib on batches small enough to know the best order of.

    python benchmarks/policy/cross_check.py [--seeds 3] [--json FILE] [--readme]

Thirteen batches of 2 or 3 stages and 4 microbatches, room for as many as there are stages: one
stage slow by 1.5, or one microbatch twice as long. CP-SAT proves the fastest order of each, of all
orders within the limit; times are told in it, so the best return of every episode is -1. That also
takes the differences between batches out of the return, which a critic could not see through.

Both start from random weights: no imitation, and ours without the head start for ZB-H1. `theirs`
sees our environment through Gymnasium, learns with a critic, and is in no part our code. `greedy`
and `drawn` are percent above the fastest order, mean over the batches, of preferred and of drawn
actions (10 times); `untrained` is `drawn` before the first step. CPU seconds are of training.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "planner"))

from tables import Cell, Table, progress, reported  # noqa: E402

from hydraplan.model import FloatArray  # noqa: E402
from hydraplan.planner.pipeline.exact import solve_order  # noqa: E402
from hydraplan.planner.pipeline.memory import Memory  # noqa: E402
from hydraplan.planner.policy.cloning import followed, teachers  # noqa: E402
from hydraplan.planner.policy.env import makespan_s  # noqa: E402
from hydraplan.planner.policy.gradient import no_moments  # noqa: E402
from hydraplan.planner.policy.network import Policy, Weights, new_weights  # noqa: E402
from hydraplan.planner.policy.rollout import GREEDY, rollouts  # noqa: E402
from hydraplan.planner.policy.train import Learner, Settings, advance  # noqa: E402
from hydraplan.planner.policy.world import Instance  # noqa: E402
from hydraplan.slots import SlotTimes  # noqa: E402

MICROBATCHES, SLOW, LONG, TRAVEL = 4, 1.5, 2.0, 0.1
DRAWS = 10
"""Drawn episodes of a batch that are measured."""
OURS = Settings(steps=1_000_000, choices=16_384, rate=5e-3, noisy=False)
"""What differs from the shipped policy's settings suits a thousandth of the choices a batch has."""
THEIR_STEPS, ENVIRONMENTS = 65_536, 32
THEIR_SETTINGS = {
    "n_steps": 64, "batch_size": 256, "n_epochs": 4, "gamma": 1.0, "gae_lambda": 1.0,
    "learning_rate": 1e-3, "ent_coef": 0.003,
}  # fmt: skip


def batch(stage: FloatArray, load: FloatArray) -> Instance:
    """Times by stage and by microbatch, in seconds of its fastest order.

    Raises:
        AssertionError: CP-SAT did not prove one.
    """
    count = len(load)
    op_s = np.ones((3, 1, 1, 1, 1)) * stage[:, None, None, None] * load
    rows, component = np.ones((1, count), np.int64), np.zeros((1, count), np.int64)
    lane = SlotTimes(op_s, rows, component, np.full((1, count), TRAVEL), np.zeros(len(stage)))
    memory = Memory(float(len(stage)), load)
    best = solve_order(lane, memory, deterministic_s=5.0)
    assert best.status == "optimal", best.status
    scaled = replace(lane, op_s=op_s / best.time_s, boundary_s=lane.boundary_s / best.time_s)
    return Instance(scaled, memory)


def batches(stages: int) -> list[Instance]:
    """Each stage slow once, then each microbatch long once."""
    even, alike = np.ones(stages), np.ones(MICROBATCHES)
    slow = [batch(np.where(np.arange(stages) == s, SLOW, 1.0), alike) for s in range(stages)]
    long = [np.where(np.arange(MICROBATCHES) == m, LONG, 1.0) for m in range(MICROBATCHES)]
    return [*slow, *(batch(even, load) for load in long)]


def above(taken_s: FloatArray) -> float:
    """Percent above the fastest orders, mean."""
    return 100 * (float(taken_s.mean()) - 1)


def others(cases: list[Instance]) -> Cell:
    """ZB-H1, and the best rule of each batch."""
    taken = [makespan_s(followed(case, teachers(case))[0]) for case in cases]
    return {"who": "ZB-H1", "greedy": above(np.array([t[0] for t in taken]))} | {
        "rules": above(np.array([t.min() for t in taken]))
    }


def ours(cases: list[Instance], seed: int, settings: Settings = OURS) -> Cell:
    """Train by rounds of our trainer."""

    def measured(weights: Weights) -> tuple[float, float]:
        policy, every = Policy(weights), [case for case in cases for _ in range(DRAWS)]
        greedy = makespan_s(rollouts(policy, cases, [GREEDY] * len(cases)))
        return above(greedy), above(makespan_s(rollouts(policy, every, range(len(every)))))

    settings = replace(settings, seed=seed)
    start = new_weights(np.random.default_rng([seed, 0]))
    start = start._replace(head_start=np.zeros(1, np.float32))
    learner = Learner(start, no_moments(start), 0, 0)
    began_s = time.process_time()
    while learner.steps < settings.steps:
        learner, _ = advance(settings, learner, lambda random: cases[random.integers(len(cases))])
    cpu_s = time.process_time() - began_s
    return row("ours", seed, learner.steps, cpu_s, measured(learner.weights), measured(start)[1])


def theirs(cases: list[Instance], seed: int, steps: int = THEIR_STEPS) -> Cell:
    """Train by sb3-contrib."""
    import torch  # noqa: PLC0415
    from sb3_contrib import MaskablePPO  # noqa: PLC0415
    from stable_baselines3.common.env_util import make_vec_env  # noqa: PLC0415

    from hydraplan.planner.policy.gym_env import PipelineEnv  # noqa: PLC0415

    def taken_s(case: Instance, preferred: bool) -> float:
        env = PipelineEnv(lambda _: case)
        seen, _ = env.reset()
        while True:
            action, _ = model.predict(
                seen, action_masks=env.action_masks(), deterministic=preferred
            )
            seen, reward, ended, illegal, _ = env.step(action)
            assert not illegal
            if ended:
                return -reward

    def measured() -> tuple[float, float]:
        greedy = [taken_s(case, True) for case in cases]
        drawn = [taken_s(case, False) for case in cases for _ in range(DRAWS)]
        return above(np.array(greedy)), above(np.array(drawn))

    torch.set_num_threads(1)
    every = make_vec_env(
        lambda: PipelineEnv(lambda random: cases[random.integers(len(cases))]), ENVIRONMENTS, seed
    )
    model = MaskablePPO("MlpPolicy", every, seed=seed, device="cpu", **THEIR_SETTINGS)
    untrained = measured()[1]
    began_s = time.process_time()
    model.learn(steps)
    cpu_s = time.process_time() - began_s
    return row("MaskablePPO", seed, model.num_timesteps, cpu_s, measured(), untrained)


def row(
    who: str, seed: int, steps: int, cpu_s: float, reached: tuple[float, float], untrained: float
) -> Cell:
    """One training."""
    return {
        "who": who, "seed": seed, "choices": steps, "CPU s": cpu_s,
        "choices / CPU s": round(steps / cpu_s), "untrained": untrained,
        "greedy": reached[0], "drawn": reached[1],
    }  # fmt: skip


def main() -> None:
    """Both, with every seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--readme", action="store_true", help="put the table into the README")
    args = parser.parse_args()
    cases, rows = [*batches(2), *batches(3)], []
    both: tuple[Callable[[list[Instance], int], Cell], ...] = (ours, theirs)
    for train in both:
        for seed in range(args.seeds):
            rows.append(train(cases, seed))
            progress(str(rows[-1]))
    known = others(cases)
    title = (
        f"Percent above the fastest order, {len(cases)} batches;"
        f" ZB-H1 {known['greedy']:.1f}, the best rule of each {known['rules']:.1f}"
    )
    table = Table(title, list(rows[0]), 1, rows)
    reported(args.json, {"rows": rows, "known": known}, [table], args.readme, HERE / "README.md")


if __name__ == "__main__":
    main()
