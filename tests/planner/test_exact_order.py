import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.errors import Infeasible
from hydraplan.planner.pipeline.exact import MAX_OPS, solve_order
from hydraplan.planner.pipeline.memory import Memory, even_memory
from hydraplan.planner.pipeline.portfolio import fastest, portfolio
from hydraplan.planner.pipeline.schedules import zb_h1
from hydraplan.route import route
from tests.planner.lanes import fastest_of_all, iteration_s, lane_times


def straggling(stage: int | None, microbatch: int | None) -> np.ndarray:  # type: ignore[type-arg]
    op_s = np.ones((3, 4, 8))
    if stage is not None:
        op_s[:, stage] = 1.4
    if microbatch is not None:
        op_s[..., microbatch] = 2.0
    return op_s


@pytest.mark.parametrize(
    ("stage", "microbatch", "worth", "optimum_s"),
    [
        (None, None, 1, 27.0),  # 3 m + p - 1
        (None, None, 2, 27.0),
        (0, None, 1, 35.4),
        (0, None, 2, 33.6),  # 1.4 x 3 m: the slow stage never waits
        (1, None, 1, 34.6),  # and one forward to get there
        (3, None, 1, 36.6),
        (None, 3, 1, 30.0),
        (None, 3, 2, 30.0),
    ],
)
def test_the_optimum_of_four_stages_and_eight_microbatches_is_proven_and_met(
    stage: int | None, microbatch: int | None, worth: int, optimum_s: float
) -> None:
    times, memory = lane_times(straggling(stage, microbatch)), even_memory(4 * worth, 8)
    order = portfolio(times, memory)
    found = solve_order(times, memory, hint=order)
    assert (found.status, found.num_ops) == ("optimal", 96)
    assert found.time_s == pytest.approx(optimum_s, rel=1e-12)
    assert found.gap < 1e-4  # rounding
    assert iteration_s(times, order) <= 1.01 * optimum_s


@settings(max_examples=8, deadline=None)
@given(
    st.integers(0, 1 << 30),
    st.sampled_from([1.0, 1.5, 2.0]),
    st.booleans(),
    st.sampled_from([0.5, 0.35887, 1 / 3]),
)
def test_nothing_is_faster_than_the_exact_order_of_a_tiny_case(
    seed: int, limit: float, alike: bool, frees: float
) -> None:
    rng = np.random.default_rng(seed)
    op_s = rng.integers(1, 6, (3, 2, 2))
    if alike:  # the symmetry that is broken then must cost nothing
        op_s[..., 1] = op_s[..., 0]
    times = lane_times(op_s, float(rng.integers(0, 2)))
    memory = even_memory(limit, 2, frees)
    found = solve_order(times, memory)
    assert found.status == "optimal"
    assert found.time_s == pytest.approx(fastest_of_all(times, memory), rel=1e-4)
    assert found.bound_s <= found.time_s <= found.bound_s * (1 + 1e-3)
    assert all(memory.fits(memory.peak(ops, 1)) for ops in found.schedule)


def test_a_poor_hint_is_beaten_and_the_same_is_found_again() -> None:
    times = lane_times(np.random.default_rng(3).integers(1, 9, (3, 3, 4)))
    memory = even_memory(3, 4)
    first = solve_order(times, memory, 0.2, hint=zb_h1(3, 4))
    assert first.time_s < iteration_s(times, zb_h1(3, 4))
    assert first == solve_order(times, memory, 0.2, hint=zb_h1(3, 4))


def test_without_time_to_search_the_hint_is_returned_with_a_bound() -> None:
    times, memory = (
        lane_times(np.random.default_rng(5).lognormal(0, 0.3, (3, 4, 8))),
        even_memory(4, 8),
    )
    found = solve_order(times, memory, 1e-6)
    assert found.status == "feasible"
    assert found.schedule == fastest(times, memory)
    busiest_s = times.op_s.sum(axis=(0, 2, 3, 4)).max()
    assert 0.999 * busiest_s <= found.bound_s <= found.time_s


def test_kept_order_lets_forwards_enter_by_number() -> None:
    op_s = np.ones((3, 2, 4))
    op_s[..., 0] = 3.0  # better not first
    times, memory = lane_times(op_s), even_memory(2, 4)
    free = solve_order(times, memory, 0.05)
    kept = solve_order(times, memory, 0.05, keep_order=True)
    entry = [op.microbatch for op in kept.schedule[0] if op.kind == "F"]
    assert entry == [0, 1, 2, 3]
    assert free.time_s <= kept.time_s


def test_chunks_on_a_v_are_ordered_within_the_limit() -> None:
    way = route("v", 2, 2)
    times = lane_times(np.ones((3, 2, 2, 3)), 0.0, way)
    memory = Memory(2.0, np.ones(3))
    found = solve_order(times, memory)
    assert found.status == "optimal"
    assert found.time_s == pytest.approx(19.0)  # 18 of work, one forward to reach stage 1
    assert all(memory.peak(ops, 2) <= 2.0 for ops in found.schedule)


def test_what_is_too_large_is_refused() -> None:
    count = MAX_OPS // 12 + 1
    with pytest.raises(Infeasible, match=rf"at most 2000 ops: 4 stages x 1 .* make {12 * count}"):
        solve_order(lane_times(np.ones((3, 4, count))), even_memory(4, count))


@pytest.mark.parametrize("travel_s", [0.1, 1e3, 1e9, 1e24])
def test_messages_that_take_far_longer_than_all_ops_do_not_fill_the_memory(travel_s: float) -> None:
    """Two stages, two microbatches, room for one: each goes there and back before the next."""
    times = lane_times(np.ones((3, 2, 2)), travel_s)
    found = solve_order(times, even_memory(1.0, 2))
    assert found.time_s == pytest.approx(2 * (2 * travel_s + 5), rel=1e-9)
    assert found.bound_s <= found.time_s
