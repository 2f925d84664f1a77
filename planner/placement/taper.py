"""Tapered microbatches: light ones first and last, so that the pipeline fills and drains cheaply.

With equal microbatches 1F1B leaves (P - 1) / (M + P - 1) of the time idle, however even the slots
are: the last stage waits until the first microbatch has come through, the first until the last
one has come back. Both waits are as long as those microbatches are. So the first ones are made
light, and grow no faster than the last stage, busy with F and B of what it has, stays fed through
P stages; the last ones shrink no faster than the first stage stays fed by what comes back:

    share of microbatch i = min(1, first * up^i, last * down^(M - 1 - i)), the largest made 1.

Keeping every stage busy asks for up = 1 + B / (F P) and down = 1 + F / (B P), F and B (weight
gradients included) being a stage's seconds. Where one stage costs more than the others, these
have time to spare and a long, slow decline pays; where all cost the same, only the ends taper. So
several growths around these are tried, each with several least shares, on one lane of the schedule
itself, and the fastest is the shape. What it costs: a heavier heaviest microbatch, and slots that
are uneven on purpose, though the lanes of one microbatch still carry the same.

Source: our own derivation.
"""

from collections.abc import Callable

import numpy as np

from hydraplan.model import FloatArray

ENDS = (1.0, 2.0, 4.0)
"""Shares of the first and of the last microbatch that are tried, over the least one."""
UPS, DOWNS = (1.0, 1.4, 2.0), (0.25, 0.5, 1.0, 1.4, 2.0, 3.0, 4.5)
"""Growths that are tried, over what keeps every stage busy."""


def shapes(
    num_microbatches: int, num_stages: int, least: float, forward_share: float
) -> FloatArray:
    """Shares of the heaviest load that microbatches get, one shape a row, even ones first.

    Args:
        least: Least share of the first and the last microbatch, in (0, 1].
        forward_share: F over F + B + W of all stages, in (0, 1).
    """
    ratio = (1 - forward_share) / forward_share
    ends = [np.log(min(1.0, least * end)) for end in ENDS]
    ups = [np.log1p(factor * ratio / num_stages) for factor in UPS]
    downs = [np.log1p(factor / ratio / num_stages) for factor in DOWNS]
    first, last, up, down = (
        axis.reshape(-1, 1) for axis in np.meshgrid(ends, ends, ups, downs, indexing="ij")
    )
    i = np.arange(num_microbatches)
    log_share = np.minimum(0.0, np.minimum(first + up * i, last + down * i[::-1]))
    log_share -= log_share.max(axis=1, keepdims=True)
    return np.concatenate([np.ones((1, num_microbatches)), np.exp(log_share)])


def best_shape(
    tried: FloatArray, work_s: float, fixed_s: float, run_s: Callable[[FloatArray], FloatArray]
) -> FloatArray:
    """The shape that takes least time.

    Args:
        tried: Shapes, one a row.
        work_s: Seconds of all microbatches of a rank together, fixed cost excluded.
        fixed_s: What a microbatch costs besides.
        run_s: Seconds of runs with these loads, one a row.
    """
    load_s = tried * (work_s / tried.sum(axis=1, keepdims=True)) + fixed_s
    best: FloatArray = tried[run_s(load_s).argmin()]
    return best
