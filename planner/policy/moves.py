"""What a move of work between ranks of a stage takes: the time of each of its three forms.

Uneven heads: members of an inner group take unequally many heads. Nothing extra is sent but
what the all-to-all grows by, and that is exposed with or without a move; what can hide are the
hops of the outer ring (`group_s`, `hop_is_hidden`).

Rows and head off-load: a giver sends units (rows of the MLP, heads of an unsplit sequence) to a
taker, goes on with the rest, and needs their results to go on after that. The taker does its
own units first. With barriers around the layer (`layers=1`) this is the time between them;
without, the taker gets ahead from layer to layer (`pair_run`). `trip_is_hidden` is the condition
that the giver never waits, in closed form for a layer between barriers.

All seconds are of one pass (forward or backward), on the rank that spends them. Memory of the
taker is not counted here, nor links that several moves share.

Source: our derivation, docs/migration.md; an event simulation without these formulas agrees.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Layer(NamedTuple):
    """Seconds a rank takes for its own layer: before, in and after what can be moved."""

    before_s: float
    movable_s: float
    after_s: float


class Trip(NamedTuple):
    """What moved units take: the way there, at the taker, the way back; seconds."""

    out_s: float
    foreign_s: float
    back_s: float


class PairRun(NamedTuple):
    """When both ranks end, from a common start, and how long the giver waited for results."""

    giver_s: float
    taker_s: float
    giver_wait_s: float

    @property
    def end_s(self) -> float:
        """When the later one ends."""
        return max(self.giver_s, self.taker_s)


class Part(NamedTuple):
    """A stretch of a layer of both ranks; the giver keeps `kept_s` of what it could move."""

    giver: Layer
    taker: Layer
    kept_s: float
    trip: Trip | None


def pair_run(giver: Layer, taker: Layer, kept_s: float, trip: Trip, layers: int = 1) -> PairRun:
    """Run `layers` equal layers of both ranks, with no barrier in between.

    Args:
        kept_s: What the giver still takes for the movable part of a layer, at most
            `giver.movable_s`.
        trip: What the rest takes, in each layer.
    """
    return parts_run([Part(giver, taker, kept_s, trip)], layers)


def parts_run(parts: Sequence[Part], layers: int = 1) -> PairRun:
    """The same for layers of several parts that follow each other, each with a trip or none."""
    giver_s = taker_s = wait_s = 0.0
    for _ in range(layers):
        for giver, taker, kept_s, trip in parts:
            own_s = giver_s + giver.before_s + kept_s
            done_s = taker_s + taker.before_s + taker.movable_s
            back_s = own_s
            if trip is not None:
                done_s = max(done_s, giver_s + giver.before_s + trip.out_s) + trip.foreign_s
                back_s = done_s + trip.back_s
            wait_s += max(back_s - own_s, 0.0)
            giver_s = max(own_s, back_s) + giver.after_s
            taker_s = done_s + taker.after_s
    return PairRun(giver_s, taker_s, wait_s)


def trip_is_hidden(giver: Layer, taker: Layer, kept_s: float, trip: Trip) -> bool:
    """Whether results are back when the giver has done what it kept, both having begun together.

    That is for a layer between barriers, and for the first layer where there are none.
    """
    moved_s = trip.foreign_s + trip.back_s
    behind_taker = taker.before_s + taker.movable_s + moved_s <= giver.before_s + kept_s
    return behind_taker and trip.out_s + moved_s <= kept_s


def group_s(step_s: Sequence[Sequence[float]], hop_s: Sequence[float], exchange_s: float) -> float:
    """Seconds of attention in a nested group, for any heads of its members.

    Args:
        step_s: Seconds of one ring step, `[ring index][inner index]`; there are as many steps
            as ring indices.
        hop_s: Seconds in which the KV heads of an inner index pass to the next ring index.
        exchange_s: Both all-to-alls, of the member for which they take longest.
    """
    hops = len(step_s) - 1
    slowest: list[float] = [max(column) for column in zip(*step_s, strict=True)]
    columns = zip(slowest, hop_s, strict=True)
    return exchange_s + max(hops * max(step, hop) + step for step, hop in columns)


def hop_is_hidden(column_step_s: Sequence[float], hop_s: float) -> bool:
    """Whether hops cost nothing in the column of ring peers whose steps take so long."""
    return len(column_step_s) == 1 or hop_s <= max(column_step_s)
