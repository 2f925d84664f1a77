"""Op orders of the pipeline schedules, each a short function; any number of microbatches.

The table names those that need no costs. Orders made for given costs are in `planned`.
"""

from collections.abc import Callable
from typing import NamedTuple

from hydraplan.model import Op, Schedule
from hydraplan.route import RouteName


class Pipeline(NamedTuple):
    """A schedule as commands know it.

    `make(stages, microbatches, chunks)` gives the op order. `route`: the way through the chunks.
    `chunks`: how many a stage has, None for any number. `simulated_only`: no plan may ask for it.
    """

    make: Callable[[int, int, int], Schedule]
    route: RouteName = "loop"
    chunks: int | None = 1
    simulated_only: bool = False


def one_f_one_b(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """1F1B: stage s runs P - 1 - s forwards, then alternates, then drains the backwards.

    With fewer microbatches than stages the warm-up ends early, nothing else changes.
    Source: standard (PipeDream-flush).
    """
    stages = []
    for stage in range(num_stages):
        warm_up = min(num_stages - 1 - stage, num_microbatches)
        ops = [Op("F", m) for m in range(warm_up)]
        for m in range(warm_up, num_microbatches):
            ops += [Op("F", m), Op("BW", m - warm_up)]
        ops += [Op("BW", m) for m in range(num_microbatches - warm_up, num_microbatches)]
        stages.append(tuple(ops))
    return tuple(stages)


SCHEDULES: dict[str, Pipeline] = {"1f1b": Pipeline(one_f_one_b)}
"""Every schedule by the name that `--pipeline` takes."""
