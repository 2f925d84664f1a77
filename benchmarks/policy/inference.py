"""What a whole op order costs a policy: greedy, and sixteen samples beside.

    python benchmarks/policy/inference.py [--json FILE] [--readme]

Warm CPU milliseconds of one process, the median and the least of many repeats; goals are held
against the least, since others work on the machine. A row is one batch with a slow device.
`episode` is the loop that plays a batch already laid out, `with the batch` lays it out first, as a
planner has to. Choices are those that the network was asked for.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "planner"))

from stopwatch import reference_s  # noqa: E402
from tables import Cell, Table, reported  # noqa: E402

from hydraplan.planner.pipeline.memory import even_memory  # noqa: E402
from hydraplan.planner.policy.env import empty_env  # noqa: E402
from hydraplan.planner.policy.policy_file import load_policy  # noqa: E402
from hydraplan.planner.policy.rollout import (  # noqa: E402
    GREEDY,
    new_trace,
    play,
    rollouts,
    samples,
)
from hydraplan.planner.policy.world import Instance  # noqa: E402
from hydraplan.slots import SlotTimes  # noqa: E402

SIZES = ((4, 16), (8, 32), (8, 128), (16, 32), (16, 128))
GOALS = {(8, 32): 1.0, (16, 128): 8.0}
"""Milliseconds of a greedy episode."""
REPEATS = 200


def batch(stages: int, count: int) -> Instance:
    """Unequal stages, one slow device, messages, and room for P microbatches."""
    random = np.random.default_rng(0)
    op_s = np.ones((3, stages, 1, 1, count)) * random.uniform(0.9, 1.1, (stages, 1, 1, 1))
    slow = np.ones(stages)
    slow[stages // 2] = 1.3
    lane = SlotTimes(
        op_s, np.ones((1, count), np.int64), np.zeros((1, count), np.int64),
        np.full((1, count), 0.1), np.zeros(stages),
    )  # fmt: skip
    return Instance(lane, even_memory(stages, count), slow)


def cpu_ms(work: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median and least CPU milliseconds."""
    work()
    taken = []
    for _ in range(repeats):
        began_s = time.process_time()
        work()
        taken.append(1e3 * (time.process_time() - began_s))
    return float(np.median(taken)), min(taken)


def row(stages: int, count: int) -> Cell:
    """One size."""
    policy, case = load_policy(), batch(stages, count)
    env, seeds, none = empty_env([case]), np.array([GREEDY]), new_trace(0, 1)
    choices = play(policy.weights, env, seeds, none)
    repeats = max(20, REPEATS * 256 // (stages * count))
    median, least = cpu_ms(lambda: play(policy.weights, env, seeds, none), repeats)
    whole, least_whole = cpu_ms(lambda: rollouts(policy, [case], [GREEDY]), repeats)
    drawn, _ = cpu_ms(lambda: samples(policy, case, 16), max(5, repeats // 10))
    goal = GOALS.get((stages, count))
    return {
        "pp": stages, "M": count, "ops": 3 * stages * count, "choices": choices,
        "episode ms": median, "least": least, "with the batch ms": whole,
        "least with it": least_whole, "1 + 16 samples ms": drawn, "goal ms": goal,
        "met": None if goal is None else least_whole <= goal,
    }  # fmt: skip


def main() -> None:
    """Measure every size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--readme", action="store_true", help="put the table into the README")
    args = parser.parse_args()
    before = reference_s()
    rows = [row(*size) for size in SIZES]
    loads = [before, reference_s()]
    sort_ms = " and ".join(f"{1e3 * load:.1f}" for load in loads)
    title = f"Inference; sorting a million floats took {sort_ms} ms before and after"
    table = Table(title, list(rows[0]), 2, rows)
    result = {"times": "real CPU seconds", "reference_sort_s": loads, "rows": rows}
    reported(args.json, result, [table], args.readme, HERE / "README.md")


if __name__ == "__main__":
    main()
