"""The point of the search that a plan names, held against what the search can try.

Quantum, guard, slack and taper are among the values that are tried, in a batch that tries them; the
load target follows from them and a number of microbatches, and is computed again. That number is
the plan's own, unless the plan left it open: then microbatches that got nothing were taken out, or
rows that keep their order needed some more, and any number will do.
"""

from collections.abc import Iterable, Iterator
from itertools import takewhile
from math import isclose, isnan

from hydraplan.errors import many
from hydraplan.model import Search, Sequences
from hydraplan.planner.placement.draft import Request
from hydraplan.planner.placement.exact_strategy import summed_s
from hydraplan.planner.placement.search import (
    ETAS,
    FINE_ETAS,
    FINE_SLACKS,
    FINE_THETAS,
    SLACKS,
    TAPER_SLACKS,
    TAPERS,
    THETAS,
    may_taper,
    point_again,
    stated_target_s,
)
from hydraplan.planner.placement.tight_fill import FAR, is_small

TOLERANCE = 1e-9
"""Relative difference of a target that rounding may cause."""
NEAR = 0.02
"""Relative distance from the stated target within which every number of microbatches is asked."""

SHRUNK, FEW = 4, 16
"""Tapered microbatches that were tried, over those that got something, at the most."""


def point_claims(
    request: Request, search: Search, placed: Sequences, num_microbatches: int
) -> Iterator[str]:
    """Sentences about a point that no search of this request tries, or that has another target.

    Args:
        search: Of a load-driven plan that has a target.
        placed: Where the plan put the rows.
    """
    wrong = list(_untried(request, search, placed, num_microbatches))
    yield from wrong
    if not wrong and not _has_target(request, search, num_microbatches):
        target_s = _target_s(request, search, num_microbatches)
        yield (
            f"load_target_s is {search.load_target_s:.9g}, that of"
            f" {many(num_microbatches, 'microbatch')} is {target_s:.9g}"
            + (", and no other number has it" * (request.microbatches is None))
        )


def _untried(
    request: Request, search: Search, placed: Sequences, num_microbatches: int
) -> Iterator[str]:
    """What the search does not try; each is named with what it does."""
    finer, slack = not request.window.is_empty, search.slack
    if not isnan(search.taper):
        if not may_taper(request):
            yield f"taper is {search.taper:.9g}, but these options leave no room for one"
        if search.taper not in TAPERS:
            yield f"taper is {search.taper:.9g}, not {_either(TAPERS)}"
        if slack not in TAPER_SLACKS:
            yield f"slack is {slack:.9g}, tapered microbatches take {_either(TAPER_SLACKS)}"
    elif not isnan(slack):
        known = SLACKS + FINE_SLACKS * finer
        if request.reorder != "batch":
            yield f"slack is {slack:.9g}, but --reorder {request.reorder} fills to no limit"
        elif slack not in known and not is_small(request, num_microbatches):
            yield f"slack is {slack:.9g}, a batch of this size takes {_either(known)}"
        elif slack not in known:
            yield from _kept_limit(request, search, placed, num_microbatches)
    else:
        ways = [(THETAS, ETAS)] + [(FINE_THETAS, FINE_ETAS)] * finer
        if not any(search.theta in thetas and search.eta in etas for thetas, etas in ways):
            known_ways = " or ".join(f"{_either(t)} with {_either(e)}" for t, e in ways)
            yield f"theta is {search.theta:.9g} with eta {search.eta:.9g}, not {known_ways}"


def _kept_limit(
    request: Request, search: Search, placed: Sequences, num_microbatches: int
) -> Iterator[str]:
    """Whether slots keep to the limit of a tight filling, which is no more than all they hold."""
    cost, fixed_s = request.cost, request.table.fixed_s
    held_s = summed_s(cost, placed, num_microbatches) - fixed_s * cost.slow[:, None]
    target_s = search.load_target_s / cost.mean_slow - fixed_s
    limit_s = (1 + search.slack) * max(target_s, request.table.floor_s) * cost.mean_slow
    # A limit is at most the peak of another placement, which may have all on the slowest lane.
    slowest = float(cost.slow.max() / cost.slow.min())
    least_s, most_s = float(held_s.max()), FAR * float(held_s.sum()) * slowest
    if not least_s * (1 - TOLERANCE) <= limit_s <= most_s:
        yield (
            f"slack is {search.slack:.9g}, a limit of {limit_s:.9g} s; the fullest slot has"
            f" {least_s:.9g} s, all together {held_s.sum():.9g} s"
        )


def _either(values: tuple[float, ...]) -> str:
    return "/".join(f"{value:g}" for value in values)


def _target_s(request: Request, search: Search, count: int) -> float:
    return stated_target_s(request, point_again(request, search, count))


def _has_target(request: Request, search: Search, num_microbatches: int) -> bool:
    """Whether the stated target is that of some number of microbatches."""

    def asks(count: int) -> bool:
        return isclose(_target_s(request, search, count), search.load_target_s, rel_tol=TOLERANCE)

    if asks(num_microbatches) or request.microbatches is not None:
        return asks(num_microbatches)
    return any(map(asks, _counts(request, search, num_microbatches)))


def _counts(request: Request, search: Search, num_microbatches: int) -> Iterable[int]:
    """Numbers that may have become this one, as far as their target is near the stated one.

    Targets fall with the number. Those of tapered microbatches do not, where shapes are closed to
    some numbers by the cap: there all are asked up to `SHRUNK` times as many, and `FEW` more.
    """
    most = 2 * max(len(request.sequences), num_microbatches) + request.microbatch_multiple
    if not isnan(search.taper):
        most = min(most, SHRUNK * num_microbatches + request.microbatch_multiple + FEW)
        return range(num_microbatches + 1, most + 1)

    def over(count: int) -> float:
        return _target_s(request, search, count) / search.load_target_s - 1

    low, high = request.window.memory - 1, num_microbatches
    while high <= most and over(high) > NEAR:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if over(middle) > NEAR else (low, middle)
    return takewhile(lambda count: over(count) > -NEAR, range(high, most + 1))
