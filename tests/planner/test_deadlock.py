"""The proof against lists really run: free of cycles exactly if every list comes to its end."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hydraplan.files.planfile import open_plan, read_batch
from hydraplan.kernels.packing import rank_layout
from hydraplan.planner.pipeline.deadlock import (
    check_deadlock,
    deadlock_of_batch,
    find_deadlock,
    meetings_of,
)
from hydraplan.planner.pipeline.lowering import Steps, lane_steps, lower, receive_at_use
from hydraplan.planner.pipeline.memory import even_memory
from hydraplan.planner.pipeline.portfolio import portfolio
from hydraplan.planner.pipeline.schedules import SCHEDULES, one_f_one_b
from hydraplan.planner.pipeline.wait_graph import TRANSPORTS, Exchange, Transport
from hydraplan.planner.pipeline.zero_bubble import zero_bubble
from hydraplan.route import Route, RouteName, route
from hydraplan.slots import SlotTimes
from tests.builders import Place, placed_sequences
from tests.planner.orders import made, random_order, swapped
from tests.planner.transports import Machine
from tests.plans import write_test_plan

LEGAL = [(name, p, m) for name in SCHEDULES for p, m in ((2, 1), (2, 4), (4, 3), (4, 8), (8, 16))]


def verdicts(steps: Steps, way: Route) -> list[str]:
    return ["cycle" if find_deadlock({0: steps}, way, t, 1) else "ok" for t in TRANSPORTS]


@pytest.mark.parametrize(("name", "num_stages", "num_microbatches"), LEGAL)
def test_every_canonical_schedule_is_free_of_deadlock_on_every_transport(
    name: str, num_stages: int, num_microbatches: int
) -> None:
    schedule, way = made(name, num_stages, num_microbatches)
    assert verdicts(lower(schedule, way, num_microbatches), way) == ["ok"] * 4


@pytest.mark.parametrize("plan", [zero_bubble, portfolio])
@pytest.mark.parametrize(("num_stages", "num_microbatches", "limit"), [(2, 5, 2), (4, 9, 5)])
def test_every_planned_order_is_free_of_deadlock_on_every_transport(
    plan: Any, num_stages: int, num_microbatches: int, limit: float
) -> None:
    way = route("loop", num_stages, 1)
    shape = (num_stages, 1, 1, num_microbatches)
    times = SlotTimes(
        op_s=np.random.default_rng(0).uniform(0.5, 2, (3, *shape)),
        rows=np.ones((1, num_microbatches), np.int64),
        component=np.zeros((1, num_microbatches), np.int64),
        boundary_s=np.full((1, num_microbatches), 0.1),
        grad_sync_s=np.zeros(num_stages),
        route=way,
    )
    schedule = plan(times, even_memory(limit, num_microbatches))
    assert verdicts(lower(schedule, way, num_microbatches), way) == ["ok"] * 4


@pytest.mark.parametrize("seeds", [range(150), pytest.param(range(1000), marks=pytest.mark.slow)])
def test_random_legal_orders_are_free_of_deadlock_on_every_transport(seeds: range) -> None:
    shapes: list[tuple[RouteName, int, int, int]] = [
        ("loop", 4, 1, 4), ("loop", 3, 2, 3), ("v", 3, 2, 3), ("both", 4, 2, 4), ("loop", 2, 3, 3),
    ]  # fmt: skip
    for seed in seeds:
        name, p, chunks, m = shapes[seed % len(shapes)]
        way = route(name, p, chunks)
        steps = lower(random_order(name, p, chunks, m, seed), way, m)
        assert verdicts(steps, way) == ["ok"] * 4, (name, seed)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpipe", ["ok", "ok", "ok", "ok"]),
        ("1f1b", ["ok", "ok", "cycle", "cycle"]),
        ("interleaved", ["ok", "ok", "cycle", "cycle"]),
        ("zb-h1", ["ok", "ok", "cycle", "cycle"]),
        ("zb-h2", ["ok", "ok", "cycle", "cycle"]),
    ],
)
def test_receiving_just_before_use_gets_stuck_where_a_separate_proof_found_it(
    name: str, expected: list[str]
) -> None:
    """Tagged, FIFO per pair, ordered rendezvous, blocking: as a first, separate proof found."""
    schedule, way = made(name, 4, 8)
    assert verdicts(receive_at_use(schedule, way), way) == expected


def test_receiving_just_before_use_gets_random_orders_through_with_tags_alone() -> None:
    """Of 100 random orders, p = 4 and m = 6, 100, 0, 0, 0 get through, by transport."""
    way = route("loop", 4, 1)
    orders = [random_order("loop", 4, 1, 6, seed) for seed in range(100)]
    found = [verdicts(receive_at_use(order, way), way) for order in orders]
    assert [sum(v[t] == "ok" for v in found) for t in range(4)] == [100, 0, 0, 0]


def placements(ranks: int, num_microbatches: int, rng: random.Random) -> list[Place]:
    places = []
    for m in range(num_microbatches):
        for _ in range(rng.randint(0 if m else 1, 4)):
            degree = rng.choice([d for d in (1, 2, 4) if d <= ranks])
            first = rng.randrange(ranks // degree) * degree
            places.append(Place(rng.randint(1, 9), first, degree, 1, m))
    return places


def case(
    name: RouteName, p: int, m: int, ranks: int, seed: int
) -> tuple[dict[int, Steps], Route, dict[tuple[int, int], tuple[Exchange, ...]]]:
    """Lowered one way or the other; then perhaps broken: steps swapped, lost or doubled."""
    rng = random.Random(seed)
    chunks = rng.randint(1, 2) if name == "loop" else 2
    way = route(name, p, chunks)
    schedule = random_order(name, p, chunks, m, seed)
    steps = lower(schedule, way, m) if rng.random() < 0.5 else receive_at_use(schedule, way)
    placed = placed_sequences(placements(ranks, m, rng))
    rows = np.zeros((ranks, m), np.int64)
    for i in range(len(placed)):
        first, degree = placed.first_rank[i], placed.degree[i]
        rows[first : first + degree, placed.microbatch[i]] += placed.length_tokens[i]
    lanes = {lane: lane_steps(steps, rows[lane]) for lane in range(ranks)}
    meetings = dict(meetings_of(placed))
    for _ in range(rng.choice([0, 0, 1, 2])):
        lane, stage = rng.randrange(ranks), rng.randrange(p)
        lanes[lane] = broken(lanes[lane], stage, rng)
    if meetings and rng.random() < 0.25:
        at = rng.choice(sorted(meetings))
        meetings[at] = tuple(rng.sample(meetings[at], len(meetings[at])))
    return lanes, way, meetings


def broken(steps: Steps, stage: int, rng: random.Random) -> Steps:
    """Two steps of a stage in each other's place, or a message step lost or doubled."""
    listed = list(steps[stage])
    i, j = rng.randrange(len(listed)), rng.randrange(len(listed))
    if listed[i].op or rng.random() < 0.7:
        listed[i], listed[j] = listed[j], listed[i]
    elif rng.random() < 0.5:
        del listed[i]
    else:
        listed.insert(j, listed[i])
    return (*steps[:stage], tuple(listed), *steps[stage + 1 :])


@settings(max_examples=400)
@given(
    st.sampled_from(["loop", "v", "both"]),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([1, 2, 4]),
    st.integers(0, 1 << 30),
    st.sampled_from(list(TRANSPORTS)),
)
def test_the_proof_holds_exactly_if_the_lists_finish_when_they_are_run(
    name: RouteName, p: int, m: int, ranks: int, seed: int, transport: Transport
) -> None:
    lanes, way, meetings = case(name, p, m, ranks, seed)
    found = find_deadlock(lanes, way, transport, ranks, meetings)
    assert (found == "") == Machine(lanes, way, transport, meetings).finishes(), found


@settings(max_examples=100)
@given(st.integers(1, 2), st.integers(0, 1 << 30), st.sampled_from(list(TRANSPORTS)))
@example(2, 224, "fifo")  # messages to different peers, which may overtake each other
def test_it_holds_too_if_messages_are_posted_earlier_and_later(
    m: int, seed: int, transport: Transport
) -> None:
    """Receives early and sends late do not change what is computed, only who waits."""
    rng = random.Random(seed)
    way = route("loop", 3, 2)
    steps = receive_at_use(random_order("loop", 3, 2, m, seed), way)
    for _ in range(rng.randint(2, 8)):
        stage = rng.randrange(3)
        listed = list(steps[stage])
        i = rng.choice([i for i, step in enumerate(listed) if step.message])
        step = listed.pop(i)
        early = step.kind == "receive"
        listed.insert(rng.randint(0, i) if early else rng.randint(i, len(listed)), step)
        steps = (*steps[:stage], tuple(listed), *steps[stage + 1 :])
    found = find_deadlock({0: steps}, way, transport, 1)
    assert (found == "") == Machine({0: steps}, way, transport, {}).finishes(), found


@settings(max_examples=60)
@given(st.sampled_from(["loop", "v"]), st.integers(1, 3), st.integers(0, 1 << 30), st.booleans())
def test_the_proof_at_the_size_of_one_lane_says_what_that_of_all_lanes_says(
    name: RouteName, p: int, seed: int, crossed: bool
) -> None:
    rng = random.Random(seed)
    ranks, m, chunks = 4, 3, 2
    way = route(name, p, chunks)
    schedule = random_order(name, p, chunks, m, seed)
    placed = placed_sequences(placements(ranks, m, rng))
    meetings = dict(meetings_of(placed))
    if crossed and meetings:
        at = rng.choice(sorted(meetings))
        meetings[at] = tuple(rng.sample(meetings[at], len(meetings[at])))
    rows = np.zeros((ranks, m), np.int64)
    for slot in meetings:
        rows[slot] = 1
    steps = lower(schedule, way, m)
    lanes = {lane: lane_steps(steps, rows[lane]) for lane in range(ranks)}
    small = deadlock_of_batch(schedule, way, m, ranks, meetings)
    for transport in TRANSPORTS:
        assert (find_deadlock(lanes, way, transport, ranks, meetings) == "") == (small == "")


@settings(max_examples=150)
@given(
    st.sampled_from(["loop", "v", "both"]), st.integers(1, 3), st.integers(1, 3),
    st.integers(0, 1 << 30),
)  # fmt: skip
def test_each_transport_waits_for_all_that_those_before_it_wait_for(
    name: RouteName, p: int, m: int, seed: int
) -> None:
    """What lets the proof ask the strictest alone."""
    lanes, way, meetings = case(name, p, m, 2, seed)
    free = [find_deadlock(lanes, way, t, 2, meetings) == "" for t in TRANSPORTS]
    assert free == sorted(free, reverse=True)


def test_exchanges_are_those_of_the_engine_in_its_order() -> None:
    rng = random.Random(3)
    for _ in range(40):
        places = placements(4, 2, rng)
        places += [Place(6, 0, 2, 2, 1), Place(3, 2, 1, 2, 0)]
        placed = placed_sequences(places)
        found = meetings_of(placed)
        for lane in range(4):
            for m in range(2):
                buckets = [b for b in rank_layout(placed, m, lane).buckets if b.degree > 1]
                expected = [Exchange(m, b.first_rank, b.degree, b.sequence_id[0]) for b in buckets]
                assert list(found.get((lane, m), ())) == expected


def test_2048_ranks_with_nested_groups_are_proven() -> None:
    """8 stages x 256 lanes x 64 microbatches, at the size of one lane."""
    schedule, way = made("1f1b", 8, 64)
    degrees = (256, 64, 16, 4, 1)
    meetings = {
        (lane, m): tuple(
            Exchange(m, lane // d * d, d, 1000 * d + lane // d) for d in degrees if d > 1
        )
        for lane in range(256)
        for m in range(64)
    }
    assert deadlock_of_batch(schedule, way, 64, 256, meetings) == ""
    meetings[17, 5] = meetings[17, 5][::-1]
    found = deadlock_of_batch(schedule, way, 64, 256, meetings)
    assert found.splitlines()[1:] == [
        "  rank 17 (stage 0, lane 17) meets lanes 0..255 for sequence 256000 in F of microbatch"
        " 5 only after it has met lanes 0..63 for sequence 64000 in F of microbatch 5",
        "  rank 0 (stage 0, lane 0) meets lanes 0..63 for sequence 64000 in F of microbatch 5"
        " only after it has met lanes 0..255 for sequence 256000 in F of microbatch 5",
    ]


TWO = route("loop", 2, 1)


def test_two_ranks_that_both_receive_before_they_send_are_stuck_where_order_holds() -> None:
    steps = swapped(lower(one_f_one_b(2, 2), TWO, 2), 0, 3, 4)
    assert [s.kind for s in steps[0]][3:5] == ["receive", "send"]
    assert [s.kind for s in steps[1]][3:5] == ["receive", "send"]
    assert verdicts(steps, TWO) == ["ok", "ok", "cycle", "cycle"]


def test_joined_pairs_that_meet_groups_are_free_of_deadlock() -> None:
    schedule, way = made("dualpipe", 4, 8)
    meetings = {
        (lane, m): (Exchange(m, 0, 2, 2 * m), Exchange(m, 0, 2, 2 * m + 1))
        for lane in range(2)
        for m in range(8)
    }
    lanes = dict.fromkeys(range(2), lower(schedule, way, 8))
    assert any(op.joined for ops in schedule for op in ops)
    for transport in TRANSPORTS:
        assert find_deadlock(lanes, way, transport, 2, meetings) == ""


def test_a_plan_that_promises_no_schedule_is_not_proven(tmp_path: Path) -> None:
    opened = open_plan(write_test_plan(tmp_path / "a.plan", [[Place(9)]], pp=2, ranks=1))
    batch = read_batch(opened, 0)
    assert check_deadlock(opened.header, batch) == []
    without = opened.header.model_copy(update={"invariants": ("accounted",)})
    assert check_deadlock(without, batch) == [
        "batch 0: the plan does not promise schedule, on which a proof rests"
    ]
