import math
from types import SimpleNamespace

import numpy as np
import pytest

from hydraplan.files.runfile import Run
from hydraplan.views.run_text import confidence_95, run_caption, run_rows


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
    run = Run(None, SimpleNamespace(mode="simulated", device="none"), steps)
    numbers = [row[0] for row in run_rows(run)]
    if hidden:
        assert numbers == [*range(50), *range(count - 50, count)]
        assert run_caption(run).startswith(f"{hidden} steps in the middle are not shown\n")
    else:
        assert numbers == list(range(count))
    assert f"{count} steps, 1 +- 0 s a step" in run_caption(run)


def test_a_run_without_a_finished_step_says_so():
    assert run_caption(Run(None, SimpleNamespace(mode="simulated"), [])) == "no finished step"
