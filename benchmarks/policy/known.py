"""The policy against rules where something is known beforehand: fresh batches, fresh noise.

    python benchmarks/policy/known.py [POLICY.npz ...] [--batches 48] [--readme]

Each regime draws batches (p 8, M 32 unless it says otherwise; room for P microbatches). Candidates
are compared on 8 draws of the regime's noise (5% jitter unless it says otherwise), what is taken
runs on 32 others. `rules`: the best of ZB-H1 and all rules of the portfolio. `greedy`: one order.
`samples`: the best of it and 16 drawn ones; no guard, no search. Gain: time of `rules` by that of
the policy, less one, percent, paired by batch, mean and 95% interval; `corrected` (of further
policies: in brackets) says whether `samples` is above zero by an interval widened for the number of
regimes (Bonferroni). The first policy is shown in full, the others, by training seed, beside it.
Windows: one stage at half speed for a quarter of the time, announced; all candidates are compared
with it. All times are simulated.
"""

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "planner"))

from tables import Cell, Table, progress, reported  # noqa: E402

from hydraplan.model import FloatArray  # noqa: E402
from hydraplan.planner.pipeline.memory import Memory  # noqa: E402
from hydraplan.planner.pipeline.order import microbatch_order  # noqa: E402
from hydraplan.planner.pipeline.spells import NONE, Spells, sorted_spells  # noqa: E402
from hydraplan.planner.policy.cloning import followed, teachers  # noqa: E402
from hydraplan.planner.policy.env import Env  # noqa: E402
from hydraplan.planner.policy.network import Policy  # noqa: E402
from hydraplan.planner.policy.policy_file import SHIPPED, load_policy  # noqa: E402
from hydraplan.planner.policy.rollout import samples  # noqa: E402
from hydraplan.planner.policy.scored import Scenarios, walked_s  # noqa: E402
from hydraplan.planner.policy.world import Instance  # noqa: E402
from hydraplan.slots import SlotTimes  # noqa: E402

PLANNING, FRESH, SAMPLES = 8, 32, 16
STREAM = 20_262
Draw = Callable[[np.random.Generator], Instance]


def made(
    p: int,
    m: int,
    stage: FloatArray | float = 1.0,
    kinds: tuple[float, float, float] = (1.0, 1.0, 1.0),
    load: FloatArray | float = 1.0,
    limit: float = 1.0,
    travel: float = 0.1,
    windows: Spells = NONE,
) -> Instance:
    """A batch of these factors; `limit` in shares of P."""
    shape = np.ones((p, m)) * np.asarray(stage).reshape(-1, 1) * load
    op_s = np.array(kinds)[:, None, None] * shape
    lane = SlotTimes(
        op_s[:, :, None, None, :], np.ones((1, m), np.int64), np.zeros((1, m), np.int64),
        np.full((1, m), travel), np.zeros(p),
    )  # fmt: skip
    live = np.ones(m) * load
    return Instance(lane, Memory(max(limit * p, float(live.max())), live), None, windows)


def straggling(random: np.random.Generator, p: int, slow: int = 1) -> FloatArray:
    """So many stages slow by 1.1 to 1.6."""
    factor = np.ones(p)
    factor[random.permutation(p)[:slow]] = random.uniform(1.1, 1.6, slow)
    return factor


def uneven(random: np.random.Generator, p: int) -> FloatArray:
    """Stages within 20%."""
    return random.uniform(0.8, 1.2, p)


def heavy_last(random: np.random.Generator, p: int) -> FloatArray:
    """The last stage 10 to 40% heavier."""
    return np.append(np.ones(p - 1), random.uniform(1.1, 1.4))


def skewed(random: np.random.Generator, p: int, m: int, stage: FloatArray | float) -> Instance:
    """Loads of a log-normal of deviation 0.8, in sandwich order."""
    load = random.lognormal(0, 0.8, m)
    load = load[microbatch_order("sandwich", load[None])] / load.mean()
    return made(p, m, stage, load=load, limit=1.0)


def windowed(random: np.random.Generator, p: int, m: int) -> Instance:
    """One stage at half speed for a quarter of the time."""
    span_s = 3.0 * (m + p - 1)
    begin_s = random.uniform(0, 0.75) * span_s
    windows = sorted_spells(
        p, random.integers(0, p, 1), np.array([begin_s]), np.array([begin_s + span_s / 4]),
        np.array([0.5]), np.zeros(1, np.int64),
    )  # fmt: skip
    return made(p, m, windows=windows)


REGIMES: dict[str, tuple[Draw, float]] = {
    "none": (lambda r: made(8, 32), 0.0),
    "jitter 10%": (lambda r: made(8, 32), 0.1),
    "jitter 30%": (lambda r: made(8, 32), 0.3),
    "straggler": (lambda r: made(8, 32, straggling(r, 8)), 0.05),
    "unequal stages": (lambda r: made(8, 32, uneven(r, 8)), 0.05),
    "heavy last stage": (lambda r: made(8, 32, heavy_last(r, 8)), 0.05),
    "two stragglers, unequal": (lambda r: made(8, 32, straggling(r, 8, 2) * uneven(r, 8)), 0.05),
    "straggler, p 4, M 16": (lambda r: made(4, 16, straggling(r, 4)), 0.05),
    "straggler, p 16": (lambda r: made(16, 32, straggling(r, 16)), 0.05),
    "straggler, p 16, M 64": (lambda r: made(16, 64, straggling(r, 16)), 0.05),
    "window": (lambda r: windowed(r, 8, 32), 0.05),
    "window, p 16": (lambda r: windowed(r, 16, 32), 0.05),
    "B 1.3-2, W 0.4-0.8, unequal, slow links": (
        lambda r: made(
            8, 32, uneven(r, 8), (1.0, r.uniform(1.3, 2), r.uniform(0.4, 0.8)), travel=0.5
        ),
        0.05,
    ),
    "skew": (lambda r: skewed(r, 8, 32, 1.0), 0.05),
    "straggler, skew": (lambda r: skewed(r, 8, 32, straggling(r, 8)), 0.05),
    "straggler, M 8": (lambda r: made(8, 8, straggling(r, 8)), 0.05),
    "unequal, M 13": (lambda r: made(8, 13, uneven(r, 8)), 0.05),
    "limit 0.75 P, straggler": (lambda r: made(8, 32, straggling(r, 8), limit=0.75), 0.05),
    "limit 0.5 P": (lambda r: made(8, 32, limit=0.5), 0.05),
}
"""Batches, and deviation of the jitter."""


def noise(case: Instance, jitter: float, draws: int, random: np.random.Generator) -> Scenarios:
    """So many runs."""
    spread = np.log1p(jitter**2)
    op_s = case.expected().op_s[:, :, 0, 0, :, None]
    factor = random.lognormal(-spread / 2, spread**0.5, (*op_s.shape[:3], draws))
    return Scenarios(op_s * factor, np.full(draws, 1 / draws), case.windows)


def taken_s(env: Env, known: Scenarios, fresh: Scenarios) -> tuple[float, float]:
    """What the first order takes on fresh draws, and the best by the known ones."""
    planned = walked_s(env, 0, len(env.masks), known) @ known.weight
    actual = walked_s(env, 0, len(env.masks), fresh) @ fresh.weight
    return float(actual[0]), float(actual[planned.argmin()])


def cell(policies: list[Policy], name: str, batches: int) -> list[Cell]:
    """One regime, all policies."""
    draw, jitter = REGIMES[name]
    found = np.zeros((batches, len(policies), 2))
    for i in range(batches):
        random = np.random.default_rng([STREAM, list(REGIMES).index(name), i])
        case = draw(random)
        known, fresh = (noise(case, jitter, n, random) for n in (PLANNING, FRESH))
        _, rules_s = taken_s(followed(case, teachers(case))[0], known, fresh)
        for j, policy in enumerate(policies):
            own_s = taken_s(samples(policy, case, SAMPLES, i), known, fresh)
            found[i, j] = 100 * (rules_s / np.array(own_s) - 1)
    wide = NormalDist().inv_cdf(1 - 0.025 / len(REGIMES))
    rows = []
    for j in range(len(policies)):
        mean, error = found[:, j].mean(axis=0), found[:, j].std(axis=0, ddof=1) / batches**0.5
        rows.append({
            "regime": name, "policy": j, "greedy": f"{mean[0]:+.2f} +- {1.96 * error[0]:.2f}",
            "samples": f"{mean[1]:+.2f} +- {1.96 * error[1]:.2f}",
            "corrected": bool(mean[1] - wide * error[1] > 0.005), "gain": float(mean[1]),
        })  # fmt: skip
    return rows


def seed(policy: Policy) -> str:
    """The seed that it was trained with, by its own record."""
    found = re.search(r"--seed (\d+)", policy.about.get("command", ""))
    return found[1] if found else "unknown"


def beside(rows: list[Cell], seeds: list[str], batches: int) -> Table:
    """A row a regime; the title counts where each policy is clear of the rules."""
    each = [[row for row in rows if row["policy"] == j] for j in range(len(seeds))]
    clear = [
        f"{sum(r['corrected'] for r in of)} (seed {s})" for of, s in zip(each, seeds, strict=True)
    ]
    title = (
        f"Gain over the best of ZB-H1 and all rules, %, {batches} batches a regime; clear of zero,"
        f" corrected, in {', '.join(clear)} of {len(each[0])} regimes"
    )
    further = [f"seed {s}: samples" for s in seeds[1:]]
    wide = []
    for first, *others in zip(*each, strict=True):
        texts = [r["samples"] + (" (yes)" if r["corrected"] else "") for r in others]
        wide.append(first | dict(zip(further, texts, strict=True)))
    return Table(title, ["regime", "greedy", "samples", "corrected", *further], 2, wide)


def main() -> None:
    """All regimes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("policies", type=Path, nargs="*", default=[SHIPPED])
    parser.add_argument("--batches", type=int, default=48)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--readme", action="store_true", help="put the table into the README")
    args = parser.parse_args()
    policies = [load_policy(path) for path in args.policies]
    rows: list[Cell] = []
    for name in REGIMES:
        rows += cell(policies, name, args.batches)
        progress(f"{name}: {' '.join(r['samples'] for r in rows[-len(policies) :])}")
    table = beside(rows, [seed(policy) for policy in policies], args.batches)
    reported(args.json, {"rows": rows}, [table], args.readme, HERE / "README.md")


if __name__ == "__main__":
    main()
