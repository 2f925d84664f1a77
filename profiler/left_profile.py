"""Has a run left the costs of its plan? Which part takes how long beside the rest.

Balance rests on ratios: how long attention takes beside linear work, forward beside backward,
calls beside work. Each set of terms that the run tells apart (`refit`) is held against all others
together. What all ops share, the level, moves no sequence; it is told, and warned of only beyond
`MOST_LEVEL`.

Source: ours; planning needs ratios within about 5 %.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hydraplan.cost_terms import Term, terms
from hydraplan.profiler.refit import Refit

MOST_RATIO = 0.15
"""Share by which a part may be off beside all others. Our choice: three times what planning needs,
since op times of shared machines are no better than that."""

MOST_LEVEL = 0.5
"""Share by which all ops together may be off. Our choice."""

LEAST_SHARE = 0.05
"""Parts of less op time than this do not count: they move little, and are told least."""

SURE = 2.0
"""Standard errors that a ratio has to be off, too."""

KINDS: dict[str, Callable[[Term], bool]] = {
    "attention": lambda term: term.field.startswith("attention"),
    "forward": lambda term: term.field.endswith("forward"),
    "calls": lambda term: term.factor == "call",
}
"""Parts that people know, whatever sets a run tells apart: the fixed time of calls is the last."""


class Part(NamedTuple):
    """A set of terms: times as long as its costs say, by itself and beside all others together.

    `error`: standard error of `times`, relative; `is_off`: beyond the limit and beyond noise.
    `beside` is NaN where there is nothing else.
    """

    name: str
    times: float
    error: float
    share: float
    beside: float
    is_off: bool


class Left(NamedTuple):
    """What is off the most: a part beside the others, or all ops together (`part` "all")."""

    part: str
    times: float
    limit: float

    def __str__(self) -> str:
        if self.part == "all":
            return (
                f"ops take {self.times:.2f} times as long as the plan's costs say, all alike,"
                f" beyond {self.limit:.0%}: predicted seconds are wrong, balance is not"
            )
        return (
            f"beside all other work {self.part} takes {self.times:.2f} times as long as the"
            f" plan's costs say, beyond {self.limit:.0%}: what was balanced is not balanced"
        )


def level(found: Refit) -> float:
    """Times as long as by the old costs that all ops take together by the new ones."""
    return float(found.new_s.sum() / found.old_s.sum())


def parts(found: Refit) -> list[Part]:
    """Every set of terms that has its own multiplier, by share of op time, the largest first."""
    each = [_part(found, name, [place]) for place, name in enumerate(found.learned.names)]
    return sorted(each, key=lambda part: -part.share)


def left_profile(found: Refit) -> Left | None:
    """What a run does not share with the costs of its plan; None if these still hold.

    Of several parts that are off, the one that moves the most op time against the rest.
    """
    off = [part for part in [*_kinds(found), *parts(found)] if part.is_off]
    if off:
        worst = max(off, key=lambda p: p.share * (1 - p.share) * abs(float(np.log(p.beside))))
        return Left(worst.name, worst.beside, MOST_RATIO)
    if abs(np.log(level(found))) > np.log1p(MOST_LEVEL):
        return Left("all", level(found), MOST_LEVEL)
    return None


def _kinds(found: Refit) -> list[Part]:
    """Attention, forward and calls, each if the sets of the run part it from the rest."""
    known, result = terms(found.old), []
    for name, is_in in KINDS.items():
        sides = [{is_in(known[term]) for term in members} for members in found.learned.members]
        inside = [place for place, side in enumerate(sides) if side == {True}]
        if inside and all(len(side) == 1 for side in sides):
            result.append(_part(found, name, inside))
    return result


def _part(found: Refit, name: str, places: list[int]) -> Part:
    """Some sets of terms together, and beside all others."""
    learned = found.learned
    old_s = np.array([found.ops.term_s[list(m)].sum() for m in learned.members])
    new_s = np.exp(learned.log_multiplier) * old_s
    inside = np.isin(np.arange(len(old_s)), places)
    own_s, other_s = float(new_s[inside].sum()), float(new_s[~inside].sum())
    times, weight = own_s / float(old_s[inside].sum()), np.where(inside, new_s / own_s, 0.0)
    error, share = float(weight @ learned.covariance @ weight) ** 0.5, own_s / (own_s + other_s)
    if inside.all():
        return Part(name, times, error, share, float("nan"), False)
    contrast = weight - np.where(inside, 0.0, new_s / other_s)
    log_beside = float(np.log(times) - np.log(other_s / old_s[~inside].sum()))
    unsure = SURE * float(contrast @ learned.covariance @ contrast) ** 0.5
    is_off = abs(log_beside) > max(float(np.log1p(MOST_RATIO)), unsure)
    is_off &= LEAST_SHARE <= share <= 1 - LEAST_SHARE
    return Part(name, times, error, share, float(np.exp(log_beside)), is_off)
