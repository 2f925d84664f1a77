"""What people and programs read of a run: figures over its steps, and a table of them."""

import math
from typing import Any

import numpy as np

from hydraplan.errors import many, printable
from hydraplan.files.runfile import Run, RunHeader
from hydraplan.files.trialsfile import CORRECTION, Trials
from hydraplan.model import FloatArray
from hydraplan.views import console
from hydraplan.views.memory_text import limit_text, peaks_json, print_peaks
from hydraplan.views.story_text import print_story, story_json
from hydraplan.views.traffic_text import print_traffic, traffic_json

STUDENT_T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Two-sided 95% quantile of Student's t for 1..30 degrees of freedom; 1.96 beyond."""


def run_json(run: Run) -> dict[str, Any]:
    """Figures of a run as `execute --json` prints them.

    The iteration of several trials is the mean over them, of one the mean over its steps.
    """
    seconds = np.array([row["iteration_s"] for row in run.steps], float)
    tokens = np.array([row["tokens"] for row in run.steps], float)
    trials = run.trials
    if trials is not None and len(trials.iteration_s) > 1:
        seconds = trials.iteration_s
    mean_s = float(seconds.mean()) if len(seconds) else math.nan
    result = {
        "mode": run.header.mode,
        "device": run.header.device,
        "paced": run.header.paced,
        "injected": list(run.header.injected),
        "correction": run.header.correction,
        "migration": run.header.migration,
        "replays": run.header.replays,
        "steps": len(run.steps),
        "iteration_s_mean": mean_s,
        "iteration_s_ci95": confidence_95(seconds),
        "tokens_per_s": float(tokens.mean()) / mean_s if len(tokens) else math.nan,
        **peaks_json(run.peaks),
        **traffic_json(run.traffic),
        "live_limit_tokens": run.header.plan.options.live_limit_tokens,
        "memory_limit_bytes": run.header.plan.options.memory_bytes,
        "loss": [row["loss"] for row in run.steps if row["loss"] is not None],
        **story_json(run),
    }
    if trials is not None:
        result |= {
            "noise": run.header.noise,
            "trials": run.header.trials,
            "pool_barrier": run.header.pool_barrier,
            "nominal_s_mean": trials.nominal_s,
            "causes": causes_json(trials),
        }
    return result


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
    where += ", paced by the plan" if run.header.paced else ""
    if run.header.mode == "simulated":
        where = f"simulated with its {run.header.device}"
        where += ", all lanes meeting in every microbatch" if run.header.pool_barrier else ""
    recompute = run.header.recompute
    remade = "" if recompute == "none" else f", recompute {recompute}"
    slowed = f", slowed on purpose: {' '.join(run.header.injected)}" if run.header.injected else ""
    return printable(
        f"{run.header.plan_name}: {where}, pp {options.pp} x ranks {options.ranks},"
        f" {run.header.dtype}{remade}{slowed}"
    )


RUN_COLUMNS = (
    "step", "batch", "tokens", "loss", "iteration s", "busy", "pipeline bubble", "dp bubble",
    "group wait",
)  # fmt: skip
OP_WAIT = "op wait: inside ops, for members of groups or for a core; ops.parquet tells them apart"
TRIAL_COLUMNS = ("step", "batch", "tokens", "mean s", "+- 95%")
"""Of several trials; where their time goes stands in the table of causes, over all steps."""


MOST_ROWS = 100
"""A longer run is shown by its first and last steps, half of these each."""


def run_columns(run: Run) -> tuple[str, ...]:
    """Heads of `run_rows`; waiting inside an op that was measured is for a core, too."""
    if _step_s(run) is not None:
        return TRIAL_COLUMNS
    return RUN_COLUMNS if run.header.mode == "simulated" else (*RUN_COLUMNS[:-1], "op wait")


def run_rows(run: Run) -> list[list[object]]:
    """A row per step under `run_columns`: one run with its shares, or the mean of the trials.

    Of a run of more than `MOST_ROWS` steps only the first and the last; the caption says so.
    """
    numbers = list(range(len(run.steps)))
    if len(numbers) > MOST_ROWS:
        numbers = numbers[: MOST_ROWS // 2] + numbers[-MOST_ROWS // 2 :]
    step_s = _step_s(run)
    rows: list[list[object]] = []
    for i in numbers:
        step = run.steps[i]
        rows.append([step["step"], step["batch"], step["tokens"]])
        if step_s is None:
            rows[-1] += [step["loss"], step["iteration_s"], *(step[name] for name in _SHARES)]
        else:
            rows[-1] += [float(step_s[i].mean()), confidence_95(step_s[i])]
    return rows


_SHARES = ("busy", "pipeline_bubble", "dp_bubble", "group_wait")


def _step_s(run: Run) -> FloatArray | None:
    """Iteration of every step and trial; None where each step ran once."""
    step_s = run.trials.step_s if run.trials else None
    return None if step_s is None or step_s.shape[1] == 1 else step_s


def run_caption(run: Run) -> str:
    """Mean, its confidence interval and the rate, below the table."""
    if not run.steps:
        return "no finished step"
    figures = run_json(run)
    interval = figures["iteration_s_ci95"]
    of = many(run.header.trials, "trial") if _step_s(run) is not None else "the steps"
    margin = f" +- {interval:.2g}" if math.isfinite(interval) else ""
    meaning = f" (mean of {of} and its 95% interval)" if margin else ""
    hidden = len(run.steps) - MOST_ROWS
    left_out = f"{hidden} steps in the middle are not shown\n" if hidden > 0 else ""
    waits = "\n" + OP_WAIT if run.header.mode == "measured" else ""
    return left_out + (
        f"{many(figures['steps'], 'step')}, {figures['iteration_s_mean']:.4g}{margin} s a"
        f" step{meaning}, {figures['tokens_per_s']:,.0f} tokens/s{waits}"
    )


def crowded_note(header: RunHeader, cores: int) -> str:
    """That local workers shared cores, so that steps do not test the prediction; "" if not."""
    workers = header.plan.options.pp * header.plan.options.ranks
    if header.device != "cpu" or header.paced or workers <= cores:
        return ""
    return (
        f"note: {workers} workers shared {many(cores, 'core')}: steps take longer than the plan"
        " predicts; own times of ops are CPU time and can be compared, --paced keeps to the plan's"
    )


def print_run(run: Run) -> None:
    """A row a step, what each stage held, where simulated time goes, what changed meanwhile."""
    console.print_table(run_columns(run), run_rows(run), run_title(run), run_caption(run))
    if run.steps:
        console.emit()
        options = run.header.plan.options
        remade = run.header.recompute != "none"
        print_peaks(run.peaks, limit_text(options), remade, options.memory_gib)
        print_traffic(run.traffic)
    if run.trials is not None:
        console.emit()
        console.print_table(CAUSE_COLUMNS, cause_rows(run.trials), causes_title(run))
        if run.trials.without_s:
            title = "What noise costs, waits included"
            console.emit()
            told = NOISE_CAPTION + (CHANGED_CAPTION if CORRECTION in run.trials.without_s else "")
            console.print_table(NOISE_COLUMNS, noise_rows(run.trials), title, told)
    print_story(run)


CAUSES = {
    "compute": "own work as planned",
    "stage_wait": "waits for other stages",
    "stage_skew": "waits since stages are unequal",
    "link_wait": "waits for a message on its way",
    "group_wait": "waits for members of its groups",
    "dp_bubble": "waits for the latest lane",
    "grad_sync": "gradient sync",
}
"""What a rank's time goes to besides noise, in words."""

CAUSE_COLUMNS = ("cause", "s a step", "share")
NOISE_COLUMNS = ("source", "T without it", "it costs s", "+- 95%", "of T")
NOISE_CAPTION = (
    "T without it: the same trials, all other draws as they were. Costs need not add up: where"
    " several sources hold up the same step, none of them alone does."
)


CHANGED = "what changed meanwhile"
CHANGED_CAPTION = f" Below 0: {CHANGED} saved so much."


def causes_json(trials: Trials) -> list[dict[str, Any]]:
    """One object a cause: its seconds, and for a source of noise the same trials without it."""
    total_s = float(trials.iteration_s.mean())
    rows = []
    for name, lost_s in trials.lost_s.items():
        mean_s = float(lost_s.mean())
        row: dict[str, Any] = {"cause": name, "lost_s": mean_s, "share": mean_s / total_s}
        if name in trials.without_s:
            cost_s = trials.iteration_s - trials.without_s[name]
            row |= {
                "without_s_mean": float(trials.without_s[name].mean()),
                "cost_s_mean": float(cost_s.mean()),
                "cost_s_ci95": confidence_95(cost_s),
                "cost_share": float(cost_s.mean()) / total_s,
            }
        rows.append(row)
    return rows


def cause_rows(trials: Trials) -> list[list[object]]:
    """A row a cause under `CAUSE_COLUMNS`, and their sum, the iteration."""
    rows: list[list[object]] = [
        [
            CAUSES.get(cause["cause"], f"lengthened by {cause['cause']}"),
            cause["lost_s"],
            _percent(cause["share"]),
        ]
        for cause in causes_json(trials)
        if cause["cause"] != CORRECTION
    ]
    return [*rows, ["iteration T", float(trials.iteration_s.mean()), _percent(1.0)]]


def noise_rows(trials: Trials) -> list[list[object]]:
    """A row a source under `NOISE_COLUMNS`, and one of all together."""
    total_s = float(trials.iteration_s.mean())
    every = {**trials.without_s, "all together": np.full_like(trials.iteration_s, trials.nominal_s)}
    rows: list[list[object]] = []
    for name, without_s in every.items():
        source = CHANGED if name == CORRECTION else name
        cost_s = trials.iteration_s - without_s
        mean_s = float(cost_s.mean())
        rows.append(
            [
                source,
                float(without_s.mean()),
                mean_s,
                confidence_95(cost_s),
                _percent(mean_s / total_s),
            ]
        )
    return rows


def _percent(share: float) -> str:
    return f"{round(share, 3) + 0.0:.1%}"


def causes_title(run: Run) -> str:
    """What was drawn, and how often."""
    header = run.header
    if header.noise == "none":
        return "Where a step's time goes, mean over ranks, without noise"
    return (
        f"Where a step's time goes, mean over ranks and {many(header.trials, 'trial')},"
        f" seed {header.seed},"
        f"\nnoise {header.noise.replace(',', ', ')}"
    )
