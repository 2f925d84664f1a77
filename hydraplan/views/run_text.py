"""What people and programs read of a run: figures over its steps, and a table of them."""

import math
from typing import Any

import numpy as np

from hydraplan.errors import printable
from hydraplan.files.runfile import Run
from hydraplan.model import FloatArray

STUDENT_T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Two-sided 95% quantile of Student's t for 1..30 degrees of freedom; 1.96 beyond."""


def run_json(run: Run) -> dict[str, Any]:
    """Figures of a run as `execute --json` prints them."""
    seconds = np.array([row["iteration_s"] for row in run.steps], float)
    return {
        "mode": run.header.mode,
        "device": run.header.device,
        "steps": len(run.steps),
        "iteration_s_mean": float(seconds.mean()) if len(seconds) else math.nan,
        "iteration_s_ci95": confidence_95(seconds),
        "tokens_per_s": sum(row["tokens"] for row in run.steps) / float(seconds.sum())
        if len(seconds)
        else math.nan,
        "loss": [row["loss"] for row in run.steps if row["loss"] is not None],
        "corrections": 0,
        "migrations": 0,
        "slow_devices": [],
    }


def confidence_95(values: FloatArray) -> float:
    """Half width of the 95% confidence interval of the mean; NaN below two values."""
    count = len(values)
    if count < 2:
        return math.nan
    quantile = STUDENT_T_95[count - 2] if count - 1 <= len(STUDENT_T_95) else 1.96
    return float(quantile * values.std(ddof=1) / math.sqrt(count))


def run_title(run: Run) -> str:
    """One line: measured or simulated, on what, which plan."""
    options = run.header.plan.options
    where = f"measured on {run.header.device}"
    if run.header.mode == "simulated":
        where = f"simulated with its {run.header.device}"
    return printable(
        f"{run.header.plan_name}: {where}, pp {options.pp} x ranks {options.ranks},"
        f" {run.header.dtype}"
    )


RUN_COLUMNS = ("step", "batch", "tokens", "loss", "iteration_s", "busy", "bubble", "group_wait")


MOST_ROWS = 100
"""A longer run is shown by its first and last steps, half of these each."""


def run_rows(run: Run) -> list[list[object]]:
    """A row per step under `RUN_COLUMNS`; bubble is pipeline and data-parallel together.

    Of a run of more than `MOST_ROWS` steps only the first and the last; the caption says so.
    """
    shown = run.steps
    if len(shown) > MOST_ROWS:
        shown = shown[: MOST_ROWS // 2] + shown[-MOST_ROWS // 2 :]
    return [
        [
            row["step"],
            row["batch"],
            row["tokens"],
            row["loss"],
            row["iteration_s"],
            row["busy"],
            row["pipeline_bubble"] + row["dp_bubble"],
            row["group_wait"],
        ]
        for row in shown
    ]


def run_caption(run: Run) -> str:
    """Mean, its confidence interval and the rate, below the table."""
    if not run.steps:
        return "no finished step"
    figures = run_json(run)
    interval = figures["iteration_s_ci95"]
    margin = f" +- {interval:.2g}" if math.isfinite(interval) else ""
    hidden = len(run.steps) - MOST_ROWS
    left_out = f"{hidden} steps in the middle are not shown\n" if hidden > 0 else ""
    return left_out + (
        f"{figures['steps']} steps, {figures['iteration_s_mean']:.4g}{margin} s a step (mean, 95%),"
        f" {figures['tokens_per_s']:,.0f} tokens/s"
    )
