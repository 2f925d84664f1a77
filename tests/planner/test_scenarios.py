import numpy as np
import pytest

from hydraplan.planner.pipeline.noise import Noise, Shape, draw
from hydraplan.planner.pipeline.scenarios import (
    JITTERS,
    MOST_LANES,
    STRAGGLER,
    factors,
    num_stragglers,
    scorer,
    weights,
)
from hydraplan.planner.pipeline.schedules import zb_h1
from tests.planner.lanes import iteration_s, lane_times, random_lanes


@pytest.mark.parametrize("stages", [1, 3, 8, 12])
def test_every_stage_straggles_as_often_and_weights_add_up_to_one(stages: int) -> None:
    weight = weights(stages)
    slow = factors(Shape(stages, 2, 3, 2))[..., 2 * (1 + JITTERS) :]
    is_slow = slow.reshape(3, stages, 2, 3, -1, 2) == np.float32(STRAGGLER)
    assert (is_slow.sum(axis=(0, 2, 3, 4, 5)) == 18 * num_stragglers(stages) // stages).all()
    assert (is_slow.any(axis=(0, 1, 2, 3)).sum(axis=1) == 1).all()  # one lane a scenario
    assert len(weight) == 1 + JITTERS + num_stragglers(stages)
    assert weight.sum() == pytest.approx(1)
    assert weight[0] == 0.5
    assert weight[1 : 1 + JITTERS].sum() == pytest.approx(0.25)


def test_jitter_is_what_the_simulator_draws() -> None:
    shape = Shape(2, 1, 5, 3)
    drawn = draw(Noise(jitter=0.3), shape, 1.0, range(JITTERS), 0).op["jitter"]
    assert np.array_equal(factors(shape)[..., 3 : 3 * (1 + JITTERS)], drawn)
    assert (factors(shape)[..., :3] == 1).all()


def test_a_score_is_the_weighted_mean_of_runs_one_by_one() -> None:
    times = lane_times(np.random.default_rng(0).lognormal(0, 0.3, (3, 3, 5)))
    factor, schedule = factors(Shape(3, 1, 5, 1)), zb_h1(3, 5)
    runs_s = [
        iteration_s(lane_times(times.op_s[:, :, 0, 0] * factor[:, :, 0, :, i]), schedule)
        for i in range(factor.shape[-1])
    ]
    assert scorer(times)(schedule) == pytest.approx(weights(3) @ runs_s, rel=1e-12)


def test_the_run_as_planned_counts_all_lanes_however_many() -> None:
    many = random_lanes(7, 3, 2 * MOST_LANES + 1, 6)
    schedule = zb_h1(3, 6)
    score_s = scorer(many)(schedule)
    assert score_s > iteration_s(many, schedule)
    assert score_s == scorer(many)(schedule)
