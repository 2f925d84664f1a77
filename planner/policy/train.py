"""Learning an op-order policy: imitate good orders, then improve on samples of each batch.

Every round draws batches and plays each K times by chance. An episode's advantage is how much
better its order is than the others *of its own batch*, by the mean over noise scenarios, over their
spread, the same for all its choices: which batch was drawn explains 99.9% of how long one takes, so
a baseline over batches (kept as a control) leaves the actions' share buried. Batches whose episodes
end alike, and choices that were all but certain, teach nothing and are left out. No critic.

All that is random depends on the seed and the round, so a run that goes on from a checkpoint makes
the same policy, to the bit for the same number of threads.

Source: PPO-clip is Schulman et al. 2017; relative advantages within a group are known from GRPO;
that they are what makes this problem learnable, and all constants, we found (docs/policy.md).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from hydraplan.model import FloatArray
from hydraplan.planner.policy.cloning import best_of
from hydraplan.planner.policy.draws import drawn
from hydraplan.planner.policy.env import empty_env
from hydraplan.planner.policy.gradient import (
    Batch,
    Moments,
    adam,
    clipped,
    cloned,
    joined,
    no_moments,
)
from hydraplan.planner.policy.network import HIDDEN, Floats, Weights, new_weights
from hydraplan.planner.policy.rollout import Trace, new_trace, play
from hydraplan.planner.policy.scored import Scenarios, as_planned, scenarios_of, scored_s
from hydraplan.planner.policy.validation import Validation, gains
from hydraplan.planner.policy.world import Instance

Baseline = Literal["group", "batch"]
EPOCHS = 2
"""Passes over what a round plays."""
CERTAIN = -0.005
"""Log probability above which a choice was all but certain."""
SPREAD = 0.0005
"""Share of the mean makespan added to the spread that an advantage is told in."""
BONUS = 0.003
"""Weight of the entropy at first; it falls to 0."""
LAST_RATE = 0.05
"""Share of the first learning rate that is left at the end."""
CLONED_EPOCHS, CLONED_RATE = 20, 2e-3
"""Passes over the choices that are imitated at first; learning rate, which falls to 0 meanwhile."""
_CLONE, _ROUND = 1, 2
"""Random streams of a seed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run is given; the same settings make the same policy.

    `steps`: choices to play in all. `group`: episodes of each batch. `choices`: about as many a
    round, but a tenth of all at most. `cloned`: batches to imitate first. `baseline`:
    `group`, or `batch` as a control. `noisy`: whether orders are worth their mean over noise
    scenarios (`scored`), or what they take as planned.
    """

    seed: int = 0
    steps: int = 20_000_000
    group: int = 16
    choices: int = 65_536
    rate: float = 1e-3
    hidden: int = HIDDEN
    cloned: int = 600
    baseline: Baseline = "group"
    noisy: bool = True


class Learner(NamedTuple):
    """Where a run stands: rounds and choices done."""

    weights: Weights
    moments: Moments
    rounds: int
    steps: int


class Round(NamedTuple):
    """Of one round: batches, choices, share of them learned from, mean of -log probability."""

    batches: int
    choices: int
    learned: float
    surprise: float


MEASURES = 10
"""How often a run is measured after its start, at equal distances in steps."""


def training(
    settings: Settings, start: Learner | None, held: Validation
) -> Iterator[tuple[Learner, int, dict[str, float] | None]]:
    """Every round of a run: where it stands, choices played, and how it does where that is due.

    Args:
        start: Where to go on from; None for the beginning, which is measured before any round.
    """
    learner = begun(settings) if start is None else start
    if start is None:
        yield learner, 0, {"steps": 0.0, **gains(learner.weights, held)}
    while learner.steps < settings.steps:
        before = learner.steps
        learner, figures = advance(settings, learner)
        measured = None
        if learner.steps * MEASURES // settings.steps > before * MEASURES // settings.steps:
            measured = {
                "steps": float(learner.steps),
                **gains(learner.weights, held),
                "learned_share": figures.learned,
                "surprise": figures.surprise,
            }
        yield learner, figures.choices, measured


def begun(settings: Settings) -> Learner:
    """A new network that has imitated the best order of some batches."""
    weights = new_weights(np.random.default_rng([settings.seed, 0]), settings.hidden)
    moments = no_moments(weights)
    random = np.random.default_rng([settings.seed, _CLONE])
    batches = (drawn(random) for _ in range(settings.cloned))
    found = [best_of(batch, _scenarios(settings, batch, random)) for batch in batches]
    if found:
        whole = joined(found)
        for epoch in range(CLONED_EPOCHS):
            rate = CLONED_RATE * (1 - epoch / CLONED_EPOCHS)
            for batch in whole.shuffled(random):
                weights, moments = adam(weights, cloned(weights, batch), moments, rate)
    return Learner(weights, no_moments(weights), 0, 0)


def advance(
    settings: Settings,
    learner: Learner,
    draw: Callable[[np.random.Generator], Instance] | None = None,
) -> tuple[Learner, Round]:
    """One round: play, and learn from what was played.

    Args:
        draw: Makes the batches; None for `draws.drawn`.
    """
    random = np.random.default_rng([settings.seed, _ROUND, learner.rounds])
    instances, size = [], 0
    while size < min(settings.choices, settings.steps / 10):
        instances.append((draw or drawn)(random))
        size += settings.group * instances[-1].lane.op_s.size
    ends_s, trace = _played(settings, learner.weights, instances, random)
    advantage = np.repeat(advantages(ends_s, settings.baseline).ravel(), np.diff(trace.first))
    kept = (trace.log_prob < CERTAIN) & (advantage != 0)
    every = Batch(trace.features, trace.masks, trace.actions, advantage, trace.log_prob)
    batch = every.rows(kept)
    share = learner.steps / settings.steps
    rate = settings.rate * (LAST_RATE + (1 - LAST_RATE) * max(0.0, 1 - share))
    weights, moments = learner.weights, learner.moments
    for _ in range(EPOCHS):
        for part in batch.shuffled(random):
            gradient = clipped(weights, part, BONUS * max(0.0, 1 - share))
            weights, moments = adam(weights, gradient, moments, rate)
    choices = int(trace.first[-1])
    figures = Round(len(instances), choices, float(kept.mean()), float(-trace.log_prob.mean()))
    return Learner(weights, moments, learner.rounds + 1, learner.steps + choices), figures


def _played(
    settings: Settings,
    weights: Weights,
    instances: Sequence[Instance],
    random: np.random.Generator,
) -> tuple[FloatArray, Trace]:
    """Scores (batches, group), seconds, and all choices of these episodes."""
    episodes = len(instances) * settings.group
    env = empty_env([i for i in instances for _ in range(settings.group)])
    seeds = random.integers(0, 1 << 62, episodes)
    room = int(1.5 * settings.group * sum(i.lane.op_s.size for i in instances))
    while True:
        trace = new_trace(room, episodes)
        count = play(weights, env, seeds, trace)
        if count <= room:
            break
        room = count
    parts = [_scenarios(settings, instance, random) for instance in instances]
    ends_s: FloatArray = scored_s(env, parts).reshape(len(instances), settings.group)
    return ends_s, trace.upto(count)


def _scenarios(settings: Settings, instance: Instance, random: np.random.Generator) -> Scenarios:
    return scenarios_of(instance, random) if settings.noisy else as_planned(instance)


def advantages(ends_s: FloatArray, baseline: Baseline) -> Floats:
    """How much sooner each episode ended than others, (batches, group); 0 teaches nothing."""
    over = None if baseline == "batch" else 1
    mean_s = ends_s.mean(axis=over, keepdims=True)
    spread_s = ends_s.std(axis=over, keepdims=True)
    alike = spread_s < 1e-9 * mean_s
    scale = np.where(alike, 0, 1 / (spread_s + SPREAD * mean_s))
    found: Floats = (scale * (mean_s - ends_s)).astype(np.float32)
    return found
