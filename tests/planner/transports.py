"""Lists of steps really run, step by step, over each transport: the oracle of the deadlock proof.

Knows nothing of graphs. A rank works through its list; a turn ends when no rank can go on.
"""

from collections import defaultdict, deque
from dataclasses import dataclass, field

from hydraplan.model import Op
from hydraplan.planner.pipeline.lowering import Message, Step, Steps, came_from, incoming, outgoing
from hydraplan.planner.pipeline.wait_graph import Exchange, Transport
from hydraplan.route import Route

Key = tuple[int, Message]  # lane and message


@dataclass
class Network:
    """What is posted on either side and has not met yet; `arrived` what has."""

    transport: Transport
    sends: list[Key] = field(default_factory=list)
    receives: list[Key] = field(default_factory=list)
    arrived: set[Key] = field(default_factory=set)
    lines: dict[object, deque[Key]] = field(default_factory=lambda: defaultdict(deque))

    def post(self, rank: tuple[int, int], kind: str, key: Key) -> None:
        """A rank asks for a message to be moved."""
        lane, message = key
        (self.sends if kind == "send" else self.receives).append(key)
        if self.transport == "fifo":
            self.lines[kind, lane, message.from_stage, message.to_stage].append(key)
        elif self.transport == "ordered":
            self.lines[rank].append(key)

    def move(self) -> bool:
        """Let one message arrive that both sides have posted and whose turn it is."""
        for key in self.sends:
            if key in self.receives and all(line[0] == key for line in self._lines_of(key)):
                for line in self._lines_of(key):
                    line.popleft()
                self.sends.remove(key)
                self.receives.remove(key)
                self.arrived.add(key)
                return True
        return False

    def _lines_of(self, key: Key) -> list[deque[Key]]:
        lane, message = key
        if self.transport == "fifo":
            pair = (lane, message.from_stage, message.to_stage)
            return [self.lines["send", *pair], self.lines["receive", *pair]]
        if self.transport == "ordered":
            return [self.lines[s, lane] for s in (message.from_stage, message.to_stage)]
        return []


class Machine:
    """All ranks of some lanes, each with its list."""

    def __init__(
        self,
        lanes: dict[int, Steps],
        route: Route,
        transport: Transport,
        meetings: dict[tuple[int, int], tuple[Exchange, ...]],
    ) -> None:
        self.route, self.meetings, self.lanes = route, meetings, lanes
        self.network = Network(transport)
        self.at = {(s, lane): 0 for lane, steps in lanes.items() for s in range(len(steps))}
        self.posted: set[tuple[int, int]] = set()  # ranks held up by a message they asked for
        self.asked: set[tuple[tuple[int, int], str, Key]] = set()
        self.met: dict[tuple[int, int], int] = defaultdict(int)  # exchanges done inside the op
        self.done: set[tuple[int, int, str, int, int]] = set()
        self.carried = {
            (lane, step.message)
            for lane, steps in lanes.items()
            for stage in steps
            for step in stage
            if step.message
        }

    def finishes(self) -> bool:
        """Whether every list comes to its end and every message that was sent arrives."""
        moved = True
        while moved:
            moved = any([self._go_on(rank) for rank in self.at])
            moved |= self._meet()
            while self.network.move():
                moved = True
        ended = all(self._step(rank) is None for rank in self.at)
        return ended and not self.network.sends and not self.network.receives

    def _step(self, rank: tuple[int, int]) -> Step | None:
        steps = self.lanes[rank[1]][rank[0]]
        return steps[self.at[rank]] if self.at[rank] < len(steps) else None

    def _go_on(self, rank: tuple[int, int]) -> bool:
        step = self._step(rank)
        if step is None:
            return False
        if step.message is not None:
            return self._message(rank, step.kind, step.message)
        assert step.op is not None
        if self._ready(rank, step.op) and self.met[rank] == len(self._exchanges(rank, step.op)):
            kind = "B" if step.op.kind == "BW" else step.op.kind
            self.done.add((*rank, kind, step.op.microbatch, step.op.chunk))
            self.met[rank] = 0
            self.at[rank] += 1
            return True
        return False

    def _message(self, rank: tuple[int, int], kind: str, message: Message) -> bool:
        key = (rank[1], message)
        if rank not in self.posted:
            if (rank, kind, key) in self.asked:  # twice is never what an op waits for
                return False
            if kind == "send" and not self._is_computed(rank, message):
                return False
            self.asked.add((rank, kind, key))
            self.network.post(rank, kind, key)
            self.posted.add(rank)
        elif self.network.transport == "blocking" and key not in self.network.arrived:
            return False
        if self.network.transport == "blocking" and key not in self.network.arrived:
            return True  # asked for it, which is news, but waits
        self.posted.discard(rank)
        self.at[rank] += 1
        return True

    def _is_computed(self, rank: tuple[int, int], message: Message) -> bool:
        ops = [step.op for step in self.lanes[rank[1]][rank[0]][: self.at[rank]] if step.op]
        return any(outgoing(rank[0], op, self.route) == message for op in ops)

    def _ready(self, rank: tuple[int, int], op: Op) -> bool:
        stage, lane = rank
        m, c = op.microbatch, op.chunk
        needs = {"F": "", "W": "B"}.get(op.kind, "F")
        if needs and (stage, lane, needs, m, c) not in self.done:
            return False
        message = incoming(stage, op, self.route)
        if message is not None and message.is_local:
            (_, chunk) = came_from(stage, op, self.route) or (stage, c)
            return (stage, lane, "F" if op.kind == "F" else "B", m, chunk) in self.done
        return (lane, message) not in self.carried or (lane, message) in self.network.arrived

    def _exchanges(self, rank: tuple[int, int], op: Op) -> tuple[Exchange, ...]:
        exchanges = self.meetings.get((rank[1], op.microbatch), ())
        return {"F": exchanges, "W": ()}.get(op.kind, exchanges[::-1])

    def _meet(self) -> bool:
        """Let every exchange happen whose lanes are all there."""
        waiting: dict[object, list[tuple[int, int]]] = defaultdict(list)
        for rank in self.at:
            step = self._step(rank)
            if step is None or step.op is None or not self._ready(rank, step.op):
                continue
            left = self._exchanges(rank, step.op)[self.met[rank] :]
            if left:
                forward = step.op.kind == "F"
                waiting[rank[0], forward, step.op.chunk, left[0]].append(rank)
        moved = False
        for (*_, exchange), ranks in waiting.items():  # type: ignore[misc]
            if len(ranks) == exchange.degree:
                moved = True
                for rank in ranks:
                    self.met[rank] += 1
        return moved
