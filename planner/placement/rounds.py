"""Points of the search placed by rounds: the most promising first, the best of a round run.

A round places as many points as its budget holds, half of it all over the numbers of
microbatches, half near the best so far. What then looks best by balance and estimate is sized
exactly and run (`trial`). If all of that straggles, a round of finer quanta follows, until one
placement does not. Tapered microbatches are a round of their own, around an even plan.

Which of the placements that were run is the plan is not said here (`choice`).

Source: our own.
"""

from collections.abc import Iterator
from math import log

from hydraplan.planner.placement.choice import straggles
from hydraplan.planner.placement.draft import Request
from hydraplan.planner.placement.search import (
    MOST_RUN,
    Point,
    finer_points,
    first_points,
    num_finalists,
    num_placements,
    tapered_points,
    uneven,
)
from hydraplan.planner.placement.trial import (
    LONG,
    Finalist,
    Trial,
    both_s,
    finalist_of,
    time_s,
    trial_of,
)

SHARED = 1.004
"""How much the slot imbalance may rise when a placement is run, seen on the benchmark's cells."""


def searched(request: Request) -> tuple[list[Trial | None], list[Finalist]]:
    """All that is placed, None where the cap forbids, and what of it is run.

    Where many placements are affordable, the best at every number of microbatches is run, and all
    in every order: uneven ones gain most by an order with the light ones first and last.
    """
    tries = list(_round(request, first_points(request)))
    affordable = num_finalists(request, _counts(tries)) == MOST_RUN
    likely = _most_promising(request, tries)
    if affordable:
        likely += [t for t in _best_at_each(tries) if t not in likely]
    runs = [finalist_of(request, t, request.orders if affordable else (LONG,)) for t in likely]
    if all(straggles(request, r.built.slot_imbalance) for r in runs):
        for found in _round(request, finer_points(request)):
            tries.append(found)
            if found is not None and not expected(request, found)[0]:
                runs.append(finalist_of(request, found))
                if not straggles(request, runs[-1].built.slot_imbalance):
                    break
    return tries, runs


def tapered(
    request: Request, even: Finalist, limit_s: float
) -> tuple[list[Trial | None], Finalist]:
    """Placements with tapered microbatches around an even plan, and the best of them and it.

    Twice a round is placed: small shares are hard to fill, and a promise does not know how hard.
    None that takes longer than `limit_s` is taken, seconds.
    """
    points = tapered_points(request, even.point.num_microbatches)
    budget = 2 * num_placements(request, [p.num_microbatches for p in points])
    tries = [trial_of(request, p) for p in points[:budget]]
    likely = sorted((t for t in tries if t), key=lambda t: t.estimate_s)
    runs = [finalist_of(request, t) for t in likely[: num_finalists(request, _counts(tries))]]
    return tries, min([even, *(r for r in runs if time_s(r) <= limit_s)], key=both_s)


def expected(request: Request, found: Trial) -> tuple[bool, float]:
    """What a trial is chosen by before it is run, smaller is better: balance, then seconds.

    Sequences that share exchanges lower the mean, so some imbalance is added.
    """
    return straggles(request, found.imbalance * SHARED), found.estimate_s


def _round(request: Request, points: list[Point]) -> Iterator[Trial | None]:
    """Place as many points as the budget holds, one by one; None for what the cap rejects.

    Half of the budget goes to the most promising point of each number of microbatches, the
    rest to the neighbourhood of the best placement so far.
    """
    points = sorted(points, key=lambda p: uneven(request, p))
    budget = min(len(points), num_placements(request, [p.num_microbatches for p in points]))
    first_of: dict[int, Point] = {}
    for point in points:
        first_of.setdefault(point.num_microbatches, point)
    spread = list(first_of.values())
    tries: list[Trial] = []
    for tried in range(budget):
        if not tries or tried < min(len(spread), -(-budget // 2)):
            point = spread[tried] if tried < len(spread) else points[0]
        else:
            near = min(tries, key=lambda t: expected(request, t)).point.num_microbatches
            point = min(points, key=lambda p: (_distance(p.num_microbatches, near), p.promise_s))
        points = [p for p in points if p is not point]
        found = trial_of(request, point)
        if found is not None:
            tries.append(found)
        yield found


def _distance(count: int, other: int) -> int:
    """Steps of a quarter between two numbers of microbatches."""
    return abs(round(log(count / other) / log(1.25)))


def _counts(tries: list[Trial | None]) -> list[int]:
    return [t.point.num_microbatches for t in tries if t is not None]


def _most_promising(request: Request, tries: list[Trial | None]) -> list[Trial]:
    """The best by balance and estimate, and the one with the least estimate."""
    placed = [t for t in tries if t is not None]
    by_rank = sorted(placed, key=lambda t: expected(request, t))
    fastest = sorted(placed, key=lambda t: t.estimate_s)[:1]
    chosen = by_rank[: num_finalists(request, _counts(tries))]
    return chosen + [t for t in fastest if t not in chosen]


def _best_at_each(tries: list[Trial | None]) -> list[Trial]:
    """The least estimate at each number of microbatches."""
    best: dict[int, Trial] = {}
    for t in sorted((t for t in tries if t is not None), key=lambda t: t.estimate_s):
        best.setdefault(t.point.num_microbatches, t)
    return list(best.values())
