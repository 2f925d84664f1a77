"""The setting of Conductor's public code: what a planner gains by knowing durations beforehand.

    python benchmarks/policy/public_setting.py [POLICY.npz] [--draws 200] [--readme]

4 devices, 8 microbatches, room for 4; F 10, B 10, W 7 times 1 + 0.1 times the device; a message
takes 0.4, which F and B hold the device for; every duration within a share of its mean, even, drawn
once. The base runs B before F before W, whatever is there, as durations turn out; that is the
expert that their agent imitates. All others plan an order and keep to it: by expected durations, or
(`oracle`) by the drawn ones, which is what the features of their candidates show. `rules`: best of
ZB-H1 and all rules of the portfolio by those durations; `samples`: best of 17 orders of the policy.
Gain: makespan of the base by the order's, less one, percent, mean and 95% interval. Simulated.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "planner"))

from tables import Cell, Table, progress, reported  # noqa: E402

from hydraplan.model import FloatArray  # noqa: E402
from hydraplan.planner.pipeline.list_schedule import NEVER  # noqa: E402
from hydraplan.planner.pipeline.memory import even_memory  # noqa: E402
from hydraplan.planner.pipeline.portfolio import orders_of  # noqa: E402
from hydraplan.planner.policy.cloning import followed, teachers  # noqa: E402
from hydraplan.planner.policy.env import Env, makespan_s  # noqa: E402
from hydraplan.planner.policy.network import Policy  # noqa: E402
from hydraplan.planner.policy.policy_file import SHIPPED, load_policy  # noqa: E402
from hydraplan.planner.policy.rollout import samples  # noqa: E402
from hydraplan.planner.policy.scored import as_planned, walked_s  # noqa: E402
from hydraplan.planner.policy.world import Instance  # noqa: E402
from hydraplan.slots import SlotTimes  # noqa: E402

DEVICES, MICROBATCHES, ROOM, COMM_S = 4, 8, 4.0, 0.4
NOISES = (0.0, 0.1, 0.2, 0.3)
METHODS = ("zb-h1", "rules", "greedy", "samples")


def batch(noise: float, random: np.random.Generator) -> Instance:
    """Durations drawn within a share of their means; the means where it is 0."""
    device = 1 + 0.1 * np.arange(DEVICES)
    work_s = np.array([10.0, 10.0, 7.0])[:, None, None] * device[:, None] * np.ones(MICROBATCHES)
    work_s = work_s * random.uniform(1 - noise, 1 + noise, work_s.shape)
    work_s[:2] += COMM_S
    row = np.ones((1, MICROBATCHES), np.int64)
    lane = SlotTimes(work_s[:, :, None, None, :], row, 0 * row, 0.0 * row, np.zeros(DEVICES))
    return Instance(lane, even_memory(ROOM, MICROBATCHES))


def base_s(case: Instance) -> float:
    """B before F before W, whatever is there."""
    found = orders_of(case.lane, case.memory)
    (rule,) = np.flatnonzero((found.rule[:, :6] == [NEVER, 0, NEVER, NEVER, NEVER, 0]).all(axis=1))
    return float(found.end_s[rule])


def planned_s(policy: Policy, known: Instance, drawn: Instance, seed: int) -> FloatArray:
    """What orders made by known durations take on drawn ones, by method."""

    def best(env: Env, among: slice) -> float:
        n = int(makespan_s(env)[among].argmin()) + among.start
        return float(walked_s(env, n, 1, as_planned(drawn))[0, 0])

    rules, own = followed(known, teachers(known))[0], samples(policy, known, 16, seed)
    every = slice(0, 1_000)
    return np.array(
        [best(rules, slice(0, 1)), best(rules, every), best(own, slice(0, 1)), best(own, every)]
    )


def row(policy: Policy, noise: float, oracle: bool, draws: int) -> Cell:
    """One amount of noise."""
    gain = np.zeros((draws, len(METHODS)))
    for i in range(draws):
        drawn = batch(noise, np.random.default_rng([31, i]))
        known = drawn if oracle else batch(0.0, np.random.default_rng(0))
        gain[i] = 100 * (base_s(drawn) / planned_s(policy, known, drawn, i) - 1)
    mean, half = gain.mean(axis=0), 1.96 * gain.std(axis=0, ddof=1) / draws**0.5
    told = {m: f"{a:+.2f} +- {b:.2f}" for m, a, b in zip(METHODS, mean, half, strict=True)}
    return {"noise": f"{noise:.0%}", "durations": "oracle" if oracle else "expected", **told}


def main() -> None:
    """All amounts, both ways of knowing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("policy", type=Path, nargs="?", default=SHIPPED)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--readme", action="store_true", help="put the table into the README")
    args = parser.parse_args()
    policy, rows = load_policy(args.policy), []
    for noise in NOISES:
        for oracle in (False, True):
            rows.append(row(policy, noise, oracle, args.draws))
            progress(str(rows[-1]))
    title = f"Gain over B before F before W, %, {args.draws} draws"
    table = Table(title, list(rows[0]), 2, rows)
    reported(args.json, {"rows": rows}, [table], args.readme, HERE / "README.md")


if __name__ == "__main__":
    main()
