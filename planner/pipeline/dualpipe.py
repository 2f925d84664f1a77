"""DualPipe and DualPipeV: forwards of one way run at the same time as backwards of the other.

Every stage works for two ways through the model. In DualPipe these are two copies of it, run
from both ends of the pipeline (route `both`), each by every second microbatch; in DualPipeV the
two halves of a v, each by every microbatch. In the steady state each forward of one way is
joined with a backward of the other, so that the communication of one hides behind the work of
the other; what a pair takes is up to the costs (`SlotTimes.joined`).
"""

from hydraplan.model import Op, Schedule


def dualpipe(num_stages: int, num_microbatches: int, num_chunks: int = 2) -> Schedule:
    """DualPipe: even microbatches from the first stage on, odd ones from the last.

    Numbers it is not made for are cut out of larger ones: fewer than 2 P microbatches or an odd
    number of them, and an odd number of stages (one in the middle is left out). A stage
    holds at most P + 1 chunks of a microbatch, P + 2 where P is odd.

    Source: the order of the eight steps is DeepSeek's; cutting is ours.
    """
    assert num_chunks == 2, num_chunks
    even = num_stages + num_stages % 2
    way_count = max(even, (num_microbatches + 1) // 2)
    stages = []
    for stage in range(even):
        near = int(stage >= even // 2)  # the way that enters at the nearer end
        ops = _stage(min(stage, even - 1 - stage), even // 2, way_count)
        turned = (op._replace(chunk=op.chunk ^ near) for op in ops)
        numbered = [op._replace(microbatch=2 * op.microbatch + op.chunk) for op in turned]
        stages.append(_without(numbered, num_microbatches))
    return tuple(stages[: num_stages // 2] + stages[even - (num_stages + 1) // 2 :])


def dualpipe_v(num_stages: int, num_microbatches: int, num_chunks: int = 2) -> Schedule:
    """DualPipeV: the near half of DualPipe's stages, with chunk 1 in place of the far way.

    Fewer than 2 P microbatches are cut out of so many. A stage holds at most 2 P + 1 chunks
    of a microbatch. Source: as `dualpipe`.
    """
    assert num_chunks == 2, num_chunks
    whole = max(num_microbatches, 2 * num_stages)
    stages = (_stage(stage, num_stages, whole) for stage in range(num_stages))
    return tuple(_without(ops, num_microbatches) for ops in stages)


def _stage(depth: int, half: int, count: int) -> list[Op]:
    """Ops of the stage `depth` from its end; chunk 0 is the way that enters there, 1 the other.

    Each way runs microbatches 0 to `count` - 1. `half`: stages from an end to the middle.
    """
    ops: list[Op] = []
    forwards, backwards, waiting = [0, 0], [0, 0], []

    def forward(way: int, joined: bool = False) -> None:
        ops.append(Op("F", forwards[way], way, joined))
        forwards[way] += 1

    def backward(way: int, split: bool = False) -> None:
        op = Op("B" if split else "BW", backwards[way], way)
        ops.append(op)
        backwards[way] += 1
        if split:
            waiting.append(op._replace(kind="W"))

    def pair(forward_way: int, backward_way: int) -> None:
        forward(forward_way, joined=True)
        backward(backward_way)

    inner = half - 1 - depth  # stages between this one and the middle
    for _ in range(2 * inner):
        forward(0)
    for _ in range(depth + 1):
        forward(0)
        forward(1)
    for _ in range(inner):
        backward(1, split=True)
        ops.append(waiting.pop(0))
        forward(1)
    for step in range(count - 2 * half + depth + 1):
        if step == 0 and inner == 0:  # at the middle nothing is there yet to join
            forward(0)
            backward(1)
        else:
            pair(0, 1)
        pair(1, 0)
    for _ in range(inner):
        backward(1)
        pair(1, 0)
    for step in range(2 * (depth + 1)):
        backward(1 - step % 2, split=step > depth)
    for _ in range(inner):
        ops.append(waiting.pop(0))
        backward(0, split=True)
    return ops + waiting


def _without(ops: list[Op], num_microbatches: int) -> tuple[Op, ...]:
    """Only these microbatches; a forward whose partner is left out runs by itself."""
    kept = []
    for op, partner in zip(ops, [*ops[1:], None], strict=True):
        if op.microbatch < num_microbatches:
            alone = partner is None or partner.microbatch >= num_microbatches
            kept.append(op._replace(joined=op.joined and not alone))
    return tuple(kept)
