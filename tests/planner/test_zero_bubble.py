from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.errors import Infeasible
from hydraplan.metrics import shares
from hydraplan.model import Schedule
from hydraplan.planner.pipeline.memory import Memory, even_memory
from hydraplan.planner.pipeline.schedules import SCHEDULES
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.planner.pipeline.zero_bubble import ALIKE, eight_orders, zero_bubble
from hydraplan.slots import SlotTimes
from tests.planner.counted import lines_of


def slots_of(op_s: np.ndarray, comm: float = 0.0, lanes: int = 1) -> SlotTimes:  # type: ignore[type-arg]
    """Times of shape (3, stages, microbatches), the same on every lane."""
    count = op_s.shape[2]
    return SlotTimes(
        op_s=np.repeat(op_s[:, :, None, None, :], lanes, axis=3).astype(float),
        rows=np.ones((lanes, count), np.int64),
        component=np.zeros((lanes, count), np.int64),
        boundary_s=np.full((lanes, count), comm),
        grad_sync_s=np.zeros(op_s.shape[1]),
    )


def even(stages: int, count: int, f: float, b: float, w: float, comm: float = 0.0) -> SlotTimes:
    op_s = np.empty((3, stages, count))
    op_s[0], op_s[1], op_s[2] = f, b, w
    return slots_of(op_s, comm)


def taken_s(slots: SlotTimes, schedule: Schedule) -> float:
    return shares(simulate(slots, schedule))["iteration_s"]


@st.composite
def uneven(draw: st.DrawFn) -> tuple[SlotTimes, Memory]:
    """Unequal stages, microbatches, lanes and activations, and a limit from tight to none."""
    stages, count, lanes = (
        draw(st.integers(1, 6)),
        draw(st.integers(1, 12)),
        draw(st.integers(1, 3)),
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    slots = slots_of(rng.integers(0, 30, (3, stages, count)), draw(st.integers(0, 5)), lanes)
    slots.op_s[:] += rng.integers(0, 9, slots.op_s.shape)
    live = rng.integers(1, 9, count).astype(float)
    limit = draw(st.sampled_from([live.max(), 1.5 * live.max(), stages * live.mean(), np.inf]))
    return slots, Memory(max(limit, live.max()), live, draw(st.sampled_from([0.0, 0.3, 1.0])))


@settings(max_examples=120)
@given(uneven())
def test_every_order_runs_each_op_once_in_order_and_keeps_to_the_limit(
    case: tuple[SlotTimes, Memory],
) -> None:
    slots, memory = case
    count = len(memory.live)
    orders = eight_orders(slots, memory)
    assert 1 <= len(orders) <= 8
    for order in orders:
        run = simulate(slots, order)
        assert sum(len(end) for end in run.end_s) == 3 * count * len(order)
        for ops in order:
            position = {(op.kind, op.microbatch): i for i, op in enumerate(ops)}
            assert position.keys() == set(product("FBW", range(count)))
            for m in range(count):
                assert position["F", m] < position["B", m] < position["W", m]
                for kind in "FBW" if m else "":
                    assert position[kind, m - 1] < position[kind, m]  # type: ignore[index]
            assert memory.peak(ops, 1) <= memory.limit * (1 + 1e-9)


@settings(max_examples=30)
@given(uneven())
def test_the_best_of_the_eight_is_taken(case: tuple[SlotTimes, Memory]) -> None:
    slots, memory = case
    best = min(taken_s(slots, order) for order in eight_orders(slots, memory))
    assert best <= taken_s(slots, zero_bubble(slots, memory)) <= best * (1 + ALIKE)


@settings(max_examples=40)
@given(
    st.integers(1, 8), st.integers(1, 24), st.integers(4, 8), st.integers(4, 8), st.integers(1, 4)
)
def test_with_the_memory_of_h1_and_h2_it_is_as_fast_where_ops_are_alike(
    stages: int, count: int, f: int, b: int, w: int
) -> None:
    slots = even(stages, count, f, b, w)
    for name, limit in (("zb-h1", stages), ("zb-h2", 2 * stages)):
        found = taken_s(slots, zero_bubble(slots, even_memory(limit, count)))
        assert found <= taken_s(slots, SCHEDULES[name].make(stages, count, 1)) * (1 + ALIKE)


@pytest.mark.parametrize(("limit", "idle"), [(1, 3), (2, 0)])
def test_known_idle_times_of_one_and_two_pipelines_of_memory(limit: int, idle: int) -> None:
    """F = B = W on four stages: ZB-1p leaves P - 1 ops, ZB-2p none."""
    slots, count = even(4, 16, 1, 1, 1), 16
    run = simulate(slots, zero_bubble(slots, even_memory(limit * 4, count)))
    spans = [e.max() - s.min() for s, e in zip(run.start_s, run.end_s, strict=True)]
    assert max(spans) == 3 * count + idle


def test_less_memory_than_stages_still_runs_and_costs_time() -> None:
    slots, count = even(4, 12, 1, 1, 1), 12
    times = [
        taken_s(slots, zero_bubble(slots, even_memory(limit, count))) for limit in (1, 2, 4, 8)
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] == 12 * 9  # one microbatch at a time: down, up again, and W to make room


def test_a_microbatch_beyond_the_limit_is_refused_by_name() -> None:
    memory = Memory(4.0, np.array([1.0, 5.0, 2.0]))
    with pytest.raises(Infeasible, match="microbatch 1 alone holds activations of 5, a stage may"):
        zero_bubble(even(2, 3, 1, 1, 1), memory)


@pytest.mark.parametrize("size", [(16, 64), (512, 2)])
def test_an_op_takes_as_many_lines_among_many_stages_as_among_few(size: tuple[int, int]) -> None:
    """Long weight gradients leave gaps that are too small, for each of which stages compare."""
    stages, count = size
    times, memory = even(stages, count, 2, 1, 5), even_memory(stages, count)
    lines = lines_of(lambda: eight_orders(times, memory), "planner/pipeline/")
    assert lines <= 40 * 8 * 3 * stages * count
