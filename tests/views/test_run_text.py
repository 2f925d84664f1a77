import math

import numpy as np
import pytest

from hydraplan.views.run_text import confidence_95


def test_the_interval_of_three_values_uses_students_t():
    # standard deviation 1, t = 4.303 at 2 degrees of freedom
    assert confidence_95(np.array([1.0, 2.0, 3.0])) == pytest.approx(4.303 / math.sqrt(3))


def test_many_values_use_the_normal_quantile():
    values = np.tile([0.0, 2.0], 50)
    assert confidence_95(values) == pytest.approx(1.96 * values.std(ddof=1) / 10)


def test_one_value_has_no_interval():
    assert math.isnan(confidence_95(np.array([1.0])))
