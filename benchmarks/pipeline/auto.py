"""Whether a static schedule is ever faster than `auto` under equal memory, on real batches.

    python benchmarks/pipeline/auto.py LENGTHS_FOLDER [--seeds 0] [--caps 8192,16384] [--json FILE]
        [--readme]

Every length file, resampled with replacement to fill 80% of the cap over 4 x pp microbatches on a
pool of 8 ranks, pp 4 and 8, caps 8,192 and 16,384, each seed; rows beyond 65,536 tokens are left
out. Placed by hydra and memory-sized.
A rank may hold the activations of one and of two caps times stages.

First on one placement: `auto` and each static schedule in whatever microbatch order: as built,
long-first, sandwich, and searched from the best of them that stays within the limit. What a static
schedule takes is computed here, from runs of its own, not by what `auto` compares. Then as users
get them: `plan --pipeline NAME --live-microbatches K`, each with its own placement, order and
layout, two chunks a stage among them; a schedule that holds more than it may is refused and left
out.
"""

import argparse
import sys
from itertools import product
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "planner"))

from cells import Pool, ask  # noqa: E402
from mixes import batch, file_source, filling_tokens  # noqa: E402
from tables import Cell, Table, progress, reported  # noqa: E402

from hydraplan.activations import Shares  # noqa: E402
from hydraplan.errors import Infeasible  # noqa: E402
from hydraplan.metrics import peak_live_tokens, shares  # noqa: E402
from hydraplan.model import IntArray, Schedule  # noqa: E402
from hydraplan.planner.forked import in_order  # noqa: E402
from hydraplan.planner.pipeline.memory import ROUNDING, Memory  # noqa: E402
from hydraplan.planner.pipeline.one_lane import reordered  # noqa: E402
from hydraplan.planner.pipeline.order import ORDERS, microbatch_order, searched_order  # noqa: E402
from hydraplan.planner.pipeline.schedules import SCHEDULES  # noqa: E402
from hydraplan.planner.pipeline.simulator import simulate  # noqa: E402
from hydraplan.planner.planned import plan_ops  # noqa: E402
from hydraplan.planner.planned_ops import memory_of  # noqa: E402
from hydraplan.slots import SlotTimes, slot_times  # noqa: E402

RANKS, CONTEXT, WORTH = 8, 65_536, (1, 2)
STRATEGIES = "hydra", "memory-ffd"
STATIC = "gpipe", "1f1b", "zb-h1", "zb-h2"
CHUNKED = "interleaved", "zb-v"
SLOWER = 1e-9
"""Relative: by how much `auto` must be slower to count as beaten."""


def main() -> None:
    """All cells of both kinds, then one table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--caps", default="8192,16384")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--readme", action="store_true")
    args = parser.parse_args()
    seeds = [int(seed) for seed in args.seeds.split(",")]
    sources = [file_source(path, CONTEXT) for path in sorted(args.folder.glob("lengths_*.parquet"))]
    caps = [int(cap) for cap in args.caps.split(",")]
    batches = list(product((8, 4), seeds, caps, sources))

    def work(index: int) -> list[Cell]:
        pp, seed, cap, source = batches[index]
        length, pool = batch(source, filling_tokens(pp, RANKS, cap), seed), Pool(1, pp, RANKS, cap)
        cells = []
        for strategy in STRATEGIES:
            about = {"source": source.name, "pp": pp, "plan": strategy, "cap": cap, "seed": seed}
            found = (*on_one_placement(length, pool, strategy),
                     *as_users_get_them(length, pool, strategy))  # fmt: skip
            cells += [about | cell for cell in found]
        progress(f"{source.name} pp {pp} cap {cap} seed {seed}")
        return cells

    with in_order(work, len(batches), args.workers) as done:
        cells = [cell for found in done for cell in found]
    keys = product(("same", "own"), (4, 8), STRATEGIES, WORTH)
    rows = [
        summary(key, [c for c in cells if (c["placement"], c["pp"], c["plan"], c["x"]) == key])
        for key in keys
    ]
    table = Table("Auto against the fastest static schedule within the same memory", list(rows[0]))
    reported(args.json, {"cells": cells}, [table.of(rows)], args.readme, HERE / "README.md")


def on_one_placement(length: IntArray, pool: Pool, strategy: str) -> list[Cell]:
    """One cell a limit: `auto` and the best static schedule of one placement, any order."""
    asked = ask(length, pool, strategy, pipeline="auto", microbatch_order="as-built", chunks=1)
    _, draft = asked.placed()
    times = slot_times(asked.cost, draft.sequences, draft.num_microbatches)
    orders = {name: microbatch_order(name, times.load_s) for name in ORDERS}
    cells = []
    for worth in WORTH:
        limit = worth * pool.pp
        options = asked.options.model_copy(update={"live_microbatches": limit})
        memory = memory_of(asked.cost, options, times)
        found = plan_ops("auto", times, memory, orders, search=True)
        taken_s = {
            name: taken
            for name in STATIC
            if (taken := static_s(name, times, orders, memory)) < np.inf
        }
        auto_s = time_s(times, found.schedule, found.order)
        within = fits(times, found.schedule, found.order, memory)
        cells.append(cell_of("same", worth, auto_s if within else np.inf, taken_s))
    return cells


def static_s(name: str, times: SlotTimes, orders: dict[str, IntArray], memory: Memory) -> float:
    """Seconds of a static schedule in its best order within the limit, infinite if none is."""
    stages, count = times.op_s.shape[1], times.rows.shape[1]
    schedule = SCHEDULES[name].make(stages, count, 1)
    known = {o: time_s(times, schedule, order) for o, order in orders.items()}
    best = orders[min(known, key=lambda o: known[o])]
    tried = [*orders.values(), best[searched_order(reordered(times, best), schedule)]]
    kept = [order for order in tried if fits(times, schedule, order, memory)]
    return min((time_s(times, schedule, order) for order in kept), default=np.inf)


def time_s(times: SlotTimes, schedule: Schedule, order: IntArray) -> float:
    """Simulated score: seconds of the noise-free run on all lanes."""
    return shares(simulate(reordered(times, order), schedule))["iteration_s"]


def fits(times: SlotTimes, schedule: Schedule, order: IntArray, memory: Memory) -> bool:
    """Whether no rank ever holds more than the limit, lane by lane."""
    peak = peak_live_tokens(schedule, times.rows[:, order], Shares(1.0, 1 - memory.frees))
    return peak <= memory.limit * (1 + ROUNDING)


def as_users_get_them(length: IntArray, pool: Pool, strategy: str) -> list[Cell]:
    """One cell a limit: `plan` with each schedule, order auto."""
    cells = []
    for worth in WORTH:
        taken_s = {}
        for name in ("auto", *STATIC, *CHUNKED):
            asked = ask(
                length, pool, strategy, pipeline=name, microbatch_order="auto",
                live_microbatches=worth * pool.pp,
            )  # fmt: skip
            try:
                taken_s[name] = asked.planned().figures["iteration_s"]
            except Infeasible:
                continue
        auto_s = taken_s.pop("auto")
        cells.append(cell_of("own", worth, auto_s, taken_s))
    return cells


def cell_of(placement: str, worth: int, auto_s: float, taken_s: dict[str, float]) -> Cell:
    """What `auto` takes, what each static schedule takes, and which of them beat it."""
    beaten = [name for name, static in taken_s.items() if static * (1 + SLOWER) < auto_s]
    return {"placement": placement, "x": worth, "auto_s": auto_s, "static_s": taken_s,
            "beaten_by": beaten}  # fmt: skip


def summary(key: tuple[str, int, str, int], cells: list[Cell]) -> Cell:
    """A row: cells with a static schedule within the limit, those lost, and what auto saves."""
    met = [c for c in cells if c["static_s"]]
    saved = [1 - c["auto_s"] / min(c["static_s"].values()) for c in met]
    placement, pp, plan, worth = key
    return {
        "placement": placement, "pp": pp, "plan": plan, "memory": f"{worth}x", "cells": len(met),
        "auto beaten": sum(bool(c["beaten_by"]) for c in met),
        "saved, mean": float(np.mean(saved)) if saved else None,
        "least": min(saved, default=None), "most": max(saved, default=None),
    }  # fmt: skip


if __name__ == "__main__":
    main()
