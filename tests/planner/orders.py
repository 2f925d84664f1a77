"""Op orders for tests: every canonical schedule, and random orders that can be run."""

import random

from hydraplan.model import Op, Schedule
from hydraplan.planner.pipeline.lowering import Steps, came_from
from hydraplan.planner.pipeline.schedules import SCHEDULES
from hydraplan.route import Route, RouteName, route

Key = tuple[int, str, int, int]  # stage, kind, microbatch, chunk


def random_order(
    name: RouteName, num_stages: int, num_chunks: int, num_microbatches: int, seed: int
) -> Schedule:
    """Some order in which every op finds its inputs: ops that can run are drawn until none is left.

    B and W are split or in one go, drawn for every slot. On route `both` even microbatches go
    one way, odd ones the other.
    """
    rng = random.Random(seed)
    way = route(name, num_stages, num_chunks)
    waiting: list[tuple[int, Op]] = []
    for stage in range(num_stages):
        for chunk in range(num_chunks):
            for m in range(num_microbatches):
                if name == "both" and chunk != m % 2:
                    continue
                backward = ("BW",) if rng.random() < 0.5 else ("B", "W")
                waiting += [(stage, Op(kind, m, chunk)) for kind in ("F", *backward)]  # type: ignore[arg-type]
    missing: dict[Key, int] = {}
    feeds: dict[Key, list[Key]] = {}
    named = {key(stage, op): op for stage, op in waiting}
    for stage, op in waiting:
        m, chunk = op.microbatch, op.chunk
        needed = [(stage, kind, m, chunk) for kind in {"F": "", "W": "B"}.get(op.kind, "F")]
        source = came_from(stage, op, way)
        if source is not None:
            needed.append((source[0], "F" if op.kind == "F" else "B", m, source[1]))
        missing[key(stage, op)] = len(needed)
        for other in needed:
            feeds.setdefault(other, []).append(key(stage, op))
    ready = [name for name, count in missing.items() if count == 0]
    stages: list[list[Op]] = [[] for _ in range(num_stages)]
    while ready:
        drawn = ready.pop(rng.randrange(len(ready)))
        stages[drawn[0]].append(named[drawn])
        for other in feeds.get(drawn, []):
            missing[other] -= 1
            if missing[other] == 0:
                ready.append(other)
    assert sum(map(len, stages)) == len(waiting)
    return tuple(tuple(ops) for ops in stages)


def key(stage: int, op: Op) -> Key:
    """An op by what it makes: BW as B."""
    return stage, "B" if op.kind == "BW" else op.kind, op.microbatch, op.chunk


def made(name: str, num_stages: int, num_microbatches: int) -> tuple[Schedule, Route]:
    """A schedule of the table, of two chunks where it takes any number, and its way."""
    pipeline = SCHEDULES[name]
    chunks = pipeline.chunks or 2
    schedule = pipeline.make(num_stages, num_microbatches, chunks)
    return schedule, route(pipeline.route, num_stages, chunks)


def swapped(steps: Steps, stage: int, i: int, j: int) -> Steps:
    """Lists with two steps of a stage in each other's place."""
    listed = list(steps[stage])
    listed[i], listed[j] = listed[j], listed[i]
    return (*steps[:stage], tuple(listed), *steps[stage + 1 :])
