"""Proof that lists of steps cannot get stuck, or the shortest circle of waits in words.

Lists that are whole (`faults`) get stuck under a transport exactly if the graph of their waits
(`wait_graph`) has a cycle: without one some step can always be the next.

A plan is proven at the size of one lane. All lanes of a stage have one list, from which a lane
only leaves out messages of slots without rows. Merge the nodes of all lanes: every wait of a lane
becomes an edge, or a path where something is left out, so a cycle of the whole would be a cycle
of the merged graph, or lie within the exchanges of one op. The first is searched for once. The
second depends on nothing but the microbatch: exchanges are the same on every stage and in every
chunk, and B runs them backwards; and lanes that run the same ones in the same order count once.

Source: acyclic means free of deadlock is standard; the merging over lanes is derived here.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from hydraplan.errors import Infeasible
from hydraplan.layout import MAX_RANKS, expand
from hydraplan.model import BatchPlan, Op, Schedule, Sequences
from hydraplan.planheader import PlanHeader
from hydraplan.planner.pipeline.lowering import (
    Message,
    Step,
    Steps,
    incoming,
    lower,
    outgoing,
    receive_at_use,
)
from hydraplan.planner.pipeline.shortest_cycle import shortest_cycle
from hydraplan.planner.pipeline.wait_graph import (
    EVERY_LANE,
    TRANSPORTS,
    Exchange,
    Meetings,
    Transport,
    own_inputs,
    plain,
    wait_graph,
)
from hydraplan.planner.pipeline.wait_words import Names, told
from hydraplan.route import Route, route
from hydraplan.slots import buckets


def check_deadlock(header: PlanHeader, batch: BatchPlan) -> list[str]:
    """Sentences about how the lowered steps of a batch get stuck; empty if no transport can.

    The batch must obey the invariants, `schedule` among them.
    """
    if "schedule" not in header.invariants:
        return [f"batch {batch.batch}: the plan does not promise schedule, on which a proof rests"]
    cost = header.cost_model()
    meetings = meetings_of(batch.sequences.placed(), at_least=2)
    found = deadlock_of_batch(
        batch.schedule, cost.route, batch.num_microbatches, cost.ranks, meetings
    )
    return [f"batch {batch.batch}: {found}"] if found else []


def deadlock_of_batch(
    schedule: Schedule, way: Route, num_microbatches: int, num_ranks: int, meetings: Meetings
) -> str:
    """How the lowered steps of a batch get stuck, on all lanes and stages; "" if no transport can.

    An order that is not legal is told with receives right before their use, as tags allow: no
    transport gets through it. A lane that meets one group cannot cross another, so `meetings` may
    leave it out.
    """
    try:
        steps = lower(schedule, way, num_microbatches)
    except Infeasible as error:
        steps = receive_at_use(schedule, way)
        found = find_deadlock({EVERY_LANE: steps}, way, LOOSEST, num_ranks) or str(error)
        return f"no transport gets through this order of ops; {found}"
    found = find_deadlock({EVERY_LANE: steps}, way, STRICTEST, num_ranks)
    different: dict[int, dict[tuple[Exchange, ...], int]] = defaultdict(dict)
    for (lane, microbatch), exchanges in meetings.items():
        different[microbatch].setdefault(exchanges, lane)
    for microbatch, lanes in different.items():
        forward: Steps = ((Step("compute", op=Op("F", microbatch)),),)
        alone = dict.fromkeys(lanes.values(), forward)
        found = found or find_deadlock(alone, route("loop", 1, 1), LOOSEST, num_ranks, meetings)
    return found


def one_line(circle: str) -> str:
    """A circle as errors tell it, which have one line."""
    return " ".join(circle.replace(":\n", ":").replace("\n", ";").split())


LOOSEST: Transport = "tagged"
STRICTEST: Transport = "blocking"
"""Waits for all that the others wait for, so free of cycles under it is so under each."""


def find_deadlock(
    lanes: Mapping[int, Steps],
    way: Route,
    transport: Transport,
    num_ranks: int,
    meetings: Meetings | None = None,
) -> str:
    """What keeps lists of steps from finishing, a sentence a line; "" if they finish.

    Args:
        lanes: Steps of each lane, by lane; `EVERY_LANE` for one list that stands for all.
        num_ranks: Lanes of a stage, by which ranks are numbered.
        meetings: What each lane exchanges; None for nothing.
    """
    names = Names(num_ranks, way.num_chunks)
    broken = [text for lane, steps in lanes.items() for text in faults(lane, steps, way, names)]
    if broken:
        return "\n  ".join(("lists of steps that cannot finish:", *broken))
    cycle = shortest_cycle(wait_graph(lanes, way, transport, meetings or {}))
    if not cycle:
        return ""
    head = f"ranks wait for each other in a circle ({transport}: {TRANSPORTS[transport]}):"
    return "\n  ".join((head, *told(cycle, names)))


def faults(lane: int, steps: Steps, way: Route, names: Names) -> Iterator[str]:
    """What is wrong with the lists of a lane before any transport has its say.

    Every message that is in some list must be sent once, right after the op it comes from or
    later, and received once, before the op that uses it; what an op is computed from must run.
    """
    sent: dict[Message, int] = {}
    received: dict[Message, int] = {}
    made: dict[Message, int] = {}
    used: dict[Message, int] = {}
    for stage, stage_steps in enumerate(steps):
        rank = names.rank(stage, lane)
        results = {plain(step.op) for step in stage_steps if step.op}
        for position, step in enumerate(stage_steps):
            if step.message is not None:
                here, there = (
                    (sent, step.message.from_stage)
                    if step.kind == "send"
                    else (received, step.message.to_stage)
                )
                if step.message in here or there != stage:
                    again = "again" if there == stage else "though it is not its own"
                    yield f"{rank} {step.kind}s {names.message(step.message)} {again}"
                here[step.message] = position
                continue
            assert step.op is not None
            going, coming = outgoing(stage, step.op, way), incoming(stage, step.op, way)
            if going is not None:
                made[going] = position
            if coming is not None:
                used[coming] = position
            for needed in own_inputs(stage, step.op, way):
                if needed not in results:
                    yield f"{rank} runs {names.op(step.op)}, but never {names.op(needed)}"
    last = max(map(len, steps))
    for message in sent.keys() | received.keys():
        sender, receiver = (
            names.rank(stage, lane) for stage in (message.from_stage, message.to_stage)
        )
        text = names.message(message)
        if message not in sent:
            yield f"{receiver} receives {text}, but {sender} never sends them"
        elif made.get(message, last) > sent[message]:
            yield f"{sender} sends {text} without having computed them"
        if message not in received:
            yield f"{sender} sends {text}, but {receiver} never receives them"
        elif used.get(message, -1) < received[message]:
            yield f"{receiver} receives {text} too late for their use"


def meetings_of(
    placed: Sequences, at_least: int = 1
) -> dict[tuple[int, int], tuple[Exchange, ...]]:
    """What the lanes exchange in each microbatch, in the order F runs it.

    One exchange for the sequences that share lanes, as the engine runs them, ordered by the first
    of them. Lanes with fewer than `at_least` are left out. `placed` holds only rows on ranks, in
    execution order.
    """
    lead = np.sort(buckets(placed)[1])
    lead = lead[placed.degree[lead] > 1]
    which, member = expand(placed.degree[lead])
    lane, microbatch = placed.first_rank[lead][which] + member, placed.microbatch[lead][which]
    slot = np.unique(microbatch * MAX_RANKS + lane, return_inverse=True)[1]
    every = [
        Exchange(*values)
        for values in zip(
            placed.microbatch[lead].tolist(),
            placed.first_rank[lead].tolist(),
            placed.degree[lead].tolist(),
            placed.sequence_id[lead].tolist(),
            strict=True,
        )
    ]
    found: dict[tuple[int, int], list[Exchange]] = defaultdict(list)
    often = np.flatnonzero(np.bincount(slot)[slot] >= at_least)
    for r, m, i in zip(
        lane[often].tolist(), microbatch[often].tolist(), which[often].tolist(), strict=True
    ):
        found[r, m].append(every[i])
    return {of: tuple(exchanges) for of, exchanges in found.items()}
