"""Gradients and held tokens of real workers under every schedule, against one process.

    python benchmarks/pipeline/executor.py [--json FILE] [--readme]

Every schedule that is executed, on two pools of gloo workers on this machine and two draws of
lengths: planned by `hydraplan plan`, run and compared by `hydraplan verify` in float64, as a user
would. A row is a plan; the lengths of its slots differ by microbatch and lane. Orders that are
planned keep to their default memory limit.
"""

import argparse
import json
import sys
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "planner"))

from command import told  # noqa: E402
from tables import Cell, Table, progress, reported  # noqa: E402

from hydraplan.files.planfile import open_plan, read_batch  # noqa: E402
from hydraplan.slots import slot_times  # noqa: E402

POOLS = ((2, 2), (4, 1))
CAP, COUNT, LONGEST, MICROBATCHES = 384, 24, 400, 7
SCHEDULES = (
    "gpipe", "1f1b", "interleaved 2", "interleaved 3", "zb-h1", "zb-h2", "zb-1p", "zb-2p", "zb-v",
    "portfolio", "exact", "policy", "auto",
)  # fmt: skip
"""Names as `plan --pipeline` takes them, with the chunks where they are free."""

MODEL = """
num_layers = 12
hidden_size = 32
num_heads = 4
num_kv_heads = 2
head_dim = 8
ffn_hidden_size = 48
vocab_size = 97
dtype = "float32"
"""
GRADIENT_LIMIT = 1e-10


def main() -> None:
    """All plans, then one table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    parser.add_argument("--readme", action="store_true")
    args = parser.parse_args()
    with TemporaryDirectory(prefix="hydraplan-") as name:
        folder = Path(name)
        profile = folder / "p.profile.parquet"
        (folder / "model.toml").write_text(MODEL)
        told("profile", "--device", "analytic", "--cluster", "h100-sxm",
             "--model", folder / "model.toml", "-o", profile)  # fmt: skip
        cells = [
            verified(folder, profile, schedule, pool, seed)
            for pool, seed, schedule in product(POOLS, (0, 1), SCHEDULES)
        ]
    met = sum(cell["met"] for cell in cells)
    title = (
        f"Measured on gloo workers, float64 against one process; {met} of {len(cells)} within"
        f" {GRADIENT_LIMIT:.0e} and held as predicted"
    )
    table = Table(title, list(cells[0])).of(cells)
    reported(args.json, {"cells": cells}, [table], args.readme, page=HERE / "README.md")


def verified(folder: Path, profile: Path, schedule: str, pool: tuple[int, int], seed: int) -> Cell:
    """Plan a draw of lengths with a schedule, and compare its run."""
    (pp, ranks), (name, _, chunks) = pool, schedule.partition(" ")
    lengths, plan = folder / "lengths.txt", folder / "x.plan"
    np.savetxt(lengths, drawn(seed), "%d")
    told("plan", lengths, "--profile", profile, "--pp", pp, "--ranks", ranks,
         "--max-tokens-per-rank", CAP, "--batch-sequences", COUNT + 3, "--pipeline", name,
         "--microbatches", MICROBATCHES,
         *(("--chunks", chunks) if chunks else ()), "--on-overlong", "truncate",
         "-o", plan, "--force")  # fmt: skip
    said = json.loads(told("verify", plan, "--dtype", "float64", "--json"))
    batch, cost = read_batch(open_plan(plan), 0), open_plan(plan).header.cost_model()
    rows = slot_times(cost, batch.sequences.placed(), batch.num_microbatches).rows
    progress(f"{schedule} on {pp} x {ranks}, draw {seed}: {said['max_gradient_error']:.1e}")
    return {
        "schedule": schedule, "pp x R": f"{pp} x {ranks}", "draw": seed,
        "M": batch.num_microbatches, "rows of a slot": f"{rows.min()} - {rows.max()}",
        "gradient error": f"{said['max_gradient_error']:.1e}",
        "loss error": f"{said['loss_error']:.1e}",
        "live tokens by stage, measured": by_stage(said, "peak_live_tokens"),
        "predicted": by_stage(said, "predicted_peak_live_tokens"),
        "met": said["within"] and said["holds_as_predicted"],
    }  # fmt: skip


def drawn(seed: int) -> list[int]:
    """Lengths of a long tail, and a few that are hardly there."""
    tail = np.random.default_rng(seed).lognormal(4.0, 1.0, COUNT)
    return [1, 2, 3, *np.clip(tail, 4, LONGEST).astype(int).tolist()]


def by_stage(said: Cell, name: str) -> str:
    """One figure of every stage."""
    return " ".join(f"{stage[name]:.6g}" for stage in said["stages"])


if __name__ == "__main__":
    main()
