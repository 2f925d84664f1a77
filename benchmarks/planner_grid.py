"""Balance and time of hydra over real lengths x caps x pools x stages, one line a cell.

python benchmarks/planner_grid.py LENGTHS_FOLDER [--batch-sequences N] [--json FILE]
Simulated on the analytic profile of h100-sxm and llama-8b. For every cell: the window, the best
load-driven candidate's slot imbalance, and the plan's time against memory-ffd in its best order.
"""

import argparse
import json
import time
from itertools import product
from pathlib import Path

import numpy as np

from hydraplan.config import load_cluster, load_model
from hydraplan.errors import HydraplanError
from hydraplan.files.lengths import read_lengths
from hydraplan.files.planfile import PlanOptions
from hydraplan.files.profilefile import Profile
from hydraplan.planner.placement.strategies import STRATEGIES
from hydraplan.planner.plan import plan
from hydraplan.profiler.analytic import analytic_header

CAPS, POOLS, STAGES = (4096, 8192, 16384), (8, 32, 128), (1, 4, 8)


def main() -> None:
    """Run every cell and print the table and its summary."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batch-sequences", type=int, default=1024)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    header = analytic_header(load_cluster("h100-sxm"), load_model("llama-8b"))
    profile = Profile(header, "0" * 64)
    cells = []
    for path, cap, ranks, pp in product(
        sorted(args.folder.glob("lengths_*.parquet")), CAPS, POOLS, STAGES
    ):
        lengths = read_lengths(path)
        options = PlanOptions(
            pp=pp, ranks=ranks, tp=1, max_tokens_per_rank=cap, batch_tokens=None,
            batch_sequences=args.batch_sequences, strategy="hydra", pipeline="1f1b",
            microbatches=None, microbatch_order="auto", on_overlong="skip", seed=0,
        )  # fmt: skip
        cell = {"file": path.stem.removeprefix("lengths_"), "cap": cap, "ranks": ranks, "pp": pp}
        began = time.process_time()
        try:
            (batch,) = plan(lengths, profile, options, 1)[1]
        except HydraplanError as error:
            print(cell, error)
            continue
        cell["cpu_s"] = time.process_time() - began
        best_memory = min(
            next(iter(plan(lengths, profile, replace_options(options, order), 1)[1])).figures[
                "iteration_s"
            ]
            for order in ("as-built", "long-first", "sandwich")
        )
        s = batch.search
        cell |= {
            "window": [s.window_min, s.window_max], "microbatches": batch.num_microbatches,
            "winner": batch.winner, "load_driven_slot_imbalance": s.load_driven_slot_imbalance,
            "iteration_s": batch.figures["iteration_s"], "memory_ffd_s": best_memory,
            "load_driven_s": s.load_driven_s, "rejected": f"{s.num_rejected}/{s.num_candidates}",
            "theta": s.theta, "eta": s.eta,
        }  # fmt: skip
        cells.append(cell)
        print(
            f"{cell['file']:18} cap {cap:5} R {ranks:3} pp {pp} window {s.window_min:4}.."
            f"{s.window_max:<4} M {batch.num_microbatches:4} {batch.winner:11}"
            f" imbalance {s.load_driven_slot_imbalance:6.3f}"
            f" gain {best_memory / batch.figures['iteration_s']:6.3f} theta {s.theta} eta {s.eta}"
            f" rejected {cell['rejected']} cpu {cell['cpu_s']:.2f} s",
            flush=True,
        )
    summary(cells)
    if args.json:
        args.json.write_text(json.dumps(cells, indent=1))


def replace_options(options: PlanOptions, order: str) -> PlanOptions:
    """The same request to memory-ffd in one microbatch order."""
    assert "memory-ffd" in STRATEGIES
    return options.model_copy(update={"strategy": "memory-ffd", "microbatch_order": order})


def summary(cells: list[dict]) -> None:
    """Share of empty windows, worst imbalance elsewhere, and whether hydra ever lost."""
    open_cells = [c for c in cells if c["window"][0] <= c["window"][1]]
    worst = max(open_cells, key=lambda c: c["load_driven_slot_imbalance"])
    over = [c for c in open_cells if not c["load_driven_slot_imbalance"] <= 1.10]
    lost = [c for c in cells if c["iteration_s"] > c["memory_ffd_s"] * (1 + 1e-9)]
    gains = [c["memory_ffd_s"] / c["iteration_s"] for c in cells]
    print(f"{len(cells)} cells, {len(cells) - len(open_cells)} with an empty window")
    print(f"worst imbalance in an open cell {worst['load_driven_slot_imbalance']:.3f}: {worst}")
    print(f"{len(over)} open cells above 1.10; {len(lost)} cells slower than memory-ffd")
    print(
        f"gain over memory-ffd in its best order: mean {np.mean(gains):.3f}, max {max(gains):.3f}"
    )


if __name__ == "__main__":
    main()
