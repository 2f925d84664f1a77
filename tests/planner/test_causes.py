"""Causes of a run by hand; that they add up is tested with `noisy_run`."""

import numpy as np
import pytest

from hydraplan.planner.pipeline.noise import Noise
from hydraplan.planner.pipeline.noisy_run import noisy_run
from hydraplan.planner.pipeline.schedules import one_f_one_b
from tests.planner.lanes import lane_times


def test_what_unequal_stages_make_wait_stands_apart_from_filling_and_draining() -> None:
    work = np.array([[1.0] * 4, [2.0] * 4])
    slots = lane_times(np.array([work, work, 0 * work]))
    lost = noisy_run(slots, one_f_one_b(2, 4), Noise(), trials=1).lost_s
    # 18 s: stage 0 works 8, stage 1 works 16; alike they would be busy 12 of 15 s each
    found = [float(lost[name][0]) for name in ("compute", "stage_skew", "stage_wait")]
    assert found == pytest.approx([12.0, 4.0, 2.0])
    level = lane_times(np.full((3, 2, 4), 1.0))
    assert noisy_run(level, one_f_one_b(2, 4), Noise(), trials=1).lost_s["stage_skew"] == [0.0]
