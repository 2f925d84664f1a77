"""Proof that the sends and receives a PyTorch file names cannot hang, or the shortest circle.

A file with communication is run as it stands, so what is proven is its own order, not one that
`lowering` would make of its ops. PyTorch's runtime posts a send or a receive where its cell stands,
without tags, waits for a receive in the op that needs it, and for sends at the end. That is `fifo`
on gloo; NCCL, besides, moves the messages of a rank one after the other: `ordered`, which waits for
all that `fifo` waits for. Nothing is assumed to be buffered. `UNSHARD`, `RESHARD` and `REDUCE_GRAD`
belong to other groups and are not part of the proof.

Source: PyTorch 2.13, `_PipelineScheduleRuntime` and `_batch_p2p`, which posts single isends and
irecvs; that one stream a rank moves them is so of process groups made with `device_id`, others have
a stream a pair of ranks, which waits for less. The words and the choice of models are ours.
"""

from dataclasses import dataclass

from hydraplan.files.pytorch_csv import PyTorchSchedule, stage_indices
from hydraplan.files.pytorch_rows import COMPUTE, Action
from hydraplan.model import Op
from hydraplan.planner.pipeline.lowering import Message, Step, Steps, Way
from hydraplan.planner.pipeline.shortest_cycle import shortest_cycle
from hydraplan.planner.pipeline.wait_graph import (
    EVERY_LANE,
    TRANSPORTS,
    Moved,
    Node,
    Ran,
    Rank,
    Transport,
    wait_graph,
)
from hydraplan.planner.pipeline.wait_words import Names, told
from hydraplan.route import route

PYTORCH_TRANSPORTS: dict[Transport, str] = {
    "fifo": "neither gloo nor NCCL gets through",
    "ordered": "NCCL does not get through, though gloo does,",
}
"""What PyTorch's runtime moves messages with, and what it means that it is the first to get stuck.

The second waits for all that the first waits for.
"""

Cells = dict[tuple[int, Op | Message | None], str]
"""Where on a row, counted from 0, an op or a message stands."""


def has_messages(found: PyTorchSchedule) -> bool:
    """Whether a file names its sends and receives."""
    return any(a.word.startswith("SEND_") for row in found.rows for cell in row for a in cell)


def file_deadlock(found: PyTorchSchedule) -> str:
    """How the sends and receives of a file get stuck, a sentence a line; "" if they do not.

    A file that names none has none that get stuck. Its ops must be in an order that can run.
    """
    way = route(found.route, len(found.rows), found.num_chunks)
    steps, cells = file_steps(found)

    def circle(transport: Transport) -> list[tuple[Node, Rank]]:
        return shortest_cycle(wait_graph({EVERY_LANE: steps}, way, transport, {}))

    strictest = circle("ordered")
    if not strictest:
        return ""
    on_both = circle("fifo")
    transport: Transport = "fifo" if on_both else "ordered"
    head = (
        f"{PYTORCH_TRANSPORTS[transport]} these sends and receives; ranks wait for each other in a"
        f" circle ({transport}: {TRANSPORTS[transport]}):"
    )
    names = _CellNames(1, found.num_chunks, cells)
    return "\n  ".join((head, *told(on_both or strictest, names)))


def file_steps(found: PyTorchSchedule) -> tuple[Steps, Cells]:
    """The lists of a file, its ops, sends and receives as they stand; and their cells."""
    numbers = stage_indices(route(found.route, len(found.rows), found.num_chunks))
    place = {n: (s, c) for s, row in enumerate(numbers) for c, n in enumerate(row)}
    lists, cells = [], Cells()
    for stage, (row, ops) in enumerate(zip(found.rows, found.schedule, strict=True)):
        steps: list[Step] = []
        left = iter(ops)
        for column, cell in enumerate(row, 1):
            for action in cell:
                if action.word in COMPUTE:
                    steps.append(Step("compute", op=next(left)))
                elif action.microbatch is not None:
                    steps.append(_message_step(action, place))
                else:
                    continue
                cells[stage, steps[-1].op or steps[-1].message] = f"{action}, column {column}"
        lists.append(tuple(steps))
    return tuple(lists), cells


def _message_step(action: Action, place: dict[int, tuple[int, int]]) -> Step:
    """A send or receive; `place`: stage and chunk of each of PyTorch's numbers."""
    assert action.microbatch is not None, action
    sends, back = action.word.startswith("SEND"), action.word.endswith("B")
    step = -1 if back else 1
    sender = action.stage if sends else action.stage - step
    (from_stage, _), (to_stage, to_chunk) = place[sender], place[sender + step]
    way: Way = "backward" if back else "forward"
    message = Message(way, action.microbatch, to_chunk, from_stage, to_stage)
    return Step("send" if sends else "receive", message=message)


@dataclass(frozen=True, slots=True)
class _CellNames(Names):
    """Ranks as rows of the file, and behind all they do its cell."""

    cells: Cells

    def rank(self, stage: int, lane: int) -> str:
        return f"row {stage + 1}"

    def peer(self, stage: int, lane: int) -> str:
        return self.rank(stage, lane)

    def does(self, node: Node, rank: Rank, done: bool = False) -> str:
        assert isinstance(node, Ran | Moved), node
        what = node.ops[-1] if isinstance(node, Ran) else node.message
        return f"{Names.does(self, node, rank, done)} ({self.cells[rank.stage, what]})"
