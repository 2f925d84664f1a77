"""Efficiency of hydra's plans by schedule, with even and with tapered microbatches.

    python benchmarks/pipeline/efficiency.py LENGTHS_FOLDER [--ranks 64,256] [--json FILE]

Every length file, resampled with replacement to fill 80% of the cap (8,192 tokens) over 4 x pp
microbatches, pp 4 and 8, three seeds; each planned as a user would (`plan --pipeline NAME
--microbatch-shape even|tapered`). The goal, efficiency 0.95 with ZB schedules, counts plans whose
window is open and that have at least 4 x pp microbatches; all others are counted beside. `auto` has
one chunk a stage here: other layouts, which it tries too, have another lower bound.
"""

import argparse
import sys
from itertools import product
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "planner"))

from cells import Pool, ask  # noqa: E402
from mixes import Source, batch, file_sources, filling_tokens  # noqa: E402
from tables import Cell, Table, progress, reported  # noqa: E402

CAP, GOAL, SEEDS = 8_192, 0.95, (0, 1, 2)
SHAPES = "even", "tapered"
SCHEDULES = {
    "1f1b": None,
    "zb-h1": None,
    "zb-h2": None,
    "zb-v": None,
    "zb-2p": 2,
    "auto 1x": 1,
    "auto 2x": 2,
}
"""Names, and activations a rank may hold in caps times stages; None for as many as it takes."""


def main() -> None:
    """All cells, then one table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", default="64,256")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--readme", action="store_true")
    args = parser.parse_args()
    sources = file_sources(args.folder)
    cells = [
        cell
        for ranks, pp, source, seed in product(
            map(int, args.ranks.split(",")), (4, 8), sources, SEEDS
        )
        for cell in planned(source, Pool(1, pp, ranks, CAP), seed)
    ]
    keys = sorted({(c["R"], c["pp"]) for c in cells})
    rows = [
        summary([c for c in cells if (c["R"], c["pp"], c["schedule"], c["shape"]) == (*key, *how)])
        for key in keys
        for how in product(SCHEDULES, SHAPES)
    ]
    table = Table("Hydra's plans, simulated; goal 0.95 with ZB schedules", list(rows[0])).of(rows)
    reported(args.json, {"cells": cells}, [table], args.readme, page=HERE / "README.md")


def planned(source: Source, pool: Pool, seed: int) -> list[Cell]:
    """One batch under every schedule and shape."""
    length = batch(source, filling_tokens(pool.pp, pool.ranks, CAP), seed)
    cells = []
    for schedule, shape in product(SCHEDULES, SHAPES):
        live = SCHEDULES[schedule]
        plan = ask(
            length,
            pool,
            pipeline=schedule.split()[0],
            microbatch_shape=shape,
            live_microbatches=None if live is None else live * pool.pp,
            chunks=1 if schedule.startswith("auto") else None,
        ).planned()
        low, high = plan.search.window_min, plan.search.window_max
        cells.append({
            "source": source.name, "R": pool.ranks, "pp": pool.pp, "seed": seed,
            "schedule": schedule, "shape": shape, "M": plan.num_microbatches,
            "counts": low <= high and plan.num_microbatches >= 4 * pool.pp,
            "efficiency": plan.figures["efficiency"], "bubble": plan.figures["pipeline_bubble"],
            "peak": plan.figures["peak_live_tokens"] / (pool.pp * CAP),
        })  # fmt: skip
    progress(f"{source.name} pp {pool.pp} R {pool.ranks} seed {seed}")
    return cells


def summary(cells: list[Cell]) -> Cell:
    """One row of the table: a pool, a schedule and a shape."""
    first, counted = cells[0], [c for c in cells if c["counts"]]
    inside = [c["efficiency"] for c in counted]
    return {
        "R": first["R"], "pp": first["pp"], "schedule": first["schedule"], "shape": first["shape"],
        "plans": len(cells), "that count": len(counted),
        "efficiency there, mean": float(np.mean(inside)) if inside else None,
        "least": min(inside, default=None), "reach 0.95": sum(e >= GOAL for e in inside),
        "efficiency of all, mean": float(np.mean([c["efficiency"] for c in cells])),
        "pipeline_bubble, mean": float(np.mean([c["bubble"] for c in cells])),
        "peak over pp x cap, most": max(c["peak"] for c in cells),
    }  # fmt: skip


if __name__ == "__main__":
    main()
