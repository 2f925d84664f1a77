"""Who is named slow, since when, and who is not."""

import math
from dataclasses import fields

import numpy as np
import pytest

from hydraplan.errors import InputError
from hydraplan.planner.policy.estimates import NOMINAL, nominal, observe

SHAPES = [(1, 2), (1, 4), (2, 4), (4, 8)]


def steps(shape, count, sigma, seed, factor=lambda step: 1.0, rank=(0, 1)):
    """Estimates after every step; loads differ up to 5x, `rank` takes `factor(step)` as long."""
    rng = np.random.default_rng(seed)
    seen = nominal(*shape)
    for step in range(count):
        load_s = rng.uniform(1, 5, shape)
        busy_s = load_s * rng.lognormal(0, sigma, shape)
        busy_s[rank] *= factor(step)
        seen = observe(seen, busy_s, load_s)
        yield seen


def spell(factor):
    return lambda step: factor if 5 <= step < 15 else 1.0


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(5))
def test_a_straggler_is_found_within_two_steps_and_dropped_within_three(shape, seed):
    found = list(steps(shape, 20, 0.01, seed, spell(1.5)))
    named = [seen.slow for seen in found]
    assert named[:5] == [[]] * 5
    assert named[6:15] == [[(0, 1)]] * 9
    assert named[17:] == [[]] * 3
    assert found[6].since[0, 1] == 5
    assert found[6].changed[0, 1]
    assert not found[7].changed.any()


@pytest.mark.parametrize(("shape", "step"), [((1, 2), 5), ((1, 4), 3), ((2, 4), 1), ((4, 8), 1)])
def test_a_rank_that_is_slow_from_the_first_step_is_told_as_soon_as_noise_is_known(shape, step):
    found = list(steps(shape, 8, 0.01, 4, lambda step: 1.5))
    assert [seen.slow for seen in found] == [[]] * step + [[(0, 1)]] * (8 - step)
    assert [seen.since[0, 1] for seen in found[step:]] == [0] * (8 - step)


@pytest.mark.parametrize("shape", SHAPES[1:])
def test_the_factor_of_a_straggler_is_what_it_takes(shape):
    *_, seen = steps(shape, 14, 0.01, 3, spell(1.5))
    assert seen.factor[0, 1] == pytest.approx(1.5, rel=0.02)
    assert (np.delete(seen.factor, 1) == 1.0).all()


def test_of_two_ranks_only_the_difference_is_known():
    *_, seen = steps((1, 2), 14, 0.0, 0, spell(1.5))
    assert seen.slow == [(0, 1)]
    assert seen.factor[0] == pytest.approx([1.5**-0.5, 1.5**0.5])


@pytest.mark.parametrize("shape", SHAPES)
def test_noise_that_does_not_persist_names_nobody(shape):
    """sigma 0.2, 20 seeds of 50 steps: no rank is ever named, no factor leaves 1."""
    for seed in range(20):
        for seen in steps(shape, 50, 0.2, 1_000 + seed):
            assert seen.slow == []
            assert (seen.log_factor == 0).all()


def test_false_alarms_stay_rare_under_heavy_tails():
    """Pareto factors of finite variance, 32 ranks, 200 steps: fewer than 2 changes in 1,000."""
    rng, seen, changes = np.random.default_rng(7), nominal(4, 8), 0
    for _ in range(200):
        seen = observe(seen, 1 + 0.1 * rng.pareto(2.5, (4, 8)), np.ones((4, 8)))
        changes += int(seen.changed.sum())
    assert changes <= 12


def test_heavy_data_on_healthy_ranks_names_nobody():
    rng, load_s = np.random.default_rng(2), np.array([[1.0, 1.0, 1.0, 5.0]])
    planned = blind = nominal(1, 4)
    for step in range(12):
        busy_s = (load_s if step >= 6 else 1.0) * rng.lognormal(0, 0.01, (1, 4))
        planned = observe(planned, busy_s, load_s if step >= 6 else np.ones((1, 4)))
        blind = observe(blind, busy_s, np.ones((1, 4)))
        assert planned.slow == []
    assert blind.slow == [(0, 3)]  # without the plan's load it would be blamed


def test_one_outlier_is_never_chased():
    for seen in steps((1, 4), 20, 0.01, 1, lambda step: 50.0 if step == 8 else 1.0):
        assert seen.slow == []


def test_a_straggler_that_gets_worse_is_told_again_and_keeps_its_name():
    found = list(
        steps((2, 4), 20, 0.01, 4, lambda step: (1.0, 1.3, 2.0)[(step >= 6) + (step >= 12)])
    )
    assert [found[i].factor[0, 1] for i in (11, 19)] == pytest.approx([1.3, 2.0], rel=0.02)
    assert [found[i].since[0, 1] for i in (11, 19)] == [6, 12]


def test_all_ranks_slower_alike_name_nobody():
    rng, seen = np.random.default_rng(0), nominal(2, 2)
    for step in range(20):
        busy_s = (3.0 if step >= 8 else 1.0) * rng.lognormal(0, 0.01, (2, 2))
        seen = observe(seen, busy_s, np.ones((2, 2)))
        assert seen.slow == []


def test_a_rank_without_work_tells_nothing_and_keeps_its_factor():
    *_, seen = steps((2, 4), 12, 0.01, 5, spell(1.5))
    load_s, busy_s = np.ones((2, 4)), np.ones((2, 4))
    load_s[0, 1] = busy_s[0, 1] = 0.0
    idle = observe(seen, busy_s, load_s)
    assert idle.log_factor[0, 1] == seen.log_factor[0, 1]
    for _ in range(40):  # longer than the window
        idle = observe(idle, busy_s, load_s)
    assert idle.slow == [(0, 1)]
    nothing = observe(idle, np.zeros((2, 4)), np.zeros((2, 4)))
    assert nothing.slow == [(0, 1)]


def test_the_same_steps_give_the_same_estimates_and_change_no_earlier_ones():
    first, again = (list(steps((2, 4), 20, 0.05, 6, spell(1.5))) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        for field in fields(one):
            a, b = getattr(one, field.name), getattr(other, field.name)
            assert np.array_equal(a, b), field.name


def test_nothing_seen_is_nominal():
    seen = nominal(2, 3)
    assert seen.slow == []
    assert (seen.factor == 1).all()
    assert (seen.since == NOMINAL).all()


@pytest.mark.parametrize("busy", [math.nan, -1.0, math.inf, 0.0])
def test_impossible_times_are_refused(busy):
    busy_s = np.ones((1, 2))
    busy_s[0, 1] = busy
    with pytest.raises(InputError, match=r"measured time|took no time"):
        observe(nominal(1, 2), busy_s, np.ones((1, 2)))


def test_times_of_another_shape_are_refused():
    with pytest.raises(InputError, match="shapes"):
        observe(nominal(1, 2), np.ones((1, 3)), np.ones((1, 3)))
