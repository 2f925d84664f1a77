"""Symmetric pairing: the slow ranks of a stage's pool give work to the fast ones.

The slowest gives to the fastest, the next to the next, until a pair gains nothing. What moves
are whole units, heads or rows in blocks. Heads go by whole KV groups, whose K and V travel once;
only where not one group can go, some heads of one. A pair moves as many as end it earliest, of
those for which the modelled round trip is hidden behind what the giver keeps, and only if that
gains more than a margin. Since the later end of a pair is convex in the number of units and the
giver's wait only grows with it, both are found by bisection.

Decides from predicted times only, so that all ranks decide alike. Memory of the taker limits
`most_units`, which the caller works out; smoothing over steps is that of `estimates.py`.

Source: symmetric pairing is named in Conductor's abstract; which units, the condition of
overlap, the margin and the stop are our choice (docs/migration.md).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

import numpy as np

from hydraplan.errors import InputError
from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.policy.messages import Sent
from hydraplan.planner.policy.moves import Layer, PairRun, Trip, pair_run

MARGIN = 0.05
"""Share of the giver's time that a move has to gain; below it an error of the model could lose."""

ROUNDING = 1e-12
"""Share of a time within which a wait is one of rounding."""


@dataclass(frozen=True, slots=True)
class Pool:
    """One pass of a layer on every rank of a stage, at nominal speed. Arrays of shape (ranks,).

    `units` into which `movable_s` is divided evenly, in groups of `units_a_group`, of which a part
    may go unless `whole_groups`. Of each rank at most `most_units` may go, None for all. `out` and
    `back`: the messages of a move.

    Raises:
        InputError: Shapes differ, a time is negative or not finite, or units are negative.
    """

    before_s: FloatArray
    movable_s: FloatArray
    after_s: FloatArray
    units: IntArray
    units_a_group: int
    out: Sent
    back: Sent
    whole_groups: bool = False
    most_units: IntArray | None = None

    def __post_init__(self) -> None:
        sent = (self.out, self.back)
        times = [self.before_s, self.movable_s, self.after_s]
        times += [way for message in sent for way in (message.unit_s, message.group_s)]
        most = self.units if self.most_units is None else self.most_units
        if {array.shape for array in (*times, self.units, most)} != {(len(self.units),)}:
            raise InputError("a pool needs one number a rank in each of its arrays")
        latencies = [message.latency_s for message in sent]
        if not all((np.isfinite(t) & (t >= 0)).all() for t in times) or not all(
            isfinite(latency) and latency >= 0 for latency in latencies
        ):
            raise InputError("times of a pool must be finite and not negative")
        if self.units_a_group < 1 or (self.units < 0).any() or (most < 0).any():
            raise InputError("a pool needs groups of at least 1 unit, and no negative units")


class Move(NamedTuple):
    """Units that a rank gives to another, in each layer of a slot; `gain` of the giver's time."""

    giver: int
    taker: int
    units: int
    gain: float


@dataclass(frozen=True, slots=True)
class Paired:
    """What moves, slowest giver first, and when each rank ends, seconds of shape (ranks,)."""

    moves: tuple[Move, ...]
    before_s: FloatArray
    after_s: FloatArray


def pair_up(pool: Pool, factor: FloatArray, layers: int = 1, margin: float = MARGIN) -> Paired:
    """Pair slow ranks with fast ones, and predict when each rank ends.

    Args:
        factor: Times as long as nominal that a rank takes, moved work included; shape (ranks,).
        layers: Layers without a barrier between ranks; 1 where each layer has one.
        margin: Share of its giver's time that a pair has to gain, from 0 to below 1.

    Raises:
        InputError: A factor is not positive and finite, or the margin is outside its limits.
    """
    if factor.shape != pool.units.shape or not (np.isfinite(factor) & (factor > 0)).all():
        raise InputError("a pool needs one positive, finite device factor a rank")
    if not 0 <= margin < 1 or layers < 1:
        raise InputError(
            f"margin {margin} is not from 0 to below 1, or {layers} layers not above 0"
        )
    before_s = layers * factor * (pool.before_s + pool.movable_s + pool.after_s)
    order = np.argsort(-before_s, kind="stable")
    after_s, moves = before_s.copy(), []
    for giver, taker in zip(order[: len(order) // 2].tolist(), order[::-1].tolist(), strict=False):
        found = _best_move(pool, factor, layers, giver, taker)
        if found is None:
            break
        units, run = found
        gain = 1 - run.end_s / float(before_s[giver])
        if gain <= margin:
            break
        moves.append(Move(giver, taker, units, gain))
        after_s[giver], after_s[taker] = run.giver_s, run.taker_s
    return Paired(tuple(moves), before_s, after_s)


def _best_move(
    pool: Pool, factor: FloatArray, layers: int, giver: int, taker: int
) -> tuple[int, PairRun] | None:
    """Units and the run with them; None if no hidden move ends the pair earlier."""
    each, total = pool.units_a_group, int(pool.units[giver])
    most = total if pool.most_units is None else min(total, int(pool.most_units[giver]))
    own, taker_own = (_layer(pool, rank, float(factor[rank])) for rank in (giver, taker))
    foreign_unit_s = float(pool.movable_s[giver] * factor[taker]) / max(total, 1)

    def run(units: int) -> PairRun:
        if not units:
            return PairRun(layers * sum(own), layers * sum(taker_own), 0.0)
        groups = -(-units // each)
        out_s, back_s = (m.seconds(giver, units, groups) for m in (pool.out, pool.back))
        foreign_s = foreign_unit_s * units
        kept_s = own.movable_s * (total - units) / total
        return pair_run(own, taker_own, kept_s, Trip(out_s, foreign_s, back_s), layers)

    units = each * _best_count(run, each, most // each)
    if not units and not pool.whole_groups:
        units = _best_count(run, 1, min(each - 1, most))
    return (units, run(units)) if units else None


def _best_count(run: Callable[[int], PairRun], size: int, most: int) -> int:
    """How often `size` units move, at most `most` times; 0 if that ends no earlier."""

    def is_hidden(count: int) -> bool:
        tried = run(count * size)
        return tried.giver_wait_s <= ROUNDING * tried.giver_s

    def is_better(count: int) -> bool:
        return run(count * size).end_s < run((count - 1) * size).end_s

    return last_where(last_where(most, is_hidden), is_better)


def _layer(pool: Pool, rank: int, factor: float) -> Layer:
    times = (pool.before_s, pool.movable_s, pool.after_s)
    return Layer(*(float(time[rank]) * factor for time in times))


def last_where(most: int, holds: Callable[[int], bool]) -> int:
    """Largest n of 0 .. most such that `holds(n)`; it holds for every smaller n but 0 too."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
