"""A small plan of one rank, trained and verified by the commands on this device.

`execute` in bfloat16 runs the kernel that is chosen for the device; `verify` in float32, which no
fused CUDA kernel takes, runs the engine and the decoder with the naive one. Each is a process of
its own, since workers are forked and this one may hold a CUDA context.
"""

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from budget import Left, Row
from command import told
from scale import Scale

from hydraplan.executor.verify import LIMITS
from hydraplan.files.runfile import open_run

PART = "one-process run"
STEPS, ROWS, LONGEST, CAP = 3, 12, 300, 512
VERIFIED = "float32"


def small_run_rows(scale: Scale, folder: Path, left: Left) -> Iterator[Row]:
    """Losses of a few steps, then the errors of one batch; a row each."""
    plan, kept = small_plan(folder), folder / "small.run"
    device = scale.target.type
    command(
        ["execute", plan, "--device", device, "--steps", STEPS, "--dtype", scale.run_dtype,
         "-o", kept], left,
    )  # fmt: skip
    losses = [step["loss"] for step in open_run(kept).steps]
    verdict = "ok" if all(map(math.isfinite, losses)) else "no"
    note = (
        f"{STEPS} steps in {scale.run_dtype} on {device}: {', '.join(f'{x:.4f}' for x in losses)}"
    )
    yield Row(PART, "execute, loss of the last step", losses[-1], "", verdict, note)
    out = command(["verify", plan, "--device", device, "--dtype", VERIFIED, "--json"], left)
    yield from verify_rows(json.loads(out))


def verify_rows(said: dict[str, float]) -> Iterator[Row]:
    """What `verify` says, against its own limit."""
    limit = LIMITS[VERIFIED]
    for name in ("loss_error", "max_gradient_error"):
        what = f"verify in {VERIFIED}, {name.replace('_', ' ')}"
        verdict = "ok" if said[name] <= limit else "no"
        yield Row(PART, what, said[name], "relative", verdict, f"limit {limit:.0e}")


def small_plan(folder: Path) -> Path:
    """A plan of one rank and one batch, on analytic costs: what it predicts is not looked at."""
    lengths, profile, plan = (folder / f"small.{end}" for end in ("txt", "profile.parquet", "plan"))
    np.savetxt(lengths, np.random.default_rng(3).integers(1, LONGEST, ROWS), "%d")
    told("profile", "--device", "analytic", "--cluster", "h100-sxm", "--model", "tiny",
         "-o", profile)  # fmt: skip
    told("plan", lengths, "--profile", profile, "--ranks", 1, "--max-tokens-per-rank", CAP,
         "--batch-sequences", ROWS, "-o", plan)  # fmt: skip
    return plan


def command(words: list[object], left: Left) -> str:
    """What a command of the tool prints, run in a process of its own.

    `verify` ends with 1 where an error is beyond its limit, and prints it all the same.
    """
    line = [sys.executable, "-m", "hydraplan", *map(str, words)]
    done = subprocess.run(
        line, stdout=subprocess.PIPE, text=True, timeout=max(1.0, left.seconds()), check=False
    )
    if done.returncode > (words[0] == "verify"):
        raise RuntimeError(f"hydraplan {words[0]} ended with exit code {done.returncode}")
    return done.stdout
