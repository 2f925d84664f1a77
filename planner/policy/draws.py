"""Batches to learn from: whatever an order may have to cope with, drawn anew each time.

Half of the batches are like those of plans. The others mix some of: devices or stages that differ,
microbatches whose loads come from real lengths, ratios of F, B and W, messages, limits of memory,
small differences between ops. A quarter has announced windows of low speed. The mean F of an even
batch takes one second.

Source: the kinds are those of the simulator's noise as far as a planner is told of it, and of
Conductor's abstract; shares and ranges are ours.
"""

from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np

from hydraplan.files.lengths import read_lengths
from hydraplan.model import FloatArray
from hydraplan.planner.pipeline.memory import Memory
from hydraplan.planner.pipeline.order import microbatch_order
from hydraplan.planner.pipeline.spells import NONE, Spells, sorted_spells
from hydraplan.planner.policy.world import Instance
from hydraplan.slots import SlotTimes

STAGES = (2, 3, 4, 5, 6, 8, 8, 8, 12, 16, 16)
FEWEST, MOST = 4, 160
"""Microbatches of a batch; evenly by their logarithm."""
PLANNED = 0.5
"""Share of batches that are like those of plans."""
BALANCE_TOKENS = 4096
"""Length at which attention takes as long as all the rest, where loads come from lengths."""


def drawn(random: np.random.Generator, stages: int = 0, microbatches: int = 0) -> Instance:
    """One batch; of given sizes where they are not zero."""
    p = stages or int(random.choice(STAGES))
    m = microbatches or int(np.rint(np.exp(random.uniform(np.log(FEWEST), np.log(MOST)))))
    return _planned(random, p, m) if random.random() < PLANNED else _anything(random, p, m)


def _planned(random: np.random.Generator, p: int, m: int) -> Instance:
    """As `plan` makes them: whole layers a stage, loads almost even, activations less so."""
    kinds_s = np.array([1.0, random.uniform(1.2, 1.6), random.uniform(0.6, 0.85)])
    load = random.lognormal(0, random.uniform(0, 0.05), m) * np.ones((3, 1))
    live = random.lognormal(0, random.uniform(0, 0.25), m)
    layers = np.ones(p) * random.integers(2, 11)
    layers[random.random(p) < random.choice([0.0, 0.15, 0.5])] += 1
    layers[-1] += random.uniform(0, 0.6)
    op_s = (kinds_s[:, None] * load)[:, None, :] * (layers / layers.mean())[:, None]
    slow = _devices(random, p) if random.random() < 0.6 else None
    limit = p * (1.0 if random.random() < 0.3 else random.uniform(0.8, 3.0))
    travel_s, sync_s = random.uniform(0, 0.1), random.uniform(0, 0.8, p)
    return _batch(random, op_s, live / live.mean(), slow, limit, travel_s, sync_s)


def _anything(random: np.random.Generator, p: int, m: int) -> Instance:
    """Further from even in all that can differ."""
    kinds_s = np.array([1.0, 1.0, 1.0])
    if random.random() < 0.5:
        kinds_s[1:] = random.uniform(0.8, 2.0), random.uniform(0.4, 1.2)
    load, live = np.ones((3, m)), np.ones(m)
    if random.random() < 0.25:
        load, live = _loads(random, m)
    op_s = (kinds_s[:, None] * load)[:, None, :] * _of_stages(random, p)[:, None]
    if random.random() < 0.5:
        op_s = op_s * random.lognormal(0, random.uniform(0, 0.05), op_s.shape)
    kind = random.choice(3, p=[0.6, 0.2, 0.2])
    limit = p * (1.0, random.uniform(0.5, 1.0), random.uniform(1.0, 2.0))[kind]
    travel_s = random.choice([0.0, random.uniform(0, 0.2), random.uniform(0, 0.8)])
    sync_s = np.full(p, random.choice([0.0, random.uniform(0, 2.0)]))
    return _batch(random, op_s, live, _devices(random, p), limit, travel_s, sync_s)


def _batch(
    random: np.random.Generator,
    op_s: FloatArray,
    live: FloatArray,
    slow: FloatArray | None,
    limit: float,
    travel_s: float,
    sync_s: FloatArray,
) -> Instance:
    """The batch of these; half of those with slow devices tell them as times, not as factors."""
    if slow is not None and random.random() < 0.5:
        op_s, slow = op_s * slow[:, None], None
    p, m = op_s.shape[1:]
    lane = SlotTimes(
        op_s=op_s[:, :, None, None, :],
        rows=np.ones((1, m), np.int64),
        component=np.zeros((1, m), np.int64),
        boundary_s=travel_s * live[None, :],
        grad_sync_s=sync_s,
    )
    windows = _windows(random, p, op_s, slow) if random.random() < 0.25 else NONE
    frees = 0.5 if random.random() < 0.4 else random.uniform(0.3, 0.6)
    memory = Memory(max(float(limit), float(live.max())), live, float(frees))
    return Instance(lane, memory, slow, windows)


def _of_stages(random: np.random.Generator, p: int) -> FloatArray:
    """What stages take, over an even one: even, all of them unequal, or a heavy last one."""
    kind = random.choice(3, p=[0.5, 0.35, 0.15])
    factor = np.ones(p)
    if kind == 1:
        factor = random.uniform(0.8, 1.2, p)
    elif kind == 2:
        factor[-1] = random.uniform(1.1, 1.4)
    return factor


def _devices(random: np.random.Generator, p: int) -> FloatArray | None:
    """Factors of the devices: alike, one or two slow ones, or all with small differences."""
    kind = random.choice(4, p=[0.4, 0.4, 0.1, 0.1])
    if kind == 0:
        return None
    factor = random.lognormal(0, 0.01, p)
    if kind == 1:
        factor[random.integers(p)] *= random.uniform(1.1, 1.6)
    elif kind == 2:
        factor[random.integers(p, size=2)] *= random.uniform(1.3, 2.0, 2)
    return factor


def _loads(random: np.random.Generator, m: int) -> tuple[FloatArray, FloatArray]:
    """F, B and W of every microbatch over their mean, (3, m), and what it holds, from lengths."""
    rows = int(random.integers(1, 9))
    tokens = random.choice(_lengths(), (m, rows))
    linear, square = tokens.sum(axis=1), (tokens**2).sum(axis=1) / BALANCE_TOKENS
    both = linear + square
    load = np.stack([both / both.mean(), both / both.mean(), linear / linear.mean()])
    order = np.arange(m)
    if random.random() < 0.5:
        order = microbatch_order("sandwich", load.sum(axis=0)[None])
    return load[:, order], (linear / linear.mean())[order]


@cache
def _lengths() -> FloatArray:
    """Lengths of the bundled file, tokens; at least 64, since no microbatch is that short."""
    path = Path(str(resources.files("hydraplan") / "data" / "lengths_cpython_stdlib.parquet"))
    return np.clip(read_lengths(path).length_tokens, 64, 32_768).astype(float)


def _windows(
    random: np.random.Generator, p: int, op_s: FloatArray, slow: FloatArray | None
) -> Spells:
    """One or two announced windows, each of one stage, somewhere in the time the batch takes."""
    count = 1 + int(random.random() < 0.2)
    each_s = op_s.sum(axis=(0, 2)) * (1.0 if slow is None else slow)
    span_s = float(each_s.max()) * (1 + (p - 1) / op_s.shape[2])
    share = random.uniform(0.1, 0.4, count)
    begin_s = random.uniform(0, 1 - share) * span_s
    return sorted_spells(
        p, random.integers(0, p, count), begin_s, begin_s + share * span_s,
        random.choice([0.5, random.uniform(0.25, 0.85)], count), np.zeros(count, np.int64),
    )  # fmt: skip
