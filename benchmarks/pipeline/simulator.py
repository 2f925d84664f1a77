"""How fast the simulator is: without noise, with it, and on many trials of a small pipeline.

    python benchmarks/pipeline/simulator.py [--json FILE] [--readme]

An op is one pass (F, B, W, or BW in one go) of one microbatch on one lane of one stage (and chunk).
Times are warm CPU seconds of one process, the least of some repeats; reading the op order and
keeping the start, end and own work of every op are included. Slots are drawn: op times uniform, and
in each microbatch lanes cut into groups of equal degree, half of the microbatches without groups.
A run with noise draws its trial anew each time.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "planner"))

from stopwatch import least_cpu_s, reference_s  # noqa: E402
from tables import Cell, Table, progress, reported  # noqa: E402

from hydraplan.model import Schedule  # noqa: E402
from hydraplan.planner.pipeline.noise import Noise, draw, parse_noise, shape_of  # noqa: E402
from hydraplan.planner.pipeline.noisy_run import noisy_run, trial_s  # noqa: E402
from hydraplan.planner.pipeline.schedules import SCHEDULES  # noqa: E402
from hydraplan.planner.pipeline.simulator import simulate  # noqa: E402
from hydraplan.route import route  # noqa: E402
from hydraplan.slots import SlotTimes  # noqa: E402

SHAPES = (
    ("1f1b", 8, 256, 64), ("zb-h1", 8, 256, 64), ("interleaved", 8, 256, 64), ("zb-v", 8, 256, 64),
    ("1f1b", 4, 128, 64), ("1f1b", 8, 32, 64), ("1f1b", 8, 352, 64), ("1f1b", 8, 1, 64),
)  # fmt: skip
"""Schedule, stages, lanes, microbatches; 2,048 devices four times, then 512, 256, 2,816, and 8."""

EVERYTHING = (
    "jitter=0.3,straggler=1.4,moving=1.4,transient=2,heavytail=0.3,link=0.2,preempt=0.01,window=0.5"
)
NOISES = (*EVERYTHING.split(","), "jitter=0.3,straggler=1.4", EVERYTHING)
SMALL = (("1f1b", 4, 1, 16), ("zb-h1", 8, 1, 32), ("1f1b", 4, 8, 16))
TRIALS = 1_000
GOAL, NOISY_GOAL, STEP_MS = 50, 10, 20
"""Million ops a CPU second without noise, with noise; a step of 2,048 devices in milliseconds."""
MANY = 1_000
"""Lanes from which on an op order is not what takes the time; goals are asked there."""


def drawn_slots(stages: int, chunks: int, lanes: int, microbatches: int, name: str) -> SlotTimes:
    """Slots as the docstring has them."""
    rng = np.random.default_rng(0)
    degrees = [1, 1, 1, 1, *(d for d in (2, 4, 8, 32) if d <= lanes)]
    degree = rng.choice(degrees, microbatches)
    times = rng.uniform(0.5, 1.5, (3, stages, chunks, microbatches, lanes)) / chunks
    return SlotTimes(
        op_s=times.swapaxes(-1, -2),
        rows=np.ones((lanes, microbatches), np.int64),
        component=np.arange(lanes)[:, None] // degree * degree,
        boundary_s=np.full((lanes, microbatches), 0.01),
        grad_sync_s=np.full(stages, 0.5),
        route=route(SCHEDULES[name].route, stages, chunks),
    )


def case(name: str, stages: int, lanes: int, microbatches: int) -> tuple[SlotTimes, Schedule, int]:
    """Slots, an op order, and how many ops that is."""
    pipeline = SCHEDULES[name]
    chunks = pipeline.chunks or 2
    schedule = pipeline.make(stages, microbatches, chunks)
    slots = drawn_slots(stages, chunks, lanes, microbatches, name)
    return slots, schedule, lanes * sum(map(len, schedule))


def quiet(name: str, stages: int, lanes: int, microbatches: int) -> Cell:
    """One row: a run without noise."""
    slots, schedule, ops = case(name, stages, lanes, microbatches)
    seconds = least_cpu_s(lambda: simulate(slots, schedule), 20)[1]
    rate = ops / seconds / 1e6
    asked = stages * lanes >= MANY
    return {
        "schedule": name, "pp x R": f"{stages} x {lanes}", "M": microbatches, "ops": ops,
        "ms": 1e3 * seconds, "million ops/s": rate,
        "met": rate >= GOAL and 1e3 * seconds < STEP_MS if asked else None,
    }  # fmt: skip


def noisy(text: str) -> Cell:
    """One row: a trial of 1F1B on 2,048 devices, its draws included, and all that is told of it."""
    slots, schedule, ops = case("1f1b", 8, 256, 64)
    noise, shape = parse_noise(text), shape_of(slots, 8)
    nominal_s = noisy_run(slots, schedule, Noise(), trials=1).nominal_s

    def trial() -> None:
        trial_s(slots, schedule, draw(noise, shape, nominal_s, range(1), 0))

    draws_s = least_cpu_s(lambda: draw(noise, shape, nominal_s, range(1), 0), 30)[1]
    seconds = least_cpu_s(trial, 30)[1]
    told_s = least_cpu_s(lambda: noisy_run(slots, schedule, noise, trials=4, node_ranks=8), 3)[1]
    runs = 4 * (1 + sum(bool(noise.without(source).active) for source in noise.active)) + 1
    rate = ops / seconds / 1e6
    return {
        "noise": "all eight" if text == EVERYTHING else text, "draws ms": 1e3 * draws_s,
        "draws and run ms": 1e3 * seconds, "million ops/s": rate,
        "met": rate >= NOISY_GOAL,
        "causes and costs, ms a trial": 1e3 * told_s / 4,
        "runs a trial": runs / 4, "million ops/s of them": runs * ops / told_s / 1e6,
    }  # fmt: skip


def small(name: str, stages: int, lanes: int, microbatches: int) -> Cell:
    """One row: many trials of a pipeline that is small, in one call."""
    slots, schedule, ops = case(name, stages, lanes, microbatches)
    noise = parse_noise("jitter=0.3,straggler=1.4")
    shape, trials = shape_of(slots), range(TRIALS)
    draws, draws_s = least_cpu_s(lambda: draw(noise, shape, 50.0, trials, 0), 3)
    seconds = least_cpu_s(lambda: trial_s(slots, schedule, draws), 10)[1]
    told_s = least_cpu_s(lambda: noisy_run(slots, schedule, noise, trials=TRIALS), 3)[1]
    return {
        "schedule": name, "pp x R": f"{stages} x {lanes}", "M": microbatches, "trials": TRIALS,
        "draws ms": 1e3 * draws_s, "run ms": 1e3 * seconds,
        "million ops/s of the run": TRIALS * ops / seconds / 1e6,
        "causes and costs ms": 1e3 * told_s,
    }  # fmt: skip


def main() -> None:
    """Measure all three tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--readme", action="store_true", help="put the tables into the README")
    args = parser.parse_args()
    loads = [reference_s()]
    found: dict[str, list[Cell]] = {"without noise": [], "with noise": [], "small": []}
    for shape in SHAPES:
        found["without noise"].append(quiet(*shape))
        progress(f"{shape}: {found['without noise'][-1]['million ops/s']:.0f} million ops/s")
    for text in NOISES:
        found["with noise"].append(noisy(text))
        progress(f"{text}: {found['with noise'][-1]['million ops/s']:.0f} million ops/s")
    found["small"] = [small(*shape) for shape in SMALL]
    loads.append(reference_s())
    titles = (
        f"Without noise; goal {GOAL} million ops/s, and {STEP_MS} ms a step of 2,048 devices",
        f"With noise: 1F1B, pp 8 x R 256, M 64; goal {NOISY_GOAL} million ops/s, draws included",
        f"{TRIALS:,} trials in one call, jitter=0.3,straggler=1.4",
    )
    tables = [
        Table(title, list(rows[0]), digits=1).of(rows)
        for title, rows in zip(titles, found.values(), strict=True)
    ]
    sort_ms = " and ".join(f"{1e3 * load:.1f}" for load in loads)
    tables[0] = Table(
        f"{titles[0]}; sorting a million floats took {sort_ms} ms before and after",
        tables[0].columns, 1, tables[0].rows,
    )  # fmt: skip
    result = {"times": "real CPU seconds", "reference_sort_s": loads, **found}
    reported(args.json, result, tables, args.readme, HERE / "README.md")


if __name__ == "__main__":
    main()
