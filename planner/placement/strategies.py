"""The table of strategies: what each is called, does, and promises."""

from collections.abc import Callable
from dataclasses import dataclass

from hydraplan.planner.placement.draft import Draft, Request
from hydraplan.planner.placement.hydra import place_hydra
from hydraplan.planner.placement.memory_ffd import place_memory_sized

ALWAYS = ("accounted", "aligned", "cap", "degree", "order", "schedule")
"""Invariants (`hydraplan.invariants`) that both strategies promise."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """`default_order` is the microbatch order where the user names none."""

    place: Callable[[Request], Draft]
    default_order: str
    invariants: tuple[str, ...]


STRATEGIES: dict[str, Strategy] = {
    "hydra": Strategy(place_hydra, "auto", ALWAYS),
    "memory-ffd": Strategy(place_memory_sized, "as-built", ALWAYS),
}
