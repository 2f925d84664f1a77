"""Slow ranks on purpose: which rank, by what factor, in which steps.

A test of whoever has to notice them. A slowed worker does the same arithmetic and then sleeps, so
results do not change, and what it slept counts as busy. Of every op it sleeps factor - 1 times as
long as the op computed; paced workers take the factor into the time of each part (`pace`).
"""

import math
import re
from collections.abc import Callable, Iterable
from itertools import combinations
from typing import NamedTuple

from hydraplan.errors import InputError

MAX_FACTOR = 100.0

FORM = re.compile(r"(\d{1,9})\.(\d{1,9})=([^@_\s]{1,40})(?:@(\d{1,9})-(\d{1,9}))?")
"""No `_` in a factor: Python takes 1_5 for 15."""
HINT = "STAGE.LANE=FACTOR or STAGE.LANE=FACTOR@FROM-TO, such as 0.1=1.5@5-14"


class Injected(NamedTuple):
    """One rank takes `factor` times as long in steps `first` to `last`, None for all from there."""

    stage: int
    lane: int
    factor: float
    first: int = 0
    last: int | None = None

    def __str__(self) -> str:
        steps = "" if self.last is None else f"@{self.first}-{self.last}"
        return f"{self.stage}.{self.lane}={self.factor:g}{steps}"

    def holds_in(self, step: int) -> bool:
        """Whether the rank is slow in a step."""
        return self.first <= step and (self.last is None or step <= self.last)


def parse_injected(text: str) -> Injected:
    """`STAGE.LANE=FACTOR` or `STAGE.LANE=FACTOR@FROM-TO`, both steps included.

    Raises:
        InputError: It has another form, or a number is outside its limits.
    """
    found = FORM.fullmatch(text.strip()) if text.isascii() else None
    if found is None:
        raise InputError(
            f"--inject {text!r:.80} does not say which rank is slow, and how much", HINT
        )
    stage, lane, said, first, last = found.groups()
    try:
        factor = float(said)
    except ValueError:
        raise InputError(f"--inject {text!r}: factor {said!r} is no number", HINT) from None
    if not (math.isfinite(factor) and 1 <= factor <= MAX_FACTOR):
        raise InputError(
            f"--inject {text!r}: factor {said} is not from 1 to {MAX_FACTOR:g}",
            "a factor says how many times as long the rank takes",
        )
    if last is None:
        return Injected(int(stage), int(lane), factor)
    if int(first) > int(last):
        raise InputError(f"--inject {text!r}: step {first} comes after step {last}", HINT)
    return Injected(int(stage), int(lane), factor, int(first), int(last))


def check_injected(injected: Iterable[Injected], pp: int, ranks: int) -> None:
    """Refuse ranks that a plan does not have, and two factors of one rank in a step.

    Raises:
        InputError: One of these.
    """
    injected = list(injected)
    for each in injected:
        if not (each.stage < pp and each.lane < ranks):
            raise InputError(
                f"--inject {each}: the plan has stages 0..{pp - 1} and lanes 0..{ranks - 1}",
                "name a rank of the plan",
            )
    for one, other in combinations(injected, 2):
        later = max(one.first, other.first)
        if one[:2] == other[:2] and one.holds_in(later) and other.holds_in(later):
            raise InputError(
                f"--inject {one} and {other} both hold in step {later}", "leave one of them out"
            )


def refuse_too_late(injected: Iterable[Injected], steps: int) -> None:
    """Refuse what holds in none of the steps of a run.

    Raises:
        InputError: One begins after the last step.
    """
    for each in injected:
        if each.first >= steps:
            raise InputError(
                f"--inject {each}: the last step of the run is {steps - 1}",
                "steps count from 0; ask for more --steps, or for earlier ones",
            )


def slow_factor(injected: Iterable[Injected], stage: int, lane: int, step: int) -> float:
    """How many times as long a rank takes in a step, 1 if nothing is injected."""
    for each in injected:
        if each[:2] == (stage, lane) and each.holds_in(step):
            return each.factor
    return 1.0


def known_factor(texts: Iterable[str]) -> Callable[[int, int, int], float]:
    """What was injected by name: times as long as (stage, lane) took in a step, as a function.

    Raises:
        InputError: A text is no injection.
    """
    injected = tuple(map(parse_injected, texts))
    return lambda stage, lane, step: slow_factor(injected, stage, lane, step)
