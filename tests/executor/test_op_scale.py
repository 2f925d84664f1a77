"""Lines through ops: what a wrong cost model does not do, and what a slow lane does."""

import numpy as np
import pytest

from hydraplan.executor.op_scale import POINTS, OpScale, line
from hydraplan.model import Op, Timeline
from hydraplan.planner.policy.estimates import nominal, observe

OPS = tuple(Op(kind, m) for m in range(4) for kind in ("F", "BW"))


def timeline(busy_s):
    zeros = tuple(np.zeros_like(b) for b in busy_s)
    return Timeline((OPS, OPS), zeros, busy_s, busy_s, np.zeros(2))


def summed(of_ops):
    return np.stack([stage_s.sum(axis=0) for stage_s in of_ops])


def step(rng, slow=None, sigma=0.01):
    """What is predicted, loads that differ 5x between lanes, and what a wrong model makes of it."""
    predicted, busy = [], []
    for stage in range(2):
        planned_s = rng.uniform(1, 5, (len(OPS), 4))
        rate = np.array([[2.0 + stage] if op.kind == "F" else [0.5] for op in OPS])
        taken_s = (0.5 + 0.5 * stage + rate * planned_s) * rng.lognormal(0, sigma, planned_s.shape)
        if slow is not None:
            taken_s = taken_s * slow[stage]
        predicted.append(planned_s)
        busy.append(taken_s)
    return timeline(tuple(busy)), timeline(tuple(predicted))


def test_a_line_is_found_in_spite_of_points_far_from_it():
    planned_s = np.linspace(1, 5, 40)
    taken_s = 0.5 + 2 * planned_s
    taken_s[::5] *= 3
    assert line(planned_s, taken_s) == pytest.approx((0.5, 2.0), rel=3e-3)


def test_no_part_of_a_line_is_negative():
    planned_s = np.linspace(1, 5, 20)
    assert line(planned_s, 3 * planned_s - 1)[0] == 0
    fixed_s, rate = line(planned_s, 9 - planned_s)
    assert (fixed_s, rate) == (6.0, 0.0)
    assert line(np.zeros(3), np.zeros(3)) == (0.0, 1.0)


def test_ops_that_are_predicted_alike_have_a_rate_alone():
    assert line(np.full(5, 2.0), np.array([3.0, 3.0, 3.0, 9.0, 2.0])) == (0.0, 1.5)


def test_of_many_points_each_so_many_th_counts():
    planned_s = np.linspace(1, 5, 3 * POINTS)
    taken_s = 7 * planned_s
    taken_s[1::3] = taken_s[2::3] = 0.0
    assert line(planned_s, taken_s) == pytest.approx((0.0, 7.0))


@pytest.mark.parametrize("seed", range(3))
def test_a_cost_model_that_is_wrong_by_stage_kind_and_op_names_nobody_on_healthy_ranks(seed):
    rng, scale = np.random.default_rng(seed), OpScale()
    scaled = plain = nominal(2, 4)
    for _ in range(20):
        measured, predicted = step(rng)
        busy_s, planned_s = (
            np.stack([b.sum(axis=0) for b in t.busy_s]) for t in (measured, predicted)
        )
        scaled = observe(scaled, busy_s, summed(scale.load_s(measured, predicted, scaled.factor)))
        plain = observe(plain, busy_s, planned_s)
        assert (scaled.log_factor == 0).all()
    assert (plain.log_factor != 0).any()


def test_a_straggler_is_told_under_a_wrong_cost_model_and_keeps_its_factor():
    rng, scale, seen = np.random.default_rng(1), OpScale(), nominal(2, 4)
    told = []
    for number in range(24):
        slow = np.ones((2, 4))
        slow[1, 3] = 1.5 if 5 <= number < 17 else 1.0
        measured, predicted = step(rng, slow)
        busy_s = np.stack([b.sum(axis=0) for b in measured.busy_s])
        seen = observe(seen, busy_s, summed(scale.load_s(measured, predicted, seen.factor)))
        told.append((seen.slow, seen.factor[1, 3]))
    assert [ranks for ranks, _ in told[6:17]] == [[(1, 3)]] * 11
    assert told[16][1] == pytest.approx(1.5, rel=0.03)
    assert [ranks for ranks, _ in told[19:]] == [[]] * 5


def test_a_lane_without_predicted_work_is_seen_to_become_well_and_names_nobody():
    """Its ops take 0.02 s, 20 times that while it is slow; a model without fixed times says 0."""
    rng, scale, seen = np.random.default_rng(1), OpScale(), nominal(2, 4)
    named = []
    for at in range(16):
        measured, predicted = step(rng)
        for planned_s, busy_s in zip(predicted.busy_s, measured.busy_s, strict=True):
            planned_s[:, 1] = 0.0
            is_slow = 5 <= at < 10
            busy_s[:, 1] = (20 if is_slow else 1) * 0.02 * rng.lognormal(0, 0.01, len(OPS))
        load_s = scale.load_s(measured, predicted, seen.factor)
        assert all((stage_s > 0).all() for stage_s in load_s)
        seen = observe(seen, summed(measured.busy_s), summed(load_s))
        named.append(seen.slow)
    assert not any(named[:5])
    assert set(named[8]) == {(0, 1), (1, 1)}
    assert named[-1] == []
