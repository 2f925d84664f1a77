from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.cost import CostModel
from hydraplan.errors import Infeasible
from hydraplan.layout import legal_degrees
from hydraplan.metrics import shares
from hydraplan.model import FloatArray, Op, Schedule, Sequences
from hydraplan.planner.pipeline.fast_run import iteration_s, slots_of
from hydraplan.planner.pipeline.order import ORDERS, microbatch_order
from hydraplan.planner.pipeline.schedules import one_f_one_b
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.slots import slot_times
from hydraplan.stages import split_layers
from tests.builders import Place, placed_sequences
from tests.planner.cases import cost_model


class Case(NamedTuple):
    """A placement on a pool, and how its stages work."""

    cost: CostModel
    placed: Sequences
    num_microbatches: int
    schedule: Schedule


def split_backwards(num_stages: int, num_chunks: int, num_microbatches: int) -> Schedule:
    """All forwards, chunk after chunk; all input gradients back; weight gradients in between."""
    stages = []
    for _ in range(num_stages):
        ops = [Op("F", m, c) for c in range(num_chunks) for m in range(num_microbatches)]
        for c in reversed(range(num_chunks)):
            ops += [Op("B", m, c) for m in range(num_microbatches)]
            ops += [Op("W", m, c) for m in reversed(range(num_microbatches))]
        stages.append(tuple(ops))
    return tuple(stages)


def both_at_once(num_stages: int, num_chunks: int, num_microbatches: int) -> Schedule:
    """As `split_backwards`, with B and W in one go."""
    return tuple(
        tuple(op._replace(kind="BW") if op.kind == "B" else op for op in ops if op.kind != "W")
        for ops in split_backwards(num_stages, num_chunks, num_microbatches)
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any engine, shape, tensor parallelism and speed; sequences that share exchanges or not."""
    tp, pp = draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 4))
    chunks, ranks = draw(st.sampled_from([1, 1, 2])), draw(st.sampled_from([1, 2, 3, 6, 8, 12]))
    count = draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    layers = tuple(tuple(row) for row in split_layers(32, pp, chunks))
    speed = tuple(rng.choice([0.5, 0.9, 1.0, 1.25], ranks)) if draw(st.booleans()) else None
    cost = replace(
        cost_model(ranks, pp, tp),
        layers=layers,
        engine=draw(st.sampled_from(["nested", "ring"])),
        rank_speed=speed,
    )
    degrees = legal_degrees(ranks)
    places = []
    for _ in range(draw(st.integers(1, 14))):
        degree = int(rng.choice(degrees))
        shapes = cost.shapes(degree)
        u, r = shapes[rng.integers(len(shapes))]
        first = int(rng.integers(ranks // degree)) * degree
        places.append(Place(int(rng.integers(1, 9000)), first, u, r, int(rng.integers(count))))
    build = draw(st.sampled_from([split_backwards, both_at_once, one_f_one_b]))
    schedule = build(pp, chunks, count) if build is not one_f_one_b else one_f_one_b(pp, count)
    if chunks > 1 and build is one_f_one_b:
        schedule = both_at_once(pp, chunks, count)
    return Case(cost, placed_sequences(places), count, schedule)


def simulated_s(case: Case, order: np.ndarray, scale: FloatArray | None = None) -> float:  # type: ignore[type-arg]
    """The same by the simulator that keeps every op; `order[i]` runs i-th."""
    slots = slot_times(case.cost, case.placed, case.num_microbatches)
    op_s = slots.op_s if scale is None else slots.op_s * scale.T
    in_order = replace(
        slots,
        op_s=op_s[..., order],
        rows=slots.rows[:, order],
        component=slots.component[:, order],
        boundary_s=slots.boundary_s[:, order],
    )
    return shares(simulate(in_order, case.schedule))["iteration_s"]


@given(cases(), st.sampled_from(ORDERS))
def test_the_lean_run_takes_as_long_as_the_one_that_keeps_everything(case: Case, name: str) -> None:
    slots = slots_of(case.cost, case.placed, case.num_microbatches)
    order = microbatch_order(name, slots.load_s.T)
    found = iteration_s(slots, case.schedule, order)
    assert found == pytest.approx(simulated_s(case, order), rel=1e-12)


@given(cases(), st.integers(0, 99))
def test_a_factor_on_every_slot_scales_all_its_ops(case: Case, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scale = np.exp(rng.normal(0, 0.3, (case.num_microbatches, case.cost.ranks)))
    order = rng.permutation(case.num_microbatches)
    slots = slots_of(case.cost, case.placed, case.num_microbatches)
    found = iteration_s(slots, case.schedule, order, scale)
    assert found == pytest.approx(simulated_s(case, order, scale), rel=1e-12)
    ones = np.ones_like(scale)
    assert iteration_s(slots, case.schedule, order, ones) == iteration_s(
        slots, case.schedule, order
    )


@settings(max_examples=50)
@given(cases())
def test_slots_hold_the_same_as_those_of_the_simulator(case: Case) -> None:
    slots = slots_of(case.cost, case.placed, case.num_microbatches)
    kept = slot_times(case.cost, case.placed, case.num_microbatches)
    np.testing.assert_allclose(slots.load_s, kept.load_s.T, rtol=1e-12)
    assert (slots.filled == (kept.rows.T > 0)).all()
    assert (slots.component == kept.component.T).all()
    assert (slots.padded == kept.rows.T + (-kept.rows.T % case.cost.tp)).all()
    np.testing.assert_allclose(slots.boundary_s, kept.boundary_s.T, rtol=1e-12)
    assert slots.padded.sum() - slots.filled.size * (case.cost.tp - 1) <= (
        case.placed.length_tokens.sum()
    )


@settings(max_examples=50)
@given(cases())
def test_the_order_of_the_rows_does_not_matter(case: Case) -> None:
    """`slots_of` takes placed rows as they come; the simulator's slots too."""
    slots = slots_of(case.cost, case.placed, case.num_microbatches)
    backwards = case.placed.take(np.arange(len(case.placed))[::-1])
    again = slots_of(case.cost, backwards, case.num_microbatches)
    np.testing.assert_allclose(again.load_s, slots.load_s, rtol=1e-12)
    assert (again.padded == slots.padded).all()
    assert (again.component == slots.component).all()


def test_whole_numbers_give_the_same_to_the_last_bit() -> None:
    """Costs replaced by whole numbers, so that no sum rounds."""
    rng = np.random.default_rng(1)
    for _ in range(60):
        p, lanes, m = (int(rng.integers(1, 5)) for _ in range(3))
        cost = cost_model(lanes, p)
        places = [
            Place(int(rng.integers(1, 50)), int(rng.integers(lanes)), 1, 1, int(rng.integers(m)))
            for _ in range(6)
        ]
        slots = slots_of(cost, placed_sequences(places), m)
        joined = rng.random((m, lanes)) < 0.5
        joined[:, 0] = False
        whole = replace(
            slots,
            attention_s=rng.integers(0, 50, slots.attention_s.shape).astype(float),
            padded=rng.integers(0, 9, slots.padded.shape).astype(float),
            component=np.maximum.accumulate(np.where(joined, 0, np.arange(lanes)), axis=1),
            boundary_s=rng.integers(0, 9, slots.boundary_s.shape).astype(float),
        )
        for name in ("call_s", "row_s"):
            seconds = rng.integers(0, 9, getattr(cost, name).shape).astype(float)
            cost.__dict__[name] = seconds  # cached properties of a frozen dataclass
        kept = slot_times(cost, placed_sequences(places), m)
        layers = np.array(cost.layers, float)[:, :, None, None]
        op_s = np.stack(
            [cost.call_s[k][..., None, None] + cost.row_s[k][..., None, None] * whole.padded.T
             + (layers * whole.attention_s[k].T if k < 2 else 0) for k in range(3)]
        )  # fmt: skip
        same = replace(
            kept, op_s=op_s, rows=whole.filled.T.astype(np.int64),
            component=whole.component.T, boundary_s=whole.boundary_s.T,
        )  # fmt: skip
        schedule = one_f_one_b(p, m)
        found = iteration_s(whole, schedule, np.arange(m))
        timeline = simulate(same, schedule)
        ends = [float(e.max()) + s for e, s in zip(timeline.end_s, kept.grad_sync_s, strict=True)]
        assert found == max(ends)


def test_an_order_that_waits_for_itself_is_named_and_does_not_hang() -> None:
    slots = slots_of(cost_model(1), placed_sequences([Place(10)]), 1)
    with pytest.raises(Infeasible, match="stage 0 cannot go on"):
        iteration_s(slots, ((Op("BW", 0), Op("F", 0)),), np.arange(1))
