"""Lowering: each stage's op order is kept, each message sent once and received once, in time."""

from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.errors import Infeasible
from hydraplan.model import Op, Schedule
from hydraplan.planner.pipeline.lowering import (
    Step,
    Steps,
    incoming,
    lane_steps,
    lower,
    outgoing,
    receive_at_use,
)
from hydraplan.planner.pipeline.schedules import one_f_one_b
from hydraplan.route import Route, route
from tests.planner.orders import random_order


class Order(NamedTuple):
    """A legal order and the way it takes."""

    schedule: Schedule
    route: Route
    num_microbatches: int


@st.composite
def orders(draw: st.DrawFn) -> Order:
    name = draw(st.sampled_from(["loop", "v", "both"]))
    stages, count = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    chunks = draw(st.integers(1, 3)) if name == "loop" else 2
    schedule = random_order(name, stages, chunks, count, draw(st.integers(0, 1 << 30)))
    return Order(schedule, route(name, stages, chunks), count)


def written(steps: tuple[Step, ...]) -> str:
    """A list in short: F0 and BW0 are ops, s and r sends and receives, f and b the way."""
    return " ".join(
        f"{step.op.kind}{step.op.microbatch}"
        if step.op
        else f"{step.kind[0]}({step.message.way[0]}{step.message.microbatch})"  # type: ignore[union-attr]
        for step in steps
    )


def test_the_lists_of_two_stages_of_1f1b_read_as_written_by_hand() -> None:
    steps = lower(one_f_one_b(2, 2), route("loop", 2, 1), 2)
    assert [written(stage) for stage in steps] == [
        "F0 s(f0) F1 s(f1) r(b0) BW0 r(b1) BW1",
        "r(f0) F0 BW0 r(f1) s(b0) F1 BW1 s(b1)",
    ]


@settings(max_examples=60)
@given(orders())
def test_op_orders_are_kept_and_every_message_is_sent_once_and_received_once(order: Order) -> None:
    for steps in (
        lower(order.schedule, order.route, order.num_microbatches),
        receive_at_use(order.schedule, order.route),
    ):
        assert tuple(tuple(s.op for s in stage if s.op) for stage in steps) == order.schedule
        crossing = Counter(
            message
            for stage, ops in enumerate(order.schedule)
            for message in (outgoing(stage, op, order.route) for op in ops)
            if message is not None and not message.is_local
        )
        for kind, side in (("send", "from_stage"), ("receive", "to_stage")):
            found = Counter()
            for stage, stage_steps in enumerate(steps):
                for step in stage_steps:
                    if step.kind == kind:
                        assert getattr(step.message, side) == stage
                        found[step.message] += 1
            assert found == crossing
        assert set(crossing.values()) <= {1}


@settings(max_examples=60)
@given(orders())
def test_a_message_is_received_before_its_use_and_sent_right_after_its_op(order: Order) -> None:
    steps = lower(order.schedule, order.route, order.num_microbatches)
    for stage, stage_steps in enumerate(steps):
        received = set()
        last_op = None
        for step in stage_steps:
            if step.kind == "receive":
                received.add(step.message)
            elif step.kind == "send":
                assert last_op is not None
                assert step.message == outgoing(stage, last_op, order.route)
            else:
                last_op = step.op
                assert last_op is not None
                needed = incoming(stage, last_op, order.route)
                assert needed is None or needed.is_local or needed in received


def pair_orders(steps: Steps, kind: str) -> dict[tuple[int, int], list[object]]:
    found: dict[tuple[int, int], list[object]] = {}
    for stage in steps:
        for step in stage:
            if step.kind == kind:
                pair = (step.message.from_stage, step.message.to_stage)  # type: ignore[union-attr]
                found.setdefault(pair, []).append(step.message)
    return found


@settings(max_examples=60)
@given(orders())
def test_every_pair_receives_in_the_order_it_sends(order: Order) -> None:
    steps = lower(order.schedule, order.route, order.num_microbatches)
    assert pair_orders(steps, "send") == pair_orders(steps, "receive")


@settings(max_examples=60)
@given(orders())
def test_no_receive_could_be_put_off_past_another_op(order: Order) -> None:
    """A receive stands before another message, or before the op that uses it or a later one."""
    for stage, stage_steps in enumerate(lower(order.schedule, order.route, order.num_microbatches)):
        run: list[object] = []
        for step in stage_steps:
            if step.kind == "receive":
                run.append(step.message)
                continue
            if run and step.op is not None:
                assert incoming(stage, step.op, order.route) == run[-1]
            run = []
        assert not run


@settings(max_examples=40)
@given(orders(), st.integers(0, 99))
def test_a_lane_leaves_out_the_messages_of_slots_without_rows(order: Order, seed: int) -> None:
    rows = np.random.default_rng(seed).integers(0, 2, order.num_microbatches)
    steps = lower(order.schedule, order.route, order.num_microbatches)
    for full, lane in zip(steps, lane_steps(steps, rows), strict=True):
        assert lane == tuple(s for s in full if s.op or rows[s.message.microbatch])  # type: ignore[union-attr]


def test_chunks_of_the_same_stage_send_nothing() -> None:
    steps = lower(random_order("v", 3, 2, 2, 0), route("v", 3, 2), 2)
    assert all(not s.message.is_local for stage in steps for s in stage if s.message)
    down = incoming(2, Op("F", 0, 1), route("v", 3, 2))
    assert down is not None
    assert down.is_local
    alone = lower(random_order("loop", 1, 3, 2, 0), route("loop", 1, 3), 2)
    assert all(step.kind == "compute" for step in alone[0])


def test_a_joined_pair_gets_both_its_messages_before_it_begins() -> None:
    joined = (Op("F", 1, 0, joined=True), Op("BW", 0, 0))
    schedule = (
        (Op("F", 0), Op("F", 1), Op("BW", 0), Op("BW", 1)),
        (Op("F", 0), *joined, Op("BW", 1)),
        (Op("F", 0), Op("BW", 0), Op("F", 1), Op("BW", 1)),
    )
    steps = lower(schedule, route("loop", 3, 1), 2)
    assert written(steps[1]) == "r(f0) F0 s(f0) r(f1) r(b0) F1 BW0 s(f1) s(b0) r(b1) BW1 s(b1)"


def test_an_order_that_can_never_go_on_is_refused() -> None:
    crossed = ((Op("F", 0), Op("BW", 0)), (Op("BW", 0), Op("F", 0)))
    with pytest.raises(Infeasible, match="stage 0 cannot go on"):
        lower(crossed, route("loop", 2, 1), 1)
