"""Op orders of the pipeline schedules, each a short function; any number of microbatches."""

from collections.abc import Callable

from hydraplan.model import Op, Schedule


def one_f_one_b(num_stages: int, num_microbatches: int) -> Schedule:
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


SCHEDULES: dict[str, Callable[[int, int], Schedule]] = {"1f1b": one_f_one_b}
"""Every schedule by the name that `--pipeline` takes."""
