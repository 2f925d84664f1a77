"""ZB-H1 as a rule: what a stage would run next, by how much it has run so far.

A state that the order never reaches has an answer too, which leads back to it. Where a stage may
hold fewer than P microbatches, warm-up and the delay of W shrink with them.

Source: the order is `pipeline.schedules.zb_h1`; the rule and how it shrinks are ours.
"""

from hydraplan.model import IntArray
from hydraplan.planner.compiled import compiled_in_place


@compiled_in_place
def template_kind(
    stage: int, num_stages: int, num_microbatches: int, whole: int, done: IntArray
) -> int:
    """0 F, 1 B, 2 W: what comes next after `done` ops of each kind on the stage, shape (3,).

    Args:
        whole: Microbatches that a stage may hold, 1 to P.
    """
    late = stage * whole // num_stages
    ahead = -(-whole * (num_stages - stage) // num_stages)
    if done[2] < done[1] - late:
        return 2
    if done[0] < min(num_microbatches, done[1] + ahead):
        return 0
    if done[1] < num_microbatches:
        return 1
    return 2
