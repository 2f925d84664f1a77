import numpy as np
import pytest

from hydraplan.metrics import FIGURES, balance, mean_figures, peak_live_tokens
from hydraplan.model import Op
from hydraplan.planner.pipeline.schedules import one_f_one_b


def test_balance_figures_of_a_worked_example() -> None:
    load = np.array([[4.0, 2.0], [2.0, 2.0]])  # 2 lanes, 2 microbatches
    found = balance(load, 2.0)
    assert found["slot_imbalance"] == pytest.approx(4 / 2.5)
    assert found["rank_imbalance"] == pytest.approx(6 / 5)
    assert found["microbatch_spread"] == pytest.approx(4 / 2)
    assert found["target_error"] == pytest.approx((2 / 4) / 2)
    assert balance(load, float("nan"))["target_error"] == pytest.approx(0.75 * 4 / 4 / 2.5)


def test_live_tokens_peak_where_the_most_forwards_wait_for_their_backward() -> None:
    rows = np.array([[10, 20, 30, 40], [1, 1, 1, 1]])
    # the first stage of two holds two microbatches: 30 + 40 at the end
    assert peak_live_tokens(one_f_one_b(2, 4), rows) == 70
    assert peak_live_tokens(one_f_one_b(1, 4), rows) == 40


def test_an_input_gradient_alone_frees_half() -> None:
    ops = ((Op("F", 0), Op("B", 0), Op("F", 1), Op("W", 0), Op("B", 1), Op("W", 1)),)
    assert peak_live_tokens(ops, np.array([[100, 100]])) == 150


def test_a_plans_figures_are_means_but_sizes_that_must_fit_are_maxima() -> None:
    one, two = dict.fromkeys(FIGURES, 1.0), dict.fromkeys(FIGURES, 3.0)
    found = mean_figures([one, two])
    largest = {"max_tokens_per_rank", "peak_live_tokens", "num_groups"}
    assert {name for name in FIGURES if found[name] == 3.0} == largest
    assert {name for name in FIGURES if found[name] == 2.0} == set(FIGURES) - largest
