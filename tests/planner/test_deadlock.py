"""The proof against lists really run: free of cycles exactly if every list comes to its end."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.model import Schedule
from hydraplan.planner.pipeline.deadlock import find_deadlock, meetings_of
from hydraplan.planner.pipeline.lowering import (
    Steps,
    lane_steps,
    lower,
    receive_at_use,
)
from hydraplan.planner.pipeline.schedules import SCHEDULES
from hydraplan.planner.pipeline.wait_graph import TRANSPORTS, Exchange, Transport
from hydraplan.route import Route, RouteName, route
from tests.builders import Place, placed_sequences
from tests.planner.orders import random_order
from tests.planner.transports import Machine

LEGAL = [(name, p, m) for name in SCHEDULES for p, m in ((2, 1), (2, 4), (4, 3), (4, 8), (8, 16))]


def made(name: str, num_stages: int, num_microbatches: int) -> tuple[Schedule, Route]:
    pipeline = SCHEDULES[name]
    chunks = pipeline.chunks or 2
    schedule = pipeline.make(num_stages, num_microbatches, chunks)
    return schedule, route(pipeline.route, num_stages, chunks)


def verdicts(steps: Steps, way: Route) -> list[str]:
    return ["cycle" if find_deadlock({0: steps}, way, t, 1) else "ok" for t in TRANSPORTS]


@pytest.mark.parametrize(("name", "num_stages", "num_microbatches"), LEGAL)
def test_every_canonical_schedule_is_free_of_deadlock_on_every_transport(
    name: str, num_stages: int, num_microbatches: int
) -> None:
    try:
        schedule, way = made(name, num_stages, num_microbatches)
    except Exception as error:
        pytest.skip(str(error))
    assert verdicts(lower(schedule, way, num_microbatches), way) == ["ok"] * 4


def test_a_thousand_random_legal_orders_are_free_of_deadlock_on_every_transport() -> None:
    shapes: list[tuple[RouteName, int, int, int]] = [
        ("loop", 4, 1, 4), ("loop", 3, 2, 3), ("v", 3, 2, 3), ("both", 4, 2, 4), ("loop", 2, 3, 3),
    ]  # fmt: skip
    for seed in range(1000):
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
def test_receiving_just_before_use_gets_stuck_where_the_notes_measured_it(
    name: str, expected: list[str]
) -> None:
    """Section 5 of notes/pipeline.md: tagged, FIFO per pair, ordered rendezvous, blocking."""
    schedule, way = made(name, 4, 8)
    assert verdicts(receive_at_use(schedule, way), way) == expected


def test_receiving_just_before_use_gets_random_orders_through_with_tags_alone() -> None:
    """Section 5 of notes/pipeline.md: of 100 random orders, p = 4 and m = 6: 100, 0, 0, 0."""
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
