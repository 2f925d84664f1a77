"""Simulated throughput: hydra over every baseline in every microbatch order, at DESIGN's sizes.

    python benchmarks/planner/throughput.py [--sizes 0,1] [--mixes 256K] [--json FILE] [--readme]

A cell is a size, a mix and a seed; its batch fills 80% of the cap over 4 x pp microbatches. Each
baseline is shown as built, long-first and sandwich; hydra chooses its order itself. Two ratios of
iteration times stand for each: hydra with M free, and hydra held to the baseline's own M. Hydra
with tapered microbatches has columns of its own. Means
over the seeds come with 95% intervals (Student t). The strongest baseline is the fastest of all
baselines and orders in that very batch; the claim is the ratio to that one. A dash at the same M
says that hydra finds no plan with so few microbatches, or the baseline none at all.

`--microbatches-a-stage 16` takes batches four times as large, so that fill is small.

With tp devices a rank the cap is 8,192 rows for each device's share of activations, so tp times
as many a rank; `--cap rank` takes 8,192 rows a rank at every tp. What the baselines are: our own
memory-ffd, static-cp at its best degree and token-balance; Megatron-Core's three generations,
written from their description. mcore-main runs on one stage only in truth, and its cap holds a
sequence at a time; here it runs on as many stages as all. A scheduler that fails on a batch, or
takes more than the time limit, is left out of that cell with the reason.

The paper's figures stand in a column of their own: its lengths, tp and baseline order are not
public. Everything here is simulated on the analytic profile of h100-sxm and llama-8b.
"""

import argparse
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from types import FrameType

import numpy as np
from cells import Pool, ask
from mixes import MICROBATCHES_A_STAGE, MIXES, batch, filling_tokens
from stopwatch import reference_s
from tables import Cell, Table, progress, reported

from hydraplan.errors import Infeasible
from hydraplan.model import BatchPlan, IntArray
from hydraplan.planner.pipeline.order import ORDERS
from hydraplan.views.run_text import confidence_95

CAP_TOKENS = 8_192
SIZES = ((1, 4, 128), (1, 8, 256), (8, 8, 32), (4, 8, 352))
"""tp, pp, ranks: 512, 2,048 twice, and 11,264 GPUs."""
SEEDS = (0, 1, 2)
BASELINES = (
    "memory-ffd", "static-cp", "token-balance", "mcore-main", "mcore-v1", "mcore-v2",
)  # fmt: skip
LIMIT_S = 20
GOAL, GOAL_GPUS, GOAL_EFFICIENCY, SMALL_FILL = 1.10, 2_048, 0.90, 0.08
"""Gain over the strongest at 256K on 2,048 GPUs; efficiency where the schedule's own
fill, (P - 1) / (M + P - 1), is at most so large. `fill_bubble` adds what the stages differ by."""
PAPER = {
    (512, "32K"): "1.18x over Mcore DCP",
    (512, "256K"): "2.48x over Mcore DCP",
    (2_048, "256K"): "1.10-1.43x over Mcore DCP, 1.33-1.90x over static CP, bubble 36% to 14%",
    (11_264, "256K"): "memory-sized: bubble 46%, data-parallel bubble 13%",
}
NOT_PUBLIC = "paper (its lengths, tp and baseline order are not public)"
SHOWN = (
    "iteration_s", "efficiency", "pipeline_bubble", "fill_bubble", "dp_bubble", "group_wait",
    "slot_imbalance", "microbatch_spread", "max_tokens_per_rank",
)  # fmt: skip
Found = dict[tuple[str, str], Cell]


class TooSlow(Exception):
    """A baseline went beyond the time limit."""


def main() -> None:
    """Run every cell and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="0,1,2,3", help=f"which of {SIZES}")
    parser.add_argument("--mixes", default=",".join(MIXES))
    parser.add_argument("--microbatches-a-stage", type=int, default=MICROBATCHES_A_STAGE)
    parser.add_argument("--cap", choices=("device", "rank"), default="device")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--readme", action="store_true", help="put the tables into the README")
    args = parser.parse_args()
    loads = [reference_s()]
    cells, best, every = [], [], []
    sizes = [SIZES[int(i)] for i in args.sizes.split(",")]
    for (tp, pp, ranks), mix in product(sizes, args.mixes.split(",")):
        cap_tokens = CAP_TOKENS * (tp if args.cap == "device" else 1)
        pool = Pool(tp, pp, ranks, cap_tokens)
        tokens = filling_tokens(pp, ranks, cap_tokens, args.microbatches_a_stage)
        here = [cell(mix, pool, tokens, seed) for seed in SEEDS]
        cells += here
        best.append(against_strongest(here))
        every += against_all(here)
    loads.append(reference_s())
    titles = "hydra over the strongest baseline, simulated", "hydra over every baseline, simulated"
    tables = [Table(titles[0], list(best[0])).of(best), Table(titles[1], list(every[0])).of(every)]
    result = {"cap": args.cap, "reference_sort_s": loads, "strongest": best, "cells": cells}
    reported(args.json, result, tables, args.readme)


def cell(mix: str, pool: Pool, tokens: int, seed: int) -> Cell:
    """Hydra free and held, and every baseline in every order, on one batch."""
    length = batch(MIXES[mix], tokens, seed)
    free = row_of(ask(length, pool).planned())
    tapered = row_of(ask(length, pool, microbatch_shape="tapered").planned())
    rows = []
    held: dict[int, Cell] = {}
    for name in BASELINES:
        try:
            plans = baseline(name, length, pool)
        except (Infeasible, TooSlow) as error:
            rows.append({"strategy": name, "left_out": str(error)})
            continue
        count = plans[0]["M"]
        if count not in held:
            held[count] = held_to(length, pool, count)
        rows += [plan | {"hydra_at_M": held[count].get("iteration_s")} for plan in plans]
    progress(f"{pool.gpus} GPUs {mix} seed {seed}: hydra {free['iteration_s']:.3f} s")
    return {
        "mix": mix, "GPUs": pool.gpus, "tp": pool.tp, "pp": pool.pp, "R": pool.ranks,
        "cap": pool.cap_tokens, "seed": seed, "N": len(length), "tokens": int(length.sum()),
        "hydra": free, "tapered": tapered, "baselines": rows,
        "held": {str(m): row for m, row in held.items()},
    }  # fmt: skip


def row_of(plan: BatchPlan) -> Cell:
    """Figures of a plan that tables and readers need."""
    search = plan.search
    return {
        "strategy": plan.strategy, "winner": plan.winner, "order": plan.microbatch_order,
        "M": plan.num_microbatches, "window_empty": search.window_min > search.window_max,
        **{name: plan.figures[name] for name in SHOWN},
    }  # fmt: skip


def baseline(name: str, length: IntArray, pool: Pool) -> list[Cell]:
    """A baseline in all microbatch orders."""
    with at_most(LIMIT_S):
        return [row_of(ask(length, pool, name, microbatch_order=o).planned()) for o in ORDERS]


def held_to(length: IntArray, pool: Pool, count: int) -> Cell:
    """Hydra with a fixed number of microbatches; what is missing says why."""
    try:
        return row_of(ask(length, pool, microbatches=count).planned())
    except Infeasible as error:
        return {"left_out": str(error)}


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Stop what runs inside after so many CPU seconds, between two compiled calls."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise TooSlow(f"more than {seconds} CPU s")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def present(cell: Cell) -> Found:
    """Baselines that were not left out, by (strategy, order)."""
    return {(b["strategy"], b["order"]): b for b in cell["baselines"] if "left_out" not in b}


def ratio(values: list[float]) -> str:
    """Mean and 95% interval over the seeds."""
    if not values or any(np.isnan(values)):
        return "-"
    if len(values) < len(SEEDS):
        return f"{np.mean(values):.3f} ({len(values)} of {len(SEEDS)} seeds)"
    return f"{np.mean(values):.3f} +- {confidence_95(np.array(values)):.3f}"


def against_strongest(cells: list[Cell]) -> Cell:
    """One row: the claim of a size and a mix."""
    strongest = [min(present(c).values(), key=lambda b: b["iteration_s"]) for c in cells]
    hydra = [c["hydra"] for c in cells]
    tapered = [c["tapered"] for c in cells]
    gains = [s["iteration_s"] / h["iteration_s"] for s, h in zip(strongest, hydra, strict=True)]
    tapered_gains = [
        s["iteration_s"] / h["iteration_s"] for s, h in zip(strongest, tapered, strict=True)
    ]
    names = Counter(f"{s['strategy']} {s['order']}" for s in strongest)
    at_m = [s["iteration_s"] / (s["hydra_at_M"] or np.nan) for s in strongest]
    first = cells[0]
    goals = []
    if first["GPUs"] == GOAL_GPUS and first["mix"] == "256K":
        for name, found in (("even", gains), ("tapered", tapered_gains)):
            met = np.mean(found) >= GOAL
            goals.append(f"gain {GOAL:.2f} {name}: {'met' if met else 'missed'}")
    for name, plans in (("even", hydra), ("tapered", tapered)):
        if mean([schedule_fill(first["pp"], h["M"]) for h in plans]) <= SMALL_FILL:
            met = mean([h["efficiency"] for h in plans]) >= GOAL_EFFICIENCY
            goals.append(f"efficiency {GOAL_EFFICIENCY:.2f} {name}: {'met' if met else 'missed'}")
    return {
        "GPUs": first["GPUs"], "tp x pp x R": f"{first['tp']} x {first['pp']} x {first['R']}",
        "cap": first["cap"], "mix": first["mix"],
        "strongest baseline": ", ".join(f"{name} ({n})" for name, n in names.most_common()),
        "gain, M free": ratio(gains), "gain, tapered": ratio(tapered_gains),
        "gain, same M": ratio(at_m),
        "M even / tapered / baseline": " / ".join(
            str(plans[0]["M"]) for plans in (hydra, tapered, strongest)
        ),
        "window": f"open in {sum(not h['window_empty'] for h in hydra)} of {len(hydra)}",
        "memory wins": sum(h["winner"] == "memory" for h in hydra),
        "(P-1)/(M+P-1) %": 100 * mean([schedule_fill(first["pp"], h["M"]) for h in hydra]),
        "efficiency": mean([h["efficiency"] for h in hydra]),
        "fill %": 100 * mean([h["fill_bubble"] for h in hydra]),
        "bubble %": 100 * mean([h["pipeline_bubble"] for h in hydra]),
        "dp bubble %": 100 * mean([h["dp_bubble"] for h in hydra]),
        "efficiency, tapered": mean([h["efficiency"] for h in tapered]),
        "bubble, tapered %": 100 * mean([h["pipeline_bubble"] for h in tapered]),
        "dp bubble, tapered %": 100 * mean([h["dp_bubble"] for h in tapered]),
        "goals": ", ".join(goals), NOT_PUBLIC: PAPER.get((first["GPUs"], first["mix"]), "-"),
    }  # fmt: skip


def mean(values: list[float]) -> float:
    """Mean over the seeds."""
    return float(np.mean(values))


def schedule_fill(num_stages: int, num_microbatches: int) -> float:
    """Share of the time that 1F1B is idle with equal stages and microbatches."""
    return (num_stages - 1) / (num_microbatches + num_stages - 1)


def against_all(cells: list[Cell]) -> list[Cell]:
    """One row a baseline, its orders side by side; what was left out of how many cells, and why."""
    rows = []
    for name in BASELINES:
        mine = [[b for b in c["baselines"] if b["strategy"] == name] for c in cells]
        out = [b for found in mine for b in found if "left_out" in b]
        row: Cell = {
            "GPUs": cells[0]["GPUs"], "tp": cells[0]["tp"], "mix": cells[0]["mix"],
            "baseline": name + " (PP = 1 only in truth)" * (name == "mcore-main"),
        }  # fmt: skip
        for held in (False, True):
            for order in ORDERS:
                title = f"{order}, same M" if held else order
                row[title] = ratio(over(mine, cells, order, held))
        built = [b for found in mine for b in found if b.get("order") == ORDERS[0]]
        row["M"] = ", ".join(str(b["M"]) for b in built)
        for title, figure in (("bubble", "pipeline_bubble"), ("dp bubble", "dp_bubble")):
            row[f"{title} as built %"] = 100 * float(np.mean([b[figure] for b in built] or np.nan))
        row["left out"] = f"{len(out)}: {out[0]['left_out'][:80]}" if out else ""
        rows.append(row)
    return rows


def over(mine: list[list[Cell]], cells: list[Cell], order: str, held: bool) -> list[float]:
    """Times of one baseline in one order over hydra's, where both are there."""
    gains = []
    for found, cell in zip(mine, cells, strict=True):
        for row in found:
            if row.get("order") == order:
                hydra_s = row["hydra_at_M"] if held else cell["hydra"]["iteration_s"]
                gains += [row["iteration_s"] / hydra_s] if hydra_s else []
    return gains


if __name__ == "__main__":
    main()
