"""The network in batches, its gradient written out, and Adam: learning without torch.

Rows are choices. One rule serves both ways to learn: `clipped` is the surrogate of PPO with an
entropy bonus, `cloned` the cross entropy to given actions. Single precision throughout, sums by
numpy's BLAS: same bits for the same number of threads.

Source: PPO-clip is Schulman et al. 2017, Adam is Kingma and Ba 2015; the gradients are derived.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hydraplan.model import IntArray
from hydraplan.planner.policy.episode import WAIT
from hydraplan.planner.policy.network import Floats, Weights

CLIP = 0.2
"""How far a step's probability ratio counts, of PPO."""
MINIBATCH = 4096
"""Choices of a step, about."""
MOST_NORM = 0.5
"""Norm to which a gradient is scaled down."""
DECAY_1, DECAY_2, SMALL = 0.9, 0.999, 1e-8
"""Of Adam."""


class Moments(NamedTuple):
    """Adam's: first and second moments as one vector each, and how many steps they have seen."""

    first: Floats
    second: Floats
    steps: int


def no_moments(weights: Weights) -> Moments:
    """Before the first step."""
    size = sum(a.size for a in weights)
    return Moments(np.zeros(size, np.float32), np.zeros(size, np.float32), 0)


class Batch(NamedTuple):
    """Choices to learn from, (rows, ...): `advantage` of the action taken, `log_prob` it had."""

    features: Floats
    masks: NDArray[np.bool_]
    actions: IntArray
    advantage: Floats
    log_prob: Floats

    def rows(self, which: IntArray | NDArray[np.bool_]) -> "Batch":
        """Some of them."""
        features, masks, actions, advantage, log_prob = self
        return Batch(
            features[which], masks[which], actions[which], advantage[which], log_prob[which]
        )

    def shuffled(self, random: np.random.Generator) -> "list[Batch]":
        """All of them in random order, in parts of about `MINIBATCH`; no part without rows."""
        order = random.permutation(len(self.actions))
        count = max(1, round(len(order) / MINIBATCH))
        return [self.rows(part) for part in np.array_split(order, count) if len(part)]


def joined(parts: Sequence[Batch]) -> Batch:
    """One after the other."""
    features, masks, actions, advantage, log_prob = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    return Batch(features, masks, actions, advantage, log_prob)


class Forward(NamedTuple):
    """What a pass leaves: hidden layers, and log probabilities, -inf where illegal."""

    first: Floats
    second: Floats
    log_probs: Floats


def forward(weights: Weights, features: Floats, masks: NDArray[np.bool_]) -> Forward:
    """`network.fill_logits` of every row, as log probabilities."""
    first = np.maximum(features @ weights.into_1 + weights.bias_1, 0)
    second = np.maximum(first @ weights.into_2 + weights.bias_2, 0)
    logits = second @ weights.into_3 + weights.bias_3
    rows, kind = np.arange(len(features)), features[:, -3:].argmax(axis=1)
    template = np.where(masks[rows, kind], kind, WAIT)
    logits[rows, template] += weights.head_start[0]  # an illegal one is put out below
    logits[~masks] = -np.inf
    logits -= logits.max(axis=1, keepdims=True)
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return Forward(first, second, log_probs)


def clipped(weights: Weights, batch: Batch, bonus: float) -> Weights:
    """Gradient of PPO's loss less `bonus` times the entropy, mean over rows."""
    found = forward(weights, batch.features, batch.masks)
    rows = np.arange(len(batch.actions))
    ratio = np.exp(found.log_probs[rows, batch.actions] - batch.log_prob)
    up = batch.advantage >= 0
    counts = np.where(up, ratio <= 1 + CLIP, ratio >= 1 - CLIP)
    probs: Floats = np.exp(found.log_probs)
    logs = np.where(batch.masks, found.log_probs, 0)
    gain = batch.advantage * ratio * counts
    pull: Floats = probs * gain[:, None]
    pull[rows, batch.actions] -= gain
    pull += np.float32(bonus) * probs * (logs - (probs * logs).sum(axis=1, keepdims=True))
    return _backward(weights, batch.features, found, pull)


def cloned(weights: Weights, batch: Batch) -> Weights:
    """Gradient of minus the log probability of the actions, mean over rows."""
    found = forward(weights, batch.features, batch.masks)
    pull: Floats = np.exp(found.log_probs)
    pull[np.arange(len(pull)), batch.actions] -= 1
    return _backward(weights, batch.features, found, pull)


def _backward(weights: Weights, features: Floats, found: Forward, pull: Floats) -> Weights:
    """Mean gradient of all weights from those of the logits; `head_start` is not learned."""
    pull = pull / np.float32(len(pull))
    into_2: Floats = (pull @ weights.into_3.T) * (found.second > 0)
    into_1: Floats = (into_2 @ weights.into_2.T) * (found.first > 0)
    return Weights(
        features.T @ into_1, into_1.sum(axis=0), found.first.T @ into_2, into_2.sum(axis=0),
        found.second.T @ pull, pull.sum(axis=0), np.zeros(1, np.float32),
    )  # fmt: skip


def adam(
    weights: Weights, gradient: Weights, moments: Moments, rate: float
) -> tuple[Weights, Moments]:
    """One step against the gradient, scaled down to `MOST_NORM` first."""
    slope: Floats = np.concatenate([g.ravel() for g in gradient])
    slope *= min(1.0, MOST_NORM / (float(np.linalg.norm(slope)) + SMALL))
    steps = moments.steps + 1
    first: Floats = np.float32(DECAY_1) * moments.first + np.float32(1 - DECAY_1) * slope
    second: Floats = np.float32(DECAY_2) * moments.second + np.float32(1 - DECAY_2) * slope**2
    mean, square = 1 / (1 - DECAY_1**steps), 1 / (1 - DECAY_2**steps)
    change = np.float32(rate * mean) * first / (np.sqrt(np.float32(square) * second) + SMALL)
    parts = np.split(change.astype(np.float32), np.cumsum([a.size for a in weights])[:-1])
    moved = (a - c.reshape(a.shape) for a, c in zip(weights, parts, strict=True))
    return Weights(*moved), Moments(first, second, steps)
