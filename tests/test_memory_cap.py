"""Caps derived from memory: full slots fill a device, and nothing within the cap passes it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.config import load_model
from hydraplan.cost import CostModel
from hydraplan.errors import Infeasible
from hydraplan.host import GIB
from hydraplan.memory import COMMUNICATOR_BYTES, group_bytes, stage_bytes
from hydraplan.memory_cap import fullest, holding, largest_cap
from hydraplan.memory_limit import most_communicators
from hydraplan.metrics import live_peaks
from hydraplan.model import Sequences
from hydraplan.planheader import LIVE_STAGES
from hydraplan.planner.pipeline.schedules import PLANNED_LAYOUTS, SCHEDULES, Layout
from hydraplan.planner.planned import PLANNED
from hydraplan.planner.planned_ops import memory_of
from hydraplan.slots import slot_rows, slot_times
from hydraplan.stages import split_layers
from tests.builders import Place, placed_sequences
from tests.planner.cases import cost_model, options

STATIC = [name for name, pipeline in SCHEDULES.items() if not pipeline.simulated_only]
RECOMPUTE = ["none", "selective", "full"]
MODELS = st.sampled_from(["llama-8b", "qwen-32b", "gpt3-14.6b"])


def on_layout(model: str, pp: int, ranks: int, layout: Layout, recompute: str) -> CostModel:
    """That of a model on a layout."""
    count = load_model(model).num_layers
    split = split_layers(count, pp, layout.chunks, route_name=layout.route)
    layers = tuple(tuple(row) for row in split)
    return replace(
        cost_model(ranks, pp, model=model),
        layers=layers, route_name=layout.route, recompute=recompute,
    )  # fmt: skip


def needed(cost: CostModel, schedule, placed: Sequences, count: int) -> int:
    """Bytes of the fullest stage on GPUs."""
    rows, groups = slot_rows(placed, cost.ranks, count), group_bytes(cost, placed, count)
    held = stage_bytes(cost, schedule, rows, groups=groups).sum(axis=0).max()
    return int(held) + COMMUNICATOR_BYTES * most_communicators(cost, placed)


def smallest_budget(cost: CostModel, schedule) -> float:
    """GiB beside which what no cap changes is small."""
    rows = np.ones((1, 1 + max(op.microbatch for op in schedule[0])), np.int64)
    return 1.02 * float(stage_bytes(cost, schedule, rows).sum(axis=0).max()) / GIB


@settings(max_examples=40, deadline=None)
@given(
    model=MODELS, pp=st.sampled_from([1, 2, 4, 8]), ranks=st.sampled_from([1, 8, 16]),
    pipeline=st.sampled_from(STATIC), recompute=st.sampled_from(RECOMPUTE),
    times=st.floats(1.5, 6.0), extra=st.integers(0, 8),
)  # fmt: skip
def test_full_slots_of_any_static_schedule_fill_the_budget_and_never_pass_it(
    model, pp, ranks, pipeline, recompute, times, extra
) -> None:
    chunks = SCHEDULES[pipeline].chunks or 2
    cost = on_layout(model, pp, ranks, Layout(SCHEDULES[pipeline].route, chunks), recompute)
    count = 3 * pp + extra
    schedule = SCHEDULES[pipeline].make(pp, count, chunks)
    limit = times * smallest_budget(cost, schedule) * GIB
    cap = largest_cap(cost, fullest(cost, [schedule]), limit, on_gpu=True)
    # One sequence a slot, so that slots are full of the rows that take most.
    wide = min(ranks, 8)
    places = [Place(cap * wide, 0, wide, 1, m) for m in range(count)]
    assert 0.85 * limit < needed(cost, schedule, placed_sequences(places), count) <= limit


@settings(max_examples=8, deadline=None)
@given(
    model=MODELS, pp=st.sampled_from([1, 2, 4]), name=st.sampled_from([*LIVE_STAGES]),
    recompute=st.sampled_from(RECOMPUTE), layout=st.integers(0, 2), seed=st.integers(0, 99),
    times=st.floats(1.01, 3.0),
)  # fmt: skip
def test_no_order_within_the_limit_needs_more_than_what_stands_for_it(
    model, pp, name, recompute, layout, seed, times
) -> None:
    layouts = PLANNED_LAYOUTS[name]
    cost = on_layout(model, pp, 2, layouts[layout % len(layouts)], recompute)
    asked = options(pp=pp, ranks=2, pipeline=name, recompute=recompute)
    held = holding(cost, asked.live_microbatches)
    limit = times * smallest_budget(cost, held.schedule) * GIB
    cap = largest_cap(cost, held, limit, on_gpu=True)
    rng, count = np.random.default_rng(seed), 2 * pp + 3
    rows = np.where(rng.random((2, count)) < 0.6, cap, rng.integers(1, cap + 1, (2, count)))
    places = [Place(int(rows[i, m]), i, 1, 1, m) for m in range(count) for i in range(2)]
    placed = placed_sequences(places)
    slots = slot_times(cost, placed, count)
    asked = asked.model_copy(update={"max_tokens_per_rank": cap})
    schedule = PLANNED["auto" if name == "exact" else name](slots, memory_of(cost, asked, slots))
    assert needed(cost, schedule, placed, count) <= limit


@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("layout", [Layout("loop", 1), Layout("v", 2), Layout("loop", 3)])
@pytest.mark.parametrize("live", [1, 3, 8])
def test_what_stands_for_planned_orders_fills_their_limit(live, layout, recompute) -> None:
    cost = on_layout("llama-8b", 4, 1, layout, recompute)
    held = holding(cost, live)
    asked = options(pp=4, ranks=1, pipeline="auto", live_microbatches=live, recompute=recompute)
    shares = memory_of(cost, asked, slot_times(cost, placed_sequences([Place(8)]), 1))
    # What slots hold at most counts from F on, as planned orders count it.
    most = float(shares.live[0]) / 8
    rows = np.round(held.caps * 1e6).astype(np.int64)[None]
    peak = live_peaks(held.schedule, rows, (most, (1 - shares.frees) * most)).max()
    assert peak == pytest.approx(live * 1e6, rel=1e-5)


def test_interleaved_schedules_of_few_or_odd_microbatches_hold_more() -> None:
    cost = on_layout("llama-8b", 4, 1, Layout("loop", 2), "none")
    make = SCHEDULES["interleaved"].make
    caps = {
        count: largest_cap(cost, fullest(cost, [make(4, count, 2)]), 70 * GIB, on_gpu=False)
        for count in (7, 12, 15)
    }
    assert caps[15] < caps[7] < caps[12]
    together = fullest(cost, [make(4, count, 2) for count in (12, 15, 7)])
    assert largest_cap(cost, together, 70 * GIB, on_gpu=False) == caps[15]


def test_a_device_that_cannot_hold_the_weights_is_named_for_them() -> None:
    cost = cost_model(1, 4, model="llama-70b")
    with pytest.raises(Infeasible, match=r"one token a rank needs .* on stage 3.*optimizer"):
        largest_cap(cost, fullest(cost, [SCHEDULES["1f1b"].make(4, 12, 1)]), 80 * GIB, on_gpu=True)
