"""Op times that the cost model predicts against those of workers, on plans it was not fitted on.

    python benchmarks/prediction/predict.py [--json FILE] [--readme] [--seconds 40]

The cost model is fitted by `hydraplan profile` on calls of single shapes; then plans run on at most
two workers, as `hydraplan execute` runs them, and every op with rows is compared. Both sides
are CPU seconds of one thread, since the cores of this machine are shared: the profile's clock is
replaced by the thread's CPU time, and `ops.parquet` has that of every op. Seconds of an op are the
median over its steps without the first. Links are measured by the clock; what a prediction has of
them is in `busy` of the plan, while a worker that waits for its group uses no CPU.

A shared machine is not equally fast all the time, and two busy cores are slower than one. So a
fixed piece of work, small enough for a core's own cache, is timed beside the profile, and around
every run by as many processes as there are workers: `machine` is by how much it took longer there.
"""

import argparse
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "planner"))

from command import told  # noqa: E402
from tables import Cell, Table, progress, reported  # noqa: E402

from hydraplan.files.planfile import open_plan, read_batch  # noqa: E402
from hydraplan.files.runfile import open_run, read_step_ops  # noqa: E402
from hydraplan.model import FloatArray  # noqa: E402
from hydraplan.profiler import measure  # noqa: E402
from hydraplan.slots import slot_times  # noqa: E402

MODEL = """
num_layers = 4
hidden_size = 256
num_heads = 8
num_kv_heads = 2
head_dim = 32
ffn_hidden_size = 704
vocab_size = 2048
dtype = "float32"
"""
STEPS, CAP = 4, 2_048
PROBES = 200
"""Pieces of fixed work that are timed; about a second."""

LIMIT = 0.15
"""Error above which a reason is owed."""


class Case(NamedTuple):
    """A plan: pool, schedule, and lengths of a kind."""

    name: str
    pp: int
    ranks: int
    pipeline: str
    lengths: str


CASES = (
    Case("one worker, long tail", 1, 1, "1f1b", "tail"),
    Case("one worker, even", 1, 1, "gpipe", "even"),
    Case("two stages, long tail", 2, 1, "1f1b", "tail"),
    Case("two stages, B and W apart", 2, 1, "zb-h1", "tail"),
    Case("two stages, few long", 2, 1, "1f1b", "long"),
    Case("two lanes, long tail", 1, 2, "1f1b", "tail"),
    Case("two lanes, few long", 1, 2, "1f1b", "long"),
)


class Ops(NamedTuple):
    """Ops with rows: kind, whether their slot shares a sequence, measured and predicted seconds.

    `machine`: what fixed work took around the run over what it took beside the profile.
    """

    kind: list[str]
    shared: list[bool]
    busy_s: FloatArray
    predicted_s: FloatArray
    machine: FloatArray

    def error(self) -> FloatArray:
        """Predicted over measured less one."""
        return self.predicted_s / self.busy_s - 1


def main() -> None:
    """Profile, run every case, three tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    parser.add_argument("--readme", action="store_true")
    parser.add_argument("--seconds", type=float, default=40.0)
    args = parser.parse_args()
    measure.cpu_timer = cpu_seconds
    with TemporaryDirectory(prefix="hydraplan-") as name:
        folder = Path(name)
        (folder / "model.toml").write_text(MODEL)
        profile = folder / "p.profile.parquet"
        before_s = fixed_work_s(1)
        told("profile", "--device", "cpu", "--model", folder / "model.toml",
             "--seconds", args.seconds, "-o", profile)  # fmt: skip
        profiled_s = (before_s + fixed_work_s(1)) / 2
        found = {case: compared(folder, profile, case, profiled_s) for case in CASES}
    whole = joined(list(found.values()))
    columns = list(row("", whole))
    by_plan = [row(case.name, ops) for case, ops in found.items()]
    by_op = [row(name, ops) for name, ops in (*by_kind(whole), ("all", whole))]
    tables = [Table("By plan", columns, 2).of(by_plan), Table("By op", columns, 2).of(by_op)]
    cells = [cell for table in tables for cell in table.rows]
    reported(args.json, {"cells": cells}, tables, args.readme, page=HERE / "README.md")


def cpu_seconds(call: measure.Run) -> measure.Timed:
    """CPU seconds of this thread in one call."""
    began_s = time.thread_time()
    call()
    return measure.Timed(time.thread_time() - began_s)


def fixed_work_s(workers: int) -> float:
    """CPU seconds of a fixed piece of a worker's work, median, mean of so many at once."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    children = [context.Process(target=_fixed_work, args=(theirs,)) for _ in range(workers)]
    for child in children:
        child.start()
    found = [ours.recv() for _ in children]
    for child in children:
        child.join()
    return float(np.mean(found))


def _fixed_work(told_to: Connection) -> None:
    torch.set_num_threads(1)
    q, x, weight = (torch.ones(shape) for shape in ((1, 8, 512, 32), (512, 256), (256, 704)))
    times = []
    for _ in range(PROBES):
        began_s = time.thread_time()
        torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        torch.nn.functional.silu(x @ weight) @ weight.T
        times.append(time.thread_time() - began_s)
    told_to.send(float(np.median(times)))


def compared(folder: Path, profile: Path, case: Case, profiled_s: float) -> Ops:
    """Plan a case, run it, and bring its ops together."""
    lengths, plan, kept = (folder / name for name in ("lengths.txt", "x.plan", "x.run"))
    np.savetxt(lengths, drawn(case.lengths), "%d")
    told("plan", lengths, "--profile", profile, "--pp", case.pp, "--ranks", case.ranks,
         "--max-tokens-per-rank", CAP, "--batch-sequences", len(drawn(case.lengths)),
         "--pipeline", case.pipeline, "-o", plan, "--force")  # fmt: skip
    before_s = fixed_work_s(case.pp * case.ranks)
    told("execute", plan, "--steps", STEPS, "-o", kept, "--force")
    machine = (before_s + fixed_work_s(case.pp * case.ranks)) / 2 / profiled_s
    batch, cost = read_batch(open_plan(plan), 0), open_plan(plan).header.cost_model()
    placed = batch.sequences.placed()
    rows = slot_times(cost, placed, batch.num_microbatches).rows
    steps = [read_step_ops(open_run(kept), step) for step in range(1, STEPS)]
    kinds, shared, busy, predicted = [], [], [], []
    for stage, ops in enumerate(batch.schedule):
        busy_s = np.median([found.timeline.busy_s[stage] for found in steps], axis=0)
        for position, op in enumerate(ops):
            for lane in np.flatnonzero(rows[:, op.microbatch]).tolist():
                here = (placed.microbatch == op.microbatch) & (placed.degree > 1)
                kinds.append(op.kind)
                shared.append(bool(here.any()))
                busy.append(busy_s[position, lane])
                predicted.append(steps[0].predicted.busy_s[stage][position, lane])
    result = Ops(kinds, shared, np.array(busy), np.array(predicted), np.full(len(busy), machine))
    progress(f"{case.name}: {row(case.name, result)}")
    return result


def drawn(kind: str) -> list[int]:
    """Lengths that the profile has not seen together; 24 sequences, or 6 long ones."""
    rng = np.random.default_rng(5)
    if kind == "even":
        return rng.integers(150, 250, 24).tolist()
    if kind == "long":
        return [*rng.integers(900, 2_000, 6).tolist(), 40, 90]
    return np.clip(rng.lognormal(5.2, 0.9, 24), 16, CAP).astype(int).tolist()


def by_kind(whole: Ops) -> list[tuple[str, Ops]]:
    """Ops of a kind, those of slots that share a sequence apart."""
    found = []
    for kind in ("F", "B", "W", "BW"):
        for shared, name in ((False, kind), (True, f"{kind}, degree above 1 in its microbatch")):
            keep = [
                k == kind and s == shared for k, s in zip(whole.kind, whole.shared, strict=True)
            ]
            if any(keep):
                found.append((name, chosen(whole, np.flatnonzero(keep))))
    return found


def chosen(whole: Ops, index: np.ndarray) -> Ops:
    """Some of the ops."""
    return Ops(
        [whole.kind[i] for i in index],
        [whole.shared[i] for i in index],
        whole.busy_s[index],
        whole.predicted_s[index],
        whole.machine[index],
    )


def joined(parts: list[Ops]) -> Ops:
    """Ops of several plans."""
    return Ops(
        [kind for part in parts for kind in part.kind],
        [shared for part in parts for shared in part.shared],
        np.concatenate([part.busy_s for part in parts]),
        np.concatenate([part.predicted_s for part in parts]),
        np.concatenate([part.machine for part in parts]),
    )


def row(name: str, ops: Ops) -> Cell:
    """One line: how many ops, how long they take, and how far predictions are off.

    `machine out`: what is left where predictions are multiplied by `machine`; `factor out`: where
    they are divided by their median of the row, so that only ratios of ops count.
    """
    error = ops.error()
    factor = float(np.median(error)) + 1
    slower = np.abs((error + 1) * ops.machine - 1)
    apart = np.abs((error + 1) / factor - 1)
    return {
        "ops of": name, "count": len(error), "median ms": 1e3 * float(np.median(ops.busy_s)),
        "median error": float(np.median(np.abs(error))),
        "p90 error": float(np.quantile(np.abs(error), 0.9)),
        f"above {LIMIT:.0%}": f"{(np.abs(error) > LIMIT).mean():.0%}",
        "predicted / measured": factor,
        "machine": float(np.median(ops.machine)),
        "median error, machine out": float(np.median(slower)),
        "median error, factor out": float(np.median(apart)),
        "p90 error, factor out": float(np.quantile(apart, 0.9)),
    }  # fmt: skip


if __name__ == "__main__":
    main()
