"""What moves save on real workers of which one is slow, beside what the simulator says they save.

    python benchmarks/migration/paced.py [--json FILE] [--readme] [--steps 20]

One sequence on one nested group whose lane 0 takes 1.5 times as long; `planner.policy.decide`
chooses the moves from that factor. Modes take turns step by step: as planned, as planned once more
(the control), uneven heads, rows of the MLP, both. A gain is the median over steps of 1 - step /
the step as planned of the same turn, from p10 to p90.

* Paced (`execute --paced`): real messages and arithmetic, each part as long as the plan says, so
  that a few cores can stand for a device each. Steps are wall time.
* Real arithmetic: what a slow rank computes counts 1.5 times, and no wall time is told: ranks share
  cores, and one's waiting is another's computing. Told is the critical path of CPU seconds: of
  every op the lane that worked longest, ops added up. It has no waiting and no message in it.

Weights stay as they are drawn, so all steps are alike.
"""

import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "planner"))

from command import told  # noqa: E402
from tables import Cell, Table, progress, reported  # noqa: E402

from hydraplan.executor.groups import World  # noqa: E402
from hydraplan.executor.launch import run_workers  # noqa: E402
from hydraplan.executor.prepare import Job, prepare  # noqa: E402
from hydraplan.executor.record import Measured  # noqa: E402
from hydraplan.executor.settings import Settings  # noqa: E402
from hydraplan.executor.worker import run_step, set_up  # noqa: E402
from hydraplan.metrics import shares  # noqa: E402
from hydraplan.migration import NO_MOVES, Moves  # noqa: E402
from hydraplan.model import FloatArray  # noqa: E402
from hydraplan.planner.policy.decide import Decision, decide  # noqa: E402

FACTOR, TIMEOUT_S = 1.5, 120.0
FORMS = {"heads": ("shares",), "rows": ("rows",), "both": ("shares", "rows")}
STILL, CONTROL = "as planned", "control"
MODES = (STILL, CONTROL, *FORMS)
GAIN_LIMIT, SHARE_LIMIT, CONTROL_LIMIT = 0.08, 0.6, 0.03
"""Bars of the paced table: both forms together, of the simulated gain, the control."""


class Setting(NamedTuple):
    """A group of `lanes`, one sequence on it, and the model and device it is planned for."""

    lanes: int
    length: int
    is_paced: bool

    def model(self) -> str:
        """As a model file: tiny where parts are paced, else large enough to be worth timing."""
        sizes = (64, 16, 4, 8, 208) if self.is_paced else (512, 16, 4, 32, 1408)
        names = ("hidden_size", "num_heads", "num_kv_heads", "head_dim", "ffn_hidden_size")
        lines = [f"{name} = {size}" for name, size in zip(names, sizes, strict=True)]
        return "\n".join(["num_layers = 2", *lines, "vocab_size = 64", 'dtype = "float32"'])


SETTINGS = (
    Setting(2, 512, True),
    Setting(4, 768, True),
    Setting(2, 1024, False),
)

CLUSTER = """
devices_per_node = 2
memory_bytes = 80_000_000_000
memory_bytes_per_s = 1e12
attention_forward_flops_per_s = {attention}
attention_backward_flops_per_s = {attention}
attention_forward_half_rows = 0
attention_backward_half_rows = 0
attention_call_s = 1e-4
linear_flops_per_s = {linear}
layer_call_s = 1e-4
[node]
bytes_per_s = 1e9
latency_s = 5e-4
[fabric]
bytes_per_s = 1e9
latency_s = 5e-4
"""
"""Links are about those of gloo on one machine."""

RATES = {True: (0.7e9, 0.43e9), False: (2.7e10, 4.5e10)}
"""Attention and linears: paced, 48 and 72 ms of a layer forward; else about a core's own."""


def main() -> None:
    """All settings, then two tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    parser.add_argument("--readme", action="store_true")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    cells = [cell for setting in SETTINGS for cell in measured(setting, args.steps)]
    tables = []
    for is_paced, what in ((True, "Paced steps"), (False, "Real arithmetic, CPU critical path")):
        rows = [cell for cell in cells if cell["paced"] == is_paced]
        title = f"{what}: one lane {FACTOR} times as slow, {args.steps} turns, gains in %"
        tables.append(Table(title, [n for n in rows[0] if n != "paced"], 1).of(rows))
    reported(args.json, {"cells": cells}, tables, args.readme, page=HERE / "README.md")


def measured(setting: Setting, steps: int) -> list[Cell]:
    """Every mode of a setting, as rows of a table."""
    with TemporaryDirectory(prefix="hydraplan-") as name:
        folder = Path(name)
        job = planned(folder, setting)
        found = decisions(job)
        moves = {mode: found[mode].moves if mode in found else NO_MOVES for mode in MODES}
        entry = partial(run_modes, folder / "seconds.npy", job, moves, steps)
        run_workers(entry, 1, setting.lanes, TIMEOUT_S)
        seconds = np.load(folder / "seconds.npy")
    return [row(setting, mode, found, seconds) for mode in MODES]


def planned(folder: Path, setting: Setting) -> Job:
    """A plan of one sequence on all lanes, laid by hand on inner groups of two; ready to run."""
    attention, linear = RATES[setting.is_paced]
    (folder / "model.toml").write_text(setting.model())
    (folder / "cluster.toml").write_text(CLUSTER.format(attention=attention, linear=linear))
    np.savetxt(folder / "lengths.txt", [setting.length], "%d")
    profile, plan = folder / "p.profile.parquet", folder / "x.plan"
    told("profile", "--device", "analytic", "--cluster", folder / "cluster.toml",
         "--model", folder / "model.toml", "-o", profile)  # fmt: skip
    told("plan", folder / "lengths.txt", "--profile", profile, "--pp", 1,
         "--ranks", setting.lanes, "--min-degree", setting.lanes, "--batch-sequences", 1,
         "--max-tokens-per-rank", setting.length, "--pipeline", "zb-h1", "-o", plan)  # fmt: skip
    job = prepare(plan, [0], Settings(timeout_s=TIMEOUT_S, paced=setting.is_paced))
    (batch,) = job.batches
    nested = replace(
        batch.sequences, ulysses_size=np.array([2]), ring_size=np.array([setting.lanes // 2])
    )
    return replace(job, batches=(replace(batch, sequences=nested),))


def decisions(job: Job) -> dict[str, Decision]:
    """What is moved in each mode, for the factor as it is."""
    factor = np.ones((1, job.header.options.ranks))
    factor[0, 0] = FACTOR
    return {
        mode: decide(job.cost, job.batches[0], factor, forms=forms, most_live_tokens=1e9)
        for mode, forms in FORMS.items()
    }


def run_modes(path: Path, job: Job, moves: dict[str, Moves], turns: int, world: World) -> None:
    """Seconds of every turn and mode, after one turn to warm up; rank 0 writes them."""
    worker = set_up(world, job)
    slow = FACTOR if world.lane == 0 else 1.0
    found = []
    for _ in range(turns + 1):
        for mode in MODES:
            for weight in worker.stage.weights.values():
                weight.grad = None
            result = run_step(worker, job, job.batches[0], moves[mode], slow)
            if result is not None:
                found.append(step_s(result, job.settings.paced))
    if world.rank == 0:
        np.save(path, np.array(found).reshape(-1, len(MODES))[1:])


def step_s(result: Measured, is_paced: bool) -> float:
    """Wall seconds of a step, or the critical path of its CPU seconds."""
    if is_paced:
        return shares(result.timeline)["iteration_s"]
    return float(sum(busy.max(axis=1).sum() for busy in result.timeline.busy_s))


def row(setting: Setting, mode: str, found: dict[str, Decision], seconds: FloatArray) -> Cell:
    """One mode of a setting."""
    step, still = seconds[:, MODES.index(mode)], seconds[:, 0]
    gains = 100 * (1 - step / still)
    low, middle, high = np.percentile(gains, [10, 50, 90])
    cell: Cell = {
        "paced": setting.is_paced, "lanes": setting.lanes, "mode": mode, "moved": said(mode, found),
        "step, ms": 1e3 * float(np.median(step)),
        "gain": None if mode == STILL else f"{middle:.1f} [{low:.0f}..{high:.0f}]",
    }  # fmt: skip
    if setting.is_paced:
        simulated, share, is_met = None, None, None
        if mode in found:
            simulated = 100 * (1 - found[mode].after_s / found[mode].before_s)
            share = middle / simulated
        if mode == "both":
            is_met = bool(middle >= 100 * GAIN_LIMIT and share >= SHARE_LIMIT)
        if mode == CONTROL:
            is_met = bool(abs(middle) <= 100 * CONTROL_LIMIT)
        simulated_s = next(iter(found.values())).before_s
        if mode in found:
            simulated_s = found[mode].after_s
        cell |= {
            "simulated, ms": 1e3 * simulated_s, "simulated": simulated,
            "share": None if share is None else f"{share:.2f}", "met": is_met,
        }  # fmt: skip
    progress(f"{setting.lanes} lanes, {mode}: {middle:.1f}% [{low:.1f}..{high:.1f}]")
    return cell


def said(mode: str, found: dict[str, Decision]) -> str:
    """Heads of the members and rows that move."""
    if mode not in found:
        return "-"
    moves = found[mode].moves
    heads = [str([list(counts) for counts in share.counts]) for share in moves.shares]
    rows = [f"{move.rows} rows {move.giver} to {move.taker}" for move in moves.rows]
    return ", ".join([*(f"heads {text}" for text in heads), *rows]) or "nothing"


if __name__ == "__main__":
    main()
