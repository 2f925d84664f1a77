from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.errors import Infeasible
from hydraplan.metrics import shares
from hydraplan.model import IntArray, Op, Schedule
from hydraplan.planner.pipeline import simulator
from hydraplan.planner.pipeline.schedules import one_f_one_b
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.slots import SlotTimes


def uniform(stages: int, microbatches: int, f: float, b: float, w: float, comm: float) -> SlotTimes:
    op_s = np.empty((3, stages, 1, 1, microbatches))
    op_s[0], op_s[1], op_s[2] = f, b, w
    return SlotTimes(
        op_s=op_s,
        rows=np.ones((1, microbatches), np.int64),
        component=np.zeros((1, microbatches), np.int64),
        boundary_s=np.full((1, microbatches), comm),
        grad_sync_s=np.zeros(stages),
    )


@given(st.integers(1, 6), st.integers(1, 12))
def test_1f1b_runs_everything_once_and_keeps_few_microbatches_alive(p: int, m: int) -> None:
    for stage, ops in enumerate(one_f_one_b(p, m)):
        assert sorted(ops) == sorted(
            [Op("F", i) for i in range(m)] + [Op("BW", i) for i in range(m)]
        )
        alive = peak = 0
        for op in ops:
            alive += 1 if op.kind == "F" else -1
            peak = max(peak, alive)
        assert peak == min(m, p - stage)


@st.composite
def runs(draw: st.DrawFn) -> tuple[SlotTimes, Schedule]:
    """Random whole-number slots with random connected lanes, any M, fewer than P included."""
    p, m, lanes = draw(st.integers(1, 4)), draw(st.integers(1, 6)), draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    joined = rng.random((lanes, m)) < 0.5
    joined[0] = False
    lane = np.arange(lanes)[:, None]
    slots = SlotTimes(
        op_s=rng.integers(0, 50, (3, p, 1, lanes, m)).astype(float),
        rows=rng.integers(0, 9, (lanes, m)),
        component=np.maximum.accumulate(np.where(joined, 0, lane), axis=0),
        boundary_s=rng.integers(0, 9, (lanes, m)).astype(float),
        grad_sync_s=rng.integers(0, 20, p).astype(float),
        partner=partners(rng, (2, p, lanes, m)) if draw(st.booleans()) else None,
    )
    return slots, one_f_one_b(p, m)


def partners(rng: np.random.Generator, shape: tuple[int, int, int, int]) -> IntArray:
    """Lanes in pairs here and there, each lane's partner; itself where it has none."""
    found = np.tile(np.arange(shape[2])[:, None], (*shape[:2], 1, shape[3]))
    if shape[2] > 1:
        for form, stage, m in np.ndindex(shape[0], shape[1], shape[3]):
            one, other = rng.choice(shape[2], 2, replace=False)
            found[form, stage, [one, other], m] = other, one
    return found


def by_relaxation(slots: SlotTimes, schedule: Schedule) -> dict[tuple[int, int, int], float]:
    """End of every (stage, position, lane), by repeating all constraints until nothing moves."""
    lanes = slots.rows.shape[0]
    end: dict[tuple[int, int, int], float] = {}
    where = {
        (stage, op.kind, op.microbatch): i
        for stage, ops in enumerate(schedule)
        for i, op in enumerate(ops)
    }
    while True:
        before = dict(end)
        for stage, ops in enumerate(schedule):
            for i, op in enumerate(ops):
                m = op.microbatch
                begin, work = {}, {}
                for lane in range(lanes):
                    needs = [end.get((stage, i - 1, lane), 0.0)] if i else [0.0]
                    source = stage - 1 if op.kind == "F" else stage + 1
                    if 0 <= source < len(schedule) and slots.rows[lane, m]:
                        at = where[source, op.kind, m]
                        needs.append(end.get((source, at, lane), 0.0) + slots.boundary_s[lane, m])
                    begin[lane] = max(needs)
                    f, b, w = slots.op_s[:, stage, 0, lane, m]
                    work[lane] = f if op.kind == "F" else b + w
                friends = {
                    lane: [
                        x for x in range(lanes) if slots.component[x, m] == slots.component[lane, m]
                    ]
                    for lane in range(lanes)
                }
                for _ in range(2 * lanes):
                    begin = {lane: max(begin[x] for x in friends[lane]) for lane in begin}
                    if slots.partner is not None:
                        for form in slots.partner[:, stage, :, m].tolist():
                            begin = {x: max(begin[x], begin[form[x]]) for x in begin}
                for lane in range(lanes):
                    end[stage, i, lane] = begin[lane] + max(work[x] for x in friends[lane])
        if end == before:
            return end


@settings(deadline=None, max_examples=60)
@given(runs())
def test_every_op_ends_when_the_constraints_say(run: tuple) -> None:  # type: ignore[type-arg]
    slots, schedule = run
    timeline = simulate(slots, schedule)
    for (stage, i, lane), end in by_relaxation(slots, schedule).items():
        assert timeline.end_s[stage][i, lane] == end


@settings(deadline=None, max_examples=60)
@given(runs())
def test_shares_add_up_and_none_is_negative(run: tuple) -> None:  # type: ignore[type-arg]
    slots, schedule = run
    timeline = simulate(slots, schedule)
    if max(e.max() for e in timeline.end_s) == 0:
        return
    found = shares(timeline)
    parts = [found[n] for n in ("busy", "grad_sync", "group_wait", "dp_bubble", "pipeline_bubble")]
    assert sum(parts) == pytest.approx(1)
    assert min(parts) >= -1e-12
    own = slots.op_s.sum(axis=(0, 2, 4)).mean() / found["iteration_s"]
    assert found["busy"] == pytest.approx(own)


@settings(deadline=None, max_examples=20)
@given(runs())
def test_the_compiled_run_equals_its_python_source(run: tuple) -> None:  # type: ignore[type-arg]
    slots, schedule = run
    compiled = simulate(slots, schedule)
    fast = simulator._run
    simulator._run = fast.py_func  # type: ignore[attr-defined]
    try:
        plain = simulate(slots, schedule)
    finally:
        simulator._run = fast
    for a, b in zip(compiled.end_s, plain.end_s, strict=True):
        assert (a == b).all()


def test_a_uniform_pipeline_has_exactly_the_fill_bubble() -> None:
    p, m = 8, 43
    found = shares(simulate(uniform(p, m, 1, 1, 1, 0), one_f_one_b(p, m)))
    assert found["pipeline_bubble"] == pytest.approx((p - 1) / (m + p - 1))
    assert found["pipeline_bubble"] == pytest.approx(0.14, abs=1e-9)
    assert found["dp_bubble"] == found["group_wait"] == 0


def test_a_late_lane_holds_up_its_group_and_nobody_else() -> None:
    op_s = np.zeros((3, 1, 1, 3, 1))
    op_s[0, 0, 0, :, 0] = [5.0, 1.0, 1.0]
    slots = SlotTimes(
        op_s, np.ones((3, 1), np.int64), np.array([[0], [0], [2]]), np.zeros((3, 1)), np.zeros(1)
    )
    timeline = simulate(slots, one_f_one_b(1, 1))
    assert timeline.end_s[0][0].tolist() == [5.0, 5.0, 1.0]
    # lane 1 waits 4 of 5 s for its group, lane 2 has 4 s to spare at the end
    found = shares(timeline)
    assert found["group_wait"] == pytest.approx(4 / 5 / 3)
    assert found["dp_bubble"] == pytest.approx(4 / 5 / 3)


def test_an_order_that_waits_for_itself_is_named_and_does_not_hang() -> None:
    backwards = ((Op("BW", 0), Op("F", 0)),)
    with pytest.raises(Infeasible, match="stage 0 cannot go on"):
        simulate(uniform(1, 1, 1, 1, 1, 0), backwards)


def test_work_grows_with_ops_not_with_stages_squared() -> None:
    """In plain Python, so that every look at an op is counted; gradients come from below."""
    looks, plain = 0, simulator.waits_for.py_func  # type: ignore[attr-defined]

    def counted(*args: Any) -> tuple[int, int]:
        nonlocal looks
        looks += 1
        return plain(*args)  # type: ignore[no-any-return]

    stages = 200
    slots = uniform(stages, 1, 1.0, 1.0, 1.0, 0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulator, "waits_for", counted)
        patch.setattr(simulator, "_run", simulator._run.py_func)  # type: ignore[attr-defined]
        run = simulate(slots, one_f_one_b(stages, 1))
    assert max(float(end.max()) for end in run.end_s) == 3 * stages
    assert 2 * 2 * stages <= looks <= 4 * 2 * stages
