"""Orders, re-planning and migration under eleven kinds of noise, in pairs with the best order.

    python benchmarks/policy/regimes.py LENGTHS.parquet [--pp 4 8 16] [--seeds 200] [--json FILE]
    python benchmarks/policy/regimes.py --of FILE... --readme

A batch of the file's lengths (resampled, 80% of a cap of 32,768 tokens over 4 x pp microbatches, 8
lanes), placed by hydra with `--pipeline auto --chunks 1`, llama-8b on h100-sxm. Orders are planned
for this placement and its order of microbatches. Gain: time of the better one of ZB-H1 and
portfolio (in the mean of the cell) over that of a method, on the same draws, in percent; intervals
are 95%, widened for the number of cells of the table (Bonferroni). No draw is one that orders are
scored on when they are chosen. All times are simulated.

Orders know the batch alone (`unguarded`: best of 17 orders of the policy; `guarded`: with
portfolio, ZB-H1 and search). The rest knows what a run can know: every seed runs seven steps,
the straggler comes with the last of them (f from 1.1 to 1.6, in ten steps of its range), estimates
see what ranks worked in each half of a step, and what they say decides the eighth, which is
measured. `placed`: the batch placed anew as in a run; `both`: with moves on top. `all`: what
`execute --correction portfolio --migration on` decides, op orders planned anew among it.
Transfers are priced; `skew` scales every microbatch by a log-normal factor of deviation 0.8.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "planner"))

from statistics import NormalDist  # noqa: E402

from cells import Asked, Pool, ask  # noqa: E402
from mixes import batch, file_source, filling_tokens  # noqa: E402
from tables import Cell, Table, progress, reported  # noqa: E402

from hydraplan.executor.correction import decide_by, in_parts  # noqa: E402
from hydraplan.executor.predicted import Loads  # noqa: E402
from hydraplan.files.decisionsfile import Change, with_change  # noqa: E402
from hydraplan.metrics import shares  # noqa: E402
from hydraplan.model import BatchPlan, FloatArray, Schedule  # noqa: E402
from hydraplan.planner.forked import in_order  # noqa: E402
from hydraplan.planner.pipeline.memory import Memory  # noqa: E402
from hydraplan.planner.pipeline.noise import Draws, Noise, draw, shape_of  # noqa: E402
from hydraplan.planner.pipeline.noisy_run import noisy_load, trial_s  # noqa: E402
from hydraplan.planner.pipeline.one_lane import reordered  # noqa: E402
from hydraplan.planner.pipeline.order import microbatch_order  # noqa: E402
from hydraplan.planner.pipeline.portfolio import portfolio  # noqa: E402
from hydraplan.planner.pipeline.scenarios import scorer  # noqa: E402
from hydraplan.planner.pipeline.schedules import SCHEDULES  # noqa: E402
from hydraplan.planner.pipeline.simulator import run_ops, simulate, way_of  # noqa: E402
from hydraplan.planner.placed_anew import placed_anew  # noqa: E402
from hydraplan.planner.planned_ops import memory_of  # noqa: E402
from hydraplan.planner.policy.choose_moves import FORMS, choose_moves  # noqa: E402
from hydraplan.planner.policy.decide import room  # noqa: E402
from hydraplan.planner.policy.estimates import Estimates, nominal, observe  # noqa: E402
from hydraplan.planner.policy.moved import moved_slots  # noqa: E402
from hydraplan.planner.policy.policy_order import played, policy_order, shipped  # noqa: E402
from hydraplan.planner.policy.rated import rated, with_factors  # noqa: E402
from hydraplan.slots import SlotTimes, slot_times  # noqa: E402

RANKS, CAP, CONTEXT = 8, 32_768, 65_536
SEED = 977
REGIMES = {
    "none": Noise(),
    "jitter 10%": Noise(jitter=0.1),
    "jitter 30%": Noise(jitter=0.3),
    "straggler": Noise(straggler=1.35),
    "moving": Noise(moving=1.4),
    "transient": Noise(transient=2.0),
    "heavy tail": Noise(heavytail=0.3),
    "link": Noise(link=0.3),
    "preempt": Noise(preempt=0.02),
    "skew": Noise(),
    "mixed": Noise(jitter=0.1, straggler=1.35, transient=1.5, link=0.2),
}
FACTORS = np.linspace(1.1, 1.6, 11)[:-1] + 0.025
HEALTHY, STEPS = 6, 7
"""Steps without the straggler, and all that are seen before the one that is measured."""
ORDERS = ("portfolio", "unguarded", "guarded")
KNOWING = ("re-planned", "shares", "rows", "heads", "moves", "placed", "both", "all")
SKEW, SKEWED = 0.8, 24
"""Deviation of the logarithm; batches, since each is ordered by itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A batch placed once; `slots` on nominal devices."""

    asked: Asked
    plan: BatchPlan
    slots: SlotTimes
    memory: Memory

    @property
    def nominal_s(self) -> float:
        """The plan without noise."""
        return self.plan.figures["iteration_s"]


def main() -> None:
    """All cells, then two tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("lengths", type=Path, nargs="?")
    parser.add_argument("--pp", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--regimes", nargs="+", default=list(REGIMES))
    parser.add_argument("--parts", nargs="+", default=["orders", "knowing"])
    parser.add_argument("--of", type=Path, nargs="+", help="tables of these JSON files, no runs")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--readme", action="store_true")
    args = parser.parse_args()
    asked = [(pp, regime) for pp in args.pp for regime in args.regimes if not args.of]

    def work(index: int) -> list[Cell]:
        pp, regime = asked[index]
        found = cell(args.lengths, pp, regime, args.seeds, args.parts)
        progress(f"pp {pp} {regime}")
        return found

    with in_order(work, len(asked), args.workers) as done:
        cells = [one for found in done for one in found]
    for path in args.of or ():
        cells += json.loads(path.read_text())["cells"]
    title = f"gain over the better of ZB-H1 and portfolio, %; intervals for {len(cells)} cells"
    wide = NormalDist().inv_cdf(1 - 0.025 / max(1, len(cells))) / 1.96
    tables = [
        table(cells, ORDERS, f"Order alone: {title}", wide),
        table(cells, KNOWING, f"Knowing devices: {title}", wide),
    ]
    recovered = [c for c in cells if "recovered" in c]
    title = "Share of the straggler's loss that is won back in the second step with it"
    columns = ["pp", "regime", "method", "recovered", "ceiling"]
    tables.append(Table(title, columns).of(recovered))
    reported(args.json, {"cells": cells}, tables, args.readme, HERE / "README.md")


def table(cells: list[Cell], methods: tuple[str, ...], title: str, wide: float) -> Table:
    """A row a cell, intervals so many times as wide."""
    rows: dict[tuple[int, str], Cell] = {}
    for c in cells:
        if c["method"] in methods:
            row = rows.setdefault((c["pp"], c["regime"]), {"pp": c["pp"], "regime": c["regime"]})
            row |= {"n": c["n"], c["method"]: f"{c['gain']:+.2f} +- {wide * c['half']:.2f}"}
    return Table(title, ["pp", "regime", "n", *methods]).of(list(rows.values()))


@cache
def case(path: Path, pp: int) -> Case:
    """The batch of this size."""
    length = batch(file_source(path, CONTEXT), filling_tokens(pp, RANKS, CAP), 0)
    asked = ask(length, Pool(1, pp, RANKS, CAP), pipeline="auto", chunks=1)
    plan = asked.planned()
    slots = slot_times(asked.cost, plan.sequences.placed(), plan.num_microbatches)
    return Case(asked, plan, slots, memory_of(asked.cost, asked.options, slots))


def cell(path: Path, pp: int, regime: str, seeds: int, parts: Sequence[str]) -> list[Cell]:
    """Every method of these parts under one noise."""
    at = case(path, pp)
    if regime == "skew":
        taken = [skewed(at, seed) for seed in range(SKEWED if "orders" in parts else 0)]
        times = {name: np.array([t[name] for t in taken]) for t in taken[:1] for name in t}
        return rows_of(pp, regime, times, ORDERS)
    noise = REGIMES[regime]
    orders = orders_of(at.slots, at.memory, with_policy="orders" in parts)
    times: dict[str, list[FloatArray]] = {}
    strengths = FACTORS if noise.straggler > 1 else [1.0]
    parted = [
        (
            replace(noise, straggler=float(strength)),
            range(i * seeds // len(strengths), (i + 1) * seeds // len(strengths)),
        )
        for i, strength in enumerate(strengths)
    ]
    for here, trials in parted:
        draws = draws_of(at, here, trials, STEPS)
        calm = draws.without("straggler") if "straggler" in here.active else draws
        for name, order in orders.items():
            times.setdefault(name, []).append(trial_s(at.slots, order, draws))
            times.setdefault(f"unhurt {name}", []).append(trial_s(at.slots, order, calm))
    found = {name: np.concatenate(each) for name, each in times.items()}
    base = better_of(found)
    own: list[dict[str, float]] = []
    for here, trials in parted if "knowing" in parts else ():
        seen = estimates(at, orders[base], here, trials)
        for trial, each in zip(trials, seen, strict=True):
            own.append(knowing(at, orders[base], here, trial, each, here.straggler))
    found |= {name: np.array([o[name] for o in own]) for o in own[:1] for name in o}
    methods = {"orders": ORDERS, "knowing": KNOWING}
    rows = rows_of(pp, regime, found, tuple(m for part in parts for m in methods[part]))
    if noise.straggler > 1 and own:
        lost = (found[base] - found[f"unhurt {base}"]).sum()
        for row in rows:
            if (name := row["method"]) in KNOWING:
                row["recovered"] = float((found[base] - found[name]).sum() / lost)
                row["ceiling"] = float(found[f"ceiling {name}"].mean())
    return rows


def better_of(times: dict[str, FloatArray]) -> str:
    """ZB-H1 or the portfolio."""
    return min(("zb-h1", "portfolio"), key=lambda name: float(times[name].mean()))


def rows_of(
    pp: int, regime: str, times: dict[str, FloatArray], methods: tuple[str, ...]
) -> list[Cell]:
    """Gains in percent, and half of their 95% intervals, not widened yet."""
    rows = []
    for name in methods:
        if name in times:
            gain = 100 * (times[better_of(times)] / times[name] - 1)
            half = float(1.96 * gain.std(ddof=1) / len(gain) ** 0.5)
            rows.append({"pp": pp, "regime": regime, "method": name, "n": len(gain)}
                        | {"gain": float(gain.mean()), "half": half})  # fmt: skip
    return rows


def orders_of(slots: SlotTimes, memory: Memory, with_policy: bool = True) -> dict[str, Schedule]:
    """What is planned for the batch alone."""
    _, stages, _, _, count = slots.op_s.shape
    score_s = scorer(slots)
    found = {
        "zb-h1": SCHEDULES["zb-h1"].make(stages, count, 1),
        "portfolio": portfolio(slots, memory),
    }
    if not with_policy:
        return found
    return found | {
        "unguarded": min(played(shipped(), slots, memory), key=score_s),
        "guarded": policy_order(slots, memory).schedule,
    }


def skewed(at: Case, seed: int) -> dict[str, float]:
    """Noise-free times on slots whose microbatches differ, sorted as a sandwich."""
    rng = np.random.default_rng((SEED, seed))
    factor = np.exp(rng.normal(0, SKEW, at.slots.op_s.shape[-1]))
    slots = replace(at.slots, op_s=at.slots.op_s * factor / factor.mean())
    order = microbatch_order("sandwich", slots.load_s)
    slots = reordered(slots, order)
    memory = replace(at.memory, live=at.memory.live[order])
    return {name: iteration_s(slots, o) for name, o in orders_of(slots, memory).items()}


def draws_of(at: Case, noise: Noise, trials: range, step: int) -> Draws:
    """Of one step; the straggler of a trial is the same in all of them."""
    return draw(noise, shape_of(at.slots), at.nominal_s, trials, SEED, step)


def estimates(at: Case, order: Schedule, noise: Noise, trials: range) -> list[Estimates]:
    """What every trial believes after its steps."""
    stages, lanes = at.slots.op_s.shape[1], at.slots.op_s.shape[3]
    found = [nominal(stages, lanes) for _ in trials]
    load_s = in_parts(Loads(at.slots, at.slots.op_s).of_ops(order))
    for step in range(STEPS):
        here = noise if step >= HEALTHY else noise.without("straggler")
        draws = draws_of(at, here, trials, step)
        times = run_ops(noisy_load(at.slots, draws), order, way_of(at.slots), draws.spells)
        places = [len(ops) for ops in order]
        each_s = [times.busy_s[s, : places[s]] for s in range(stages)]
        for half, loads in zip(in_parts(each_s), load_s, strict=True):
            for j, each in enumerate(np.split(half, len(trials), axis=1)):
                found[j] = observe(found[j], each, loads)
    return found


def knowing(
    at: Case, base: Schedule, noise: Noise, trial: int, seen: Estimates, true: float
) -> dict[str, float]:
    """Times of the measured step by method, and the share that each could win back at best."""
    draws = draws_of(at, noise, range(trial, trial + 1), STEPS)
    factor, cost = seen.factor, at.asked.cost
    as_is = float(trial_s(at.slots, base, draws)[0])
    taken = dict.fromkeys(KNOWING, as_is)
    lanes = at.slots.op_s.shape[3]
    pair, pool = (1 - 1 / (1 + true), 1 - 1 / ((lanes - 1) * true + 1))
    best = (
        {"re-planned": 0.0, "placed": pool, "both": pool, "all": pool}
        | dict.fromkeys(FORMS, pair)
        | {"moves": pair}
    )
    taken |= {f"ceiling {name}": share for name, share in best.items()}
    if not (factor != 1).any():
        return taken
    known = rated(cost, at.plan.sequences.placed(), at.plan.num_microbatches, factor)
    free = room(cost, at.plan)
    predicted = {"as is": iteration_s(with_factors(at.slots, factor), base)}

    def tried(name: str, slots: SlotTimes, order: Schedule) -> None:
        """Keep it if it is predicted to be faster, as a run does; measure it."""
        guess = iteration_s(with_factors(slots, factor), order)
        if guess < min(0.995 * predicted["as is"], predicted.get(name, np.inf)):
            predicted[name] = guess
            taken[name] = float(trial_s(slots, order, draws)[0])

    tried("re-planned", at.slots, portfolio(with_factors(at.slots, factor), at.memory))
    for name, forms in {**{f: (f,) for f in FORMS}, "moves": FORMS}.items():
        tried(name, moved_slots(known, choose_moves(known, forms, free)), base)

    for places in placed_anew(cost, at.asked.options, at.plan, factor):
        if places.num_microbatches == at.plan.num_microbatches:  # the plan's order fits
            plan = with_change(at.plan, Change(places=places))
            known = rated(cost, plan.sequences.placed(), plan.num_microbatches, factor)
            tried("placed", known.slots, base)
            moves = choose_moves(known, FORMS, room(cost, plan))
            tried("both", moved_slots(known, moves), base)
    made, _, _ = decide_by(cost, at.asked.options, "portfolio", True)(at.plan, factor)
    plan = with_change(at.plan, made)
    known = rated(cost, plan.sequences.placed(), plan.num_microbatches, factor)
    slots = moved_slots(known, made.moves)
    if slots.op_s.shape != at.slots.op_s.shape:
        draws = draw(noise, shape_of(slots), at.nominal_s, range(trial, trial + 1), SEED, STEPS)
    order = plan.schedule if made.schedule is not None else base
    taken["all"] = float(trial_s(slots, order, draws)[0])
    return taken


def iteration_s(slots: SlotTimes, order: Schedule) -> float:
    """Without noise."""
    return shares(simulate(slots, order))["iteration_s"]


if __name__ == "__main__":
    main()
