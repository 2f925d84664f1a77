"""Who waits for whom when lists of steps are run: a graph, and its edges in words.

Nodes are ops, messages and exchanges. A message is one node for its sender and its receiver, an
exchange of a context-parallel group one node for all its lanes: all of them must come. Edges hold
on one rank, from what comes first to what waits for it:

* an op waits for the op before it on its rank, for what it is computed from, and for exchanges;
* a message waits for the op before it on either side, and by transport for other messages:
  `tagged` none; `fifo` those before it from the same sender to the same receiver, in both lists;
  `ordered` all messages before it on either side; `blocking` the same, and ops wait for the
  messages before them as well.

Each transport has all waits of those before it, directly or through other steps. F of a
microbatch runs the exchanges of a lane in their order, once a layer, B backwards; one layer
stands for all, since layers repeat the same order. W meets nobody.

Source: merging message and receiver into one node is standard for rendezvous; exchanges as
merged nodes and the four sets of edges are ours.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from hydraplan.model import Op
from hydraplan.planner.pipeline.lowering import Message, Step, Steps, Way, came_from, incoming
from hydraplan.route import Route

Transport = Literal["tagged", "fifo", "ordered", "blocking"]

TRANSPORTS: dict[Transport, str] = {
    "tagged": "non-blocking with tags, as gloo",
    "fifo": "non-blocking in the order of a pair, without tags",
    "ordered": "one message of a rank after the other, as NCCL on one stream",
    "blocking": "every send and receive holds up its rank",
}
"""Transport models in words, from the one that waits least to the one that waits most."""

EVERY_LANE = -1
"""Stands for all lanes of a stage, whose lists are the same."""


class Exchange(NamedTuple):
    """Attention of one group in one microbatch; `sequence_id` of its first sequence."""

    microbatch: int
    first_lane: int
    degree: int
    sequence_id: int


Meetings = Mapping[tuple[int, int], tuple[Exchange, ...]]
"""Exchanges of (lane, microbatch) in the order F runs them; left out where there is none."""


class Rank(NamedTuple):
    """One stage of one lane; `is_input`: an op waits there for one it is computed from."""

    stage: int
    lane: int
    is_input: bool = False


class Ran(NamedTuple):
    """Ops that begin together on a rank: one, or a joined pair."""

    rank: Rank
    ops: tuple[Op, ...]


class Moved(NamedTuple):
    """A message of a lane."""

    lane: int
    message: Message


class Met(NamedTuple):
    """An exchange of a stage in the forward or backward of a chunk."""

    stage: int
    way: Way
    chunk: int
    exchange: Exchange


Node = Ran | Moved | Met
WaitGraph = dict[Node, dict[Node, Rank]]
"""`graph[a][b]`: the rank on which b waits for a."""


def wait_graph(
    lanes: Mapping[int, Steps], route: Route, transport: Transport, meetings: Meetings
) -> WaitGraph:
    """The graph of well-formed lists (`deadlock.faults`), `lanes[lane]` those of a lane."""
    graph: WaitGraph = {}
    for lane, steps in lanes.items():
        carried = {step.message for stage in steps for step in stage if step.message}
        for stage, stage_steps in enumerate(steps):
            rank = Rank(stage, lane)
            nodes = ran_together(rank, stage_steps)
            _add_order(graph, rank, nodes, stage_steps, transport, meetings)
            _add_inputs(graph, rank, nodes, route, carried)
    return graph


def ran_together(rank: Rank, steps: Sequence[Step]) -> dict[Op, Ran]:
    """The node of every op of a rank."""
    nodes: dict[Op, Ran] = {}
    half: tuple[Op, ...] = ()
    for op in (step.op for step in steps if step.op):
        half = (*half, op)
        if not op.joined:
            nodes |= dict.fromkeys(half, Ran(rank, half))
            half = ()
    return nodes | dict.fromkeys(half, Ran(rank, half))


def own_inputs(stage: int, op: Op, route: Route) -> list[Op]:
    """Ops of the same rank that an op is computed from, B standing for B or BW."""
    m, chunk = op.microbatch, op.chunk
    found = {"F": [], "W": [Op("B", m, chunk)]}.get(op.kind, [Op("F", m, chunk)])
    source = came_from(stage, op, route)
    if source is not None and source[0] == stage:
        found.append(Op("F" if op.kind == "F" else "B", m, source[1]))
    return found


def plain(op: Op) -> Op:
    """The op as its results are asked for: BW as B, joined or not."""
    return Op("B" if op.kind == "BW" else op.kind, op.microbatch, op.chunk)


def _add_order(
    graph: WaitGraph,
    rank: Rank,
    nodes: Mapping[Op, Ran],
    steps: Sequence[Step],
    transport: Transport,
    meetings: Meetings,
) -> None:
    """Edges from what stands earlier in a list and is waited for."""
    last: Node | None = None
    recent: dict[object, Node] = {}

    def then(node: Node) -> None:
        _edge(graph, last, node, rank)

    for step in steps:
        if step.op is not None:
            if last != nodes[step.op]:
                then(nodes[step.op])
                last = nodes[step.op]
            if step.op.joined:
                continue
            for met in _exchanges(rank, nodes[step.op].ops, meetings):
                then(met)
                last = met
            continue
        assert step.message is not None
        moved = Moved(rank.lane, step.message)
        then(moved)
        line: object = None
        if transport == "fifo":
            line = step.kind, step.message.from_stage, step.message.to_stage
        if transport in ("fifo", "ordered"):
            _edge(graph, recent.get(line), moved, rank)
            recent[line] = moved
        if transport == "blocking":
            last = moved


def _add_inputs(
    graph: WaitGraph, rank: Rank, nodes: Mapping[Op, Ran], route: Route, carried: set[Message]
) -> None:
    """Edges from what the ops of a rank are computed from; messages that none sends are none."""
    by_result = {plain(op): node for op, node in nodes.items()}
    for op, node in nodes.items():
        for needed in own_inputs(rank.stage, op, route):
            if by_result[needed] != node:
                _edge(graph, by_result[needed], node, rank._replace(is_input=True))
        message = incoming(rank.stage, op, route)
        if message in carried:
            assert message is not None
            _edge(graph, Moved(rank.lane, message), node, rank)


def _exchanges(rank: Rank, ops: Sequence[Op], meetings: Meetings) -> list[Met]:
    """What a rank runs inside ops, in order."""
    found: list[Met] = []
    for op in ops:
        exchanges = meetings.get((rank.lane, op.microbatch), ())
        if op.kind != "W":
            way: Way = "forward" if op.kind == "F" else "backward"
            in_order = exchanges if op.kind == "F" else exchanges[::-1]
            found += [Met(rank.stage, way, op.chunk, e) for e in in_order]
    return found


def _edge(graph: WaitGraph, before: Node | None, node: Node, rank: Rank) -> None:
    graph.setdefault(node, {})
    if before is not None:
        graph.setdefault(before, {}).setdefault(node, rank)
