"""Plan real lengths x caps x pools x stages through the command line, one line a cell.

    python benchmarks/planner_grid.py LENGTHS_FOLDER [--batch-sequences N] [--json FILE]

Every cell runs `hydraplan plan` and `hydraplan validate` (analytic h100-sxm, llama-8b,
--on-overlong skip), recounts the rows of every slot one by one, and plans memory-ffd in its
three microbatch orders beside it. Everything is simulated; nothing ran on a GPU.
"""

import argparse
import contextlib
import io
import json
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import hydraplan
from hydraplan.cli.app import run
from hydraplan.files.lengths import read_lengths
from hydraplan.layout import rank_positions

CAPS, POOLS, STAGES = (4096, 8192, 16384), (8, 32, 128), (1, 4, 8)
ORDERS = ("as-built", "long-first", "sandwich")


def main() -> None:
    """Run every cell and print the table and its summary."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batch-sequences", type=int, default=1024)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    files = sorted(args.folder.glob("lengths_*.parquet"))
    with tempfile.TemporaryDirectory() as scratch:
        profile = f"{scratch}/h100.profile.parquet"
        command("profile", "--device", "analytic", "--cluster", "h100-sxm", "--model", "llama-8b",
                "-o", profile)  # fmt: skip
        cells = [
            cell(Path(scratch), profile, path, cap, ranks, pp, args.batch_sequences)
            for path, cap, ranks, pp in product(files, CAPS, POOLS, STAGES)
        ]
    summary(cells)
    if args.json:
        args.json.write_text(json.dumps(cells, indent=1))


def cell(
    scratch: Path, profile: str, path: Path, cap: int, ranks: int, pp: int, rows: int
) -> dict[str, Any]:
    """Plan, validate and recount one cell; print its line."""
    asked = (
        "plan", path, "--profile", profile, "--pp", pp, "--ranks", ranks, "--batch-sequences", rows,
        "--max-tokens-per-rank", cap, "--on-overlong", "skip", "--json", "--force", "-o",
    )  # fmt: skip
    began = time.process_time()
    (batch,) = command(*asked, scratch / "a.plan")["batches"]
    cpu_s = time.process_time() - began
    assert command("validate", scratch / "a.plan", "--json")["valid"]
    recount(scratch / "a.plan", path, cap, ranks, batch)
    baseline = ("--strategy", "memory-ffd", "--microbatch-order")
    memory_s = min(
        command(*asked, scratch / "b.plan", *baseline, order)["batches"][0]["iteration_s"]
        for order in ORDERS
    )
    found = {
        "file": path.stem.removeprefix("lengths_"), "cap": cap, "ranks": ranks, "pp": pp,
        "cpu_s": cpu_s, "memory_ffd_s": memory_s, **batch,
    }  # fmt: skip
    print(
        f"{found['file']:18} cap {cap:5} R {ranks:3} pp {pp} window {batch['window_min']:4}.."
        f"{batch['window_max']:<4} M {batch['num_microbatches']:4} {batch['winner']:11} imbalance"
        f" {batch['load_driven_slot_imbalance'] or float('nan'):6.3f}"
        f" gain {memory_s / batch['iteration_s']:6.3f} cpu {cpu_s:.2f} s",
        flush=True,
    )
    return found


def command(*words: object) -> dict[str, Any]:
    """Run one hydraplan command in this process and return its JSON, if it prints any."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([str(word) for word in words])
    assert code == 0, f"{words}: exit {code}, {err.getvalue()}"
    return json.loads(out.getvalue()) if "--json" in words else {}


def recount(folder: Path, path: Path, cap: int, ranks: int, batch: dict[str, Any]) -> None:
    """Count every row of every slot again, by positions, without the planner's own sums."""
    table: pd.DataFrame = hydraplan.load_plan(folder).sequences
    length = read_lengths(path).length_tokens[: len(table)]
    assert table.sequence_id.tolist() == list(range(len(table)))
    assert table.length_tokens.tolist() == length.tolist()
    assert (table[table.length_tokens == 0].status == "empty").all()
    held = np.zeros((ranks, batch["num_microbatches"]), np.int64)
    for row in table[table.status == "placed"].itertuples():
        assert row.first_rank % row.degree == 0
        assert 0 <= row.first_rank <= ranks - row.degree
        for member in range(row.degree):
            shape = row.length_tokens, row.ulysses_size, row.ring_size, member
            held[row.first_rank + member, row.microbatch] += len(rank_positions(*shape))
    assert held.max() <= cap
    assert held.sum() == table[table.status == "placed"].length_tokens.sum()
    assert (held.sum(axis=0) > 0).all()


def summary(cells: list[dict[str, Any]]) -> None:
    """Share of empty windows, worst imbalance elsewhere, and whether hydra ever lost."""
    still_open = [c for c in cells if not c["window_is_empty"]]
    worst = max(c["load_driven_slot_imbalance"] for c in still_open)
    lost = [c for c in cells if c["iteration_s"] > c["memory_ffd_s"]]
    gains = [c["memory_ffd_s"] / c["iteration_s"] for c in cells]
    open_gains = [c["memory_ffd_s"] / c["iteration_s"] for c in still_open]
    empty = len(cells) - len(still_open)
    print(f"{len(cells)} cells planned and validated; window empty in {empty}")
    print(f"largest slot imbalance of the best load-driven candidate, open window: {worst:.4f}")
    print(f"cells slower than memory-ffd in its best order: {len(lost)}")
    print(
        f"gain over memory-ffd in its best order: mean {np.mean(gains):.3f}, max {max(gains):.3f};"
    )
    print(f"  open windows only: mean {np.mean(open_gains):.3f}, min {min(open_gains):.3f}")


if __name__ == "__main__":
    main()
