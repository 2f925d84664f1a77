"""The load target of the planner against the exact crossing, and the quadratic against both.

    python benchmarks/planner/target.py [--json FILE] [--readme]

The planner solves its target on a histogram of lengths. Here every distinct length has a row of
its own, priced one by one, and the crossing is bisected to 1e-9: sum of the rank-work of the
degrees that L asks for = R M L. The error is |planner - exact| / exact. The quadratic closed form
assumes an affine overhead e of splitting, to first order; e / (theta L) stands beside it, as the
mean over the sequences that are split, weighted by work, and as the largest.

Source: all formulas are our own derivation; HyDra publishes none.
"""

import argparse
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from cells import Engine, Pool, ask
from mixes import MIXES, batch, filling_tokens
from tables import Cell, Table, reported

from hydraplan.cost import CostModel
from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.placement.cost_table import CostTable
from hydraplan.planner.placement.degrees import choose_levels, guard
from hydraplan.planner.placement.load_target import affine_overhead, quadratic_target, solve
from hydraplan.planner.placement.search import THETAS
from hydraplan.planner.placement.sizing import memory_floor, sized

CAP = 8_192
ETA = 0.3
POOLS = ((4, 64), (4, 512), (8, 512), (8, 2_048))
GOAL, QUADRATIC_GOAL, SMALL_OVERHEAD = 0.001, 0.02, 0.1


def exact_table(cost: CostModel, length_tokens: IntArray, table: CostTable) -> CostTable:
    """The cost table with a row for every distinct length, no length stands for another."""
    length, bucket, count = np.unique(length_tokens, return_inverse=True, return_counts=True)
    floor = memory_floor(cost, length, CAP, table.offered)
    load_s = np.full((len(length), table.num_levels), np.inf)
    for level in np.flatnonzero(table.offered):
        held = np.flatnonzero(floor <= level)
        levels = np.full(len(held), level)
        load_s[held, level] = sized(cost, length[held], levels).load_s
    count = count.astype(np.int64)
    return replace(table, bucket=bucket, count=count, load_s=load_s, floor=floor)


def crossing(table: CostTable, num_slots: float, theta: float) -> float:
    """The exact target, seconds: bisection to 1e-9 on every sequence's own cost."""
    guarded = guard(table, ETA)

    def consumed(target_s: float) -> float:
        level = choose_levels(guarded, theta, target_s)
        rows = np.arange(len(level))
        work_s: FloatArray = table.rank_work_s[rows, level]
        return float(work_s @ table.count)

    low, high = 0.0, consumed(1e300) / num_slots
    while consumed(high) > num_slots * high:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if consumed(middle) > num_slots * middle else (low, middle)
    return high


def overhead(table: CostTable, load_target_s: float) -> tuple[float, float]:
    """Share e / L of the sequences beyond the target: mean weighted by work, and the largest."""
    base_s = table.rank_work_s[np.arange(len(table.floor)), table.floor]
    split = base_s > load_target_s
    if not split.any():
        return 0.0, 0.0
    share = affine_overhead(table, load_target_s)[split] / load_target_s
    return float(np.average(share, weights=base_s[split] * table.count[split])), float(share.max())


def cell(name: str, pp: int, ranks: int, engine: Engine, seed: int) -> list[Cell]:
    """All thetas of one batch, at the number of microbatches its tokens were drawn for."""
    pool = Pool(1, pp, ranks, CAP)
    length = batch(MIXES[name], filling_tokens(pp, ranks, CAP), seed)
    asked = ask(length, pool, engine=engine)
    table = asked.request().table
    exact = exact_table(asked.cost, length, table)
    count = 4 * pp
    slots = ranks * count
    result = []
    for theta in THETAS:
        planner_s = solve(table, guard(table, ETA), slots, theta).load_target_s
        exact_s = crossing(exact, slots, theta)
        quadratic_s = quadratic_target(table, slots, theta)
        mean, largest = overhead(table, theta * exact_s)
        result.append({
            "mix": name, "engine": engine, "pp": pp, "R": ranks, "M": count, "N": len(length),
            "seed": seed, "theta": theta, "exact_s": exact_s, "planner_s": planner_s,
            "error": abs(planner_s - exact_s) / exact_s, "quadratic_s": quadratic_s,
            "quadratic_error": quadratic_s / exact_s - 1, "e_over_L_mean": mean,
            "e_over_L_max": largest,
        })  # fmt: skip
    return result


def main() -> None:
    """All mixes, pools, engines and thetas."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--readme", action="store_true", help="put the tables into the README")
    args = parser.parse_args()
    engines: tuple[Engine, ...] = ("nested", "ring")
    cells = [
        found
        for name, (pp, ranks), engine in product(MIXES, POOLS, engines)
        for found in cell(name, pp, ranks, engine, 0)
    ]
    rows = []
    for name, engine, theta in product(MIXES, engines, THETAS):
        here = [c for c in cells if (c["mix"], c["engine"], c["theta"]) == (name, engine, theta)]
        small = [abs(c["quadratic_error"]) for c in here if c["e_over_L_max"] <= SMALL_OVERHEAD]
        rows.append({
            "mix": name, "engine": engine, "theta": theta, "cells": len(here),
            "error of L, worst %": 100 * max(c["error"] for c in here),
            "met": max(c["error"] for c in here) <= GOAL,
            "quadratic, worst %": 100 * max((c["quadratic_error"] for c in here), key=abs),
            "e / (theta L) mean": max(c["e_over_L_mean"] for c in here),
            "e / (theta L) max": max(c["e_over_L_max"] for c in here),
            "cells with e <= 0.1 L": len(small),
            "quadratic there, worst %": 100 * max(small, default=float("nan")),
            "met there": max(small, default=0.0) <= QUADRATIC_GOAL,
        })  # fmt: skip
    table = Table("Load target, simulated costs; worst of the pools", list(rows[0])).of(rows)
    reported(args.json, {"cells": cells}, [table], args.readme)


if __name__ == "__main__":
    main()
