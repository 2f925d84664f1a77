"""Drawn sequence lengths: `synthetic:NAME` or `synthetic:NAME(key=value,...)`, from a seed.

A mix has a name so that two people plan on the same rows: same text, same lengths (for one
version of NumPy). Every mix takes `rows` and `seed`. What is published of a distribution and what
we assume stands in its source, which commands that read it print.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources

import numpy as np
import pyarrow.parquet as pq

from hydraplan.errors import InputError, printable
from hydraplan.model import IntArray

PREFIX = "synthetic:"

_SPELT = re.compile(r"synthetic:([a-z-]+)(?:\(([^()]*)\))?")
_NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?")

Values = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Key:
    """A number a mix takes: its default (None: must be given) and its limits, both inclusive."""

    default: float | None
    least: float
    most: float
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class Mix:
    """A named distribution: what it takes, how it draws, where it comes from."""

    keys: dict[str, Key]
    draw: Callable[[np.random.Generator, int, Values], IntArray]
    source: str


_MOST_TOKENS = 2**40
_ALWAYS = {"rows": Key(10_000, 1, 10**7), "seed": Key(0, 0, 10**15)}

CHAT_SIGMA = 1.0
CHAT_LONG_SHARE = 0.0011
CHAT_MEANS_TOKENS = (1000, 37_000)


def draw(text: str) -> tuple[str, IntArray, str]:
    """Name with every value in full, lengths (tokens, shape (rows,), at least 1), and source.

    Raises:
        InputError: No such mix, or a value that it does not take.
    """
    name, mix, values = _parsed(text)
    rng = np.random.default_rng(int(values["seed"]))
    length_tokens = mix.draw(rng, int(values["rows"]), values)
    spelt = ",".join(f"{key}={_number(value)}" for key, value in values.items())
    return f"{PREFIX}{name}({spelt})", length_tokens, mix.source


def _wikipedia(rng: np.random.Generator, rows: int, _values: Values) -> IntArray:
    """Rows of the sample, with replacement."""
    path = resources.files("hydraplan") / "data" / "histogram_wikipedia.parquet"
    with path.open("rb") as file:
        table = pq.read_table(file)
    ends = np.cumsum(table.column("rows").to_numpy().astype(np.int64))
    drawn = np.searchsorted(ends, rng.integers(ends[-1], size=rows), side="right")
    result: IntArray = table.column("length").to_numpy().astype(np.int64)[drawn]
    return result


def _chat_long(rng: np.random.Generator, rows: int, values: Values) -> IntArray:
    """Two lognormals; the median of one with mean m is m exp(-sigma^2 / 2)."""
    means = np.array(CHAT_MEANS_TOKENS)[(rng.random(rows) < CHAT_LONG_SHARE).astype(int)]
    medians = means * math.exp(-(CHAT_SIGMA**2) / 2)
    return _whole(medians * np.exp(CHAT_SIGMA * rng.standard_normal(rows)), values["max"])


def _lognormal(rng: np.random.Generator, rows: int, values: Values) -> IntArray:
    drawn = np.exp(values["sigma"] * rng.standard_normal(rows))
    return _whole(values["median"] * drawn, values["max"])


def _whole(drawn: "np.ndarray[tuple[int], np.dtype[np.float64]]", most: float) -> IntArray:
    """At least one token; what is longer than `most` is cut, as a context limit cuts documents."""
    return np.clip(np.rint(drawn), 1, most).astype(np.int64)


MIXES: dict[str, Mix] = {
    "wikipedia": Mix(
        {**_ALWAYS},
        _wikipedia,
        "drawn with replacement from 100,000 of the 1,000,000 Wikipedia lengths that the authors"
        " of FlexSP publish (PKU-DAIR/Hetu-Galvatron, branch flexsp); tokenizer not stated there",
    ),
    "chat-long": Mix(
        {"max": Key(262_144, 1, _MOST_TOKENS), **_ALWAYS},
        _chat_long,
        "99.89% of rows with mean 1K and 0.11% with mean 37K tokens, what Skrull and ChunkFlow"
        f" cite of Llama-3's SFT data; lognormal with sigma {CHAT_SIGMA:g} is assumed by us",
    ),
    "lognormal": Mix(
        {
            "median": Key(None, 1, _MOST_TOKENS, is_whole=False),
            "sigma": Key(None, 0, 10, is_whole=False),
            "max": Key(262_144, 1, _MOST_TOKENS),
            **_ALWAYS,
        },
        _lognormal,
        "a lognormal, rows above max cut to it; no data behind it",
    ),
}


def _parsed(text: str) -> tuple[str, Mix, dict[str, float]]:
    spelt = _SPELT.fullmatch(text)
    known = f"known: {', '.join(PREFIX + name for name in MIXES)}"
    if spelt is None:
        raise InputError(
            f"{printable(text)} is not spelt {PREFIX}NAME or {PREFIX}NAME(key=value,...)", known
        )
    name = spelt[1]
    if name not in MIXES:
        raise InputError(f"unknown mix {PREFIX}{name}", known)
    mix = MIXES[name]
    given: dict[str, float] = {}
    for item in filter(None, (spelt[2] or "").split(",")):
        key, _, number = (part.strip() for part in item.partition("="))
        if key not in mix.keys:
            raise InputError(
                f"{PREFIX}{name} takes no {printable(key)}", f"it takes {', '.join(mix.keys)}"
            )
        if key in given:
            raise InputError(f"{PREFIX}{name} has {key} twice", "keep one of the two")
        given[key] = _value(f"{PREFIX}{name}: {key} {number}", number, mix.keys[key])
    values: dict[str, float] = {}
    for key, about in mix.keys.items():
        value = given.get(key, about.default)
        if value is None:
            raise InputError(
                f"{PREFIX}{name} needs {key}",
                f"as {PREFIX}{name}(median=2000,sigma=1.4,max=262144)",
            )
        values[key] = value
    return name, mix, values


def _value(where: str, text: str, key: Key) -> float:
    matched = _NUMBER.fullmatch(text)
    if matched is None or (key.is_whole and matched[1]):
        kind = "a whole number" if key.is_whole else "a number"
        raise InputError(f"{printable(where)} is not {kind}")
    value = float(text)
    if not key.least <= value <= key.most:
        limits = f"{_number(key.least)} to {_number(key.most)}"
        raise InputError(f"{where} is out of range, {limits} are allowed")
    return value


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
