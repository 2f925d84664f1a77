"""What each part of HyDra brings, and what wrong costs take away.

    python benchmarks/planner/ablation.py [--mixes 32K,128K,256K] [--json FILE] [--readme]

2,048 GPUs (tp 1 x pp 8 x R 256), cap 8,192, batches of 80% of the cap over 4 x pp microbatches.

Part one, scheduler x engine: degrees from memory (memory-ffd in its best order) or from load (the
load-driven candidate, also where the memory-sized plan wins), each with a plain ring and with
inner groups nested in a ring. Gains are over memory degrees on a ring.

Part two, wrong costs: hydra plans with an attention rate that is off by 2 / 5 / 10 / 20%, so that
the length l_x at which attention equals linear work is off, in both directions; and what it
planned is run at the true rate, with the cost of every sequence off by a log-normal factor of the
same size that no planner could know. A slot's ops stretch by the factors of its sequences,
weighted by load. Baselines run under the same factors; the strongest one of all and all orders
stands beside. Everything is simulated.
"""

import argparse
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from cells import Engine, Pool, ask, true_fit
from mixes import MIXES, batch, filling_tokens
from tables import Cell, Table, progress, reported
from throughput import BASELINES, LIMIT_S, SEEDS, TooSlow, at_most, ratio

from hydraplan.cost import CostModel
from hydraplan.costfit import CostFit
from hydraplan.errors import Infeasible
from hydraplan.layout import expand
from hydraplan.metrics import shares
from hydraplan.model import BatchPlan, FloatArray, IntArray
from hydraplan.planner.pipeline.order import ORDERS
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.slots import slot_times

POOL = Pool(1, 8, 256, 8_192)
ENGINES: tuple[Engine, ...] = ("ring", "nested")
ERRORS = (0.02, 0.05, 0.10, 0.20)


def scheduler_by_engine(length: IntArray, mix: str, seed: int) -> Cell:
    """Iteration times of the four combinations on one batch."""
    found: Cell = {"mix": mix, "seed": seed}
    for engine in ENGINES:
        memory = ask(length, POOL, "memory-ffd", engine=engine, microbatch_order="auto").planned()
        asked = ask(length, POOL, engine=engine)
        request, winner = asked.placed()
        draft = asked.load_driven(request, winner)
        load = None if draft is None else asked.finished(request, draft)
        for name, plan in (("memory", memory), ("load", load)):
            if plan is None:
                found[f"{name} + {engine}"] = None
                continue
            found[f"{name} + {engine}"] = {
                "iteration_s": plan.figures["iteration_s"], "M": plan.num_microbatches,
                "slot_imbalance": plan.figures["slot_imbalance"],
                "pipeline_bubble": plan.figures["pipeline_bubble"],
                "hydra_takes_memory": winner.winner == "memory",
            }  # fmt: skip
    return found


def combinations(cells: list[Cell]) -> list[Cell]:
    """Gains of each combination over memory + ring, over the seeds of a mix."""
    rows = []
    for engine, name in product(ENGINES, ("memory", "load")):
        what = f"{name} + {engine}"
        both = [(c["memory + ring"], c[what]) for c in cells if c[what]]
        here = [mine for _, mine in both]
        gains = [base["iteration_s"] / mine["iteration_s"] for base, mine in both]
        rows.append({
            "mix": cells[0]["mix"], "degrees + engine": what, "gain": ratio(gains),
            "M": ", ".join(str(h["M"]) for h in here),
            "slot_imbalance": max((h["slot_imbalance"] for h in here), default=float("nan")),
            "pipeline bubble %": 100 * float(np.mean([h["pipeline_bubble"] for h in here])),
            "memory wins": sum(h["hydra_takes_memory"] for h in here) if name == "load" else None,
            "no candidate": len(cells) - len(here),
        })  # fmt: skip
    return rows


def wrong_rate(error: float) -> CostFit:
    """Coefficients whose attention takes 1 + error times as long: l_x is off by as much."""
    fit = true_fit()
    slower = {
        name: rate.model_copy(update={"flops_per_s": rate.flops_per_s / (1 + error)})
        for name in ("attention_forward", "attention_backward")
        for rate in [getattr(fit, name)]
    }
    return fit.model_copy(update=slower)


def factors(count: int, error: float, seed: int) -> FloatArray:
    """Log-normal factor of every sequence, mean 1, standard deviation about `error`."""
    draws = np.random.default_rng(1_000 + seed).standard_normal(count)
    result: FloatArray = np.exp(error * draws - error**2 / 2)
    return result


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan and the costs it runs at."""

    plan: BatchPlan
    cost: CostModel

    def run(self, factor: FloatArray) -> Cell:
        """At true costs, every sequence off by its factor, shape (rows of the batch,)."""
        placed, count = self.plan.sequences.placed(), self.plan.num_microbatches
        slots = slot_times(self.cost, placed, count)
        ops_s = self.cost.sequence_s(placed.length_tokens, placed.ulysses_size, placed.ring_size)
        load_s = ops_s.sum(axis=(0, 1))
        group, member = expand(placed.degree)
        slot = (placed.first_rank[group] + member) * count + placed.microbatch[group]
        size = POOL.ranks * count
        plain = np.bincount(slot, load_s[group], size)
        off = np.bincount(slot, (load_s * factor[placed.sequence_id])[group], size)
        scale = np.divide(off, plain, out=np.ones(size), where=plain > 0)
        op_s = slots.op_s * scale.reshape(POOL.ranks, count)
        slots = replace(slots, op_s=op_s)
        figures = shares(simulate(slots, self.plan.schedule))
        return {
            "iteration_s": figures["iteration_s"], "M": count,
            "pipeline_bubble": figures["pipeline_bubble"],
            "slot_imbalance": float(slots.load_s.max() / slots.load_s.mean()),
        }  # fmt: skip


def planned(length: IntArray, strategy: str = "hydra", **changes: Any) -> Planned:
    """What a strategy plans; `changes` as of `cells.ask`, a wrong `fit` among them."""
    asked = ask(length, POOL, strategy, **changes)
    return Planned(asked.planned(), asked.true_cost)


def baselines(length: IntArray) -> list[Planned]:
    """Every baseline in every order that plans this batch in time."""
    plans: list[Planned] = []
    for name in BASELINES:
        try:
            with at_most(LIMIT_S):
                plans += [planned(length, name, microbatch_order=order) for order in ORDERS]
        except (Infeasible, TooSlow) as error:
            progress(f"{name} left out: {error}")
    return plans


def wrong_costs(length: IntArray, mix: str, seed: int) -> list[Cell]:
    """One batch at every error: noise alone, a wrong rate in both directions, and both."""
    known = baselines(length)
    right, none = planned(length), np.ones(len(length))
    exact_s = right.run(none)["iteration_s"]
    cells = []
    for error in ERRORS:
        noise = factors(len(length), error, seed)
        cheap = planned(length, fit=wrong_rate(1 / (1 + error) - 1))
        dear = planned(length, fit=wrong_rate(error))
        strongest = min(p.run(noise)["iteration_s"] for p in known)
        for what, wrong, factor in (
            ("noise", right, noise),
            ("cheap", cheap, none),
            ("dear", dear, none),
            ("noise + cheap", cheap, noise),
            ("noise + dear", dear, noise),
        ):
            result = wrong.run(factor)
            cells.append({
                "mix": mix, "seed": seed, "error": error, "what": what, **result,
                "slower": result["iteration_s"] / exact_s - 1, "winner": wrong.plan.winner,
                "gain": strongest / result["iteration_s"] if factor is noise else None,
            })  # fmt: skip
        progress(f"{mix} seed {seed} error {error}")
    return cells


def averaged(cells: list[Cell]) -> list[Cell]:
    """One row an error, means over the seeds of a mix; of both directions, the slower one."""
    rows = []
    for error in ERRORS:
        here = [c for c in cells if c["error"] == error]

        def worse(*kinds: str, of: list[Cell] = here) -> list[Cell]:
            mine = [c for c in of if c["what"] in kinds]
            by_seed = [[c for c in mine if c["seed"] == seed] for seed in SEEDS]
            return [max(found, key=lambda c: c["iteration_s"]) for found in by_seed]

        def mean(found: list[Cell], figure: str) -> float:
            return float(np.mean([c[figure] for c in found]))

        both = worse("noise + cheap", "noise + dear")
        rows.append({
            "mix": here[0]["mix"], "error %": round(100 * error),
            "slower by noise %": 100 * mean(worse("noise"), "slower"),
            "by l_x %": 100 * mean(worse("cheap", "dear"), "slower"),
            "by both %": 100 * mean(both, "slower"),
            "slot_imbalance, both": mean(both, "slot_imbalance"),
            "pipeline bubble %, both": 100 * mean(both, "pipeline_bubble"),
            "gain over strongest, noise": ratio([c["gain"] for c in worse("noise")]),
            "both": ratio([c["gain"] for c in both]),
        })  # fmt: skip
    return rows


def main() -> None:
    """Run both parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mixes", default=",".join(MIXES))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--readme", action="store_true", help="put the tables into the README")
    args = parser.parse_args()
    engines, errors, rows, wrong = [], [], [], []
    for mix in args.mixes.split(","):
        tokens = filling_tokens(POOL.pp, POOL.ranks, POOL.cap_tokens)
        lengths = [batch(MIXES[mix], tokens, seed) for seed in SEEDS]
        here = [scheduler_by_engine(n, mix, s) for s, n in zip(SEEDS, lengths, strict=True)]
        engines += here
        rows += combinations(here)
        progress(f"{mix}: engines done")
        found = [c for s, n in zip(SEEDS, lengths, strict=True) for c in wrong_costs(n, mix, s)]
        errors += found
        wrong += averaged(found)
    tables = [
        Table("Scheduler x engine, gain over memory + ring, simulated", list(rows[0])).of(rows),
        Table("Costs wrong by so much, simulated", list(wrong[0])).of(wrong),
    ]
    reported(args.json, {"engines": engines, "errors": errors}, tables, args.readme)


if __name__ == "__main__":
    main()
