"""What limits a batch: a cause, what it is about, and the share of the iteration that it costs.

`hydraplan.planner.limits` finds them. Source: ours.
"""

from typing import Literal, NamedTuple

Cause = Literal["sequence", "lane", "order", "lanes", "fill", "grad_sync", "group_wait"]


class Limit(NamedTuple):
    """A cause and the share of the iteration that it costs.

    `sequence_id`, `lane` and `microbatch` name what it is about, -1 where it is about none; `order`
    is the better one.
    """

    cause: Cause
    share: float
    sequence_id: int = -1
    length_tokens: int = -1
    degree: int = -1
    lane: int = -1
    speed: float = 1.0
    microbatch: int = -1
    order: str = ""
