"""Interleaved 1F1B: every stage holds several chunks, so that filling costs less.

Microbatches go through in groups: all of a group pass chunk 0, then all pass chunk 1, and so on;
backwards take the chunks from the last to the first. A group as large as the pipeline has come
round just when the first stage is through with it.
"""

from itertools import pairwise

from hydraplan.model import Op, Schedule


def interleaved(num_stages: int, num_microbatches: int, num_chunks: int) -> Schedule:
    """Interleaved 1F1B for any number of microbatches.

    As many groups as there are whole pipelines of microbatches, of sizes as even as can be, so
    none is smaller than the pipeline unless there is one alone. With M >= P alike costs leave
    (P - 1)(F + B + W) / chunks idle, M a multiple of P or not. Stage s holds up to
    2 (P - 1 - s) + (chunks - 1) G + 1 chunks of a microbatch, G the largest group.

    Source: Megatron-LM for multiples of P, G = P there; the groups of other numbers are ours.
    A group smaller than P has to wait for its own tail on the first stage.
    """
    count = max(1, num_microbatches // num_stages)
    starts = [group * num_microbatches // count for group in range(count + 1)]
    groups, chunks = [range(*ends) for ends in pairwise(starts)], range(num_chunks)
    largest = max(len(group) for group in groups)
    forward = [Op("F", m, c) for group in groups for c in chunks for m in group]
    backward = [Op("BW", m, c) for group in groups for c in reversed(chunks) for m in group]
    stages = []
    for stage in range(num_stages):
        ahead = min(len(forward), 2 * (num_stages - 1 - stage) + (num_chunks - 1) * largest)
        ops = forward[:ahead]
        for position, back in enumerate(backward):
            ops += forward[position + ahead : position + ahead + 1]
            ops.append(back)
        stages.append(tuple(ops))
    return tuple(stages)
