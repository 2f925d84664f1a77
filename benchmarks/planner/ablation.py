"""What each part of HyDra brings, and what wrong costs take away.

    python benchmarks/planner/ablation.py [--mixes 32K,128K,256K] [--json FILE]

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
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from cells import Engine, Pool, ask, cost_of
from mixes import MIXES, batch, filling_tokens
from tables import Cell, Table, progress, reported
from throughput import BASELINES, LIMIT_S, SEEDS, TooSlow, at_most, ratio

from hydraplan.cost import CostModel
from hydraplan.errors import Infeasible
from hydraplan.layout import expand
from hydraplan.metrics import shares
from hydraplan.model import BatchPlan, FloatArray, IntArray, Sequences
from hydraplan.planner.pipeline.order import ORDERS
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.planner.placement.strategies import STRATEGIES
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
        load = asked.finished(request, asked.load_driven(request, winner))
        for name, plan in (("memory", memory), ("load", load)):
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
        here = [c[what] for c in cells]
        base = [c["memory + ring"]["iteration_s"] for c in cells]
        rows.append({
            "mix": cells[0]["mix"], "degrees + engine": what,
            "gain": ratio([b / h["iteration_s"] for b, h in zip(base, here, strict=True)]),
            "M": ", ".join(str(h["M"]) for h in here),
            "slot_imbalance": max(h["slot_imbalance"] for h in here),
            "pipeline bubble %": 100 * float(np.mean([h["pipeline_bubble"] for h in here])),
            "memory wins": sum(h["hydra_takes_memory"] for h in here) if name == "load" else None,
        })  # fmt: skip
    return rows


def wrong_rate(cost: CostModel, error: float) -> CostModel:
    """Costs whose attention takes 1 + error times as long: l_x is off by as much."""
    slower = {
        name: rate.model_copy(update={"flops_per_s": rate.flops_per_s / (1 + error)})
        for name in ("attention_forward", "attention_backward")
        for rate in [getattr(cost.fit, name)]
    }
    return replace(cost, fit=cost.fit.model_copy(update=slower))


def factors(count: int, error: float, seed: int) -> FloatArray:
    """Log-normal factor of every sequence, mean 1, standard deviation about `error`."""
    draws = np.random.default_rng(1_000 + seed).standard_normal(count)
    result: FloatArray = np.exp(error * draws - error**2 / 2)
    return result


def run(placed: Sequences, num_microbatches: int, plan: BatchPlan, factor: FloatArray) -> Cell:
    """A placement at true costs, every sequence off by its factor, shape (rows of the batch,)."""
    cost = cost_of(POOL)
    slots = slot_times(cost, placed, num_microbatches)
    load_s = cost.sequence_s(placed.length_tokens, placed.ulysses_size, placed.ring_size)
    load_s = load_s[:, 0].sum(axis=0)
    group, member = expand(placed.degree)
    slot = (placed.first_rank[group] + member) * num_microbatches + placed.microbatch[group]
    size = POOL.ranks * num_microbatches
    plain = np.bincount(slot, load_s[group], size)
    off = np.bincount(slot, (load_s * factor[placed.sequence_id])[group], size)
    scale = np.divide(off, plain, out=np.ones(size), where=plain > 0)
    op_s = slots.op_s * scale.reshape(POOL.ranks, num_microbatches)
    timeline = simulate(replace(slots, op_s=op_s), plan.schedule)
    load = op_s.sum(axis=(0, 2)).max(axis=0)
    figures = shares(timeline)
    return {
        "iteration_s": figures["iteration_s"], "pipeline_bubble": figures["pipeline_bubble"],
        "slot_imbalance": float(load.max() / load.mean()), "M": num_microbatches,
    }  # fmt: skip


def run_plan(plan: BatchPlan, factor: FloatArray) -> Cell:
    """As `run`, all of a plan."""
    return run(plan.sequences.placed(), plan.num_microbatches, plan, factor)


def baselines(length: IntArray) -> list[BatchPlan]:
    """Every baseline in every order that plans this batch in time."""
    plans: list[BatchPlan] = []
    for name in BASELINES:
        if name not in STRATEGIES:
            continue
        try:
            with at_most(LIMIT_S):
                plans += [ask(length, POOL, name, microbatch_order=o).planned() for o in ORDERS]
        except (Infeasible, TooSlow) as error:
            progress(f"{name} left out: {error}")
    return plans


def wrong_costs(length: IntArray, mix: str, seed: int) -> list[Cell]:
    """One batch at every error: noise alone, rate alone in both directions, and both."""
    known = baselines(length)
    right = ask(length, POOL).planned()
    count = len(length)
    exact = run_plan(right, np.ones(count))["iteration_s"]
    cells = []
    for error in ERRORS:
        noise = factors(count, error, seed)
        low, high = (wrong_plan(length, e) for e in (1 / (1 + error) - 1, error))
        strongest = min((run_plan(p, noise) | {"name": f"{p.strategy} {p.microbatch_order}"}
                         for p in known), key=lambda r: r["iteration_s"])  # fmt: skip
        for what, plan, factor in (
            ("noise", right, noise),
            ("attention rated cheap", low, np.ones(count)),
            ("attention rated dear", high, np.ones(count)),
            ("noise, rated cheap", low, noise),
            ("noise, rated dear", high, noise),
        ):
            result = run_plan(plan, factor)
            cells.append({
                "mix": mix, "seed": seed, "error": error, "what": what, **result,
                "over_exact": result["iteration_s"] / exact - 1, "winner": plan.winner,
                "gain": strongest["iteration_s"] / result["iteration_s"],
                "strongest": strongest["name"],
            })  # fmt: skip
        progress(f"{mix} seed {seed} error {error}")
    return cells


def wrong_plan(length: IntArray, error: float) -> BatchPlan:
    """What hydra plans when it believes attention takes 1 + error times as long."""
    return ask(length, POOL, cost=wrong_rate(cost_of(POOL), error)).planned()


def averaged(cells: list[Cell]) -> list[Cell]:
    """Over the seeds of a mix, one row an error and kind."""
    rows = []
    for error, what in product(ERRORS, dict.fromkeys(c["what"] for c in cells)):
        here = [c for c in cells if c["error"] == error and c["what"] == what]
        rows.append({
            "mix": here[0]["mix"], "error %": round(100 * error), "what": what,
            "slot_imbalance": float(np.mean([c["slot_imbalance"] for c in here])),
            "pipeline bubble %": 100 * float(np.mean([c["pipeline_bubble"] for c in here])),
            "slower than with exact costs %": 100 * float(np.mean([c["over_exact"] for c in here])),
            "gain over the strongest baseline": ratio([c["gain"] for c in here])
            if "noise" in what else "-",
        })  # fmt: skip
    return rows


def main() -> None:
    """Run both parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mixes", default=",".join(MIXES))
    parser.add_argument("--json", type=Path)
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
    reported(args.json, {"engines": engines, "errors": errors}, tables)


if __name__ == "__main__":
    main()
