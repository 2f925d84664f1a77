"""Which call to time next: where the fit is least certain, within a budget of seconds.

First every second size of each component, small ones first, until a visit would take a
twentieth of the budget; the few a fit cannot do without are always measured, so a slow device
measures fewer points and never hangs. Then, round by round, the points that are left out badly:
how far a fit to all other points is from a measured one is how little is known there, and
between two such points of a size that was not measured as well. A point that is visited again
gets further samples at another time, so what a slow phase of the machine did to it mends.

Source: leave-one-out error as the measure of uncertainty is standard; rounds are our choice.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hydraplan.files.profilefile import Measurement
from hydraplan.model import FloatArray
from hydraplan.profiler.measure import (
    MIN_REPEATS,
    Device,
    Point,
    Timed,
    is_out_of_memory,
    time_call,
    with_times,
)

Errors = Callable[[Sequence[Measurement]], FloatArray]
"""How far a fit to the others is from each row, |log(fit / measured)|, shape (num_rows,)."""

FIRST_PASS_SHARE = 0.7
"""Of the budget for the first pass, shared out by the number of points of each component."""

FIRST_SHARE = 0.05
"""Of the budget: the longest visit of the first pass."""

LATER_SHARE = 0.25
"""Of what is left of the budget: the longest visit of later rounds."""

ROUND_SHARE = 0.2
"""Points visited before errors are found anew, of all that could be."""

VISITS = 4
"""Visits a point would get, on average, if all could be visited; sets the time of one."""


@dataclass(slots=True)
class Visited:
    """A point with what was measured there: rows without times, samples of each, visits."""

    point: Point
    rows: list[Measurement] = field(default_factory=list)
    samples: list[list[Timed]] = field(default_factory=list)
    visits: int = 0
    visit_s: float = 0.0
    is_beyond: bool = False

    def measured(self) -> list[Measurement]:
        """Its rows with times."""
        return [with_times(*pair) for pair in zip(self.rows, self.samples, strict=True)]


def sweep(
    points: Sequence[Point],
    device: Device,
    budget_s: float,
    required: Mapping[str, int],
    errors: Errors,
) -> list[Measurement]:
    """Measure points for about `budget_s` seconds, of each component the `required` smallest."""
    end_s = time.perf_counter() + budget_s
    groups = _by_component(points)
    slice_s = budget_s / (VISITS * max(1, len(points)))
    for component, group in sorted(groups.items(), key=lambda item: len(item[1])):
        share_s = FIRST_PASS_SHARE * budget_s * len(group) / len(points)
        until_s = min(end_s, time.perf_counter() + share_s)
        needed = required.get(component, 0)
        _first_pass(group, needed, device, slice_s, FIRST_SHARE * budget_s, until_s)
    while time.perf_counter() < end_s:
        chosen = _least_certain(groups, errors, end_s - time.perf_counter())
        if not chosen:
            break
        for visited in chosen:
            if time.perf_counter() >= end_s:
                break
            _visit(visited, device, slice_s, end_s)
    return [row for group in groups.values() for visited in group for row in visited.measured()]


def _by_component(points: Sequence[Point]) -> dict[str, list[Visited]]:
    """Points of each component by work."""
    groups: dict[str, list[Visited]] = {}
    for point in sorted(points, key=lambda point: point.work):
        groups.setdefault(point.component, []).append(Visited(point))
    return groups


def _first_pass(
    group: list[Visited],
    required: int,
    device: Device,
    slice_s: float,
    longest_s: float,
    end_s: float,
) -> None:
    """Visit the required points and every second one beyond, while a visit is short enough."""
    for index, visited in enumerate(group):
        is_required = index < required
        if is_required or index % 2 == 0:
            left_s = end_s - time.perf_counter()
            if not is_required and _expected_s(group, index) > min(longest_s, left_s):
                break
            _visit(visited, device, slice_s, end_s)


def _visit(visited: Visited, device: Device, slice_s: float, end_s: float) -> None:
    """Make the inputs anew and take samples of every call; a point too large is told so."""
    start = time.perf_counter()
    try:
        calls = visited.point.prepare()
        share_s = max(0.0, end_s - time.perf_counter()) / len(calls)
        found = [time_call(call, device, slice_s / len(calls), share_s) for call in calls]
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        visited.is_beyond = True
        return
    if not visited.visits:
        visited.rows = [call.row for call in calls]
        visited.samples = [[] for _ in calls]
    for kept, new in zip(visited.samples, found, strict=True):
        kept += new
    visited.visits += 1
    visited.visit_s = time.perf_counter() - start


def _expected_s(group: list[Visited], index: int) -> float:
    """Seconds of a short visit, from the last smaller point that was visited; 0 without one."""
    point = group[index].point
    for visited in reversed(group[: index + 1]):
        if visited.is_beyond:
            return float("inf")
        if visited.visits:
            calls_s = sum(min(s.seconds for s in samples) for samples in visited.samples)
            return (MIN_REPEATS + 2) * calls_s * point.work / visited.point.work
    return 0.0


def _least_certain(
    groups: Mapping[str, list[Visited]], errors: Errors, left_s: float
) -> list[Visited]:
    """Points to visit in the next round, the least certain first."""
    known = [visited for group in groups.values() for visited in group if visited.visits]
    rows = [row for visited in known for row in visited.measured()]
    found = iter(errors(rows))
    error = {id(v): max(next(found) for _ in v.rows) for v in known}
    candidates: list[tuple[float, Visited]] = []
    for group in groups.values():
        at = [index for index, visited in enumerate(group) if visited.visits]
        for index, visited in enumerate(group):
            if visited.is_beyond or _expected_s(group, index) > LATER_SHARE * left_s:
                continue
            if visited.visits:
                candidates.append((error[id(visited)] / visited.visits, visited))
            elif at:
                place = int(np.searchsorted(at, index))
                near = at[max(0, place - 1) : place + 1]
                candidates.append((float(np.mean([error[id(group[i])] for i in near])), visited))
    candidates.sort(key=lambda pair: -pair[0])
    most = max(1, int(ROUND_SHARE * len(candidates)))
    return [visited for uncertainty, visited in candidates[:most] if uncertainty > 0]
