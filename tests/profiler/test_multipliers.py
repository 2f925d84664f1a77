"""Multipliers of terms from seconds of ops: what is found, what cannot be told, what is chosen."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.profiler.multipliers import fewest, held_out_error, joined, learn, times

GROUPS = {"a": [0], "b": [1], "c": [2]}


def drawn(count=60, seed=0):
    """Seconds of three terms in ops, of unlike shares."""
    return np.random.default_rng(seed).lognormal(0, 1, (3, count))


@given(st.lists(st.floats(0.2, 5), min_size=3, max_size=3), st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_multipliers_of_terms_that_ops_tell_apart_are_found_whatever_they_are(wanted, seed):
    term_s = drawn(seed=seed)
    found = learn(term_s, np.array(wanted) @ term_s, np.zeros(60, np.int64), GROUPS)
    assert times(found, 3) == pytest.approx(wanted, rel=0.02)


@given(st.floats(0.01, 100))
@settings(deadline=None, max_examples=20)
def test_a_machine_of_another_speed_is_one_multiplier(factor):
    term_s = drawn()
    taken_s = factor * term_s.sum(axis=0)
    one = learn(term_s, taken_s, np.zeros(60, np.int64), {"all": [0, 1, 2]})
    assert one.log_multiplier == pytest.approx(np.log(factor), abs=1e-6)
    assert np.abs(one.residual).max() < 1e-6


def test_a_few_disturbed_ops_do_not_move_it():
    term_s = drawn()
    taken_s = np.array([2.0, 1.0, 1.0]) @ term_s
    taken_s[::7] *= 8
    found = learn(term_s, taken_s, np.zeros(60, np.int64), GROUPS)
    assert times(found, 3) == pytest.approx([2, 1, 1], rel=0.03)


def test_terms_that_are_alike_in_all_ops_are_one_set_and_keep_their_ratio():
    rows = drawn()[0]
    term_s = np.stack([rows, 3 * rows, drawn(seed=5)[0]])
    assert list(joined(term_s, GROUPS)) == ["a+b", "c"]
    found = learn(term_s, np.array([2, 2, 1.0]) @ term_s, np.zeros(60, np.int64), GROUPS)
    assert times(found, 3) == pytest.approx([2, 2, 1], rel=0.02)
    alike = np.outer([1.0, 2.0, 3.0], np.full(60, 0.5))
    assert list(joined(alike, GROUPS)) == ["a+b+c"]


def test_a_term_without_time_takes_as_many_times_as_long_as_the_others():
    term_s = drawn()
    term_s[2] = 0
    found = learn(term_s, 2 * term_s.sum(axis=0), np.zeros(60, np.int64), GROUPS)
    assert found.names == ("a", "b")
    assert times(found, 3) == pytest.approx([2, 2, 2], rel=1e-3)


def test_what_ops_hardly_tell_stays_near_the_level_and_says_that_it_is_not_sure():
    """A thousandth of the time is term c, of which the ops say nothing beside their noise."""
    rng, term_s = np.random.default_rng(1), drawn()
    term_s[2] = 1e-3 * term_s[0] * rng.uniform(0.5, 2, 60)
    taken_s = np.array([1.5, 1.5, 9.0]) @ term_s * rng.lognormal(0, 0.03, 60)
    found = learn(term_s, taken_s, np.zeros(60, np.int64), GROUPS)
    error = np.sqrt(np.diag(found.covariance))
    assert 0.9 < times(found, 3)[2] < 2.6
    assert error[2] > 0.25
    assert error[:2].max() < 0.05


def test_batches_that_ran_on_a_faster_machine_do_not_bend_terms():
    """Batch 1 is nearly all of term b, and its step was 10% slower than that of batch 0."""
    rng = np.random.default_rng(2)
    term_s = np.stack([rng.lognormal(0, 1, 80), rng.lognormal(0, 1, 80)])
    batch = np.repeat([0, 1], 40)
    term_s[1, :40] *= 0.3
    term_s[0, 40:] *= 0.3
    taken_s = term_s.sum(axis=0) * np.where(batch == 1, 1.1, 1.0)
    found = learn(term_s, taken_s, batch, {"a": [0], "b": [1]})
    ratio = np.exp(found.log_multiplier[1] - found.log_multiplier[0])
    assert abs(ratio - 1) < 0.03


def test_the_fewest_sets_that_predict_held_out_ops_as_well_are_taken():
    rng, term_s = np.random.default_rng(3), drawn(120)
    microbatch, batch = np.arange(120) // 6, np.zeros(120, np.int64)
    ladder = [{"all": [0, 1, 2]}, {"ab": [0, 1], "c": [2]}, GROUPS]
    for wanted, place in (([2, 2, 2], 0), ([2, 2, 1], 1), ([2, 0.5, 1], 2)):
        taken_s = np.array(wanted, float) @ term_s * rng.lognormal(0, 0.05, 120)
        errors = [held_out_error(term_s, taken_s, batch, microbatch, g) for g in ladder]
        assert fewest(errors) == place, [float(e.mean()) for e in errors]
        assert errors[place].shape == (20,)
        assert errors[place].mean() == pytest.approx(0.04, abs=0.015)  # 0.8 of the deviation


def test_two_microbatches_are_enough_to_hold_one_out():
    term_s, half = drawn(), np.repeat([0, 1], 30)
    errors = held_out_error(term_s, term_s.sum(axis=0), np.zeros(60, np.int64), half, GROUPS)
    assert errors == pytest.approx([0, 0], abs=1e-3)
