"""Noise of a training step: what is asked for, and the draws of each trial.

Eight sources, combined freely. Whatever a source draws comes from a random stream of its own, given
by (seed, trial, step, source): so leaving one out leaves every other draw as it was, and two op
orders can be compared on the same draws. Times of spells scale with the iteration without noise.

| source | value | what happens |
|---|---|---|
| `jitter` | relative standard deviation | F, B, W of every slot: a log-normal factor, mean 1 |
| `straggler` | times as long | one rank, the same in all steps of a trial |
| `moving` | times as long | one rank at a time; another one in each eighth of the iteration |
| `transient` | times as long | each rank, at a chance of 1/8: a spell, 1/10 of the iteration long |
| `heavytail` | relative standard deviation | F, B, W of every slot: a Pareto factor, mean 1 |
| `link` | relative standard deviation | every message and gradient sync: log-normal, mean 1 |
| `preempt` | chance | each node: it stands still for as long as an iteration, then goes on |
| `window` | share of its speed | all ranks of one stage, a quarter of the iteration, announced |

Exchanges inside a CP group are part of an op's time and follow its jitter, not `link`.

Source: the kinds are Conductor's abstract (jitter, preemption) and our notes on its release; all
distributions, shares and streams are our choice.
"""

import math
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hydraplan.errors import InputError
from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.pipeline.spells import Spells, sorted_spells
from hydraplan.slots import SlotTimes

Factors = NDArray[np.float32]
"""Half as wide as times: factors need no more digits, and are what takes most memory and time."""

MOVES = 8
"""Stays of the moving straggler in an iteration without noise; the last goes on to the end."""

TRANSIENT_CHANCE, TRANSIENT_SHARE = 1 / 8, 1 / 10
"""Chance of a rank to have a spell; its mean length (exponential) over the iteration's."""

WINDOW_SHARE = 1 / 4
"""Length of the window over that of the iteration without noise."""


def _value(off: float, low: float, high: float) -> float:
    """A field with its value for no noise, and its limits."""
    return field(default=off, metadata={"low": low, "high": high})


@dataclass(frozen=True, slots=True)
class Noise:
    """How strong each source is; the defaults are none.

    Raises:
        InputError: A value is no number within its limits.
    """

    jitter: float = _value(0, 0, 3)
    straggler: float = _value(1, 1, 100)
    moving: float = _value(1, 1, 100)
    transient: float = _value(1, 1, 100)
    heavytail: float = _value(0, 0, 3)
    link: float = _value(0, 0, 3)
    preempt: float = _value(0, 0, 1)
    window: float = _value(1, 0.01, 1)

    def __post_init__(self) -> None:
        for each in fields(self):
            value, low, high = getattr(self, each.name), each.metadata["low"], each.metadata["high"]
            if not low <= value <= high:
                raise InputError(
                    f"noise {each.name}={value:g} is not from {low:g} to {high:g}",
                    f"{each.default:g} is none",
                )

    @property
    def active(self) -> tuple[str, ...]:
        """Sources that do anything, in the order of the fields."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) != f.default)

    def without(self, source: str) -> "Noise":
        """The same with one source off."""
        return Noise(**{name: getattr(self, name) for name in self.active if name != source})

    def __str__(self) -> str:
        return ",".join(f"{name}={getattr(self, name):g}" for name in self.active) or "none"


SOURCES = tuple(f.name for f in fields(Noise))
"""Names of all sources; the place of a source here numbers its random stream."""

SPELL_SOURCES = ("straggler", "moving", "transient", "preempt", "window")
"""Those that slow a rank for some time; `jitter` and `heavytail` lengthen ops, `link` messages."""


def parse_noise(text: str) -> Noise:
    """`none`, or a comma list such as `jitter=0.3,straggler=1.4`.

    Raises:
        InputError: A source is unknown or named twice, or its value is none.
    """
    found: dict[str, float] = {}
    for part in [] if text.strip() == "none" else text.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        if name == "none":
            raise InputError(
                f"--noise {text!r}: none stands among sources", "leave it out, or use it alone"
            )
        if name not in SOURCES:
            raise InputError(
                f"--noise {text!r}: {name!r} is no source of noise",
                f"none, or SOURCE=VALUE with commas between; sources: {', '.join(SOURCES)}",
            )
        if name in found:
            raise InputError(f"--noise {text!r} names {name} twice", "leave one of them out")
        try:
            is_plain = value.isascii() and "_" not in value  # Python takes 1_5 for 15
            found[name] = float(value if is_plain else "")
        except ValueError:
            limits = next(f.metadata for f in fields(Noise) if f.name == name)
            raise InputError(
                f"--noise {text!r}: {name} has {f'{value!r}, no number' if value else 'no value'}",
                f"{name}=NUMBER, from {limits['low']:g} to {limits['high']:g}",
            ) from None
    return Noise(**found)


class Shape(NamedTuple):
    """What draws are made for. `node_ranks`: neighbouring lanes of a stage that make a node."""

    stages: int
    chunks: int
    microbatches: int
    lanes: int
    node_ranks: int = 1


def shape_of(slots: SlotTimes, node_ranks: int = 1) -> Shape:
    """The shape of a batch."""
    _, stages, chunks, lanes, microbatches = slots.op_s.shape
    return Shape(stages, chunks, microbatches, lanes, node_ranks)


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """What befalls some trials at once; lanes of the t-th are t * lanes .. (t + 1) * lanes - 1.

    `op`: factors by source, (3, stages, chunks, microbatches, trials * lanes). `message`: factor of
    a message by the direction and the node that receives it, (2, stages * chunks, microbatches,
    trials * lanes), None without. `sync`: factor of the gradient sync, (stages, trials).
    `spells`: of rank stage * trials * lanes + lane, `source` is an index of `SOURCES`.
    """

    shape: Shape
    trials: int
    op: dict[str, Factors]
    message: Factors | None
    sync: FloatArray
    spells: Spells

    def without(self, source: str) -> "Draws":
        """The same draws with one source left out."""
        rest = {name: factor for name, factor in self.op.items() if name != source}
        if source == "link":
            return replace(self, message=None, sync=np.ones_like(self.sync))
        old = self.spells
        kept = np.flatnonzero(old.source != SOURCES.index(source))
        spells = sorted_spells(
            self.shape.stages * self.shape.lanes * self.trials,
            self.spell_rank()[kept],
            old.begin_s[kept],
            old.end_s[kept],
            old.speed[kept],
            old.source[kept],
        )
        return replace(self, op=rest, spells=spells)

    def spell_rank(self) -> IntArray:
        """Rank of every spell."""
        counts = np.diff(self.spells.first)
        return np.repeat(np.arange(len(counts)), counts)


def draw(
    noise: Noise, shape: Shape, nominal_s: float, trials: range, seed: int, step: int = 0
) -> Draws:
    """Draw every active source for some trials.

    Args:
        nominal_s: The iteration without noise, seconds; what spells are placed in and scaled by.
        trials: Numbers of the trials; a trial's draws do not depend on those beside it.
        step: Number of the step inside the trial; the straggler is the same in all of them.
    """

    def streams(source: str) -> list[np.random.Generator]:
        at = 0 if source == "straggler" else step
        return [_stream(seed, trial, at, SOURCES.index(source)) for trial in trials]

    slots = (shape.stages, shape.chunks, shape.microbatches, shape.lanes)
    op, message, sync = {}, None, np.ones((shape.stages, len(trials)))
    if noise.jitter:
        op["jitter"] = _beside(
            [_log_normal(r, noise.jitter, (3, *slots)) for r in streams("jitter")]
        )
    if noise.heavytail:
        op["heavytail"] = _beside(
            [_pareto(r, noise.heavytail, (3, *slots)) for r in streams("heavytail")]
        )
    if noise.link:
        links = streams("link")
        synced = [_log_normal(r, noise.link, (shape.stages,)) for r in links]
        sync = np.stack(synced, axis=1).astype(float)
        ways = (2, shape.stages * shape.chunks, *slots[2:])
        message = _beside([_log_normal(r, noise.link, ways) for r in links])
    found = [
        _spells(source, getattr(noise, source), shape, nominal_s, random)._replace(trial=trial)
        for source in SPELL_SOURCES
        if source in noise.active
        for trial, random in enumerate(streams(source))
    ]
    return Draws(shape, len(trials), op, message, sync, _all_spells(found, shape, len(trials)))


def _stream(seed: int, trial: int, step: int, source: int) -> np.random.Generator:
    return np.random.Generator(
        np.random.SFC64(np.random.SeedSequence(seed, spawn_key=(trial, step, source)))
    )


def _log_normal(random: np.random.Generator, spread: float, shape: tuple[int, ...]) -> Factors:
    """Factors of mean 1 and standard deviation `spread`."""
    variance = math.log1p(spread**2)
    factor = random.standard_normal(shape, np.float32)
    factor *= math.sqrt(variance)
    factor -= variance / 2
    return np.exp(factor, out=factor)


def _pareto(random: np.random.Generator, spread: float, shape: tuple[int, ...]) -> Factors:
    """Factors of mean 1 and standard deviation `spread`; the least is 1 - 1 / tail index."""
    index = 1 + math.sqrt(1 + spread**-2)  # variance of mean-1 Pareto: 1 / (index (index - 2))
    factor = random.standard_exponential(shape, np.float32)
    factor /= index
    np.exp(factor, out=factor)
    factor *= 1 - 1 / index
    return factor


def _beside(trials: list[Factors]) -> Factors:
    """The lanes of all trials next to each other."""
    return trials[0] if len(trials) == 1 else np.concatenate(trials, axis=-1)


class _Found(NamedTuple):
    """Spells of one source in one trial; ranks are stage * lanes + lane."""

    rank: IntArray
    begin_s: FloatArray
    end_s: FloatArray
    speed: float
    source: int
    trial: int = 0


def _spells(
    source: str, value: float, shape: Shape, nominal_s: float, random: np.random.Generator
) -> _Found:
    """Spells of one trial. What a rank or node draws does not depend on `value`."""
    ranks, index = shape.stages * shape.lanes, SOURCES.index(source)
    every = np.arange(ranks)
    if source == "straggler":
        return _Found(
            random.integers(ranks, size=1), np.zeros(1), np.full(1, np.inf), 1 / value, index
        )
    if source == "moving":
        begin_s = np.arange(MOVES) * np.float64(nominal_s / MOVES)
        end_s = np.append(begin_s[1:], np.inf)
        return _Found(random.integers(ranks, size=MOVES), begin_s, end_s, 1 / value, index)
    if source == "transient":
        is_hit = random.random(ranks) < TRANSIENT_CHANCE
        begin_s = random.random(ranks) * nominal_s
        end_s = begin_s + random.standard_exponential(ranks) * (TRANSIENT_SHARE * nominal_s)
        return _Found(every[is_hit], begin_s[is_hit], end_s[is_hit], 1 / value, index)
    if source == "preempt":
        nodes = -(-shape.lanes // shape.node_ranks)
        of_lane = np.arange(shape.lanes) // shape.node_ranks
        is_hit = (random.random((shape.stages, nodes)) < value)[:, of_lane].ravel()
        begin_s = (random.random((shape.stages, nodes)) * nominal_s)[:, of_lane].ravel()[is_hit]
        return _Found(every[is_hit], begin_s, begin_s + nominal_s, 0.0, index)
    assert source == "window", source
    hit = every[every // shape.lanes == random.integers(shape.stages)]
    begin_s = np.full(len(hit), random.random() * (1 - WINDOW_SHARE) * nominal_s)
    return _Found(hit, begin_s, begin_s + WINDOW_SHARE * nominal_s, value, index)


def _all_spells(found: list[_Found], shape: Shape, trials: int) -> Spells:
    """All spells by rank, of one rank in the order of the sources."""
    width = shape.lanes * trials
    none: list[FloatArray] = [np.zeros(0)]
    ranks = [
        f.rank // shape.lanes * width + f.trial * shape.lanes + f.rank % shape.lanes for f in found
    ]
    return sorted_spells(
        shape.stages * width,
        np.concatenate([np.zeros(0, np.int64), *ranks]),
        np.concatenate(none + [f.begin_s for f in found]),
        np.concatenate(none + [f.end_s for f in found]),
        np.concatenate(none + [np.full(len(f.rank), f.speed) for f in found]),
        np.concatenate([np.zeros(0, np.int64), *(np.full(len(f.rank), f.source) for f in found)]),
    )
