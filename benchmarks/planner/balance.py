"""How evenly the load-driven candidate fills its slots: every source, pool, depth and seed.

    python benchmarks/planner/balance.py LENGTHS_FOLDER [--ranks 64,512] [--json FILE] [--readme]

Sources are the length files of the folder and the mixes (`mixes`), each filling 80% of the cap
over 4 x pp microbatches; the number of microbatches itself is left to hydra. The figures are those
of the load-driven candidate, also in cells where the memory-sized plan is faster and wins. A cell
whose window is empty cannot balance within the cap; the table says what closes it. Goals in open
windows: slot imbalance at most 1.05, pipeline bubble at most 2 points over fill, data-parallel
bubble at most 1%. Everything is simulated.
"""

import argparse
from itertools import product
from pathlib import Path

import numpy as np
from cells import Pool, ask
from mixes import MIXES, Source, batch, file_sources, filling_tokens
from stopwatch import reference_s
from tables import Cell, Table, progress, reported

from hydraplan.model import BatchPlan
from hydraplan.planner.placement.draft import Request

CAP = 8_192
STAGES, SEEDS = (4, 8), (0, 1, 2)
GOALS = {"slot_imbalance": 1.05, "bubble_over_fill": 0.02, "dp_bubble": 0.01}
COLUMNS = (
    "source", "R", "pp", "open", "window", "M", "slot_imbalance", "bubble over fill, points",
    "dp_bubble %", "target_error %", "efficiency", "memory wins", "missed", "reason",
)  # fmt: skip


def cell(source: Source, pool: Pool, seed: int) -> Cell:
    """One batch: its window, its load-driven candidate, and which goals that misses."""
    length = batch(source, filling_tokens(pool.pp, pool.ranks, pool.cap_tokens), seed)
    asked = ask(length, pool)
    request, winner = asked.placed()
    draft = asked.load_driven(request, winner) or winner
    plan = asked.finished(request, draft)
    figures, window = plan.figures, request.window
    found: Cell = {
        "source": source.name, "R": pool.ranks, "pp": pool.pp, "seed": seed, "N": len(length),
        "tokens": int(length.sum()), "longest": int(length.max()), "window_min": window.low,
        "window_max": window.high, "window_memory": window.memory, "empty": window.is_empty,
        "M": plan.num_microbatches, "order": plan.microbatch_order, "theta": draft.search.theta,
        "eta": draft.search.eta, "slack": draft.search.slack,
        "candidates": draft.search.num_candidates,
        "rejected": draft.search.num_rejected, "winner": winner.winner,
        "figures_of": draft.winner,
        "iteration_s": plan.figures["iteration_s"], "winner_s": winner.iteration_s,
        "memory_s": winner.search.memory_s, "fill_bubble": figures["fill_bubble"],
        "bubble_over_fill": figures["pipeline_bubble"] - figures["fill_bubble"],
        **{name: figures[name] for name in (
            "slot_imbalance", "rank_imbalance", "pipeline_bubble", "dp_bubble", "group_wait",
            "target_error", "efficiency", "max_tokens_per_rank",
        )},
    }  # fmt: skip
    found["missed"] = ["no load-driven candidate"] * (draft.winner == "memory")
    found["missed"] += [n for n, goal in GOALS.items() if found[n] > goal] * (not window.is_empty)
    found["reason"] = reason(request, plan, found)
    progress(
        f"{source.name:16} R {pool.ranks:5} pp {pool.pp} seed {seed} window {window.low}.."
        f"{window.high} M {found['M']} imbalance {found['slot_imbalance']:.3f} {found['missed']}"
    )
    return found


def reason(request: Request, plan: BatchPlan, found: Cell) -> str:
    """Why a window is empty, or what stands behind a miss."""
    window, longest = request.window, found["longest"]
    if window.high < window.memory:
        return f"longest row, {longest} tokens: M <= {window.high}, the cap needs {window.memory}"
    if window.is_empty:
        return f"short rows reach the cap before the target: M >= {window.low}, <= {window.high}"
    if not found["missed"]:
        return ""
    held = found["tokens"] / (found["R"] * found["M"] * CAP)
    costliest = float(plan.sequences.predicted_s.max()) + request.table.fixed_s
    share = costliest / (request.table.rank_work_s.min(axis=1) @ request.table.count)
    share *= found["R"] * found["M"]
    return (
        f"cap filled {100 * held:.0f}%, costliest piece {share:.2f} of the mean slot,"
        f" {found['rejected']} of {found['candidates']} candidates broke the cap"
    )


def summary(cells: list[Cell]) -> Cell:
    """One row of the table: the worst of the seeds of a (source, R, pp)."""
    still_open = [c for c in cells if not c["empty"]]

    def worst(name: str) -> float:
        return max((c[name] for c in still_open), default=float("nan"))

    def span(low: str, high: str) -> str:
        shown = still_open or cells
        return f"{min(c[low] for c in shown)}..{max(c[high] for c in shown)}"

    reasons = [c["reason"] for c in cells if c["reason"]]
    missed = sorted({name for c in cells for name in c["missed"]})
    return {
        "source": cells[0]["source"], "R": cells[0]["R"], "pp": cells[0]["pp"],
        "open": f"{len(still_open)} of {len(cells)}", "window": span("window_min", "window_max"),
        "M": span("M", "M"), "slot_imbalance": worst("slot_imbalance"),
        "bubble over fill, points": 100 * worst("bubble_over_fill"),
        "dp_bubble %": 100 * worst("dp_bubble"), "target_error %": 100 * worst("target_error"),
        "efficiency": min((c["efficiency"] for c in still_open), default=float("nan")),
        "memory wins": sum(c["winner"] == "memory" for c in cells),
        "missed": ", ".join(missed), "reason": reasons[0] if reasons else "",
    }  # fmt: skip


def main() -> None:
    """Run every cell; print a row for each (source, R, pp), and the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", default="64,512,2048")
    parser.add_argument("--sources", help="comma list of names; all without it")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--readme", action="store_true", help="put the tables into the README")
    args = parser.parse_args()
    sources = [*file_sources(args.folder), *MIXES.values()]
    if args.sources:
        sources = [s for s in sources if s.name in args.sources.split(",")]
    load_s = reference_s()
    cells, rows = [], []
    for source, ranks, pp in product(sources, map(int, args.ranks.split(",")), STAGES):
        here = [cell(source, Pool(1, pp, ranks, CAP), seed) for seed in SEEDS]
        cells += here
        rows.append(summary(here))
    still_open = [c for c in cells if not c["empty"]]
    missed = [c for c in still_open if c["missed"]]
    imbalance = [c["slot_imbalance"] for c in still_open]
    counts = {
        "cells": len(cells), "open windows": len(still_open), "missing a goal": len(missed),
        "slot_imbalance p1": float(np.quantile(imbalance, 0.01)),
        "p99": float(np.quantile(imbalance, 0.99)),
        **{f"missing {n}": sum(n in c["missed"] for c in missed) for n in GOALS},
    }  # fmt: skip
    result = {"reference_sort_s": [load_s, reference_s()], "counts": counts, "cells": cells}
    tables = [
        Table("Load-driven candidate, worst of three seeds with a window, simulated", COLUMNS),
        Table("All cells", list(counts)),
    ]
    reported(args.json, result, [tables[0].of(rows), tables[1].of([counts])], args.readme)


if __name__ == "__main__":
    main()
