"""The table of strategies: what each is called, does, and promises."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from hydraplan.planheader import PlanOptions
from hydraplan.planner.placement.draft import Draft, Request
from hydraplan.planner.placement.exact_strategy import place_exact, place_exact_once
from hydraplan.planner.placement.hydra import place_hydra, place_once
from hydraplan.planner.placement.mcore_place import place_mcore, place_mcore_once
from hydraplan.planner.placement.memory_ffd import place_memory_once, place_memory_sized
from hydraplan.planner.placement.static_cp import place_static, place_static_once
from hydraplan.planner.placement.token_balance import (
    place_token_balanced,
    place_token_balanced_once,
)

ALWAYS = ("accounted", "degree", "inside", "layout", "order", "schedule")
"""Invariants (`hydraplan.invariants`) that every strategy promises."""

LIMITS = ("min-degree", "microbatch-multiple", "max-groups")
"""Invariants of strategies that honour every limit a user can set."""

BLOCKS = (*ALWAYS, *LIMITS, "no-empty-microbatch", "aligned", "cap")
"""Invariants of strategies that place exact rows on aligned blocks."""

LATER = frozenset({"no-empty-microbatch"})
"""Those of them that plans of an earlier version do not promise."""

SETS = (*ALWAYS, "every-rank", "one-degree", "min-degree", "microbatch-multiple")
"""Invariants of Megatron-Core's schedulers: every microbatch cuts the pool into sets of ranks."""

PACKED_SETS = (*SETS, "aligned", "cap-mean")
"""Those of its packing generations; their cap is one of length over degree, not of exact rows."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """`default_order` is the microbatch order where the user names none.

    `place_once` repeats one placement of what was found, unscored, for timing.
    """

    place: Callable[[Request], Draft]
    place_once: Callable[[Request, Draft], None]
    default_order: str
    invariants: tuple[str, ...]

    @property
    def keeps_order(self) -> bool:
        """Whether it can keep rows near their place in the input."""
        return "reorder" in self.invariants


STRATEGIES: dict[str, Strategy] = {
    "hydra": Strategy(place_hydra, place_once, "auto", (*BLOCKS, "reorder")),
    "memory-ffd": Strategy(place_memory_sized, place_memory_once, "as-built", BLOCKS),
    "mcore-main": Strategy(
        partial(place_mcore, "mcore-main"),
        partial(place_mcore_once, "mcore-main"),
        "as-built",
        (*SETS, "cap-per-sequence"),
    ),
    "mcore-v1": Strategy(
        partial(place_mcore, "mcore-v1"),
        partial(place_mcore_once, "mcore-v1"),
        "as-built",
        PACKED_SETS,
    ),
    "mcore-v2": Strategy(
        partial(place_mcore, "mcore-v2"),
        partial(place_mcore_once, "mcore-v2"),
        "as-built",
        PACKED_SETS,
    ),
    "static-cp": Strategy(place_static, place_static_once, "as-built", BLOCKS),
    "token-balance": Strategy(place_token_balanced, place_token_balanced_once, "as-built", BLOCKS),
    "exact": Strategy(place_exact, place_exact_once, "auto", BLOCKS),
}


def promised(options: PlanOptions) -> tuple[str, ...]:
    """Invariants that a plan made with these options promises."""
    limited = options.live_microbatches is not None
    return STRATEGIES[options.strategy].invariants + (("live-tokens",) if limited else ())
