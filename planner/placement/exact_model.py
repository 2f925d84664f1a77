"""The placement problem in CP-SAT: one Boolean a place, the largest slot load is minimised.

Each sequence takes exactly one place; in every slot the summed loads stay within Z and the
summed rows within the cap. Loads become integers rounded down, so that a bound of the model,
times the unit, is a true lower bound in seconds. Two redundant limits help: Z is at least the
least load of the least splittable sequence, and R * M * Z at least the rank-work placed.

Source: the model is that of our planner study; it is not published.
"""

from dataclasses import dataclass
from math import floor
from types import ModuleType
from typing import Any

import numpy as np

from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.cp_sat import cp_sat, solved
from hydraplan.planner.placement.exact_places import Places, Problem

UNITS = 10_000_000
"""Integer units in the mean load of a slot. Finer than costs are known, and no slower than 1e4."""


@dataclass(frozen=True, slots=True)
class Solution:
    """What CP-SAT found: indices of the chosen places, None if it found none in time.

    `is_optimal`: no placement is better by more than the rounding, (N + 1) / UNITS of the mean.
    `bound_s`: no placement at all has a smaller largest slot load; infinite if none exists.
    """

    chosen: IntArray | None
    is_optimal: bool
    bound_s: float


def minimise(
    problem: Problem, places: Places, hint: Places | None, deterministic_s: float
) -> Solution:
    """Build the model over `places` and solve it.

    Args:
        hint: A placement within the cap, made of listed places. It only limits Z: given to CP-SAT
            as a solution, it draws the search to its neighbourhood and leaves larger gaps.
        deterministic_s: CP-SAT's deterministic time; two CPU seconds or so each.
    """
    module = cp_sat("strategy exact", "--strategy hydra")
    scaled = _scaled(problem, places, hint)
    model, chosen = _build(module, problem, places, scaled)
    solver, status = solved(module, model, deterministic_s)
    if status == module.INFEASIBLE:
        return Solution(None, False, np.inf)
    assert status in (module.OPTIMAL, module.FEASIBLE, module.UNKNOWN), solver.status_name(status)
    bound = max(scaled.least, floor(solver.best_objective_bound))
    bound_s = bound * scaled.unit_s * (1 - 1e-12)
    if status == module.UNKNOWN:
        return Solution(None, False, bound_s)
    taken = np.flatnonzero([solver.boolean_value(x) for x in chosen])
    return Solution(taken.astype(np.int64), status == module.OPTIMAL, bound_s)


@dataclass(frozen=True, slots=True)
class _Scaled:
    """Integer units of `unit_s` seconds, rounded down.

    `cost`: what each place adds to its slots, `fixed`: what a slot of each rank costs,
    `least`, `most`: the range of Z.
    """

    unit_s: float
    cost: IntArray
    fixed: IntArray
    least: int
    most: int


def _scaled(problem: Problem, places: Places, hint: Places | None) -> _Scaled:
    """Seconds as integers; `UNITS` of them make the mean load at the least rank-work."""
    count, num_microbatches = len(problem.rows), problem.num_microbatches
    num_slots, degree = problem.num_ranks * num_microbatches, problem.degree(places)
    added_s, fixed_s = problem.added_s(places), problem.fixed_s / problem.rank_speed
    work_s = np.full(count, np.inf)
    np.minimum.at(work_s, places.sequence, added_s * degree)
    unit_s = float(work_s.sum() / num_slots + fixed_s.mean()) / UNITS
    cost, fixed = _floored(added_s, unit_s), _floored(fixed_s, unit_s)
    cheapest, work = np.full((2, count), np.iinfo(np.int64).max)
    np.minimum.at(cheapest, places.sequence, cost)
    np.minimum.at(work, places.sequence, cost * degree)
    mean = -(-int(work.sum() + fixed.sum() * num_microbatches) // num_slots)
    if hint is None:
        dearest = np.zeros(count, np.int64)
        np.maximum.at(dearest, places.sequence, cost)
        most = int(dearest.sum() + fixed.max())
    else:
        summed = np.repeat(fixed, num_microbatches)
        place, slot = problem.slots(hint)
        np.add.at(summed, slot, _floored(problem.added_s(hint), unit_s)[place])
        most = int(summed.max())
    return _Scaled(unit_s, cost, fixed, max(mean, int(cheapest.max() + fixed.min())), most)


def _build(
    module: ModuleType, problem: Problem, places: Places, scaled: _Scaled
) -> tuple[Any, list[Any]]:
    """The model and the Boolean of every place."""
    model, total = module.CpModel(), module.LinearExpr.weighted_sum
    chosen = [model.new_bool_var("") for _ in range(len(places))]
    for own in _grouped(places.sequence, len(problem.rows)):
        model.add_exactly_one(chosen[p] for p in own)
    top = model.new_int_var(scaled.least, scaled.most, "")
    rows = problem.rows[places.sequence, places.level]
    place, slot = problem.slots(places)
    num_slots = problem.num_ranks * problem.num_microbatches
    for s, covering in enumerate(_grouped(slot, num_slots)):
        inside = place[covering]
        booleans = [chosen[p] for p in inside]
        fixed = int(scaled.fixed[s // problem.num_microbatches])
        model.add(total(booleans, scaled.cost[inside].tolist()) + fixed <= top)
        model.add(total(booleans, rows[inside].tolist()) <= problem.cap_tokens)
    work = (scaled.cost * problem.degree(places)).tolist()
    fixed = int(scaled.fixed.sum()) * problem.num_microbatches
    model.add(total(chosen, work) + fixed <= num_slots * top)
    model.minimize(top)
    return model, chosen


def _floored(seconds: FloatArray, unit_s: float) -> IntArray:
    """Whole units, rounded down, also where the division itself rounds up."""
    return np.floor(seconds / unit_s * (1 - 1e-15)).astype(np.int64)


def _grouped(key: IntArray, count: int) -> list[IntArray]:
    """Indices that carry each key 0 .. count - 1, ascending."""
    by = np.argsort(key, kind="stable")
    return np.split(by, np.searchsorted(key[by], np.arange(1, count)))
