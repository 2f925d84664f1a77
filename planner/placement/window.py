"""How many microbatches: the window that balance and memory leave open, and the best in it.

* Memory: M >= tokens / (R * cap).
* Short tokens: a slot without a long piece holds at most `cap` short tokens, so the target
  must not exceed their load; that asks M >= work / (R * L_cap).
* Floor: no slot can be lighter than the least splittable sequence, so M <= work / (R * L_floor).

All three hold for rows in any order (`--reorder`): a stretch of rows cannot be poorer in work than
short tokens alone. Where order is kept, an open window is necessary for balance, not sufficient.

The window is empty where the last is below the first two. Within it, F(M) = A + B * M nearly
(smaller targets need higher degrees, and these cost rank-work), the iteration takes about
(M + P - 1) / M * F(M) / R plus t0 a microbatch, least at M* = sqrt((P - 1) A / (B + R t0)).

Source: our own derivation; the window's definition is DESIGN section 6.
"""

from dataclasses import dataclass
from math import ceil, floor, sqrt

import numpy as np

from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.placement.cost_table import CostTable
from hydraplan.planner.placement.load_target import quadratic_target

MOST = 1 << 32
"""Microbatches beyond which a bound says no more; costs that differ by 1e20 would ask for them."""


@dataclass(frozen=True, slots=True)
class Window:
    """Range of microbatch counts: empty where `low > high`. `memory` is what tokens ask for."""

    low: int
    high: int
    memory: int

    @property
    def is_empty(self) -> bool:
        """Whether no number of microbatches allows balance within the cap."""
        return self.low > self.high


def microbatch_window(
    table: CostTable, length_tokens: IntArray, num_ranks: int, cap_tokens: int
) -> Window:
    """The window of one batch, on nominal lanes."""
    memory, short, most = bounds(table, length_tokens, num_ranks, cap_tokens)
    low = ceil(min(MOST, max(memory, short * (1 - 1e-9))))
    return Window(max(1, low), floor(min(MOST, most)), max(1, ceil(memory)))


def bounds(
    table: CostTable, length_tokens: IntArray, num_ranks: int, cap_tokens: int
) -> tuple[float, float, float]:
    """What memory and short tokens ask for at least, and the costliest sequence allows at most."""
    work_s = float(table.rank_work_s.min(axis=1) @ table.count)
    memory = int(length_tokens.sum()) / (num_ranks * cap_tokens)
    short = work_s / (num_ranks * cap_tokens * table.short_token_s)
    return memory, short, work_s / (num_ranks * table.floor_s)


def best_count(table: CostTable, window: Window, num_ranks: int, num_stages: int) -> float:
    """M*, from the closed-form rank-work at both ends of the window; not yet clamped to it."""
    low, high = window.low, max(window.high, window.low + 1)
    at_low, at_high = (m * num_ranks * quadratic_target(table, num_ranks * m) for m in (low, high))
    slope = max(0.0, (at_high - at_low) / (high - low))
    base = at_low - slope * low
    per_microbatch = slope + num_ranks * table.fixed_s
    if base <= 0 or per_microbatch <= 0:
        return float(high)
    return sqrt((num_stages - 1) * base / per_microbatch)


BEYOND = 1.5
"""How far beyond the window numbers of microbatches are tried, as a factor."""
ALL_UP_TO = 8
"""A window of at most this many counts is tried whole."""


def counts_to_try(best: float, window: Window, num_sequences: int) -> list[int]:
    """Numbers of microbatches worth a placement, ascending.

    All of a short window; else its ends and around M*. Below the window too, as far as memory
    allows, since short tokens need not fill a slot alone; and beyond it, where the costliest
    sequence stands out, but may hide in the pipeline. If it is empty, around M* and what
    memory asks for, with some slack, since a cap filled to the last row is hard to pack.
    """
    low, high = min(window.low, window.memory + 1), ceil(BEYOND * window.high)
    wanted = [window.low * factor for factor in (0.65, 0.8)]
    wanted += np.geomspace(low, window.low, 4)[1:-1].tolist() if window.low > 3 * low else []
    wanted += [window.high * factor for factor in (1.2, BEYOND)]
    if window.low <= window.high < window.low + ALL_UP_TO:
        wanted += range(window.low, window.high + 1)
    else:
        wanted += [best * factor for factor in (0.6, 0.8, 1.0, 1.25, 1.6)]
        wanted += [window.low, window.low * 1.1 + 1, window.high]
    if window.is_empty:
        tight = window.memory
        wanted += [tight * factor + 1 for factor in (1.06, 1.15, 1.3, 1.5, 1.75, 2.0)] + [tight]
        low, high = tight, max(window.high, 2 * tight + 4)
    rounded = np.clip(np.ceil(wanted).astype(np.int64), low, high)
    return sorted({int(m) for m in rounded if m <= max(low, num_sequences)})


SPREAD = 9
"""Counts of the second look at a window."""


def counts_over(window: Window) -> list[int]:
    """Numbers of microbatches spread evenly over an open window, ascending; none if it is empty."""
    if window.is_empty:
        return []
    return sorted({round(float(m)) for m in np.linspace(window.low, window.high, SPREAD)})


LOOK = 12
"""Numbers of microbatches that are tried where no window says which."""


def counts_from(fewest: int, num_stages: int, most: int) -> list[int]:
    """Numbers of microbatches from the fewest to three times that or twice the stages, ascending.

    More of them are lighter, which fills and drains the pipeline sooner, and cost more in all.
    """
    wanted = np.round(np.geomspace(fewest, max(3 * fewest, 2 * num_stages, LOOK), LOOK))
    return sorted({int(m) for m in wanted if m <= most})


def least_imbalance(load_s: FloatArray, count: IntArray, fixed_s: float, num_slots: int) -> float:
    """No placement of these pieces on so many slots has a smaller slot imbalance.

    There are `count` pieces of `load_s` each. Of the k * num_slots + 1 heaviest pieces some
    slot holds k + 1, for every k; a slot besides costs `fixed_s`.

    Source: pigeonhole, standard in scheduling.
    """
    order = np.argsort(-load_s, kind="stable")
    pieces = np.cumsum(count[order])
    k = np.arange((int(pieces[-1]) - 1) // num_slots + 1)
    lightest = load_s[order][np.searchsorted(pieces, k * num_slots, side="right")]
    mean_s = fixed_s + float(load_s @ count) / num_slots
    return float(fixed_s + ((k + 1) * lightest).max()) / mean_s
