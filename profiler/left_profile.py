"""Has a run left the costs of its plan? Which part takes how long beside the rest.

Balance rests on ratios: how long attention takes beside linear work, forward beside backward,
calls beside work. Each set of terms that the run tells apart (`refit`) is held against all others
together. What all ops share, the level, moves no sequence; it is told, and warned of only beyond
`MOST_LEVEL`.

Source: ours; planning needs ratios within about 5 %.
"""

from typing import NamedTuple

import numpy as np

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
            f" plan's costs say, beyond {self.limit:.0%}: the plan balances what is not there"
        )


def level(found: Refit) -> float:
    """Times as long as by the old costs that all ops take together by the new ones."""
    return float(found.new_s.sum() / found.old_s.sum())


def parts(found: Refit) -> list[Part]:
    """Every set of terms that has its own multiplier, by share of op time, the largest first."""
    learned, result = found.learned, []
    old_s = np.array([found.ops.term_s[list(m)].sum() for m in learned.members])
    new_s = np.exp(learned.log_multiplier) * old_s
    for place, name in enumerate(learned.names):
        others = np.arange(len(old_s)) != place
        beside, is_off, share = float("nan"), False, float(new_s[place] / new_s.sum())
        if others.any():
            contrast = np.where(others, -new_s / new_s[others].sum(), 1.0)
            log_off = float(
                learned.log_multiplier[place] - np.log(new_s[others].sum() / old_s[others].sum())
            )
            error = float(contrast @ learned.covariance @ contrast) ** 0.5
            least = max(float(np.log1p(MOST_RATIO)), SURE * error)
            beside = float(np.exp(log_off))
            is_off = abs(log_off) > least and LEAST_SHARE <= share <= 1 - LEAST_SHARE
        own = float(learned.covariance[place, place]) ** 0.5
        multiplier = float(np.exp(learned.log_multiplier[place]))
        result.append(Part(name, multiplier, own, share, beside, is_off))
    return sorted(result, key=lambda part: -part.share)


def left_profile(found: Refit) -> Left | None:
    """What a run does not share with the costs of its plan; None if these still hold."""
    off = [part for part in parts(found) if part.is_off]
    if off:
        worst = max(off, key=lambda part: abs(float(np.log(part.beside))))
        return Left(worst.name, worst.beside, MOST_RATIO)
    if abs(np.log(level(found))) > np.log1p(MOST_LEVEL):
        return Left("all", level(found), MOST_LEVEL)
    return None
