"""Op orders for tests: every canonical schedule, and random orders that can be run."""

import random

from hydraplan.model import Op, Schedule
from hydraplan.planner.pipeline.lowering import incoming
from hydraplan.route import RouteName, route


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
    done: set[tuple[int, str, int, int]] = set()
    stages: list[list[Op]] = [[] for _ in range(num_stages)]
    while waiting:
        ready = []
        for stage, op in waiting:
            needs = {"F": [], "B": ["F"], "BW": ["F"], "W": ["B"]}[op.kind]
            needed = [(stage, kind, op.microbatch, op.chunk) for kind in needs]
            message = incoming(stage, op, way)
            if message is not None:
                ahead = way.before if op.kind == "F" else way.after
                from_chunk = int(ahead[stage, op.chunk]) % num_chunks
                kind = "F" if op.kind == "F" else "B"
                needed.append((message.from_stage, kind, op.microbatch, from_chunk))
            if all(need in done for need in needed):
                ready.append((stage, op))
        stage, op = rng.choice(ready)
        waiting.remove((stage, op))
        stages[stage].append(op)
        done.add((stage, "B" if op.kind == "BW" else op.kind, op.microbatch, op.chunk))
    return tuple(tuple(ops) for ops in stages)
