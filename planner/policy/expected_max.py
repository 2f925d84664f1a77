"""Expected time of the slowest of n ranks with log-normal factors, before and after pairing.

It is what symmetric pairing can gain at most, with free transfers and units of any size. Every
rank has the same work, 1 at nominal speed, and takes exp(sigma z - sigma^2 / 2), of mean 1. A
pair divides its work so that both end together, at the harmonic mean of their times. If only a
share can move, and only once the rest is done, what the giver keeps must cover what it gave.

Source: our derivation, docs/migration.md. Quadrature; for two ranks in closed form.
"""

from math import erf, exp, sqrt

import numpy as np

from hydraplan.errors import InputError
from hydraplan.model import FloatArray

REACH = 8.0
"""Deviations around the median that integrals cover."""

LIMITS, CELLS, TERMS = 65, 240, 14
"""Times at which the distribution is evaluated; cells and Taylor terms of the ballot below."""


def expected_max(ranks: int, sigma: float) -> float:
    """E[max] of `ranks` times, by quadrature of the integral of x dF(x)^n.

    Raises:
        InputError: Fewer than one rank, or sigma not above 0.
    """
    _check(ranks, sigma)
    z = np.linspace(-REACH, REACH, 4001)
    survives = 1 - _normal(z) ** ranks
    return _mean(sigma, z, survives)


def expected_max_of_two(sigma: float) -> float:
    """The same of two ranks in closed form, 2 Phi(sigma / sqrt 2)."""
    return 1 + erf(sigma / 2)


def paired_max_of_two(sigma: float) -> float:
    """Expected harmonic mean of two times, exp(-sigma^2 / 4) E[sech d], d ~ N(0, sigma^2 / 2)."""
    z = np.linspace(-REACH, REACH, 4001)
    density = np.exp(-(z**2) / 2) / np.cosh(sigma / sqrt(2) * z)
    return exp(-(sigma**2) / 4) * float(density.sum() / np.exp(-(z**2) / 2).sum())


def paired_expected_max(ranks: int, sigma: float, movable: float = 1.0) -> float:
    """E[max] after pairing the k-th slowest with the k-th fastest, for all k.

    Args:
        movable: Share of a rank's work that may move, above 0 up to 1.

    Raises:
        InputError: Fewer than one rank, sigma not above 0, or no such share.
    """
    _check(ranks, sigma)
    if not 0 < movable <= 1:
        raise InputError(f"a movable share of {movable} is not above 0 and at most 1")
    z = np.linspace(-REACH, REACH, LIMITS)
    return _mean(sigma, z, 1 - _share_within(_time_s(sigma, z), ranks, sigma, movable))


def _share_within(limit_s: FloatArray, ranks: int, sigma: float, movable: float) -> FloatArray:
    """Chance that every pair ends within each limit x, shape of `limit_s`.

    A rank of time t <= x ends in time with one of at most g(t), and g falls from above x to x. So
    the inverse of g mirrors slower ranks into 0 .. x. All pairs end in time if the k-th smallest
    mirrored time is not below the k-th smallest time of the fast ranks, for all k: going up from
    0 to x, at no point have more mirrored ranks passed than fast ones. `reached[v, u]` is (u + v)!
    times the volume of the ways in which u fast and v mirrored ranks got there so.
    """
    top = np.log(limit_s) / sigma + sigma / 2
    z = np.linspace(-REACH, top, CELLS + 1)
    fast_s = _time_s(sigma, z)
    mirror_s = 1 / np.maximum(2 / limit_s - 1 / fast_s, 1e-300)
    ahead_s = limit_s - fast_s
    root_s = np.sqrt(ahead_s**2 + 4 * (1 - movable) * limit_s * fast_s)
    covered_s = 2 * limit_s * fast_s / np.maximum(root_s - ahead_s, 1e-300)
    mirror_s = np.minimum(mirror_s, covered_s)
    above = _normal(np.log(mirror_s) / sigma + sigma / 2)
    fast, slow = np.diff(_normal(z), axis=0), -np.diff(above, axis=0)
    half = ranks // 2
    passed = np.add.outer(np.arange(half + 1), np.arange(ranks + 1))[:, :, None]
    legal = (passed <= ranks) & (np.arange(ranks + 1) >= np.arange(half + 1)[:, None])[:, :, None]
    reached = np.zeros((half + 1, ranks + 1, len(limit_s)))
    reached[0, 0] = 1.0
    factor = np.where(legal, passed, 0).astype(np.float64)
    for add_fast, add_slow in zip(fast, np.maximum(slow, 0), strict=True):
        term = reached
        for order in range(1, TERMS + 1):
            new = np.zeros_like(term)
            new[:, 1:] = add_fast * term[:, :-1]
            new[1:] += add_slow * term[:-1]
            term = new * (factor / order)
            reached = reached + term
    ends = [(v, ranks - v) for v in range(half + 1)]
    total: FloatArray = np.sum([reached[v, u] for v, u in ends], axis=0)
    return total


def _time_s(sigma: float, z: FloatArray) -> FloatArray:
    times: FloatArray = np.exp(sigma * z - sigma**2 / 2)
    return times


def _mean(sigma: float, z: FloatArray, survives: FloatArray) -> float:
    """Mean of a time that is above that of z[i] with chance `survives[i]`; z is evenly spaced."""
    slope = sigma * _time_s(sigma, z) * survives
    return float(_time_s(sigma, z)[0] + ((slope[1:] + slope[:-1]) / 2 * np.diff(z)).sum())


def _normal(z: FloatArray) -> FloatArray:
    values = np.array([erf(value / sqrt(2)) for value in z.ravel().tolist()])
    shaped: FloatArray = ((1 + values) / 2).reshape(z.shape)
    return shaped


def _check(ranks: int, sigma: float) -> None:
    if ranks < 1 or not sigma > 0:
        raise InputError(f"{ranks} ranks with sigma {sigma}: at least 1, and above 0")
