from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.activations import Shares
from hydraplan.errors import Infeasible
from hydraplan.metrics import peak_live_tokens
from hydraplan.planner.pipeline.list_schedule import NEVER, Rule
from hydraplan.planner.pipeline.memory import Memory, even_memory
from hydraplan.planner.pipeline.noise import Shape
from hydraplan.planner.pipeline.one_lane import few_lanes, one_lane, reordered, side_by_side
from hydraplan.planner.pipeline.portfolio import (
    different,
    fastest,
    finalists,
    orders_of,
    portfolio,
    rules,
    schedule_of,
    walked_s,
)
from hydraplan.planner.pipeline.scenarios import factors, scorer
from hydraplan.planner.pipeline.schedules import zb_h1
from hydraplan.route import RouteName, route
from tests.planner.lanes import fastest_of_all, iteration_s, lane_times, random_lanes

UNIT = np.ones((3, 4, 8))


def test_alike_microbatches_reach_the_bound_of_zero_bubble() -> None:
    times = lane_times(UNIT)
    for stages_worth in (1, 2):
        memory = even_memory(4 * stages_worth, 8)
        schedule = portfolio(times, memory)
        assert iteration_s(times, schedule) == 27  # 3 m + p - 1
        assert peak_live_tokens(schedule, times.rows, Shares(1.0, 0.5)) <= 4 * stages_worth


@pytest.mark.parametrize(
    ("f", "b", "w", "comm", "p", "m", "worth", "rate"),
    [
        (18.522, 18.086, 9.337, 0.601, 8, 24, 1, 0.1585),
        (29.718, 29.444, 19.927, 0.527, 8, 24, 1, 0.1323),
        (29.718, 29.444, 19.927, 0.527, 8, 24, 2, 0.0029),
        (11.347, 11.248, 8.132, 0.377, 16, 48, 1, 0.1397),
        (11.347, 11.248, 8.132, 0.377, 16, 48, 2, 0.0066),
    ],
)
def test_no_worse_than_published_zero_bubble_schedules(
    f: float, b: float, w: float, comm: float, p: int, m: int, worth: int, rate: float
) -> None:
    """Zero Bubble, tables 5 and 9: bubble rates of ZB-1p and ZB-2p, as shares of the span."""
    op_s = np.broadcast_to(np.array([f, b, w])[:, None, None], (3, p, m))
    times = lane_times(op_s, comm)
    schedule = portfolio(times, even_memory(worth * p, m))
    assert peak_live_tokens(schedule, times.rows, Shares(1.0, 0.5)) <= worth * p
    span_s = m * (f + b + w) / (1 - rate - 0.0005)
    assert iteration_s(times, schedule) <= span_s + (p - 1) * (f + comm)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from([1.0, 1.5, 2.0]))
def test_no_order_of_a_tiny_case_is_faster_than_the_fastest_of_all(seed: int, limit: float) -> None:
    rng = np.random.default_rng(seed)
    times = lane_times(rng.integers(1, 6, (3, 2, 2)), float(rng.integers(0, 2)))
    memory = even_memory(limit, 2)
    best_s = fastest_of_all(times, memory)
    schedule = portfolio(times, memory)
    assert all(memory.peak(ops, 1) <= limit for ops in schedule)
    assert best_s <= iteration_s(times, schedule) <= 1.25 * best_s


@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 1 << 30),
    st.sampled_from([("loop", 1), ("loop", 2), ("loop", 3), ("v", 2)]),
    st.integers(1, 4),
    st.integers(1, 6),
)
def test_every_rule_gives_a_run_of_what_it_says_within_the_limit(
    seed: int, way: tuple[RouteName, int], stages: int, count: int
) -> None:
    rng = np.random.default_rng(seed)
    name, chunks = way
    times = lane_times(
        rng.lognormal(0, 0.5, (3, stages, chunks, count)), 0.1, route(name, stages, chunks)
    )
    live = rng.integers(1, 10, count).astype(float)
    memory = Memory(float(live.max() * rng.uniform(1, stages + 1)), live)
    found = orders_of(times, memory)
    taken_s = walked_s(found, times)
    whole = sum(rule.whole == 1.0 for rule in rules(chunks))
    assert whole <= len(found.rule)  # room for whole microbatches never gets stuck
    for row in rng.choice(len(found.rule), 5):
        schedule = schedule_of(found, int(row), stages, chunks)
        assert sum(len(ops) for ops in schedule) == len({*found_ops(schedule)})
        assert sum(len(ops) for ops in schedule) == 3 * stages * chunks * count
        assert max(memory.peak(ops, chunks) for ops in schedule) <= memory.limit * (1 + 1e-9)
        assert iteration_s(times, schedule) == pytest.approx(taken_s[row, 0], rel=1e-12)
        assert iteration_s(times, schedule) == pytest.approx(found.end_s[row], rel=1e-12)


def found_ops(schedule: tuple) -> list:  # type: ignore[type-arg]
    return [(s, op) for s, ops in enumerate(schedule) for op in ops]


def test_orders_are_ranked_by_times_that_their_own_runs_give() -> None:
    times = lane_times(np.random.default_rng(0).lognormal(0, 0.3, (3, 3, 5)))
    found = orders_of(times, even_memory(3, 5))
    taken_s, factor = walked_s(found, times), factors(Shape(3, 1, 5, 1))
    schedule = schedule_of(found, 7, 3, 1)
    for scenario in range(taken_s.shape[1]):
        noisy = lane_times(times.op_s[:, :, 0, 0] * factor[:, :, 0, :, scenario])
        assert iteration_s(noisy, schedule) == pytest.approx(taken_s[7, scenario], rel=1e-12)


def test_different_orders_are_those_in_which_some_stage_runs_other_ops() -> None:
    times = lane_times(np.ones((3, 3, 2, 5)))
    found = orders_of(times, even_memory(2, 5))
    twice = different([found, found], 3)
    every = {schedule_of(found, row, 3, 2) for row in range(len(found.rule))}
    assert 1 < len(every) < len(found.rule)
    assert {schedule_of(twice, row, 3, 2) for row in range(len(twice.rule))} == every
    assert len(twice.rule) == len(every)


def test_the_best_score_and_the_least_time_are_taken_among_the_finalists() -> None:
    times = random_lanes(4, 4, 6, 16)
    memory = Memory(400.0, times.rows.max(axis=0).astype(float))
    found, score_s = finalists(times, memory), scorer(times)
    best = portfolio(times, memory)
    assert score_s(best) == min(map(score_s, [*found, zb_h1(4, 16)]))
    quick = fastest(times, memory)
    assert iteration_s(times, quick) == min(iteration_s(times, order) for order in found)
    assert iteration_s(times, quick) <= iteration_s(times, best)


def test_even_orders_lose_less_to_a_straggler() -> None:
    """The busiest lane of a batch that `fastest` orders tightly for its own times."""
    rng = np.random.default_rng(2)
    times = lane_times(np.ones((3, 8, 40)) * rng.lognormal(0, 0.4, 40))
    memory = even_memory(8, 40)
    slow = times.op_s.copy()
    slow[:, 3] *= 1.4
    robust, tight = portfolio(times, memory), fastest(times, memory)
    slowed = replace(times, op_s=slow)
    assert iteration_s(slowed, robust) < iteration_s(slowed, tight)
    assert iteration_s(slowed, robust) <= 1.02 * iteration_s(slowed, zb_h1(8, 40))


def test_the_same_input_gives_the_same_order() -> None:
    times = random_lanes(3, 4, 3, 9)
    memory = Memory(300.0, times.rows.max(axis=0).astype(float))
    assert portfolio(times, memory) == portfolio(times, memory)


def test_a_microbatch_beyond_the_limit_is_refused() -> None:
    with pytest.raises(Infeasible, match=r"alone holds activations of 1, a stage may hold 0\.5"):
        portfolio(lane_times(UNIT), even_memory(0.5, 8))


def test_lanes_that_differ_are_planned_for_as_well() -> None:
    times = random_lanes(5, 4, 6, 16)
    memory = Memory(400.0, times.rows.max(axis=0).astype(float))
    assert iteration_s(times, fastest(times, memory)) < 0.96 * iteration_s(times, zb_h1(4, 16))


def test_a_rule_is_a_row_of_numbers() -> None:
    assert np.array([Rule()]).tolist() == [[NEVER, 0.0, NEVER, NEVER, NEVER, 0.0, 1.0]]


def test_one_lane_takes_the_busiest_of_every_stage_and_microbatch() -> None:
    times = random_lanes(1, 3, 4, 5)
    lane = one_lane(times)
    assert lane.op_s.shape == (3, 3, 1, 1, 5)
    for s in range(3):
        for m in range(5):
            whole = times.op_s[:, s, 0, :, m].sum(axis=0)
            assert (
                lane.op_s[:, s, 0, 0, m].tolist() == times.op_s[:, s, 0, whole.argmax(), m].tolist()
            )
    assert lane.rows.tolist() == [times.rows.max(axis=0).tolist()]


def test_orders_side_by_side_run_as_each_by_itself() -> None:
    lane = one_lane(random_lanes(2, 3, 2, 6))
    orders = np.array([[0, 1, 2, 3, 4, 5], [5, 2, 0, 1, 4, 3]])
    both = side_by_side(lane, orders)
    alone = [iteration_s(reordered(lane, order), zb_h1(3, 6)) for order in orders]
    assert iteration_s(both, zb_h1(3, 6)) == pytest.approx(max(alone))


def test_few_lanes_are_the_busiest_of_their_neighbours_and_stay_connected() -> None:
    times = random_lanes(1, 3, 5, 16)
    assert few_lanes(times, 5) is times
    few = few_lanes(times, 2)
    assert few.op_s.shape == (3, 3, 1, 2, 16)
    for lane, (low, high) in enumerate([(0, 2), (2, 5)]):
        for s in range(3):
            for m in range(16):
                part = times.op_s[:, s, 0, low:high, m]
                busiest = part[:, part.sum(axis=0).argmax()]
                assert few.op_s[:, s, 0, lane, m].tolist() == busiest.tolist()
        assert few.rows[lane].tolist() == times.rows[low:high].max(axis=0).tolist()
        assert few.boundary_s[lane].tolist() == times.boundary_s[low:high].max(axis=0).tolist()
    crossed = times.component[2] < 2
    assert 0 < crossed.sum() < 16
    assert few.component.tolist() == [[0] * 16, np.where(crossed, 0, 1).tolist()]


def test_few_lanes_connected_over_several_borders_have_one_lead() -> None:
    times = replace(random_lanes(1, 2, 6, 3), component=np.zeros((6, 3), np.int64))
    assert few_lanes(times, 3).component.tolist() == [[0] * 3] * 3
