"""CPU seconds of this process, warm, and those of a known load beside them.

The machine is shared: a run during which sorting a million floats takes longer than usual is a
busy one, and its other times are too high as well.
"""

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

Result = TypeVar("Result")


def least_cpu_s(work: Callable[[], Result], repeats: int) -> tuple[Result, float]:
    """Result and CPU seconds of the fastest of some repeats, after one that warms up."""
    work()
    best = float("inf")
    for _ in range(repeats):
        began_s = time.process_time()
        result = work()
        best = min(best, time.process_time() - began_s)
    return result, best


def reference_s() -> float:
    """CPU seconds to sort a million random floats with numpy."""
    values = np.random.default_rng(0).random(1_000_000)
    return least_cpu_s(lambda: np.sort(values), 3)[1]
