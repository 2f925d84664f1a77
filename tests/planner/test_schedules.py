from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.errors import InputError
from hydraplan.model import Op, Schedule
from hydraplan.planner.pipeline.memory import even_memory
from hydraplan.planner.pipeline.schedules import SCHEDULES, layouts_of
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.planner.pipeline.zb_v import zb_v
from hydraplan.route import route
from hydraplan.slots import SlotTimes
from tests.planner.counted import lines_of

NEVER_FREED_BY_B = 0.0


def passes(name: str, chunks: int) -> int:
    """Chunks of a stage that a microbatch passes: one of two model copies, or all."""
    return 1 if SCHEDULES[name].route == "both" else chunks


def even_slots(
    name: str, stages: int, count: int, chunks: int, times: tuple[float, float, float]
) -> SlotTimes:
    """F, B and W of a whole stage, the same everywhere; a model copy is a whole stage."""
    way = SCHEDULES[name].route
    op_s = np.empty((3, stages, chunks, 1, count))
    op_s[:] = np.array(times).reshape(3, 1, 1, 1, 1) / passes(name, chunks)
    return SlotTimes(
        op_s=op_s,
        rows=np.ones((1, count), np.int64),
        component=np.zeros((1, count), np.int64),
        boundary_s=np.zeros((1, count)),
        grad_sync_s=np.zeros(stages),
        route=route(way, stages, chunks),
    )


@st.composite
def asked(draw: st.DrawFn) -> tuple[str, int, int, int, Schedule]:
    """Any schedule of any size; fewer microbatches than stages are as likely as more."""
    name = draw(st.sampled_from(sorted(SCHEDULES)))
    stages = draw(st.integers(1, 9))
    count = draw(st.one_of(st.integers(1, stages), st.integers(1, 5 * stages)))
    chunks = SCHEDULES[name].chunks or draw(st.integers(1, 4))
    return name, stages, count, chunks, SCHEDULES[name].make(stages, count, chunks)


@settings(max_examples=120)
@given(asked())
def test_every_op_runs_once_and_gradients_come_after_what_they_need(
    case: tuple[str, int, int, int, Schedule],
) -> None:
    name, stages, count, chunks, schedule = case
    assert len(schedule) == stages
    ways = [(m, m % 2) for m in range(count)]
    if SCHEDULES[name].route != "both":
        ways = [(m, c) for m in range(count) for c in range(chunks)]
    for ops in schedule:
        runs = {way: "" for way in ways}
        for op in ops:
            runs[op.microbatch, op.chunk] += op.kind
        assert set(runs.values()) <= {"FBW"}
        for op, after in pairwise([*ops, Op("F", -1)]):
            assert not op.joined or (op.kind == "F" and after.kind in ("B", "BW"))


@settings(max_examples=100)
@given(asked(), st.integers(0, 2**32))
def test_every_schedule_can_go_on_whatever_its_ops_take(
    case: tuple[str, int, int, int, Schedule], seed: int
) -> None:
    name, stages, count, chunks, schedule = case
    slots = even_slots(name, stages, count, chunks, (1.0, 1.0, 1.0))
    slots.op_s[:] = np.random.default_rng(seed).integers(0, 9, slots.op_s.shape)
    run = simulate(slots, schedule)
    assert sum(len(end) for end in run.end_s) == sum(map(len, schedule))


def held(name: str, stages: int, stage: int, count: int, chunks: int) -> float:
    """Most microbatches a stage may hold, weight gradients put off included."""
    groups = max(1, count // stages)
    largest = -(-count // groups)
    return {
        "gpipe": count,
        "1f1b": min(count, stages - stage),
        "interleaved": min(count, (2 * (stages - 1 - stage) + (chunks - 1) * largest + 1) / chunks),
        "zb-h1": min(count, stages),
        "zb-h2": min(count, 2 * stages - 1),
        "zb-v": min(count, stages),
        "dualpipe": stages + 1 + stages % 2,
        "dualpipe-v": min(count, stages + 0.5),
    }[name]


@settings(max_examples=120)
@given(asked())
def test_no_stage_holds_more_than_its_schedule_promises(
    case: tuple[str, int, int, int, Schedule],
) -> None:
    name, stages, count, chunks, schedule = case
    memory = even_memory(np.inf, count, NEVER_FREED_BY_B)
    for stage, ops in enumerate(schedule):
        assert (
            memory.peak(ops, passes(name, chunks))
            <= held(name, stages, stage, count, chunks) + 1e-9
        )


@pytest.mark.parametrize(
    ("name", "stage", "peak"),
    [
        ("gpipe", 3, 16), ("1f1b", 0, 4), ("1f1b", 3, 1), ("interleaved", 0, 5.5), ("zb-h1", 0, 4),
        ("zb-h1", 3, 4), ("zb-h2", 0, 7), ("zb-h2", 3, 7), ("zb-v", 0, 4), ("zb-v", 3, 4),
        ("dualpipe", 0, 5), ("dualpipe-v", 0, 4.5),
    ],
)  # fmt: skip
def test_what_stages_hold_at_four_stages_and_sixteen_microbatches(
    name: str, stage: int, peak: float
) -> None:
    chunks = SCHEDULES[name].chunks or 2
    ops = SCHEDULES[name].make(4, 16, chunks)[stage]
    assert even_memory(np.inf, 16, NEVER_FREED_BY_B).peak(ops, passes(name, chunks)) == peak


def idle(name: str, stages: int, count: int, chunks: int, times: tuple[int, int, int]) -> float:
    """Idle time of the stage with the longest span."""
    schedule = SCHEDULES[name].make(stages, count, chunks)
    run = simulate(even_slots(name, stages, count, chunks, times), schedule)
    spans = [e.max() - s.min() for s, e in zip(run.start_s, run.end_s, strict=True)]
    return float(max(spans)) - count * sum(times)


@settings(max_examples=60)
@given(
    st.integers(1, 8), st.integers(0, 20), st.integers(1, 4), st.tuples(*[st.integers(1, 5)] * 3)
)
def test_alike_ops_leave_what_the_closed_forms_say(
    stages: int, more: int, chunks: int, times: tuple[int, int, int]
) -> None:
    f, b, w = times
    count, fill = stages + more, (stages - 1) * (f + b + w)
    assert idle("gpipe", stages, count, 1, times) == fill
    assert idle("1f1b", stages, count, 1, times) == fill
    assert idle("interleaved", stages, count, chunks, times) == pytest.approx(
        fill / chunks, abs=1e-9
    )


@settings(max_examples=120)
@given(st.integers(1, 8), st.integers(0, 12), st.tuples(*[st.integers(0, 9)] * 3))
def test_zero_bubble_forms_hold_for_any_times(
    stages: int, more: int, times: tuple[int, int, int]
) -> None:
    """A W longer than F fills no more than F does."""
    f, b, w = times
    for pace, name in ((1, "zb-h1"), (2, "zb-h2")):
        form = (stages - 1) * max(0, f + b - pace * min(f, w))
        assert idle(name, stages, pace * stages + more, 1, times) == form


@settings(max_examples=60)
@given(st.integers(1, 8), st.integers(0, 20), st.integers(1, 9))
def test_alike_ops_leave_what_the_zero_bubble_forms_say(stages: int, more: int, f: int) -> None:
    """F = B = W; with H2 and V no stage is idle between its first and its last op."""
    count = 2 * stages + more
    assert idle("zb-h1", stages, count, 1, (f, f, f)) == (stages - 1) * f
    assert idle("zb-h2", stages, count, 1, (f, f, f)) == 0
    assert idle("zb-v", stages, count, 2, (f, f, f)) == 0


def test_microbatches_that_are_no_multiple_of_the_stages_cost_interleaving_no_filling() -> None:
    for count in range(8, 33):
        assert idle("interleaved", 8, count, 2, (2, 2, 2)) == pytest.approx(21)


def test_a_forward_whose_partner_is_cut_away_runs_by_itself() -> None:
    """Eight microbatches are what four stages are made for; every fewer one costs its pairs."""
    pairs = [
        sum(op.joined for ops in SCHEDULES["dualpipe"].make(4, count, 2) for op in ops)
        for count in (4, 6, 7, 8)
    ]
    assert pairs == [0, 4, 8, 12]


def test_route_and_chunks_are_those_of_the_table_and_others_are_refused() -> None:
    assert layouts_of("1f1b", None) == (("loop", 1),)
    assert layouts_of("zb-v", None) == layouts_of("zb-v", 2) == (("v", 2),)
    assert layouts_of("interleaved", None) == (("loop", 2),)
    assert layouts_of("interleaved", 5) == layouts_of("portfolio", 5) == (("loop", 5),)
    assert layouts_of("zb-2p", None) == layouts_of("exact", None) == (("loop", 1),)
    assert layouts_of("auto", None) == (("loop", 1), ("v", 2), ("loop", 2))
    assert layouts_of("auto", 2) == (("v", 2), ("loop", 2))
    assert layouts_of("auto", 4) == (("loop", 4),)
    for name, chunks in (("1f1b", 2), ("zb-v", 1), ("zb-2p", 3)):
        with pytest.raises(InputError, match=rf"{name} has \d chunks? a stage, not {chunks}"):
            layouts_of(name, chunks)


@pytest.mark.parametrize("stages", [1, 2, 5])
@pytest.mark.parametrize("count", [1, 2, 4, 7])
def test_fewer_microbatches_are_cut_out_of_the_order_of_two_a_stage(
    stages: int, count: int
) -> None:
    whole = zb_v(stages, max(count, 2 * stages))
    assert zb_v(stages, count) == tuple(
        tuple(op for op in ops if op.microbatch < count) for ops in whole
    )


@pytest.mark.parametrize("name", sorted(n for n, p in SCHEDULES.items() if not p.simulated_only))
@pytest.mark.parametrize("size", [(512, 1), (1, 512), (128, 4)])
def test_making_an_order_takes_work_that_grows_with_its_ops_alone(
    name: str, size: tuple[int, int]
) -> None:
    chunks = SCHEDULES[name].chunks or 2
    num_ops = sum(map(len, SCHEDULES[name].make(*size, chunks)))
    lines = lines_of(lambda: SCHEDULES[name].make(*size, chunks), "planner/pipeline/")
    assert lines <= 40 * num_ops
