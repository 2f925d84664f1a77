"""How many times as long terms take as was thought, from what ops took. Pure numpy.

Given seconds of every term in every op as the old costs have them, and what each op took, find
multipliers m >= 0 with

    sum over ops h(log(sum_k m_k s_k) - log taken) + sum over sets (log m_k - level)^2 / (2 PULL^2)

least. h is Huber's: a square for residuals near the middle one, |residual| beyond, so that
disturbed ops do not move it; logarithms keep multipliers positive and let twice as fast count as
twice as slow. The second sum pulls what the ops cannot tell apart toward one level, that is toward
the old ratios: it is felt only where ops say next to nothing. Batches may each have run on a
machine a little faster or slower (`DRIFT`).

Sets of terms share a multiplier. Which sets is chosen by ops held out: slots are dealt to folds,
multipliers found on the others, and the fewest sets are taken whose error no larger number of
sets beats by more than `SURE` standard errors over the slots. Terms whose seconds are a fixed
share of each other in all ops are one set: they can be told only together.

Source: ours; Huber's loss by reweighting and choice by held-out error are standard.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hydraplan.model import FloatArray, IntArray

PULL = 0.5
"""Standard deviation, as a logarithm, that multipliers of terms are thought to have. Our choice."""

DRIFT = 0.05
"""The same of batches that ran on one machine at different times. Our choice."""

FOLDS = 5
BEND = 2.0
"""Middle residuals from which on a residual counts no more by its square."""

LEAST_SIGMA = 1e-3
"""Residuals are never taken for smaller than this; keeps weights finite."""

ROUNDS = 60
CONVERGED = 1e-7
ALIKE = 0.02
"""Share of their time by which two terms may lie apart over the ops and still not be told apart."""

SURE = 2.0
"""Standard errors by which more sets have to predict held-out slots better."""

LEAST_GAIN = 2e-3
"""Held-out error, as a logarithm, that more sets have to save at least."""


class Learned(NamedTuple):
    """Multipliers of sets of terms.

    `names` of the sets, sets that only go together joined by "+"; `members`: places of their
    terms; `log_multiplier` (sets,), `covariance` (sets, sets) of these. `level`: logarithm of the
    multiplier that the pull is toward. `residual`: logarithm of fitted over taken, (ops,).
    """

    names: tuple[str, ...]
    members: tuple[tuple[int, ...], ...]
    log_multiplier: FloatArray
    covariance: FloatArray
    level: float
    residual: FloatArray


def joined(term_s: FloatArray, groups: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """The sets that have time in some op, those that are alike in all ops joined."""
    found: dict[str, tuple[int, ...]] = {}
    shapes: dict[str, FloatArray] = {}
    for name, members in groups.items():
        column = term_s[list(members)].sum(axis=0)
        if column.sum() <= 0:
            continue
        shape = column / column.sum()
        twin = next((k for k, s in shapes.items() if np.abs(s - shape).sum() < ALIKE), None)
        if twin is None:
            found[name], shapes[name] = tuple(members), shape
        else:
            found[f"{twin}+{name}"] = (*found.pop(twin), *members)
            shapes[f"{twin}+{name}"] = shapes.pop(twin)
    return found


def learn(
    term_s: FloatArray, taken_s: FloatArray, batch: IntArray, groups: Mapping[str, Sequence[int]]
) -> Learned:
    """Multipliers of some sets of terms.

    Args:
        term_s: Seconds of each term in each op by the old costs, (terms, ops); every op has some.
        taken_s: Positive seconds that the ops took, (ops,).
        batch: Number of the batch of each op, from 0 on, (ops,).
        groups: Places of the terms of each set.
    """
    sets = joined(term_s, groups)
    columns = np.stack([term_s[list(members)].sum(axis=0) for members in sets.values()])
    target, count, batches = np.log(taken_s), len(sets), int(batch.max()) + 1
    drift = np.zeros((len(target), batches if batches > 1 else 0))
    if batches > 1:
        drift[np.arange(len(target)), batch] = 1.0
    pull = np.array([1e-9] + [PULL**-2] * count + [DRIFT**-2] * drift.shape[1])
    pull[1 : 1 + count] *= 1e9 if count == 1 else 1
    found = np.zeros(len(pull))
    found[0] = np.median(target - np.log(columns.sum(axis=0)))
    for _ in range(ROUNDS):
        slope, residual = _linear(columns, drift, found, target)
        size = np.abs(residual)
        b = max(float(np.median(size)), LEAST_SIGMA)
        weight = 1 / (b * np.maximum(size, BEND * b))
        normal = (slope * weight[:, None]).T @ slope + np.diag(pull)
        step = np.linalg.solve(normal, -slope.T @ (weight * residual) - pull * found)
        found += np.clip(step, -0.5, 0.5)
        if np.abs(step).max() < CONVERGED:
            break
    slope, residual = _linear(columns, drift, found, target)
    b = max(float(np.median(np.abs(residual))), LEAST_SIGMA)
    covariance = np.linalg.inv(slope.T @ slope / (1.4826 * b) ** 2 + np.diag(pull))
    of_sets = np.zeros((count, len(pull)))
    of_sets[:, 0], of_sets[:, 1 : 1 + count] = 1.0, np.eye(count)
    return Learned(
        names=tuple(sets),
        members=tuple(sets.values()),
        log_multiplier=of_sets @ found,
        covariance=of_sets @ covariance @ of_sets.T,
        level=float(found[0]),
        residual=residual,
    )


def _linear(
    columns: FloatArray, drift: FloatArray, found: FloatArray, target: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Slope of the logarithm of each op by level, sets and batches, (ops, those); its residual."""
    count = len(columns)
    parts = np.exp(found[1 : 1 + count])[:, None] * columns
    total = parts.sum(axis=0)
    ones = np.ones((len(target), 1))
    slope = np.concatenate([ones, (parts / total).T, drift], axis=1)
    return slope, found[0] + np.log(total) + drift @ found[1 + count :] - target


def held_out_error(
    term_s: FloatArray,
    taken_s: FloatArray,
    batch: IntArray,
    slot: IntArray,
    groups: Mapping[str, Sequence[int]],
) -> FloatArray:
    """Mean |log(fitted / taken)| of the ops of each slot, found on other slots only.

    Args:
        slot: Number of the slot of each op over all batches, from 0 on; each has some op, and there
            are at least 2.

    Returns:
        Shape (slots,).
    """
    count = int(slot.max()) + 1
    fold = slot % min(FOLDS, count)
    missed = np.zeros(len(taken_s))
    for each in range(min(FOLDS, count)):
        out = fold == each
        found = learn(term_s[:, ~out], taken_s[~out], batch[~out], groups)
        missed[out] = np.abs(np.log(times(found, len(term_s)) @ term_s[:, out] / taken_s[out]))
    error: FloatArray = np.bincount(slot, missed, count) / np.bincount(slot)
    return error


def times(found: Learned, num_terms: int) -> FloatArray:
    """Multiplier of every term; the level for those without time in the ops. Shape (terms,)."""
    result = np.full(num_terms, np.exp(found.level))
    for members, log_times in zip(found.members, found.log_multiplier, strict=True):
        result[list(members)] = np.exp(log_times)
    return result


def fewest(errors: Sequence[FloatArray]) -> int:
    """Place of the first of models, the fewest sets first, that no later one clearly beats.

    Args:
        errors: Held-out error of every slot, (slots,), of each model.
    """
    for place, error in enumerate(errors):
        gains = [error - later for later in errors[place + 1 :]]
        least = [max(SURE * float(g.std(ddof=1)) / len(g) ** 0.5, LEAST_GAIN) for g in gains]
        if all(float(g.mean()) <= margin for g, margin in zip(gains, least, strict=True)):
            return place
    return len(errors) - 1
