"""Who is slow: a device factor of every (stage, lane) from what each step took.

A change detector stands in front, so that noise is not chased and old estimates are not kept.
What a rank took (waiting excluded) over what the plan predicts for its load is a ratio that
heavy data does not move. Its logarithm, less the middle one of all ranks (an error of the
model, alike for all), is the residual. A rank's factor is 1 until its residuals have left it:
two-sided CUSUM of residual less the present level, in deviations, each step clipped at
`CLIP`. Of the steps in the sum, the likeliest is where the change began; the new level is the
mean since then, and later an EWMA.

The deviation is found from step-to-step differences of the last `WINDOW` steps, by quantiles:
levels cancel in them, and one rank that changes hardly moves it. It is raised where few were seen.
The first steps, before it is known at all, are taken into the sums as soon as it is.

A step is here what is observed at once; runs observe each of theirs in parts, so that one that is
slow all along is told after it, and a spell inside it is not.

A slowdown of all ranks alike cannot be seen, nor, on two ranks, which of them has changed:
they are told as one slower and one faster than their mean. Does not decide what to do.

Source: EWMA and CUSUM (Page 1954) are standard; residual, scale and constants are our choice,
with their reasons in docs/migration.md.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hydraplan.errors import InputError
from hydraplan.model import FloatArray, IntArray

SLACK, LIMIT, CLIP = 1.0, 6.0, 4.0
"""Of the CUSUM, in deviations: allowance a step, sum that tells a change, most a step counts.
LIMIT = 2 (CLIP - SLACK): never from one step alone, from two if each is beyond CLIP."""

WINDOW = 32
"""Steps whose residuals are kept."""

LEAST_SIGMA = 0.01
"""Deviation below which none is believed."""

LEAST_SEEN = 4
"""Differences below which nothing is known of the deviation, and nobody is named."""

LEAST_EFFECT = 0.05
"""Logarithm of a factor below which a rank counts as nominal."""

SMOOTHING = 0.2
"""Weight of the newest step in a level, once more than 1 / SMOOTHING steps are in it."""

NOMINAL = -1
"""`since` of a rank whose factor is 1."""


@dataclass(frozen=True, slots=True)
class Estimates:
    """What is believed after `steps` steps. Arrays of shape (stages, lanes).

    `log_factor`: 0 nominal. `since`: first step of it, `NOMINAL` where it is 0. `changed`: set or
    dropped by the latest step. Sums of the CUSUM, the first step in each, and residuals of the
    last steps, shape (steps kept, stages, lanes), NaN where a rank had no load.
    """

    steps: int
    log_factor: FloatArray
    since: IntArray
    changed: NDArray[np.bool_]
    above: FloatArray
    below: FloatArray
    above_from: IntArray
    below_from: IntArray
    residuals: FloatArray

    @property
    def factor(self) -> FloatArray:
        """Times as long as nominal that each rank takes."""
        factors: FloatArray = np.exp(self.log_factor)
        return factors

    @property
    def slow(self) -> list[tuple[int, int]]:
        """Ranks that are named: (stage, lane) of those slower than nominal, slowest first."""
        ranks = [(int(s), int(lane)) for s, lane in np.argwhere(self.log_factor > 0)]
        return sorted(ranks, key=lambda rank: (-float(self.log_factor[rank]), rank))


def nominal(stages: int, lanes: int) -> Estimates:
    """Nothing seen, nobody named."""
    shape = (stages, lanes)
    zeros, never = np.zeros(shape), np.full(shape, NOMINAL, np.int64)
    calm = np.zeros(shape, np.bool_)
    first = np.zeros(shape, np.int64)
    return Estimates(0, zeros, never, calm, zeros, zeros, first, first, np.zeros((0, *shape)))


def observe(seen: Estimates, busy_s: FloatArray, load_s: FloatArray) -> Estimates:
    """Estimates with one more step.

    Args:
        busy_s: Seconds each rank worked, waiting excluded, shape (stages, lanes).
        load_s: Seconds the plan predicts for that on nominal ranks; 0 where a rank had nothing
            to do, which then tells nothing.

    Raises:
        InputError: Shapes differ, or a time is negative, not finite, or 0 for work to do.
    """
    _check(seen.log_factor.shape, busy_s, load_s)
    worked = load_s > 0
    ratio = np.log(np.where(worked, busy_s, 1.0) / np.where(worked, load_s, 1.0))
    rest = (ratio - seen.log_factor)[worked]
    residual = np.where(worked, ratio - (np.median(rest) if rest.size else 0.0), np.nan)
    sigma = _deviation(seen.residuals, residual)
    residuals = np.concatenate([seen.residuals, residual[None]])[-WINDOW:]
    above, above_from = seen.above, seen.above_from
    below, below_from = seen.below, seen.below_from
    late = residuals if math.isfinite(sigma) and not _is_known(seen) else residuals[-1:]
    for step, each in enumerate(late, seen.steps + 1 - len(late)):
        score = np.clip(np.nan_to_num((each - seen.log_factor) / sigma), -CLIP, CLIP)
        counts = np.isfinite(each)
        above_from = np.where(above > 0, above_from, step)
        below_from = np.where(below > 0, below_from, step)
        above = np.where(counts, np.maximum(above + score - SLACK, 0), above)
        below = np.where(counts, np.maximum(below - score - SLACK, 0), below)
    told = (above >= LIMIT) | (below >= LIMIT)
    began = np.where(above >= LIMIT, above_from, below_from)
    level, since = _levels(seen, residuals, np.where(told, began, NOMINAL), sigma)
    changed = told & ((level != 0) | (seen.log_factor != 0)) | ((level == 0) & (seen.since >= 0))
    return replace(
        seen,
        steps=seen.steps + 1,
        log_factor=level,
        since=since,
        changed=changed,
        above=np.where(told, 0.0, above),
        below=np.where(told, 0.0, below),
        above_from=above_from,
        below_from=below_from,
        residuals=residuals,
    )


def _is_known(seen: Estimates) -> bool:
    """Whether the deviation was known in the latest step; if not, none of its scores counted."""
    past = seen.residuals
    return len(past) > 0 and math.isfinite(_deviation(past[:-1], past[-1]))


def _levels(
    seen: Estimates, residuals: FloatArray, began: IntArray, sigma: float
) -> tuple[FloatArray, IntArray]:
    """Level of every rank and the first step of it; 0 and `NOMINAL` within what noise explains.

    Args:
        began: First step of the sum that told a change, `NOMINAL` where none was told.
    """
    level, since = seen.log_factor.copy(), seen.since.copy()
    for rank in np.ndindex(level.shape):
        least = LEAST_EFFECT
        if began[rank] >= 0:
            kept = min(seen.steps + 1 - int(began[rank]), len(residuals))
            count, level[rank] = _tail(residuals[-kept:, *rank], float(level[rank]))
            since[rank] = seen.steps + 1 - count
            least = max(least, 2 * sigma / count**0.5)
        elif since[rank] >= 0 and np.isfinite(residuals[-1, *rank]):
            weight = max(1 / (seen.steps + 1 - int(since[rank])), SMOOTHING)
            level[rank] += weight * (residuals[-1, *rank] - level[rank])
        if abs(level[rank]) < least:
            level[rank], since[rank] = 0.0, NOMINAL
    return level, since


def _tail(residuals: FloatArray, level: float) -> tuple[int, float]:
    """The last steps that most likely have a mean other than `level`: how many, and their mean.

    For normal noise the logarithm of the likelihood ratio is (sum of residuals less level)^2 over
    twice their count and variance.
    """
    counted = np.cumsum(np.isfinite(residuals[::-1]))
    total = np.cumsum(np.nan_to_num(residuals[::-1] - level))
    best = int(np.argmax(total**2 / np.maximum(counted, 1)))
    return best + 1, level + float(total[best] / counted[best])


def _deviation(past: FloatArray, residual: FloatArray) -> float:
    """Standard deviation of a residual; infinite while too little is known.

    From absolute differences, which have sqrt 2 times the deviation: their middle is 0.6745 of
    that if they are normal, and 97 of 100 are below 2.17 of it; whichever says more counts, so
    that heavy tails are not taken for changes. From n differences the middle is itself uncertain
    by about 1.2 / sqrt n; 1.5 of these are added. If the present step is noisier over all ranks
    than the past, its own middle counts. Of two steps the latest is in the first difference: where
    many ranks are, one that changed does not move the middle. Two ranks mirror each other: they
    have half as many freedoms, and neither a tail nor a middle of their own.
    """
    seen = past if len(past) > 1 else np.concatenate([past, residual[None]])
    steps = np.abs(np.diff(seen, axis=0))
    free = steps.shape[0] * (residual.size - 1)
    known = steps[np.isfinite(steps)]
    if min(free, known.size) < LEAST_SEEN:
        return float("inf")
    sigma = float(np.median(known)) / 0.6745
    earlier = steps[:-1][np.isfinite(steps[:-1])]
    if residual.size > 2 and earlier.size:
        sigma = max(sigma, float(np.quantile(earlier, 0.97)) / 2.17)
    sigma *= 1 + 1.8 / min(free, known.size) ** 0.5
    now = np.abs(residual - past[-1])
    now = now[np.isfinite(now)]
    if now.size > 2:
        sigma = max(sigma, float(np.median(now)) / 0.6745)
    return max(float(sigma / 2**0.5), LEAST_SIGMA)


def _check(shape: tuple[int, ...], busy_s: FloatArray, load_s: FloatArray) -> None:
    if busy_s.shape != shape or load_s.shape != shape:
        raise InputError(f"times of shapes {busy_s.shape} and {load_s.shape}, not {shape}")
    for name, times in (("measured", busy_s), ("predicted", load_s)):
        if not (np.isfinite(times) & (times >= 0)).all():
            raise InputError(f"a {name} time is negative or not finite")
    if (busy_s[load_s > 0] <= 0).any():
        raise InputError("a rank with work to do took no time")
