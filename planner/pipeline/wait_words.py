"""A circle of waits in words that name rank, op, microbatch and peer."""

from dataclasses import dataclass
from itertools import groupby

from hydraplan.model import Op
from hydraplan.planner.pipeline.lowering import Message
from hydraplan.planner.pipeline.wait_graph import EVERY_LANE, Met, Moved, Node, Ran, Rank


@dataclass(frozen=True, slots=True)
class Names:
    """How ranks and ops are called in a run of `num_ranks` lanes and `num_chunks` chunks."""

    num_ranks: int
    num_chunks: int

    def rank(self, stage: int, lane: int) -> str:
        """A rank, or all ranks of a stage."""
        first = stage * self.num_ranks
        if lane != EVERY_LANE:
            return f"rank {first + lane} (stage {stage}, lane {lane})"
        last = f"..{first + self.num_ranks - 1}" if self.num_ranks > 1 else ""
        return f"stage {stage} (rank{'s' if last else ''} {first}{last})"

    def peer(self, stage: int, lane: int) -> str:
        """The other end of a message."""
        return f"stage {stage}" if lane == EVERY_LANE else f"rank {stage * self.num_ranks + lane}"

    def op(self, op: Op) -> str:
        """An op with its microbatch."""
        chunk = f", chunk {op.chunk}" if self.num_chunks > 1 else ""
        return f"{op.kind} of microbatch {op.microbatch}{chunk}"

    def message(self, message: Message) -> str:
        """What travels."""
        what = "activations" if message.way == "forward" else "gradients"
        to = f" for chunk {message.to_chunk}" if self.num_chunks > 1 else ""
        return f"the {what} of microbatch {message.microbatch}{to}"

    def does(self, node: Node, rank: Rank, done: bool = False) -> str:
        """What a rank does, or has done, at a node."""
        if isinstance(node, Ran):
            return f"{'run' if done else 'runs'} {' with '.join(map(self.op, node.ops))}"
        if isinstance(node, Met):
            microbatch, first, degree, sequence = node.exchange
            op = self.op(Op("F" if node.way == "forward" else "B", microbatch, node.chunk))
            lanes = f"lanes {first}..{first + degree - 1}"
            return f"{'met' if done else 'meets'} {lanes} for sequence {sequence} in {op}"
        assert isinstance(node, Moved)
        text = self.message(node.message)
        if node.message.from_stage == rank.stage:
            peer = self.peer(node.message.to_stage, node.lane)
            return f"{'sent' if done else 'sends'} {text} to {peer}"
        peer = self.peer(node.message.from_stage, node.lane)
        return f"{'received' if done else 'receives'} {text} from {peer}"


def told(cycle: list[tuple[Node, Rank]], names: Names) -> list[str]:
    """A sentence for every rank that the circle passes, from what waits back to what it waits for.

    `cycle` as of `shortest_cycle`: nodes, each with the rank on which the next one waits for it.
    """
    ranks = [rank for _, rank in cycle]
    # begin where the rank changes, so that no run is cut in two
    begin = next((i for i, rank in enumerate(ranks) if rank != ranks[i - 1]), 0)
    runs = [list(run) for _, run in groupby(cycle[begin:] + cycle[:begin], lambda item: item[1])]
    sentences = []
    for run, following in zip(runs, runs[1:] + runs[:1], strict=True):
        done, rank = run[0]
        sentences.append(
            f"{names.rank(rank.stage, rank.lane)} {names.does(following[0][0], rank)}"
            f" only after it has {names.does(done, rank, done=True)}"
            + (", which it is computed from" if rank.is_input else "")
        )
    return sentences[::-1]
