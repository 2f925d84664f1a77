"""The diagnosis behind HyDra as a case: equal tokens hide unequal work, on 11,264 GPUs at 256K.

    python benchmarks/planner/diagnosis.py [--seeds 0,1,2] [--json FILE] [--readme]

tp 4 x pp 8 x R 352, the 256K mix, a cap of 8,192 rows a device (32,768 a rank of four) and of
8,192 a rank. Memory-sized plans (our memory-ffd, Megatron-Core's generations) are taken as built.
Every slot is a point: tokens it holds, seconds it costs. Slots are binned by how full they are;
in each bin the costliest over the cheapest says how far apart equal tokens are. Bubbles stand
beside the paper's 46% pipeline and 13% data-parallel, whose lengths, tp and order are not public.
hydra's plan of the same batch ends each block. Everything is simulated.
"""

import argparse
from itertools import product
from pathlib import Path

import numpy as np
from cells import Pool, ask
from mixes import MIXES, batch, filling_tokens
from tables import Cell, Table, progress, reported

from hydraplan.errors import Infeasible
from hydraplan.model import FloatArray, IntArray
from hydraplan.slots import slot_times

CAPS = (32_768, 8_192)
FULL = 0.9
"""Share of the cap from which a slot counts as full."""
BINS = 10
SHOWN = ("memory-ffd", "mcore-v1", "mcore-v2", "hydra")
PAPER = "up to 5x apart at similar tokens; pipeline bubble 46%, data-parallel bubble 13%"


def spread(load_s: FloatArray, rows: IntArray, cap_tokens: int, low: float, high: float) -> Cell:
    """Slots filled between two shares of the cap: how many, and their loads."""
    here = load_s[(rows >= low * cap_tokens) & (rows <= high * cap_tokens)]
    if not len(here):
        return {"slots": 0, "spread": float("nan"), "p99 / p1": float("nan")}
    low_s, high_s = np.quantile(here, (0.01, 0.99))
    return {
        "slots": len(here), "min_s": float(here.min()), "max_s": float(here.max()),
        "spread": float(here.max() / here.min()), "p99 / p1": float(high_s / low_s),
    }  # fmt: skip


def case(strategy: str, pool: Pool, length: IntArray, seed: int) -> tuple[Cell, list[Cell]]:
    """Figures of one plan, and its slots binned by how full they are."""
    asked = ask(length, pool, strategy)
    plan = asked.planned()
    slots = slot_times(asked.cost, plan.sequences.placed(), plan.num_microbatches)
    load_s, rows = slots.load_s, slots.rows
    full = spread(load_s, rows, pool.cap_tokens, FULL, np.inf)
    f = plan.figures
    found = {
        "cap": pool.cap_tokens, "strategy": strategy, "winner": plan.winner, "seed": seed,
        "order": plan.microbatch_order, "M": plan.num_microbatches,
        "slots >= 90% full %": 100 * full["slots"] / rows.size,
        "spread of full slots": full["spread"], "p99 / p1": full["p99 / p1"],
        "slot_imbalance": f["slot_imbalance"], "microbatch_spread": f["microbatch_spread"],
        "pipeline bubble %": 100 * f["pipeline_bubble"], "fill %": 100 * f["fill_bubble"],
        "dp bubble %": 100 * f["dp_bubble"], "group wait %": 100 * f["group_wait"],
        "iteration_s": f["iteration_s"],
    }  # fmt: skip
    edges = np.linspace(0, 1, BINS + 1)
    bins = [
        {"cap": pool.cap_tokens, "strategy": strategy, "seed": seed, "filled from": low}
        | spread(load_s, rows, pool.cap_tokens, low, high)
        for low, high in zip(edges[:-1], [*edges[1:-1], np.inf], strict=True)
    ]
    return found, bins


def main() -> None:
    """Run the case for every cap, seed and strategy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--readme", action="store_true", help="put the tables into the README")
    args = parser.parse_args()
    cells, bins, left_out = [], [], []
    seeds = [int(s) for s in args.seeds.split(",")]
    for cap_tokens, seed, strategy in product(CAPS, seeds, SHOWN):
        pool = Pool(4, 8, 352, cap_tokens)
        length = batch(MIXES["256K"], filling_tokens(pool.pp, pool.ranks, cap_tokens), seed)
        try:
            found, here = case(strategy, pool, length, seed)
        except Infeasible as error:
            left_out.append({"cap": cap_tokens, "strategy": strategy, "why": str(error)[:120]})
            continue
        cells.append(found)
        bins += here
        progress(f"cap {cap_tokens} {strategy} seed {seed}: {found['spread of full slots']:.2f}x")
    rows = averaged(cells)
    first = [b for b in bins if b["seed"] == seeds[0] and b["strategy"] == "memory-ffd"]
    first = [b for b in first if b["slots"]]
    tables = [
        Table(f"11,264 GPUs, 256K, simulated; paper: {PAPER}", list(rows[0]), 2).of(rows),
        Table("memory-ffd's slots by how full they are, first seed", list(first[0]), 2).of(first),
    ]
    if left_out:
        tables.append(Table("Left out", ["cap", "strategy", "why"]).of(left_out))
    result = {"cells": cells, "bins": bins, "left_out": left_out}
    reported(args.json, result, tables, args.readme)


def averaged(cells: list[Cell]) -> list[Cell]:
    """Means over the seeds of a cap and strategy; M as a range."""
    rows = []
    for cap_tokens, strategy in dict.fromkeys((c["cap"], c["strategy"]) for c in cells):
        here = [c for c in cells if (c["cap"], c["strategy"]) == (cap_tokens, strategy)]
        counts = sorted(c["M"] for c in here)
        means = {
            name: float(np.mean([c[name] for c in here]))
            for name, value in here[0].items()
            if isinstance(value, float)
        }
        wins = sum(c["winner"] == "memory" for c in here) if strategy == "hydra" else None
        rows.append({
            "cap": cap_tokens, "strategy": strategy, "seeds": len(here),
            "M": f"{counts[0]}..{counts[-1]}", "memory wins": wins, **means,
        })  # fmt: skip
    return rows


if __name__ == "__main__":
    main()
