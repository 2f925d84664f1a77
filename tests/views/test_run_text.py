import math
from types import SimpleNamespace

import numpy as np
import pytest

from hydraplan.files.memoryfile import Peaks
from hydraplan.files.runfile import Run
from hydraplan.files.trialsfile import Trials
from hydraplan.views.run_text import (
    cause_rows,
    causes_json,
    confidence_95,
    noise_rows,
    run_caption,
    run_rows,
)

NOTHING = Peaks(None, np.zeros((0, 1, 1)))


def test_the_interval_of_three_values_uses_students_t():
    # standard deviation 1, t = 4.303 at 2 degrees of freedom
    assert confidence_95(np.array([1.0, 2.0, 3.0])) == pytest.approx(4.303 / math.sqrt(3))


def test_many_values_use_the_normal_quantile():
    values = np.tile([0.0, 2.0], 50)
    assert confidence_95(values) == pytest.approx(1.96 * values.std(ddof=1) / 10)


def test_one_value_has_no_interval():
    assert math.isnan(confidence_95(np.array([1.0])))


@pytest.mark.parametrize(("count", "hidden"), [(100, 0), (101, 1), (1000, 900)])
def test_of_a_long_run_the_first_and_last_fifty_steps_are_shown_and_the_caption_says_so(
    count, hidden
):
    names = ("batch", "tokens", "busy", "pipeline_bubble", "dp_bubble", "group_wait")
    steps = [
        {"step": i, "loss": None, "iteration_s": 1.0} | dict.fromkeys(names, 0)
        for i in range(count)
    ]
    run = Run(None, SimpleNamespace(mode="simulated", device="none"), steps, NOTHING)
    numbers = [row[0] for row in run_rows(run)]
    if hidden:
        assert numbers == [*range(50), *range(count - 50, count)]
        assert run_caption(run).startswith(f"{hidden} steps in the middle are not shown\n")
    else:
        assert numbers == list(range(count))
    assert f"{count} steps, 1 +- 0 s a step" in run_caption(run)


def test_a_run_without_a_finished_step_says_so():
    assert (
        run_caption(Run(None, SimpleNamespace(mode="simulated"), [], NOTHING)) == "no finished step"
    )


TRIALS = Trials(
    np.array([10.0, 14.0]),
    8.0,
    {"compute": np.array([8.0, 8.0]), "jitter": np.array([2.0, 6.0])},
    {"jitter": np.array([9.0, 9.0])},
)


def test_causes_add_up_to_the_iteration():
    assert cause_rows(TRIALS) == [
        ["own work as planned", 8.0, "66.7%"],
        ["lengthened by jitter", 4.0, "33.3%"],
        ["iteration T", 12.0, "100.0%"],
    ]


def test_what_a_source_costs_is_told_from_the_same_trials_without_it():
    # costs of 1 and 5 s, of 2 and 6 s: deviation sqrt(8), t = 12.706 at 1 degree of freedom
    interval = pytest.approx(12.706 * 2)
    assert noise_rows(TRIALS) == [
        ["jitter", 9.0, 3.0, interval, "25.0%"],
        ["all together", 8.0, 4.0, interval, "33.3%"],
    ]
    assert causes_json(TRIALS)[1] == {
        "cause": "jitter",
        "lost_s": 4.0,
        "share": pytest.approx(1 / 3),
        "without_s_mean": 9.0,
        "cost_s_mean": 3.0,
        "cost_s_ci95": interval,
        "cost_share": 0.25,
    }


def test_a_share_that_rounds_to_nothing_has_no_sign():
    tiny = TRIALS._replace(lost_s={"jitter": np.array([-1e-5, 0.0])})
    assert cause_rows(tiny)[0][2] == "0.0%"
