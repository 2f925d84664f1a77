"""Noise scenarios on which op orders are compared: the same draws for all, by `noise.draw`.

Three kinds: the batch as planned, `JITTERS` runs with jitter on every op, and stragglers, each
stage in turn with a rank that is slow for the whole iteration. An order's score is a mean: half
the time as planned, a quarter each the means of the other two. All run side by side as lanes of one
call. More lanes than `MOST_LANES` are first joined, so that a score costs the same on any pool.

Equal thirds cost 1 to 2% more without noise on our benchmark's batches and save 1% under
stragglers; with two thirds as planned ZB-H1 is faster under stragglers.

Source: ours.
"""

from collections.abc import Callable

import numpy as np

from hydraplan.model import FloatArray, Schedule
from hydraplan.planner.pipeline.noise import Draws, Factors, Noise, Shape, draw, shape_of
from hydraplan.planner.pipeline.noisy_run import trial_s
from hydraplan.planner.pipeline.one_lane import few_lanes
from hydraplan.planner.pipeline.spells import NONE
from hydraplan.slots import SlotTimes

JITTER, STRAGGLER = 0.3, 1.4
"""How strong the noise is; as `--noise` takes them."""
JITTERS, STRAGGLERS = 8, 8
"""Runs with jitter; runs with a straggler, at least, and as often on every stage."""
MOST_LANES = 8


def factors(shape: Shape) -> Factors:
    """Factors on all ops, (3, stages, chunks, microbatches, scenarios * lanes), always the same.

    Scenario 0 is as planned, then come those with jitter, then the stragglers.
    """
    stages, chunks, count, lanes, _ = shape
    jitter = draw(Noise(jitter=JITTER), shape, 1.0, range(JITTERS), 0).op["jitter"]
    slow = np.ones((3, stages, chunks, count, num_stragglers(stages), lanes), np.float32)
    for i in range(num_stragglers(stages)):
        slow[:, i % stages, :, :, i, i % lanes] = STRAGGLER
    flat = slow.reshape(3, stages, chunks, count, -1)
    return np.concatenate([np.ones_like(flat[..., :lanes]), jitter, flat], axis=-1)


def num_stragglers(num_stages: int) -> int:
    """Runs with a straggler."""
    return -(-STRAGGLERS // num_stages) * num_stages


def weights(num_stages: int) -> FloatArray:
    """Weight of every scenario in a score; they add up to 1."""
    slow = num_stragglers(num_stages)
    return np.repeat([1 / 2, 1 / 4 / JITTERS, 1 / 4 / slow], [1, JITTERS, slow])


def scorer(times: SlotTimes) -> Callable[[Schedule], float]:
    """What gives the score of an op order on these slots, seconds; lower is better.

    Without noise the run is that of all lanes.
    """
    few = few_lanes(times, MOST_LANES)
    shape = shape_of(few)
    weight = weights(shape.stages)
    sync = np.ones((shape.stages, len(weight)))
    draws = Draws(shape, len(weight), {"jitter": factors(shape)}, None, sync, NONE)
    calm = Draws(shape_of(times), 1, {}, None, sync[:, :1], NONE)

    def score_s(schedule: Schedule) -> float:
        taken_s = trial_s(few, schedule, draws)
        if few is not times:
            taken_s[:1] = trial_s(times, schedule, calm)
        return float(weight @ taken_s)

    return score_s
