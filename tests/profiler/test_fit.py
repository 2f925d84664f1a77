from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.costfit import RateFit, causal_waste
from hydraplan.errors import InputError
from hydraplan.files.profilefile import Measurement
from hydraplan.profiler.fit import (
    MOST_SPILL,
    AttentionWork,
    attention_call_s,
    fit_attention,
    fit_component,
    fit_link,
    fit_rate,
    least_log_error,
    link_s,
    rate_s,
)

LENGTHS = 2.0 ** np.arange(4, 15)


def attention_calls() -> AttentionWork:
    """Squares and rectangles twice as wide, and some packed squares of a call each."""
    causal = np.repeat([True, False], len(LENGTHS))
    rows = np.tile(LENGTHS, 2)
    pairs = np.where(causal, rows * (rows + 1) / 2, 2 * rows * rows)
    calls = np.where(np.arange(len(rows)) % 5 == 0, 4.0, 1.0)
    return AttentionWork(4 * pairs * calls * 8 * 64, rows, causal, calls)


def test_attention_fit_recovers_the_coefficients_the_times_were_made_of() -> None:
    truth = RateFit(
        call_s=5e-5, flops_per_s=3e10, half_rows=40.0, spill=0.3, causal_block_rows=512.0
    )
    work = attention_calls()
    found = fit_attention(work, attention_call_s(truth, work))
    assert found.causal_block_rows == 512
    assert found.spill == pytest.approx(0.3, rel=1e-5)
    assert found.call_s == pytest.approx(5e-5, rel=1e-6)
    assert found.flops_per_s == pytest.approx(3e10, rel=1e-6)
    assert found.half_rows == pytest.approx(40.0, rel=1e-5)
    assert found.relative_error < 1e-9


def test_attention_fit_keeps_to_the_truth_when_a_fifth_of_the_points_is_disturbed() -> None:
    truth = RateFit(call_s=5e-5, flops_per_s=3e10, half_rows=40.0, causal_block_rows=512.0)
    work = attention_calls()
    measured = attention_call_s(truth, work)
    measured[::5] *= 10
    found = fit_attention(work, measured)
    assert found.flops_per_s == pytest.approx(3e10, rel=0.01)
    assert found.call_s == pytest.approx(5e-5, rel=0.01)
    assert found.causal_block_rows == 512


def test_half_rows_stay_below_the_largest_call_when_the_data_cannot_tell() -> None:
    rows = np.array([16.0, 32.0, 64.0, 128.0])
    flops = 1e4 * rows**2
    work = AttentionWork(flops, rows, np.zeros(4, bool), np.ones(4))
    found = fit_attention(work, 1e-6 * rows)
    assert found.half_rows <= 128


def test_causal_waste_is_two_within_a_block_and_fades_beyond_it() -> None:
    rows = np.array([0.0, 1.0, 63.0, 64.0, 6400.0])
    np.testing.assert_allclose(
        causal_waste(rows, 64.0), [1.0, 1.0, 126 / 64, 128 / 65, 6464 / 6401]
    )
    assert (causal_waste(rows, 0.0) == 1.0).all()


def test_rate_fit_recovers_call_and_rate() -> None:
    flops = 1e6 * 4.0 ** np.arange(8)
    found = fit_rate(flops, 2e-4 + flops / 4e10)
    assert (found.call_s, found.flops_per_s) == pytest.approx((2e-4, 4e10), rel=1e-6)
    assert found.half_rows == 0


def test_link_fit_recovers_latency_and_bandwidth_despite_one_stall() -> None:
    sent = 256 * 4.0 ** np.arange(9)
    measured = 2e-4 + sent / 1e9
    measured[1] = 4e-3
    found = fit_link(sent, measured)
    assert (found.latency_s, found.bytes_per_s) == pytest.approx((2e-4, 1e9), rel=1e-3)


def test_a_latency_that_would_be_negative_is_zero() -> None:
    sent = np.array([1e3, 1e4, 1e5, 1e6])
    found = fit_link(sent, sent**1.3 / 1e9)
    assert found.latency_s == 0
    assert found.bytes_per_s > 0


def test_too_fast_counts_as_much_as_too_slow() -> None:
    ones = np.ones(2)
    coefficient = least_log_error([ones], np.array([1.0, 100.0]))
    error = np.abs(np.log(coefficient / np.array([1.0, 100.0])))
    assert error.sum() == pytest.approx(np.log(100.0))


@settings(deadline=None, max_examples=15)
@given(st.lists(st.floats(1e-6, 1e3), min_size=4, max_size=12))
def test_no_coefficient_is_ever_negative_and_the_rate_is_finite(times: list[float]) -> None:
    measured = np.array(times)
    rows = 2.0 ** np.arange(4, 4 + len(times))
    causal = np.arange(len(times)) % 2 == 0
    found = fit_attention(AttentionWork(rows**2, rows, causal, np.ones(len(times))), measured)
    assert found.call_s >= 0
    assert found.half_rows >= 0
    assert 0 <= found.spill <= MOST_SPILL
    assert 0 < found.flops_per_s < np.inf
    link = fit_link(rows, measured)
    assert link.latency_s >= 0
    assert 0 < link.bytes_per_s < np.inf


def test_fewer_points_than_coefficients_are_refused() -> None:
    with pytest.raises(InputError, match="1 measurements cannot fit 2 coefficients"):
        fit_rate(np.array([1e6]), np.array([1e-3]))


@pytest.mark.parametrize("time_s", [0.0, -1.0, float("nan")])
def test_a_time_that_is_not_positive_is_refused(time_s: float) -> None:
    with pytest.raises(InputError, match="not positive"):
        fit_rate(np.array([1e6, 2e6]), np.array([1e-3, time_s]))


@pytest.mark.parametrize(
    "measured",
    [
        [1e-3] * 5,
        [1.001e-3, 1e-3, 1e-3, 1e-3, 0.99e-3],
        [2e-3, 1.5e-3, 1.2e-3, 1e-3, 0.9e-3],
        [1e-3, 1e-3, 0.5e-3, 1e-3, 1e-3],
    ],
)
def test_times_that_do_not_grow_are_a_fixed_time(measured: list[float]) -> None:
    measured_s, sizes = np.array(measured), 4.0 ** np.arange(5, 10)
    work = AttentionWork(sizes, np.sqrt(sizes), np.ones(5, bool), np.ones(5))
    link, rate, attention = (
        fit_link(sizes, measured_s),
        fit_rate(sizes, measured_s),
        fit_attention(work, measured_s),
    )
    middle = float(np.median(measured_s))  # of all constants the least sum of |log|
    assert link.latency_s == pytest.approx(middle, rel=1e-3)
    assert rate.call_s == pytest.approx(middle, rel=1e-3)
    assert attention.call_s == pytest.approx(middle, rel=1e-3)
    for fitted in (link_s(link, sizes), rate_s(rate, sizes), attention_call_s(attention, work)):
        assert fitted == pytest.approx(np.full(5, middle), rel=1e-2)
        assert (np.diff(fitted) >= 0).all()


@pytest.mark.parametrize("wrong", [0.0, -1.0, np.nan, np.inf])
@pytest.mark.parametrize("component", ["memory", "p2p"])
def test_times_of_a_clock_that_stands_are_refused_with_the_time(
    component: Any, wrong: float
) -> None:
    rows = [Measurement(component, "send", bytes=float(8**i), p10_s=1e-3 * 8**i) for i in range(4)]
    rows[2] = rows[2]._replace(p10_s=wrong)
    name = {"memory": "memory_bytes_per_s", "p2p": "node_p2p"}[component]
    with pytest.raises(InputError, match=f"a measured time is {wrong:g} s, not positive"):
        fit_component(name, rows)
